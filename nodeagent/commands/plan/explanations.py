"""Explain a node, a switch or a HyperNode: the links that decide its place, and the result."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple

from nodeagent.base.duration import duration
from nodeagent.base.plain_text import one_line
from nodeagent.commands.plan.preview import Preview
from nodeagent.console.similar_names import similar_names
from nodeagent.console.terminal import PLAIN, Screen, columns, wrapped
from nodeagent.fabric.away_nodes import NO_AGENT
from nodeagent.fabric.groups import SwitchGroup
from nodeagent.fabric.hypernode import DERIVED_FROM, LEAF, NVLINK_DOMAIN, HyperNode, tier_name
from nodeagent.fabric.maintenance import standing
from nodeagent.fabric.outcome import in_trouble, link_state, state_of_letter
from nodeagent.fabric.reports import CompactReport, SwitchAnnouncement, shown
from nodeagent.fabric.switch_keys import plain
from nodeagent.fabric.troubles import odd_of, troubles
from nodeagent.facts.remedies import remedy_for

_DERIVED = {
    "topology-file": "the topology file joins them",
    "infiniband-cables": "their switches are cabled to the same ones in the file of `infinibandCables`",
    "spine-lldp": "their switches have the same LLDP neighbors above them",
    "name-pattern": "a pattern finds the same text in the names of their switches",
    "assume-full-bisection": "assumeFullBisection is set",
}
_NODES_MAX = 24
_TROUBLES_MAX = 6
_WEAKEST_OF = 64
_AT_SWITCH = ("NODE", "LINK", "PORT", "LLDP", "STATE")
LinkAt = tuple[str, str, str, str, str]
"""A link at a switch, in these columns."""


class UnknownNameError(Exception):
    """The input has nothing with this name. The message shows how to list the names."""


class Table(NamedTuple):
    """The links of a node or of a switch, or the switches below one (``key``)."""

    key: str
    heads: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]


class Explanation(NamedTuple):
    """The answer about one thing. ``kind``: node, switch or hypernode; ``hypernodes``: those above it, the lowest
    first."""

    kind: str
    name: str
    hypernodes: tuple[str, ...]
    sentences: tuple[str, ...]
    table: Table | None

    def as_text(self, on: Screen = PLAIN) -> str:
        lines = [part for line in self.sentences for part in wrapped(line, on)]
        if self.table is not None:
            lines += ["", *columns(self.table.heads, self.table.rows, on, optional=("RAIL", "GROUP"))]
        return "\n".join(lines)

    def as_document(self) -> dict[str, Any]:
        document: dict[str, Any] = self._asdict()
        del document["table"]
        document["sentences"] = [line.strip() for line in self.sentences]
        if self.table is not None:
            keys = [_camel(head) for head in self.table.heads]
            document[self.table.key] = [dict(zip(keys, row, strict=True)) for row in self.table.rows]
        return document


def _camel(head: str) -> str:
    first, *others = head.lower().split()
    return first + "".join(map(str.capitalize, others))


def explain(preview: Preview, name: str) -> Explanation:
    """Explain a node, a switch or a HyperNode. Raises ``UnknownNameError``."""
    plan = preview.plan
    levels, votes = plan.levels, plan.votes
    lines: Iterator[str | Table]
    if name in preview.wanted or name in preview.published:
        kind, lines, lowest = "hypernode", _hypernode(preview, name), preview.plan.parent.get(name)
    elif name in levels.reports or name in levels.refused or name in levels.nodes or name in plan.nodes.place:
        kind, lines = "node", _node(preview, name)
        lowest = plan.nvlink.of.get(name, plan.nodes.place.get(name))
    else:
        keys = (name, votes.names.key_of(name))
        kind, lowest = "switch", None
        if leaf := next((key for key in keys if key in votes.rails), None):
            lines = _switch(preview, leaf)
            home = plan.cabling.home(leaf)
            lowest = None if home is None else plan.names.names.get(home)
        elif upper := next((key for key in keys if plan.tiers.uplinks.below(key)), None):
            lines = _upper_switch(preview, upper)
        elif rows := _last_links_at(preview, name):
            lines = _silent_switch(preview, name, rows)
            lowest = next(_listing(preview, name), None)
        else:
            known = {
                *levels.reports,
                *levels.refused,
                *(plain(key) for key in votes.names.keys.values()),
                *preview.wanted,
                *preview.published,
            }
            similar = ", ".join(map(shown, similar_names(name, known)))
            hint = f"; similar are {similar}" if similar else ""
            raise UnknownNameError(
                f"{shown(name)} is not a node, switch or HyperNode in this input{hint}; `nodeagent topology` lists them"
            )
    said = [*_planned(preview, name), *lines]
    table = next((one for one in said if isinstance(one, Table)), None)
    sentences = tuple(one for one in said if isinstance(one, str))
    return Explanation(kind, name, tuple(_upwards(preview, lowest)), sentences, table)


def _planned(preview: Preview, name: str) -> Iterator[str]:
    """The planned work on a node, or the links of a switch that its work concerns."""
    of_switch: dict[str, list[str]] = {}
    for node, entry in standing(preview.plan.levels.maintained, time.time()):
        if node == name:
            yield f"Planned work on {entry.link or 'the whole node'}: {entry.sentence}."
        elif entry.switch == name:
            of_switch.setdefault(entry.sentence, []).append(f"{node} {entry.link}")
    for sentence, links in of_switch.items():
        yield f"Planned work on {_count(len(links), 'link')}, such as {links[0]}: {sentence}."


def _node(preview: Preview, node: str) -> Iterator[str | Table]:
    plan = preview.plan
    name = plan.nodes.place.get(node)
    lowest = plan.nvlink.of.get(node, name)
    if lowest is None:
        yield f"The node {node} is in no HyperNode."
    else:
        yield f"The node {node} is in {lowest}{_parents(preview, lowest)}."
    report = plan.levels.reports.get(node)
    if (away := plan.levels.away.get(node)) is not None:
        since = "" if away.since is None else f" for {duration(time.time() - away.since)}"
        state = "without an agent" if away.why == NO_AGENT else away.word
        yield f"It is {state}{since}: {away.detail}. Its links are as last reported."
    for fault in plan.levels.gpu_faults.get(node, ()):
        since = "" if fault.since is None else f" for {duration(time.time() - fault.since)}"
        yield f"{fault.gpu} is {fault.state}{since}{_said(fault.details)}; do: {remedy_for(fault.reasons, fault.gpu)}."
    if report is not None and report.domain:
        yield f"Its GPUs are in the NVLink domain {report.domain}."
    if node in plan.nvlink.adopted:
        yield "None of its links votes for a leaf group, so it goes with the other nodes of its domain."
    yield from (f"Reason: {unplaced.reason}." for unplaced in plan.outcome.unplaced if unplaced.node == node)
    here = plan.published.tiers[LEAF].placed.get(node)
    if here is not None and here != name:
        yield f"It is published in {here} now, and moves when its report has been stable for `moveSeconds`."
    elif here is not None:
        yield "It is published there."
    yield from _votes(preview, node, name)
    for anomaly in plan.outcome.anomalies:
        if anomaly.node == node or node in anomaly.nodes:
            yield f"Anomaly, {anomaly.kind}: {anomaly.message}."
    odd = odd_of(plan.rules, plan.levels.values, plan.levels.maintained, time.time())
    yield from (f"It is odd: {one.sentence}." for one in odd if node in one.nodes)
    yield from _links(preview, node)


def _said(details: Sequence[str]) -> str:
    return f": {'; '.join(detail.removesuffix('.') for detail in details)}" if details else ""


def _votes(preview: Preview, node: str, name: str | None) -> Iterator[str]:
    plan = preview.plan
    pattern = plan.votes.pattern(node)
    if pattern is None:
        if name is not None:
            yield "It has no accepted report. Missing reports change nothing, so it stays."
        return
    if any(node in group.nodes for group in plan.levels.topology.groups):
        yield "The topology file places it, whatever LLDP reports."
    yield f"It reports {_count(len(pattern.keys), 'link')} in the fabric {plan.rules.fabric}."
    for group, votes in sorted(pattern.votes.items(), key=lambda item: (-item[1], item[0].anchor)):
        name = plan.names.names.get(group)
        goes = "1 link goes" if votes == 1 else f"{votes} links go"
        yield f"{goes} to the switches around {plain(group.anchor)} ({name or 'a group without nodes'})."
    expired = sum(
        i in pattern.nodes[node].stale and not key and slot.neighbor is not None
        for i, (key, slot) in enumerate(zip(pattern.keys, pattern.nodes[node].shape, strict=True))
    )
    if without := pattern.links_without_neighbor - expired:
        has = "1 link has" if without == 1 else f"{without} links have"
        yield f"{has} no LLDP neighbor; such links count for the group in which the node is published."
    if expired:
        has = "1 link has" if expired == 1 else f"{expired} links have"
        yield f"{has} expired LLDP information; such links count for it too."


def _links(preview: Preview, node: str) -> Iterator[Table]:
    plan = preview.plan
    pattern = plan.votes.pattern(node)
    if pattern is None:
        return
    report = pattern.nodes[node]
    rows = []
    for i, slot in enumerate(report.shape):
        key = pattern.keys[i]
        home = plan.cabling.home(key) if key else None
        group = "" if home is None else plan.names.names.get(home, plain(home.anchor))
        state = _freshness(preview, node, report, i) if key else ""
        if not key and slot.neighbor is not None:
            key = shown(slot.neighbor.name or slot.neighbor.chassis)
            state = _not_counted(preview, slot.neighbor)
        rows.append(
            (
                shown(slot.link),
                shown(slot.rail),
                plain(key) or "none",
                shown(report.ports[i]),
                state,
                link_state(report, slot.link),
                group,
            )
        )
    yield Table("links", ("LINK", "RAIL", "SWITCH", "PORT", "LLDP", "STATE", "GROUP"), rows)


def _switch(preview: Preview, key: str) -> Iterator[str | Table]:
    plan = preview.plan
    votes, cabling = plan.votes, plan.cabling
    group = votes.of.get(key)
    home = cabling.home(key)
    name = None if home is None else plan.names.names.get(home)
    yield f"The switch {plain(key)} belongs to {name or 'no HyperNode'}."
    chassis = sorted({announcement.chassis for announcement, of in votes.names.keys.items() if of == key})
    yield f"It announces the chassis ID {', '.join(shown(text.partition('=')[2]) for text in chassis[:4])}."
    for current, of in sorted(votes.names.renamed.items()):
        if of == key:
            yield f"Its name is {plain(current)} now; the chassis ID is the same."
    if key in cabling.foreign:
        yield "It is foreign: another switch of their group serves the rail of the links that reach it."
    elif group is not None and home is not group:
        yield "Its own group has no nodes; it belongs to the group of most nodes that are cabled to it."
    rails = cabling.served(key)
    yield (
        f"It serves rail {shown(rails[0])}."
        if len(rails) == 1
        else f"It serves the rails {', '.join(map(shown, rails))}."
    )
    for other in () if group is None else group.leaves:
        if other != key:
            yield f"With {plain(other)}: {_common_nodes(preview, key, other)}."
    for anomaly in plan.outcome.anomalies:
        if anomaly.switch == key:
            yield f"Anomaly, {anomaly.kind}: {anomaly.message}."
    rows = _links_at(preview, key)
    yield from _carried(preview, rows)
    yield Table("links", _AT_SWITCH, sorted(rows))


def _last_links_at(preview: Preview, name: str) -> list[LinkAt]:
    """The links whose last neighbor has this name or chassis ID, though none of them counts for the tree: its
    information has expired, or they are of another fabric."""
    wanted, rows = name.lower(), list[LinkAt]()
    for node, report in preview.plan.levels.reports.items():
        for i, slot in enumerate(report.shape):
            if slot.neighbor is not None and wanted in (
                slot.neighbor.name.lower(),
                slot.neighbor.chassis.partition("=")[2].lower(),
            ):
                rows.append(_link_at(preview, node, report, i))
        for other, letter in zip(report.others, report.states[len(report.shape) :], strict=False):
            if wanted == other.switch.lower():
                of = f"of the fabric {shown(other.fabric)}" if other.fabric else "of no fabric"
                rows.append((node, shown(other.link), "", of, state_of_letter(letter)))
    return rows


def _listing(preview: Preview, name: str) -> Iterator[str]:
    """The leaf group that lists this switch."""
    for one in preview.wanted.values():
        if name.lower() in map(plain, one.switches):
            yield one.name


def _silent_switch(preview: Preview, name: str, rows: Collection[LinkAt]) -> Iterator[str | Table]:
    """A switch that no current link of the tree reaches: its links, since when they are down, and what to do."""
    here = next(_listing(preview, name), None)
    if all(lldp == "expired" for *_, lldp, _ in rows):
        yield f"The switch {shown(name)} is known by expired LLDP information alone: no link has heard it of late."
    else:
        yield f"The switch {shown(name)} serves no link of the fabric {preview.plan.rules.fabric}."
    if here is not None:
        yield f"The HyperNode {here} lists it; expired information moves no node."
    yield from _carried(preview, rows)
    own, now = {(node, link) for node, link, *_ in rows}, time.time()
    found = [one for one in troubles(preview.plan, at=now, held=preview.held) if own.intersection(one.links)]
    for one in found[:_TROUBLES_MAX]:
        since = "" if one.since is None else f", for {duration(now - one.since)}"
        yield f"{one.where}: {one.what}{since}; do: {one.remedy}."
    if found[_TROUBLES_MAX:]:
        yield f"Its links have {len(found) - _TROUBLES_MAX} troubles more: `nodeagent trouble` lists them."
    if not found:
        yield "No link of it has a fault: look whether the switch sends LLDP."
    yield Table("links", _AT_SWITCH, sorted(rows))


def _upper_switch(preview: Preview, key: str) -> Iterator[str | Table]:
    plan = preview.plan
    at = {
        leaf: _links_at(preview, leaf)
        for leaf in sorted(plan.tiers.uplinks.below(key) & plan.votes.rails.keys())
    }
    yield f"The switch {plain(key)} is above {_count(len(at), 'switch', 'switches')} of nodes."
    yield from _carried(preview, [row for rows in at.values() for row in rows])
    table = [
        (
            plain(leaf),
            str(len(rows)),
            str(len({row[0] for row in rows})),
            str(len(plan.tiers.uplinks.of(leaf) - {key})),
        )
        for leaf, rows in at.items()
    ]
    yield Table("switches", ("SWITCH", "LINKS", "NODES", "OTHER UPLINKS"), table)


def _links_at(preview: Preview, key: str) -> list[LinkAt]:
    return [
        _link_at(preview, node, report, i)
        for pattern in preview.plan.votes.at(key)
        for i, leaf in enumerate(pattern.keys)
        if leaf == key
        for node, report in pattern.nodes.items()
    ]


def _link_at(preview: Preview, node: str, report: CompactReport, i: int) -> LinkAt:
    link = report.shape[i].link
    lldp = _freshness(preview, node, report, i)
    return node, shown(link), shown(report.ports[i]), lldp, link_state(report, link)


def _carried(preview: Preview, rows: Collection[LinkAt]) -> Iterator[str]:
    """The links and nodes of these rows, and the pods with VFs of the links."""
    yield f"It carries {_count(len(rows), 'link')} of {_count(len({row[0] for row in rows}), 'node')}."
    carried = {(node, link) for node, link, *_ in rows}
    pods = sorted(
        f"{holder.namespace}/{holder.pod} on {node}"
        for node in {node for node, _ in carried}
        for holder in preview.holders.get(node, ())
        if any((node, shown(vf.link)) in carried for vf in holder.vfs)
    )
    if pods:
        yield f"{_count(len(pods), 'pod')} with VFs of these links: {one_line(', '.join(_shortened(tuple(pods))))}."


def _common_nodes(preview: Preview, leaf: str, other: str) -> str:
    both, either = preview.plan.votes.pairs.overlap(leaf, other)
    joined = "joined" if 2 * both >= either else "joined through other switches"
    if not both:
        joined = "joined by the topology file or through other switches"
    return f"{both} of the {either} nodes that decide have links to both, {joined}"


def _not_counted(preview: Preview, neighbor: SwitchAnnouncement) -> str:
    votes = preview.plan.votes
    if neighbor in votes.peers.of:
        return "a node, not counted"
    return "ambiguous, not counted" if neighbor in votes.names.ambiguous else "expired, not counted"


def _hypernode(preview: Preview, name: str) -> Iterator[str]:
    wanted, old = preview.wanted.get(name), preview.published.get(name)
    if wanted is None:
        assert old is not None
        if not old.ours:
            yield f"{name} belongs to {old.source or 'an unknown owner'}; nodeagent reads it and never changes it."
        else:
            yield f"{name} is published and would be deleted: it has no members left."
        return
    yield f"{name} is of tier {wanted.tier} ({wanted.tier_name}){_parents(preview, name)}."
    if old is None:
        yield "It is not published yet."
    elif old.same(wanted):
        yield "It is published as it should be."
    else:
        yield "It is published, and would be changed."
    if domain := wanted.note(NVLINK_DOMAIN):
        yield f"The GPUs of its nodes reach each other by NVLink: they are in the domain {domain}."
        yield f"Its nodes: {', '.join(_shortened(wanted.nodes))}."
        yield from _trouble(preview, name)
        return
    if wanted.children and wanted.tier_name != tier_name(LEAF):
        why = _DERIVED.get(wanted.note(DERIVED_FROM), "they are published together")
        yield f"Its {len(wanted.children)} members are together because {why}."
        yield from _trouble(preview, name)
        yield from (f"  {one_line(child)}" for child in wanted.children)
        return
    group = preview.plan.names.groups.get(name)
    if group is None:
        yield "No report votes for it now. Missing reports change nothing, so its members stay."
    else:
        yield from _group(preview, group, old)
    inside = {node for child in wanted.children for node in preview.wanted[child].nodes}
    if wanted.children:
        yield f"Its NVLink domains: {', '.join(_shortened(wanted.children))}."
    if wanted.nodes:
        beside = " outside of them" if wanted.children else ""
        yield f"Its nodes{beside}: {', '.join(_shortened(wanted.nodes))}."
    yield from _trouble(preview, name)
    for anomaly in preview.plan.outcome.anomalies:
        if anomaly.node in wanted.nodes or anomaly.node in inside:
            yield f"Anomaly, {anomaly.kind}: {anomaly.message}."


def _trouble(preview: Preview, name: str) -> Iterator[str]:
    """How many nodes below a HyperNode are in trouble, and why; nothing, if none is."""
    count, found = in_trouble(preview.wanted, preview.plan.levels.reports, name)
    if found:
        several = {node for names in found.values() for node in names}
        why = "; ".join(
            f"{state}: {len(found[state])} ({', '.join(found[state][:3])}{', …' if found[state][3:] else ''})"
            for state in sorted(found)
        )
        verb = "is" if len(several) == 1 else "are"
        yield f"{len(several)} of {_count(count, 'node')} {verb} in trouble: {why}."


def _shortened(names: tuple[str, ...]) -> tuple[str, ...]:
    if len(names) <= _NODES_MAX:
        return names
    return (*names[:_NODES_MAX], f"and {len(names) - _NODES_MAX} more")


def _group(preview: Preview, group: SwitchGroup, old: HyperNode | None) -> Iterator[str]:
    plan = preview.plan
    if group.static:
        yield f"It is the group {group.static} of the topology file."
    switches = sorted(plan.cabling.switches(group))
    rails = plan.cabling.rails(group.leaves)
    yield f"Its nodes are cabled to {_count(len(switches), 'switch', 'switches')}: {', '.join(map(plain, switches))}."
    if len(rails) > 1:
        yield f"The switches serve {len(rails)} rails."
    if (pair := _weakest_pair(preview, group)) is not None:
        yield f"{plain(pair[0])} and {plain(pair[1])} have the fewest nodes in common: {_common_nodes(preview, *pair)}."
    if old is not None:
        shared = {node for pattern in group.voters for node in pattern.nodes}.intersection(old.nodes)
        yield f"It keeps the name of the published object, with which it shares {_count(len(shared), 'node')}."


def _weakest_pair(preview: Preview, group: SwitchGroup) -> tuple[str, str] | None:
    """The two switches with the smallest share of common nodes, among the first of the group."""
    weakest: tuple[float, str, str] | None = None
    leaves = group.leaves[:_WEAKEST_OF]
    for i, leaf in enumerate(leaves):
        for other in leaves[i + 1 :]:
            both, either = preview.plan.votes.pairs.overlap(leaf, other)
            if both and (weakest is None or both / either < weakest[0]):
                weakest = (both / either, leaf, other)
    return None if weakest is None else weakest[1:]


def _parents(preview: Preview, name: str) -> str:
    above = (preview.wanted[parent] for parent in _upwards(preview, preview.plan.parent.get(name)))
    return "".join(f", below {one.name} (tier {one.tier}, {one.tier_name})" for one in above)


def _upwards(preview: Preview, name: str | None) -> Iterator[str]:
    """This HyperNode and those above it."""
    while name is not None:
        yield name
        name = preview.plan.parent.get(name)


def _freshness(preview: Preview, node: str, report: CompactReport, i: int) -> str:
    if node in preview.plan.levels.away:
        return "as last reported"
    return "expired" if i in report.stale else "current"


def _count(number: int, noun: str, nouns: str = "") -> str:
    return f"{number} {noun if number == 1 else nouns or noun + 's'}"
