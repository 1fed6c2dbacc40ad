"""The laboratory of nodeagent: simulated machines, a stand-in kubelet and API server, and the demo.

A package of its own, so that what runs on nodes and in the controller holds no stand-in. It adds the verb ``demo``.
"""

__version__ = "0.2.0"
