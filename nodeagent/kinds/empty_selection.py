"""Why an entry of ``resources`` selects no device of this machine, in words for the author of the configuration. Pure.

The first list of ``select`` that nothing matches is the cause, and the message says what there is instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from nodeagent.facts.model import Function, Gpu, Link, Snapshot
from nodeagent.kinds import named
from nodeagent.kinds.hardware_selection import is_routed, matches, offers_vfs_of, selected_gpus, selected_pf
from nodeagent.kinds.resource_settings import (
    GpuMemResource,
    GpuResource,
    GpuSelect,
    NetworkResource,
    PfSelect,
    RdmaResource,
)

_NEAR_MIN = 3
"""Characters of a netdev's name that make it similar to a longer one: ``enp24s0`` and ``enp24s0np0``."""


def why_no_functions(entry: NetworkResource, snapshot: Snapshot) -> str:
    """Return why no NIC of this machine is one that the entry offers, whole, in VFs or in shares."""
    select = entry.select
    pfs = [function for function in snapshot.functions if function.parent is None]
    if not pfs:
        return "this machine has no NIC"
    if (cause := next(_unmatched_lists(select, pfs, snapshot), None)) is not None:
        return cause
    chosen = [pf for pf in pfs if selected_pf(select, pf)]
    if not chosen:
        return f"no NIC matches all lists of select, and none of select.exclude: there are {_pfs(pfs)}"
    links = {link.pci_address: link for link in snapshot.links}
    if isinstance(entry, RdmaResource):
        return _without_hca(entry, chosen, links)
    if entry.whole:
        left = [pf for pf in chosen if offers_vfs_of(entry, pf, links.get(pf.pci_address))]
        if not left:
            return _left_out(entry, chosen, links)
        return (
            f"{_pfs(left)} {_have(left)} VFs, or gets some by the section vfs, so that it is not offered whole: kind "
            "vf offers its VFs"
        )
    able = [pf for pf in chosen if pf.total_vfs]
    if not able and snapshot.guest:
        return (
            f"{_pfs(chosen)} {_have(chosen)} no SR-IOV: this is a virtual machine, its host makes the VFs and passes "
            "them through whole. Offer them with kind nic"
        )
    if not able:
        return (
            f"{_pfs(chosen)} {_have(chosen)} no SR-IOV: switch it on in the firmware of the card and in the BIOS, or "
            "offer the NICs as a whole with kind nic"
        )
    offered = [pf for pf in able if offers_vfs_of(entry, pf, links.get(pf.pci_address))]
    if not offered:
        return _left_out(entry, able, links)
    return f"{_pfs(offered)} {_have(offered)} no link and no VF: connect it, or create its VFs (vfs)"


def why_no_gpus(entry: GpuMemResource | GpuResource, snapshot: Snapshot) -> str:
    """Return why no GPU of this machine is one that the entry offers."""
    select, gpus = entry.select, snapshot.gpus
    if not gpus and snapshot.gpu_functions:
        there = _listed(gpu.pci_address for gpu in snapshot.gpu_functions)
        return f"the driver lists no GPU, and the PCI bus has {there}: they are kept for guests, or gpu.driver is none"
    if not gpus:
        return "this machine has no GPU"
    lists: tuple[tuple[str, GpuSelect, Sequence[str], Callable[[Gpu], str]], ...] = (
        ("uuids", GpuSelect(uuids=select.uuids), select.uuids, lambda gpu: gpu.uuid),
        ("indexes", GpuSelect(indexes=select.indexes), select.indexes, lambda gpu: str(gpu.index)),
        (
            "pciAddresses",
            GpuSelect(pci_addresses=select.pci_addresses),
            select.pci_addresses,
            lambda gpu: gpu.pci_address,
        ),
        ("models", GpuSelect(models=select.models), select.models, lambda gpu: gpu.name),
    )
    for setting, alone, wanted, value in lists:
        if not selected_gpus(alone, gpus):
            return f"no GPU matches select.{setting} {_listed(wanted)}: there are {_listed(map(value, gpus))}"
    return f"no GPU matches all lists of select: there are {_listed(gpu.uuid for gpu in gpus)}"


def _unmatched_lists(select: PfSelect, pfs: Sequence[Function], snapshot: Snapshot) -> Iterator[str]:
    present = {pf.pci_address for pf in pfs}
    vfs = [function for function in snapshot.functions if function.parent in present]
    if select.pci_addresses and not any(matches(pf.pci_address, select.pci_addresses) for pf in pfs):
        yield _addresses(select.pci_addresses, pfs, vfs)
    if select.netdevs and not any(matches(pf.netdev or "", select.netdevs) for pf in pfs):
        yield _netdevs(select.netdevs, pfs, vfs)
    if select.devices and not any(pf.device in select.devices for pf in pfs):
        yield _devices(select.devices, pfs, vfs)
    rows: tuple[tuple[str, Sequence[str], Callable[[Function], str | None]], ...] = (
        ("vendors", select.vendors, lambda pf: pf.vendor),
        ("drivers", select.drivers, lambda pf: pf.driver),
        ("linkTypes", select.link_types, lambda pf: pf.link_type),
    )
    for setting, wanted, value in rows:
        if wanted and not any(matches(value(pf) or "", wanted) for pf in pfs):
            values = _listed(filter(None, map(value, pfs))) or "none"
            yield f"no NIC matches select.{setting} {_listed(wanted)}: there are {values}"


