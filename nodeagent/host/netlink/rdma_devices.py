"""The RDMA devices of a network namespace. Constants: include/uapi/rdma/rdma_netlink.h."""

from __future__ import annotations

from nodeagent.host.netlink.message import attribute, attribute_text, attributes, number, u32
from nodeagent.host.netlink.socket import NetlinkSocket

PROTOCOL = 20  # NETLINK_RDMA
NLDEV = 5 << 10  # RDMA_NL_NLDEV, above the command
_GET, _SET = NLDEV | 1, NLDEV | 2
DEV_INDEX, _DEV_NAME, _NET_NS_FD = 1, 2, 68


class RdmaDevices(NetlinkSocket):
    """A socket of the network namespace in which it was made, for one thread at a time.

    Raises ``NetlinkError`` where this kernel has no RDMA.
    """

    def __init__(self) -> None:
        super().__init__(PROTOCOL, "RDMA")

    def devices(self) -> dict[str, int]:
        """The index of each RDMA device, by name."""
        return {name: index for index, name in self.dump(_GET, b"", device_of)}

    def move(self, index: int, namespace: int) -> None:
        """Put a device into the namespace of this descriptor, under its name, in the exclusive RDMA mode.

        The kernel looks the device up in the namespace of the socket, and moves it only for a thread that is in that
        namespace itself (``ib_device_set_netns_put`` in drivers/infiniband/core/device.c). Raises
        ``NetlinkRefusedError``: EOPNOTSUPP in the shared mode, or for a driver that cannot take the device from
        programs that have it open; ENODEV for a thread in another namespace."""
        self._change(_SET, 0, attribute(DEV_INDEX, u32(index)) + attribute(_NET_NS_FD, u32(namespace)))


def device_of(payload: bytes) -> tuple[int, str]:
    attrs = attributes(payload)
    return number(attrs.get(DEV_INDEX)) or 0, attribute_text(attrs.get(_DEV_NAME)) or ""
