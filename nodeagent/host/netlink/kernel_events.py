"""Wait for kernel events about links (rtnetlink) and devices (uevents).

An event is a hint to scan again: it is decoded only as far as the decision to wake needs. Messages that queue
up meanwhile cause one wake-up. Messages that the kernel dropped (ENOBUFS) cause a wake-up too, and ``resyncs``
counts it; the following scan makes up for the loss.

Both sockets belong to the network namespace of the thread that makes them. The kernel sends PCI events to every
namespace that the initial user namespace owns, but events of netdevs and RDMA devices only to the device's own:
make these sockets in the host's network namespace (``hostNetwork: true``).
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from errno import ENOBUFS

from nodeagent.host.fd import Closing, wait_readable
from nodeagent.host.netlink.message import NetlinkError, attribute_text, attributes, messages
from nodeagent.host.netlink.socket import subscribed

__all__ = ["SUBSYSTEMS", "LinkEvents", "NetlinkError", "Uevents", "subsystem"]

_RTMGRP_LINK = 1  # include/uapi/linux/rtnetlink.h
_NEWLINK, _DELLINK, _IFINFO_BYTES = 16, 17, 16
_NAME, _PARENT_NAME = 3, 56  # IFLA_IFNAME, IFLA_PARENT_DEV_NAME, include/uapi/linux/if_link.h
_VIRTUAL = b"@/devices/virtual/"
_KERNEL_UEVENTS = 1  # the multicast group of the kernel itself; udevd repeats its own on group 2
_NETLINK_KOBJECT_UEVENT = 15  # include/uapi/linux/netlink.h
_UEVENT_MAX = 8 * 1024  # the kernel's own environment is 2 KiB (UEVENT_BUFFER_SIZE)
_DRAIN_MAX = 4096  # bounds the time that a storm of events holds the event loop

SUBSYSTEMS = frozenset({"pci", "net", "infiniband"})


class _KernelEvents(Closing):
    """One subscribed socket. One task at a time may wait on it."""

    def __init__(self, protocol: int, groups: int, what: str, matches: Callable[[bytes], bool]) -> None:
        self._matches = matches
        self.socket = subscribed(protocol, groups, what)
        self.resyncs = 0

    def close(self) -> None:
        self.socket.close()

    async def wait(self) -> None:
        """Return after an event, with the queue drained."""
        while True:
            await wait_readable(self.socket.fileno())
            if self._drain():
                return

    def _drain(self) -> bool:
        woken = False
        for _ in range(_DRAIN_MAX):
            try:
                message, sender = self.socket.recvfrom(_UEVENT_MAX)
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno != ENOBUFS:
                    raise
                self.resyncs += 1
                woken = True
            else:
                # Port 0 is the kernel; messages of other processes are ignored.
                woken = woken or (sender[0] == 0 and self._matches(message))
        return woken


class LinkEvents(_KernelEvents):
    """A link of this network namespace was added, changed or removed (RTMGRP_LINK).

    With ``matters`` an event of a software netdev counts only if ``matters`` returns true for its name: each start and
    end of a pod makes a dozen events of its veth pair. A netdev with a parent device (IFLA_PARENT_DEV_NAME, since Linux
    5.14) always counts.
    """

    def __init__(self, matters: Callable[[str], bool] | None = None) -> None:
        def matches(message: bytes) -> bool:
            return matters is None or _concerns(message, matters)

        super().__init__(socket.NETLINK_ROUTE, _RTMGRP_LINK, "link events", matches)


class Uevents(_KernelEvents):
    """A device of one of ``subsystems`` was added, removed, changed, bound to or unbound from a driver.

    With ``hardware`` the events of software netdevs do not count.
    """

    def __init__(self, subsystems: frozenset[str] = SUBSYSTEMS, *, hardware: bool = False) -> None:
        super().__init__(
            _NETLINK_KOBJECT_UEVENT,
            _KERNEL_UEVENTS,
            "kernel device events",
            lambda message: (
                subsystem(message) in subsystems
                and not (hardware and _VIRTUAL in message.partition(b"\0")[0])
            ),
        )


def _concerns(datagram: bytes, matters: Callable[[str], bool]) -> bool:
    """Whether a message of this datagram is about a netdev that matters. A message that cannot be read does."""
    try:
        for kind, _, _, payload in messages(datagram):
            if kind not in (_NEWLINK, _DELLINK):
                continue
            values = attributes(payload, _IFINFO_BYTES)
            if _PARENT_NAME in values or matters(attribute_text(values.get(_NAME)) or ""):
                return True
    except NetlinkError:
        return True
    return False


def subsystem(message: bytes) -> str | None:
    """The subsystem in a kernel uevent: ``ACTION@devpath``, then ``KEY=value``, each with a NUL at its end."""
    head, *fields = message.split(b"\0")
    if b"@" not in head:
        return None
    for field in fields:
        key, _, value = field.partition(b"=")
        if key == b"SUBSYSTEM":
            return value.decode("ascii", "replace")
    return None
