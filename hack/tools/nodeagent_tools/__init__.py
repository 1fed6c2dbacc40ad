"""Verbs of nodeagent that neither the agent nor the controller loads.

``doctor`` finds what is wrong with a node, ``plan`` has verbs that read a whole fabric, ``rail_legs`` asks for the
probes over the rails, ``vfs`` creates VFs, ``capture`` records a machine, ``claim`` prints a claim. The image has all.
"""

__version__ = "0.2.0"
