"""The description of one optional TLV: its type, bounds, decoder and encoder."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from nodeagent.lldp.escaping import raw_of

VALUE_MAX = 507
"""Octets of an organizational TLV after its OUI and subtype: a TLV has at most 511."""


class TlvSpec(NamedTuple):
    """``clause`` is the standard and its clause. ``key`` is the TLV's type, or its OUI and subtype as four octets.

    ``read(data, start, end)`` decodes a value of ``least`` to ``most`` octets and raises ``LldpError`` for a
    malformed one. ``write`` may raise the errors of ``struct`` and ``bytes``. ``many``: the TLV may repeat, and its
    values become a tuple. The field "med.x" is the field x of ``Med``.
    """

    clause: str
    key: int | bytes
    label: str
    field: str
    read: Callable[[bytes, int, int], Any]
    write: Callable[[Any], bytes]
    least: int = 0
    most: int = VALUE_MAX
    many: bool = False


def read_text(data: bytes, start: int, end: int) -> str:
    raw = data[start:end]
    try:
        return raw.decode()  # the usual case, at two thirds of the time
    except UnicodeDecodeError:
        return raw.decode("utf-8", "surrogateescape")


write_text = raw_of


def read_short(data: bytes, start: int, _: int) -> int:
    return data[start] << 8 | data[start + 1]


def write_short(value: int) -> bytes:
    return value.to_bytes(2, "big")
