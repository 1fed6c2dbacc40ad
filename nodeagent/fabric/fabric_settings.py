"""Settings of the planner in the controller's file: which links make the fabric, tiers, times, labels."""

import re
from collections.abc import Mapping
from functools import reduce
from typing import Annotated, ClassVar, Literal

import msgspec

from nodeagent.config import formats
from nodeagent.config.file_errors import did_you_mean, quote
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
from nodeagent.fabric.hypernode import LEAF, NVLINK, TIER_NAMES, tier_name
from nodeagent.fabric.node_values import ValueName

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
    "os10",
    "dellos10",
    "8325",
    "8100",
    "10000",
    "srlinux",
    "huawei",
    "h3c",
    "amnesiac",
)
"""Factory-default system names of switches."""

OWN_LABELS = "topology.nodeagent.io/"
"""The beginning of our own keys."""
_KEY_FIELDS = ("tier", "tier0", "tierName", "fabric")
LabelPreset = Literal["topograph", "gpu-clique"]
TIER_PRESETS: Mapping[LabelPreset, str] = {"topograph": "fabric.topograph.run/tier-{tier0}"}
"""The keys of other programs for the tiers of the fabric. Those of topograph 1.0 count from 0, the leaf."""
DOMAIN_PRESETS: Mapping[LabelPreset, str] = {
    "topograph": "accelerator.topograph.run/domain",
    "gpu-clique": "nvidia.com/gpu.clique",
}
"""The keys of other programs for the NVLink domain of a node. The value is ``<cluster UUID>.<clique ID>``."""


def preset_keys(preset: LabelPreset) -> tuple[str, ...]:
    """The keys of a preset, with their fields."""
    return tuple(table[preset] for table in (TIER_PRESETS, DOMAIN_PRESETS) if preset in table)


_KEY = r"([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9{]([-A-Za-z0-9_.{}]*[A-Za-z0-9}])?"
_FIELD = re.compile(r"\{([^{}]*)\}")


def _key_complaint(text: str) -> str | None:
    fields = _FIELD.findall(text)
    for field in fields:
        if field not in _KEY_FIELDS:
            hint = did_you_mean(field, _KEY_FIELDS)
            known = ", ".join(f"{{{name}}}" for name in _KEY_FIELDS)
            return f"{quote('{' + field + '}')} is not one of the fields {known}{hint}"
    if not {"tier", "tier0", "tierName"} & set(fields):
        return (
            f"{quote(text)} is one label for all tiers; it must contain {{tier}}, {{tier0}} or {{tierName}}"
        )
    return None


def _pattern_complaint(text: str) -> str | None:
    try:
        groups = re.compile(text).groupindex
    except (re.error, OverflowError, RecursionError) as error:
        return f"{quote(text)} is not a regular expression: {error}"
    if not {"tier2", "tier3"} & groups.keys():
        return (
            f"{quote(text)} names no tier; put (?P<tier2>...) around what the leaves of one spine group share"
        )
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
_Wait = Annotated[float, msgspec.Meta(ge=0, le=SECONDS_MAX)]


class FabricSelect(Settings, frozen=True, kw_only=True):
    """Links of one fabric: links that match every list that is not empty. The first entry that matches decides."""

    fabric: Annotated[FabricName, setting("Fabric of these links.")]
    nodes: Annotated[tuple[Glob, ...], listed("Globs on the node's name.")] = ()
    links: Annotated[tuple[Glob, ...], listed("Globs on the link's name.")] = ()
    netdevs: Annotated[tuple[Glob, ...], listed("Globs on the netdev's name: ens*np0.")] = ()
    pci_addresses: Annotated[
        tuple[PciAddress, ...], listed("Globs on the PCI address in the long form: 0000:1a:00.0.")
    ] = ()
    switches: Annotated[
        tuple[Glob, ...], listed("Globs on the switch's system name: mgmt-*. Stale neighbors count.")
    ] = ()
    min_speed_mbps: Annotated[
        Annotated[int, msgspec.Meta(ge=0, le=RATE_MAX)],
        setting(
            "Minimum speed of the link in Mbit/s. A link that is down or reports no speed does not match."
        ),
    ] = 0


