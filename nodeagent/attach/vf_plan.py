"""The plan for the VFs of this node: which name, address and MTU each has in a pod, by the facts of the node.

The agent writes it for `nodeagent attach`, and `nodeagent scan` shows it.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from ipaddress import IPv4Address, IPv4Network, IPv6Address, ip_address, ip_interface
from itertools import chain
from pathlib import Path

from msgspec.structs import replace

from nodeagent.attach.address_plan import AddressPlan, AddressPlanError, VfAddress
from nodeagent.attach.attach_settings import AttachSettings
from nodeagent.attach.given_numbers import GivenNumbers
from nodeagent.attach.host_names import HostState
from nodeagent.attach.pod_plan import AttachPlan, PlannedVf
from nodeagent.attach.share_netdevs import is_share, share_group, share_mac
from nodeagent.fabric.rail_partners import RailNumber
from nodeagent.facts.allocation import Devices
from nodeagent.facts.model import Function, NodeNumber, Snapshot
from nodeagent.host.netlink.addresses import Addresses
from nodeagent.host.netlink.netdevs import Netdevs
from nodeagent.kinds.hca_shares import takes_netdevs
from nodeagent.kinds.rail_numbers import nic_names
from nodeagent.kinds.vf import has_netdev

PfAddresses = Mapping[str, tuple[VfAddress, ...]]
"""The addresses of PFs, by the PCI address of the PF."""


def attach_plan(
    settings: AttachSettings,
    snapshot: Snapshot,
    rails: Mapping[str, int],
    addresses: PfAddresses | None,
    gateways: Iterable[IPv4Address] = (),
    offered: Iterable[Devices] = (),
    numbers: GivenNumbers | None = None,
    whole: Collection[str] = (),
) -> AttachPlan:
    """The plan for each VF with a netdev whose PF has a rail. Pure. ``rails`` are those of the PFs; ``addresses`` are
    ``None`` where they cannot be known, as on a machine that is looked at from elsewhere. ``gateways`` are those of the
    node's routes. ``offered`` are the devices of the resources, of which shares of HCAs have netdevs too. ``numbers``
    is the controller's word; ``None``: it is not asked. ``whole`` are the NICs that the settings offer as a whole."""
    links = {link.pci_address: link for link in snapshot.links}
    addressing = settings.address_plan
    taken = ({} if numbers is None else dict(numbers.taken)) | _taken(snapshot, addresses or {}, gateways)
    names = nic_names(rails)
    vfs = {}
    for vf in snapshot.functions:
        pf = vf.parent
        if pf is None or pf not in rails or not has_netdev(vf):
            continue
        link = links.get(pf)
        address, refusal = _address(
            addressing,
            vf,
            rails[pf],
            None if addresses is None else addresses.get(pf, ()),
            taken,
            _controllers(addressing, rails[pf], pf, names[pf], numbers),
            asked=numbers is not None,
        )
        vfs[vf.pci_address] = PlannedVf(rails[pf], None if link is None else link.mtu, address, refusal, pf)
    for nic in _whole_nics(snapshot, whole):
        if nic.pci_address in rails:
            own = None if addresses is None else addresses.get(nic.pci_address, ())
            vfs[nic.pci_address] = _planned_nic(
                settings, nic, rails[nic.pci_address], own, taken, names[nic.pci_address], numbers
            )
    vfs |= dict(_planned_shares(addressing, snapshot, rails, addresses, taken, offered, numbers))
    kept = {} if settings.ipam is None else {str(ip): taken[ip] for ip in sorted(taken, key=str)}
    return AttachPlan(settings.interface or "", vfs, probe=settings.probe, ipam=settings.ipam, taken=kept)


def node_numbers(
    settings: AttachSettings,
    rails: Mapping[str, int],
    addresses: PfAddresses,
    numbers: GivenNumbers | None = None,
) -> tuple[NodeNumber, ...]:
    """The number of this node on each rail, for the others; nothing of a PF with another address there. Pure.

    It is that of the PF's address, or the one of ``numbers`` that pods have addresses by: so the controller still knows
    it if its objects are lost."""
    found, names = list[NodeNumber](), nic_names(rails)
    if (plan := settings.address_plan) is None:
        return ()
    for pf, rail in sorted(rails.items()):
        with suppress(AddressPlanError):
            prefix = plan.of(rail)
            if isinstance(prefix, IPv4Network):
                number = plan.node_number(rail, addresses.get(pf, ()))
                given = None if numbers is None else numbers.at(pf, names[pf], prefix)
                if given is not None and not given.holder:
                    number = number or given.number
                found.append(NodeNumber(pf, str(prefix), number))
    return tuple(found)


