"""A probe and its answer on the wire. Pure.

* An answer has the session and the sequence of its probe, and is exactly as long: nobody gains by a forged sender.
* The session is random. Whoever does not see the probes cannot answer them.
* The packets of a check have the name of its node after the rest; see ``check_guests``.
* ``received`` is how many probes of the session the answering agent has received, see ``loss_direction``; 0: it does
  not count.
* ``held_ns`` is the time between the kernel's receipt and the answer, which is the host's and not the network's.
* An answer gives a ticket, and the next probes to this partner show it: their sender receives what is sent to its
  address. See ``probe_caps``. 0: none yet. A check, which is no answer, has it in the place of ``held_ns``.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

MAGIC = b"nrp1"
_PACKET = struct.Struct("!4sB3sQQQ")
_TICKET = struct.Struct("!Q")
SIZE = _PACKET.size + _TICKET.size
REQUEST, ANSWER, CHECK = 1, 2, 3
NODE_MAX = 253


class ProbePacket(NamedTuple):
    """``kind`` is ``REQUEST``, ``ANSWER`` or ``CHECK``, which alone has a ``node``."""

    kind: int
    session: int
    sequence: int
    held_ns: int = 0
    node: str = ""
    received: int = 0
    ticket: int = 0

    def encode(self, length: int = SIZE) -> bytes:
        """The bytes, padded to ``length``. The answer to a probe without room for a ticket has none."""
        last = self.ticket if self.kind == CHECK else self.held_ns
        head = _PACKET.pack(MAGIC, self.kind, self.received.to_bytes(3), self.session, self.sequence, last)
        rest = self.node.encode() if self.kind == CHECK else _TICKET.pack(self.ticket)
        return (head + rest if self.kind == CHECK or length >= SIZE else head).ljust(length, b"\0")


def decode_probe(raw: bytes) -> ProbePacket | None:
    """Return the packet; ``None`` for other bytes."""
    if len(raw) < _PACKET.size or raw[:4] != MAGIC:
        return None
    _, kind, received, session, sequence, held_ns = _PACKET.unpack_from(raw)
    if kind not in (REQUEST, ANSWER, CHECK):
        return None
    rest, node, ticket = raw[_PACKET.size :], "", 0
    if kind == CHECK:
        node = rest[:NODE_MAX].rstrip(b"\0").decode("latin-1")
        held_ns, ticket = 0, held_ns
    elif len(rest) >= _TICKET.size:
        (ticket,) = _TICKET.unpack_from(rest)
    return ProbePacket(kind, session, sequence, held_ns, node, int.from_bytes(received), ticket)
