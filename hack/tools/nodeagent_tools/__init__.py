"""Verbs of nodeagent that neither the agent nor the controller loads.

``plan`` has those that read a whole fabric, ``rails`` asks for the probes over the rails, ``vfs`` creates VFs,
``capture`` records a machine, ``claim`` prints a claim. The image has all of them.
"""

__version__ = "0.2.0"
