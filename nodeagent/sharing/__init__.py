"""Keep containers within their share of GPU memory, and compare what pods use with what they were granted.

``shares``, ``gpu_accounts`` and ``over_use`` are pure. The other modules touch cgroups, the driver and files, in
threads with a time limit.
"""
