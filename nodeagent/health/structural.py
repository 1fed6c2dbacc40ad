"""The faults of network functions that the facts of one moment show. Pure.

* A netdev that disappears while the driver is bound has moved into another network namespace. For a VF this is
  normal: a pod uses it. For a PF it hides the link, so the link's state is not known.
* The carrier has priority over operstate, which follows it up to a second later (linkwatch).
* InfiniBand has no administrative state of its own: IPoIB may be down while RDMA works.
* A function that was known and is no longer listed stays in the answer as missing. Its device ID must not
  disappear while a pod may hold it.

A VF carries only its own faults here; ``nic`` adds the health of its PF.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from enum import StrEnum

from msgspec.structs import replace

from nodeagent.facts.card_identity import lacks_guid
from nodeagent.facts.model import INFINIBAND, Function, Link, Reason


class Fault(StrEnum):
    """The keys of structural faults, the gravest first."""

    DEVICE_MISSING = "device_missing"
    NOT_ANSWERING = "not_answering"
    """Reading its files hangs."""
    DRIVER_UNBOUND = "driver_unbound"
    ADMIN_DOWN = "admin_down"
    CARRIER_DOWN = "carrier_down"
    LINK_UNSEEN = "link_unseen"
    """The state of the link cannot be read."""
    GUID_MISSING = "guid_missing"
    """An InfiniBand VF without a GUID has no address in the subnet."""
    IOMMU_GROUP_MISSING = "iommu_group_missing"
    """vfio passes the devices of an IOMMU group to a program, and this VF is in none."""


Faults = Mapping[str, tuple[Reason, ...]]
"""By PCI address, the gravest first. A function without a fault has no entry."""
NO_FAULTS: Faults = {}


def find_faults(
    functions: Iterable[Function], links: Iterable[Link], known: Iterable[Function] = ()
) -> tuple[tuple[Function, ...], Faults]:
    """All functions, sorted by PCI address, and their faults.

    ``known`` are the functions of the last answer. Those that are not listed now stay, as missing, with their last
    facts.
    """
    by_pf = {link.pci_address: link for link in links}
    present = {function.pci_address: function for function in functions}
    faults: dict[str, tuple[Reason, ...]] = {}
    listed = dict(present)
    for function in known:
        if function.pci_address not in present:
            listed[function.pci_address] = replace(function, missing=True)
            faults[function.pci_address] = (_missing(function, present),)
    for address, function in present.items():
        if function.parent is None:
            reasons = _of_pf(function, by_pf.get(address))
        else:
            reasons = _of_vf(function, has_pf=function.parent in listed)
        if reasons:
            faults[address] = reasons
    return tuple(listed[address] for address in sorted(listed)), faults


def with_hanging(faults: Faults, functions: Iterable[Function], hanging: Container[str]) -> Faults:
    """The faults, and that of each function whose PCI address is in ``hanging``."""
    more = {
        function.pci_address: (
            _reason(Fault.NOT_ANSWERING, function),
            *faults.get(function.pci_address, ()),
        )
        for function in functions
        if function.pci_address in hanging
    }
    return {**faults, **more}


def _of_pf(pf: Function, link: Link | None) -> tuple[Reason, ...]:
    if pf.driver is None:
        return (_reason(Fault.DRIVER_UNBOUND, pf),)
    if link is None:
        why = f"{function_name(pf)} shows no link here: {pf.driver} has none, or it is in another network namespace"
        return (Reason(Fault.LINK_UNSEEN.value, why),)
    if not link.admin_up and pf.link_type != INFINIBAND:
        return (_reason(Fault.ADMIN_DOWN, pf, link.netdev),)
    carrier = link.carrier
    if carrier is None and link.operstate not in (None, "unknown"):
        carrier = link.operstate == "up"
    if carrier is None:
        return (_reason(Fault.LINK_UNSEEN, pf, link.netdev),)
    if not carrier:
        return (_reason(Fault.CARRIER_DOWN, pf, link.netdev),)
    return ()


def _of_vf(vf: Function, *, has_pf: bool) -> tuple[Reason, ...]:
    reasons = []
    if not has_pf:
        reasons.append(
            Reason(Fault.DEVICE_MISSING.value, f"PF {vf.parent} of {function_name(vf)} is missing")
        )
    if vf.driver is None:
        reasons.append(_reason(Fault.DRIVER_UNBOUND, vf))
    elif vf.link_type == INFINIBAND and lacks_guid(vf):
        reasons.append(_reason(Fault.GUID_MISSING, vf))
    elif vf.by_vfio and vf.vfio_group is None:
        reasons.append(_reason(Fault.IOMMU_GROUP_MISSING, vf))
    return tuple(reasons)


def _missing(function: Function, present: Mapping[str, Function]) -> Reason:
    detail = sentence(Fault.DEVICE_MISSING, function)
    pf = present.get(function.parent) if function.parent else None
    if pf is not None:
        detail += f"; its PF has {pf.num_vfs or 0} VFs now"
    return Reason(Fault.DEVICE_MISSING.value, detail)


def _reason(fault: Fault, function: Function, netdev: str | None = None) -> Reason:
    return Reason(fault.value, sentence(fault, function, netdev))


def function_name(function: Function, netdev: str | None = None) -> str:
    kind = "PF" if function.parent is None else "VF"
    return f"{kind} {function.pci_address}" + (f" ({netdev})" if netdev else "")


def sentence(fault: Fault, function: Function, netdev: str | None = None) -> str:
    """Return the text of the reason of a fault. ``netdev`` is the last known netdev of a PF."""
    name = function_name(function, netdev)
    match fault:
        case Fault.DEVICE_MISSING:
            return f"{function_name(function)} is missing"
        case Fault.NOT_ANSWERING:
            return f"{name} does not answer: reading its files in sysfs hangs"
        case Fault.DRIVER_UNBOUND:
            return f"{function_name(function)} has no driver"
        case Fault.ADMIN_DOWN:
            return f"{name} is set down" + (f"; ip link set {netdev} up" if netdev else "")
        case Fault.CARRIER_DOWN:
            infiniband = function.link_type == INFINIBAND
            return f"{name} has {'a port that is not active' if infiniband else 'no carrier'}"
        case Fault.GUID_MISSING:
            how = "set `guid: auto` under vfs and run `nodeagent vfs apply`"
            return f"{function_name(function)} has no GUID and reaches no peer; {how}"
        case Fault.IOMMU_GROUP_MISSING:
            return (
                f"{function_name(function)} is bound to {function.driver} and has no IOMMU group, so no container can "
                "have it: enable the IOMMU, or the no-IOMMU mode of vfio"
            )
        case Fault.LINK_UNSEEN:
            return f"{name} does not report whether it has carrier"
