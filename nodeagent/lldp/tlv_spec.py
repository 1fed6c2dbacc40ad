"""How one optional TLV is read and written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from nodeagent.lldp.escaping import raw_of


class TlvSpec(NamedTuple):
    """``key`` is the TLV's type, or its OUI and subtype as four octets.

    ``read(data, start, end)`` gets a value that has between ``least`` and ``most`` octets and raises
    ``LldpError`` for a malformed one; ``write`` may raise what ``struct`` and ``bytes`` raise. TLVs of which
    there may be ``many`` collect in a tuple. The field "med.x" is the field x of ``Med``.
    """

    key: int | bytes
    label: str
    field: str
    least: int
    most: int
    many: bool
    read: Callable[[bytes, int, int], Any]
    write: Callable[[Any], bytes]


def read_text(data: bytes, start: int, end: int) -> str:
    raw = data[start:end]
    try:
        return raw.decode()  # the usual case at two thirds of the price
    except UnicodeDecodeError:
        return raw.decode("utf-8", "surrogateescape")


write_text = raw_of


def read_short(data: bytes, start: int, _: int) -> int:
    return data[start] << 8 | data[start + 1]


def write_short(value: int) -> bytes:
    return value.to_bytes(2, "big")
