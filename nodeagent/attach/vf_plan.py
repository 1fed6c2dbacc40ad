"""The plan for the VFs of this node: which name, address and MTU each has in a pod, by the facts of the node.

The agent writes it for `nodeagent attach`, and `nodeagent scan` shows it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from nodeagent.attach.address_plan import AddressPlan, AddressPlanError, VfAddress
from nodeagent.attach.attach_settings import AttachSettings
from nodeagent.attach.pod_plan import AttachPlan, PlannedVf
from nodeagent.facts.model import Function, Snapshot
from nodeagent.host.netlink.addresses import Addresses
from nodeagent.host.netlink.netdevs import Netdevs
from nodeagent.kinds.vf import has_netdev

PfAddresses = Mapping[str, tuple[VfAddress, ...]]
"""The addresses of PFs, by the PCI address of the PF."""


def attach_plan(
    settings: AttachSettings, snapshot: Snapshot, rails: Mapping[str, int], addresses: PfAddresses | None
) -> AttachPlan:
    """The plan for each VF with a netdev whose PF has a rail. Pure. ``rails`` are those of the PFs; ``addresses`` are
    ``None`` where they cannot be known, as on a machine that is looked at from elsewhere."""
    links = {link.pci_address: link for link in snapshot.links}
    addressing = settings.address_plan
    vfs = {}
    for vf in snapshot.functions:
        pf = vf.parent
        if pf is None or pf not in rails or not has_netdev(vf):
            continue
        link = links.get(pf)
        address, refusal = _address(
            addressing, vf, rails[pf], None if addresses is None else addresses.get(pf, ())
        )
        vfs[vf.pci_address] = PlannedVf(rails[pf], None if link is None else link.mtu, address, refusal, pf)
    return AttachPlan(settings.interface or "", vfs, probe=settings.probe)


def _address(
    plan: AddressPlan | None, vf: Function, rail: int, pf: Iterable[VfAddress] | None
) -> tuple[str | None, str]:
    if plan is None:
        return None, ""
    if vf.vf_index is None:
        return None, "the kernel does not tell its index"
    if pf is None and plan.prefix.find(":") < 0:
        return None, "the addresses of its PF are not known here"
    try:
        return str(plan.address(rail, vf.vf_index, pf=pf or (), mac=vf.mac)), ""
    except AddressPlanError as error:
        return None, str(error)


def pf_addresses(pfs: Collection[str] | None) -> dict[str, tuple[VfAddress, ...]]:
    """Read the addresses of these PFs on the host, ``None``: of all PCI functions. Blocks; raises ``NetlinkError``."""
    with Netdevs() as netdevs, Addresses() as addresses:
        by_ifindex = addresses.read()
        return {
            netdev.pci_address: by_ifindex.get(netdev.ifindex, ())
            for netdev in netdevs.read()
            if netdev.pci_address is not None and (pfs is None or netdev.pci_address in pfs)
        }
