"""The life of the resources with the kubelet: serve, register, notice that it went, register again.

One loop compares what should be with what is and mends the difference; inotify on the kubelet's folder, an
ended stream and a timer only wake it. What it must respect, learnt from the kubelet's own source:

* A socket's server answers before Register is sent, for the kubelet dials back inside that call.
* ``kubelet.sock`` is there before it listens; a gRPC channel that meets the refusal waits a second. So the
  socket is probed by a plain connect first.
* A kubelet that starts removes every socket in its folder. It never reopens a stream that ended.
* Up to 1.36 the end of an old stream disconnects the *new* client of that resource: the old server is
  stopped, its streams closed, and a moment given to the kubelet before the new registration.
* Binding over a live socket steals it silently: a lock file keeps a second agent waiting.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import logging
import os
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import grpc

from nodeagent.host.inotify import InotifyError, Watch
from nodeagent.kubelet.device_info import refusal
from nodeagent.kubelet.device_list import API_VERSION, register_request
from nodeagent.kubelet.plugin import BindError, Endpoint, Files, Kind, Near
from nodeagent.kubelet.rpc_stats import Measure, Status
from nodeagent.model import Snapshot

log = logging.getLogger(__name__)

LOCK = "nodeagent.lock"
PATH_MAX = 107
"""Of a socket: sizeof(sun_path) - 1, unix(7)."""

REGISTER_S = 10.0
"""The kubelet gives its dial back to us 10 s inside Register (plugin/v1beta1/client.go)."""
PROBE_FIRST_S = 0.001
PROBE_MAX_S = 0.05
REFUSES_S = 0.2
"""Between looks at a kubelet whose socket is there and does not listen: no event tells when it does."""
LOOK_S = 5.0
"""A look without any hint: inotify misses what happens on another mount."""
LOCK_AGAIN_S = 1.0
SETTLE_S = 0.1
"""For a kubelet that lives on to see the old stream end before the new registration (see above)."""
RETRY_FIRST_S = 1.0
RETRY_MAX_S = 30.0
STEADY_S = 60.0
"""A registration that stood this long and was lost is renewed at once; others with growing pauses."""

_CHANNEL = (
    # Channels to one address share their connection, and with it the back-off after a kubelet that went.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.default_authority", "localhost"),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
)

Identity = tuple[int, int, int]
"""Of a kubelet: device, inode and change time of its socket. A new kubelet binds a new one."""


@dataclass(slots=True)
class _Place:
    """One resource and how it stands with the kubelet that is there now."""

    endpoint: Endpoint
    known_to: Identity | None = None
    since: float = 0.0
    lost: bool = False
    closed_for: Identity | None = None
    closed_at: float = 0.0
    settle: float = SETTLE_S
    reason: str = "not registered yet"
    retry_at: float = 0.0
    retry_in: float = RETRY_FIRST_S
    tried: Identity | None = None


class DevicePlugins:
    """The sink: ``tell`` it the kinds and the snapshot, ``run`` it as a supervised task."""

    def __init__(
        self,
        kubelet_dir: Path,
        *,
        watched: bool,
        files: Files,
        measure: Measure,
        handed_out: Callable[[], None] = lambda: None,
    ) -> None:
        """``watched``: register through ``plugins_registry``, where the kubelet watches for sockets,
        instead of calling Register on ``kubelet.sock``."""
        self._folder = kubelet_dir / ("plugins_registry" if watched else "device-plugins")
        self._kubelet = kubelet_dir / "device-plugins" / "kubelet.sock"
        self._watched = watched
        self._files = files
        self._measure = measure
        self._handed_out = handed_out
        self._near = Near()
        self._places: dict[str, _Place] = {}
        self._given_up: dict[str, _Place] = {}
        self._wake = asyncio.Event()
        self._refuses = False
        self._said = ""

    def tell(self, kinds: Iterable[Kind], snapshot: Snapshot) -> None:
        """What is offered now, as a whole. A resource that is no longer among the kinds is given up, and
        remembered: should it come back, the kubelet has its ids still."""
        wanted = {kind.resource: kind for kind in kinds}
        for resource in self._places.keys() - wanted.keys():
            self._given_up[resource] = self._places.pop(resource)
            self._wake.set()
        for resource, kind in wanted.items():
            place = self._places.get(resource)
            if place is None:
                place = self._given_up.pop(resource, None) or _Place(
                    Endpoint(
                        kind,
                        self._files,
                        self._near,
                        self._measure,
                        self._stream_lost(resource),
                        self._handed_out,
                    )
                )
                self._places[resource] = place
                self._wake.set()
            place.endpoint.tell(kind, snapshot)

    def statuses(self) -> tuple[Status, ...]:
        return tuple(
            Status(
                resource,
                place.known_to is not None,
                place.reason,
                *place.endpoint.roll.count(),
                place.endpoint.streams,
            )
            for resource, place in sorted(self._places.items())
        )

    async def run(self) -> None:
        """Keep every resource registered, for ever; a folder that is removed is waited for anew."""
        while True:
            await self._folder_there()
            async with self._lock(), self._hints():
                folder = _identity(self._folder)
                try:
                    while folder is not None and _same_file(_identity(self._folder), folder):
                        await self._reconcile()
                        await self._woken()
                finally:
                    gone = not self._folder.is_dir()
                    for place in self._places.values():
                        if gone:
                            self._forget(place, "the kubelet's folder is gone")
                        place.known_to = None
                    places = [*self._places.values(), *self._given_up.values()]
                    await asyncio.gather(*(place.endpoint.stop() for place in places))

    # --- waking ---------------------------------------------------------------------------------------

    def _stream_lost(self, resource: str) -> Callable[[], None]:
        def lost() -> None:
            place = self._places.get(resource)
            if place is not None:  # even before Register is answered: the kubelet opens the stream inside it
                place.lost = True
                self._wake.set()

        return lost

    async def _woken(self) -> None:
        waiting = [place for place in self._places.values() if place.known_to is None]
        times = [max(place.retry_at, place.closed_at + place.settle) for place in waiting]
        pause = min((at - time.monotonic() for at in times if at > time.monotonic()), default=LOOK_S)
        if self._refuses:
            pause = min(pause, REFUSES_S)
        # Never wait_for: up to Python 3.11 it loses a cancellation that meets the event.
        with suppress(TimeoutError):
            async with asyncio.timeout(min(LOOK_S, pause)):
                await self._wake.wait()
        self._wake.clear()

    @asynccontextmanager
    async def _hints(self) -> AsyncIterator[None]:
        async def watch() -> None:
            try:
                with Watch() as watching:
                    for folder in {self._folder, self._kubelet.parent}:
                        if folder.is_dir():
                            watching.add(folder)
                    while True:
                        await watching.changes()
                        self._wake.set()
            except InotifyError as error:
                log.warning("No inotify: looking every %.0f s. reason=%r", LOOK_S, str(error))

        task = asyncio.create_task(watch(), name="kubelet-folder")
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _folder_there(self) -> None:
        while not self._folder.is_dir():
            self._say_once(f"The kubelet's folder is not there yet; waiting for it. folder={self._folder}")
            await asyncio.sleep(0.5)

    @asynccontextmanager
    async def _lock(self) -> AsyncIterator[None]:
        """Hold the node's lock; wait for an agent that has it (a rolling update) rather than fail."""
        # In the device-plugins folder always: both ways of registering are one and the same agent.
        path = (self._kubelet.parent if self._kubelet.parent.is_dir() else self._folder) / LOCK
        descriptor = await self._lock_file(path)
        try:
            while True:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except OSError as error:
                    if error.errno not in (errno.EAGAIN, errno.EACCES):
                        raise
                self._say_once(f"Another agent of this node still serves; waiting for it to end. lock={path}")
                await asyncio.sleep(0.1)
            yield
        finally:
            os.close(descriptor)

    async def _lock_file(self, path: Path) -> int:
        """Its descriptor; a folder that takes no file (read-only, full) is the reason of every resource till then."""
        while True:
            try:
                return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            except OSError as error:
                if not path.parent.is_dir():
                    raise
                why = refusal(path.parent) or error.strerror
            sentence = (
                f"{path} cannot be opened: {why}; mount the kubelet's folder read-write, or free its disk"
            )
            for place in self._places.values():
                place.reason = sentence
            self._say_once(f"No resource can be registered. reason={sentence!r}")
            await asyncio.sleep(LOCK_AGAIN_S)

    def _say_once(self, sentence: str) -> None:
        if sentence != self._said:
            self._said = sentence
            log.warning("%s", sentence)

    # --- reconciling ----------------------------------------------------------------------------------

    async def _reconcile(self) -> None:
        """Mend whatever differs from what should be."""
        await asyncio.gather(*(self._close(place) for place in self._given_up.values()))
        if self._watched:
            await asyncio.gather(*(self._offer(place) for place in self._places.values()))
            return
        identity = _identity(self._kubelet)
        listens = identity is not None and await self._listens(identity)
        self._refuses = identity is not None and not listens
        if identity is None or not listens:
            self._say_once(f"The kubelet is not there; waiting for it. socket={self._kubelet}")
            for place in self._places.values():
                self._forget(place, "the kubelet is not there")
            return
        for place in tuple(self._places.values()):  # meanwhile others may be told
            await self._close_lost(place, identity)
        due = [place for place in self._places.values() if self._due(place, identity)]
        if due:
            await self._register(due, identity)

    async def _close_lost(self, place: _Place, identity: Identity) -> None:
        """Give up what stands no more with the kubelet that is there, and note when that was."""
        endpoint = place.endpoint
        if _same_file(place.known_to, identity) and endpoint.streams:
            place.known_to = identity  # a change of mode or label of the socket is no new kubelet
        if place.known_to is None or place.known_to != identity:
            return
        # The kubelet opens the stream right after Register; one that never came is a lost one.
        never = not endpoint.streams and time.monotonic() - place.since > REGISTER_S
        if place.lost or never:
            self._forget(place, "the kubelet closed the stream")
        elif not endpoint.intact():
            self._forget(place, "the socket was removed")
        else:
            return
        again = place.closed_for == identity and time.monotonic() - place.since < STEADY_S
        place.settle = min(place.settle * 2, RETRY_MAX_S) if again else SETTLE_S
        place.closed_for = identity
        await self._close(place)

    async def _close(self, place: _Place) -> None:
        if place.endpoint.serving:
            place.known_to, place.closed_for = None, place.known_to or place.closed_for
            await place.endpoint.stop()
            place.closed_at = time.monotonic()

    def _due(self, place: _Place, identity: Identity) -> bool:
        now = time.monotonic()
        if place.known_to == identity or (
            place.closed_for == identity and now < place.closed_at + place.settle
        ):
            return False
        if place.tried != identity:
            place.retry_at, place.retry_in = 0.0, RETRY_FIRST_S
        return now >= place.retry_at

    async def _listens(self, identity: Identity) -> bool:
        """Whether the kubelet accepts connections; waits a moment for one that is about to."""
        pause = PROBE_FIRST_S
        while _identity(self._kubelet) == identity:
            if await _connects(self._kubelet):
                return True
            if pause > PROBE_MAX_S:
                break
            await asyncio.sleep(pause)
            pause *= 1.5
        return False

    async def _register(self, places: list[_Place], identity: Identity) -> None:
        await asyncio.gather(*(self._serve(place, identity) for place in places))
        # A kubelet that starts removes our sockets before it makes its own, and dials one that is gone for
        # ten seconds: only what is whole now, with the same kubelet there, may be registered.
        whole = [place for place in places if place.endpoint.intact()]
        if _identity(self._kubelet) != identity or not whole:
            return
        channel = grpc.aio.insecure_channel(f"unix:{self._kubelet}", options=_CHANNEL)
        try:
            await asyncio.gather(*(self._register_one(channel, place, identity) for place in whole))
        finally:
            await channel.close()

    async def _serve(self, place: _Place, identity: Identity) -> None:
        """A bound socket that answers; where the kubelet removed the old one, a new one."""
        endpoint = place.endpoint
        if endpoint.serving and not endpoint.intact():
            await endpoint.stop()
        if not endpoint.serving:
            try:
                await endpoint.start(self._folder / _socket_name(endpoint.resource, self._folder))
            except BindError as error:
                self._failed(place, str(error), identity)

    async def _register_one(self, channel: grpc.aio.Channel, place: _Place, identity: Identity) -> None:
        endpoint = place.endpoint
        request = register_request(_socket_name(endpoint.resource, self._folder), endpoint.resource)
        call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(
            "/v1beta1.Registration/Register"
        )
        place.lost = False
        try:
            await call(request, timeout=REGISTER_S)
        except grpc.aio.AioRpcError as error:
            self._failed(place, f"{error.code().name}: {error.details()}", identity)
            return
        self._registered(place, identity)

    def _registered(self, place: _Place, identity: Identity) -> None:
        place.known_to, place.since, place.reason = identity, time.monotonic(), ""
        place.retry_at, place.retry_in, self._said = 0.0, RETRY_FIRST_S, ""
        resource = place.endpoint.resource
        self._measure.registrations[resource, "OK"] += 1
        healthy, count = place.endpoint.roll.count()
        log.info("The resource is registered. resource=%s devices=%d healthy=%d", resource, count, healthy)

    def _failed(self, place: _Place, why: str, identity: Identity | None) -> None:
        place.known_to, place.tried = None, identity
        place.retry_at = time.monotonic() + place.retry_in
        resource = place.endpoint.resource
        self._measure.registrations[resource, "error"] += 1
        if place.reason != why:
            log.error(
                "The kubelet did not take the resource. resource=%s reason=%r again_in_s=%.0f",
                resource,
                why,
                place.retry_in,
            )
        place.reason = why
        place.retry_in = min(place.retry_in * 2, RETRY_MAX_S)

    def _forget(self, place: _Place, why: str) -> None:
        if place.known_to is not None:
            log.warning("The resource is not registered. resource=%s reason=%r", place.endpoint.resource, why)
            place.reason = why
        place.known_to = None

    # --- plugins_registry -----------------------------------------------------------------------------

    async def _offer(self, place: _Place) -> None:
        """Have a socket in the folder that the kubelet watches; it calls us (pluginwatcher)."""
        endpoint = place.endpoint
        if endpoint.serving and not endpoint.intact():
            self._forget(place, "the socket was removed")
            await endpoint.stop()
        if place.lost and endpoint.serving:
            # The kubelet dials a socket once: after a lost stream only a new file makes it look again.
            self._forget(place, "the kubelet closed the stream")
            await endpoint.stop()
            await asyncio.sleep(SETTLE_S)
        if endpoint.serving or time.monotonic() < place.retry_at:
            return
        place.lost = False
        try:
            await endpoint.start(
                self._folder / _socket_name(endpoint.resource, self._folder),
                (self._registration_handler(place),),
            )
        except BindError as error:
            self._failed(place, str(error), None)

    def _registration_handler(self, place: _Place) -> grpc.GenericRpcHandler:
        from nodeagent.kube import pluginregistration_pb2 as registration_pb  # noqa: PLC0415

        async def info(_request: bytes, _context: Any) -> bytes:
            return registration_pb.PluginInfo(
                type="DevicePlugin", name=place.endpoint.resource, supported_versions=[API_VERSION]
            ).SerializeToString()

        async def notify(request: bytes, _context: Any) -> bytes:
            status = registration_pb.RegistrationStatus.FromString(request)
            if status.plugin_registered:
                self._registered(place, _identity(self._kubelet) or (0, 0, 0))
            else:
                self._failed(place, status.error or "the kubelet gave no reason", None)
                place.lost = True
                self._wake.set()
            return b""

        return grpc.method_handlers_generic_handler(
            "pluginregistration.Registration",
            {
                "GetInfo": grpc.unary_unary_rpc_method_handler(info),
                "NotifyRegistrationStatus": grpc.unary_unary_rpc_method_handler(notify),
            },
        )


def _socket_name(resource: str, folder: Path) -> str:
    """A basename: the kubelet joins it to its folder. Names that begin with a dot would be skipped.

    A resource whose path no socket could have goes by a digest of its name.
    """
    name = f"nodeagent-{resource.replace('/', '_')}.sock"
    if len(os.fsencode(folder / name)) <= PATH_MAX:
        return name
    return f"nodeagent-{blake2b(resource.encode(), digest_size=8).hexdigest()}.sock"


def _identity(path: Path) -> Identity | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_ctime_ns


def _same_file(a: Identity | None, b: Identity | None) -> bool:
    return a is not None and b is not None and a[:2] == b[:2]


async def _connects(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as probe:
        try:
            async with asyncio.timeout(1.0):
                await asyncio.get_running_loop().sock_connect(probe, str(path))
        except (OSError, TimeoutError):
            return False
    return True
