"""Check NICs: SR-IOV and VFs against the configuration, IOMMU, RDMA, network namespace, LLDP in firmware."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial

from msgspec.structs import replace

from nodeagent.agent_config import Config
from nodeagent.base.bounded_calls import in_thread
from nodeagent.base.stored_file import StoredFile
from nodeagent.config.formats import index_range
from nodeagent.doctor.finding import FACT, Advice, Finding, Topic, count, shortened_list
from nodeagent.doctor.reads import Target, small_text
from nodeagent.facts.card_identity import lacks_guid
from nodeagent.facts.model import Function
from nodeagent.health.link_modes import ports_in_another_mode
from nodeagent.health.rules import NIC_RULES
from nodeagent.health.structural import find_faults
from nodeagent.host.ethtool import Ethtool, EthtoolError
from nodeagent.host.netlink.addresses import Addresses
from nodeagent.host.netlink.kernel_events import NetlinkError
from nodeagent.host.netlink.netdevs import Netdevs
from nodeagent.host.rdma_mode import rdma_exclusive
from nodeagent.host.sriov import SriovError, VfNetlink
from nodeagent.host.sysfs import NET, SysfsError, Tree
from nodeagent.kinds.hardware_selection import offers_vfs_of, selected_pf
from nodeagent.kinds.rail_numbers import Numbering
from nodeagent.kinds.resource_settings import (
    hca_entries,
    network_entries,
    vf_entries,
)
from nodeagent.kinds.vf import suits
from nodeagent.kubelet import slice_sizes
from nodeagent.kubelet.rail_memory import RailMemory
from nodeagent.sources.host_paths import RDMA_CM
from nodeagent.sources.machine_access import permanent_macs
from nodeagent.sources.nic_identity import NicIdentities, with_permanent_macs
from nodeagent.sources.pci_source import PciFacts, scan

NICS_TOPIC = Topic(
    "nics",
    "NICS",
    {
        "sriov": FACT,
        "sriov_absent": Advice(
            "VFs need a PF with an SR-IOV capability. Firmware may hide it.",
            "enable SR-IOV in the machine's firmware and in the NIC's (mlxconfig: SRIOV_EN=1, NUM_OF_VFS) "
            "and reboot; without VFs offer the NICs as a whole, with `kind: nic` in place of `kind: vf` in `resources`",
        ),
        "sriov_guest": Advice(
            "This is a virtual machine: its NICs are functions that the host passes through, and VFs are made on the "
            "host. Nothing in the guest changes the card's firmware.",
            "offer the NICs as a whole: `kind: nic` in place of `kind: vf` in `resources` of the pool of virtual "
            "machines (docs/rails.md). VFs, link modes and the firmware's LLDP agent are the host's",
        ),
        "vfs_none": Advice(
            "The configuration offers VFs, but none exist: this node does not have the resource.",
            "set PFs and a count under `vfs` and run `nodeagent vfs apply`, or create the VFs with the tool "
            "that sets up this host",
        ),
        "vfs_differ": Advice(
            "Pods can use the existing VFs, not the configured number.",
            "run `nodeagent vfs apply`; it names the VFs in use where it cannot change their number",
        ),
        "vfs_too_many": Advice(
            "The device does not support this number of VFs: `nodeagent vfs apply` always fails on it.",
            "lower `count`, or raise the number in the NIC's firmware (mlxconfig: NUM_OF_VFS) and reboot",
        ),
        "vf_unbound": Advice(
            "A VF without a driver is Unhealthy and is not allocated.",
            "load the VF driver on the host (mlx5_core, iavf, vfio-pci), or set `driver` under `vfs`",
        ),
        "vf_guid_missing": Advice(
            "An InfiniBand VF without a GUID is Unhealthy: it has no address in the subnet and reaches no peer. mlx5 "
            "makes VFs without GUID, and with the link state disable. Where all VFs that are offered of a PF lack one, "
            "it must be fixed.",
            "set `guid: auto` under `vfs` and run `nodeagent vfs apply`; where a CNI plugin gives the VF of each pod a "
            "GUID, set `health.vfGuids: fromCni`",
        ),
        "vf_link_disabled": Advice(
            "The PF keeps the link of these VFs down, whatever the cable does.",
            "set `linkState: auto` under `vfs` and run `nodeagent vfs apply`, or: ip link set PF vf N state auto",
        ),
        "vf_port_inactive": Advice(
            "The port of the PF is active and that of the VF is not: its link state is disable, or the subnet manager "
            "does not know the VF.",
            "set `linkState: auto` under `vfs` and run `nodeagent vfs apply`, or without an IPoIB netdev of the PF "
            "write Follow to sriov/N/policy below its /sys/class/infiniband/mlx5_N/device; let opensm allow virtual "
            "ports (virt_enabled 2)",
        ),
        "vf_mac_missing": Advice(
            "A VF with the MAC address of zeros sends no frame that a switch forwards.",
            "ip link set PF vf N mac ADDRESS, or let the driver of the VF make one: bind it again",
        ),
        "default_route": Advice(
            "The NIC with the host's default route is not offered, and its VFs are never changed: a pod "
            "could take the node's own network.",
            "nothing; to offer this NIC, move the default route to another one; where all NICs are in the host's bond, "
            "make their VFs when the host starts, and set `select.defaultRoute: bond`",
        ),
        "rdma_missing": Advice(
            "Without an RDMA device a NIC supports TCP only, and no GPUDirect RDMA.",
            "load mlx5_ib (or the driver's own RDMA module) and ib_uverbs on the host",
        ),
        "netdev_absent": Advice(
            "The EEPROM of the transceiver, FEC, pauses and the statistics of kernel and driver are read by the "
            "netdev. Of a NIC without one they are not measured, and the rules on them are unknown, which is not "
            "quiet. The temperature of the module is read from the driver's hardware monitor, which mlx5 has.",
            "InfiniBand: load ib_ipoib, and leave the netdev on the host; EFA has none by design, and its driver "
            "states the port as active whatever the network does: watch nodeagent_rdma_path_events_total",
        ),
        "rdma_lag": FACT,
        "rdma_cm_missing": Advice(
            "Containers with VFs or shares of HCAs get no /dev/infiniband/rdma_cm, because the host has none: programs "
            "that connect by rdma_cm (ib_write_bw -R, NVMe over RDMA, Lustre, UCX) fail.",
            "modprobe rdma_ucm on the host, and name it in /etc/modules-load.d",
        ),
        "rdma_exclusive": Advice(
            "In this mode an RDMA device is in one network namespace alone, so no container can open that of the host. "
            "The agent offers no share of an HCA.",
            "options ib_core netns_mode=1 in /etc/modprobe.d, and reboot the node: `rdma system set netns shared` ends "
            "with EBUSY while pods have network namespaces; or offer VFs, each of which has a device of its own",
        ),
        "link_mode_differs": Advice(
            "A port with the wrong mode in its firmware never has a link with its switch. The mode moves with the card "
            "to another machine.",
            "set LINK_TYPE_P1 (of the second port LINK_TYPE_P2) with mlxconfig: 1 is InfiniBand, 2 Ethernet; then "
            "mlxfwreset, or reboot",
        ),
        "iommu": FACT,
        "iommu_off": Advice(
            "vfio-pci passes a device to a program only in an IOMMU group.",
            "enable VT-d or AMD-Vi in the firmware and boot with intel_iommu=on (AMD: nothing) and iommu=pt",
        ),
        "iommu_translated": Advice(
            "Every DMA of these NICs is translated by page tables. This costs bandwidth and can prevent "
            "GPUDirect; VFs in VMs need the IOMMU, but not this mode.",
            "boot with iommu=pt",
        ),
        "network_namespace": Advice(
            "Links, LLDP and VF settings are read in the network namespace of this process, and these NICs "
            "are in another one.",
            "run with hostNetwork: true",
        ),
        "firmware_lldp": Advice(
            "The NIC's own LLDP agent consumes the frames of the switch before the host receives them, and "
            "a second LLDP sender on the port confuses DCBX on some switches.",
            "disable it: ethtool --set-priv-flags NETDEV disable-fw-lldp on (i40e), fw-lldp-agent off (ice)",
        ),
        "firmware_lldp_unknown": Advice(
            "Firmware with its own LLDP agent can consume the frames, and is a second sender beside an "
            "agent with lldp.transmit. This firmware does not report whether its LLDP agent runs.",
            "where a link receives no LLDP: mlxconfig -d ADDRESS query (LLDP_NB_RX_MODE, LLDP_NB_TX_MODE "
            "and LLDP_NB_DCBX should be off), niccli for bnxt_en",
        ),
        "rails_share_subnet": Advice(
            "Several rails are in one IPv4 subnet, and the kernel answers ARP for the address of one on another: "
            "traffic to a dead rail arrives on a living one, and takes its bandwidth.",
            "set net.ipv4.conf.all.arp_ignore=1 and arp_announce=2 on the host, or give each rail a subnet of its own",
        ),
        "nic_unreadable": Advice(
            "A value of a device that cannot be read counts as absent.",
            "check the kernel log of the device; hanging firmware is a common cause",
        ),
    },
)

_FLAG = {"i40e": ("disable-fw-lldp", False), "ice": ("fw-lldp-agent", True)}
"""By driver: the private flag, and its value while the firmware's LLDP agent runs."""
_MUTE = ("mlx5_core", "bnxt_en")
_RDMA_DRIVERS = ("mlx5_core", "mlx4_core")
_LAG = "mlx5_bond_"
"""The beginning of the name of a RoCE LAG's RDMA device (drivers/infiniband/hw/mlx5/main.c)."""


