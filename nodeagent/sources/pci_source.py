"""The PCI source: network functions, the links of PFs, and the GPUs on the bus, from sysfs.

``scan`` reads everything once; ``watch_pci`` is the loop that publishes the facts and their changes. An unreadable file
affects one function: it keeps its readable values, or is left out if its class is unknown. ``unreadable`` has a
sentence for each such file.

The link of a PF: representors of VFs and subfunctions share the PF's PCI device. So the link's netdev is the first
in natural order whose ``phys_port_name`` is that of an uplink (``p0``) or absent (the driver does not support it). A
PF with representors only has its uplink in another namespace.

On InfiniBand the RDMA port decides, because RDMA works without IPoIB, whose netdev is often down: carrier means
that the port is active, and the speed is the port's rate. Without an IPoIB netdev the link has the name of the RDMA
device.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from math import inf

from msgspec import Struct
from msgspec.structs import replace

from nodeagent.base.bounded_calls import Unanswered
from nodeagent.base.supervise import either, end_tasks
from nodeagent.facts.affinity import path_of
from nodeagent.facts.model import INFINIBAND, Function, GpuFunction, Link, Rdma, UnreadValue
from nodeagent.facts.virtual_machine import is_virtual
from nodeagent.health.structural import NO_FAULTS, Faults, find_faults, with_hanging
from nodeagent.host.sysfs import NET, SysfsError, SysfsScan, Tree, naturally_sorted
from nodeagent.sources.bounded_scan import BoundedScan, scan_now
from nodeagent.sources.host_netdevs import HostNetdevs, host_netdevs
from nodeagent.sources.nic_identity import NicIdentities
from nodeagent.sources.scan_hints import SWEEP, ScanHint, Sweep, forward

_PCI = "/sys/bus/pci/devices"
_IFF_UP = 1
_SPEED_UNKNOWN = 0xFFFF_FFFF  # -1 as drivers with an unsigned speed print it
_PORT_ACTIVE = "4"  # of "4: ACTIVE" (enum ib_port_state)
_EFA = "efa"
"""The driver of Amazon's Elastic Fabric Adapter, which has an RDMA port and by design no netdev. It states the port as
active as long as it is bound (``efa_query_port``)."""


def sweep_links(tree: Tree, functions: Iterable[Function], before: Iterable[Link]) -> tuple[Link, ...]:
    """Read the links again, with one small file for each that is as it was, and three for InfiniBand.

    The kernel refuses to read the carrier of a link that is set down (``carrier_show`` in net/core/net-sysfs.c), so a
    carrier that can be read and is that of before means the same administrative state too. A new link, or one whose
    carrier changed, is read in full. The rest, such as operstate, changes with the next ``scan``, which also reports
    unreadable files.
    """
    known = {link.pci_address: link for link in before}
    host = HostNetdevs(
        {link.netdev: link.bonded for link in known.values() if link.default_route},
        {link.netdev for link in known.values() if link.node_address},
    )
    return read_links(SysfsScan(tree), functions, host, known)


def read_links(
    sysfs: SysfsScan,
    functions: Iterable[Function],
    host: HostNetdevs,
    known: dict[str, Link] | None = None,
) -> tuple[Link, ...]:
    """The links of the PFs, sorted by name; with ``known`` (by PCI address) at the cost of ``sweep_links``."""
    read = []
    for pf in functions:
        name = pf.netdev
        if name is None and pf.rdma is not None and _is_by_port(pf):
            name = pf.rdma.device
        if pf.parent is None and name is not None:
            before = known.get(pf.pci_address) if known else None
            link = _link(sysfs, pf, name, host, before)
            if link is not None:
                read.append(link)
    return tuple(sorted(read, key=lambda link: link.netdev))


def _is_by_port(pf: Function) -> bool:
    """Whether the RDMA port tells the state of the link: no netdev does, or that of IPoIB, which may be down."""
    return pf.link_type == INFINIBAND or (pf.driver == _EFA and pf.netdev is None)


def _link(sysfs: SysfsScan, pf: Function, name: str, host: HostNetdevs, before: Link | None) -> Link | None:
    """``None`` if the netdev does not exist any more."""
    tree = sysfs.tree
    port = f"{_PCI}/{pf.pci_address}/infiniband/{pf.rdma.device}/ports/1" if pf.rdma else None
    state = sysfs.read(tree.text, f"{port}/state") if port and _is_by_port(pf) else None
    if state is None and before is not None and before.netdev == name and before.admin_up:
        carrier = _carrier(sysfs, name)
        if carrier is not None and carrier == before.carrier:
            return before
    with sysfs.deciding(pf.pci_address, "default_route"):  # a link has it
        flags = sysfs.netdev(tree.integer, name, "flags") if pf.netdev else _IFF_UP
        if flags is None:
            sysfs.missed(f"{NET}/{name}/flags")
            return None
    admin_up = bool(flags & _IFF_UP)
    if state is not None:
        carrier = state.startswith(_PORT_ACTIVE)
    elif admin_up:
        carrier = _carrier(sysfs, name)
    else:
        carrier = None
    operstate = sysfs.netdev(tree.text, name, "operstate") if pf.netdev else None
    if before is not None and before.netdev == name and before.carrier == carrier:
        if before.admin_up == admin_up and before.operstate == operstate:
            return before
        return replace(before, admin_up=admin_up, operstate=operstate)
    with sysfs.deciding(pf.pci_address, "speed_mbps"):
        speed_mbps = _rate(sysfs, f"{port}/rate") if state is not None else _speed(sysfs, name, admin_up)
    return Link(
        netdev=name,
        pci_address=pf.pci_address,
        mac=sysfs.netdev(tree.text, name, "address") if pf.netdev else None,
        admin_up=admin_up,
        carrier=carrier,
        operstate=operstate,
        speed_mbps=speed_mbps,
        mtu=sysfs.netdev(tree.integer, name, "mtu") if pf.netdev else None,
        default_route=name in host.routed,
        bonded=host.routed.get(name, False),
        node_address=name in host.of_node,
        permanent_mac=before.permanent_mac if before is not None and before.netdev == name else None,
    )


def _carrier(sysfs: SysfsScan, name: str) -> bool | None:
    """``None`` if the kernel does not report it."""
    digit = sysfs.netdev(sysfs.tree.integer, name, "carrier")
    return None if digit is None else digit == 1


def _speed(sysfs: SysfsScan, name: str, admin_up: bool) -> int | None:
    speed = sysfs.netdev(sysfs.tree.integer, name, "speed") if admin_up else None
    return speed if speed is not None and 0 < speed < _SPEED_UNKNOWN else None


def _rate(sysfs: SysfsScan, path: str) -> int | None:
    """The rate in ``400 Gb/sec (4X NDR)`` or ``2.5 Gb/sec (1X SDR)``."""
    match = re.match(r"(\d+(?:\.\d+)?) Gb/sec", sysfs.read(sysfs.tree.text, path) or "")
    return round(float(match[1]) * 1000) if match else None


PRODUCT_FILE = "/sys/class/dmi/id/product_name"
_VENDOR_FILE = "/sys/class/dmi/id/sys_vendor"
_CLOCKS_FILE = "/sys/devices/system/clocksource/clocksource0/available_clocksource"
_PCI = "/sys/bus/pci/devices"
_VDPA = "/sys/bus/vdpa/devices"

# include/linux/pci_ids.h: Ethernet, InfiniBand, and other network controllers.
_LINK_TYPES = {0x0200: "ethernet", 0x0207: INFINIBAND, 0x0280: None}
# The same file: VGA and 3D controllers, and NVIDIA. NVSwitches (0x0680) and the audio function (0x0403) are no GPUs.
_GPU_CLASSES = (0x0300, 0x0302)
_NVIDIA = 0x10DE
# include/uapi/linux/if_arp.h
_ARPHRD = {1: "ethernet", 32: INFINIBAND}

_ADDRESS = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_UPLINK = re.compile(r"p\d+(s\d+)?")  # as DEVLINK_PORT_FLAVOUR_PHYSICAL is named
_DEVICE_FILE = re.compile(r"/sys/(?:bus/pci/devices/([^/]+)|class/net/([^/]+))/")
_VIRTFN = re.compile(r"virtfn(\d+)")


class PciFacts(Struct, frozen=True):
    """One scan. Functions and GPUs are sorted by PCI address, links by name, sentences alphabetically. ``faults`` are
    the structural faults of the functions, by PCI address. ``identities`` are those of the PFs, missing ones too,
    by the PCI address at which each was seen last. ``unread``: see ``Snapshot``."""

    product: str | None = None
    functions: tuple[Function, ...] = ()
    links: tuple[Link, ...] = ()
    unreadable: tuple[str, ...] = ()
    faults: Faults = NO_FAULTS
    gpus: tuple[GpuFunction, ...] = ()
    identities: Mapping[str, str] = {}
    unread: tuple[UnreadValue, ...] = ()
    guest: bool = False


def scan(tree: Tree, node_addresses: Collection[str] = ()) -> PciFacts:
    """Scan the machine once. ``node_addresses``: see ``host_netdevs``.

    Raises ``SysfsError`` only if no scan is possible: without ``/sys``, or if the list of PCI devices cannot be
    read. Neither is an empty machine.
    """
    if not tree.exists("/sys"):
        raise SysfsError(f"{tree.root} has no /sys: it is not the root folder of a machine")
    sysfs = SysfsScan(tree)
    listed, gpus = _functions_on_bus(sysfs)
    index = _listed_vfs(sysfs, listed)
    vfs = index.keys() | {address for address, (_, names) in listed.items() if "physfn" in names}
    vdpa = _vdpa(sysfs)
    functions: dict[str, Function] = {}
    # PFs first: VFs have the link type of theirs.
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
    product, guest = _product(sysfs)
    with sysfs.deciding("", "default_route"):
        host = host_netdevs(sysfs, node_addresses)
    pf_links = read_links(sysfs, ordered, host)
    return PciFacts(
        product=product,
        guest=guest,
        functions=ordered,
        links=pf_links,
        unreadable=sysfs.unreadable(),
        gpus=gpus,
        unread=tuple(UnreadValue(*one) for one in sorted(sysfs.unread) if one[0] not in vfs),
    )


def _product(sysfs: SysfsScan) -> tuple[str | None, bool]:
    """Return the product name of the machine, and whether it is a virtual one."""
    with sysfs.deciding("", "product"):
        product = (sysfs.read(sysfs.tree.text, PRODUCT_FILE) or "").strip()
    vendor, clocks = (sysfs.read(sysfs.tree.text, path) for path in (_VENDOR_FILE, _CLOCKS_FILE))
    return product or None, is_virtual(vendor, product, clocks)


def _listed_vfs(
    sysfs: SysfsScan, listed: Mapping[str, tuple[int, Collection[str]]]
) -> dict[str, tuple[str, int]]:
    """Return the PF and the index of each VF that a PF lists, by the VF's PCI address."""
    index: dict[str, tuple[str, int]] = {}
    for address, (_, names) in listed.items():
        for name in names:
            if match := _VIRTFN.fullmatch(name):
                vf = sysfs.read(sysfs.tree.link, f"{_PCI}/{address}/{name}")
                if vf is not None:
                    index[vf] = (address, int(match[1]))
    return index


