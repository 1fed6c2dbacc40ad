"""NICs: SR-IOV and VFs against the configuration, IOMMU, RDMA, the network namespace, LLDP in firmware."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from nodeagent.agent_config import Config
from nodeagent.doctor.finding import FACT, Entry, Finding, Topic, count, some
from nodeagent.doctor.target import Subject
from nodeagent.host.ethtool import Ethtool, EthtoolError
from nodeagent.host.netlink.kernel_events import NetlinkError
from nodeagent.host.netlink.netdevs import Netdevs
from nodeagent.host.sysfs import SysfsError, Tree
from nodeagent.kinds.resource_settings import VfResource
from nodeagent.model import Function
from nodeagent.offer import selected_pf
from nodeagent.sources.pci_source import PciFacts, scan

TOPIC = Topic(
    "nics",
    "NICS",
    {
        "sriov": FACT,
        "sriov_absent": Entry(
            "VFs are made of PFs with an SR-IOV capability, which firmware may hide.",
            "switch SR-IOV on in the machine's firmware and in the NIC's (mlxconfig: SRIOV_EN=1, NUM_OF_VFS), and "
            "reboot; without VFs leave the vf entry out of `resources`",
        ),
        "vfs_none": Entry(
            "The configuration offers VFs, and there are none: the resource does not exist on this node.",
            "name the PFs and a count under `vfs` and run `nodeagent vfs apply`, or let what else sets up this host "
            "make them",
        ),
        "vfs_differ": Entry(
            "Pods get as many VFs as there are, not as many as the configuration wants.",
            "run `nodeagent vfs apply`; it says which VFs are in use where it must not change their number",
        ),
        "vfs_too_many": Entry(
            "The device cannot have so many VFs: `nodeagent vfs apply` fails on it every time.",
            "lower `count`, or raise the number in the NIC's firmware (mlxconfig: NUM_OF_VFS) and reboot",
        ),
        "vf_unbound": Entry(
            "A VF without a driver is Unhealthy and handed to nobody.",
            "load the VF driver on the host (mlx5_core, iavf, vfio-pci), or set `driver` under `vfs`",
        ),
        "default_route": Entry(
            "What carries the host's default route is never offered, nor are its VFs changed: a pod would take the "
            "node's own network with it.",
            "nothing, unless pods are to have it: then move the default route to another NIC",
        ),
        "rdma_missing": Entry(
            "Without its RDMA device a NIC does TCP only, and GPUDirect RDMA not at all.",
            "load mlx5_ib (or the driver's own RDMA module) and ib_uverbs on the host",
        ),
        "iommu": FACT,
        "iommu_off": Entry(
            "vfio-pci gives a device to a program only through an IOMMU group.",
            "switch VT-d or AMD-Vi on in the firmware and boot with intel_iommu=on (AMD: nothing) and iommu=pt",
        ),
        "iommu_translated": Entry(
            "Every DMA of these NICs passes through page tables, which costs bandwidth and may keep GPUDirect from "
            "working; VFs in VMs need the IOMMU, not this mode of it.",
            "boot with iommu=pt",
        ),
        "network_namespace": Entry(
            "Links, LLDP and what a PF keeps of its VFs are asked of this process's network namespace, where these "
            "NICs are not.",
            "run with hostNetwork: true",
        ),
        "firmware_lldp": Entry(
            "The NIC's own LLDP agent takes the switch's frames before the host sees them, and a second speaker on "
            "the port confuses some switches' DCBX.",
            "switch it off: ethtool --set-priv-flags NETDEV disable-fw-lldp on (i40e), fw-lldp-agent off (ice)",
        ),
        "firmware_lldp_unknown": Entry(
            "Firmware that runs LLDP itself may take the frames, and is a second speaker beside an agent that "
            "transmits; here it does not tell the host whether it does.",
            "where a link stays silent: mlxconfig -d ADDRESS query (LLDP_NB_RX_MODE, LLDP_NB_TX_MODE and LLDP_NB_DCBX "
            "should be off), niccli for bnxt_en",
        ),
        "nic_unreadable": Entry(
            "What cannot be read of a device counts as absent.",
            "look at the kernel's log of that device; firmware that hangs answers so",
        ),
    },
)

_FLAG = {"i40e": ("disable-fw-lldp", False), "ice": ("fw-lldp-agent", True)}
"""By driver: the flag, and the value with which firmware runs LLDP."""
_MUTE = ("mlx5_core", "bnxt_en")
_RDMA_DRIVERS = ("mlx5_core", "mlx4_core")


@dataclass(frozen=True, slots=True)
class Nics:
    """``here`` are the netdevs of this process's network namespace; ``None`` of another machine. ``domains`` is
    the kind of each PF's IOMMU domain, ``identity`` or ``DMA-FQ``. ``flags`` are private flags by netdev.
    """

    facts: PciFacts
    iommu_groups: int = 0
    domains: Mapping[str, str] = field(default_factory=dict)
    flags: Mapping[str, Mapping[str, bool]] = field(default_factory=dict)
    here: frozenset[str] | None = None

    @property
    def pfs(self) -> list[Function]:
        return [function for function in self.facts.functions if function.parent is None]


def look(subject: Subject) -> Nics:
    tree = subject.tree
    facts = scan(tree)
    pfs = [function for function in facts.functions if function.parent is None]
    return Nics(
        facts=facts,
        iommu_groups=len(tree.names("/sys/kernel/iommu_groups")),
        domains={pf.pci_address: kind for pf in pfs if (kind := _domain(tree, pf.pci_address))},
        flags={} if subject.recorded else _flags(pfs),
        here=None if subject.recorded else _here(),
    )


def judge(nics: Nics, config: Config, heard: Collection[str] = ()) -> Iterator[Finding]:
    """``heard`` are the links on which a switch has been heard: nothing takes its frames there."""
    yield from _sriov(nics, config)
    yield from _of_config(nics, config)
    yield from _iommu(nics, config)
    yield from _hardware(nics)
    if config.lldp.source != "none":
        yield from _firmware(nics, config, heard)
    for sentence in nics.facts.unreadable:
        yield TOPIC.warn("nic_unreadable", sentence)


def _sriov(nics: Nics, config: Config) -> Iterator[Finding]:
    able = [pf for pf in nics.pfs if pf.total_vfs]
    wants = any(isinstance(entry, VfResource) for entry in config.resources)
    if not able:
        if wants:
            yield TOPIC.note("sriov_absent", f"none of {count(len(nics.pfs), 'PF')} has an SR-IOV capability")
        return
    made, possible = sum(pf.num_vfs or 0 for pf in able), sum(pf.total_vfs or 0 for pf in able)
    yield TOPIC.ok(
        "sriov", f"{len(able)} of {count(len(nics.pfs), 'PF')} have SR-IOV, {made} of {possible} VFs are made"
    )
    if wants and not made:
        yield TOPIC.warn("vfs_none", f"no VFs on {some(_names(able))}")


def _of_config(nics: Nics, config: Config) -> Iterator[Finding]:
    routed = {link.pci_address for link in nics.facts.links if link.default_route}
    left = [pf for pf in nics.pfs if pf.pci_address in routed and pf.total_vfs]
    if left:
        yield TOPIC.note("default_route", f"{some(_names(left))} carries the default route and is left alone")
    too_many: dict[str, None] = {}
    differ: dict[str, None] = {}
    for entry in config.vfs:
        for pf in nics.pfs:
            if pf.pci_address in routed or pf.total_vfs is None or not selected_pf(entry.select, pf):
                continue
            name = pf.netdev or pf.pci_address
            if entry.count > pf.total_vfs:
                too_many[f"{name} can have {pf.total_vfs} VFs, {entry.count} are configured"] = None
            elif pf.num_vfs is not None and pf.num_vfs != entry.count:
                differ[f"{name} has {pf.num_vfs}, {entry.count} are configured"] = None
    for sentence in too_many:
        yield TOPIC.fix("vfs_too_many", sentence)
    if differ:
        yield TOPIC.warn("vfs_differ", some(list(differ)))
    unbound = [vf for vf in nics.facts.functions if vf.parent and vf.driver is None]
    if unbound:
        yield TOPIC.warn(
            "vf_unbound", f"{count(len(unbound), 'VF')} without a driver: {some(_names(unbound))}"
        )


def _iommu(nics: Nics, config: Config) -> Iterator[Finding]:
    if not nics.iommu_groups:
        vfio = any(e.vf_driver == "vfio-pci" for e in config.resources if isinstance(e, VfResource)) or any(
            entry.driver == "vfio-pci" for entry in config.vfs
        )
        say = TOPIC.fix if vfio else TOPIC.note
        yield say(
            "iommu_off", "no IOMMU group: " + ("vfio-pci is configured" if vfio else "no vfio-pci here")
        )
        return
    translated = [pf for pf in nics.pfs if nics.domains.get(pf.pci_address, "").startswith("DMA")]
    if translated:
        kinds = sorted({nics.domains[pf.pci_address] for pf in translated})
        yield TOPIC.note(
            "iommu_translated", f"{some(_names(translated))} in IOMMU domains of type {', '.join(kinds)}"
        )
    else:
        yield TOPIC.ok("iommu", count(nics.iommu_groups, "IOMMU group"))


def _hardware(nics: Nics) -> Iterator[Finding]:
    mute = [pf for pf in nics.pfs if pf.driver in _RDMA_DRIVERS and pf.netdev and pf.rdma is None]
    if mute:
        yield TOPIC.note("rdma_missing", f"no RDMA device on {some(_names(mute))}")
    if nics.here is not None:
        away = [pf for pf in nics.pfs if pf.netdev and pf.netdev not in nics.here]
        if away:
            yield TOPIC.fix("network_namespace", f"sysfs shows {some(_names(away))}, netlink here does not")


def _firmware(nics: Nics, config: Config, heard: Collection[str]) -> Iterator[Finding]:
    for driver, (flag, bad) in _FLAG.items():
        speaking = [
            pf
            for pf in nics.pfs
            if pf.driver == driver and pf.netdev and nics.flags.get(pf.netdev, {}).get(flag) is bad
        ]
        if speaking:
            setting = "off" if bad else "on"
            yield TOPIC.warn(
                "firmware_lldp",
                f"{driver}: the firmware's LLDP agent runs on {some(_names(speaking))}",
                f"ethtool --set-priv-flags {speaking[0].netdev} {flag} {setting}, for each of them",
            )
    unknown = [
        pf
        for pf in nics.pfs
        if pf.link_type == "ethernet"
        and pf.netdev not in heard
        and (pf.driver in _MUTE or (pf.driver in _FLAG and pf.netdev not in nics.flags))
    ]
    if unknown:
        drivers = ", ".join(sorted({pf.driver or "" for pf in unknown}))
        told = f"{drivers}: {some(_names(unknown))}"
        if config.lldp.transmit:
            yield TOPIC.warn("firmware_lldp_unknown", f"lldp.transmit is on; {told}")
        else:
            yield TOPIC.note("firmware_lldp_unknown", told)


def _names(functions: Iterable[Function]) -> list[str]:
    return [function.netdev or function.pci_address for function in functions]


def _domain(tree: Tree, address: str) -> str | None:
    try:
        return (tree.text(f"/sys/bus/pci/devices/{address}/iommu_group/type") or "").strip() or None
    except SysfsError:
        return None


def _flags(pfs: Iterable[Function]) -> dict[str, dict[str, bool]]:
    flags = {}
    with Ethtool() as ethtool:
        for pf in pfs:
            if pf.netdev and pf.driver in _FLAG:
                try:
                    flags[pf.netdev] = ethtool.private_flags(pf.netdev)
                except EthtoolError:
                    continue  # as unknown as for a driver without flags
    return flags


def _here() -> frozenset[str] | None:
    try:
        with Netdevs() as netdevs:
            return frozenset(netdev.name for netdev in netdevs.read())
    except NetlinkError:
        return None
