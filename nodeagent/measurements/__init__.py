"""Samples, the state of their readers, and the table of all measurements with their metric families. Pure."""
