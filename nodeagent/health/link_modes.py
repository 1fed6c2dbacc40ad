"""Ports that are in another mode than the other NICs of their kind: InfiniBand or Ethernet. Pure.

A ConnectX with VPI has the mode in its firmware, and keeps it when it moves to another machine. A port in the wrong
mode never has a link with its switch; one that works is in the mode that it should have.
"""

from __future__ import annotations

from collections.abc import Iterable

from nodeagent.facts.model import ETHERNET, INFINIBAND, Function, Gpu, GpuFunction, Link
from nodeagent.health.nic import roles

_ALIKE_MIN = 3
"""So many NICs of the same model and role are evidence of what the mode should be (our own choice)."""
_MODES = {INFINIBAND: 1, ETHERNET: 2}
"""The values of LINK_TYPE_P1 and LINK_TYPE_P2 (mlxconfig, MFT user manual)."""


def ports_in_another_mode(
    functions: Iterable[Function],
    links: Iterable[Link],
    gpus: Iterable[Gpu | GpuFunction],
    *,
    guest: bool = False,
) -> tuple[tuple[Function, str], ...]:
    """Return each PF without a link whose mode is not that of all other NICs of its model and role, at least three of
    which have a link, and what to do. ``guest``: the machine is a virtual one, whose host has the firmware."""
    pfs = [it for it in functions if it.parent is None and it.link_type in _MODES and not it.missing]
    active = {link.pci_address for link in links if link.carrier}
    of_role = roles(pfs, gpus)
    found = []
    for pf in pfs:
        others = [
            other
            for other in pfs
            if other is not pf and of_role[other.pci_address] == of_role[pf.pci_address]
        ]
        modes = {other.link_type for other in others}
        working = sum(other.pci_address in active for other in others)
        if pf.pci_address in active or len(modes) != 1 or pf.link_type in modes or working < _ALIKE_MIN:
            continue
        (mode,) = modes
        found.append((pf, _sentence(pf, str(mode), len(others), hosted=guest and pf.total_vfs is None)))
    return tuple(found)


def _sentence(pf: Function, mode: str, others: int, *, hosted: bool) -> str:
    words = {INFINIBAND: "InfiniBand", ETHERNET: "Ethernet"}
    port = int(pf.pci_address[-1]) + 1
    name = f"{pf.pci_address} ({pf.netdev})" if pf.netdev else pf.pci_address
    remedy = (
        f"mlxconfig -d {pf.pci_address} set LINK_TYPE_P{port}={_MODES[mode]} and reset the NIC (mlxfwreset), or reboot"
        if pf.driver in ("mlx5_core", "mlx4_core") and not hosted
        else "set the mode in the firmware of the NIC"
    ) + (", on the host of this virtual machine" if hosted else "")
    return (
        f"{name} is in {words[pf.link_type or '']} mode and has no link, and the other {others} NICs of its model are "
        f"in {words[mode]} mode: {remedy}"
    )