def _whole_nics(snapshot: Snapshot, whole: Collection[str]) -> Iterator[Function]:
    """Yield the NICs that pods get as a whole: those on offer, and those that pods still hold after somebody has made
    VFs of them. Never one that the host needs."""
    needed = {link.pci_address for link in snapshot.links if link.default_route or link.node_address}
    held = {id_ for holding in snapshot.holdings or () for id_ in holding.device_ids}
    for function in snapshot.functions:
        address = function.pci_address
        ours = address in whole and (address in snapshot.whole_nics or address in held)
        if ours and address not in needed and function.parent is None and has_netdev(function):
            yield function


def _planned_nic(
    settings: AttachSettings,
    nic: Function,
    rail: int,
    own: tuple[VfAddress, ...] | None,
    taken: Mapping[IPv4Address | IPv6Address, str],
    name: str,
    numbers: GivenNumbers | None,
) -> PlannedVf:
    """A NIC as a whole: it keeps the addresses that it has on the host. If it has none of the plan's version, the plan
    gives it one, that of a PF."""
    plan, planned = settings.address_plan, PlannedVf(rail, pf=nic.pci_address, whole=True)
    if settings.ipam is not None:
        return planned
    kept = tuple(one for one in own or () if not one.is_link_local)
    planned = replace(planned, kept=tuple(map(str, kept)))
    if plan is None:
        return replace(planned, pf="")
    version = 6 if ":" in plan.prefix else 4
    try:
        if own is None and version == 4:
            return replace(planned, refusal="the addresses of the NIC are not known here")
        controllers = _controllers(plan, rail, nic.pci_address, name, numbers)
        given = _agreed(plan, rail, kept, controllers) if numbers is not None else 0
        if any(one.version == version for one in kept):
            return replace(planned, pf="")  # nobody asks for an address that it has already
        address = plan.nic_address(rail, mac=nic.mac, given=given)
    except AddressPlanError as error:
        return replace(planned, refusal=str(error))
    if (owner := taken.get(address.ip)) is not None:
        return replace(
            planned,
            refusal=f"rail {rail}: {address.ip}, which the plan gives the NIC, is the address of {owner}",
        )
    return replace(planned, address=str(address))


def _planned_shares(
    plan: AddressPlan | None,
    snapshot: Snapshot,
    rails: Mapping[str, int],
    addresses: PfAddresses | None,
    taken: Mapping[IPv4Address | IPv6Address, str],
    offered: Iterable[Devices],
    numbers: GivenNumbers | None,
) -> Iterator[tuple[str, PlannedVf]]:
    """Yield the shares of HCAs that get a netdev on top of their PF: those on offer, and those that pods still hold
    after there are fewer, or none for a moment. Their containers restart by the plan."""
    links, names = {link.pci_address: link for link in snapshot.links}, nic_names(rails)
    pfs = {function.pci_address: function for function in snapshot.functions if function.parent is None}
    of_pf: dict[str, set[str]] = {}
    on_offer = (id_ for devices in offered for id_ in devices.ids if is_share(id_))
    # Those of claims have no number, and other plugins have IDs of this form too.
    held = (id_ for holding in snapshot.holdings or () for id_ in holding.device_ids if share_group(id_))
    for device in chain(on_offer, held):
        of_pf.setdefault(device.partition("::")[0], set()).add(device)
    for address, shares in sorted(of_pf.items()):
        pf, link = pfs.get(address), links.get(address)
        base = None if link is None else link.permanent_mac or link.mac
        if pf is None or link is None or base is None or address not in rails or not takes_netdevs(pf):
            continue
        own = None if addresses is None else addresses.get(address, ())
        for device in sorted(shares):
            number = int(device.rpartition("::")[2])
            mac = share_mac(base, number)
            controllers = _controllers(plan, rails[address], address, names[address], numbers)
            given, refusal = _share_address(
                plan, number, rails[address], own, mac, taken, controllers, asked=numbers is not None
            )
            yield device, PlannedVf(rails[address], link.mtu, given, refusal, address, mac)


def _taken(
    snapshot: Snapshot, addresses: PfAddresses, gateways: Iterable[IPv4Address]
) -> dict[IPv4Address | IPv6Address, str]:
    """The addresses of others that this node knows, and whose they are."""
    taken: dict[IPv4Address | IPv6Address, str] = {}
    for neighbor in snapshot.neighbors:
        for text in neighbor.management_addresses:
            with suppress(ValueError):
                taken[ip_address(text)] = f"the switch {neighbor.system_name or neighbor.chassis_id.value}"
    taken |= dict.fromkeys(gateways, "a gateway of the node's routes")
    vfs = {function.pci_address for function in snapshot.functions if function.parent is not None}
    taken |= {one.ip: f"the PF {pf}" for pf, of in addresses.items() if pf not in vfs for one in of}
    return taken


