"""The controller's work: mirrors of the cluster, switches that it asks, HyperNodes and labels that it writes, pages.

The plan itself is ``fabric``, which is pure.
"""
