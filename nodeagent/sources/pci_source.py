"""The PCI source: network functions, the links of PFs, and the GPUs on the bus, from sysfs.

``scan`` reads everything once; ``watch`` is the loop that publishes the facts and their changes. An unreadable file
affects one function: it keeps its readable values, or is left out if its class is unknown. ``unreadable`` has a
sentence for each such file.

The link of a PF: representors of VFs and subfunctions share the PF's PCI device. So the link's netdev is the first
in natural order whose ``phys_port_name`` is that of an uplink (``p0``) or absent (the driver does not support it). A
PF with representors only has its uplink in another namespace.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Mapping
from math import inf

from msgspec import Struct
from msgspec.structs import replace

from nodeagent.facts.affinity import path_of
from nodeagent.facts.model import Function, GpuFunction, Link, Rdma
from nodeagent.health.structural import NO_FAULTS, Faults, find_faults, with_hanging
from nodeagent.host.sysfs import SysfsError, SysfsScan, Tree, naturally_sorted
from nodeagent.sources.bounded_scan import BoundedScan, scan_now
from nodeagent.sources.default_route import default_route_netdevs
from nodeagent.sources.nic_identity import NicIdentities
from nodeagent.sources.pf_links import read_links, sweep_links
from nodeagent.sources.pod_values import keep_pod_values
from nodeagent.sources.scan_hints import SWEEP, ScanHint, Sweep, forward

PRODUCT_FILE = "/sys/class/dmi/id/product_name"
_PCI = "/sys/bus/pci/devices"
_VDPA = "/sys/bus/vdpa/devices"

# include/linux/pci_ids.h: Ethernet, InfiniBand, and other network controllers.
_LINK_TYPES = {0x0200: "ethernet", 0x0207: "infiniband", 0x0280: None}
# The same file: VGA and 3D controllers, and NVIDIA. NVSwitches (0x0680) and the audio function (0x0403) are no GPUs.
_GPU_CLASSES = (0x0300, 0x0302)
_NVIDIA = 0x10DE
# include/uapi/linux/if_arp.h
_ARPHRD = {1: "ethernet", 32: "infiniband"}

_ADDRESS = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_UPLINK = re.compile(r"p\d+(s\d+)?")  # as DEVLINK_PORT_FLAVOUR_PHYSICAL is named
_DEVICE_FILE = re.compile(r"/sys/(?:bus/pci/devices/([^/]+)|class/net/([^/]+))/")
_VIRTFN = re.compile(r"virtfn(\d+)")


class PciFacts(Struct, frozen=True):
    """One scan. Functions and GPUs are sorted by PCI address, links by name, sentences alphabetically. ``faults`` are
    the structural faults of the functions, by PCI address. ``macs`` are the permanent MAC addresses by the PCI address
    at which each was seen last, those of missing PFs too."""

    product: str | None = None
    functions: tuple[Function, ...] = ()
    links: tuple[Link, ...] = ()
    unreadable: tuple[str, ...] = ()
    faults: Faults = NO_FAULTS
    gpus: tuple[GpuFunction, ...] = ()
    macs: Mapping[str, str] = {}


def scan(tree: Tree) -> PciFacts:
    """Scan the machine once.

    Raises ``SysfsError`` only if no scan is possible: without ``/sys``, or if the list of PCI devices cannot be
    read. Neither is an empty machine.
    """
    if not tree.exists("/sys"):
        raise SysfsError(f"{tree.root} has no /sys: it is not the root folder of a machine")
    sysfs = SysfsScan(tree)
    listed, gpus = _functions_on_bus(sysfs)
    # PFs first: a PF has the index of each VF, and VFs have its link type.
    index: dict[str, tuple[str, int]] = {}
    for address, (_, names) in listed.items():
        for name in names:
            if match := _VIRTFN.fullmatch(name):
                vf = sysfs.read(tree.link, f"{_PCI}/{address}/{name}")
                if vf is not None:
                    index[vf] = (address, int(match[1]))
    vdpa = _vdpa(sysfs)
    functions: dict[str, Function] = {}
    for address in sorted(listed, key=lambda address: ("physfn" in listed[address][1], address)):
        kind, names = listed[address]
        parent, vf_index = None, None
        if "physfn" in names:
            parent, vf_index = index.get(address, (None, None))
            parent = parent or sysfs.read(tree.link, f"{_PCI}/{address}/physfn")
            if parent is None:
                sysfs.note(f"{address} is a VF, but its PF disappeared during the scan")
                continue
            if parent not in listed:
                sysfs.note(f"{address} is a VF of {parent}, which does not exist")
            elif vf_index is None:
                sysfs.note(f"{address} is a VF of {parent}, which does not list it yet")
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
            sysfs.note(f"{address} disappeared during the scan")
        else:
            functions[address] = function
    ordered = tuple(functions[address] for address in sorted(functions))
    product = sysfs.read(tree.text, PRODUCT_FILE) or ""
    pf_links = read_links(sysfs, ordered, default_route_netdevs(sysfs))
    return PciFacts(product.strip() or None, ordered, pf_links, sysfs.problems(), gpus=gpus)


def scan_once(tree: Tree) -> PciFacts:
    """Scan for a verb: a file that does not answer is left out. Raises ``SysfsError`` and ``Unanswered``."""
    return scan_now("pci", tree, scan, tree)


async def watch(
    tree: Tree,
    hints: Iterable[ScanHint],
    publish: Callable[[PciFacts], None],
    interval_s: float = 30.0,
    sweep: Sweep = SWEEP,
    *,
    before: PciFacts | None = None,
    reads: BoundedScan | None = None,
    nics: NicIdentities | None = None,
) -> None:
    """Publish the facts and their faults now, after each hint and every ``interval_s``, until cancelled.

    After a hint the links are read first, because a lost link is urgent, then the whole machine. Files are read in
    a thread, one reading at a time: drivers may hold a lock for seconds. Each scan is published, a sweep only if it
    differs. Raises the errors of ``scan`` and the hints. ``before`` are the last facts of an earlier watch: with
    them a restarted watch keeps missing functions and the values that a pod took along. ``reads`` of an earlier watch
    keep the files that hang. If all functions of ``before`` are missing, they are those of an earlier agent.
    """
    woken = asyncio.Event()
    try:
        async with asyncio.TaskGroup() as group:
            for hint in hints:
                group.create_task(forward(hint, woken))
            reads = reads or BoundedScan("pci", tree, woken.set)
            scanner = PciScanner(tree, before or PciFacts(), reads, nics or NicIdentities())
            await _watch(scanner, woken, publish, interval_s, sweep)
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None


async def _watch(
    scanner: PciScanner,
    woken: asyncio.Event,
    publish: Callable[[PciFacts], None],
    interval_s: float,
    sweep: Sweep,
) -> None:
    now = asyncio.get_running_loop().time
    scan_at = sweep_until = now()
    scan_by = inf  # changes do not put the scan off beyond this; the first hint since the last scan decides
    while True:
        if now() >= scan_at:
            publish(await scanner.scan())
            scanned_at = now()
            scan_at, scan_by = scanned_at + interval_s, inf
        elif (swept := await scanner.sweep()) is not None:
            publish(swept)
            scan_at = max(scan_at, min(now() + sweep.news_s, scan_by))
        read_at = now()
        next_at = min(scan_at, read_at + sweep.every_s) if read_at < sweep_until else scan_at
        try:
            async with asyncio.timeout_at(next_at):
                await woken.wait()
        except TimeoutError:
            continue
        await asyncio.sleep(max(0.0, read_at + sweep.gap_s - now()))
        woken.clear()
        sweep_until = now() + sweep.for_s
        scan_by = min(scan_by, sweep_until)
        scan_at = min(scan_at, max(now() + sweep.every_s, scanned_at + sweep.scan_gap_s))


class PciScanner:
    """The last facts, and the functions in them that are not missing."""

    def __init__(self, tree: Tree, facts: PciFacts, reads: BoundedScan, nics: NicIdentities) -> None:
        self._tree, self._reads, self._nics = tree, reads, nics
        self._facts = facts
        self._present = tuple(function for function in facts.functions if not function.missing)

    async def scan(self) -> PciFacts:
        await self._nics.start()
        arguments = self._tree, self._facts, self._present, self._nics
        facts, present = await self._reads.run(_scan, *arguments)
        if await self._nics.learn(facts.links):
            facts, present = await self._reads.run(_scan, *arguments)
        self._facts, self._present = facts, present
        return facts

    async def sweep(self) -> PciFacts | None:
        """Return the facts if the links have changed."""
        facts = await self._reads.run(_sweep, self._tree, self._facts, self._present)
        if facts is self._facts:
            return None
        self._facts = facts
        return facts


def _scan(
    tree: Tree, before: PciFacts, present: tuple[Function, ...], nics: NicIdentities
) -> tuple[PciFacts, tuple[Function, ...]]:
    """A scan with its faults, and the functions in it that are not missing."""
    now = scan(tree)
    hanging = hanging_devices(tree, (*before.links, *now.links))
    listed = {function.pci_address: function for function in now.functions}
    # A hanging file hides values of its function, which keeps its last facts.
    listed |= {
        function.pci_address: replace(function, missing=False)
        for function in before.functions
        if function.pci_address in hanging and tree.exists(f"{_PCI}/{function.pci_address}")
    }
    first = not present
    present = keep_pod_values(present, (listed[address] for address in sorted(listed)))
    links = nics.identified(now.links)
    known, macs = nics.known(before.functions, before.macs, present, links, first=first)
    functions, faults = find_faults(present, links, known)
    faults = with_hanging(faults, functions, hanging)
    return replace(now, functions=functions, links=links, faults=faults, macs=macs), present


def _sweep(tree: Tree, before: PciFacts, present: tuple[Function, ...]) -> PciFacts:
    now = sweep_links(tree, present, before.links)
    if now == before.links:
        return before
    functions, faults = find_faults(present, now, before.functions)
    faults = with_hanging(faults, functions, hanging_devices(tree, now))
    return replace(before, links=now, functions=functions, faults=faults)


def hanging_devices(tree: Tree, links: Iterable[Link]) -> set[str]:
    """The PCI addresses of the functions of which a file hangs."""
    by_netdev = {link.netdev: link.pci_address for link in links}
    matches = (_DEVICE_FILE.match(path) for path in tuple(tree.hanging))
    return {match[1] or by_netdev.get(match[2], "") for match in matches if match}


def _functions_on_bus(
    sysfs: SysfsScan,
) -> tuple[dict[str, tuple[int, tuple[str, ...]]], tuple[GpuFunction, ...]]:
    """The class, without the interface byte, and the file names of each network function; and the GPUs.

    The hundreds of other PCI devices cost one read each.
    """
    functions = {}
    gpus = []
    for address in sysfs.tree.names(_PCI):
        code = sysfs.read(sysfs.tree.integer, f"{_PCI}/{address}/class")
        if code is None:
            sysfs.note(f"{address} is left out: it has no class that can be read")
        elif code >> 8 in _LINK_TYPES:
            functions[address] = (code >> 8, sysfs.names(f"{_PCI}/{address}"))
        elif code >> 8 in _GPU_CLASSES and (gpu := _gpu(sysfs, address)) is not None:
            gpus.append(gpu)
    return functions, tuple(gpus)


def _gpu(sysfs: SysfsScan, address: str) -> GpuFunction | None:
    """``None`` for a GPU of another vendor, and for a VF, which is a virtual GPU that NVML does not list."""
    tree, folder = sysfs.tree, f"{_PCI}/{address}"
    is_vf = sysfs.read(tree.link, f"{folder}/physfn") is not None
    if is_vf or sysfs.read(tree.integer, f"{folder}/vendor") != _NVIDIA:
        return None
    driver = sysfs.read(tree.link, f"{folder}/driver")
    numa_node = sysfs.read(tree.integer, f"{folder}/numa_node")
    real = sysfs.read(tree.real, folder)
    known = numa_node is not None and numa_node >= 0
    return GpuFunction(address, driver, numa_node if known else None, path_of(real) if real else ())


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
    """``None`` if the function does not exist any more."""
    tree, folder = sysfs.tree, f"{_PCI}/{address}"
    vendor, device = (sysfs.read(tree.text, f"{folder}/{name}") for name in ("vendor", "device"))
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
    # A virtio device is between the function and its netdev.
    holder = next((f"{folder}/{name}" for name in names if name.startswith("virtio")), folder)
    listed = sysfs.names(f"{holder}/net") if holder != folder or "net" in names else ()
    for name in naturally_sorted(listed):
        port = sysfs.netdev(sysfs.tree.text, name, "phys_port_name") if is_pf else None
        if not port or _UPLINK.fullmatch(port):
            return name
    return None


def _rdma(sysfs: SysfsScan, folder: str, names: tuple[str, ...]) -> Rdma | None:
    """The first RDMA device with a verbs node, and the nodes of its port 1.

    A ConnectX-8 has two: ``mlx5_0``, and ``smi1`` for its management port, which has no verbs node.
    """
    devices = sysfs.names(f"{folder}/infiniband") if "infiniband" in names else ()
    if not devices:
        return None
    verbs = sysfs.names(f"{folder}/infiniband_verbs") if "infiniband_verbs" in names else ()
    mads = sysfs.names(f"{folder}/infiniband_mad") if "infiniband_mad" in names else ()

    def of(device: str, kind: str, node: str) -> bool:
        # Usually there is one RDMA device: then the owner is certain without a read.
        owner = f"{folder}/{kind}/{node}/ibdev"
        return len(devices) == 1 or sysfs.read(sysfs.tree.text, owner) == device

    def first(device: str, kind: str, nodes: tuple[str, ...], prefix: str) -> str | None:
        for node in naturally_sorted(nodes):
            if node.startswith(prefix) and of(device, kind, node):
                return f"/dev/infiniband/{node}"
        return None

    candidates = [
        Rdma(
            device,
            first(device, "infiniband_verbs", verbs, "uverbs"),
            first(device, "infiniband_mad", mads, "umad"),
            first(device, "infiniband_mad", mads, "issm"),
        )
        for device in naturally_sorted(devices)
    ]
    return next((rdma for rdma in candidates if rdma.uverbs), candidates[0])


def _vfio_group(sysfs: SysfsScan, folder: str) -> str | None:
    """The group in ``/dev/vfio/<group>``; without an IOMMU the kernel makes a group with a prefix."""
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
