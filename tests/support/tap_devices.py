"""Tap devices whose carrier a test switches: linkwatch applies to them as to a NIC, but not to a veth."""

from __future__ import annotations

import fcntl
import os
import struct

from nodeagent_lab.sim.netns import Netns

# include/uapi/linux/if_tun.h
_TUNSETIFF, _TUNSETCARRIER = 0x4004_54CA, 0x4004_54E2
_IFF_TAP, _IFF_NO_PI = 0x0002, 0x1000


class Tap:
    """``with Tap(ns, "tap0") as tap``: up, with carrier."""

    def __init__(self, ns: Netns, name: str) -> None:
        with ns.entered():
            self._fd = os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC)
            fcntl.ioctl(self._fd, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _IFF_TAP | _IFF_NO_PI))
        ns.ip(f"link set {name} up")

    def __enter__(self) -> Tap:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    def carrier(self, on: bool) -> None:
        fcntl.ioctl(self._fd, _TUNSETCARRIER, struct.pack("i", on))

    def flap(self, times: int) -> None:
        for _ in range(times):
            self.carrier(False)
            self.carrier(True)