@dataclass(frozen=True, slots=True)
class NicFacts:
    """``namespace_netdevs``: netdevs in the network namespace of this process; ``None`` for another machine.
    ``domains``: type of each PF's IOMMU domain, ``identity`` or ``DMA-FQ``. ``flags``: private flags by netdev.
    ``masters``: the bond of each netdev that is in one. ``rdma_cm``: the host has /dev/infiniband/rdma_cm.
    ``rdma_exclusive``: the kernel is in the exclusive RDMA mode.
    ``shared_subnets``: the netdevs of PFs in one IPv4 subnet that answer ARP for each other. ``disabled_vfs``: the VFs
    that have the link state disable at their PF.
    """

    facts: PciFacts
    iommu_groups: int = 0
    domains: Mapping[str, str] = field(default_factory=dict)
    flags: Mapping[str, Mapping[str, bool]] = field(default_factory=dict)
    namespace_netdevs: frozenset[str] | None = None
    shared_subnets: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    disabled_vfs: tuple[str, ...] = ()
    masters: Mapping[str, str] = field(default_factory=dict)
    rdma_cm: bool = True
    rdma_exclusive: bool = False

    @property
    def pfs(self) -> list[Function]:
        return [function for function in self.facts.functions if function.parent is None]

    @property
    def hosted(self) -> list[Function]:
        """The functions that the host of this virtual machine has passed through: their firmware is the host's."""
        return [pf for pf in self.pfs if self.facts.guest and pf.total_vfs is None]


