"""A container runtime's side of NRI, as containerd speaks it: frames, ttrpc and protobuf by hand.

It shares no code with the plugin. Fields of messages are ``{number: value}``; a list repeats a field.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PLUGIN, RUNTIME = 1, 2
REQUEST, RESPONSE = 1, 2
SERVICE = "nri.pkg.api.v1alpha1.Plugin"

Fields = Mapping[int, Any]


def encode(fields: Fields) -> bytes:
    out = b""
    for number, value in fields.items():
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, int):
                out += _varint(number << 3) + _varint(one)
            else:
                raw = one.encode() if isinstance(one, str) else one if isinstance(one, bytes) else encode(one)
                out += _varint(number << 3 | 2) + _varint(len(raw)) + raw
    return out


def decode(data: bytes) -> dict[int, Any]:
    """The last value of each field: a number, or octets."""
    fields: dict[int, Any] = {}
    at = 0
    while at < len(data):
        key, at = _read_varint(data, at)
        value, at = _read_varint(data, at)
        if key & 7 == 2:
            fields[key >> 3], at = data[at : at + value], at + value
        else:
            assert key & 7 == 0, key
            fields[key >> 3] = value
    return fields


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*out, value))


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (data[at] & 0x7F) << shift
        shift += 7
        at += 1
        if not data[at - 1] & 0x80:
            return value, at


def message(connection: int, stream: int, kind: int, body: bytes) -> bytes:
    inner = struct.pack(">IIBB", len(body), stream, kind, 0) + body
    return struct.pack(">II", connection, len(inner)) + inner


def pod(name: str, network: str | None = "/var/run/netns/cni-1", *, stopped: bool = False) -> dict[int, Any]:
    """A PodSandbox; ``network=None`` is one on the host's network."""
    namespaces: list[Fields] = [{1: "pid"}, {1: "ipc"}, {1: "mount"}]
    if network is not None:
        namespaces.append({1: "network", 2: network})
    linux = {3: "/kubepods", 5: [] if stopped else namespaces}
    return {
        1: f"id-{name}",
        2: name,
        3: f"uid-{name}",
        4: "default",
        5: {1: "app", 2: name},
        8: linux,
        9: 4711,
    }


class NriRuntime:
    """Serves one plugin. ``registered`` has the fields of RegisterPlugin once it came."""

    def __init__(self, socket: Path, *, refusal: str = "", limit_ms: int = 2000) -> None:
        self.socket, self._refusal, self._limit_ms = socket, refusal, limit_ms
        self.registered: dict[int, Any] = {}
        self.connected = asyncio.Event()
        self.events: int | None = None
        """The answer of Configure."""
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._stream = -1
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> NriRuntime:
        self._server = await asyncio.start_unix_server(self._serve, self.socket)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self.close()
        self._server.close()
        await self._server.wait_closed()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        connection, stream, kind, body = await self.receive()
        assert (connection, kind) == (RUNTIME, REQUEST)
        call = decode(body)
        assert (call[1], call[2]) == (b"nri.pkg.api.v1alpha1.Runtime", b"RegisterPlugin")
        self.registered = decode(call[3])
        status: Fields = {1: {1: 2, 2: self._refusal}} if self._refusal else {2: b""}
        self.send(message(RUNTIME, stream, RESPONSE, encode(status)))
        self.connected.set()

    def send(self, octets: bytes) -> None:
        assert self._writer is not None
        self._writer.write(octets)

    async def receive(self) -> tuple[int, int, int, bytes]:
        """One message of the plugin, each of which is one frame."""
        assert self._reader is not None
        connection, length = struct.unpack(">II", await self._reader.readexactly(8))
        data = await self._reader.readexactly(length)
        size, stream, kind, _ = struct.unpack_from(">IIBB", data)
        assert size == len(data) - 10
        return connection, stream, kind, data[10:]

    def ask(self, method: str, fields: Fields) -> int:
        """Send a call and return its stream."""
        self._stream += 2
        call = {1: SERVICE, 2: method, 3: encode(fields), 4: self._limit_ms * 1_000_000}
        self.send(message(PLUGIN, self._stream, REQUEST, encode(call)))
        return self._stream

    async def call(self, method: str, fields: Fields) -> dict[int, Any]:
        """The answer of the plugin: {1: status, 2: payload}."""
        stream = self.ask(method, fields)
        connection, answered, kind, body = await self.receive()
        assert (connection, answered, kind) == (PLUGIN, stream, RESPONSE)
        return decode(body)

    async def begin(self, *pods: Fields) -> None:
        """Configure and synchronize, as containerd 2.1 does."""
        await self.connected.wait()
        answer = await self.call("Configure", {2: "containerd", 3: "v2.1.9", 4: 5000, 5: self._limit_ms})
        self.events = decode(answer[2])[2]
        answer = await self.call("Synchronize", {1: list(pods), 2: []})
        assert 1 not in answer
