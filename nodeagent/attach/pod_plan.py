"""The agent's plan for each VF, and what follows from it for the VFs of one pod. Pure.

The agent writes the plan into its state folder; ``nodeagent attach`` reads it there. So neither waits for the other,
and the last plan stands while the agent is away.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_interface
from types import MappingProxyType
from typing import Any

from msgspec import Struct

from nodeagent.attach.address_plan import OF_A_RAIL_MAX, AddressPlanError, VfAddress, interface_name

_TABLE_FIRST = 1000
"""Of the routing tables in a pod: above those with names, 253 to 255."""


class PlannedVf(Struct, frozen=True):
    """``pf`` is the PCI address of the PF. ``address`` is that in a pod, with the length of its prefix. ``refusal``
    says why there is none although the settings ask for one. ``mtu`` is that of the PF; ``None``: as it is. ``mac`` is
    set for a share of the HCA ``pf``: the MAC address of the netdev that a pod gets on top of it. ``whole``: it is a
    NIC as a whole, and ``kept`` are the addresses that it has on the host and takes along."""

    rail: int
    mtu: int | None = None
    address: str | None = None
    refusal: str = ""
    pf: str = ""
    mac: str = ""
    whole: bool = False
    kept: tuple[str, ...] = ()

    @property
    def addresses(self) -> tuple[str, ...]:
        """Those in a pod."""
        return self.kept if self.address is None else (*self.kept, self.address)


class AttachPlan(Struct, frozen=True):
    """``interface`` is the pattern of names in pods; ``vfs`` are the VFs with a netdev, by PCI address, the shares of
    HCAs, and the NICs that pods get as a whole. ``on``: new pods get netdevs; otherwise only those that have some keep
    them until their end. ``probe``: ask whether another NIC has the address. ``ipam`` is the section of the plugin that
    gives the addresses, a pattern of the rails; ``None``: those of ``vfs`` count. ``taken`` are the addresses that it
    must not give, and their owners."""

    interface: str
    vfs: Mapping[str, PlannedVf]
    on: bool = True
    probe: bool = False
    ipam: dict[str, Any] | None = None
    taken: Mapping[str, str] = {}


class PodRoute(Struct, frozen=True):
    """A route over the netdev of a VF. ``gateway``: ``None`` for destinations on its link."""

    destination: IPv4Network | IPv6Network
    gateway: IPv4Address | IPv6Address | None = None


class PodLink(Struct, frozen=True):
    """The netdev of one VF or share in its pod. ``table`` is its routing table, and the priority of its rule. ``asks``:
    the PCI address of the PF that asks whether another NIC has the address; ``None``: nobody does. ``parent``: that of
    the PF on which the netdev of a share is made, with this ``mac``; ``None``: it is a VF's, and is moved.
    ``routes`` are in its table alone. ``whole``: a NIC as a whole, which gets on the host again what it had there."""

    device: str
    rail: int
    name: str
    mtu: int | None
    addresses: tuple[VfAddress, ...]
    table: int
    asks: str | None = None
    parent: str | None = None
    mac: str = ""
    routes: tuple[PodRoute, ...] = ()
    whole: bool = False


def pod_links(
    plan: AttachPlan, devices: Iterable[str], claims: Mapping[str, int] = MappingProxyType({})
) -> tuple[PodLink, ...]:
    """The netdevs of a pod that holds these VFs, by rail and PCI address. VFs that are not planned have none.

    ``claims`` has the sequence of the claim that a VF is of: the VFs of a later claim come after those of an earlier
    one, so that a claim knows its names before the next one is prepared. Equal VFs give equal links, whatever their
    order. Raises ``AddressPlanError``.
    """
    places: Counter[int] = Counter()
    links = []
    held = sorted({device for device in devices if device in plan.vfs})
    for device in sorted(held, key=lambda device: (plan.vfs[device].rail, claims.get(device, 0), device)):
        vf = plan.vfs[device]
        if vf.refusal:
            raise AddressPlanError(f"{device} has no address: {vf.refusal}")
        place = places[vf.rail]
        places[vf.rail] += 1
        links.append(
            PodLink(
                device,
                vf.rail,
                interface_name(plan.interface, vf.rail, place),
                vf.mtu,
                tuple(map(ip_interface, vf.addresses)),
                _TABLE_FIRST + vf.rail * OF_A_RAIL_MAX + place,
                vf.pf if plan.probe and vf.pf else None,
                vf.pf if vf.mac else None,
                vf.mac,
                whole=vf.whole,
            )
        )
    return tuple(links)


def claim_stamp(uid: str, sequence: int) -> str:
    """The stamp of the VFs of a claim. ``sequence`` grows with each record of this node.

    >>> claim_stamp("0b3c-77", 12)
    '0b3c77.12'
    """
    return f"{uid.replace('-', '')}.{sequence}"


def has_our_name(plan: AttachPlan, device: str, name: str) -> bool:
    """Whether a netdev in a pod has a name that we give to this VF: another one was moved by somebody else."""
    rail = plan.vfs[device].rail
    return name.startswith(interface_name(plan.interface, rail, 0)) and any(
        name == interface_name(plan.interface, rail, place) for place in range(OF_A_RAIL_MAX)
    )
