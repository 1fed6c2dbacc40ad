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
from nodeagent.host.netlink.rdma_devices import DEV_INDEX, NLDEV, RdmaDevices

_STAT_GET = NLDEV | 17
_PORT = 3
_COUNTERS, _COUNTER, _NAME, _VALUE = 80, 81, 82, 83


class RdmaCounters(RdmaDevices):
    """A socket of the network namespace in which it was made, for one thread at a time."""

    def read(self, index: int, port: int = 1) -> dict[str, int]:
        """Counters by the driver's names. Raises ``NetlinkRefusedError``: EOPNOTSUPP or EINVAL without any."""
        body = attribute(DEV_INDEX, u32(index)) + attribute(_PORT, u32(port))
        return rdma_counters_of(self.ask(_STAT_GET, body))


def rdma_counters_of(payload: bytes) -> dict[str, int]:
    counters = {}
    for kind, entry in listed_attributes(attributes(payload).get(_COUNTERS, b"")):
        attrs = attributes(entry) if kind == _COUNTER else {}
        name, value = attribute_text(attrs.get(_NAME)), number(attrs.get(_VALUE))
        if name and value is not None:
            counters[name] = value
    return counters