async def read_nics(target: Target) -> NicFacts:
    tree = target.tree
    facts = scan(tree)
    pfs = [function for function in facts.functions if function.parent is None]
    return NicFacts(
        facts=facts,
        iommu_groups=len(tree.names("/sys/kernel/iommu_groups")),
        domains={
            pf.pci_address: kind
            for pf in pfs
            if (kind := small_text(tree, f"/sys/bus/pci/devices/{pf.pci_address}/iommu_group/type"))
        },
        flags={} if target.recorded else _flags(pfs),
        namespace_netdevs=None if target.recorded else _here(),
        shared_subnets={} if target.recorded else _shared_subnets(tree, {pf.netdev for pf in pfs}),
        masters={
            pf.netdev: master
            for pf in pfs
            if pf.netdev is not None and (master := tree.link(f"{NET}/{pf.netdev}/master"))
        },
        rdma_cm=tree.exists(RDMA_CM),
        rdma_exclusive=rdma_exclusive(tree),
        # pyroute2 has an event loop of its own.
        disabled_vfs=() if target.recorded else await in_thread(partial(_disabled_vfs, tree, facts)),
    )


def _disabled_vfs(tree: Tree, facts: PciFacts) -> tuple[str, ...]:
    found = []
    with VfNetlink(tree) as netlink:
        for pf in facts.functions:
            vfs = [vf for vf in facts.functions if vf.parent == pf.pci_address]
            if not vfs or pf.netdev is None:
                continue
            try:
                settings = netlink.vfs(pf.netdev)
            except (SriovError, SysfsError):
                continue  # in another network namespace; a finding of its own
            disabled = {index for index, of in settings.items() if of.link_state == "disable"}
            found += [vf.pci_address for vf in vfs if vf.vf_index in disabled]
    return tuple(found)


