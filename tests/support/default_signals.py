"""A child that ends at SIGINT and SIGHUP wherever the tests run.

Signals that a parent ignores stay ignored in its children: SIGINT in a background job of a shell, SIGHUP under
``nohup``.
"""

DEFAULT_SIGNALS = ("env", "--default-signal")
"""The first words of a command that signals must end. ``env`` replaces itself, so the process ID is the command's."""
IGNORING = ("env", "--ignore-signal=INT,HUP")
"""The first words of a command that starts as in the background of a shell under ``nohup``."""
