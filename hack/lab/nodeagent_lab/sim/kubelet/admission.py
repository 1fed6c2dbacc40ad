"""Admission: choose devices in the kubelet's order, and merge what a container is started with.

Pods are admitted one at a time, and plugins are called without a time limit: a plugin that hangs blocks every pod. If
the kubelet iterates over a Go map, the order here is random (from the seed).
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

from nodeagent.facts.allocation import Allocation
from nodeagent.facts.model import DeviceNode, Mount
from nodeagent_lab.sim.kubelet import topology_manager
from nodeagent_lab.sim.kubelet.device_manager import DeviceManager, PluginEndpoint
from nodeagent_lab.sim.kubelet.plugin_clients import PluginClient
from nodeagent_lab.sim.kubelet.pods import AdmissionError, Container, PodSpec, TopologyAffinityError
from nodeagent_lab.sim.kubelet.topology_manager import NumaHint, Policy, Scope

_ANYWHERE = NumaHint(None, True)
_Reusable = dict[str, set[str]]


class PodAdmitter:
    """Allocates all devices of a pod, or raises ``AdmissionError``."""

    def __init__(
        self,
        devices: DeviceManager,
        policy: Policy,
        scope: Scope,
        numa_nodes: Sequence[int],
        rng: random.Random,
    ) -> None:
        self._devices = devices
        self._policy = policy
        self._scope = scope
        self._numa_nodes = numa_nodes
        self._rng = rng

    async def allocate(self, pod: PodSpec, running: frozenset[str] = frozenset()) -> None:
        """Allocate for init containers first. ``running`` names containers that run while the kubelet restarts.

        The devices of earlier containers of a refused pod stay held until the next search for ended pods.
        """
        reusable: _Reusable = {}
        of_pod = self._affinity(pod, None, pod.requests(), {}) if self._scope == "pod" else None
        for container in (*pod.init_containers, *pod.containers):
            hint = of_pod or self._affinity(pod, container.name, container.limits, reusable)
            await self._container(pod, container, hint, reusable, already=container.name in running)
            one_shot = container in pod.init_containers and not container.restartable
            for resource, held in self._devices.holdings.get(pod.uid, {}).get(container.name, {}).items():
                ids = reusable.setdefault(resource, set())
                reusable[resource] = ids | held.ids() if one_shot else ids - held.ids()

    def _affinity(
        self, pod: PodSpec, container: str | None, limits: Mapping[str, int], reusable: _Reusable
    ) -> NumaHint:
        """Return the hint for a container, or for the whole pod if ``container`` is ``None``."""
        if self._policy == "none":
            return _ANYWHERE
        devices = self._devices
        devices.update_allocated()
        given = [
            self._hints(pod, container, resource, count, reusable.get(resource, set()))
            for resource, count in limits.items()
            if devices.manages(resource)
        ]
        best = topology_manager.merge(self._policy, self._numa_nodes, given)
        if not topology_manager.admits(self._policy, best):
            raise TopologyAffinityError
        return best

    def _hints(
        self, pod: PodSpec, container: str | None, resource: str, count: int, reusable: set[str]
    ) -> tuple[NumaHint, ...]:
        devices = self._devices
        if not devices.has_numa(resource):
            return topology_manager.INDIFFERENT
        listed = devices.listed[resource]
        containers = devices.holdings.get(pod.uid, {})
        held = [
            resources[resource]
            for name, resources in containers.items()
            if resource in resources and container in (None, name)
        ]
        if held:
            available, reusable = {device for one in held for device in one.ids()}, set()
            if len(available) != count:
                return topology_manager.IMPOSSIBLE
        else:
            available = devices.healthy[resource] - devices.allocated.get(resource, set())
            if len(available | reusable) < count:
                return topology_manager.IMPOSSIBLE
        for device in chain(available - listed.by_id.keys(), reusable):
            devices.numa(resource, device)
        return (
            topology_manager.hints(
                numa_nodes=self._numa_nodes,
                listed=listed.count(listed.by_id),
                available=listed.count(available),
                reusable=listed.count(reusable),
                request=count,
            )
            or topology_manager.IMPOSSIBLE
        )

    async def _container(
        self, pod: PodSpec, container: Container, hint: NumaHint, reusable: _Reusable, *, already: bool
    ) -> None:
        devices = self._devices
        limits = list(container.limits.items())
        self._rng.shuffle(limits)
        managed = [(resource, count) for resource, count in limits if devices.manages(resource)]
        if managed:
            devices.update_allocated()
        asked = False
        for resource, count in managed:
            if already and not devices.sources_ready:
                self._unchanged(pod, container.name, resource, count)
                continue
            choice = DeviceChoice(devices, pod, container.name, resource, required=count, hint=hint)
            ids = await choice.make(reusable.get(resource, set()))
            if ids:
                await self._ask(pod, container.name, resource, ids)
                asked = True
        if asked:
            devices.save()

    def _unchanged(self, pod: PodSpec, container: str, resource: str, count: int) -> None:
        held = self._devices.held(pod.uid, container, resource)
        if held is not None and len(held.ids()) != count:
            raise changed_request(pod, container, resource, len(held.ids()), count)

    async def _ask(self, pod: PodSpec, container: str, resource: str, ids: set[str]) -> None:
        """Call Allocate for one resource of one container. If it fails, free the devices at once."""
        devices = self._devices
        client = client_of(devices.endpoints.get(resource))
        try:
            if client is None:
                raise AdmissionError(f"unknown Device Plugin {resource}")
            answer = await client.allocate(list(devices.at_random(resource, ids)))
        except AdmissionError:
            devices.regenerate()
            raise
        if not answer.container_responses:  # the devices stay allocated: the kubelet does not free them
            raise AdmissionError("no containers return in allocation response &AllocateResponse{}")
        devices.hold(pod.uid, container, resource, ids, answer.container_responses[0])

    async def start(self, pod: PodSpec, container: Container) -> Allocation:
        """Return what a container gets at each start: PreStartContainer if required, then the cached answers.

        If two resources set the same name, the first in random order wins. The environment of the pod comes last and
        overrides.
        """
        devices = self._devices
        for resource, count in container.limits.items():
            if not devices.manages(resource) or count == 0:
                continue
            endpoint = devices.endpoints.get(resource)
            if endpoint is None:
                raise AdmissionError(f"endpoint not found in cache for a registered resource: {resource}")
            client, held = endpoint.client, devices.held(pod.uid, container.name, resource)
            if endpoint.options.pre_start_required and client is not None:
                if held is None:
                    raise AdmissionError(
                        f"no devices found allocated in local cache for pod {pod.uid}, "
                        f"container {container.name}, resource {resource}"
                    )
                await client.pre_start(list(devices.at_random(resource, held.ids())))
        return self._merged(pod, container)

    def _merged(self, pod: PodSpec, container: Container) -> Allocation:
        answers = [
            held.response for held in self._devices.holdings.get(pod.uid, {}).get(container.name, {}).values()
        ]
        self._rng.shuffle(answers)
        env: dict[str, str] = {}
        mounts: dict[str, Mount] = {}
        nodes: dict[str, DeviceNode] = {}
        annotations: dict[str, str] = {}
        cdi: dict[str, None] = {}
        for answer in answers:
            for name, value in answer.envs.items():
                env.setdefault(name, value)
            for name, value in answer.annotations.items():
                annotations.setdefault(name, value)
            for m in answer.mounts:
                mounts.setdefault(m.container_path, Mount(m.host_path, m.container_path, m.read_only))
            for d in answer.devices:
                nodes.setdefault(d.container_path, DeviceNode(d.host_path, d.container_path, d.permissions))
            cdi.update(dict.fromkeys(device.name for device in answer.cdi_devices))
        env.update(container.env)
        return Allocation(
            env=tuple(env.items()),
            mounts=tuple(mounts.values()),
            device_nodes=tuple(nodes.values()),
            annotations=tuple(annotations.items()),
            cdi_devices=tuple(cdi),
        )


class DeviceChoice:
    """Chooses devices of one resource for a container. A chosen device is marked as allocated at once.

    After an error the marks stay: only ``DeviceManager.regenerate`` removes them.
    """

    def __init__(
        self,
        devices: DeviceManager,
        pod: PodSpec,
        container: str,
        resource: str,
        *,
        required: int,
        hint: NumaHint,
    ) -> None:
        self._devices = devices
        self._pod = pod
        self._container = container
        self._resource = resource
        self._required = required
        self._hint = hint
        self._taken: set[str] = set()

    async def make(self, reusable: set[str]) -> set[str]:
        devices, resource = self._devices, self._resource
        held = devices.held(self._pod.uid, self._container, resource)
        already = set() if held is None else held.ids()
        if held is not None and len(already) != self._required:
            raise changed_request(self._pod, self._container, resource, len(already), self._required)
        self._check_registered(already)
        if held is not None or self._required == 0:
            return set()
        if self._take(reusable):
            return self._taken
        available = devices.healthy[resource] - devices.allocated.get(resource, set())
        needed = self._required - len(self._taken)
        if len(available) < needed:
            raise AdmissionError(
                f"requested number of devices unavailable for {resource}. "
                f"Requested: {needed}, Available: {len(available)}"
            )
        aligned, unaligned, indifferent = self._by_affinity(available)
        if needed < len(aligned):
            preferred = await self._preferred(aligned)
            if self._take(preferred & aligned) or self._take(aligned):
                return self._taken
        elif self._take(aligned):
            return self._taken
        else:
            preferred = await self._preferred(available)
            if self._take(preferred & available) or self._take(unaligned) or self._take(indifferent):
                return self._taken
        raise AdmissionError(
            f"unexpectedly allocated less resources than required. "
            f"Requested: {self._required}, Got: {len(self._taken)}"
        )

    def _check_registered(self, already: set[str]) -> None:
        healthy = self._devices.healthy.get(self._resource)
        if healthy is None:
            raise AdmissionError(f"cannot allocate unregistered device {self._resource}")
        if not healthy:
            raise AdmissionError(
                f"no healthy devices present; cannot allocate unhealthy devices {self._resource}"
            )
        if not already <= healthy:
            raise AdmissionError(
                f"previously allocated devices are no longer healthy; "
                f"cannot allocate unhealthy devices {self._resource}"
            )

    def _take(self, pool: set[str]) -> bool:
        """Take devices from the pool at random. Return whether there are enough."""
        allocated = self._devices.allocated.setdefault(self._resource, set())
        for device in self._devices.at_random(self._resource, pool - self._taken):
            allocated.add(device)
            self._taken.add(device)
            if len(self._taken) == self._required:
                return True
        return False

    async def _preferred(self, pool: set[str]) -> set[str]:
        endpoint = self._devices.endpoints.get(self._resource)
        if endpoint is None:
            raise AdmissionError(f"endpoint not found in cache for a registered resource: {self._resource}")
        if endpoint.client is None or not endpoint.options.get_preferred_allocation_available:
            return set()
        available = list(self._devices.at_random(self._resource, pool | self._taken))
        must_include = list(self._devices.at_random(self._resource, self._taken))
        return set(await endpoint.client.preferred(available, must_include, self._required))

    def _by_affinity(self, available: Iterable[str]) -> tuple[set[str], set[str], set[str]]:
        """Split the devices: on the hint's NUMA nodes, on other nodes, and without a node or a hint."""
        devices, resource, mask = self._devices, self._resource, self._hint.mask
        if mask is None or not devices.has_numa(resource):
            return set(), set(), set(available)
        aligned: set[str] = set()
        unaligned: set[str] = set()
        indifferent: set[str] = set()
        for nodes, some in devices.listed[resource].by_numa(available).items():
            if not nodes:
                indifferent |= some
            elif topology_manager.mask_of(nodes) & mask:
                aligned |= some
            else:
                unaligned |= some
        return aligned, unaligned, indifferent


def changed_request(pod: PodSpec, container: str, resource: str, had: int, asked: int) -> AdmissionError:
    return AdmissionError(
        f'pod "{pod.uid}" container "{container}" changed request for resource "{resource}" '
        f"from {had} to {asked}"
    )


def client_of(endpoint: PluginEndpoint | None) -> PluginClient | None:
    return None if endpoint is None else endpoint.client