def _shared_subnets(tree: Tree, netdevs: Collection[str | None]) -> dict[str, tuple[str, ...]]:
    """Of the netdevs whose arp_ignore is 0; the greater value of `all` and the netdev counts."""
    try:
        with Netdevs() as links, Addresses() as addresses:
            names, of = {netdev.ifindex: netdev.name for netdev in links.read()}, addresses.read()
    except NetlinkError:
        return {}
    found: dict[str, set[str]] = {}
    for ifindex, interfaces in of.items():
        name = names.get(ifindex, "")
        strict = (
            small_text(tree, f"/proc/sys/net/ipv4/conf/{one}/arp_ignore") or "0" for one in ("all", name)
        )
        if name in netdevs and all(value == "0" for value in strict):
            for one in interfaces:
                if one.version == 4:
                    found.setdefault(str(one.network), set()).add(name)
    return {subnet: tuple(sorted(of)) for subnet, of in found.items() if len(of) > 1}


def nic_findings(nics: NicFacts, config: Config, heard: Collection[str] = ()) -> Iterator[Finding]:
    """``heard``: links that receive LLDP, whose firmware therefore consumes no frames."""
    yield from _sriov(nics, config)
    yield from _of_config(nics, config)
    yield from _unreachable(nics, config)
    yield from _iommu(nics, config)
    yield from _hardware(nics)
    yield from _rdma(nics, config)
    if config.lldp.source != "none":
        yield from _firmware(nics, config, heard)
    for sentence in nics.facts.unreadable:
        yield NICS_TOPIC.warn("nic_unreadable", sentence)


def _sriov(nics: NicFacts, config: Config) -> Iterator[Finding]:
    able = [pf for pf in nics.pfs if pf.total_vfs]
    wants = bool(vf_entries(config.resources))
    if not able:
        if wants:
            what = f"none of {count(len(nics.pfs), 'PF')} has an SR-IOV capability"
            if nics.facts.guest:
                yield NICS_TOPIC.note("sriov_guest", "; ".join((what, *_whole(nics))))
            else:
                yield NICS_TOPIC.note("sriov_absent", what)
        return
    made, possible = sum(pf.num_vfs or 0 for pf in able), sum(pf.total_vfs or 0 for pf in able)
    yield NICS_TOPIC.ok(
        "sriov", f"{len(able)} of {count(len(nics.pfs), 'PF')} have SR-IOV, {made} of {possible} VFs exist"
    )
    if wants and not made:
        yield NICS_TOPIC.warn("vfs_none", f"no VFs on {shortened_list(_names(able))}")


def _whole(nics: NicFacts) -> Iterator[str]:
    """Yield which NICs of a guest can be offered as a whole, and which the guest needs itself."""
    routed = {link.pci_address for link in nics.facts.links if link.default_route}
    free, kept = ([pf for pf in nics.hosted if (pf.pci_address in routed) is own] for own in (False, True))
    if free:
        yield f"as a whole can be offered: {shortened_list(_names(free))}"
    if kept:
        yield f"the host keeps {shortened_list(_names(kept))} (default route)"