def _addresses(wanted: Sequence[str], pfs: Sequence[Function], vfs: Sequence[Function]) -> str:
    theirs = [vf for vf in vfs if matches(vf.pci_address, wanted)]
    if theirs:
        indexes = _listed(str(vf.vf_index) for vf in theirs if vf.vf_index is not None)
        return (
            f"select.pciAddresses {_listed(wanted)} names VFs, and it selects PFs: name "
            f"{_listed(vf.parent or '' for vf in theirs)}, and the VFs by select.vfIndexes"
            f"{f' ({indexes})' if indexes else ''}"
        )
    return f"no NIC has an address of select.pciAddresses {_listed(wanted)}: there are {_pfs(pfs)}"


def _netdevs(wanted: Sequence[str], pfs: Sequence[Function], vfs: Sequence[Function]) -> str:
    theirs = [vf for vf in vfs if vf.netdev is not None and matches(vf.netdev, wanted)]
    if theirs:
        parents = _listed(
            pf.netdev or pf.pci_address for pf in pfs if pf.pci_address in {vf.parent for vf in theirs}
        )
        return (
            f"select.netdevs {_listed(wanted)} names VFs, and it selects PFs: name {parents}, and the VFs by "
            "select.vfIndexes"
        )
    names = [pf.netdev for pf in pfs if pf.netdev is not None]
    renamed = [name for name in names if any(_is_renamed(old, name) for old in wanted)]
    what = f"no NIC has a name of select.netdevs {_listed(wanted)}"
    if renamed:
        globs = _listed(f"{old}*" for old in wanted if any(_is_renamed(old, name) for name in names))
        return f"{what}: {_listed(renamed)} may be its new name; {globs} matches both"
    return f"{what}: there are {_listed(names) or 'none with a netdev'}"


def _devices(wanted: Sequence[str], pfs: Sequence[Function], vfs: Sequence[Function]) -> str:
    theirs = [vf for vf in vfs if vf.device in wanted]
    if theirs:
        parents = {vf.parent for vf in theirs}
        ids = _listed(pf.device for pf in pfs if pf.pci_address in parents)
        return (
            f"select.devices {_listed(wanted)} is the ID of VFs, and it selects PFs: write {ids}, that of their PFs, "
            "or leave the list out"
        )
    return f"no NIC has a device ID of select.devices {_listed(wanted)}: there are {_listed(pf.device for pf in pfs)}"


def _without_hca(entry: RdmaResource, chosen: Sequence[Function], links: dict[str, Link]) -> str:
    able = [pf for pf in chosen if pf.rdma is not None]
    if not able:
        return (
            f"{_pfs(chosen)} {_have(chosen)} no RDMA device: load the module of its driver (mlx5_ib, bnxt_re, irdma); "
            "in the exclusive RDMA mode (`rdma system show`) it may be in the namespace of a pod"
        )
    if routed := [pf for pf in able if (link := links.get(pf.pci_address)) and is_routed(entry.select, link)]:
        return f"the default route of the host goes through {_pfs(routed)}, so it is not shared (select.defaultRoute)"
    return f"each selected NIC is slower than select.minSpeedMbps {entry.select.min_speed_mbps}: {_pfs(able)}"


def _left_out(entry: NetworkResource, chosen: Sequence[Function], links: dict[str, Link]) -> str:
    select = entry.select
    routed = [pf for pf in chosen if (link := links.get(pf.pci_address)) and is_routed(select, link)]
    if routed and entry.whole:
        return f"the default route of the host goes through {_pfs(routed)}, and such a NIC is never offered whole"
    of_node = [pf for pf in chosen if (link := links.get(pf.pci_address)) and link.node_address]
    if of_node and entry.whole:
        return f"an address of the Node is on {_pfs(of_node)}, and such a NIC is never offered whole"
    if routed:
        return (
            f"the default route of the host goes through {_pfs(routed)}, so none of its VFs is offered "
            "(select.defaultRoute)"
        )
    if select.rdma is not None and all((pf.rdma is not None) != select.rdma for pf in chosen):
        has = "has no RDMA device" if select.rdma else "has an RDMA device"
        return f"each selected NIC {has} (select.rdma): {_pfs(chosen)}"
    if select.rdma is not None:
        return f"no selected NIC meets both select.rdma and select.minSpeedMbps: {_pfs(chosen)}"
    return f"each selected NIC is slower than select.minSpeedMbps {select.min_speed_mbps}: {_pfs(chosen)}"


def _is_renamed(old: str, name: str) -> bool:
    """Whether a driver may have given a longer name to this netdev: mlx5's have got the port's, ``np0``."""
    return len(old) >= _NEAR_MIN and name != old and name.startswith(old) and not name[len(old)].isdigit()


def _have(pfs: Sequence[Function]) -> str:
    return "has" if len(pfs) == 1 else "have"


def _pfs(pfs: Iterable[Function]) -> str:
    return _listed(f"{pf.pci_address} ({pf.netdev})" if pf.netdev else pf.pci_address for pf in pfs)


def _listed(values: Iterable[str]) -> str:
    return named(dict.fromkeys(values))
