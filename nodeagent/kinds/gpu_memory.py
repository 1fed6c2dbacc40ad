"""Slices of GPU memory. The device id is ``<gpu uuid>::<n>``, n from 0.

The law of this file: the slices of a container lie on ONE GPU, or they are all the slices of several GPUs.
The kubelet does not know the law, so it is applied twice: ``prefer`` chooses by it, and ``allocate`` refuses
what breaks it, because the kubelet may pass ``prefer`` by (devices of finished init containers, NUMA
alignment) or fill a choice up as it likes.

A node may have 80,000 slices and every request carries all the free ones. So the ids of a GPU are made once
for each (uuid, count), and a request is compared with them as sets, a GPU at a time: no id is ever parsed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice

from nodeagent.kinds import Refused, asked, distance, gpu_access, held_by, preference, unhealthy, unknown
from nodeagent.model import Allocation, Devices, Function, Gpu, Snapshot

_LISTED_MAX = 8  # GPUs named in a refusal
_UUID_SHOWN = 12  # "GPU-" and the eight digits before the first dash


@dataclass(frozen=True, slots=True)
class _Block:
    """One GPU in the light of one request: ``free`` counts what may be chosen, ``must`` what has to be."""

    gpu: Gpu
    ids: tuple[str, ...]
    free: int
    must: int
    refusal: Refused | None


@dataclass(frozen=True, slots=True)
class Slices:
    """``gpus`` are the UUIDs to offer, ``None`` for all; ``control_nodes``: see ``access``.

    ``memory_limits`` states ``NVIDIA_GPU_MEMORY_REQUEST`` and ``_LIMIT``, which NVIDIA's container toolkit
    from 1.20.1 turns into a hard limit (driver 615 and cgroup v2). Older toolkits do not look at them; a
    toolkit that does, on a host that cannot, refuses to start the container: set it to false there.
    """

    resource: str
    gpus: frozenset[str] | None = None
    slice_mib: int = 1024
    reserved_mib: int = 0
    strategy: gpu_access.Strategy = "cdi"
    pass_device_nodes: bool = False
    cdi_kind: str = gpu_access.CDI_KIND
    control_nodes: tuple[str, ...] = gpu_access.CONTROL_NODES
    memory_limits: bool = True

    def count(self, gpu: Gpu) -> int:
        """How many slices the GPU's memory holds."""
        return max(0, (gpu.memory_mib - self.reserved_mib) // self.slice_mib)

    def devices(self, snapshot: Snapshot) -> tuple[Devices, ...]:
        return tuple(
            Devices(
                parent=gpu.uuid,
                ids=_ids(gpu.uuid, self.count(gpu)),
                numa_nodes=() if gpu.numa_node is None else (gpu.numa_node,),
                health=gpu.health,
            )
            for gpu in self._members(snapshot)
        )

    def free(self, snapshot: Snapshot) -> dict[str, int] | None:
        """Free slices by GPU, as far as podresources tells; ``None`` before the kubelet has been heard.

        The largest of them is the largest request that still fits.
        """
        if snapshot.holdings is None:
            return None
        taken = {device for it in self._holdings(snapshot) for device in it}
        elsewhere = gpu_access.held_elsewhere(snapshot, self.resource)
        return {
            gpu.uuid: len(_known(gpu.uuid, self.count(gpu)) - taken)
            if gpu.health.allocatable and gpu.uuid not in elsewhere
            else 0
            for gpu in self._members(snapshot)
        }

    def prefer(
        self,
        snapshot: Snapshot,
        available: Sequence[str],
        must_include: Sequence[str],
        size: int,
        near: Sequence[Function] = (),
    ) -> list[str]:
        """Best fit on one GPU; else, for exact multiples of a GPU, that many idle ones.

        The smallest leftover wins, then the NUMA node of ``near``, the PCIe hops to it, and the index.
        """
        free, must = preference(self.resource, available, must_include, size)
        blocks = self._blocks(snapshot, free, must)
        chosen = _best_fit(blocks, size, near) or self._whole(snapshot, blocks, size, near)
        if not chosen:
            raise self._no_fit(blocks, size)
        fresh = (name for block in chosen for name in block.ids if name in free and name not in must)
        return [*must_include, *islice(fresh, size - len(must))]

    def allocate(self, snapshot: Snapshot, ids: Sequence[str]) -> Allocation:
        """All memory figures are for EACH of the GPUs: the toolkit applies them so, GPU by GPU."""
        names = asked(self.resource, ids)
        chosen = [block for block in self._blocks(snapshot, names, names) if block.must]
        one = chosen[0].must
        if len(chosen) > 1 and any(block.must != one or len(block.ids) != one for block in chosen):
            raise Refused(
                f"{self.resource}: the slices are of several GPUs ({_listed(chosen)}); those of a container"
                " are all on one GPU, or whole GPUs of one size",
                invalid=False,
            )
        each = str(one * self.slice_mib)
        limits = (("NVIDIA_GPU_MEMORY_REQUEST", each), ("NVIDIA_GPU_MEMORY_LIMIT", each))
        return gpu_access.grant(
            [block.gpu for block in chosen],
            strategy=self.strategy,
            cdi_kind=self.cdi_kind,
            control_nodes=self.control_nodes if self.pass_device_nodes else (),
            env=(
                *(limits if self.memory_limits else ()),
                ("NODEAGENT_GPU_UUID", ",".join(block.gpu.uuid for block in chosen)),
                ("NODEAGENT_GPU_MEM_MIB", each),
            ),
        )

    def _members(self, snapshot: Snapshot) -> tuple[Gpu, ...]:
        return tuple(gpu for gpu in gpu_access.selected(snapshot, self.gpus) if self.count(gpu))

    def _holdings(self, snapshot: Snapshot) -> list[tuple[str, ...]]:
        return [it.device_ids for it in snapshot.holdings or () if it.resource == self.resource]

    def _blocks(self, snapshot: Snapshot, free: frozenset[str], must: frozenset[str]) -> list[_Block]:
        """Every GPU; raises for ids that are on none, and for a GPU that must and cannot be used."""
        elsewhere = gpu_access.held_elsewhere(snapshot, self.resource)
        blocks = []
        for gpu in self._members(snapshot):
            count = self.count(gpu)
            refusal = None
            if not gpu.health.allocatable:
                refusal = unhealthy(self.resource, gpu.uuid, gpu.health)
            elif gpu.uuid in elsewhere:
                refusal = held_by(self.resource, gpu.uuid, elsewhere[gpu.uuid])
            named = _among(must, gpu.uuid, count)
            left = named if free is must else _among(free, gpu.uuid, count)
            block = _Block(gpu, _ids(gpu.uuid, count), 0 if refusal else left, named, refusal)
            blocks.append(block)
        if sum(block.must for block in blocks) < len(must):
            raise unknown(self.resource, must.difference(*(block.ids for block in blocks)))
        for block in blocks:
            if block.must and block.refusal:
                raise block.refusal
        return blocks

    def _whole(
        self, snapshot: Snapshot, blocks: Sequence[_Block], size: int, near: Sequence[Function]
    ) -> list[_Block]:
        """``size`` as two or more idle GPUs of one size, the fewest possible; empty if there is no way.

        The GPUs that podresources calls idle too come first: the kubelet's list is the newer one, but
        where both agree nothing can have gone wrong.
        """
        lately = {name.partition("::")[0] for it in self._holdings(snapshot) for name in it}
        pinned = [block.gpu for block in blocks if block.must]
        for each in sorted({len(block.ids) for block in blocks}, reverse=True):
            gpus, rest = divmod(size, each)
            if rest or gpus < max(2, len(pinned)):
                continue
            idle = [block for block in blocks if block.free == len(block.ids) == each]
            quiet = [block for block in idle if block.must or block.gpu.uuid not in lately]
            for choice in (quiet, idle):
                those = [block.gpu for block in choice]
                if len(those) >= gpus and all(gpu in those for gpu in pinned):
                    group = gpu_access.cluster(those, gpus, near, pinned)
                    return [block for block in choice if block.gpu in group]
        return []

    def _no_fit(self, blocks: Sequence[_Block], size: int) -> Refused:
        mib = size * self.slice_mib
        memory = f"{mib // 1024} GiB" if mib % 1024 == 0 else f"{mib} MiB"
        largest = max((len(block.ids) for block in blocks), default=0)
        what = f"no single GPU has {size} free slices ({memory})"
        if largest and size > largest:
            what = f"{size} slices ({memory}) are more than one GPU holds and no exact multiple of one"
            wholes = [len(block.ids) for block in blocks if size % len(block.ids) == 0]
            if wholes:
                what = f"{size} slices ({memory}) are {size // max(wholes)} whole GPUs, not so many are idle"
        free = f"; free slices: {_listed(blocks)}" if blocks else "; it has no GPU"
        return Refused(f"{self.resource}: {what}{free}", invalid=False)


def _best_fit(blocks: Sequence[_Block], size: int, near: Sequence[Function]) -> list[_Block]:
    pinned = [block for block in blocks if block.must]
    if len(pinned) > 1:
        return []
    fitting = [block for block in pinned or blocks if block.free >= size]
    if not fitting:
        return []
    least = min(block.free for block in fitting)
    ties = [block for block in fitting if block.free == least]
    return [min(ties, key=lambda block: (distance(block.gpu, near), block.gpu.index))]


def _listed(blocks: Sequence[_Block]) -> str:
    """``GPU-5d5ba0e2… 40, GPU-9b34a1c7… 12``, the most first."""
    order = sorted(blocks, key=lambda block: (-block.free, block.gpu.index))
    more = f" and {len(order) - _LISTED_MAX} more" if len(order) > _LISTED_MAX else ""
    return ", ".join(f"{block.gpu.uuid[:_UUID_SHOWN]}… {block.free}" for block in order[:_LISTED_MAX]) + more


def _among(names: frozenset[str], uuid: str, count: int) -> int:
    """How many of the names are slices of the GPU; of many names, without making a set of them."""
    if len(names) < count:
        return len(names & _known(uuid, count))
    return sum(map(names.__contains__, _ids(uuid, count)))


@lru_cache(maxsize=256)
def _ids(uuid: str, count: int) -> tuple[str, ...]:
    """Made once, so that an unchanged GPU is stated with the very same tuple."""
    return tuple(f"{uuid}::{n}" for n in range(count))


@lru_cache(maxsize=256)
def _known(uuid: str, count: int) -> frozenset[str]:
    return frozenset(_ids(uuid, count))
