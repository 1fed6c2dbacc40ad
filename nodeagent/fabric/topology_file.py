"""The static topology file: what is known of the cabling and need not, or cannot, be heard.

The law of this file: what it says wins over whatever is heard, so it must be of one piece. A switch that is not
listed, uplinks that lead back, a node or a switch in two groups are refused, each with its line.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from nodeagent.config import formats
from nodeagent.config.faults import Conflict, Path, did_you_mean, quote
from nodeagent.config.setting import Settings, listed, setting
from nodeagent.config.settings_file import read_settings
from nodeagent.fabric.names import chassis_key, full
from nodeagent.fabric.rules import StaticGroup, Topology

_VALUES_MAX = 500_000
_MANY = 100_000

SwitchName = Annotated[str, formats.form(r"[^\s,]+", "a switch's name, or chassis:SUBTYPE:ID")]
NodeName = Annotated[
    str,
    formats.form(
        r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*",
        "a node's name",
        mend=lambda text: (text.lower(),),
        digits=True,
    ),
]


class SwitchEntry(Settings, frozen=True, kw_only=True):
    """A switch, of whichever tier."""

    name: Annotated[
        SwitchName,
        setting(
            "The system name, as `nodeagent topology` shows it, or chassis:SUBTYPE:ID where it has none."
        ),
    ]
    uplinks: Annotated[
        tuple[SwitchName, ...], listed("The switches above it that it has cables to; they are listed too.")
    ] = ()


class GroupEntry(Settings, frozen=True, kw_only=True):
    """A leaf group that need not be found: its switches are together, and with no other."""

    name: Annotated[
        Annotated[str, formats.form(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?", "a group's name")],
        setting("What the group is called; a new HyperNode is named for it."),
    ]
    switches: Annotated[tuple[SwitchName, ...], listed("Its leaf switches.", _MANY)] = ()
    nodes: Annotated[
        tuple[NodeName, ...],
        listed("Nodes that are in it whatever is heard; others are where they are heard.", _MANY),
    ] = ()


class FabricTopology(Settings, frozen=True, kw_only=True):
    """What is known of the cabling."""

    api_version: Annotated[
        Literal["nodeagent.io/v1alpha1"], setting("The version of this file's form.", required=True)
    ] = "nodeagent.io/v1alpha1"
    kind: Annotated[Literal["FabricTopology"], setting("What this file is.", required=True)] = (
        "FabricTopology"
    )
    switches: Annotated[
        tuple[SwitchEntry, ...],
        setting("Every switch that is named anywhere in this file.", max_length=_MANY),
    ] = ()
    groups: Annotated[tuple[GroupEntry, ...], setting("Leaf groups that are known.", max_length=_MANY)] = ()


def load_topology(text: str, *, name: str) -> Topology:
    """The topology in a file's text. Raises ``ConfigError`` with all faults of the file."""
    found, _ = read_settings(
        text, FabricTopology, name=name, conflicts_of_valid=_conflicts, values_max=_VALUES_MAX
    )
    return Topology(
        {switch_key(switch.name): tuple(map(switch_key, switch.uplinks)) for switch in found.switches},
        tuple(
            StaticGroup(group.name, tuple(map(switch_key, group.switches)), group.nodes)
            for group in found.groups
        ),
    )


def switch_key(name: str) -> str:
    """What the fabric calls a switch that is written so."""
    kind, _, chassis = name.partition(":")
    if kind == "chassis" and ":" in chassis:
        return chassis_key(chassis.replace(":", "=", 1))
    return full(name)


def _conflicts(found: FabricTopology) -> Iterator[Conflict]:
    """Path, message, and the path of what it collides with."""
    places: dict[str, Path] = {}
    for i, switch in enumerate(found.switches):
        path: Path = ("switches", i, "name")
        if (first := places.setdefault(switch_key(switch.name), path)) != path:
            yield Conflict((path,), f"the switch {quote(switch.name)} is listed twice", first)
    names: dict[str, Path] = {}
    homes: dict[str, Path] = {}
    nodes: dict[str, Path] = {}
    for i, group in enumerate(found.groups):
        path = ("groups", i, "name")
        if (first := names.setdefault(group.name, path)) != path:
            yield Conflict((path,), f"there is another group {quote(group.name)}", first)
        for j, name in enumerate(group.switches):
            path = ("groups", i, "switches", j)
            yield from _unknown(path, name, places)
            if (first := homes.setdefault(switch_key(name), path)) != path:
                yield Conflict((path,), f"the switch {quote(name)} is in another group already", first)
        for j, node in enumerate(group.nodes):
            path = ("groups", i, "nodes", j)
            if (first := nodes.setdefault(node, path)) != path:
                yield Conflict((path,), f"the node {quote(node)} is in another group already", first)
        if not group.switches and not group.nodes:
            yield Conflict((("groups", i),), f"the group {quote(group.name)} has neither switches nor nodes")
    for i, switch in enumerate(found.switches):
        for j, name in enumerate(switch.uplinks):
            yield from _unknown(("switches", i, "uplinks", j), name, places)
    yield from _cycles(found, places)


def _unknown(path: Path, name: str, places: dict[str, Path]) -> Iterator[Conflict]:
    if switch_key(name) not in places:
        hint = did_you_mean(name, places) if len(places) <= 1000 else ""
        yield Conflict((path,), f"the switch {quote(name)} is not listed under switches{hint}")


def _cycles(found: FabricTopology, places: dict[str, Path]) -> Iterator[Conflict]:
    """Uplinks that lead back to where they began: one fault for each circle."""
    uplinks = {switch_key(switch.name): tuple(map(switch_key, switch.uplinks)) for switch in found.switches}
    done: set[str] = set()
    for start in uplinks:
        way: list[str] = []
        on_way: set[str] = set()
        todo: list[tuple[str, bool]] = [(start, False)]
        while todo:
            name, leaving = todo.pop()
            if leaving:
                on_way.discard(way.pop())
                done.add(name)
            elif name in on_way:
                circle = [*way[way.index(name) :], name]
                message = f"the uplinks lead in a circle: {' > '.join(map(_short, circle))}"
                yield Conflict(((*places[name][:2], "uplinks"),), message)
            elif name not in done and name in uplinks:
                way.append(name)
                on_way.add(name)
                todo.append((name, True))
                todo += [(up, False) for up in uplinks[name]]


def _short(name: str) -> str:
    return name if len(name) <= 40 else name[:37] + "..."
