"""The configuration of the planner: rules, times and the topology file, as frozen values.

The defaults are those of a controller without a configuration file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import reduce
from typing import Literal

from nodeagent.fabric.hypernode import tier_name

Foreign = Literal["refuse", "yield", "own"]
"""The policy for nodes that a foreign HyperNode holds too: write no tree at all, leave these nodes to the other owner,
or write the tree in spite of it."""

TIER_LABEL = "topology.nodeagent.io/tier-{tier}"
GENERIC_NAMES = (
    "localhost",
    "switch",
    "sonic",
    "cumulus",
    "arista",
    "leaf",
    "spine",
    "tor",
    "router",
    "bootstrap",
)
"""Factory-default system names of switches."""


@dataclass(frozen=True, slots=True)
class FabricRule:
    """Links that match every list belong to ``fabric``. The lists hold globs; an empty list matches every link."""

    fabric: str
    nodes: tuple[str, ...] = ()
    links: tuple[str, ...] = ()
    netdevs: tuple[str, ...] = ()
    pci_addresses: tuple[str, ...] = ()
    switches: tuple[str, ...] = ()
    min_speed_mbps: int = 0


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


@dataclass(frozen=True, slots=True)
class Hysteresis:
    """When a move takes effect. Times are in seconds.

    ``move_s``: how long a new place must be wanted. ``settle_s``: how long a new node waits for neighbors on all its
    links. ``grace_s``: how long a deleted node keeps its place. Moves are held for ``hold_s`` if more than ``share`` of
    the placed nodes, and more than ``least_nodes``, would move, or if more than ``share`` of the HyperNodes would go.
    """

    move_s: float = 60.0
    settle_s: float = 30.0
    grace_s: float = 300.0
    hold_s: float = 300.0
    share: float = 0.2
    least_nodes: int = 8


IMMEDIATE = Hysteresis(move_s=0.0, settle_s=0.0, grace_s=0.0, hold_s=0.0, share=1.0)
"""No waiting, for a single plan without a memory."""


@dataclass(frozen=True, slots=True)
class Rules:
    """The configuration of a planner.

    ``name_patterns`` are regular expressions with groups named ``tier2`` and ``tier3``: the text that such a group
    matches in a switch name is the name of the group above. ``label_keys`` are templates with ``{tier}``,
    ``{tierName}`` and ``{fabric}``.
    """

    fabric: str = "compute"
    fabric_rules: tuple[FabricRule, ...] = ()
    generic_names: tuple[str, ...] = GENERIC_NAMES
    topology: Topology = Topology()
    name_patterns: tuple[str, ...] = ()
    assume_full_bisection: bool = False
    min_links: int = 0
    label_keys: tuple[str, ...] = (TIER_LABEL,)
    foreign: Foreign = "refuse"
    hysteresis: Hysteresis = Hysteresis()

    def labels_of_tier(self, tier: int) -> tuple[str, ...]:
        """The keys of the node labels that carry the name of the object of this tier."""
        values = {"{tierName}": tier_name(tier), "{tier}": str(tier), "{fabric}": self.fabric}
        return tuple(
            reduce(lambda text, value: text.replace(*value), values.items(), key) for key in self.label_keys
        )
