"""Conflicts between the entries of ``resources`` and of ``vfs``.

Only a conflict that is certain without a machine is refused here. What depends on the GPUs and PFs of a node (two
globs that match the same GPU) is reported by the agent.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence

import msgspec

from nodeagent.config.file_errors import Conflict, Path
from nodeagent.config.formats import index_range
from nodeagent.kinds.resource_settings import (
    NAME_GPUS,
    NAME_PFS,
    ExpectSettings,
    FunctionResource,
    GpuMemResource,
    GpuResource,
    GpuSelect,
    HcaSelect,
    MigResource,
    Mode,
    NetworkResource,
    NicResource,
    NicSelect,
    PfSelect,
    RdmaResource,
    ResourceSettings,
    VfResource,
    VfSelect,
    VfsEntry,
)

Placed = tuple[Path, ResourceSettings]
PlacedVfs = tuple[Path, VfsEntry]


def resource_conflicts(resources: Sequence[Placed], vfs: Sequence[PlacedVfs]) -> Iterator[Conflict]:
    """All conflicts between the entries that could be read."""
    yield from _same_name(resources)
    yield from _no_gpus(resources)
    yield from _gpu_twice(resources)
    yield from _vf_twice(resources)
    yield from _hca_twice(resources)
    yield from _whole_and_shared(resources)
    yield from _modes(resources)
    for path, entry in vfs:
        yield from _vfs_entry(path, entry)
    yield from _pf_twice(vfs)


def expect_conflicts(expect: ExpectSettings, resources: Sequence[Placed]) -> Iterator[Conflict]:
    """Numbers of devices that no entry of ``resources`` can offer. Paths are below ``expect``."""
    nics = any(entry.source == "pci" for _, entry in resources)
    if expect.nics is not None and not nics:
        yield Conflict(
            (("nics",),), "no entry of resources is of kind vf, nic or rdma, so no NIC is ever offered"
        )
    if expect.gpus is not None and all(entry.source == "pci" for _, entry in resources):
        yield Conflict(
            (("gpus",),), "no entry of resources is of kind gpu-mem or gpu, so no GPU is ever offered"
        )


def enforcement_conflicts(
    resources: Sequence[Placed], *, processes: bool, pod_resources: bool, access: str
) -> Iterator[Conflict]:
    """Levels of enforcement without the settings that they need."""
    for path, entry in resources:
        if isinstance(entry, GpuMemResource) and entry.enforcement in ("nvml-limits", "mps"):
            where, level = ((*path, "enforcement"),), entry.enforcement
            if not pod_resources:
                yield Conflict(
                    where, f"{level} needs kubelet.podResources: true, which shows the shares of containers"
                )
            if entry.volcano:
                yield Conflict(
                    where, f"{level} needs volcano: false: podresources shows the shares of slices"
                )
            if entry.mode == "dra" and level == "nvml-limits":
                message = "nvml-limits needs mode devicePlugin: the agent sets no limit for a claim; use env"
                yield Conflict(where, message)
            if level == "mps" and "{" in entry.name:
                message = "mps needs one resource for all GPUs: a container could ask for several, and has one daemon"
                yield Conflict(where, message)
        if isinstance(entry, GpuMemResource) and entry.enforcement == "evict":
            where = ((*path, "enforcement"),)
            if not processes:
                yield Conflict(
                    where, "evict needs gpu.health.processes: true, which finds the pods that use too much"
                )
            if not pod_resources:
                yield Conflict(
                    where, "evict needs kubelet.podResources: true, which shows the shares of pods"
                )
            if access == "none":
                yield Conflict(where, "evict needs an API server, and cluster.access is none")


def claim_conflicts(resources: Sequence[Placed], *, access: str, pod_resources: bool) -> Iterator[Conflict]:
    """Resources that claims allocate, without the settings that this needs."""
    for path, entry in resources:
        if isinstance(entry, GpuResource) or entry.mode != "dra":
            continue
        if access == "none":
            message = "dra needs an API server, and cluster.access is none"
            yield Conflict(((*path, "mode"), ("cluster", "access")), message)
        if not pod_resources:
            message = "dra needs kubelet.podResources: true, which shows what pods hold of device plugins"
            yield Conflict(((*path, "mode"), ("kubelet", "podResources")), message)


def volcano_conflicts(resources: Sequence[Placed], *, pod_resources: bool, access: str) -> Iterator[Conflict]:
    """Resources that Volcano cannot place."""
    first: Path | None = None
    for path, entry in resources:
        if not isinstance(entry, GpuMemResource) or not entry.volcano:
            continue
        where = ((*path, "volcano"),)
        if first is not None:
            yield Conflict(where, f"{_named(first)} has it too, and the names of its resources are fixed")
        first = first or path
        if entry.mode == "dra":
            yield Conflict(where, "Volcano's deviceshare needs mode: devicePlugin")
        if "{gpu}" in entry.name:
            yield Conflict(where, "the scheduler chooses the GPU; take {gpu} out of the name")
        if not pod_resources:
            yield Conflict(where, "it needs kubelet.podResources: true, which shows the pods that have GPUs")
        if access == "none":
            yield Conflict(where, "it needs an API server, and cluster.access is none")


def _named(path: Path) -> str:
    return f"{path[0]}[{path[1]}]"


def _same_name(resources: Sequence[Placed]) -> Iterator[Conflict]:
    first: dict[str, Path] = {}
    for path, entry in resources:
        if "{netdev}" in entry.name:
            continue  # only the machine shows which entries select the same PF
        before = first.setdefault(entry.name.replace("{rail}", "0").replace("{gpu}", "0"), path)
        if before != path:
            message = f'"{entry.name}" is also the name of {_named(before)}; each resource needs its own name'
            yield Conflict(((*path, "name"), (*before, "name")), message)


def _whole_and_shared(resources: Sequence[Placed]) -> Iterator[Conflict]:
    """NICs that certainly are both offered whole and shared out, if both entries select any NIC with an RDMA device."""
    whole = [(path, entry.select) for path, entry in resources if isinstance(entry, NicResource)]
    for path, entry in resources:
        if not isinstance(entry, RdmaResource):
            continue
        shared = _pfs_alone(entry.select)
        for path_a, select in whole:
            pfs = _pfs_alone(select)
            if select.rdma is not False and (pfs == shared or PfSelect() in (pfs, shared)):
                message = (
                    f"a NIC is offered as a whole by {_named(path_a)} and shared out by {_named(path)}; separate them "
                    "by select: rdma: false of kind nic leaves NICs with an RDMA device out"
                )
                yield Conflict(tuple((*place, "select") for place in (path, path_a)), message)
                break


def _pfs_alone(select: PfSelect) -> PfSelect:
    """The lists that name PFs, of the selection of any kind."""
    return PfSelect(**{field: getattr(select, field) for field in PfSelect.__struct_fields__})


def _no_gpus(resources: Sequence[Placed]) -> Iterator[Conflict]:
    for path, entry in resources:
        if isinstance(entry, GpuResource) and entry.select == GpuSelect():
            yield Conflict(((*path, "select"),), NAME_GPUS)


def _gpu_twice(resources: Sequence[Placed]) -> Iterator[Conflict]:
    whole: list[tuple[Path, GpuSelect]] = []
    divided: list[tuple[Path, GpuSelect]] = []  # an entry of slices leaves the GPUs in MIG mode out
    for path, entry in resources:
        if (
            isinstance(entry, NetworkResource)
            or (isinstance(entry, MigResource) and entry.mode != "dra")
            or (isinstance(entry, GpuResource) and entry.select == GpuSelect())
        ):
            continue
        before = divided if isinstance(entry, MigResource) else whole
        for path_a, select in before:
            if (shared := _shared_gpus(select, entry.select)) is not None:
                message = f"a GPU is offered twice: by {_named(path_a)} and by {_named(path)} ({shared})"
                yield Conflict(((*path, "select"), (*path_a, "select")), message)
                break
        before.append((path, entry.select))


def _shared_gpus(a: GpuSelect, b: GpuSelect) -> str | None:
    """GPUs that two selections certainly share, in words; ``None``: none that is certain."""
    if GpuSelect() in (a, b):
        return "both select all GPUs" if a == b else "one of them selects all GPUs"
    if a == b:
        return "both select the same"
    lists_a, lists_b = (
        [field for field in select.__struct_fields__ if getattr(select, field)] for select in (a, b)
    )
    if lists_a != lists_b or len(lists_a) != 1:
        return None
    if lists_a == ["indexes"]:
        both = _mask(a.indexes) & _mask(b.indexes)
        return f"index {(both & -both).bit_length() - 1}" if both else None
    shared = set(getattr(a, lists_a[0])) & set(getattr(b, lists_a[0]))
    return min(shared, default=None)


def _vf_twice(resources: Sequence[Placed]) -> Iterator[Conflict]:
    before: list[tuple[Path, FunctionResource]] = []
    for path, entry in resources:
        if not isinstance(entry, FunctionResource):
            continue
        what, how, driver = ("NIC", "", "driver") if entry.whole else ("VF", ", select.vfIndexes", "vfDriver")
        for path_a, a in before:
            if a.whole == entry.whole and _shares_vfs(a, entry):
                message = (
                    f"a {what} is offered twice: by {_named(path_a)} and by {_named(path)}; "
                    f"separate them by select{how} or {driver}"
                )
                paths = [(*place, key) for place in (path, path_a) for key in ("select", driver)]
                yield Conflict(tuple(paths), message)
                break
        before.append((path, entry))


def _hca_twice(resources: Sequence[Placed]) -> Iterator[Conflict]:
    """Two entries that share out one HCA: together they have more shares than either says."""
    first: dict[HcaSelect, Path] = {}
    for path, entry in resources:
        if not isinstance(entry, RdmaResource):
            continue
        select = entry.select
        others = (select, HcaSelect()) if select != HcaSelect() else tuple(first)
        path_a = next((first[one] for one in others if one in first), None)
        if path_a is None:
            first[select] = path
            continue
        message = (
            f"an HCA is shared out twice: by {_named(path_a)} and by {_named(path)}; separate them by select"
        )
        yield Conflict(tuple((*place, "select") for place in (path, path_a)), message)


def _shares_vfs(a: FunctionResource, b: FunctionResource) -> bool:
    """Whether both certainly select the same VFs or NICs, if they select any."""
    pfs_a, pfs_b = _pfs(a), _pfs(b)
    return (
        (a.vf_driver == b.vf_driver or "any" in (a.vf_driver, b.vf_driver))
        and (pfs_a == pfs_b or _selects_all(pfs_a) or _selects_all(pfs_b))
        and _mask(getattr(a.select, "vf_indexes", ())) & _mask(getattr(b.select, "vf_indexes", ())) != 0
    )


def _modes(resources: Sequence[Placed]) -> Iterator[Conflict]:
    """Entries of one kind with two modes, one PF in two entries, and GPUs that no claim can hand out."""
    first: dict[type, tuple[Path, Mode]] = {}
    by_claim: list[tuple[Path, FunctionResource]] = []
    for path, entry in resources:
        if isinstance(entry, GpuResource):
            continue
        path_a, mode = first.setdefault(type(entry), (path, entry.mode))
        if mode != entry.mode:
            message = (
                f"is {entry.mode}, but {mode} in {_named(path_a)}: all entries of one kind have one mode"
            )
            yield Conflict(((*path, "mode"), (*path_a, "mode")), message)
        elif entry.mode != "dra":
            if isinstance(entry, VfResource) and entry.vf_devices:
                yield Conflict(
                    ((*path, "vfDevices"),), "needs mode: dra; a device plugin offers each VF anyway"
                )
        elif isinstance(entry, GpuMemResource | MigResource):
            if entry.device_list_strategy != "cdi":
                message = "mode dra hands out GPUs by CDI alone; set it to cdi"
                yield Conflict(((*path, "deviceListStrategy"),), message)
        elif isinstance(entry, FunctionResource):
            for path_b, other in by_claim:
                if other.whole != entry.whole:
                    continue
                mine, theirs = _pfs(entry), _pfs(other)
                if mine == theirs or _selects_all(mine) or _selects_all(theirs):
                    message = f"with mode dra a PF is one device, and {_named(path_b)} selects PFs of this entry too"
                    yield Conflict(((*path, "select"), (*path_b, "select")), message)
                    break
            by_claim.append((path, entry))


def _selects_all(select: NicSelect) -> bool:
    return select in (VfSelect(), NicSelect())


def _pfs(entry: FunctionResource) -> NicSelect:
    return (
        msgspec.structs.replace(entry.select, vf_indexes=())
        if isinstance(entry, VfResource)
        else entry.select
    )


def _vfs_entry(path: Path, entry: VfsEntry) -> Iterator[Conflict]:
    if entry.select == PfSelect():
        yield Conflict(((*path, "select"),), NAME_PFS)
    low, high = entry.min_tx_rate_mbps, entry.max_tx_rate_mbps
    if low and high and low > high:
        message = f"{low} is more than maxTxRateMbps, {high}"
        yield Conflict(((*path, "minTxRateMbps"), (*path, "maxTxRateMbps")), message)
    for i, text in enumerate(entry.vf_indexes):
        if index_range(text)[-1] >= entry.count:
            message = f'"{text}" is above the last VF: count is {entry.count}, and indexes begin at 0'
            yield Conflict(((*path, "vfIndexes", i), (*path, "vfIndexes"), (*path, "count")), message)


def _pf_twice(vfs: Sequence[PlacedVfs]) -> Iterator[Conflict]:
    """Two entries may set up different VFs of one PF, but must agree about the PF itself."""
    settings: tuple[tuple[str, Callable[[VfsEntry], int | None]], ...] = (
        ("count", lambda entry: entry.count),
        ("mtu", lambda entry: entry.mtu),
    )
    for key, value in settings:
        first: dict[PfSelect, tuple[Path, int]] = {}
        for path, entry in vfs:
            if (here := value(entry)) is None or entry.select == PfSelect():
                continue
            path_a, there = first.setdefault(entry.select, (path, here))
            if here != there:
                message = f"is {here}, but {there} in {_named(path_a)}, which selects the same PFs"
                paths = [(*place, part) for place in (path, path_a) for part in (key, "select")]
                yield Conflict(tuple(paths), message)


@functools.lru_cache(maxsize=256)
def _mask(ranges: tuple[str, ...]) -> int:
    """The indexes as bits of a number; no ranges: all indexes."""
    mask = 0 if ranges else -1
    for text in ranges:
        indexes = index_range(text)
        mask |= ((1 << len(indexes)) - 1) << indexes.start
    return mask
