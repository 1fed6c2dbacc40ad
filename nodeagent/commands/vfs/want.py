"""What the configuration wants of each PF: its entries, laid over one another. No I/O.

Several entries may select one PF, to set up different VFs of it. They must not contradict each other: no
entry wins by its place, for a machine that is set up by the order of a list surprises whoever sorts it.
A setting that an entry leaves null agrees with anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from nodeagent.config.formats import index_range
from nodeagent.host.sriov import VfSettings
from nodeagent.kinds.resource_settings import VfsEntry
from nodeagent.model import Function
from nodeagent.offer import selected_pf

_OF_A_VF = ("driver", "trust", "spoof_check", "link_state", "min_tx_rate_mbps", "max_tx_rate_mbps")


@dataclass(frozen=True, slots=True)
class PfWant:
    """``drivers`` and ``settings`` are by VF index and hold only what is wanted of that VF."""

    count: int
    mtu: int | None = None
    drivers: dict[int, str] = field(default_factory=dict)
    settings: dict[int, VfSettings] = field(default_factory=dict)
    contradictions: tuple[str, ...] = ()


def wanted(entries: Sequence[VfsEntry], pf: Function) -> PfWant | None:
    """``None`` where no entry selects the PF."""
    selecting = [(i, entry) for i, entry in enumerate(entries) if selected_pf(entry.select, pf)]
    if not selecting:
        return None
    says: dict[tuple[str, int | None], tuple[Any, int]] = {}
    against: list[str] = []
    for i, entry in selecting:
        for name, index, value in _sayings(entry):
            other, j = says.setdefault((name, index), (value, i))
            if other != value:
                what = name if index is None else f"{name} of VF {index}"
                against.append(f"{what} is {other} in vfs[{j}], and {value} in vfs[{i}]")
    drivers: dict[int, str] = {}
    settings: dict[int, VfSettings] = {}
    for (name, index), (value, _) in says.items():
        if index is not None and name == "driver":
            drivers[index] = str(value)
        elif index is not None:
            settings[index] = replace(settings.get(index, VfSettings()), **{name: value})
    count = selecting[0][1].count
    mtu = next((entry.mtu for _, entry in selecting if entry.mtu is not None), None)
    return PfWant(count, mtu, drivers, settings, tuple(against))


def _sayings(entry: VfsEntry) -> Iterable[tuple[str, int | None, Any]]:
    """Setting, VF index (none: the PF's own), value."""
    yield "count", None, entry.count
    if entry.mtu is not None:
        yield "mtu", None, entry.mtu
    ranges = [index_range(text) for text in entry.vf_indexes] or [range(entry.count)]
    for name in _OF_A_VF:
        value = getattr(entry, name)
        if value is not None:
            yield from ((name, index, value) for indexes in ranges for index in indexes)
