"""Wake-ups from the kernel: something about links, or about devices, has changed.

Nothing is decoded beyond what decides whether to wake: an event is a hint, and the world is read
afterwards. Messages that queue up while nobody waits are one wake-up. When the kernel had to drop some
(ENOBUFS) that is a wake-up too, counted in ``resyncs``: looking again is all that is lost by it.

Both sockets belong to the network namespace of the thread that makes them. PCI events are sent to every
namespace that the initial user namespace owns, those of netdevs and RDMA devices only to the device's own:
make these sockets in the host's network namespace (``hostNetwork: true``).
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from errno import ENOBUFS
from typing import Self

from nodeagent.host.netlink.message import NetlinkError
from nodeagent.host.readable import readable

__all__ = ["SUBSYSTEMS", "LinkEvents", "NetlinkError", "Uevents", "subsystem"]

_RTMGRP_LINK = 1  # include/uapi/linux/rtnetlink.h
_KERNEL_UEVENTS = 1  # the multicast group of the kernel itself; udevd repeats its own on group 2
_NETLINK_KOBJECT_UEVENT = 15  # include/uapi/linux/netlink.h
_UEVENT_MAX = 8 * 1024  # the kernel's own environment is 2 KiB (UEVENT_BUFFER_SIZE)
_DRAIN_MAX = 4096  # a storm must not keep the event loop from its other work

SUBSYSTEMS = frozenset({"pci", "net", "infiniband"})


class _Events:
    """One subscribed socket. One task at a time may wait on it."""

    def __init__(self, protocol: int, groups: int, what: str, concerns: Callable[[bytes], bool]) -> None:
        self._concerns = concerns
        try:
            self.socket = socket.socket(
                socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC, protocol
            )
        except OSError as error:
            raise NetlinkError(f"no netlink socket for {what}: {error.strerror}; allow AF_NETLINK") from error
        try:
            self.socket.bind((0, groups))
        except OSError as error:
            self.socket.close()
            raise NetlinkError(f"cannot subscribe to {what}: {error.strerror}") from error
        self.resyncs = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    async def wait(self) -> None:
        """Return after something has happened, with all that is queued drained."""
        while True:
            await readable(self.socket.fileno())
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
                # Port 0 is the kernel: whatever another process sends us wakes nobody.
                woken = woken or (sender[0] == 0 and self._concerns(message))
        return woken


class LinkEvents(_Events):
    """A link of this network namespace was made, changed or removed (RTMGRP_LINK)."""

    def __init__(self) -> None:
        super().__init__(socket.NETLINK_ROUTE, _RTMGRP_LINK, "link events", lambda _: True)


class Uevents(_Events):
    """A device of one of ``subsystems`` was added, removed, changed, bound to or unbound from a driver."""

    def __init__(self, subsystems: frozenset[str] = SUBSYSTEMS) -> None:
        super().__init__(
            _NETLINK_KOBJECT_UEVENT,
            _KERNEL_UEVENTS,
            "kernel device events",
            lambda message: subsystem(message) in subsystems,
        )


def subsystem(message: bytes) -> str | None:
    """The subsystem in a kernel uevent: ``ACTION@devpath``, then ``KEY=value``, each ending in NUL."""
    head, *fields = message.split(b"\0")
    if b"@" not in head:
        return None
    for field in fields:
        key, _, value = field.partition(b"=")
        if key == b"SUBSYSTEM":
            return value.decode("ascii", "replace")
    return None
