"""The order of ports in a leaf group: a node sits at the same place of each leaf switch. Pure.

Halls are cabled so that the node of slot N has port N of each leaf. The difference between the ports of two links of a
node is then the same for all nodes: nothing, or one port where a leaf serves two rails. A group has an order if this
holds for nearly all links. The place of a node is that of most of its links, and a link elsewhere is a deviation.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

_NUMBER = re.compile(r"[0-9]{1,9}")

_Place = tuple[int, ...]
"""The numbers in a port's name, or differences of them."""


class NodePort(NamedTuple):
    """A link of a node, and the switch port that it is at."""

    node: str
    link: str
    switch: str
    port: str


class Deviation(NamedTuple):
    """The port where a link should be. ``exchanged`` is the node that is there, if that one should be here."""

    port: str
    exchanged: str = ""


def deviations(links: Iterable[NodePort]) -> dict[NodePort, Deviation] | None:
    """The links of a leaf group that are out of its order; ``None``: it has no order."""
    nodes: dict[str, dict[str, NodePort]] = {}
    for link in links:
        nodes.setdefault(link.node, {})[link.link] = link
    offsets = _offsets(nodes)
    expected: dict[NodePort, _Place] = {}
    count = 0
    for own in nodes.values():
        places = {
            own[name]: _minus(_place(own[name].port), offset)
            for name, offset in offsets.items()
            if name in own
        }
        count += len(places)
        usual = Counter(places.values()).most_common(1)
        for link, place in places.items() if usual and 2 * usual[0][1] > len(places) else ():
            if place != usual[0][0]:
                expected[link] = _minus(usual[0][0], _minus((0,) * len(place), offsets[link.link]))
    if len(offsets) < 2 or 4 * len(expected) > count:
        return None
    at = {(link.switch, _place(link.port)): link for link in expected}
    found = {}
    for link, place in expected.items():
        other = at.get((link.switch, place))
        exchanged = other is not None and expected[other] == _place(link.port)
        found[link] = Deviation(
            _named(link.port, place), other.node if other is not None and exchanged else ""
        )
    return found


def _offsets(nodes: Mapping[str, Mapping[str, NodePort]]) -> dict[str, _Place]:
    """By name of a link, the usual difference of its port to that of the most frequent link. A link that one node alone
    has says nothing: it may have any number of them."""
    counts = Counter(name for own in nodes.values() for name in own)
    names = {name: count for name, count in counts.items() if count > 1}
    if not names:
        return {}
    reference = max(names, key=lambda name: (names[name], name))
    offsets: dict[str, _Place] = {}
    for name in names:
        differences = Counter(
            _minus(_place(own[name].port), _place(own[reference].port))
            for own in nodes.values()
            if name in own and reference in own
        )
        for offset, count in differences.most_common(1):
            if offset and count > 1 and 2 * count >= differences.total():
                offsets[name] = offset
    return offsets if 4 * len(offsets) >= 3 * len(names) else {}


def _place(port: str) -> _Place:
    return tuple(map(int, _NUMBER.findall(port)))


def _minus(one: _Place, other: _Place) -> _Place:
    """Nothing, if the ports are not named alike."""
    return tuple(a - b for a, b in zip(one, other, strict=True)) if len(one) == len(other) else ()


def _named(port: str, place: _Place) -> str:
    """The name of the port at this place, as that of ``port``."""
    numbers = iter(place)
    return _NUMBER.sub(lambda _: str(next(numbers)), port) if len(place) == len(_place(port)) else ""
