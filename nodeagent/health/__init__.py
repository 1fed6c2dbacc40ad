"""Verdicts from facts: pure, without clocks and without I/O."""