def _of_config(nics: NicFacts, config: Config) -> Iterator[Finding]:
    routed = {link.pci_address for link in nics.facts.links if link.default_route}
    entries = network_entries(config.resources)
    whole = any(entry.whole for entry in entries)
    links = {link.pci_address: link for link in nics.facts.links}
    left = [
        pf
        for pf in nics.pfs
        if pf.pci_address in routed
        and (pf.total_vfs or whole)
        and not any(offers_vfs_of(entry, pf, links[pf.pci_address]) for entry in entries)
    ]
    if left:
        yield NICS_TOPIC.note(
            "default_route", f"{shortened_list(_names(left))} has the default route and is not offered"
        )
    too_many: dict[str, None] = {}
    differ: dict[str, None] = {}
    for entry in config.vfs:
        for pf in nics.pfs:
            if pf.pci_address in routed or pf.total_vfs is None or not selected_pf(entry.select, pf):
                continue
            name = pf.netdev or pf.pci_address
            if entry.count > pf.total_vfs:
                too_many[f"{name} supports {pf.total_vfs} VFs, {entry.count} are configured"] = None
            elif pf.num_vfs is not None and pf.num_vfs != entry.count:
                differ[f"{name} has {pf.num_vfs}, {entry.count} are configured"] = None
    for sentence in too_many:
        yield NICS_TOPIC.fix("vfs_too_many", sentence)
    if differ:
        yield NICS_TOPIC.warn("vfs_differ", shortened_list(list(differ)))
    unbound = [vf for vf in nics.facts.functions if vf.parent and vf.driver is None]
    if unbound:
        yield NICS_TOPIC.warn(
            "vf_unbound", f"{count(len(unbound), 'VF')} without a driver: {shortened_list(_names(unbound))}"
        )


def _unreachable(nics: NicFacts, config: Config) -> Iterator[Finding]:
    """VFs that have a driver and reach no peer."""
    vfs = [vf for vf in nics.facts.functions if vf.parent is not None]
    without = [vf for vf in vfs if lacks_guid(vf)]
    disabled = [vf for vf in vfs if vf.pci_address in nics.disabled_vfs and vf not in without]
    active = {link.pci_address for link in nics.facts.links if link.carrier}
    inactive = [
        vf
        for vf in vfs
        if vf.rdma is not None
        and vf.rdma.port_active is False
        and vf.parent in active
        and vf not in (*without, *disabled)
    ]
    nameless = [vf for vf in vfs if vf.mac is not None and not vf.mac.strip("0:")]
    if without and config.health.vf_guids == "required":
        say = NICS_TOPIC.fix if _offers_none_with_guid(nics, config, vfs) else NICS_TOPIC.warn
        yield say("vf_guid_missing", _vfs_are(without, "without a GUID"))
    if disabled:
        yield NICS_TOPIC.warn("vf_link_disabled", _vfs_are(disabled, "with the link state disable"))
    if inactive:
        yield NICS_TOPIC.warn("vf_port_inactive", _vfs_are(inactive, "with a port that is not active"))
    if nameless:
        yield NICS_TOPIC.warn("vf_mac_missing", _vfs_are(nameless, "without a MAC address"))


def _offers_none_with_guid(nics: NicFacts, config: Config, vfs: list[Function]) -> bool:
    """Whether an entry offers the VFs of a PF, and each of them with a driver lacks a GUID: no pod gets one."""
    links = {link.pci_address: link for link in nics.facts.links}
    for entry in vf_entries(config.resources):
        indexes = [index_range(text) for text in entry.select.vf_indexes]
        for pf in nics.pfs:
            offered = [
                vf
                for vf in vfs
                if vf.parent == pf.pci_address
                and vf.driver is not None
                and suits(entry.vf_driver, vf)
                and (not indexes or any(vf.vf_index in index for index in indexes))
            ]
            if (
                offered
                and all(lacks_guid(vf) for vf in offered)
                and offers_vfs_of(entry, pf, links.get(pf.pci_address))
            ):
                return True
    return False


def _vfs_are(vfs: list[Function], what: str) -> str:
    return f"{count(len(vfs), 'VF')} {what}: {shortened_list(_names(vfs))}"