def scan_once(tree: Tree) -> PciFacts:
    """Scan for a verb: a file that does not answer is left out. Raises ``SysfsError`` and ``Unanswered``."""
    return scan_now("pci", tree, scan, tree)


async def watch_pci(
    tree: Tree,
    hints: Iterable[ScanHint],
    publish: Callable[[PciFacts], None],
    interval_s: float = 30.0,
    sweep: Sweep = SWEEP,
    *,
    before: PciFacts | None = None,
    reads: BoundedScan | None = None,
    nics: NicIdentities | None = None,
    node_addresses: Collection[str] = (),
) -> None:
    """Publish the facts and their faults now, after each hint and every ``interval_s``, until cancelled.

    After a hint the links are read first, because a lost link is urgent, then the whole machine. A hint during a scan
    does not wait for its end: 4,000 VFs take seconds. Files are read in threads: drivers may hold a lock for seconds.
    Each scan is published, a sweep only if it differs. Raises the errors of ``scan`` and the hints.

    ``before`` are the last facts of an earlier watch: with them a restarted watch keeps missing functions and the
    values that a pod took along. If all functions of ``before`` are missing, they are those of an earlier agent.
    ``reads`` of an earlier watch keep the files that hang. ``node_addresses``: see ``host_netdevs``.
    """
    woken = asyncio.Event()
    try:
        async with asyncio.TaskGroup() as group:
            for hint in hints:
                group.create_task(forward(hint, woken))
            reads = reads or BoundedScan("pci", tree, woken.set)
            sweeps = BoundedScan("links", tree, woken.set)
            facts, nics = before or PciFacts(), nics or NicIdentities()
            scanner = PciScanner(tree, facts, reads, sweeps, nics, node_addresses)
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
            await _scan_and_sweep(scanner, woken, publish, sweep)
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


