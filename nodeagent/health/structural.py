"""How well the network functions do, from facts alone.

A PF is as well as its link; a VF is as well as its PF, and needs a driver of its own. Down both ways at
once: a verdict depends on the facts of the moment, and on the last verdict only where those cannot tell.

* A netdev that has gone while the driver is bound has been moved into another network namespace. On a VF
  that is what a pod does with it, and no fault. On a PF it hides the link: the state is unknown, and what
  was allocatable stays so.
* The carrier is believed before the operstate, which follows it by up to a second (linkwatch).
* InfiniBand has no administrative state of its own: IPoIB may be down while RDMA works.
* Only facts say that a function is missing: one that was judged before and is not among the functions now
  stays in the answer, missing, so that its id is never withdrawn while a pod may hold it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from enum import StrEnum

from nodeagent.model import HEALTHY, Function, Health, Link, Reason, State


class Fault(StrEnum):
    """The closed set of reasons, the gravest first."""

    DEVICE_MISSING = "device_missing"
    DRIVER_UNBOUND = "driver_unbound"
    ADMIN_DOWN = "admin_down"
    CARRIER_DOWN = "carrier_down"
    LINK_UNSEEN = "link_unseen"
    """Not a fault but ignorance: the state is unknown."""


_GRAVITY = {fault.value: place for place, fault in enumerate(Fault)}


def judge(
    functions: Iterable[Function], links: Iterable[Link], previous: Iterable[Function] = ()
) -> tuple[Function, ...]:
    """The functions with their health, and the missing ones, sorted by PCI address.

    ``previous`` is the last answer. A missing function keeps its last facts.
    """
    before = {function.pci_address: function for function in previous}
    by_pf = {link.pci_address: link for link in links}
    present = {function.pci_address: function for function in functions}
    judged = {
        address: replace(function, health=_missing(function, present))
        for address, function in before.items()
        if address not in present
    }
    for address, function in present.items():
        if function.parent is None:
            reasons = _pf(function, by_pf.get(address))
            judged[address] = _judged(function, _health(reasons, before.get(address)))
    for address, function in present.items():
        if function.parent is not None:
            reasons = _vf(function, judged.get(function.parent))
            judged[address] = _judged(function, _health(reasons, before.get(address)))
    return tuple(judged[address] for address in sorted(judged))


def _pf(pf: Function, link: Link | None) -> list[Reason]:
    if pf.driver is None:
        return [_reason(Fault.DRIVER_UNBOUND, f"{_name(pf)} has no driver")]
    if link is None:
        why = f"{_name(pf)} shows no link here: {pf.driver} has none, or it is in another network namespace"
        return [_reason(Fault.LINK_UNSEEN, why)]
    name = f"{_name(pf)} ({link.netdev})"
    infiniband = pf.link_type == "infiniband"
    if not link.admin_up and not infiniband:
        return [_reason(Fault.ADMIN_DOWN, f"{name} is set down; ip link set {link.netdev} up")]
    carrier = link.carrier
    if carrier is None and link.operstate not in (None, "unknown"):
        carrier = link.operstate == "up"
    if carrier is None:
        return [_reason(Fault.LINK_UNSEEN, f"{name} does not tell whether it has carrier")]
    if not carrier:
        what = "has a port that is not active" if infiniband else "has no carrier"
        return [_reason(Fault.CARRIER_DOWN, f"{name} {what}")]
    return []


def _vf(vf: Function, pf: Function | None) -> list[Reason]:
    reasons = [] if pf is None else list(pf.health.reasons)
    if pf is None:
        reasons.append(_reason(Fault.DEVICE_MISSING, f"PF {vf.parent} of {_name(vf)} is not there"))
    if vf.driver is None:
        reasons.append(_reason(Fault.DRIVER_UNBOUND, f"{_name(vf)} has no driver"))
    return reasons


def _missing(function: Function, present: dict[str, Function]) -> Health:
    detail = f"{_name(function)} is not there"
    pf = present.get(function.parent) if function.parent else None
    if pf is not None:
        detail += f"; its PF has {pf.num_vfs or 0} VFs now"
    return Health(State.DOWN, (_reason(Fault.DEVICE_MISSING, detail),), allocatable=False)


def _judged(function: Function, health: Health) -> Function:
    """The same value where nothing stands against it: most are well, and each look judges them all."""
    return function if function.health == health else replace(function, health=health)


def _health(reasons: list[Reason], before: Function | None) -> Health:
    if not reasons:
        return HEALTHY
    ordered = tuple(sorted(reasons, key=lambda reason: _GRAVITY[reason.key]))
    if ordered[0].key == Fault.LINK_UNSEEN:
        return Health(State.UNKNOWN, ordered, before.health.allocatable if before is not None else True)
    return Health(State.DOWN, ordered, allocatable=False)


def _name(function: Function) -> str:
    return f"{'PF' if function.parent is None else 'VF'} {function.pci_address}"


def _reason(fault: Fault, detail: str) -> Reason:
    return Reason(fault.value, detail)
