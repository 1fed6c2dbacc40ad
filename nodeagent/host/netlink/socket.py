"""Netlink sockets for requests and dumps, over netlink protocols and over generic netlink families.

A socket belongs to the network namespace in which it was made, and to one thread at a time. The kernel may take
as long as a driver holds its locks, whatever timeout is set here: call it in a thread. A dump during which
objects changed (NLM_F_DUMP_INTR) or of which the kernel lost a part (ENOBUFS) is repeated; ``overruns`` counts
the latter.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable
from errno import EAGAIN, ENOBUFS, ENOENT
from typing import TypeVar

from nodeagent.host.fd import Closing
from nodeagent.host.netlink.message import (
    DONE,
    ERROR,
    F_ACK,
    F_DUMP,
    F_DUMP_INTERRUPTED,
    NetlinkAbsentError,
    NetlinkError,
    NetlinkRefusedError,
    attribute,
    attribute_text,
    attributes,
    error_of,
    listed_attributes,
    messages,
    number,
    request,
)

T = TypeVar("T")

_TRIES = 5
_TIMEOUT_S = 10
_DATAGRAM_MAX = 64 * 1024
"""The kernel fills at most 32 KiB in a dump."""

GENERIC = 16  # NETLINK_GENERIC; Python has no name for it
_CONTROL = 16  # GENL_ID_CTRL
# CTRL_CMD_*, CTRL_ATTR_*, include/uapi/linux/genetlink.h
_GET_FAMILY, _FAMILY_ID, _FAMILY_NAME, _GROUPS, _GROUP_NAME, _GROUP_ID = 3, 1, 2, 7, 1, 2
_HEADER = struct.Struct("=BBH")  # command, version, reserved
HEADER_BYTES = _HEADER.size


def subscribed(protocol: int, groups: int, what: str) -> socket.socket:
    """A non-blocking socket that receives the messages of these groups. ``what`` is their name in errors."""
    opened = _netlink_socket(protocol, what, socket.SOCK_NONBLOCK)
    try:
        opened.bind((0, groups))
    except OSError as error:
        opened.close()
        raise NetlinkError(f"cannot subscribe to {what}: {error.strerror}") from error
    return opened


def _netlink_socket(protocol: int, what: str, flags: int = 0) -> socket.socket:
    try:
        return socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC | flags, protocol)
    except OSError as error:
        raise NetlinkError(f"no netlink socket for {what}: {error.strerror}; allow AF_NETLINK") from error


class NetlinkSocket(Closing):
    """``family`` is the name in errors. ``datagram_max`` is for single answers beyond 64 KiB."""

    def __init__(self, protocol: int, family: str, datagram_max: int = _DATAGRAM_MAX) -> None:
        self.overruns = 0
        self._protocol = protocol
        self._family = family
        self._sequence = 0
        self._datagram_max = datagram_max
        self._socket = self._open()

    def close(self) -> None:
        self._socket.close()

    def _open(self) -> socket.socket:
        opened = _netlink_socket(self._protocol, self._family)
        # Python's own timeout would cost a poll before each receive.
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("@ll", _TIMEOUT_S, 0))
        return opened

    def dump(self, kind: int, body: bytes, read: Callable[[bytes], T]) -> list[T]:
        """Apply ``read`` to the payload of each message of the answer.

        Raises ``NetlinkRefusedError`` where the kernel ends the dump with an error, at any position.
        """
        for _ in range(_TRIES):
            values = self._dump(kind, body, read)
            if values is not None:
                return values
        raise NetlinkError(f"{self._family}: they change faster than they can be listed")

    def ask(self, kind: int, body: bytes) -> bytes:
        """The payload of a single answer. Raises ``NetlinkRefusedError``."""
        for _ in range(_TRIES):
            try:
                sequence = self._send(kind, 0, body)
                while True:
                    for answer, _, answered, payload in messages(self._receive()):
                        if answered == sequence and answer == ERROR:
                            raise NetlinkRefusedError(self._family, error_of(payload))
                        if answered == sequence:
                            return payload
            except OSError as error:
                self._failed(error)
        raise NetlinkError(f"{self._family}: the kernel has no memory for its answers")

    def _change(self, kind: int, flags: int, body: bytes) -> None:
        """Let the kernel change something, and wait for its word. Raises ``NetlinkRefusedError``."""
        try:
            sequence = self._send(kind, flags | F_ACK, body)
            while True:
                for answer, _, answered, payload in messages(self._receive()):
                    if answered == sequence and answer == ERROR:
                        if code := error_of(payload):
                            raise NetlinkRefusedError(self._family, code)
                        return
        except OSError as error:
            self._failed(error)
            raise NetlinkError(f"{self._family}: the kernel's answer to a change was lost") from error

    def _dump(self, kind: int, body: bytes, read: Callable[[bytes], T]) -> list[T] | None:
        values: list[T] = []
        interrupted = False
        try:
            sequence = self._send(kind, F_DUMP, body)
            while True:
                for answer, flags, answered, payload in messages(self._receive()):
                    if answered != sequence:
                        continue
                    interrupted = interrupted or bool(flags & F_DUMP_INTERRUPTED)
                    if answer in (DONE, ERROR):
                        if code := error_of(payload):
                            raise NetlinkRefusedError(self._family, code)
                        return None if interrupted else values
                    values.append(read(payload))
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
            raise NetlinkError(f"{self._family}: an answer is longer than {self._datagram_max} bytes")
        return data if sender[0] == 0 else b""  # the kernel is port 0; any process may send to this socket

    def _failed(self, error: OSError) -> None:
        """Open a new socket: on the old one the kernel refuses a second dump beside the first (EBUSY)."""
        self._socket.close()
        self._socket = self._open()
        if error.errno != ENOBUFS:
            why = "the kernel did not answer" if error.errno == EAGAIN else error.strerror
            raise NetlinkError(f"{self._family}: {why}") from error
        self.overruns += 1


class GenericSocket(NetlinkSocket):
    """A socket for one generic netlink family; ``version`` is the family's own.

    Raises ``NetlinkAbsentError`` where this kernel has no such family.
    """

    def __init__(self, family: str, version: int = 1) -> None:
        super().__init__(GENERIC, family)
        self._version = version
        try:
            self._description = _describe(self, family)
        except NetlinkError:
            self.close()
            raise
        self.kind = number(self._description[_FAMILY_ID]) or 0
        """The message type, which the kernel assigns at boot."""

    def groups(self) -> dict[str, int]:
        """Return the multicast groups of the family, by name."""
        named = {}
        for _, content in listed_attributes(self._description.get(_GROUPS, b"")):
            group = attributes(content)
            name, id_ = attribute_text(group.get(_GROUP_NAME)), number(group.get(_GROUP_ID))
            if name is not None and id_ is not None:
                named[name] = id_
        return named

    def dump_command(self, command: int, body: bytes, read: Callable[[bytes], T]) -> list[T]:
        """``read`` gets payloads whose attributes begin at ``HEADER_BYTES``. Raises ``NetlinkRefusedError``."""
        return self.dump(self.kind, self._message(command, body), read)

    def ask_command(self, command: int, body: bytes) -> bytes:
        return self.ask(self.kind, self._message(command, body))

    def _message(self, command: int, body: bytes) -> bytes:
        return _HEADER.pack(command, self._version, 0) + body


def _describe(control: NetlinkSocket, family: str) -> dict[int, bytes]:
    """The kernel's description of a family, with its message type."""
    body = _HEADER.pack(_GET_FAMILY, 1, 0) + attribute(_FAMILY_NAME, family.encode() + b"\0")
    try:
        description = attributes(control.ask(_CONTROL, body), HEADER_BYTES)
    except NetlinkRefusedError as error:
        if error.code != ENOENT:
            raise
        description = {}
    if not description.get(_FAMILY_ID):
        raise NetlinkAbsentError(f"this kernel has no netlink family {family}")
    return description
