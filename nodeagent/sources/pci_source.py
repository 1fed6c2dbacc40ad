"""The PCI network functions of a machine and the links of its PFs, read from sysfs.

``scan`` is one look at everything, ``watch`` the loop that states it whenever something has changed. What
cannot be read is contained: that function keeps what could be read, or is left out where not even its class
is known, and ``unreadable`` says so in a sentence.

Which netdev is the link of a PF: representors of VFs and subfunctions share the PF's PCI device, so the
netdev is the first by natural order among those whose ``phys_port_name`` is an uplink's (``p0``) or absent
(the driver has no such notion). A PF that shows nothing but representors has its uplink elsewhere.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from nodeagent.affinity import path_of
from nodeagent.health.structural import NO_FAULTS, Faults, find_faults
from nodeagent.host.sysfs import SysfsError, SysfsScan, Tree, natural_order
from nodeagent.model import Function, Link, Rdma
from nodeagent.sources.default_route import default_route_netdevs
from nodeagent.sources.pf_links import links, read_links
from nodeagent.sources.scan_hints import ScanHint, forward

_PCI = "/sys/bus/pci/devices"
_VDPA = "/sys/bus/vdpa/devices"

# include/linux/pci_ids.h: Ethernet, InfiniBand, and network controllers of no named sort.
_LINK_TYPES = {0x0200: "ethernet", 0x0207: "infiniband", 0x0280: None}
# include/uapi/linux/if_arp.h
_ARPHRD = {1: "ethernet", 32: "infiniband"}

_ADDRESS = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_UPLINK = re.compile(r"p\d+(s\d+)?")  # as DEVLINK_PORT_FLAVOUR_PHYSICAL is named
_VIRTFN = re.compile(r"virtfn(\d+)")


@dataclass(frozen=True, slots=True)
class PciFacts:
    """One scan. Functions are sorted by PCI address, links by name, sentences alphabetically. ``faults`` are the
    structural faults of the functions, by PCI address."""

    product: str | None = None
    functions: tuple[Function, ...] = ()
    links: tuple[Link, ...] = ()
    unreadable: tuple[str, ...] = ()
    faults: Faults = field(default_factory=lambda: NO_FAULTS)


def scan(tree: Tree) -> PciFacts:
    """One look at the machine.

    Raises ``SysfsError`` only where no look is possible: without ``/sys``, or when the list of PCI devices
    cannot be read. That is no empty machine.
    """
    if not tree.exists("/sys"):
        raise SysfsError(f"{tree.root} has no /sys: it is not the root folder of a machine")
    sysfs = SysfsScan(tree)
    found = _network_functions(sysfs)
    # A PF first: it knows the number of each VF, and its link type is theirs.
    index: dict[str, tuple[str, int]] = {}
    for address, (_, names) in found.items():
        for name in names:
            if match := _VIRTFN.fullmatch(name):
                vf = sysfs.read(tree.link, f"{_PCI}/{address}/{name}")
                if vf is not None:
                    index[vf] = (address, int(match[1]))
    vdpa = _vdpa(sysfs)
    functions: dict[str, Function] = {}
    for address in sorted(found, key=lambda address: ("physfn" in found[address][1], address)):
        kind, names = found[address]
        parent, vf_index = None, None
        if "physfn" in names:
            parent, vf_index = index.get(address, (None, None))
            parent = parent or sysfs.read(tree.link, f"{_PCI}/{address}/physfn")
            if parent is None:
                sysfs.note(f"{address} is a VF, but its PF went while it was read")
                continue
            if parent not in found:
                sysfs.note(f"{address} is a VF of {parent}, which is not there")
            elif vf_index is None:
                sysfs.note(f"{address} is a VF of {parent}, which does not list it (yet)")
        link_type = functions[parent].link_type if parent in functions else _LINK_TYPES[kind]
        function = _function(
            sysfs,
            address,
            names,
            vdpa=vdpa.get(address),
            parent=parent,
            vf_index=vf_index,
            link_type=link_type,
        )
        if function is None:
            sysfs.note(f"{address} went while it was read")
        else:
            functions[address] = function
    ordered = tuple(functions[address] for address in sorted(functions))
    product = sysfs.read(tree.text, "/sys/class/dmi/id/product_name") or ""
    stated = read_links(sysfs, ordered, default_route_netdevs(sysfs))
    return PciFacts(product.strip() or None, ordered, stated, sysfs.problems())


def remember(previous: Iterable[Function], now: Iterable[Function]) -> tuple[Function, ...]:
    """``now``, with what the host cannot see while a pod holds the function.

    In the exclusive mode of the RDMA subsystem a pod takes the RDMA device along into its network
    namespace, but a restarted container is given the device nodes again. A change of driver forgets.
    """
    known = {function.pci_address: function for function in previous}
    remembered = []
    for function in now:
        before = known.get(function.pci_address)
        if before is not None and before.driver is not None and before.driver == function.driver:
            # A PF in the middle of its enumeration does not list its VFs yet.
            index = before.vf_index if function.vf_index is None else function.vf_index
            remembered.append(
                replace(
                    function,
                    rdma=function.rdma or before.rdma,
                    link_type=function.link_type or before.link_type,
                    vf_index=index if function.parent == before.parent else function.vf_index,
                )
            )
        else:
            remembered.append(function)
    return tuple(remembered)


@dataclass(frozen=True, slots=True)
class Sweep:
    """How the links are looked at again after a hint.

    The kernel announces one carrier change at once and holds back any further one for up to a second
    (linkwatch), while sysfs shows it immediately: ``for_s`` outlasts that. ``gap_s`` is the least time
    between two looks at the links, ``scan_gap_s`` between two scans, however many hints there are.
    """

    every_s: float = 0.02
    for_s: float = 1.2
    gap_s: float = 0.002
    scan_gap_s: float = 0.1


SWEEP = Sweep()


async def watch(
    tree: Tree,
    hints: Iterable[ScanHint],
    state: Callable[[PciFacts], None],
    interval_s: float = 30.0,
    sweep: Sweep = SWEEP,
    *,
    before: PciFacts | None = None,
) -> None:
    """State the facts and their faults now, after each hint and every ``interval_s``, until cancelled.

    After a hint the links come first, for a lost link is what cannot wait, and the whole machine second.
    Whatever is read is read in a thread: drivers may hold a lock for seconds, and the loop goes on. There
    is one look at a time. Each scan is stated, a sweep only when it differs. Raises what ``scan`` and the
    hints raise. ``before`` is what an earlier watch stated last: with it a restart forgets neither a missing
    function nor what a pod took along.
    """
    woken = asyncio.Event()
    try:
        async with asyncio.TaskGroup() as group:
            for hint in hints:
                group.create_task(forward(hint, woken))
            await _watch(tree, woken, state, interval_s, sweep, before or PciFacts())
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None


async def _watch(
    tree: Tree,
    woken: asyncio.Event,
    state: Callable[[PciFacts], None],
    interval_s: float,
    sweep: Sweep,
    facts: PciFacts,
) -> None:
    now = asyncio.get_running_loop().time
    present = facts.functions
    scan_at = sweep_until = now()
    while True:
        if now() >= scan_at:
            facts, present = await asyncio.to_thread(_scanned, tree, facts, present)
            state(facts)
            scanned_at = now()
            scan_at = scanned_at + interval_s
        else:
            swept = await asyncio.to_thread(_swept, tree, facts, present)
            if swept is not facts:
                facts = swept
                state(facts)
        looked_at = now()
        next_at = min(scan_at, looked_at + sweep.every_s) if looked_at < sweep_until else scan_at
        try:
            async with asyncio.timeout_at(next_at):
                await woken.wait()
        except TimeoutError:
            continue
        await asyncio.sleep(max(0.0, looked_at + sweep.gap_s - now()))
        woken.clear()
        sweep_until = now() + sweep.for_s
        scan_at = min(scan_at, max(now() + sweep.every_s, scanned_at + sweep.scan_gap_s))


def _scanned(
    tree: Tree, before: PciFacts, present: tuple[Function, ...]
) -> tuple[PciFacts, tuple[Function, ...]]:
    """A scan with its faults, and the functions in it that are not missing."""
    now = scan(tree)
    present = remember(present, now.functions)
    functions, faults = find_faults(present, now.links, before.functions)
    return replace(now, functions=functions, faults=faults), present


def _swept(tree: Tree, before: PciFacts, present: tuple[Function, ...]) -> PciFacts:
    now = links(tree, present, before.links)
    if now == before.links:
        return before
    functions, faults = find_faults(present, now, before.functions)
    return replace(before, links=now, functions=functions, faults=faults)


def _network_functions(sysfs: SysfsScan) -> dict[str, tuple[int, tuple[str, ...]]]:
    """Of each network function its class without the interface byte, and the names in its folder.

    Hundreds of other PCI devices cost one read each.
    """
    found = {}
    for address in sysfs.tree.names(_PCI):
        code = sysfs.read(sysfs.tree.integer, f"{_PCI}/{address}/class")
        if code is None:
            sysfs.note(f"{address} is left out: it has no class that can be read")
        elif code >> 8 in _LINK_TYPES:
            found[address] = (code >> 8, sysfs.names(f"{_PCI}/{address}"))
    return found


def _function(
    sysfs: SysfsScan,
    address: str,
    names: tuple[str, ...],
    *,
    vdpa: str | None,
    parent: str | None,
    vf_index: int | None,
    link_type: str | None,
) -> Function | None:
    """``None`` when the function has gone."""
    tree, folder = sysfs.tree, f"{_PCI}/{address}"
    vendor = sysfs.read(tree.text, f"{folder}/vendor")
    device = sysfs.read(tree.text, f"{folder}/device")
    real = sysfs.read(tree.real, folder)
    if vendor is None or device is None or real is None:
        return None
    driver = sysfs.read(tree.link, f"{folder}/driver") if "driver" in names else None
    netdev = _netdev(sysfs, folder, names, is_pf=parent is None)
    if parent is None and netdev is not None:
        link_type = _ARPHRD.get(sysfs.netdev(tree.integer, netdev, "type") or 0, link_type)
    numa_node = sysfs.read(tree.integer, f"{folder}/numa_node") if "numa_node" in names else None
    sriov = "sriov_totalvfs" in names
    return Function(
        pci_address=address,
        vendor=vendor.strip().removeprefix("0x"),
        device=device.strip().removeprefix("0x"),
        driver=driver,
        netdev=netdev,
        link_type=link_type,
        rdma=_rdma(sysfs, folder, names),
        vfio_group=_vfio_group(sysfs, folder) if driver is not None and "vfio" in driver else None,
        vdpa=vdpa,
        numa_node=numa_node if numa_node is not None and numa_node >= 0 else None,
        pci_path=path_of(real),
        parent=parent,
        vf_index=vf_index,
        num_vfs=sysfs.read(tree.integer, f"{folder}/sriov_numvfs") if sriov else None,
        total_vfs=sysfs.read(tree.integer, f"{folder}/sriov_totalvfs") if sriov else None,
    )


def _netdev(sysfs: SysfsScan, folder: str, names: tuple[str, ...], *, is_pf: bool) -> str | None:
    # A virtio device stands between the function and its netdev.
    holder = next((f"{folder}/{name}" for name in names if name.startswith("virtio")), folder)
    for name in sorted(sysfs.names(f"{holder}/net"), key=natural_order):
        port = sysfs.netdev(sysfs.tree.text, name, "phys_port_name") if is_pf else None
        if not port or _UPLINK.fullmatch(port):
            return name
    return None


def _rdma(sysfs: SysfsScan, folder: str, names: tuple[str, ...]) -> Rdma | None:
    """The first RDMA device that has a verbs node, with the nodes of its port 1.

    A ConnectX-8 shows two: ``mlx5_0``, and ``smi1`` for its management port without verbs.
    """
    devices = sysfs.names(f"{folder}/infiniband") if "infiniband" in names else ()
    if not devices:
        return None
    verbs = sysfs.names(f"{folder}/infiniband_verbs") if "infiniband_verbs" in names else ()
    mads = sysfs.names(f"{folder}/infiniband_mad") if "infiniband_mad" in names else ()

    def of(device: str, kind: str, node: str) -> bool:
        # One RDMA device is the rule, and nothing needs to be asked then.
        owner = f"{folder}/{kind}/{node}/ibdev"
        return len(devices) == 1 or sysfs.read(sysfs.tree.text, owner) == device

    def first(device: str, kind: str, nodes: tuple[str, ...], prefix: str) -> str | None:
        for node in sorted(nodes, key=natural_order):
            if node.startswith(prefix) and of(device, kind, node):
                return f"/dev/infiniband/{node}"
        return None

    found = [
        Rdma(
            device,
            first(device, "infiniband_verbs", verbs, "uverbs"),
            first(device, "infiniband_mad", mads, "umad"),
            first(device, "infiniband_mad", mads, "issm"),
        )
        for device in sorted(devices, key=natural_order)
    ]
    return next((rdma for rdma in found if rdma.uverbs), found[0])


def _vfio_group(sysfs: SysfsScan, folder: str) -> str | None:
    """As in ``/dev/vfio/<group>``; without an IOMMU the kernel makes a group of its own and a prefix."""
    group = sysfs.read(sysfs.tree.link, f"{folder}/iommu_group")
    if group is None:
        return None
    name = sysfs.read(sysfs.tree.text, f"/sys/kernel/iommu_groups/{group}/name")
    return f"noiommu-{group}" if name == "vfio-noiommu" else group


def _vdpa(sysfs: SysfsScan) -> dict[str, str]:
    """The vhost character device of each function that has a vDPA device."""
    nodes = {}
    for name in sysfs.names(_VDPA):
        real = sysfs.read(sysfs.tree.real, f"{_VDPA}/{name}") or ""
        above = [part for part in real.split("/") if _ADDRESS.fullmatch(part)]
        for child in sysfs.names(f"{_VDPA}/{name}") if above else ():
            if child.startswith("vhost-vdpa-"):
                nodes[above[-1]] = f"/dev/{child}"
    return nodes