async def _scan_and_sweep(
    scanner: PciScanner, woken: asyncio.Event, publish: Callable[[PciFacts], None], sweep: Sweep
) -> None:
    """Publish a scan. From the first hint meanwhile the links are read beside it, and again after it: the scan may
    have read a link before its change."""
    scanning = asyncio.create_task(scanner.scan())
    try:
        await either(asyncio.wait((scanning,)), woken.wait())
        hinted = woken.is_set()
        while not scanning.done():
            with suppress(Unanswered):  # the scan leaves that file out
                if (swept := await scanner.sweep()) is not None:
                    publish(swept)
            await asyncio.wait((scanning,), timeout=sweep.every_s)
        facts = await scanning
        publish((hinted and await scanner.sweep()) or facts)
    finally:
        await end_tasks((scanning,))


class PciScanner:
    """The last facts, and the functions in them that are not missing."""

    def __init__(
        self,
        tree: Tree,
        facts: PciFacts,
        reads: BoundedScan,
        sweeps: BoundedScan,
        nics: NicIdentities,
        node_addresses: Collection[str] = (),
    ) -> None:
        self._tree, self._reads, self._sweeps, self._nics = tree, reads, sweeps, nics
        self._node_addresses = node_addresses
        self._facts = facts
        self._present = tuple(function for function in facts.functions if not function.missing)

    async def scan(self) -> PciFacts:
        await self._nics.start()
        arguments = self._tree, self._facts, self._present, self._nics, self._node_addresses
        facts, present = await self._reads.run(_scan, *arguments)
        if await self._nics.learn(facts.links):
            facts, present = await self._reads.run(_scan, *arguments)
        self._facts, self._present = facts, present
        return facts

    async def sweep(self) -> PciFacts | None:
        """Return the facts if the links have changed."""
        before = self._facts
        facts = await self._sweeps.run(_sweep, self._tree, before, self._present)
        if facts is before or self._facts is not before:  # a scan has ended meanwhile
            return None
        self._facts = facts
        return facts


