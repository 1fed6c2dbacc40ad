"""nodeagent: the agent that a GPU cluster runs on every node."""

__version__ = "0.2.0"
