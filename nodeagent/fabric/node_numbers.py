"""The numbers of nodes in the prefixes of rails: each number once, and a node keeps its own.

VFs get addresses in pods by the number of their node (``attach/address_plan.py``). The address of a PF gives it. Where
there is none, the node gets the lowest free number. The objects that ``rail_keeper`` writes are the only memory: an
object goes with its Node, and its numbers are free then.

A number is that of a PF, by its PCI address: a NIC more on a rail may take the name of another one, whose pods have
addresses by the number.

A node that was first keeps its number. Another one that reports the same is told who has it, and gives pods no address
on this rail: so no report takes the addresses of running pods away.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Mapping
from itertools import count

import msgspec

from nodeagent.fabric.nodelinks import Metadata
from nodeagent.fabric.rail_partners import NUMBER_MAX, RAILS_MAX, RailNumber, RailPartners, RailPartnersSpec
from nodeagent.fabric.reports import CompactReport, NumberedLink

Numbers = Mapping[str, tuple[RailNumber, ...]]
"""By node."""


# gc=False: the values hold texts and numbers alone, and Python's search for circles of objects would go through them
# again and again: at 5,000 nodes of 8 links through 434,000 objects, without them through 100,000.


class _End(msgspec.Struct, frozen=True, order=True, gc=False):
    """``pf`` is the PCI address; of a report or an object without one the name of the link. Each prefix has numbers of
    its own: after a change of the settings running pods still have addresses of the earlier one."""

    node: str
    pf: str
    prefix: str


class _Numbered(msgspec.Struct, frozen=True, order=True, gc=False):
    prefix: str
    number: int


class NumberBook:
    """The numbers that nodes have."""

    def __init__(self) -> None:
        self._of: dict[_End, _Numbered] = {}
        self._names: dict[_End, str] = {}
        """The links as they were named last."""

    def clear(self) -> None:
        self._of, self._names = {}, {}

    def adopt(self, node: str, numbers: Iterable[RailNumber]) -> None:
        """Take the numbers that are in force from the object of a node."""
        for one in numbers:
            if not one.holder:
                end = _End(node, one.pci_address or one.rail, one.prefix)
                self._of[end], self._names[end] = _Numbered(one.prefix, one.number), one.rail

    def assign(self, reports: Mapping[str, CompactReport], nodes: Container[str]) -> Numbers:
        """The numbers of all ``nodes``, also of those without a report."""
        wanted = {
            _End(node, one.pf or one.link, one.prefix): one
            for node, report in sorted(reports.items())
            if node in nodes
            for one in sorted(report.numbered[:RAILS_MAX])
            if one.number <= NUMBER_MAX
        }
        for end, link in wanted.items():
            named = _End(end.node, link.link, link.prefix)
            if (
                end not in self._of and named != end and named in self._of
            ):  # an earlier release knew the name alone
                self._of[end] = self._of.pop(named)
            self._names[end] = link.link
        kept, owners = self._kept(wanted, nodes), dict[_Numbered, _End]()
        for end, place in sorted(kept.items()):
            if owners.setdefault(place, end) != end:  # two objects, written by hand
                del kept[end]
        refused: dict[_End, tuple[_Numbered, str]] = {}
        for end, link in wanted.items():
            place = _Numbered(link.prefix, link.number)
            if link.number and end not in kept:
                owner = owners.setdefault(place, end)
                if owner.node == end.node and owner not in wanted:  # the NIC had this name before
                    del kept[owner]
                    owner = owners[place] = end
                if owner == end:
                    kept[end] = place
                else:
                    refused[end] = place, owner.node
        free = {prefix: count(1) for prefix in {link.prefix for link in wanted.values()}}
        for end, link in wanted.items():
            if not link.number and end not in kept:
                place = next(
                    it for number in free[link.prefix] if (it := _Numbered(link.prefix, number)) not in owners
                )
                kept[end], owners[place] = place, end
        self._of = kept
        self._names = {end: self._names[end] for end in kept.keys() | refused.keys()}
        return self._by_node(refused)

    def _kept(self, wanted: Mapping[_End, NumberedLink], nodes: Container[str]) -> dict[_End, _Numbered]:
        """The numbers that stay while there is the Node: the report of the link names no other one. A report may lack a
        link for a moment, and pods have addresses by its number. Of such links an object has room for some."""
        kept, room = {}, Counter({end.node: RAILS_MAX for end in self._of})
        room.subtract(end.node for end in wanted)
        for end, place in sorted(self._of.items()):
            link = wanted.get(end)
            if link is not None:
                stays = link.number in (0, place.number)
            else:
                stays = end.node in nodes and room[end.node] > 0
                room[end.node] -= stays
            if stays:
                kept[end] = place
        return kept

    def _by_node(self, refused: Mapping[_End, tuple[_Numbered, str]]) -> Numbers:
        found: dict[str, list[RailNumber]] = {}
        every = {**{end: (place, "") for end, place in self._of.items()}, **refused}
        for end, (place, holder) in sorted(every.items()):
            name = self._names[end]
            pf = "" if end.pf == name else end.pf
            one = RailNumber(
                rail=name, pci_address=pf, prefix=place.prefix, number=place.number, holder=holder
            )
            found.setdefault(end.node, []).append(one)
        return {node: tuple(numbers) for node, numbers in found.items()}


def with_numbers(lists: Iterable[RailPartners], numbers: Numbers) -> Iterable[RailPartners]:
    """Yield the objects with the numbers of their nodes, then those of nodes without partners."""
    seen = set()
    for one in lists:
        node = one.metadata.name or ""
        seen.add(node)
        spec = RailPartnersSpec(rails=one.spec.rails, numbers=numbers.get(node, ()))
        yield RailPartners(metadata=one.metadata, spec=spec)
    for node, of in numbers.items():
        if node not in seen:
            yield RailPartners(metadata=Metadata(name=node), spec=RailPartnersSpec(numbers=of))