_OF_LINK = ("default_route", "speed_mbps")
"""Fields of ``Link``; the others are those of ``Function``."""


def _scan(
    tree: Tree,
    before: PciFacts,
    present: tuple[Function, ...],
    nics: NicIdentities,
    node_addresses: Collection[str],
) -> tuple[PciFacts, tuple[Function, ...]]:
    """A scan with its faults, and the functions in it that are not missing."""
    now = scan(tree, node_addresses)
    hanging = hanging_devices(tree, (*before.links, *now.links))
    listed = {function.pci_address: function for function in now.functions}
    # A hanging file hides values of its function, which keeps its last facts.
    listed |= {
        function.pci_address: replace(function, missing=False)
        for function in before.functions
        if function.pci_address in hanging and tree.exists(f"{_PCI}/{function.pci_address}")
    }
    listed, unread = _with_last_values(tree, listed, now.unread, before)
    first = not present
    present = keep_pod_values(present, (listed[address] for address in sorted(listed)))
    links = nics.identified(now.links)
    known, identities = nics.known(before.functions, before.identities, present, links, first=first)
    functions, faults = find_faults(present, links, known)
    faults = with_hanging(faults, functions, hanging)
    facts = replace(
        now, functions=functions, links=links, faults=faults, identities=identities, unread=unread
    )
    return facts, present


