"""Sending on a socket whose kernel reports the errors of earlier packets."""

from __future__ import annotations

import asyncio
import errno
import socket
from ipaddress import ip_interface
from typing import Any, cast

import pytest

from nodeagent.features.rail_probing.rail_socket import RailSocket

RAW, TO = b"probe", ("10.0.0.2", 18514)


class Kernel:
    """A socket: ``refusals`` are the errors of the next calls, ``queued`` those that wait in its queue."""

    def __init__(self, refusals: list[int], queued: int, number: int) -> None:
        self.refusals, self.queued, self.number = refusals, queued, number
        self.sent: list[bytes] = []

    def fileno(self) -> int:
        return self.number

    def sendto(self, raw: bytes, _to: object) -> None:
        if self.refusals:
            number = self.refusals.pop(0)
            raise OSError(number, errno.errorcode[number])
        self.sent.append(raw)

    def recvmsg(self, *_sizes: int) -> tuple[bytes, list[Any], int, tuple[str, int]]:
        if not self.queued:
            raise BlockingIOError
        self.queued -= 1
        return RAW, [], 0, TO

    def getsockname(self) -> tuple[str, int]:
        return TO


@pytest.mark.parametrize(
    ("refusals", "queued", "counts", "sent"),
    [
        ([], 0, True, 1),
        # The error of an earlier packet, to this partner or to another one.
        ([errno.EHOSTUNREACH], 2, True, 1),
        ([errno.ECONNREFUSED], 1, True, 1),
        # Nobody has the address now: a dead partner in the own subnet.
        ([errno.EHOSTUNREACH], 0, True, 0),
        # The kernel cannot take it: nothing was learned about the way.
        ([errno.ENOBUFS], 0, False, 0),
        ([errno.ENETUNREACH], 0, False, 0),
    ],
)
async def test_the_error_of_an_earlier_packet_does_not_stop_this_one(
    refusals: list[int], queued: int, counts: bool, sent: int
) -> None:
    one, other = socket.socketpair()
    with one, other:
        kernel = Kernel([*refusals], queued, one.fileno())
        opened = cast(socket.socket, kernel)
        made = RailSocket(opened, ip_interface("10.0.0.1/24"), lambda *_: None, lambda *_: None)
        assert made.send(RAW, *TO) is counts
        assert len(kernel.sent) == sent
        asyncio.get_running_loop().remove_reader(one)
