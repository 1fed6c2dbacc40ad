"""A sample: the values that one reader measured on one device at one moment. Pure.

Health rules, metrics and recordings (JSON lines) use the same samples, so a metric shows the value that a rule used.

* A missing name means that the reader could not measure it. It never means 0.
* A counter keeps the hardware's own value. Code that needs a rate keeps two samples.
* A value per lane, priority, VF or error stands under ``name/key``, for example ``lane_errors/3``.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Source(StrEnum):
    """The reader of a sample, by the name that recordings, metrics and logs use. Each has its own rate."""

    LINK = "link"
    """one RTM_GETLINK dump"""
    MODES = "modes"
    """ethtool netlink: speed and lanes"""
    STATE = "state"
    """ethtool netlink: extended link state"""
    FEC = "fec"
    PAUSE = "pause"
    STANDARD = "standard"
    """ethtool netlink: counters of IEEE 802.3 and RMON, which the kernel names alike for all drivers"""
    DRIVER = "driver"
    """the driver's private statistics (ETHTOOL_GSTATS); on mlx5 the firmware answers, which is slower"""
    RDMA = "rdma"
    PCIE = "pcie"
    DEVLINK = "devlink"
    MODULE = "module"
    """transceiver EEPROM over I2C: slow, and needs CAP_NET_ADMIN"""
    KERNEL = "kernel"
    """the kernel log"""
    ADMINISTRATION = "administration"
    """netlink notices of changes by an administrator"""
    RAILS = "rails"
    """probes over the rails"""
    ATTACH = "attach"
    """`nodeagent attach`, by its state file"""
    VF = "vf"
    """VF traffic as the PF counts it: one firmware command per VF on mlx5"""
    GPU = "gpu"


class Sample(msgspec.Struct, frozen=True, omit_defaults=True):
    """The values of one device from one reader.

    ``at`` is CLOCK_BOOTTIME in seconds. ``device`` is a PF's PCI address or a GPU's UUID, empty for the node.
    ``values`` and ``texts`` use the names of ``measurements/table.py``.
    """

    at: float
    device: str
    source: Source
    values: dict[str, float] = {}
    texts: dict[str, str] = {}