def _address(
    plan: AddressPlan | None,
    vf: Function,
    rail: int,
    pf: Iterable[VfAddress] | None,
    taken: Mapping[IPv4Address | IPv6Address, str],
    controllers: RailNumber | None,
    *,
    asked: bool,
) -> tuple[str | None, str]:
    if plan is None:
        return None, ""
    if vf.vf_index is None:
        return None, "the kernel does not tell its index"
    if pf is None and plan.prefix.find(":") < 0:
        return None, "the addresses of its PF are not known here"
    try:
        given = _agreed(plan, rail, pf or (), controllers) if asked else 0
        address = plan.address(rail, vf.vf_index, pf=pf or (), mac=vf.mac, given=given)
    except AddressPlanError as error:
        return None, str(error)
    if (owner := taken.get(address.ip)) is not None:
        return None, (
            f"rail {rail}: {address.ip}, which the plan gives VF {vf.vf_index}, is the address of {owner}: give it one "
            "of the first part of the prefix, or choose other `attach.addresses`"
        )
    return str(address), ""


def _controllers(
    plan: AddressPlan | None, rail: int, pf: str, name: str, numbers: GivenNumbers | None
) -> RailNumber | None:
    """The number that the controller has written for this PF in the prefix of its rail."""
    with suppress(AddressPlanError):
        if plan is not None and numbers is not None:
            return numbers.at(pf, name, plan.of(rail))
    return None


def _agreed(plan: AddressPlan, rail: int, pf: Iterable[VfAddress], given: RailNumber | None) -> int:
    """The number of this node on a rail that the controller has written for it: no other node has it. 0: IPv6 needs
    none. Raises ``AddressPlanError``."""
    if ":" in plan.prefix:
        return 0
    prefix, own = plan.of(rail), plan.node_number(rail, pf)
    if given is None or own not in (0, given.number):
        known = f"the number {own} of this node" if own else "a number for this node"
        raise AddressPlanError(
            f"rail {rail}: the controller has not confirmed {known} in {prefix} yet: it takes some minutes after "
            "the first report, and `rails.numbers` of the controller"
        )
    if given.holder:
        raise AddressPlanError(
            f"rail {rail}: the node {given.holder} had the number {given.number} in {prefix} first: give the PF "
            "another address"
        )
    return given.number


def _share_address(
    plan: AddressPlan | None,
    number: int,
    rail: int,
    pf: Iterable[VfAddress] | None,
    mac: str,
    taken: Mapping[IPv4Address | IPv6Address, str],
    controllers: RailNumber | None,
    *,
    asked: bool,
) -> tuple[str | None, str]:
    if plan is None:
        return None, ""
    if pf is None and ":" not in plan.prefix:
        return None, "the addresses of its PF are not known here"
    try:
        given = _agreed(plan, rail, pf or (), controllers) if asked else 0
        address = plan.share_address(rail, number, pf=pf or (), mac=mac, given=given)
    except AddressPlanError as error:
        return None, str(error)
    if (owner := taken.get(address.ip)) is not None:
        return (
            None,
            f"rail {rail}: {address.ip}, which the plan gives share {number}, is the address of {owner}",
        )
    return str(address), ""


def route_gateways(routes: str | None = None) -> tuple[IPv4Address, ...]:
    """The gateways of this node's IPv4 routes. ``routes`` has the form of ``/proc/net/route``, which is read without
    it; nothing where it cannot be read. Blocks."""
    if routes is None:
        try:
            routes = Path("/proc/net/route").read_text()
        except OSError:
            return ()
    found = set()
    for line in routes.splitlines()[1:]:  # Iface Destination Gateway …, in the byte order of the machine
        with suppress(ValueError, IndexError, OverflowError):
            found.add(IPv4Address(int(line.split()[2], 16).to_bytes(4, sys.byteorder)))
    return tuple(sorted(found - {IPv4Address(0)}))


def pf_addresses(pfs: Collection[str] | None) -> dict[str, tuple[VfAddress, ...]]:
    """Read the lasting addresses of these PFs on the host, ``None``: of all PCI functions. Blocks; raises
    ``NetlinkError``."""
    with Netdevs() as netdevs, Addresses() as addresses:
        by_ifindex = addresses.read(lasting=True)
        return {
            netdev.pci_address: by_ifindex.get(netdev.ifindex, ())
            for netdev in netdevs.read()
            if netdev.pci_address is not None and (pfs is None or netdev.pci_address in pfs)
        }


def with_left(addresses: PfAddresses, left: Mapping[str, HostState]) -> PfAddresses:
    """The addresses of PFs, with those that NICs had before they left for a pod; they have none on the host now."""
    return {
        **addresses,
        **{nic: tuple(map(ip_interface, state.addresses)) for nic, state in left.items()},
    }
