"""The kubelet's manager of DRA drivers and claims (pkg/kubelet/cm/dra).

* A driver that registers twice is used through its latest registration that is connected. One endpoint twice is
  refused.
* At its start the kubelet deletes all ResourceSlices of its Node, and those of one driver 30 s after its last
  connection ended. It waits for no driver.
* The state of claims survives a restart, but not the flag that a claim is prepared: the next sandbox prepares it again,
  and the answer is appended to the known devices.
* A call has 45 s. An answer that skips a claim is an error. Per-claim errors are errors of the pod.
* A claim that was made again while the old one is known is refused.
* The health of devices comes from a stream; after 30 s without a message it is unknown.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import grpc
import grpc.aio

from nodeagent.kube import dra_health_v1_pb2, dra_health_v1alpha1_pb2, dra_v1_pb2
from nodeagent_lab.sim.kubelet import protocol
from nodeagent_lab.sim.kubelet.plugin_clients import RegistrationError
from nodeagent_lab.sim.kubelet.pods import Journal

DRIVER_TYPE = "DRAPlugin"
CALL_S = 45.0
DIAL_S = 10.0
FORGET_S = 30.0
HEALTH_S = 30.0
HEALTH_AGAIN_S = 5.0
SERVICES: dict[str, ModuleType] = {"v1.DRAPlugin": dra_v1_pb2}
HEALTH_SERVICES: dict[str, ModuleType] = {
    "v1.DRAResourceHealth": dra_health_v1_pb2,
    "v1alpha1.DRAResourceHealth": dra_health_v1alpha1_pb2,
}


class SandboxError(Exception):
    """The pod's sandbox is not made; the kubelet tries again."""


@dataclass(frozen=True, slots=True)
class PodClaim:
    """A claim as the kubelet has it from the API server. ``drivers`` are those in the results of its allocation."""

    namespace: str
    name: str
    uid: str
    drivers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class GivenDevice:
    requests: tuple[str, ...]
    pool: str
    device: str
    cdi_ids: tuple[str, ...]
    share_id: str | None


@dataclass(slots=True)
class ClaimState:
    """The state file of one claim."""

    claim: PodClaim
    pods: set[str] = field(default_factory=set)
    devices: dict[str, list[GivenDevice]] = field(default_factory=dict)
    prepared: bool = False


@dataclass(frozen=True, slots=True)
class HealthReading:
    health: str
    message: str
    received_at: float


class DriverClient:
    """One registration of one driver: a connection, the version of its service and its stream of health."""

    def __init__(self, driver: str, endpoint: Path, pb: ModuleType, health: str | None) -> None:
        self.driver, self.endpoint, self.pb, self.health = driver, endpoint, pb, health
        self.channel = protocol.dial(endpoint)
        self.tasks: list[asyncio.Task[None]] = []

    async def call(self, verb: str, claims: Iterable[PodClaim], timeout_s: float) -> Any:
        pb = self.pb
        request = getattr(pb, f"Node{verb}ResourcesRequest")(
            claims=[pb.Claim(namespace=it.namespace, uid=it.uid, name=it.name) for it in claims]
        )
        package = pb.DESCRIPTOR.package
        method = self.channel.unary_unary(
            f"/{package}.DRAPlugin/Node{verb}Resources",
            request_serializer=type(request).SerializeToString,
            response_deserializer=getattr(pb, f"Node{verb}ResourcesResponse").FromString,
        )
        try:
            return await method(request, timeout=timeout_s)
        except grpc.aio.AioRpcError as error:
            raise SandboxError(f"Node{verb}Resources failed: {protocol.rpc_error(error)}") from error
        except asyncio.CancelledError:
            if not protocol.cancelled_by_others():
                raise
            raise SandboxError(f"Node{verb}Resources failed: {protocol.CLOSING}") from None


