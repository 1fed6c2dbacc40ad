"""Encode and decode netlink messages and attributes, for all families. No sockets here.

A message that is cut short is a ``NetlinkError``. Unknown attributes are skipped: kernels add some with each
release.
"""

from __future__ import annotations

import errno
import os
import struct
import sys
from collections.abc import Iterator

# include/uapi/linux/netlink.h
ERROR, DONE = 2, 3
F_REQUEST, F_ACK, F_DUMP, F_DUMP_INTERRUPTED = 0x1, 0x4, 0x300, 0x10
MESSAGE = struct.Struct("=IHHII")  # length, type, flags, sequence, port
ATTRIBUTE = struct.Struct("=HH")  # length, type
TYPE_BITS = 0x3FFF  # NLA_TYPE_MASK
_NESTED = 0x8000  # NLA_F_NESTED


class NetlinkError(Exception):
    """No netlink socket, or a malformed answer; the message names the cause and the remedy."""


class NetlinkAbsentError(NetlinkError):
    """This kernel has no such family, which is normal on many machines."""


class NetlinkForbiddenError(NetlinkError):
    """The process lacks a capability; the message names it."""


class NetlinkRefusedError(NetlinkError):
    """The kernel answered with an error. ``code`` is its errno."""

    def __init__(self, family: str, code: int) -> None:
        self.code = code
        super().__init__(f"{family}: {os.strerror(code)} ({errno.errorcode.get(code, code)})")


def request(kind: int, flags: int, sequence: int, body: bytes) -> bytes:
    """Encode one message to the kernel."""
    return MESSAGE.pack(MESSAGE.size + len(body), kind, F_REQUEST | flags, sequence, 0) + body


def messages(data: bytes) -> Iterator[tuple[int, int, int, bytes]]:
    """Type, flags, sequence number and payload of each netlink message in a datagram."""
    at, size = 0, len(data)
    while at + MESSAGE.size <= size:
        length, kind, flags, sequence, _ = MESSAGE.unpack_from(data, at)
        if length < MESSAGE.size or at + length > size:
            raise NetlinkError("a netlink message is cut short")
        yield kind, flags, sequence, data[at + MESSAGE.size : at + length]
        at += (length + 3) & ~3


def listed_attributes(data: bytes, at: int = 0) -> Iterator[tuple[int, bytes]]:
    """Type and content of each attribute from ``at`` on, in order: for types that may repeat."""
    size = len(data)
    while at + 4 <= size:
        length, kind = ATTRIBUTE.unpack_from(data, at)
        if length < 4 or at + length > size:
            raise NetlinkError("a netlink attribute is cut short")
        yield kind & TYPE_BITS, data[at + 4 : at + length]
        at += (length + 3) & ~3


def attributes(data: bytes, at: int = 0) -> dict[int, bytes]:
    """The attributes from ``at`` on, by type without the flags for nesting and byte order."""
    attrs = {}
    size, unpack = len(data), ATTRIBUTE.unpack_from
    while at + 4 <= size:
        length, kind = unpack(data, at)
        if length < 4 or at + length > size:
            raise NetlinkError("a netlink attribute is cut short")
        attrs[kind & TYPE_BITS] = data[at + 4 : at + length]
        at += (length + 3) & ~3
    return attrs


def attribute(kind: int, value: bytes) -> bytes:
    return ATTRIBUTE.pack(4 + len(value), kind) + value + b"\0" * (-len(value) % 4)


def nest(kind: int, *inner: bytes) -> bytes:
    return attribute(kind | _NESTED, b"".join(inner))


def u8(value: int) -> bytes:
    return bytes((value,))


def u32(value: int) -> bytes:
    return struct.pack("=I", value)


def attribute_text(raw: bytes | None) -> str | None:
    return None if raw is None else raw.rstrip(b"\0").decode("utf-8", "surrogateescape")


def number(raw: bytes | None) -> int | None:
    """An unsigned number of any size; ``None`` where it is absent or empty."""
    return int.from_bytes(raw, sys.byteorder) if raw else None


def error_of(payload: bytes) -> int:
    """The errno of an NLMSG_ERROR, or of an NLMSG_DONE that ends a dump early; 0 without an error."""
    return -int.from_bytes(payload[:4], sys.byteorder, signed=True) if len(payload) >= 4 else 0