def _iommu(nics: NicFacts, config: Config) -> Iterator[Finding]:
    if not nics.iommu_groups:
        vfio = any(entry.vf_driver == "vfio-pci" for entry in network_entries(config.resources)) or any(
            entry.driver == "vfio-pci" for entry in config.vfs
        )
        if nics.facts.guest and not vfio:
            return  # its host has the firmware settings, and it has no VFs to pass on
        say = NICS_TOPIC.fix if vfio else NICS_TOPIC.note
        yield say(
            "iommu_off",
            "no IOMMU group: " + ("vfio-pci is configured" if vfio else "vfio-pci is not configured"),
        )
        return
    translated = [pf for pf in nics.pfs if nics.domains.get(pf.pci_address, "").startswith("DMA")]
    if translated:
        kinds = sorted({nics.domains[pf.pci_address] for pf in translated})
        yield NICS_TOPIC.note(
            "iommu_translated",
            f"{shortened_list(_names(translated))} in IOMMU domains of type {', '.join(kinds)}",
        )
    else:
        yield NICS_TOPIC.ok("iommu", count(nics.iommu_groups, "IOMMU group"))


def _hardware(nics: NicFacts) -> Iterator[Finding]:
    hosted = {pf.pci_address for pf in nics.hosted}
    for pf, sentence in ports_in_another_mode(
        nics.pfs, nics.facts.links, nics.facts.gpus, guest=nics.facts.guest
    ):
        remedy = "set the mode on the host of this virtual machine" if pf.pci_address in hosted else ""
        yield NICS_TOPIC.warn("link_mode_differs", sentence, remedy)
    bare = [pf for pf in nics.pfs if pf.rdma is not None and pf.netdev is None and not pf.missing]
    if bare:
        optics = [rule.key for rule in NIC_RULES if rule.key.startswith("optics_")]
        warm = [key for key in optics if "temperature" in key]
        yield NICS_TOPIC.note(
            "netdev_absent",
            f"{shortened_list(_names(bare))}: no netdev, so no EEPROM of a transceiver is read; unknown: "
            f"{', '.join(key for key in optics if key not in warm)}; and, unless the driver has a hardware monitor "
            f"(hwmon) of the module: {', '.join(warm)}",
        )
    for subnet, netdevs in sorted(nics.shared_subnets.items()):
        yield NICS_TOPIC.warn(
            "rails_share_subnet", f"{shortened_list(netdevs)} are in {subnet} with arp_ignore=0"
        )
    if nics.namespace_netdevs is not None:
        away = [pf for pf in nics.pfs if pf.netdev and pf.netdev not in nics.namespace_netdevs]
        if away:
            yield NICS_TOPIC.fix(
                "network_namespace",
                f"{shortened_list(_names(away))}: in sysfs, but not in this network namespace",
            )


def _rdma(nics: NicFacts, config: Config) -> Iterator[Finding]:
    mute = [pf for pf in nics.pfs if pf.driver in _RDMA_DRIVERS and pf.netdev and pf.rdma is None]
    shared = {pf.pci_address: lag for pf in mute if (lag := _lag_device(pf, nics)) is not None}
    for pf in mute:
        if pf.pci_address in shared:
            owner = shared[pf.pci_address]
            yield NICS_TOPIC.ok(
                "rdma_lag",
                f"{pf.netdev} has no RDMA device of its own: {owner} is that of its bond (RoCE LAG)",
            )
    alone = [pf for pf in mute if pf.pci_address not in shared]
    if alone:
        yield NICS_TOPIC.note("rdma_missing", f"no RDMA device on {shortened_list(_names(alone))}")
    if nics.rdma_exclusive and hca_entries(config.resources):
        yield NICS_TOPIC.fix(
            "rdma_exclusive", "the kernel is in the exclusive RDMA mode, and resources share HCAs"
        )
    entries = network_entries(config.resources)
    of_pfs = bool(hca_entries(config.resources)) or any(entry.whole for entry in entries)
    able = any(it.rdma is not None for it in nics.facts.functions if it.parent is not None or of_pfs)
    if entries and able and not nics.rdma_cm:
        yield NICS_TOPIC.warn(
            "rdma_cm_missing", f"the host has no {RDMA_CM}: the module rdma_ucm is not loaded"
        )


