"""Why something is where it is, in sentences: the evidence, and what was made of it."""

from __future__ import annotations

from collections.abc import Iterator

from nodeagent.commands.plan.preview import Look
from nodeagent.fabric.groups import Group
from nodeagent.fabric.hypernode import DERIVED_FROM, HyperNode
from nodeagent.fabric.reports import shown
from nodeagent.one_line import one_line
from nodeagent.text_table import columns

_DERIVED = {
    "topology-file": "the topology file says so",
    "spine-lldp": "their switches hear the same switches above them",
    "name-pattern": "the names of their switches share what a pattern looks for",
    "assume-full-bisection": "assumeFullBisection says that everything is one",
}
_MANY = 24


class UnknownError(Exception):
    """Nothing is known by this name; the message says what there is."""


def explain(look: Look, word: str) -> str:
    """A node, a switch or a HyperNode. Raises ``UnknownError``."""
    wanted = {one.name: one for one in look.outcome.hypernodes}
    told = look.planner.told
    if word in wanted or word in look.published:
        lines = _hypernode(look, word, wanted)
    elif (
        word in told.reports
        or word in told.refused
        or word in told.nodes
        or word in look.planner.seating.seat
    ):
        lines = _node(look, word, wanted)
    else:
        directory = look.planner.evidence.directory
        keys = [key for key in (word, directory.key_of(word)) if key in look.planner.evidence.graph]
        if not keys:
            raise UnknownError(
                f"{shown(word)} is no node, switch or HyperNode in this input; `nodeagent topology` shows what is"
            )
        lines = _switch(look, keys[0])
    return "\n".join(lines)


def _node(look: Look, node: str, wanted: dict[str, HyperNode]) -> Iterator[str]:
    planner = look.planner
    name = planner.seating.seat.get(node)
    if name is None:
        yield f"The node {node} is in no HyperNode."
    else:
        yield f"The node {node} is in {name}{_above(look, name, wanted)}."
    yield from (f"Reason: {one.reason}." for one in look.outcome.unplaced if one.node == node)
    here = planner.seating.placed.get(node)
    if here is not None and here != name:
        yield f"It is published in {here} at present, and moves when its report has stood for its time."
    elif here is not None:
        yield "It is published there."
    yield from _votes(look, node, name)
    yield from (f"Anomaly, {one.kind}: {one.message}." for one in look.outcome.anomalies if one.node == node)
    yield from _links(look, node)


def _votes(look: Look, node: str, name: str | None) -> Iterator[str]:
    planner = look.planner
    wiring = planner.evidence.wiring(node)
    if wiring is None:
        if name is not None:
            yield "It has no report that counts; silence changes nothing."
        return
    if node in {node for group in planner.rules.topology.groups for node in group.nodes}:
        yield "The topology file puts it there, whatever is heard."
    total = len(wiring.keys)
    yield f"It reports {_count(total, 'link')} in the fabric {planner.rules.fabric}."
    for group, votes in sorted(wiring.votes.items(), key=lambda one: (-one[1], one[0].anchor)):
        called = planner.matching.names.get(group)
        what = f"which is {called}" if called else "which no group of nodes is around"
        yield f"{_count(votes, 'link')} of them to the switches around {group.anchor}, {what}."
    if wiring.silent:
        yield f"On {_count(wiring.silent, 'link')} nobody is heard; that counts for where the node is published."


def _links(look: Look, node: str) -> Iterator[str]:
    planner = look.planner
    wiring = planner.evidence.wiring(node)
    if wiring is None:
        return
    report = wiring.nodes[node]
    rows = []
    for i, slot in enumerate(wiring.shape):
        key = wiring.keys[i]
        home = planner.cabling.home(key) if key else None
        group = "" if home is None else planner.matching.names.get(home, home.anchor)
        state = "" if not key else "last known" if report.stale >> i & 1 else "heard"
        rows.append(
            (shown(slot.link), shown(slot.rail), key or "nobody", shown(report.ports[i]), state, group)
        )
    yield ""
    yield from columns(("LINK", "RAIL", "SWITCH", "PORT", "", "GROUP"), rows)


