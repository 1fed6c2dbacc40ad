"""The frames on an NRI socket: ttrpc messages over multiplexed connections. Pure.

Each frame is a connection number and a length, 32 bits each, big endian, and so many octets of that connection
(containerd/nri pkg/net/multiplex). The octets of a connection are ttrpc messages: a header of ten octets (length,
stream, type, flags) and a protobuf. A message may come in several frames, and several in one.

Whatever the other side sends, at most one frame and one message of each connection are kept.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from msgspec import Struct

PLUGIN_SERVICE, RUNTIME_SERVICE = 1, 2
"""Connections: calls of the runtime to the plugin, and calls of the plugin to the runtime."""
TTRPC_REQUEST, TTRPC_RESPONSE = 1, 2
"""Types of messages. A unary call has no others."""

_FRAME = struct.Struct(">II")
_HEADER = struct.Struct(">IIBB")
TTRPC_MAX = 4 << 20
"""As in containerd/ttrpc, channel.go."""
_FRAME_MAX = _HEADER.size + TTRPC_MAX


class TtrpcError(Exception):
    """The octets are no frames of this protocol, or beyond its bounds. The connection cannot be used any more."""


class TtrpcMessage(Struct, frozen=True):
    """``body`` is the protobuf of a request or a response; ``stream`` joins the two."""

    connection: int
    stream: int
    kind: int
    body: bytes


def frame(message: TtrpcMessage) -> bytes:
    """Encode a message as one frame. Raises ``TtrpcError`` if it is too long."""
    if len(message.body) > TTRPC_MAX:
        raise TtrpcError(f"a message of {len(message.body)} bytes is longer than {TTRPC_MAX}")
    data = _HEADER.pack(len(message.body), message.stream, message.kind, 0) + message.body
    return _FRAME.pack(message.connection, len(data)) + data


class TtrpcReader:
    """Decodes what a socket receives, in pieces of any size."""

    def __init__(self) -> None:
        self._received = bytearray()
        self._parts = {PLUGIN_SERVICE: bytearray(), RUNTIME_SERVICE: bytearray()}

    def feed(self, data: bytes) -> Iterator[TtrpcMessage]:
        """Yield the messages that are complete now. Raises ``TtrpcError``. Octets of other connections are dropped."""
        self._received += data
        while len(self._received) >= _FRAME.size:
            connection, length = _FRAME.unpack_from(self._received)
            if length > _FRAME_MAX:
                raise TtrpcError(f"a frame of {length} bytes is longer than {_FRAME_MAX}")
            end = _FRAME.size + length
            if len(self._received) < end:
                return
            part = bytes(self._received[_FRAME.size : end])
            del self._received[:end]
            if connection in self._parts:
                self._parts[connection] += part
                yield from self._messages(connection, self._parts[connection])

    @staticmethod
    def _messages(connection: int, octets: bytearray) -> Iterator[TtrpcMessage]:
        while len(octets) >= _HEADER.size:
            length, stream, kind, _ = _HEADER.unpack_from(octets)
            if length > TTRPC_MAX:
                raise TtrpcError(f"a message of {length} bytes is longer than {TTRPC_MAX}")
            end = _HEADER.size + length
            if len(octets) < end:
                return
            body = bytes(octets[_HEADER.size : end])
            del octets[:end]
            yield TtrpcMessage(connection, stream, kind, body)
