"""The use of GPU memory and of the SMs by pods, compared with what they were granted.

``gpu_accounts`` and ``over_use`` are pure; ``gpu_accounting`` joins them with measurements and holdings.
"""
