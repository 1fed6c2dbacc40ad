"""The controller's file (``--fabric``): how links make a fabric, how fast one believes, what is written.

A file of its own with a root of its own, for the controller is another process than the agent; read by the
same walk, with the same faults. ``load_fabric`` reads it, ``FabricConfig()`` is the default.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Literal

import msgspec

from nodeagent.cluster.min_links_settings import NodesSettings, min_links_conflicts
from nodeagent.config import formats
from nodeagent.config.faults import Conflict, did_you_mean, quote
from nodeagent.config.setting import (
    ENTRIES_MAX,
    RATE_MAX,
    SECONDS_MAX,
    Glob,
    PciAddress,
    Settings,
    SystemName,
    listed,
    setting,
)
from nodeagent.config.settings_file import read_settings
from nodeagent.fabric.rules import GENERIC_NAMES, TIER_LABEL, FabricRule, Hysteresis, Rules, Topology
from nodeagent.switches.switch_settings import SwitchesSettings, switch_conflicts

_KEY_FIELDS = ("tier", "tierName", "fabric")
_KEY = r"([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9{]([-A-Za-z0-9_.{}]*[A-Za-z0-9}])?"
_FIELD = re.compile(r"\{([^{}]*)\}")


def _key_complaint(text: str) -> str | None:
    fields = _FIELD.findall(text)
    for field in fields:
        if field not in _KEY_FIELDS:
            hint = did_you_mean(field, _KEY_FIELDS)
            return (
                f"{quote('{' + field + '}')} is not a field; {{tier}}, {{tierName}} and {{fabric}} are{hint}"
            )
    if not {"tier", "tierName"} & set(fields):
        return f"{quote(text)} is one label for all tiers; {{tier}} or {{tierName}} must stand in it"
    return None


def _pattern_complaint(text: str) -> str | None:
    try:
        groups = re.compile(text).groupindex
    except (re.error, OverflowError, RecursionError) as error:
        return f"{quote(text)} is no regular expression: {error}"
    if not {"tier2", "tier3"} & groups.keys():
        return f"{quote(text)} names no tier; write (?P<tier2>...) around what the leaves of one spine group share"
    return None


LabelKey = Annotated[
    str,
    formats.form(_KEY, "a label's key, such as example.com/{tierName}", at_most=200, check=_key_complaint),
]
Pattern = Annotated[
    str, formats.form(r"\S|\S.*\S", "a regular expression", at_most=1024, check=_pattern_complaint)
]
FabricName = Annotated[
    str,
    formats.form(r"[a-z0-9]([-a-z0-9]{0,28}[a-z0-9])?", "a fabric's name: lower case letters, digits and -"),
]
FilePath = Annotated[str, formats.form(r"[^\x00-\x1f]+", "a path", at_most=4095)]
Wait = Annotated[float, msgspec.Meta(ge=0, le=SECONDS_MAX)]
_TIMES = Hysteresis()


class FabricSelect(Settings, frozen=True, kw_only=True):
    """Links that match all the lists given are of this fabric; the first entry that matches decides."""

    fabric: Annotated[FabricName, setting("The fabric of these links.")]
    nodes: Annotated[tuple[Glob, ...], listed("Globs on the name of the node.")] = ()
    links: Annotated[tuple[Glob, ...], listed("Globs on the name of the link.")] = ()
    netdevs: Annotated[tuple[Glob, ...], listed("Globs on the name of the netdev: ens*np0.")] = ()
    pci_addresses: Annotated[
        tuple[PciAddress, ...], listed("Globs on the PCI address in the long form: 0000:1a:00.0.")
    ] = ()
    switches: Annotated[
        tuple[Glob, ...], listed("Globs on the system name of the switch: mgmt-*. Stale neighbors count.")
    ] = ()
    min_speed_mbps: Annotated[
        Annotated[int, msgspec.Meta(ge=0, le=RATE_MAX)],
        setting("The least speed of the link; one that is down or tells none does not match."),
    ] = 0


class TierSettings(Settings, frozen=True, kw_only=True):
    """What is known of the tiers above the leaves. The topology file is trusted first, then what switches hear
    over LLDP, then patterns, then the assertion."""

    name_patterns: Annotated[
        tuple[Pattern, ...],
        listed(
            "Regular expressions on the names of leaf switches, in Python's notation. What the groups named tier2 "
            "and tier3 match names the group above: (?P<tier2>pod[0-9]+)-leaf."
        ),
    ] = ()
    assume_full_bisection: Annotated[
        bool,
        setting("Put everything that has no known tier above it under one, where nothing better is known."),
    ] = False


class HysteresisSettings(Settings, frozen=True, kw_only=True):
    """How long a report must stand. Silence never changes anything, whatever is set here."""

    move_seconds: Annotated[
        Wait, setting("A node that is in a group moves to another when its report has stood for so long.")
    ] = _TIMES.move_s
    settle_seconds: Annotated[
        Wait,
        setting(
            "A node that is in no group is placed at once, or, while some of its links are up and unheard, after so "
            "long."
        ),
    ] = _TIMES.settle_s
    grace_seconds: Annotated[
        Wait, setting("A node whose Node was deleted leaves its group after so long.")
    ] = _TIMES.grace_s
    hold_seconds: Annotated[
        Wait, setting("When too many would move at once, nothing moves for so long, and it is told.")
    ] = _TIMES.hold_s
    hold_percent: Annotated[
        Annotated[int, msgspec.Meta(ge=0, le=100)],
        setting(
            "More than so many percent of all placed nodes, or of all HyperNodes to delete, are too many."
        ),
    ] = round(_TIMES.share * 100)
    hold_nodes: Annotated[
        Annotated[int, msgspec.Meta(ge=0, le=1_000_000)], setting("So few nodes are never too many.")
    ] = _TIMES.least_nodes
    debounce_seconds: Annotated[
        Wait, setting("The controller waits so long after a change for others that belong to it.")
    ] = 10.0


class LabelSettings(Settings, frozen=True, kw_only=True):
    """The labels that the controller writes on Nodes; values are names of HyperNodes, unique in the cluster."""

    keys: Annotated[
        tuple[LabelKey, ...],
        listed(
            "Keys with {tier} (1, 2, 3), {tierName} (leaf, spine, core) or {fabric} in them; each is written for each "
            "tier. network.topology.nvidia.com/{tierName} adds topograph's.",
            16,
        ),
    ] = (TIER_LABEL,)


class FabricConfig(Settings, frozen=True, kw_only=True):
    """The configuration of the controller."""

    api_version: Annotated[
        Literal["nodeagent.io/v1alpha1"], setting("The version of this file's form.", required=True)
    ] = "nodeagent.io/v1alpha1"
    kind: Annotated[Literal["FabricConfig"], setting("What this file is.", required=True)] = "FabricConfig"
    fabric: Annotated[
        FabricName, setting("The fabric that makes HyperNodes; there is one tree, so there can be no two.")
    ] = "compute"
    fabrics: Annotated[
        tuple[FabricSelect, ...],
        setting(
            "Which links are of which fabric, before what nodes say of it themselves. Where a node says it of none "
            "of its links, those are of the fabric that have at least half the speed of its fastest.",
            max_length=ENTRIES_MAX,
        ),
    ] = ()
    generic_names: Annotated[
        tuple[SystemName, ...],
        listed("System names that say nothing; such a switch is known by its chassis ID."),
    ] = GENERIC_NAMES
    topology: Annotated[
        FilePath | None,
        setting("A file of kind FabricTopology with what is known of the cabling; relative to this file."),
    ] = None
    tiers: Annotated[TierSettings, setting("The tiers above the leaves.")] = TierSettings()
    min_links: Annotated[
        Annotated[int, msgspec.Meta(ge=0, le=128)],
        setting("Nodes with fewer links up are told of, and marked where nodes says so."),
    ] = 0
    nodes: Annotated[NodesSettings, setting("How nodes with fewer links are marked.")] = NodesSettings()
    switches: Annotated[
        SwitchesSettings, setting("The tiers above the leaves, as the switches hear them.")
    ] = SwitchesSettings()
    labels: Annotated[LabelSettings, setting("The labels on Nodes.")] = LabelSettings()
    hysteresis: Annotated[HysteresisSettings, setting("How long a report must stand.")] = HysteresisSettings()
    foreign: Annotated[
        Literal["refuse", "yield", "own"],
        setting(
            "Where HyperNodes of another owner hold our nodes: write no HyperNode at all, leave those nodes to them, "
            "or write all the same. Theirs are never touched."
        ),
    ] = "refuse"
    overlap_condition: Annotated[
        bool,
        setting(
            "Where foreign refuses: also mark our HyperNodes that overlap by a condition Overlap. Volcano up to 1.15.1 "
            "rebuilds a part of its tree at each such write, which is made when an overlap comes or goes."
        ),
    ] = False


def load_fabric(text: str, *, name: str) -> FabricConfig:
    """The configuration in a file's text. Raises ``ConfigError`` with all faults of the file."""
    return read_settings(text, FabricConfig, name=name, conflicts_of_valid=_conflicts)[0]


