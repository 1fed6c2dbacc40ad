"""Slices of GPU memory. The device ID is ``<gpu uuid>::<n>``, n from 0.

The slices of a container are on ONE GPU, or they are all the slices of several GPUs. The kubelet does not know this
rule, so it is applied twice: ``prefer`` chooses by it, and ``allocate`` refuses what breaks it. The kubelet may
skip ``prefer`` (devices of finished init containers, NUMA alignment) or fill up a choice at random.

A node may have 80,000 slices, and every request lists all the free ones. So the IDs of a GPU are created once for
each (uuid, count), and a request is compared with them as sets, one GPU at a time. No ID is ever parsed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import islice

import msgspec

from nodeagent.facts.allocation import Allocation, Devices
from nodeagent.facts.model import Gpu, Health, Snapshot
from nodeagent.kinds import (
    Question,
    Refused,
    distance,
    gpu_access,
    held_elsewhere,
    mps_clients,
    obstacle,
    requested,
    unknown,
    unless_held,
)
from nodeagent.kinds.device_list_size import list_refusal
from nodeagent.kinds.enforcement import Enforcement, Level, level_of, missing, sets_variables
from nodeagent.kinds.mps_clients import MpsShares, without_new_clients
from nodeagent.kinds.resource_settings import Preferred

_LISTED_MAX = 8  # GPUs named in a refusal
_UUID_SHOWN = 12  # "GPU-" and the eight digits before the first dash


class _GpuSlices(msgspec.Struct, frozen=True):
    """The slices of one GPU in one request: ``free`` counts those to choose from, ``must`` the required ones."""

    gpu: Gpu
    ids: tuple[str, ...]
    free: int
    must: int
    refusal: Refused | None


class GpuMemory(gpu_access.GpuKind, frozen=True):
    """``enforcement``: see ``kinds.enforcement``. ``number`` is the index of the GPU if the resource has its name from
    one GPU. A container may ask for several such resources, so the names of its variables end with the number.
    ``mps`` is set if the enforcement is ``mps``.
    """

    slice_mib: int = 1024
    reserved_mib: int = 0
    enforcement: Enforcement = "auto"
    preferred: Preferred = "pack"
    number: int | None = None
    mps: MpsShares | None = None

    @property
    def device_mib(self) -> int:
        return self.slice_mib

    def resized(self, device_mib: int) -> GpuMemory:
        return msgspec.structs.replace(self, slice_mib=device_mib)

    def count(self, gpu: Gpu) -> int:
        """Return how many slices the GPU's memory holds: none in MIG mode, which divides it in another way."""
        if gpu.mig:
            return 0
        return max(0, (gpu.memory_mib - self.reserved_mib) // self.slice_mib)

    def devices(self, snapshot: Snapshot) -> tuple[Devices, ...]:
        return tuple(entry for gpu in self._members(snapshot) for entry in self._entries(gpu, snapshot))

    def free(self, snapshot: Snapshot) -> dict[str, int] | None:
        """Return the free slices by GPU: the largest number is the largest request that fits.

        A GPU that another resource holds has none, and neither has one whose daemon has all its clients.
        """
        if snapshot.holdings is None:
            return None
        taken = {id_ for ids in self._held_ids(snapshot) for id_ in ids}
        return {
            gpu.uuid: len(_known(gpu.uuid, self.count(gpu)) - taken)
            if self._listed(gpu, snapshot).allocatable and not self._full(gpu, snapshot)
            else 0
            for gpu in self._members(snapshot)
        }

    def refusal(self, snapshot: Snapshot) -> str | None:
        memories = [gpu.memory_mib for gpu in gpu_access.selected(snapshot, self.gpus)]
        return self.lacking(snapshot) or list_refusal(self.slice_mib, self.reserved_mib, memories)

    def lacking(self, snapshot: Snapshot) -> str | None:
        """Return why the configured enforcement is not possible, if it is not."""
        if self.selects(snapshot) and (lacking := missing(self.enforcement, snapshot)) is not None:
            return f"enforcement {self.enforcement} is not possible on this node: {lacking}"
        return None

    def level(self, snapshot: Snapshot) -> Level:
        return level_of(self.enforcement, snapshot)

    def choose(self, snapshot: Snapshot, asked: Question) -> Iterable[str]:
        """Choose the best fit on one GPU; for an exact multiple of a GPU's slices, that many idle GPUs.

        The smallest remainder wins (``pack``) or the largest (``spread``), then the NUMA node of ``near``, the PCIe
        hops to it, and the index. With ``nic-affinity`` NUMA node and hops come first. A request that may grow
        (``later_sizes``) is placed as if it had its largest later size that fits.
        """
        free, must = asked.free, asked.must
        blocks = self._blocks(snapshot, free, must)
        chosen = _best_fit(blocks, asked, self.preferred) or self._whole(snapshot, blocks, asked)
        if not chosen:
            raise self._no_fit(blocks, asked.size)
        fresh = (name for block in chosen for name in block.ids if name in free and name not in must)
        return islice(fresh, asked.rest)

    def allocate(self, snapshot: Snapshot, ids: Sequence[str]) -> Allocation:
        """State the memory for EACH of the GPUs: the toolkit applies the values to each GPU."""
        names = requested(self.resource, ids)
        chosen = [block for block in self._blocks(snapshot, names, names) if block.must]
        count = chosen[0].must
        if len(chosen) > 1 and any(block.must != count or len(block.ids) != count for block in chosen):
            raise Refused(
                f"{self.resource}: the slices are of several GPUs ({_listed(chosen)}); those of a container"
                " are all on one GPU, or whole GPUs of one size"
            )
        return self.grant(snapshot, [block.gpu for block in chosen], count * self.slice_mib)

    def grant(self, snapshot: Snapshot, gpus: Sequence[Gpu], mib: int) -> Allocation:
        """Return what a container gets that may use ``mib`` of EACH of the GPUs."""
        each = str(mib)
        limits = (("NVIDIA_GPU_MEMORY_REQUEST", each), ("NVIDIA_GPU_MEMORY_LIMIT", each))
        allocation = self.show(gpus, limits if self.limits(snapshot) else ())
        memory = (f"NODEAGENT_GPU_MEM_MIB{_end(self.number)}", each)
        allocation = msgspec.structs.replace(allocation, env=(*allocation.env, memory))
        return allocation if len(gpus) > 1 else self._through_mps(allocation, gpus[0], mib)

    def show(self, gpus: Sequence[Gpu], env: tuple[tuple[str, str], ...] = ()) -> Allocation:
        """Return what a container gets that sees the GPUs and has no share of them."""
        uuids = ",".join(gpu.uuid for gpu in gpus)
        return self.access(gpus, (*env, (f"NODEAGENT_GPU_UUID{_end(self.number)}", uuids)))

    def _through_mps(self, allocation: Allocation, gpu: Gpu, mib: int) -> Allocation:
        """Add the variables and mounts of a share of one GPU. A container has one daemon."""
        if self.mps is None:
            return allocation
        part = mib / (self.count(gpu) * self.slice_mib)
        variables = mps_clients.environment(gpu, mib, part, self.mps)
        mounts = (*allocation.mounts, *mps_clients.mounts(gpu, self.mps))
        return msgspec.structs.replace(allocation, env=(*allocation.env, *variables), mounts=mounts)

    def health(self, gpu: Gpu, snapshot: Snapshot) -> Health:
        """Return the health of a share of a GPU; with MPS it needs the daemon too."""
        return gpu.health if self.mps is None else mps_clients.mps_health(gpu, snapshot)

    def _listed(self, gpu: Gpu, snapshot: Snapshot) -> Health:
        return unless_held(self.health(gpu, snapshot), held_elsewhere(snapshot, gpu.uuid, self.resource))

    def _entries(self, gpu: Gpu, snapshot: Snapshot) -> Iterator[Devices]:
        """The slices of a GPU: one value, or those that containers hold and the others, which nobody can have while the
        GPU has all its clients."""
        ids, health = _ids(gpu.uuid, self.count(gpu)), self._listed(gpu, snapshot)
        why = self._full(gpu, snapshot) if health.allocatable else None
        if why is None:
            yield gpu_access.entry(gpu, ids, health)
            return
        taken = {id_ for held in self._held_ids(snapshot) for id_ in held}
        held_here = tuple(id_ for id_ in ids if id_ in taken)
        if held_here:
            yield gpu_access.entry(gpu, held_here, health)
        if len(held_here) < len(ids):
            rest = tuple(id_ for id_ in ids if id_ not in taken)
            yield gpu_access.entry(gpu, rest, without_new_clients(health, why))

    def _full(self, gpu: Gpu, snapshot: Snapshot) -> str | None:
        return None if self.mps is None else mps_clients.full(self.resource, gpu, self.mps, snapshot)

    def limits(self, snapshot: Snapshot) -> bool:
        """Whether containers get the variables of NVIDIA's container toolkit that limit their memory."""
        return sets_variables(self.enforcement, snapshot)

    def _members(self, snapshot: Snapshot) -> tuple[Gpu, ...]:
        return tuple(gpu for gpu in gpu_access.selected(snapshot, self.gpus) if self.count(gpu))

    def _held_ids(self, snapshot: Snapshot) -> list[tuple[str, ...]]:
        return [
            holding.device_ids for holding in snapshot.holdings or () if holding.resource == self.resource
        ]

    def _blocks(self, snapshot: Snapshot, free: frozenset[str], must: frozenset[str]) -> list[_GpuSlices]:
        """Return every GPU. Raises ``Refused`` for an unknown required ID, and for one on an unusable GPU."""
        blocks = []
        for gpu in self._members(snapshot):
            count = self.count(gpu)
            elsewhere = held_elsewhere(snapshot, gpu.uuid, self.resource)
            refusal = obstacle(self.resource, gpu.uuid, self.health(gpu, snapshot), elsewhere)
            if refusal is None and (why := self._full(gpu, snapshot)):
                refusal = Refused(f"{self.resource}: {why}")
            named = _count_among(must, gpu.uuid, count)
            left = named if free is must else _count_among(free, gpu.uuid, count)
            block = _GpuSlices(gpu, _ids(gpu.uuid, count), 0 if refusal else left, named, refusal)
            blocks.append(block)
        if sum(block.must for block in blocks) < len(must):
            raise unknown(self.resource, must.difference(*(block.ids for block in blocks)))
        for block in blocks:
            if block.must and block.refusal:
                raise block.refusal
        return blocks

    def _whole(self, snapshot: Snapshot, blocks: Sequence[_GpuSlices], asked: Question) -> list[_GpuSlices]:
        """Return two or more idle GPUs of one size that make the size, as few as possible; empty if there are none.

        GPUs that are idle by podresources too come first. The kubelet's list is newer, but if both agree, neither
        is wrong.
        """
        held = {id_.partition("::")[0] for ids in self._held_ids(snapshot) for id_ in ids}
        pinned = [block.gpu for block in blocks if block.must]
        for each in sorted({len(block.ids) for block in blocks}, reverse=True):
            gpus, rest = divmod(asked.size, each)
            if rest or gpus < max(2, len(pinned)):
                continue
            idle = [block for block in blocks if block.free == len(block.ids) == each]
            unheld = [block for block in idle if block.must or block.gpu.uuid not in held]
            for choice in (unheld, idle):
                candidates = [block.gpu for block in choice]
                if len(candidates) >= gpus and all(gpu in candidates for gpu in pinned):
                    group = gpu_access.cluster(candidates, gpus, asked.near, pinned)
                    return [block for block in choice if block.gpu in group]
        return []

    def _no_fit(self, blocks: Sequence[_GpuSlices], size: int) -> Refused:
        mib = size * self.slice_mib
        memory = f"{mib // 1024} GiB" if mib % 1024 == 0 else f"{mib} MiB"
        largest = max((len(block.ids) for block in blocks), default=0)
        reason = f"no single GPU has {size} free slices ({memory})"
        if largest and size > largest:
            reason = f"{size} slices ({memory}) are more than one GPU holds and no exact multiple of one"
            wholes = [len(block.ids) for block in blocks if size % len(block.ids) == 0]
            if wholes:
                reason = (
                    f"{size} slices ({memory}) are {size // max(wholes)} whole GPUs, not so many are idle"
                )
        pinned = [block for block in blocks if block.must]
        if len(pinned) == 1:
            (block,) = pinned
            reason = (
                f"{block.must} of {size} slices are fixed on {block.gpu.uuid[:_UUID_SHOWN]}…, which has {block.free} "
                "with them: the kubelet gives a container the slices of the pod's init container, or those of its "
                f"NUMA node, first; ask for {size} in the init container too, or for at most {block.free} here"
            )
        free = f"; free slices: {_listed(blocks)}" if blocks else "; it has no GPU"
        fitting = "" if pinned or not blocks else f"; {_fitting(blocks)}"
        return Refused(f"{self.resource}: {reason}{free}{fitting}")


def _best_fit(blocks: Sequence[_GpuSlices], asked: Question, preferred: Preferred) -> list[_GpuSlices]:
    pinned = [block for block in blocks if block.must]
    if len(pinned) > 1:
        return []
    candidates = pinned or blocks
    later_sizes = {later for later in asked.later_sizes or () if later > asked.size}
    for wanted in (*sorted(later_sizes, reverse=True), asked.size):
        if fitting := [block for block in candidates if block.free >= wanted]:
            break
    else:
        return []
    # A request of unknown growth goes to the emptiest GPU.
    sign = -1 if preferred == "spread" or asked.later_sizes is None else 1

    def rank(block: _GpuSlices) -> tuple[object, ...]:
        far, left = distance(block.gpu, asked.near), sign * block.free
        return (*((far, left) if preferred == "nic-affinity" else (left, far)), block.gpu.index)

    return [min(fitting, key=rank)]


def _end(number: int | None) -> str:
    """Return the end of the names of the variables."""
    return "" if number is None else f"_{number}"


def _listed(blocks: Sequence[_GpuSlices]) -> str:
    """Return ``GPU-5d5ba0e2… 40, GPU-9b34a1c7… 12``: free slices, the most first."""
    order = sorted(blocks, key=lambda block: (-block.free, block.gpu.index))
    more = f" and {len(order) - _LISTED_MAX} more" if len(order) > _LISTED_MAX else ""
    return ", ".join(f"{block.gpu.uuid[:_UUID_SHOWN]}… {block.free}" for block in order[:_LISTED_MAX]) + more


def _fitting(blocks: Sequence[_GpuSlices]) -> str:
    """Return what fits now: ``ask for at most 79, or for 158, 237``. The latter are whole idle GPUs of one size."""
    largest = max(block.free for block in blocks)
    if not largest:
        return "nothing is free now"
    idle = Counter(block.free for block in blocks if block.free == len(block.ids))
    wholes = sorted({each * gpus for each, count in idle.items() for gpus in range(2, count + 1)})
    multiples = [size for size in wholes if size > largest]
    more = ", …" if len(multiples) > _LISTED_MAX else ""
    others = ", ".join(map(str, multiples[:_LISTED_MAX])) + more
    return f"ask for at most {largest}" + (f", or for {others}" if others else "")


def _count_among(names: frozenset[str], uuid: str, count: int) -> int:
    """Count the IDs that are slices of the GPU. Many IDs are not copied into another set."""
    if len(names) < count:
        return len(names & _known(uuid, count))
    return sum(map(names.__contains__, _ids(uuid, count)))


@lru_cache(maxsize=256)
def _ids(uuid: str, count: int) -> tuple[str, ...]:
    """Created once, so that an unchanged GPU is published with the same tuple."""
    return tuple(f"{uuid}::{n}" for n in range(count))


@lru_cache(maxsize=256)
def _known(uuid: str, count: int) -> frozenset[str]:
    return frozenset(_ids(uuid, count))
