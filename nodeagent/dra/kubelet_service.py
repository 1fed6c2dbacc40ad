"""The DRA driver as the kubelet sees it: two sockets, the services on them, and the registration.

The service's socket serves before the registration's socket exists, because the kubelet dials it at once. At the end
the registration goes first. The kubelet finds both again after its own restart. Imported only if a kind has mode
``dra``: it needs protobuf.

The kubelet waits 45 s for Prepare and Unprepare, and fails every pod of a request whose answer lacks one claim. So each
claim of a request has an entry, whatever happens to it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from nodeagent.base.backoff import Backoff
from nodeagent.base.bounded_calls import Unanswered
from nodeagent.base.file_writing import make_folder
from nodeagent.base.supervise import end_tasks
from nodeagent.dra import DRIVER
from nodeagent.dra.claims import ClaimReference, PreparedClaims
from nodeagent.dra.devices import DraDevice, pool_name
from nodeagent.dra.offered import DraOffer
from nodeagent.dra.prepared_claim import PreparedClaim
from nodeagent.dra.rival_drivers import RivalDrivers
from nodeagent.facts.model import State
from nodeagent.host.inotify import FolderWatch, InotifyError
from nodeagent.kinds import Refused
from nodeagent.kube import dra_health_v1_pb2, dra_health_v1alpha1_pb2
from nodeagent.kube import dra_v1_pb2 as dra
from nodeagent.kube import pluginregistration_pb2 as registration
from nodeagent.kubelet.rpc_stats import RpcStats
from nodeagent.kubelet.unix_server import BindError, UnixServer

log = logging.getLogger(__name__)

_VERSIONS = ("v1.DRAPlugin", "v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth")
"""The newest first: the kubelet takes the first one that it supports (dra_plugin_manager.go)."""
DEADLINE_S = 40.0
"""Less than the 45 s of the kubelet, so that it gets the reason."""
HEALTH_S = 10.0
"""The kubelet takes the health for unknown after 30 s without a message (healthinfo.go)."""
_MESSAGE_MAX = 1024  # bytes of the message of a device's health
HEALTH_LOOK_S = 5.0
_SOCKET = f"{DRIVER}-reg.sock"
"""Ours in the folder of registrations."""
UNWATCHED_S = 30.0
"""A kubelet that knows the driver opens its stream of health again every 5 s (dra_plugin_manager.go)."""
SERVICE_RETRY_FIRST_S, _RETRY_MAX_S = 1.0, 60.0


class DraService:
    """Serves the driver in the kubelet's folders ``plugins`` and ``plugins_registry`` below ``kubelet_dir``."""

    def __init__(
        self, kubelet_dir: Path, node: str, claims: PreparedClaims, offer: DraOffer, stats: RpcStats
    ) -> None:
        self.registered = False
        self.reason = "the kubelet has not registered the driver yet"
        """Why it is not registered."""
        self.folder = kubelet_dir / "plugins" / DRIVER
        self._registry = kubelet_dir / "plugins_registry"
        self._node, self._claims, self._offer, self._stats = node, claims, offer, stats
        self._service, self._registration = UnixServer(), UnixServer()
        self.rival: str | None = None
        """A sentence about another driver of our name."""
        self._rivals = RivalDrivers(self._registry, self._registry / _SOCKET)
        self._wake = asyncio.Event()
        self._watchers = 0
        """The streams of health that are open."""
        self._unwatched_since: float | None = None
        """When the last one ended; ``None`` while one is open, and if the kubelet that registered the driver has opened
        none: before 1.36 it watches no health, later it does not without ``ResourceHealthStatus``."""

    @property
    def _endpoint(self) -> Path:
        return self.folder / "dra.sock"

    async def run(self) -> None:
        """Serve and stay registered until cancelled. The caller holds the lock in ``folder``."""
        backoff = Backoff(SERVICE_RETRY_FIRST_S, _RETRY_MAX_S)
        watching = asyncio.create_task(self._watch_folders(), name="dra-folders")
        try:
            while True:
                pause_s = HEALTH_LOOK_S
                try:
                    await self._serve()
                    await self._look_for_rivals()
                    if self.registered:
                        backoff.reset()
                except (BindError, OSError) as error:
                    self._refused(str(error))
                    pause_s = backoff.next_s()
                self._wake.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause_s):
                        await self._wake.wait()
        finally:
            try:
                await end_tasks((watching,))
            finally:
                await self.stop()

    async def stop(self) -> None:
        """End the registration, then the service. What is published stays."""
        self.registered = False
        await self._registration.stop()
        await self._service.stop()

    async def _serve(self) -> None:
        """Have both sockets. A service without its socket gets a new one, and then a new registration."""
        if not self._registry.is_dir():
            raise BindError(f"{self._registry} does not exist: mount the kubelet's folder there")
        if not self._service.intact():
            await self.stop()
            make_folder(self.folder, 0o750)
            await self._service.start(self._endpoint, tuple(self._handlers()))
        unwatched_since, now = self._unwatched_since, time.monotonic()
        dropped = self.registered and unwatched_since is not None and now - unwatched_since >= UNWATCHED_S
        if dropped:
            self._refused(
                "the kubelet has stopped to watch the health of its devices, so it may have dropped it"
            )
        if dropped or not self._registration.intact():
            await self._registration.stop()
            self.registered, self._unwatched_since = False, None
            await self._registration.start(self._registry / _SOCKET, (self._registration_handler(),))

    async def _look_for_rivals(self) -> None:
        """Find out whether another driver has our name. When it has gone the kubelet gets us again: an older one has
        forgotten the name with it."""
        rival, before = await self._rivals.look(), self.rival
        if rival == before:
            return
        self.rival = rival
        if rival is not None:
            log.error("The name of the DRA driver is taken. reason=%r", rival)
            return
        log.info("No other DRA driver has the name any more; it is registered again. driver=%s", DRIVER)
        await self._registration.stop()
        self.registered, self._unwatched_since = False, None
        await self._serve()

    async def _watch_folders(self) -> None:
        """Look at once if a file of the folders is removed or made; ``HEALTH_LOOK_S`` is enough without this."""
        with suppress(InotifyError), FolderWatch() as watching:
            make_folder(self.folder, 0o750)
            for folder in (self.folder, self._registry):
                if folder.is_dir():
                    watching.add(folder)
            while True:
                await watching.changes()
                self._wake.set()

    def _refused(self, reason: str) -> None:
        if reason != self.reason:
            log.error("The DRA driver is not registered. reason=%r", reason)
        self.registered, self.reason = False, reason

    # --- registration ---------------------------------------------------------------------------------

    def _registration_handler(self) -> grpc.GenericRpcHandler:
        async def get_info(_request: bytes, _context: Any) -> bytes:
            return registration.PluginInfo(
                type="DRAPlugin", name=DRIVER, endpoint=str(self._endpoint), supported_versions=_VERSIONS
            ).SerializeToString()

        async def notify(request: bytes, context: Any) -> bytes:
            status = await _decoded(registration.RegistrationStatus, request, context)
            self._stats.registrations[DRIVER, "OK" if status.plugin_registered else "error"] += 1
            if status.plugin_registered:
                log.info("The DRA driver is registered. driver=%s", DRIVER)
                self.registered, self.reason = True, ""
                self._unwatched_since = None  # this kubelet may watch no health
            else:
                self._refused(status.error or "the kubelet gave no reason")
            return b""

        return grpc.method_handlers_generic_handler(
            "pluginregistration.Registration",
            {
                "GetInfo": grpc.unary_unary_rpc_method_handler(get_info),
                "NotifyRegistrationStatus": grpc.unary_unary_rpc_method_handler(notify),
            },
        )

    def _handlers(self) -> Iterator[grpc.GenericRpcHandler]:
        yield self._claims_handler()
        for version, pb in (("v1", dra_health_v1_pb2), ("v1alpha1", dra_health_v1alpha1_pb2)):
            yield self._health_handler(version, pb)

    # --- claims ---------------------------------------------------------------------------------------

    def _claims_handler(self) -> grpc.GenericRpcHandler:
        async def prepare(request: bytes, context: Any) -> bytes:
            claims = (await _decoded(dra.NodePrepareResourcesRequest, request, context)).claims
            answer = dra.NodePrepareResourcesResponse()
            for uid, record, error in await self._each(claims, "NodePrepareResources", self._claims.prepare):
                entry = answer.claims[uid]
                if record is None:
                    entry.error = error
                else:
                    entry.devices.extend(_devices(record))
            return bytes(answer.SerializeToString())

        async def unprepare(request: bytes, context: Any) -> bytes:
            claims = (await _decoded(dra.NodeUnprepareResourcesRequest, request, context)).claims
            answer = dra.NodeUnprepareResourcesResponse()
            for uid, _, error in await self._each(claims, "NodeUnprepareResources", self._claims.unprepare):
                answer.claims[uid].error = error
            return bytes(answer.SerializeToString())

        return grpc.method_handlers_generic_handler(
            "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin",
            {
                "NodePrepareResources": grpc.unary_unary_rpc_method_handler(prepare),
                "NodeUnprepareResources": grpc.unary_unary_rpc_method_handler(unprepare),
            },
        )

    async def _each(
        self, claims: Iterable[Any], method: str, work: Callable[[ClaimReference], Awaitable[Any]]
    ) -> list[tuple[str, Any, str]]:
        """Do the work for each claim. Return the UID, the result and the error of each, all of them in time."""

        async def one(reference: ClaimReference) -> tuple[str, Any, str]:
            with self._stats.call(DRIVER, method) as call:
                try:
                    async with asyncio.timeout(DEADLINE_S):
                        return reference.uid, await work(reference), ""
                except Refused as refusal:
                    code, error = "FAILED_PRECONDITION", str(refusal)
                except Unanswered as unanswered:
                    code, error = "UNAVAILABLE", str(unanswered)
                except TimeoutError:
                    code, error = "DEADLINE_EXCEEDED", f"no end within {DEADLINE_S:g} s"
                except OSError as failure:
                    code = "UNAVAILABLE"
                    error = f"{failure.filename} cannot be written: {failure.strerror}"
                call.refused(code)
            log.warning("A claim was refused. claim=%s method=%s reason=%r", reference, method, error)
            return reference.uid, None, error

        references = {it.uid: ClaimReference(it.namespace, it.name, it.uid) for it in claims}
        results = await asyncio.gather(*map(one, references.values()), return_exceptions=True)
        answers = []
        for reference, result in zip(references.values(), results, strict=True):
            if isinstance(result, BaseException):
                log.error(
                    "A claim meets a defect of the agent. claim=%s method=%s",
                    reference,
                    method,
                    exc_info=result,
                )
                error = f"defect of the agent: {type(result).__name__}; its log has the place"
                answers.append((reference.uid, None, error))
            else:
                answers.append(result)
        return answers

    # --- health ---------------------------------------------------------------------------------------

    def _health_handler(self, version: str, pb: ModuleType) -> grpc.GenericRpcHandler:
        async def watch(_request: bytes, _context: Any) -> AsyncIterator[bytes]:
            self._watchers, self._unwatched_since = self._watchers + 1, None
            try:
                while True:
                    revision = self._offer.revision
                    yield self._health(pb)
                    with suppress(TimeoutError):
                        async with asyncio.timeout(HEALTH_S):
                            await self._offer.changed(revision)
            finally:
                self._watchers -= 1
                if not self._watchers:
                    self._unwatched_since = time.monotonic()

        return grpc.method_handlers_generic_handler(
            f"{version}.DRAResourceHealth",
            {"NodeWatchResources": grpc.unary_stream_rpc_method_handler(watch)},
        )

    def _health(self, pb: ModuleType) -> bytes:
        now = int(time.time())
        answer = pb.NodeWatchResourcesResponse()
        for device in self._offer.current.known():
            answer.devices.append(
                pb.DeviceHealth(
                    device=pb.DeviceIdentifier(
                        pool_name=pool_name(self._node, device.pool), device_name=device.name
                    ),
                    health=_status(pb, device),
                    last_updated_time=now,
                    message=_message(device),
                )
            )
        return bytes(answer.SerializeToString())


async def _decoded(message: Any, request: bytes, context: Any) -> Any:
    """Return the request, or end the call with INVALID_ARGUMENT."""
    try:
        return message.FromString(request)
    except DecodeError as error:
        reason = f"the request is no {message.DESCRIPTOR.name}: {error}"
        log.warning("A call of the DRA driver is refused. reason=%r", reason)
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, reason)


def _devices(record: PreparedClaim) -> Iterator[Any]:
    for device in record.devices:
        yield dra.Device(
            request_names=[device.request],
            pool_name=device.pool,
            device_name=device.device,
            cdi_device_ids=device.cdi_devices,
            share_id=device.share_id,
        )


def _status(pb: ModuleType, device: DraDevice) -> int:
    if not device.health.allocatable:
        return int(pb.UNHEALTHY)
    return int(pb.UNKNOWN if device.health.state is State.UNKNOWN else pb.HEALTHY)


def _message(device: DraDevice) -> str:
    """Return the reasons, which ``kubectl describe pod`` shows."""
    text = "; ".join(f"{reason.key}: {reason.detail}" for reason in device.health.reasons)
    return text.encode(errors="backslashreplace")[:_MESSAGE_MAX].decode(errors="ignore")
