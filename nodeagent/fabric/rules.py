"""What the fabric is told rather than hears: rules, times and the static topology, as frozen values.

The defaults are those of a controller without a configuration file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import reduce
from typing import Literal

from nodeagent.fabric.hypernode import tier_name

Foreign = Literal["refuse", "yield", "own"]
"""What happens where HyperNodes of another owner hold our nodes: write nothing, leave those nodes to the
other, or write all the same."""

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
"""System names that switches have before somebody gives them one."""


@dataclass(frozen=True, slots=True)
class FabricRule:
    """Links that match all the lists given belong to ``fabric``; globs, and an empty list asks for nothing."""

    fabric: str
    nodes: tuple[str, ...] = ()
    links: tuple[str, ...] = ()
    netdevs: tuple[str, ...] = ()
    pci_addresses: tuple[str, ...] = ()
    switches: tuple[str, ...] = ()
    min_speed_mbps: int = 0


@dataclass(frozen=True, slots=True)
class StaticGroup:
    """A leaf group that is not to be found but known: its switches, and nodes that are in it whatever is heard."""

    name: str
    switches: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Topology:
    """The static topology file: the uplinks of each switch (by key), and groups."""

    uplinks: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    groups: tuple[StaticGroup, ...] = ()


@dataclass(frozen=True, slots=True)
class Hysteresis:
    """Times in seconds, shares of all placed nodes (or of all HyperNodes) as fractions."""

    move_s: float = 60.0
    settle_s: float = 30.0
    grace_s: float = 300.0
    hold_s: float = 300.0
    share: float = 0.2
    least_nodes: int = 8


IMMEDIATE = Hysteresis(move_s=0.0, settle_s=0.0, grace_s=0.0, hold_s=0.0, share=1.0)
"""No waiting at all: what a plan without a memory shows."""


@dataclass(frozen=True, slots=True)
class Rules:
    """Everything that a planner is told by its configuration.

    ``name_patterns`` are regular expressions with groups named ``tier2``, ``tier3``: what they find in the
    name of a switch names the group above. ``label_keys`` are templates with ``{tier}``, ``{tierName}`` and
    ``{fabric}``.
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
