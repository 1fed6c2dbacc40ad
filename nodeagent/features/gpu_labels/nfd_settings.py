"""The settings of the labels for Node Feature Discovery."""

from typing import Annotated, NamedTuple

from nodeagent.config.setting import Settings, setting


class NfdSettings(Settings, frozen=True, kw_only=True):
    """Labels that Node Feature Discovery (NFD) sets on this Node."""

    gpu_labels: Annotated[
        bool,
        setting(
            "Write the labels of NVIDIA's GPU Feature Discovery (nvidia.com/gpu.product, gpu.memory, gpu.count, "
            "versions of driver and CUDA, gpu.clique, …) as a file for NFD's worker on this node. Nothing is written "
            "while GPU Feature Discovery does it: it is known by its file, and with the right to list NodeFeatures by "
            "its object."
        ),
    ] = False


class OfferedGpus(NamedTuple):
    """How other settings offer the GPUs. ``mps``: a resource is shared by MPS. ``by_profile``: there is a resource of
    kind mig."""

    mps: bool
    by_profile: bool