def _switch(look: Look, key: str) -> Iterator[str]:
    planner = look.planner
    evidence, cabling = planner.evidence, planner.cabling
    group = evidence.graph.of[key]
    home = cabling.home(key)
    called = None if home is None else planner.matching.names.get(home)
    yield f"The switch {key} is counted to {called or 'no HyperNode'}."
    chassis = sorted({heard.chassis for heard, known in evidence.directory.keys.items() if known == key})
    yield f"It announces itself with the chassis ID {', '.join(shown(one.partition('=')[2]) for one in chassis[:4])}."
    for name, known in sorted(evidence.directory.renamed.items()):
        if known == key:
            yield f"It calls itself {name} now; the chassis is the same."
    if home is not group:
        yield "No group of nodes is around it; it is counted to where most of its nodes are."
    rail = cabling.rail.get(key)
    yield (
        f"It serves rail {shown(rail)}."
        if rail
        else "It serves no rail in particular: its links are of several."
    )
    for other in group.leaves:
        if other != key:
            yield f"With {other}: {_shared(look, key, other)}."
    yield from (f"Anomaly, {one.kind}: {one.message}." for one in look.outcome.anomalies if one.switch == key)
    rows = []
    for wiring in evidence.wirings(key):
        for i, found in enumerate(wiring.keys):
            if found == key:
                slot = wiring.shape[i]
                rows += [
                    (
                        node,
                        shown(slot.link),
                        shown(report.ports[i]),
                        "last known" if report.stale >> i & 1 else "heard",
                    )
                    for node, report in wiring.nodes.items()
                ]
    yield ""
    yield from columns(("NODE", "LINK", "PORT", ""), sorted(rows))


def _shared(look: Look, one: str, other: str) -> str:
    both, either = look.planner.evidence.graph.overlap(one, other)
    joined = "joined" if 2 * both >= either else "joined by way of others"
    if not both:
        joined = "told to be together, or joined by way of others"
    return f"{both} of the {either} nodes that hear either hear both, {joined}"


def _hypernode(look: Look, name: str, wanted: dict[str, HyperNode]) -> Iterator[str]:
    one, old = wanted.get(name), look.published.get(name)
    if one is None:
        assert old is not None
        if not old.ours:
            yield f"{name} belongs to {old.source or 'nobody known'}; it is read and never touched."
        else:
            yield f"{name} is published, and would be deleted: no member is left for it."
        return
    yield f"{name} is of tier {one.tier} ({one.tier_name}){_above(look, name, wanted)}."
    if old is None:
        yield "It is not published yet."
    else:
        yield (
            "It is published as it should be." if old.same(one) else "It is published, and would be changed."
        )
    if one.children:
        why = _DERIVED.get(one.note(DERIVED_FROM), "it is published so")
        yield f"Its {len(one.children)} members are together because {why}."
        yield from (f"  {one_line(child)}" for child in one.children)
        return
    group = look.planner.matching.groups.get(name)
    if group is None:
        yield "No report speaks for it at present; its members stay, for silence changes nothing."
    else:
        yield from _group(look, group, old)
    members = (
        one.nodes if len(one.nodes) <= _MANY else (*one.nodes[:_MANY], f"and {len(one.nodes) - _MANY} more")
    )
    yield f"Its nodes: {', '.join(members)}."
    yield from (
        f"Anomaly, {odd.kind}: {odd.message}." for odd in look.outcome.anomalies if odd.node in one.nodes
    )


def _group(look: Look, group: Group, old: HyperNode | None) -> Iterator[str]:
    planner = look.planner
    if group.static:
        yield f"It is the group {group.static} of the topology file."
    switches = sorted(planner.leaves.switches(group))
    rails = sorted(planner.cabling.rails(group))
    yield f"It is the nodes around {_count(len(switches), 'switch', 'switches')}: {', '.join(switches)}."
    if len(rails) > 1:
        yield f"They serve {len(rails)} rails."
    weakest: tuple[float, str, str] | None = None
    for i, one in enumerate(group.leaves[:64]):
        for other in group.leaves[i + 1 : 64]:
            both, either = planner.evidence.graph.overlap(one, other)
            if both and (weakest is None or both / either < weakest[0]):
                weakest = (both / either, one, other)
    if weakest is not None:
        yield f"Least in common have {weakest[1]} and {weakest[2]}: {_shared(look, weakest[1], weakest[2])}."
    if old is not None:
        both = len(set(old.nodes) & {node for wiring in group.voters for node in wiring.nodes})
        yield f"It keeps the name of the published object, with which it shares {_count(both, 'node')}."


def _above(look: Look, name: str, wanted: dict[str, HyperNode]) -> str:
    parts = []
    parent = look.planner.tower.parent.get(name)
    while parent is not None:
        parts.append(f"below {parent} (tier {wanted[parent].tier}, {wanted[parent].tier_name})")
        parent = look.planner.tower.parent.get(parent)
    return "".join(f", {part}" for part in parts)


def _count(number: int, noun: str, nouns: str = "") -> str:
    return f"{number} {noun if number == 1 else nouns or noun + 's'}"
