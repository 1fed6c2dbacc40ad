"""Features: each reads the core's facts and speaks to somebody else, behind the seam in ``seam``. None imports another."""
