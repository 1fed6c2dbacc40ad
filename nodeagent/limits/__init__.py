"""Keep containers within their share of GPU memory: limits of cgroups by NVML, and what an MPS daemon needs.

``shares`` is pure. The other modules touch cgroups, the driver and files, in threads with a time limit.
"""
