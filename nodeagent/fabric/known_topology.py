"""The content of the topology file, as the planner uses it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class StaticGroup:
    """A known leaf group: its switches, and nodes that belong to it whatever LLDP reports."""

    name: str
    switches: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Topology:
    """The content of the topology file: the uplinks of each switch by its key, and leaf groups."""

    uplinks: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    groups: tuple[StaticGroup, ...] = ()


NO_TOPOLOGY = Topology()
