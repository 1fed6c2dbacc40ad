"""The parts that several verbs share: options, exit codes, the screen and its tables, log lines, the user's files,
questions to the agent. They import no verb, neither daemon and not the doctor.
"""
