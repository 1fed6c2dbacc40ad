"""The measurements of ``hack/bench.py``, one file for each question."""