def _conflicts(config: FabricConfig) -> Iterator[Conflict]:
    for i, entry in enumerate(config.fabrics):
        if entry == FabricSelect(fabric=entry.fabric):
            yield Conflict((("fabrics", i),), 'matches every link; nodes: ["*"] says so')
    for conflict in switch_conflicts(config.switches):
        yield conflict.below("switches")
    for conflict in min_links_conflicts(config.nodes, config.min_links):
        yield conflict.below("nodes")


def rules_of(config: FabricConfig, topology: Topology | None = None) -> Rules:
    """What the fabric goes by."""
    times = config.hysteresis
    return Rules(
        fabric=config.fabric,
        fabric_rules=tuple(
            FabricRule(
                entry.fabric,
                entry.nodes,
                entry.links,
                entry.netdevs,
                entry.pci_addresses,
                entry.switches,
                entry.min_speed_mbps,
            )
            for entry in config.fabrics
        ),
        generic_names=config.generic_names,
        topology=topology or Topology(),
        name_patterns=config.tiers.name_patterns,
        assume_full_bisection=config.tiers.assume_full_bisection,
        min_links=config.min_links,
        label_keys=config.labels.keys,
        foreign=config.foreign,
        hysteresis=Hysteresis(
            times.move_seconds,
            times.settle_seconds,
            times.grace_seconds,
            times.hold_seconds,
            times.hold_percent / 100,
            times.hold_nodes,
        ),
    )