def _lag_device(pf: Function, nics: NicFacts) -> str | None:
    """The RDMA device that the ports of a card share (RoCE LAG): mlx5 keeps that of the first port alone, by the name
    mlx5_bond_N, or another one if udev has renamed it. The ports are in one bond, or in one E-Switch without a bond."""
    card = pf.pci_address.rpartition(".")[0]
    bond = nics.masters.get(pf.netdev or "")
    for other in nics.pfs:
        if other.rdma is not None and other.pci_address.rpartition(".")[0] == card:
            same_bond = bond is not None and nics.masters.get(other.netdev or "") == bond
            if same_bond or other.rdma.device.startswith(_LAG):
                return other.rdma.device
    return None


def _firmware(nics: NicFacts, config: Config, heard: Collection[str]) -> Iterator[Finding]:
    own = [pf for pf in nics.pfs if pf not in nics.hosted]
    for driver, (flag, bad) in _FLAG.items():
        speaking = [
            pf
            for pf in own
            if pf.driver == driver and pf.netdev and nics.flags.get(pf.netdev, {}).get(flag) is bad
        ]
        if speaking:
            setting = "off" if bad else "on"
            yield NICS_TOPIC.warn(
                "firmware_lldp",
                f"{driver}: the firmware's LLDP agent runs on {shortened_list(_names(speaking))}",
                f"ethtool --set-priv-flags {speaking[0].netdev} {flag} {setting}, for each of them",
            )
    unknown = [
        pf
        for pf in own
        if pf.link_type == "ethernet"
        and pf.netdev not in heard
        and (pf.driver in _MUTE or (pf.driver in _FLAG and pf.netdev not in nics.flags))
    ]
    if unknown:
        drivers = ", ".join(sorted({pf.driver or "" for pf in unknown}))
        names = f"{drivers}: {shortened_list(_names(unknown))}"
        if config.lldp.transmit:
            yield NICS_TOPIC.warn("firmware_lldp_unknown", f"lldp.transmit is on; {names}")
        else:
            yield NICS_TOPIC.note("firmware_lldp_unknown", names)


def _names(functions: Iterable[Function]) -> list[str]:
    return [function.netdev or function.pci_address for function in functions]


def _flags(pfs: Iterable[Function]) -> dict[str, dict[str, bool]]:
    flags = {}
    with Ethtool() as ethtool:
        for pf in pfs:
            if pf.netdev and pf.driver in _FLAG:
                try:
                    flags[pf.netdev] = ethtool.private_flags(pf.netdev)
                except EthtoolError:
                    continue  # unknown, as for a driver without flags
    return flags


def _here() -> frozenset[str] | None:
    try:
        with Netdevs() as netdevs:
            return frozenset(netdev.name for netdev in netdevs.read())
    except NetlinkError:
        return None


# --- the stored rails -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StoredNics:
    """The rails that the agent of this node has stored: with them the doctor numbers the NICs as the agent does.

    ``known`` are the NICs of an earlier agent as missing, ``macs`` the permanent MAC addresses by PCI address, which
    are ``None`` for a recorded machine: there the current ones are used. ``prefixes`` are those of the names under
    which it has offered devices, as far as its files remember."""

    numbering: Numbering = field(default_factory=dict)
    known: PciFacts = field(default_factory=PciFacts)
    macs: Mapping[str, str | None] | None = None
    prefixes: frozenset[str] = frozenset()


def read_stored_nics(target: Target) -> StoredNics:
    folder = target.tree.path(target.config.health.state_directory)
    rails = RailMemory(folder)
    names = (*rails.content.names, *(StoredFile(folder, slice_sizes.SIZES_FORM).read() or {}))
    prefixes = frozenset(name.rpartition("/")[0] for name in names) - {""}
    macs = None if target.recorded else permanent_macs(target.tree)
    return StoredNics(rails.content.numbering, rails.known_nics(target.config.resources), macs, prefixes)


def completed(facts: PciFacts, stored: StoredNics) -> PciFacts:
    """The facts with the permanent MAC addresses and the NICs that are missing."""
    links = with_permanent_macs(facts.links, stored.macs)
    known, _ = NicIdentities().known(
        stored.known.functions, stored.known.identities, facts.functions, links, first=True
    )
    functions, _ = find_faults(facts.functions, links, known)
    return replace(facts, functions=functions, links=links)
