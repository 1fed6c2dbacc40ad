"""Which facts of a node changed, in words: the health of NICs and GPUs, speed and MTU, neighbors, sources, the driver.

Pure. The first healthy sighting of a thing is not logged; otherwise every restart would log everything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from nodeagent.base.change_log import Change
from nodeagent.facts.model import Health, Neighbor, Snapshot

_PARTS = ("functions", "links", "gpus", "unusable_gpus", "neighbors", "stale_sources", "gpu_driver")
_ABSENT = {"nic": "not here", "gpu": "not here", "source": "answers"}
"""The word for a thing that is not in the facts. Of the other kinds the last value stays known: a link that is down has
no speed, and its neighbor is silent."""
_SOUND = "healthy"


class FactInWords(NamedTuple):
    where: str
    text: str
    details: tuple[str, ...] = ()
    names: tuple[str, ...] = ()


Facts = dict[tuple[str, str], FactInWords]
"""By kind and key."""


class NodeChanges:
    """Compares each snapshot with the one before. ``nics``: the names of the NICs with a rail, by PCI address."""

    def __init__(self, nics: Callable[[], Mapping[str, str]]) -> None:
        self._nics = nics
        self._last = Snapshot()
        self._known: Facts = {}

    def take(self, now: Snapshot, at: float) -> Iterable[Change]:
        """Return what differs from the last snapshot."""
        last, self._last = self._last, now
        if all(getattr(last, part) is getattr(now, part) for part in _PARTS):
            return ()
        return tuple(self._differences(dict(_facts(now, self._nics())), at))

    def _differences(self, facts: Facts, at: float) -> Iterator[Change]:
        for (what, key), fact in facts.items():
            before = self._known.get((what, key))
            absent = _ABSENT.get(what)
            self._known[what, key] = fact
            text = before.text if before is not None else _ABSENT.get(what) if what == "source" else ""
            first_and_sound = before is None and (absent is None or fact.text == _SOUND)
            if text != fact.text and not first_and_sound:
                names = fact.names if before is None else (*dict.fromkeys((*fact.names, *before.names)),)
                yield Change(at, what, fact.where, text or "", fact.text, fact.details, names)
        for what, key in [it for it in self._known if it not in facts and it[0] in _ABSENT]:
            gone = self._known.pop((what, key))
            yield Change(at, what, gone.where, gone.text, _ABSENT[what], (), gone.names)


def _facts(now: Snapshot, nics: Mapping[str, str]) -> Iterator[tuple[tuple[str, str], FactInWords]]:
    name_of: dict[str, str] = {}
    names_of: dict[str, tuple[str, ...]] = {}
    for pf in now.functions:
        if pf.parent is None:
            netdev = pf.netdev or pf.pci_address
            name_of[netdev] = where = nics.get(pf.pci_address, netdev)
            rdma = pf.rdma.device if pf.rdma else None
            names_of[netdev] = names = tuple(it for it in (pf.netdev, pf.pci_address, rdma) if it)
            yield ("nic", pf.pci_address), _health(where, pf.link_state, pf.health, names)
    for link in now.links:
        if link.speed_mbps is not None and link.carrier:
            text = f"{link.speed_mbps / 1000:g} Gbit/s, MTU {link.mtu}"
            where = name_of.get(link.netdev, link.netdev)
            yield ("link", link.pci_address), FactInWords(where, text, (), names_of.get(link.netdev, ()))
    for gpu in now.gpus:
        state = "lost" if gpu.lost else gpu.health.state.value
        names = (gpu.uuid, gpu.pci_address, f"GPU{gpu.index}")
        yield ("gpu", gpu.uuid), _health(f"gpu{gpu.index}", state, gpu.health, names)
    for lost in now.unusable_gpus:
        yield ("gpu", lost.place), _health(f"GPU at {lost.place}", lost.health.state.value, lost.health)
    for neighbor in now.neighbors:
        if not neighbor.stale and not neighbor.contender:
            where, switch = name_of.get(neighbor.link, neighbor.link), _switch(neighbor)
            names = (switch, *names_of.get(neighbor.link, ()))
            yield ("neighbor", neighbor.link), FactInWords(where, neighbor.place, (), names)
    for source in now.stale_sources:
        yield ("source", source.source), FactInWords(source.source, "no answer", (source.reason,))
    if now.gpu_driver is not None:
        yield ("driver", "gpu"), FactInWords("GPU driver", now.gpu_driver)


def _switch(neighbor: Neighbor) -> str:
    return neighbor.system_name or neighbor.chassis_id.value


def _health(where: str, state: str, health: Health, names: tuple[str, ...] = ()) -> FactInWords:
    keys = ", ".join(reason.key for reason in health.reasons)
    details = tuple(reason.detail for reason in health.reasons)
    return FactInWords(where, f"{state} ({keys})" if keys else state, details, names)
