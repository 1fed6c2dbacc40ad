"""What several verbs share: options, exit codes, the screen and its tables, log lines, the user's files, the agent's answers.

No verb and no daemon is imported here.
"""
