"""MIG devices of one profile. The device ID is the UUID of the MIG device.

``MigPlaces`` are those that are made when a claim needs them; the rest of this module is about those that are there.

Each profile is a resource (``mig-1g.10gb``), so a request for two of them is two parts of GPUs that the hardware
isolates. A MIG device has the health of its GPU. Devices come and go while the agent runs: the resource lists those
that the driver lists, and one that is gone is Unhealthy until it may leave the list (``kubelet/removed_devices.py``).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from nodeagent.facts import cdi
from nodeagent.facts.allocation import Allocation, Devices
from nodeagent.facts.model import Gpu, Health, MigDevice, Reason, Snapshot, State
from nodeagent.kinds import (
    Question,
    Refused,
    distance,
    gpu_access,
    held_elsewhere,
    obstacle,
    requested,
    unknown,
    unless_held,
)

NO_NODES = (
    f"the device nodes of the MIG device are not known; mount {gpu_access.NVIDIA_CAPS} of the host for the agent "
    "(components/mig)"
)


def resource_part(profile: str) -> str:
    """Return a profile as a part of a resource's name, in which ``+`` is not allowed.

    >>> [resource_part(it) for it in ("1g.10gb", "1c.3g.40gb", "1g.10gb+me", "1g.24gb+me.all")]
    ['1g.10gb', '1c.3g.40gb', '1g.10gb.me', '1g.24gb.me.all']
    """
    return re.sub(r"[^A-Za-z0-9._-]", ".", profile)


class MigDevices(gpu_access.GpuKind, frozen=True, kw_only=True):
    """The MIG devices of one profile on the GPUs that are offered."""

    profile: str

    def devices(self, snapshot: Snapshot) -> tuple[Devices, ...]:
        alike: dict[tuple[str, Health], tuple[Gpu, list[str]]] = {}
        for device, gpu in self._members(snapshot).values():
            health = _without_nodes(gpu.health) if self._lacks_nodes(device, gpu) else gpu.health
            health = unless_held(health, held_elsewhere(snapshot, device.uuid, self.resource))
            alike.setdefault((gpu.uuid, health), (gpu, []))[1].append(device.uuid)
        return tuple(
            gpu_access.entry(gpu, tuple(sorted(uuids)), health) for (_, health), (gpu, uuids) in alike.items()
        )

    def hardware(self, snapshot: Snapshot) -> Mapping[str, str]:
        return {
            uuid: f"the MIG device {uuid} of GPU {gpu.index}"
            for uuid, (_, gpu) in self._members(snapshot).items()
        }

    def selects(self, snapshot: Snapshot) -> bool:
        return bool(self._members(snapshot))

    def choose(self, snapshot: Snapshot, asked: Question) -> Iterable[str]:
        """Choose from the GPUs with the fewest free devices, so that others stay idle and can be divided again."""
        members = self._members(snapshot)
        self._usable(snapshot, asked.must)
        choice = {
            uuid: gpu
            for uuid, (device, gpu) in members.items()
            if uuid in asked.free
            and uuid not in asked.must
            and gpu.health.allocatable
            and not self._lacks_nodes(device, gpu)
            and held_elsewhere(snapshot, uuid, self.resource) is None
        }
        if len(choice) < asked.rest:
            count = len(choice) + len(asked.must)
            raise Refused(
                f"{self.resource}: {asked.size} MIG devices were requested and {count} are available"
            )
        left = Counter(gpu.uuid for gpu in choice.values())
        order = sorted(
            choice.items(), key=lambda it: (left[it[1].uuid], distance(it[1], asked.near), it[1].index, it[0])
        )
        return [uuid for uuid, _ in order[: asked.rest]]

    def allocate(self, snapshot: Snapshot, ids: Sequence[str]) -> Allocation:
        chosen = self._usable(snapshot, requested(self.resource, ids))
        nodes: list[str] = []
        if self.pass_device_nodes:
            nodes = [node for device, gpu in chosen for node in gpu_access.mig_nodes(device, gpu)]
            nodes.extend(self.control_nodes)
        return self.access_named([device.uuid for device, _ in chosen], nodes)

    def _lacks_nodes(self, device: MigDevice, gpu: Gpu) -> bool:
        """Whether the agent's own CDI spec cannot have the device. A vendor's spec, and a runtime that gets the UUID,
        find the device nodes themselves."""
        ours = self.strategy == "cdi" and self.cdi_kind == cdi.GPU_KIND
        return ours and (not device.nodes or gpu.minor is None)

    def _members(self, snapshot: Snapshot) -> dict[str, tuple[MigDevice, Gpu]]:
        """Return the MIG devices by UUID, in the order of the GPUs."""
        return {
            device.uuid: (device, gpu)
            for gpu in gpu_access.selected(snapshot, self.gpus)
            for device in gpu.mig_devices
            if gpu.mig and device.profile == self.profile
        }

    def _usable(self, snapshot: Snapshot, ids: frozenset[str]) -> list[tuple[MigDevice, Gpu]]:
        """Return the MIG devices of these IDs. Raises ``Refused`` if one of them cannot be allocated."""
        members = self._members(snapshot)
        if not ids <= members.keys():
            raise unknown(self.resource, ids - members.keys())
        for uuid in sorted(ids):
            elsewhere = held_elsewhere(snapshot, uuid, self.resource)
            if refusal := obstacle(self.resource, uuid, members[uuid][1].health, elsewhere):
                raise refusal
            if self._lacks_nodes(*members[uuid]):
                raise Refused(f"{self.resource}: {uuid}: {NO_NODES}")
        return [members[uuid] for uuid in members if uuid in ids]


def _without_nodes(of_gpu: Health) -> Health:
    """The health of a MIG device that no container can have, on a GPU with this health."""
    state = of_gpu.state if not of_gpu.allocatable else State.UNHEALTHY
    return Health(state, (*of_gpu.reasons, Reason("mig_nodes_missing", NO_NODES)), allocatable=False)


class MigPlaces(gpu_access.GpuKind, frozen=True, kw_only=True):
    """The MIG devices of one profile that are made for claims (mode dra), on GPUs in MIG mode."""

    profile: str

    def devices(self, snapshot: Snapshot) -> tuple[Devices, ...]:
        """Return the GPUs: how many devices of the profile there can be depends on the other profiles."""
        gpus = gpu_access.selected(snapshot, self.gpus)
        return tuple(gpu_access.entry(gpu, (gpu.uuid,), gpu.health) for gpu in gpus)

    def hardware(self, snapshot: Snapshot) -> Mapping[str, str]:  # noqa: ARG002
        """Return nothing: an entry of slices may select the same GPUs, and leaves those in MIG mode out."""
        return {}

    def choose(self, snapshot: Snapshot, asked: Question) -> Iterable[str]:  # noqa: ARG002
        raise Refused(f"{self.resource}: with mode dra the scheduler chooses MIG devices, by claims")

    def allocate(self, snapshot: Snapshot, ids: Sequence[str]) -> Allocation:
        """Return what a container with MIG devices on these GPUs gets, without their own device nodes."""
        return self.access([gpu for gpu in gpu_access.selected(snapshot, self.gpus) if gpu.uuid in ids])