class TierSettings(Settings, frozen=True, kw_only=True):
    """The tier below the leaves, and sources for those above. The order of trust is: topology file, LLDP neighbors of
    the switches, name patterns, assumeFullBisection."""

    nvlink: Annotated[
        Literal["auto", "off"],
        setting(
            "auto: NVLink domains of two nodes or more are HyperNodes below the leaf groups, of the tier nvlink. Then "
            "nvlink has the number 1, leaf 2, spine 3 and core 4, also while there is no domain. off: leaf has the "
            "number 1."
        ),
    ] = "off"

    name_patterns: Annotated[
        tuple[Pattern, ...],
        listed(
            "Regular expressions (Python) on the names of leaf switches, as they announce them, with their domain. The "
            "named groups tier2 and tier3 match the name of the group above: (?P<tier2>pod[0-9]+)-leaf."
        ),
    ] = ()
    assume_full_bisection: Annotated[
        bool,
        setting(
            "Put all groups without a known tier above them under one common tier. Off by default, because it "
            "is a guess."
        ),
    ] = False


class HysteresisSettings(Settings, frozen=True, kw_only=True):
    """How long a report must stand before the tree follows it. A node that does not report changes nothing."""

    move_seconds: Annotated[
        _Wait, setting("Seconds that a report must stand before a placed node moves to another group.")
    ] = 60.0
    settle_seconds: Annotated[
        _Wait,
        setting(
            "Longest time in seconds before a new node is placed. It is placed at once if each of its links "
            "that are up has a neighbor."
        ),
    ] = 30.0
    grace_seconds: Annotated[
        _Wait, setting("Seconds after which a node leaves its group when its Node was deleted.")
    ] = 300.0
    hold_seconds: Annotated[
        _Wait,
        setting(
            "Seconds for which all moves are held when too many would happen at once; the controller reports "
            "the hold."
        ),
    ] = 300.0
    hold_percent: Annotated[
        Annotated[int, msgspec.Meta(ge=0, le=100)],
        setting(
            "More moves than this percentage of all placed nodes are too many, and more deletions than this "
            "percentage of all HyperNodes."
        ),
    ] = 20
    hold_nodes: Annotated[
        Annotated[int, msgspec.Meta(ge=0, le=1_000_000)],
        setting("This number of nodes is never too many, so that small clusters are not held."),
    ] = 8
    debounce_seconds: Annotated[
        _Wait,
        setting(
            "Seconds without a change that the controller waits for before it plans, so that related changes "
            "make one plan."
        ),
    ] = 10.0

    @property
    def hold_share(self) -> float:
        return self.hold_percent / 100


IMMEDIATE = HysteresisSettings(
    move_seconds=0.0, settle_seconds=0.0, grace_seconds=0.0, hold_seconds=0.0, hold_percent=100
)
"""No waiting, for a single plan without a memory."""


class LabelSettings(Settings, frozen=True, kw_only=True):
    """Labels that the controller writes on Nodes. Values are names of HyperNodes, unique in the cluster."""

    keys: Annotated[
        tuple[LabelKey, ...],
        listed(
            "Label keys with the fields {tier} (1, 2, 3), {tier0} (0, 1, 2), {tierName} (nvlink, leaf, spine, core) or "
            "{fabric}; each key is written for each tier. Kueue, KAI and the scheduler of Kubernetes read any key.",
            16,
        ),
    ] = (TIER_LABEL,)
    presets: Annotated[
        tuple[LabelPreset, ...],
        setting(
            "Programs whose label keys are written too. topograph: fabric.topograph.run/tier-0 for the leaf, tier-1, "
            "…, and accelerator.topograph.run/domain for the NVLink domain; gpu-clique: nvidia.com/gpu.clique for the "
            "NVLink domain, where no program of NVIDIA writes it."
        ),
    ] = ()


class ExpectedValue(Settings, frozen=True, kw_only=True):
    """A value that every node should have, where agents compare values (`peers.compare`)."""

    value: Annotated[ValueName, setting("The value, as `nodeagent trouble` names it: GPU driver.")]
    like: Annotated[
        Glob, setting("A glob on it, such as 580.*; * is any value, so nothing is compared with other nodes.")
    ]


