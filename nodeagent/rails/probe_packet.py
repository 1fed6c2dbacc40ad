"""A probe and its answer on the wire. Pure.

* An answer has the session and the sequence of its probe, and is exactly as long: nobody gains by a forged sender.
* The session is random. Whoever does not see the probes cannot answer them.
* ``held_ns`` is the time between the kernel's receipt and the answer, which is the host's and not the network's.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

MAGIC = b"nrp1"
_PACKET = struct.Struct("!4sB3xQQQ")
SIZE = _PACKET.size
REQUEST, ANSWER = 1, 2


class ProbePacket(NamedTuple):
    """``kind`` is ``REQUEST`` or ``ANSWER``."""

    kind: int
    session: int
    sequence: int
    held_ns: int = 0

    def encode(self, length: int = SIZE) -> bytes:
        """The bytes, padded to ``length``."""
        return _PACKET.pack(MAGIC, *self).ljust(length, b"\0")


def decode(raw: bytes) -> ProbePacket | None:
    """Return the packet; ``None`` for other bytes."""
    if len(raw) < SIZE or raw[:4] != MAGIC:
        return None
    _, kind, *rest = _PACKET.unpack_from(raw)
    return ProbePacket(kind, *rest) if kind in (REQUEST, ANSWER) else None
