"""Dynamic Resource Allocation: the agent as a DRA driver, for the kinds whose ``mode`` is ``dra``.

The scheduler chooses the GPU and the PF; the agent publishes them, checks the sums, chooses the VFs, and gives the
container runtime a CDI spec for each claim. A kind is never offered as a device plugin and by DRA at once.
"""

DRIVER = "nodeagent.io"
"""The name of the driver in ResourceSlices and DeviceClasses, and the domain of its attributes."""
