"""The hardware counters of RDMA ports: one answer holds all counters of a port; sysfs has one file for each.

Needs no capability. Constants: include/uapi/rdma/rdma_netlink.h.
"""

from __future__ import annotations

from nodeagent.host.netlink.message import (
    attribute,
    attribute_text,
    attributes,
    listed_attributes,
    number,
    u32,
)
from nodeagent.host.netlink.socket import NetlinkSocket

_PROTOCOL = 20  # NETLINK_RDMA
_NLDEV = 5 << 10  # RDMA_NL_NLDEV, above the command
_GET, _STAT_GET = _NLDEV | 1, _NLDEV | 17
_DEV_INDEX, _DEV_NAME, _PORT = 1, 2, 3
_COUNTERS, _COUNTER, _NAME, _VALUE = 80, 81, 82, 83


class RdmaCounters(NetlinkSocket):
    """A socket of the network namespace in which it was made, for one thread at a time.

    Raises ``NetlinkError`` where this kernel has no RDMA.
    """

    def __init__(self) -> None:
        super().__init__(_PROTOCOL, "RDMA counters")

    def devices(self) -> dict[str, int]:
        """The index of each RDMA device, by name."""
        return {name: index for index, name in self.dump(_GET, b"", device_of)}

    def read(self, index: int, port: int = 1) -> dict[str, int]:
        """Counters by the driver's names. Raises ``NetlinkRefusedError``: EOPNOTSUPP or EINVAL without any."""
        body = attribute(_DEV_INDEX, u32(index)) + attribute(_PORT, u32(port))
        return rdma_counters_of(self.ask(_STAT_GET, body))


def device_of(payload: bytes) -> tuple[int, str]:
    attrs = attributes(payload)
    return number(attrs.get(_DEV_INDEX)) or 0, attribute_text(attrs.get(_DEV_NAME)) or ""


def rdma_counters_of(payload: bytes) -> dict[str, int]:
    counters = {}
    for kind, entry in listed_attributes(attributes(payload).get(_COUNTERS, b"")):
        attrs = attributes(entry) if kind == _COUNTER else {}
        name, value = attribute_text(attrs.get(_NAME)), number(attrs.get(_VALUE))
        if name and value is not None:
            counters[name] = value
    return counters