def _with_last_values(
    tree: Tree, listed: dict[str, Function], unread: Iterable[UnreadValue], before: PciFacts
) -> tuple[dict[str, Function], tuple[UnreadValue, ...]]:
    """The functions, each with its last known value of what cannot be read now, and the values that are not known."""
    unknown = {(one.pci_address, one.value) for one in before.unread}
    known = {function.pci_address: function for function in before.functions}
    listed = dict(listed)
    left = []
    for one in unread:
        address = one.pci_address
        last = known.get(address)
        if (
            last is None
            or one.value in _OF_LINK
            or not unknown.isdisjoint({(address, ""), (address, one.value)})
        ):
            left.append(one)
        elif (now := listed.get(address)) is not None and one.value:
            listed[address] = replace(now, **{one.value: getattr(last, one.value)})
        elif tree.exists(f"{_PCI}/{address}"):
            listed[address] = replace(last, missing=False)
    return listed, tuple(left)


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
        path = f"{_PCI}/{address}/class"
        code = sysfs.read(sysfs.tree.integer, path)
        if code is None:
            sysfs.note(f"{address} is left out: it has no class that can be read")
            sysfs.unread.add((address, "", path))
        elif code >> 8 in _LINK_TYPES:
            with sysfs.deciding(address, ""):
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
    with sysfs.deciding(address, ""):
        vendor, device = (sysfs.read(tree.text, f"{folder}/{name}") for name in ("vendor", "device"))
        real = sysfs.read(tree.real, folder)
        if vendor is None or device is None or real is None:
            sysfs.missed(folder)
            return None
    with sysfs.deciding(address, "driver"):
        driver = sysfs.read(tree.link, f"{folder}/driver") if "driver" in names else None
    with sysfs.deciding(address, "netdev"):
        netdev = _netdev(sysfs, folder, names, is_pf=parent is None)
    if parent is None and netdev is not None:
        with sysfs.deciding(address, "link_type"):
            link_type = _ARPHRD.get(sysfs.netdev(tree.integer, netdev, "type") or 0, link_type)
    with sysfs.deciding(address, "rdma"):
        rdma = _rdma(sysfs, folder, names)
    if rdma is not None and link_type == INFINIBAND:
        rdma = _of_infiniband(sysfs, folder, rdma, is_vf=parent is not None)
    numa_node = sysfs.read(tree.integer, f"{folder}/numa_node") if "numa_node" in names else None
    vfs = {name: _vf_number(sysfs, address, name, names) for name in ("num_vfs", "total_vfs")}
    return Function(
        pci_address=address,
        vendor=vendor.strip().removeprefix("0x"),
        device=device.strip().removeprefix("0x"),
        driver=driver,
        netdev=netdev,
        link_type=link_type,
        rdma=rdma,
        vfio_group=_vfio_group(sysfs, folder) if driver is not None and "vfio" in driver else None,
        vdpa=vdpa,
        numa_node=numa_node if numa_node is not None and numa_node >= 0 else None,
        pci_path=path_of(real),
        parent=parent,
        vf_index=vf_index,
        num_vfs=vfs["num_vfs"],
        total_vfs=vfs["total_vfs"],
        mac=sysfs.netdev(tree.text, netdev, "address") if parent is not None and netdev is not None else None,
    )


def _vf_number(sysfs: SysfsScan, address: str, value: str, names: tuple[str, ...]) -> int | None:
    """The number in ``sriov_numvfs`` or ``sriov_totalvfs``. A function that is able to have VFs has both."""
    if "sriov_totalvfs" not in names:
        return None
    path = f"{_PCI}/{address}/sriov_{value.replace('_', '')}"
    number = sysfs.read(sysfs.tree.integer, path)
    if number is None:
        sysfs.unread.add((address, value, path))
    return number


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


def _of_infiniband(sysfs: SysfsScan, folder: str, rdma: Rdma, *, is_vf: bool) -> Rdma:
    """With its node GUID, and for a VF with the state of its port."""
    own, tree = f"{folder}/infiniband/{rdma.device}", sysfs.tree
    guid = sysfs.read(tree.text, f"{own}/node_guid")
    port = sysfs.read(tree.text, f"{own}/ports/1/state") if is_vf else None
    active = None if port is None else port.startswith(_PORT_ACTIVE)
    return replace(rdma, node_guid=guid.strip() if guid else None, port_active=active)


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


def keep_pod_values(previous: Iterable[Function], now: Iterable[Function]) -> tuple[Function, ...]:
    """``now``, with the values that the host cannot read while a pod holds the function.

    In the exclusive mode of the RDMA subsystem the RDMA device moves into the pod's network namespace, but a
    restarted container needs its device nodes again. A change of driver drops the old values.
    """
    known = {function.pci_address: function for function in previous}
    merged = []
    for function in now:
        before = known.get(function.pci_address)
        if before is not None and before.driver is not None and before.driver == function.driver:
            # During enumeration a PF does not list its VFs yet.
            index = before.vf_index if function.vf_index is None else function.vf_index
            merged.append(
                replace(
                    function,
                    rdma=function.rdma or before.rdma,
                    link_type=function.link_type or before.link_type,
                    vf_index=index if function.parent == before.parent else function.vf_index,
                )
            )
        else:
            merged.append(function)
    return tuple(merged)
