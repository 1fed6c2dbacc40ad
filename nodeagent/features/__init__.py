"""Features: each reads the core's facts and speaks to somebody else, behind one seam (``seam``).

None imports another. Their rows are in ``nodeagent/agent_features.py`` and
``nodeagent/controller_features.py``.
"""
