"""Network namespaces without names and processes, so that none is left when the creating process ends.

A namespace exists while its file descriptor is open or a process is in it. Creating one needs root; ``ip``
configures it, and ``nsenter`` runs programs in it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import subprocess
import threading
from collections.abc import Iterator

_CLONE_NEWNET = 0x4000_0000
_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")


class Netns:
    """``with Netns() as ns``; it has only a loopback, which is down."""

    def __init__(self) -> None:
        made: list[int] = []

        def make() -> None:
            if _libc.unshare(_CLONE_NEWNET) == 0:
                made.append(os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC))

        thread = threading.Thread(target=make)
        thread.start()
        thread.join()
        if not made:
            raise PermissionError("cannot create a network namespace")
        self.fd = made[0]
        self.path = f"/proc/{os.getpid()}/fd/{self.fd}"

    def __enter__(self) -> Netns:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.fd)

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Put this thread into the namespace; sockets and threads made inside belong to it."""
        before = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            _check(_libc.setns(self.fd, _CLONE_NEWNET), "setns")
            try:
                yield
            finally:
                _check(_libc.setns(before, _CLONE_NEWNET), "setns")
        finally:
            os.close(before)

    def command(self, *arguments: str) -> list[str]:
        return ["nsenter", f"--net={self.path}", *arguments]

    def ip(self, arguments: str) -> None:
        """Run ``ip`` with these arguments, one command in each line."""
        lines = [line.strip() for line in arguments.strip().splitlines()]
        subprocess.run(
            self.command("ip", "-batch", "-"), input="\n".join(lines), text=True, check=True, timeout=30
        )

    def ifindex(self, netdev: str) -> int:
        with self.entered():
            return socket.if_nametoindex(netdev)

    def raw(self, netdev: str) -> socket.socket:
        """A packet socket that sends on the netdev and receives nothing."""
        with self.entered():
            opened = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
            opened.bind((netdev, 0))
            return opened


def veth(here: Netns, name: str, there: Netns, peer: str, *, up: bool = True) -> None:
    here.ip(f"link add {name} type veth peer name {peer} netns {there.path}")
    if up:
        here.ip(f"link set {name} up")
        there.ip(f"link set {peer} up")
