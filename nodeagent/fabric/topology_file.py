"""The topology file: known cabling, which LLDP need not, or cannot, find.

The file has priority over LLDP, so it must be consistent. An unlisted switch, uplinks in a circle, and a node or a
switch in two groups are refused, each with its line.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from nodeagent.config import formats
from nodeagent.config.faults import Conflict, Path, did_you_mean, quote
from nodeagent.config.setting import Settings, listed, setting
from nodeagent.config.settings_file import read_settings
from nodeagent.fabric.known_neighbors import NO_NEIGHBORS, KnownNeighbors
from nodeagent.fabric.switch_keys import address_key, chassis_key, full_key

_VALUES_MAX = 500_000
_MANY = 100_000

SwitchName = Annotated[str, formats.form(r"\S|\S.*\S", "a switch's name, chassis:SUBTYPE:ID or address:IP")]
NodeName = Annotated[
    str,
    formats.form(
        r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*",
        "a node's name",
        mend=lambda text: (text.lower(),),
        digits=True,
    ),
]


@dataclass(frozen=True, slots=True)
class StaticGroup:
    """A known leaf group: its switches, and nodes that belong to it whatever LLDP reports."""

    name: str
    switches: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Topology:
    """The content of the topology file: the uplinks of each switch by its key, and leaf groups. ``neighbors`` are those
    of InfiniBand links from another file."""

    uplinks: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    groups: tuple[StaticGroup, ...] = ()
    neighbors: KnownNeighbors = NO_NEIGHBORS


NO_TOPOLOGY = Topology()


class SwitchEntry(Settings, frozen=True, kw_only=True):
    """A switch of any tier."""

    name: Annotated[
        SwitchName,
        setting(
            "System name, as `nodeagent topology` prints it, or chassis:SUBTYPE:ID or address:IP where it has none."
        ),
    ]
    uplinks: Annotated[
        tuple[SwitchName, ...],
        listed("Switches above that this switch is cabled to; each must be listed under switches."),
    ] = ()


class GroupEntry(Settings, frozen=True, kw_only=True):
    """A known leaf group: its switches belong together, and to no other group."""

    name: Annotated[
        Annotated[str, formats.form(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?", "a group's name")],
        setting("Name of the group; a new HyperNode gets this name."),
    ]
    switches: Annotated[tuple[SwitchName, ...], listed("Leaf switches of the group.", _MANY)] = ()
    nodes: Annotated[
        tuple[NodeName, ...],
        listed(
            "Nodes that belong to the group whatever LLDP reports; other nodes are placed by LLDP.", _MANY
        ),
    ] = ()


class FabricTopology(Settings, frozen=True, kw_only=True):
    """Known cabling."""

    when_empty: ClassVar[str] = (
        "start it with the lines `apiVersion: nodeagent.io/v1alpha1` and `kind: FabricTopology`"
    )
    api_version: Annotated[
        Literal["nodeagent.io/v1alpha1"], setting("Version of this file's format.", required=True)
    ] = "nodeagent.io/v1alpha1"
    kind: Annotated[Literal["FabricTopology"], setting("Kind of this file.", required=True)] = (
        "FabricTopology"
    )
    switches: Annotated[
        tuple[SwitchEntry, ...],
        setting("Every switch that this file names.", max_length=_MANY),
    ] = ()
    groups: Annotated[tuple[GroupEntry, ...], setting("Known leaf groups.", max_length=_MANY)] = ()


def load_topology(text: str, *, name: str) -> Topology:
    """The topology in a file's text. Raises ``ConfigError`` with all errors of the file."""
    topology, _ = read_settings(
        text,
        FabricTopology,
        name=name,
        conflicts_of_valid=_conflicts,
        values_max=_VALUES_MAX,
    )
    return Topology(
        {switch_key(switch.name): tuple(map(switch_key, switch.uplinks)) for switch in topology.switches},
        tuple(
            StaticGroup(group.name, tuple(map(switch_key, group.switches)), group.nodes)
            for group in topology.groups
        ),
    )


def switch_key(name: str) -> str:
    """The key of a switch with this name in the file."""
    kind, _, chassis = name.partition(":")
    if kind == "chassis" and ":" in chassis:
        return chassis_key(chassis.replace(":", "=", 1))
    if kind == "address" and chassis:
        return address_key(chassis)
    return full_key(name)


def _conflicts(topology: FabricTopology) -> Iterator[Conflict]:
    """Path, message, and the path of what it collides with."""
    places: dict[str, Path] = {}
    for i, switch in enumerate(topology.switches):
        path: Path = ("switches", i, "name")
        if (first := places.setdefault(switch_key(switch.name), path)) != path:
            yield Conflict((path,), f"the switch {quote(switch.name)} is listed twice", first)
    names: dict[str, Path] = {}
    homes: dict[str, Path] = {}
    nodes: dict[str, Path] = {}
    for i, group in enumerate(topology.groups):
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
    for i, switch in enumerate(topology.switches):
        for j, name in enumerate(switch.uplinks):
            yield from _unknown(("switches", i, "uplinks", j), name, places)
    yield from _cycles(topology, places)


def _unknown(path: Path, name: str, places: dict[str, Path]) -> Iterator[Conflict]:
    if switch_key(name) not in places:
        hint = did_you_mean(name, places) if len(places) <= 1000 else ""
        yield Conflict((path,), f"the switch {quote(name)} is not listed under switches{hint}")


def _cycles(topology: FabricTopology, places: dict[str, Path]) -> Iterator[Conflict]:
    """Uplinks that lead back to where they began: one error for each circle."""
    uplinks = {
        switch_key(switch.name): tuple(map(switch_key, switch.uplinks)) for switch in topology.switches
    }
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
