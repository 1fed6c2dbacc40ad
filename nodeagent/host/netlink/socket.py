"""A netlink socket on which one asks and hears the answer.

It belongs to the network namespace in which it was made, and to one thread at a time. What the kernel does
for an answer may take as long as a driver holds its locks, whatever time-out is set here: ask in a thread.
A dump during which the world changed (NLM_F_DUMP_INTR) and one of which the kernel lost a part (ENOBUFS) are
asked for again; the latter is counted in ``overruns``.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable
from errno import EAGAIN, ENOBUFS
from typing import Self, TypeVar

from nodeagent.host.netlink.message import (
    DONE,
    ERROR,
    F_DUMP,
    F_DUMP_INTERRUPTED,
    NetlinkError,
    RefusedError,
    error_of,
    messages,
    request,
)

T = TypeVar("T")

_TRIES = 5
_TIMEOUT_S = 10
_DATAGRAM_MAX = 64 * 1024
"""The kernel fills at most 32 KiB in a dump."""


class Dialog:
    """``what`` names the family in errors. ``datagram_max`` is for single answers beyond 64 KiB."""

    def __init__(self, protocol: int, what: str, datagram_max: int = _DATAGRAM_MAX) -> None:
        self.overruns = 0
        self._protocol = protocol
        self._what = what
        self._sequence = 0
        self._datagram_max = datagram_max
        self._socket = self._open()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def _open(self) -> socket.socket:
        try:
            made = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, self._protocol)
        except OSError as error:
            why = f"no netlink socket for {self._what}: {error.strerror}; allow AF_NETLINK"
            raise NetlinkError(why) from error
        # Python's own time-out would cost a poll before each receive.
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("@ll", _TIMEOUT_S, 0))
        return made

    def dump(self, kind: int, body: bytes, read: Callable[[bytes], T]) -> list[T]:
        """What ``read`` makes of each message of the answer.

        Raises ``RefusedError`` where the kernel ends the dump with an error, wherever in it that stands.
        """
        for _ in range(_TRIES):
            found = self._dump(kind, body, read)
            if found is not None:
                return found
        raise NetlinkError(f"{self._what}: they change faster than they can be listed")

    def ask(self, kind: int, body: bytes) -> bytes:
        """The payload of a single answer. Raises ``RefusedError``."""
        for _ in range(_TRIES):
            try:
                sequence = self._send(kind, 0, body)
                while True:
                    for told, _, number, payload in messages(self._receive()):
                        if number == sequence and told == ERROR:
                            raise RefusedError(self._what, error_of(payload))
                        if number == sequence:
                            return payload
            except OSError as error:
                self._failed(error)
        raise NetlinkError(f"{self._what}: the kernel has no memory for its answers")

    def _dump(self, kind: int, body: bytes, read: Callable[[bytes], T]) -> list[T] | None:
        found: list[T] = []
        interrupted = False
        try:
            sequence = self._send(kind, F_DUMP, body)
            while True:
                for told, flags, number, payload in messages(self._receive()):
                    if number != sequence:
                        continue
                    interrupted = interrupted or bool(flags & F_DUMP_INTERRUPTED)
                    if told in (DONE, ERROR):
                        if code := error_of(payload):
                            raise RefusedError(self._what, code)
                        return None if interrupted else found
                    found.append(read(payload))
        except OSError as error:
            self._failed(error)
            return None

    def _send(self, kind: int, flags: int, body: bytes) -> int:
        self._sequence += 1
        self._socket.sendto(request(kind, flags, self._sequence, body), (0, 0))
        return self._sequence

    def _receive(self) -> bytes:
        data, _, flags, sender = self._socket.recvmsg(self._datagram_max)
        if flags & socket.MSG_TRUNC:
            raise NetlinkError(f"{self._what}: an answer is longer than {self._datagram_max} bytes")
        return data if sender[0] == 0 else b""  # the kernel is port 0; anybody may write to us

    def _failed(self, error: OSError) -> None:
        """Begin anew: on the old socket the kernel would refuse a second dump beside the first (EBUSY)."""
        self._socket.close()
        self._socket = self._open()
        if error.errno != ENOBUFS:
            why = "the kernel did not answer" if error.errno == EAGAIN else error.strerror
            raise NetlinkError(f"{self._what}: {why}") from error
        self.overruns += 1