class DraManager:
    """``delete_slices`` deletes the ResourceSlices of the Node, of one driver or of all (``None``).

    ``knows`` are the services that this kubelet supports: 1.36 has v1 of DRAPlugin and v1alpha1 of health.
    """

    def __init__(
        self,
        journal: Journal,
        delete_slices: Callable[[str | None], None] = lambda _driver: None,
        *,
        knows: tuple[str, ...] = ("v1.DRAPlugin", "v1alpha1.DRAResourceHealth"),
        call_s: float = CALL_S,
        forget_s: float = FORGET_S,
    ) -> None:
        self.states: dict[str, ClaimState] = {}
        """By namespace/name."""
        self.health: dict[tuple[str, str, str], HealthReading] = {}
        """By driver, pool and device; the complete list of the latest message."""
        self.knows = knows
        self._journal, self._delete_slices = journal, delete_slices
        self._call_s, self._forget_s = call_s, forget_s
        self._clients: dict[str, list[DriverClient]] = {}
        self._forgetting: dict[str, asyncio.Task[None]] = {}

    # Drivers.

    def start(self) -> None:
        """The kubelet starts: slices go, and no claim is prepared."""
        self._delete_slices(None)
        for state in self.states.values():
            state.prepared = False

    async def stop(self) -> None:
        for task in self._forgetting.values():
            task.cancel()
        self._forgetting.clear()
        for driver in list(self._clients):
            for client in self._clients.pop(driver):
                await self._close(client)
        self.health.clear()

    def registered(self, driver: str) -> bool:
        return bool(self._clients.get(driver))

    async def connect(self, driver: str, endpoint: Path, versions: list[str]) -> None:
        """Raises ``RegistrationError``."""
        service = next(
            (version for version in versions if version in self.knows and version in SERVICES), None
        )
        if service is None:
            raise RegistrationError(f"no version of {driver} is supported: {versions}")
        if any(client.endpoint == endpoint for client in self._clients.get(driver, ())):
            raise RegistrationError(f"endpoint {endpoint} of {driver} is already registered")
        # 1.36 opens the stream of health to every driver, also to one that does not list it.
        health = next((it for it in HEALTH_SERVICES if it in self.knows), None)
        client = DriverClient(driver, endpoint, SERVICES[service], health)
        self._clients.setdefault(driver, []).append(client)
        if (forgetting := self._forgetting.pop(driver, None)) is not None:
            forgetting.cancel()
        client.tasks.append(asyncio.create_task(self._watch_connection(client)))
        if health is not None:
            client.tasks.append(asyncio.create_task(self._watch_health(client, health)))
        self._journal.changed()

    async def disconnect(self, driver: str) -> None:
        """The registration's socket was removed."""
        if self._clients.get(driver):
            await self._drop(self._clients[driver][0])

    async def _watch_connection(self, client: DriverClient) -> None:
        async with asyncio.timeout(DIAL_S):  # not wait_for, which may swallow the cancellation
            await client.channel.channel_ready()
        state = client.channel.get_state()
        while state is grpc.ChannelConnectivity.READY:
            await client.channel.wait_for_state_change(state)
            state = client.channel.get_state()
        self._forget_later(client.driver)

    async def _watch_health(self, client: DriverClient, version: str) -> None:
        pb = HEALTH_SERVICES[version]
        watch = client.channel.unary_stream(
            f"/{pb.DESCRIPTOR.package}.DRAResourceHealth/NodeWatchResources",
            request_serializer=pb.NodeWatchResourcesRequest.SerializeToString,
            response_deserializer=pb.NodeWatchResourcesResponse.FromString,
        )
        while True:
            with contextlib.suppress(grpc.aio.AioRpcError):
                async for message in watch(pb.NodeWatchResourcesRequest()):
                    now = time.monotonic()
                    self._lose_health(client.driver)
                    for device in message.devices:
                        key = (client.driver, device.device.pool_name, device.device.device_name)
                        self.health[key] = HealthReading(
                            pb.HealthStatus.Name(device.health), device.message, now
                        )
                    self._journal.changed()
            self._lose_health(client.driver)
            await asyncio.sleep(HEALTH_AGAIN_S)

    def _lose_health(self, driver: str) -> None:
        self.health = {key: reading for key, reading in self.health.items() if key[0] != driver}

    def device_health(self, driver: str, pool: str, device: str) -> tuple[str, str]:
        """Return the health and the message in the status of a pod."""
        reading = self.health.get((driver, pool, device))
        if reading is None or time.monotonic() - reading.received_at > HEALTH_S:
            return "Unknown", ""
        return reading.health.capitalize(), reading.message

    def _forget_later(self, driver: str) -> None:
        async def forget() -> None:
            await asyncio.sleep(self._forget_s)
            self._delete_slices(driver)
            self._journal.changed()

        if driver not in self._forgetting:
            self._forgetting[driver] = asyncio.create_task(forget())

    async def _drop(self, client: DriverClient) -> None:
        clients = self._clients.get(client.driver, [])
        clients.remove(client)
        self._lose_health(client.driver)
        await self._close(client)
        if not clients:
            self._clients.pop(client.driver, None)
            self._forget_later(client.driver)
        self._journal.changed()

    async def _close(self, client: DriverClient) -> None:
        for task in client.tasks:
            task.cancel()
        await client.channel.close()
        await asyncio.gather(*client.tasks, return_exceptions=True)

    # Claims.

    async def prepare(self, pod: str, claims: Iterable[PodClaim]) -> None:
        """Prepare the claims of a pod before its sandbox is made. Raises ``SandboxError``."""
        by_driver: dict[str, list[PodClaim]] = {}
        for claim in claims:
            key = f"{claim.namespace}/{claim.name}"
            state = self.states.setdefault(key, ClaimState(claim))
            if state.claim.uid != claim.uid:
                raise SandboxError(
                    f"old ResourceClaim with same name {claim.name} and different UID still exists"
                )
            state.pods.add(pod)
            if not state.prepared:
                for driver in claim.drivers:
                    by_driver.setdefault(driver, []).append(claim)
        for driver, wanted in by_driver.items():
            answer = await self._call(driver, "Prepare", wanted)
            check_answer(answer, wanted, "Prepare")
            for claim in wanted:
                entry = answer.claims[claim.uid]
                state = self.states[f"{claim.namespace}/{claim.name}"]
                state.devices.setdefault(driver, []).extend(
                    GivenDevice(
                        tuple(it.request_names),
                        it.pool_name,
                        it.device_name,
                        tuple(it.cdi_device_ids),
                        getattr(it, "share_id", None) or None,
                    )
                    for it in entry.devices
                )
        for claim in claims:
            self.states[f"{claim.namespace}/{claim.name}"].prepared = True
        self._journal.changed()

    async def unprepare(self, pod: str) -> None:
        """The containers of a pod have ended: end the claims that no other pod uses. Raises ``SandboxError``."""
        ending = [state for state in self.states.values() if state.pods == {pod}]
        for state in self.states.values():
            if state not in ending:
                state.pods.discard(pod)
        for state in ending:
            for driver in state.claim.drivers:
                answer = await self._call(driver, "Unprepare", [state.claim])
                check_answer(answer, [state.claim], "Unprepare")
            del self.states[f"{state.claim.namespace}/{state.claim.name}"]
        self._journal.changed()

    def container_devices(self, claim: PodClaim, request: str | None = None) -> list[str]:
        """Return the CDI ids that a container gets, in this order and with doubles, as in 1.36."""
        state = self.states[f"{claim.namespace}/{claim.name}"]
        return [
            name
            for devices in state.devices.values()
            for device in devices
            if request is None or not device.requests or request in device.requests
            for name in device.cdi_ids
        ]

    async def _call(self, driver: str, verb: str, claims: list[PodClaim]) -> Any:
        clients = self._clients.get(driver)
        if not clients:
            raise SandboxError(f"DRA driver {driver} is not registered")
        return await clients[-1].call(verb, claims, self._call_s)


def check_answer(answer: Any, claims: list[PodClaim], verb: str) -> None:
    """Every claim needs an entry without an error. Raises ``SandboxError``."""
    for claim in claims:
        if claim.uid in answer.claims and answer.claims[claim.uid].error:
            error = answer.claims[claim.uid].error
            raise SandboxError(f"Node{verb}Resources failed for ResourceClaim {claim.name}: {error}")
    skipped = sum(claim.uid not in answer.claims for claim in claims)
    if skipped:
        raise SandboxError(f"Node{verb}Resources skipped {skipped} ResourceClaims")