class FabricRules(Settings, frozen=True, kw_only=True):
    """The settings of the planner, with the head of the controller's file."""

    when_empty: ClassVar[str] = (
        "start it with the lines `apiVersion: nodeagent.io/v1alpha1` and `kind: FabricConfig`; all else has defaults"
    )
    api_version: Annotated[
        Literal["nodeagent.io/v1alpha1"], setting("Version of this file's format.", required=True)
    ] = "nodeagent.io/v1alpha1"
    kind: Annotated[Literal["FabricConfig"], setting("Kind of this file.", required=True)] = "FabricConfig"
    fabric: Annotated[
        FabricName,
        setting("Fabric that HyperNodes are built from. There is one, as there is one tree of HyperNodes."),
    ] = "compute"
    fabrics: Annotated[
        tuple[FabricSelect, ...],
        setting(
            "Which links belong to which fabric; this has priority over the reports of the nodes. Where a "
            "node reports no fabric for any link, its links with at least half the speed of its fastest link "
            "belong to `fabric`.",
            max_length=ENTRIES_MAX,
        ),
    ] = ()
    generic_names: Annotated[
        tuple[SystemName, ...],
        listed("System names that identify no switch. Such a switch is identified by its chassis ID."),
    ] = GENERIC_NAMES
    tiers: Annotated[TierSettings, setting("Sources for the tiers above the leaves.")] = TierSettings()
    min_links: Annotated[
        Annotated[int, msgspec.Meta(ge=0, le=128)],
        setting(
            "Minimum number of links up. Nodes with fewer are reported, and marked according to `nodes`; 0: no "
            "minimum."
        ),
    ] = 0
    labels: Annotated[LabelSettings, setting("Labels on Nodes.")] = LabelSettings()
    hysteresis: Annotated[HysteresisSettings, setting("How long a report must stand.")] = HysteresisSettings()
    foreign: Annotated[
        Foreign,
        setting(
            "What happens where HyperNodes of another owner hold our nodes. refuse: write no HyperNode; "
            "yield: leave those nodes out; own: write nevertheless. HyperNodes of other owners are never "
            "changed."
        ),
    ] = "refuse"

    expected_values: Annotated[
        tuple[ExpectedValue, ...],
        listed(
            "Values that every node should have. A node with another one is reported at once; without an entry nodes "
            "of one model are compared with each other."
        ),
    ] = ()

    @property
    def tier_offset(self) -> int:
        """Volcano's number of a tier, less the tier. It depends on the settings alone: for a job that names a number it
        is the same tier while domains come and go."""
        return int(self.tiers.nvlink == "auto")

    @property
    def label_keys(self) -> frozenset[str]:
        """The keys of all node labels that the planner writes, also with another setting of ``tiers.nvlink``."""
        return frozenset(
            key
            for offset in (0, 1)
            for tier in range(LEAF - offset, len(TIER_NAMES))
            for key in self.labels_of_tier(tier, offset)
        ).union(self.domain_keys)

    @property
    def domain_keys(self) -> tuple[str, ...]:
        """The keys of the node labels with the NVLink domain itself."""
        return tuple(DOMAIN_PRESETS[preset] for preset in self.labels.presets if preset in DOMAIN_PRESETS)

    def labels_of_tier(self, tier: int, offset: int | None = None) -> tuple[str, ...]:
        """The keys of the node labels that carry the name of the object of this tier. ``offset`` is by default
        ``tier_offset``."""
        number = tier + (self.tier_offset if offset is None else offset)
        keys = [_key(key, tier, number, self.fabric) for key in self.labels.keys]
        if tier != NVLINK:
            presets = (TIER_PRESETS[preset] for preset in self.labels.presets if preset in TIER_PRESETS)
            keys += (_key(key, tier, tier, self.fabric) for key in presets)
        return tuple(dict.fromkeys(keys))


def _key(key: str, tier: int, number: int, fabric: str) -> str:
    values = {
        "{tierName}": tier_name(tier),
        "{tier}": str(number),
        "{tier0}": str(number - 1),
        "{fabric}": fabric,
    }
    return reduce(lambda text, value: text.replace(*value), values.items(), key)
