"""What several verbs share: options, exit codes, the screen and its tables, log lines, the user's files, questions to
the agent. It imports no verb, neither daemon and not the doctor.
"""
