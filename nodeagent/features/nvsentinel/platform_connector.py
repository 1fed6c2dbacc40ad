"""Send health events to NVSentinel's platform connector, on its unix socket.

What NVSentinel must have is a level, not a queue: each call sends the present events that the connector has not
taken. A connector removes its socket when it ends and makes a new one when it starts, and the events in its memory
are lost: a new socket gets all events again. Healthy events are sent at the start too, because they clear what an
earlier agent has reported. One call runs at a time, with a deadline.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import grpc
import grpc.aio

from nodeagent.base.backoff import JITTER, Backoff
from nodeagent.base.bounded_calls import BoundedCalls, Unanswered
from nodeagent.base.plain_text import one_line
from nodeagent.base.regular_file import read_regular
from nodeagent.base.supervise import either
from nodeagent.cluster.deliveries import Delivery
from nodeagent.facts.inventory import Inventory
from nodeagent.features.nvsentinel import health_event_pb2 as pb
from nodeagent.features.nvsentinel.health_events import EventLedger, SentinelEvent

log = logging.getLogger(__name__)

_AGENT = "nodeagent"
METHOD = "/datamodels.PlatformConnector/HealthEventOccurredV1"
_CALL_S = 10.0
"""The deadline of a call; NVSentinel's own client of this method has the same."""
BATCH_MAX = 64
"""Devices in one call. An event has less than 1 KiB, and a gRPC server takes 4 MiB."""
_LOOK_S = 5.0
"""Between two looks at the socket. A connector that restarts is found at the next one."""
PACE_S = 1.0
"""Shortest time between two calls: a device that changes often is reported once a second."""
CONNECTOR_RETRY_FIRST_S, _RETRY_MAX_S = 1.0, 60.0
_TOKEN_S = 2.0
"""For reading the token, which is a file in memory."""

_OPTIONS = (
    # Without this, the authority is the percent-encoded socket path, which Go's HTTP/2 server refuses.
    ("grpc.default_authority", "localhost"),
    ("grpc.enable_retries", 0),
    # A connection of its own: a shared one would also share the back-off after a failure.
    ("grpc.use_local_subchannel_pool", 1),
)

_REFUSED = (
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.UNIMPLEMENTED,
)

SocketIdentity = tuple[int, int, int]
"""Device, inode and time of the last change. Inodes alone are used again."""


class PlatformConnector:
    """``find_socket`` returns the present path of the socket."""

    def __init__(
        self,
        inventory: Inventory,
        find_socket: Callable[[], Path],
        node: str,
        delivery: Delivery,
        *,
        store_only: bool = False,
        token_file: Path | None = None,
        call_s: float = _CALL_S,
        look_s: float = _LOOK_S,
        pace_s: float = PACE_S,
        backoff: Backoff | None = None,
    ) -> None:
        self._inventory, self._find_socket, self._node, self._delivery = (
            inventory,
            find_socket,
            node,
            delivery,
        )
        self._strategy = pb.STORE_ONLY if store_only else pb.EXECUTE_REMEDIATION
        self._token_file = token_file
        self._call_s, self._look_s, self._pace_s = call_s, look_s, pace_s
        self._backoff = backoff or Backoff(CONNECTOR_RETRY_FIRST_S, _RETRY_MAX_S, jitter=JITTER)
        self._reads = BoundedCalls("the token of NVSentinel", _TOKEN_S)
        self._ledger = EventLedger()
        self._identity: SocketIdentity | None = None

    async def run(self) -> None:
        """Send events until cancelled."""
        while True:
            snapshot = self._inventory.snapshot
            self._ledger.observe(snapshot)
            wait_s = await self._send_due()
            if wait_s is not None:
                # Only a new connector shortens the wait after a failure; a changed device does not.
                await self._new_socket(wait_s)
                continue
            await asyncio.sleep(self._pace_s)
            await either(self._inventory.changed(snapshot.revision), timeout_s=self._look_s)

    async def _send_due(self) -> float | None:
        """Send what is due. Return the wait in seconds after a failure."""
        path = self._find_socket()
        identity = socket_identity(path)
        if identity != self._identity:
            self._identity = identity
            self._ledger.forget_received()
            self._backoff.reset()
        if identity is None:
            return self._failed(f"{path} does not exist", refused=False)
        while due := self._ledger.due(BATCH_MAX):
            steps = [step for key, event in due for step in self._ledger.steps(key, event)]
            try:
                await self._call(path, self._message(steps))
            except grpc.aio.AioRpcError as error:
                reason = f"{path}: {error.code().name}: {one_line(error.details() or '', 200)}"
                return self._failed(reason, refused=error.code() in _REFUSED)
            except (OSError, ValueError, Unanswered) as error:
                return self._failed(f"the token cannot be read: {error}", refused=False)
            for key, event in due:
                self._ledger.mark_received(key, event)
            if self._delivery.reason is not None or not self._delivery.results["ok"]:
                log.info("NVSentinel takes health events. socket=%s", path)
            self._delivery.succeeded()
            self._backoff.reset()
        return None

    def _failed(self, reason: str, *, refused: bool) -> float:
        if self._delivery.reason is None:
            log.warning("NVSentinel does not take health events; they will be sent again. reason=%s", reason)
        self._delivery.missed(reason, refused=refused)
        return self._backoff.next_s()

    async def _new_socket(self, wait_s: float) -> None:
        """Wait, and return early when the socket is another one."""
        ends = time.monotonic() + wait_s
        while (left_s := ends - time.monotonic()) > 0:
            await asyncio.sleep(min(left_s, self._look_s))
            if socket_identity(self._find_socket()) != self._identity:
                return

    def _message(self, steps: Iterable[SentinelEvent]) -> pb.HealthEvents:
        """The events in their order: NVSentinel sorts them by time, so each is 1 µs later."""
        now_ns = time.time_ns()
        message = pb.HealthEvents(version=1)
        for number, step in enumerate(steps):
            event = message.events.add(
                version=1,
                agent=_AGENT,
                componentClass=step.component,
                checkName=step.check,
                isFatal=step.fatal,
                isHealthy=step.healthy,
                message=step.message,
                recommendedAction=pb.CONTACT_SUPPORT if step.fatal else pb.NONE,
                errorCode=step.codes,
                entitiesImpacted=[
                    pb.Entity(entityType=kind, entityValue=value) for kind, value in step.entities
                ],
                nodeName=self._node,
                processingStrategy=self._strategy,
            )
            event.generatedTimestamp.FromNanoseconds(now_ns + 1000 * number)
        return message

    async def _call(self, path: Path, message: pb.HealthEvents) -> None:
        metadata = None
        if self._token_file is not None:
            token = (await self._reads.run(read_regular, self._token_file)).decode("ascii").strip()
            if not token or not token.isprintable():
                raise ValueError(f"{self._token_file} holds no token")
            metadata = (("authorization", f"Bearer {token}"),)
        async with grpc.aio.insecure_channel(f"unix:{path}", options=_OPTIONS) as channel:
            call: grpc.aio.UnaryUnaryMultiCallable[pb.HealthEvents, bytes] = channel.unary_unary(
                METHOD, request_serializer=lambda request: request.SerializeToString()
            )
            await call(message, timeout=self._call_s, metadata=metadata)


def socket_identity(path: Path) -> SocketIdentity | None:
    """The identity of the present socket, which no later one has; ``None`` if there is none or no access."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_ctime_ns
