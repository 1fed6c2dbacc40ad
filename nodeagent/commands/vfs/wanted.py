"""Derive the target state of a PF from the entries of the configuration. No I/O.

Several entries may select one PF, to configure different VFs of it. They must not contradict each other: no entry
takes priority by its position, because sorting the list would then change the machine. A null setting agrees with
any value.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from nodeagent.config.formats import index_range
from nodeagent.facts.model import Function
from nodeagent.host.sriov import VfSettings
from nodeagent.kinds.hardware_selection import selected_pf
from nodeagent.kinds.resource_settings import VfsEntry

_OF_A_VF = ("driver", "guid", "trust", "spoof_check", "link_state", "min_tx_rate_mbps", "max_tx_rate_mbps")


@dataclass(frozen=True, slots=True)
class PfWant:
    """``drivers`` and ``settings`` are by VF index and hold only configured values. ``guids``: the indexes of the VFs
    that get a GUID if they have none."""

    count: int
    mtu: int | None = None
    drivers: dict[int, str] = field(default_factory=dict)
    settings: dict[int, VfSettings] = field(default_factory=dict)
    guids: frozenset[int] = frozenset()
    contradictions: tuple[str, ...] = ()


def wanted(entries: Sequence[VfsEntry], pf: Function) -> PfWant | None:
    """The target state; ``None`` if no entry selects the PF."""
    selecting = [(i, entry) for i, entry in enumerate(entries) if selected_pf(entry.select, pf)]
    if not selecting:
        return None
    values: dict[tuple[str, int | None], tuple[Any, int]] = {}
    contradictions: list[str] = []
    for i, entry in selecting:
        for name, index, value in _values(entry):
            other, j = values.setdefault((name, index), (value, i))
            if other != value:
                what = name if index is None else f"{name} of VF {index}"
                contradictions.append(f"{what} is {other} in vfs[{j}], and {value} in vfs[{i}]")
    drivers: dict[int, str] = {}
    settings: dict[int, VfSettings] = {}
    for (name, index), (value, _) in values.items():
        if index is not None and name == "driver":
            drivers[index] = str(value)
        elif name == "guid":
            continue
        elif index is not None:
            settings[index] = replace(settings.get(index, VfSettings()), **{name: value})
    count = selecting[0][1].count
    mtu = next((entry.mtu for _, entry in selecting if entry.mtu is not None), None)
    guids = frozenset(index for name, index in values if name == "guid" and index is not None)
    return PfWant(count, mtu, drivers, settings, guids, tuple(contradictions))


def _values(entry: VfsEntry) -> Iterable[tuple[str, int | None, Any]]:
    """Setting, VF index (``None`` for the PF's own settings), value."""
    yield "count", None, entry.count
    if entry.mtu is not None:
        yield "mtu", None, entry.mtu
    ranges = [index_range(text) for text in entry.vf_indexes] or [range(entry.count)]
    for name in _OF_A_VF:
        value = getattr(entry, name)
        if value is not None:
            yield from ((name, index, value) for indexes in ranges for index in indexes)
