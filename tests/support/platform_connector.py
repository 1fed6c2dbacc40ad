"""A stand-in for NVSentinel's platform connector: a gRPC server on a unix socket, and the conditions of the Node.

It decodes the bytes itself, by the field numbers of NVSentinel's data-models/protobufs/health_event.proto, so a wrong
number in our copy does not decode. The conditions follow platform-connectors/pkg/connectors/kubernetes: a fatal event
adds its message, a healthy one removes the messages that name one of its entities, or all without entities; messages
are joined with ``;`` and split there again. ``restart`` loses what the connector has in memory.

Compared with NVSentinel's source alone: health_event.proto of 264bfab8, on 2026-11-26.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import grpc.aio

SERVICE, METHOD = "datamodels.PlatformConnector", "HealthEventOccurredV1"


@dataclass(frozen=True)
class ReceivedEvent:
    agent: str
    component: str
    check: str
    fatal: bool
    healthy: bool
    message: str
    action: int
    codes: tuple[str, ...]
    entities: tuple[tuple[str, str], ...]
    time_ns: int
    node: str
    strategy: int


class NodeConditions:
    """The conditions that the events of one node make, by check; each holds messages."""

    def __init__(self) -> None:
        self.messages: dict[str, str] = {}

    def take(self, event: ReceivedEvent) -> None:
        standing = [text for text in self.messages.get(event.check, "").split(";") if text]
        if event.healthy:
            names = [f"{kind}:{value} " for kind, value in event.entities]
            standing = [text for text in standing if names and not any(name in text for name in names)]
        elif event.fatal:
            codes = "".join(f"ErrorCode:{code} " for code in event.codes)
            names = "".join(f"{kind}:{value} " for kind, value in event.entities)
            text = f"{codes}{names}{event.message} "
            standing += [] if text in standing else [text]
        else:
            return
        self.messages[event.check] = "".join(f"{text};" for text in standing)

    def standing(self, check: str) -> list[str]:
        return [text for text in self.messages.get(check, "").split(";") if text]


@dataclass
class StandInConnector:
    """``refusal``: the status of every answer. ``hangs``: no call is answered. ``token``: the only accepted one."""

    socket: Path
    refusal: grpc.StatusCode | None = None
    hangs: bool = False
    token: str | None = None
    events: list[ReceivedEvent] = field(default_factory=list)
    conditions: NodeConditions = field(default_factory=NodeConditions)
    calls: int = 0
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    _server: grpc.aio.Server | None = None

    async def start(self) -> None:
        handler = grpc.unary_unary_rpc_method_handler(self._take)
        self._server = grpc.aio.server()
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(SERVICE, {METHOD: handler}),)
        )
        self._server.add_insecure_port(f"unix:{self.socket}")
        await self._server.start()

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(None)
            self._server = None
        self.socket.unlink(missing_ok=True)

    async def restart(self) -> None:
        await self.stop()
        self.events.clear()
        await self.start()

    async def until(self, done) -> None:
        """Wait until ``done()`` is true after a call."""
        async with asyncio.timeout(60), self.changed:
            await self.changed.wait_for(done)

    async def _take(self, request: bytes, context: grpc.aio.ServicerContext) -> bytes:
        async with self.changed:
            self.calls += 1
            self.changed.notify_all()
        if self.hangs:
            await asyncio.Event().wait()
        if self.refusal is not None:
            await context.abort(self.refusal, "not today")
        if self.token is not None and ("authorization", f"Bearer {self.token}") not in (
            context.invocation_metadata() or ()
        ):
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "no valid token")
        async with self.changed:
            for event in sorted(decoded(request), key=lambda event: event.time_ns):
                self.events.append(event)
                self.conditions.take(event)
            self.changed.notify_all()
        return b""


def decoded(raw: bytes) -> list[ReceivedEvent]:
    """The events of a ``HealthEvents`` message."""
    message = _by_number(raw)
    assert message.pop(1) == [1], "version"
    return [_event(part) for part in message.pop(2, [])]


def _event(raw: bytes) -> ReceivedEvent:
    message = _by_number(raw)
    assert message.pop(1) == [1], "version"
    time = _by_number(message[12][0])

    def text(number: int) -> str:
        return message.get(number, [b""])[0].decode()

    entities = [_by_number(part) for part in message.get(10, [])]
    assert set(message) <= {2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 13, 16}
    return ReceivedEvent(
        agent=text(2),
        component=text(3),
        check=text(4),
        fatal=message.get(5) == [1],
        healthy=message.get(6) == [1],
        message=text(7),
        action=message.get(8, [0])[0],
        codes=tuple(part.decode() for part in message.get(9, [])),
        entities=tuple((entity[1][0].decode(), entity[2][0].decode()) for entity in entities),
        time_ns=time[1][0] * 10**9 + time.get(2, [0])[0],
        node=text(13),
        strategy=message.get(16, [0])[0],
    )


def _by_number(raw: bytes) -> dict[int, list]:
    found: dict[int, list] = {}
    for number, value in _fields(raw):
        found.setdefault(number, []).append(value)
    return found


def _fields(raw: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a message on the wire: varints (type 0) and lengths (type 2)."""
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = raw[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(raw):
        number, kind = divmod(varint(), 8)
        assert kind in (0, 2), f"wire type {kind} of field {number}"
        if kind == 0:
            yield number, varint()
        else:
            size = varint()
            yield number, raw[at : at + size]
            at += size
