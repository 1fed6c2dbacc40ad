"""The inputs of the stand-in kubelet and its records, as frozen values, and the journal of records.

Times are ``time.monotonic``, in seconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from uuid import uuid4

from nodeagent.facts.allocation import Allocation


class KubeletPanic(Exception):  # noqa: N818  (Go's word)
    """The kubelet dereferenced a device that its plugin no longer lists, and ended."""


class AdmissionError(Exception):
    """Why a pod is not admitted, in the kubelet's words."""

    reason = "UnexpectedAdmissionError"

    def verdict(self) -> str:
        return f"Allocate failed due to {self}, which is unexpected"


class TopologyAffinityError(AdmissionError):
    """The topology policy finds no admissible NUMA affinity."""

    reason = "TopologyAffinityError"

    def verdict(self) -> str:
        return "Resources cannot be allocated with Topology locality"


@dataclass(frozen=True, slots=True)
class Container:
    """A container of a pod spec; ``restartable`` makes an init container a sidecar. ``claims`` are the names of those
    that it uses."""

    name: str
    limits: Mapping[str, int]
    env: tuple[tuple[str, str], ...] = ()
    restartable: bool = False
    claims: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PodSpec:
    """The part of a pod that the device manager reads."""

    name: str
    containers: tuple[Container, ...]
    init_containers: tuple[Container, ...] = ()
    namespace: str = "default"
    uid: str = field(default_factory=lambda: str(uuid4()))

    @classmethod
    def single(cls, name: str, limits: Mapping[str, int], env: tuple[tuple[str, str], ...] = ()) -> PodSpec:
        """A pod of one container, named ``main``."""
        return cls(name, (Container("main", limits, env),))

    def requests(self) -> dict[str, int]:
        """Return what the scheduler counts: the sum of the containers, or the largest init container."""
        steady: dict[str, int] = {}
        peak: dict[str, int] = {}
        for container in self.containers:
            for resource, count in container.limits.items():
                steady[resource] = steady.get(resource, 0) + count
        for container in self.init_containers:
            for resource, count in container.limits.items():
                if container.restartable:
                    steady[resource] = steady.get(resource, 0) + count
                else:
                    peak[resource] = max(peak.get(resource, 0), count)
        return {
            resource: max(steady.get(resource, 0), peak.get(resource, 0)) for resource in {**steady, **peak}
        }


@dataclass(frozen=True, slots=True)
class Admission:
    """The result for one pod. ``given`` is what each container was started with, by its name.

    ``phase`` is ``Running``; ``Failed``, which is final; or ``Pending`` if a container cannot start although the pod
    holds its devices.
    """

    pod: PodSpec
    phase: str
    reason: str = ""
    message: str = ""
    given: Mapping[str, Allocation] = field(default_factory=dict)

    @property
    def admitted(self) -> bool:
        return self.phase != "Failed"


@dataclass(frozen=True, slots=True)
class ListedDevice:
    """A device as in the plugin's latest message."""

    health: str
    numa_nodes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RegistrationAttempt:
    """One attempt of a plugin to register; ``error`` is ``None`` if it succeeded.

    ``via`` is ``kubelet.sock`` or ``plugins_registry``; ``at`` is the time of the request, ``done`` of the answer.
    """

    at: float
    done: float
    resource: str
    endpoint: str
    via: str
    error: str | None


@dataclass(frozen=True, slots=True)
class DeviceListUpdate:
    """One ListAndWatch message: when it arrived, how many devices it listed and its bytes on the wire.

    ``repeated``: it has the same bytes as the message before it on the same stream. Such a heartbeat rewrites the
    checkpoint and changes nothing.
    """

    at: float
    resource: str
    healthy: int
    unhealthy: int
    size: int
    repeated: bool

    @property
    def devices(self) -> int:
        return self.healthy + self.unhealthy


@dataclass(frozen=True, slots=True)
class PluginCall:
    """One call to a plugin, as the kubelet measures it; ``error`` as Go prints it."""

    at: float
    done: float
    resource: str
    method: str
    error: str | None


@dataclass(frozen=True, slots=True)
class StreamEnd:
    """The end of a ListAndWatch stream, which the kubelet never opens again by itself."""

    at: float
    resource: str
    cause: str


class Journal:
    """The records of the stand-in kubelet: lists that only grow. ``until`` waits for a change without sleeps."""

    def __init__(self) -> None:
        self.registrations: list[RegistrationAttempt] = []
        self.updates: list[DeviceListUpdate] = []
        self.calls: list[PluginCall] = []
        self.ends: list[StreamEnd] = []
        self.panics: list[KubeletPanic] = []
        self._pulse = asyncio.Event()

    def changed(self) -> None:
        pulse, self._pulse = self._pulse, asyncio.Event()
        pulse.set()

    async def until(self, predicate: Callable[[], bool], timeout_s: float) -> None:
        """Return once the predicate holds; it is called at every change. Raises ``TimeoutError`` with the state."""
        try:
            async with asyncio.timeout(timeout_s):
                while not predicate():
                    await self._pulse.wait()
        except TimeoutError:
            raise TimeoutError(
                f"the stand-in kubelet did not get there in {timeout_s:g} s; last of each: "
                f"{self.registrations[-1:]} {self.updates[-1:]} {self.ends[-1:]} {self.panics[-1:]}"
            ) from None
