"""The offer of this machine: configuration and facts become kinds, and the kubelet's devices stay equal to them.

``offer`` and ``gpu_kinds`` are pure; ``device_offering`` is the loop.
"""
