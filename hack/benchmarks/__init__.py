"""What ``hack/bench.py`` measures, one file for each question."""
