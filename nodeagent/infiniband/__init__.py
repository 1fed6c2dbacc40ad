"""InfiniBand neighbors: questions and answers of subnet management, switch names, and when a port is asked.

Pure: no devices, no clocks (``now`` is an argument), no logging. Any answer may be hostile: the codec raises only
``SmpError``.
"""
