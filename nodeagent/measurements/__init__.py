"""The table of all measurements: sample names, their readers and their metric families. Pure data, no logic."""
