"""Settings of the judge: which links are expected, and by which rules they are judged."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec

from nodeagent.config.faults import Conflict, Path
from nodeagent.config.setting import SECONDS_MAX, AbsolutePath, Glob, Settings, listed, setting
from nodeagent.health.hold import ceiling
from nodeagent.health.nic_rules import KEYS, default
from nodeagent.health.rule import Override, Rule, apply

if TYPE_CHECKING:
    RuleKey = str
else:
    RuleKey = Literal[KEYS]

Hold = Annotated[float, msgspec.Meta(ge=0, le=SECONDS_MAX)]
Window = Annotated[float, msgspec.Meta(ge=1, le=SECONDS_MAX)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Speed = Annotated[int, msgspec.Meta(ge=1, le=100_000_000)]
_NEGATIVE_UNITS = ("°C above the limit", "dB above the limit")


class RuleSettings(Settings, frozen=True, kw_only=True):
    """What is changed of one rule; null leaves its default, which `nodeagent health rules` prints."""

    rule: Annotated[RuleKey, setting("Which rule.")]
    enter: Annotated[
        float | None,
        setting("The value from which on it counts, in the rule's unit; 1e-12 is allowed.", exponent=True),
    ] = None
    clear: Annotated[
        float | None, setting("The value at which it ends; never looser than enter.", exponent=True)
    ] = None
    enter_for_seconds: Annotated[Hold | None, setting("How long the value must have been bad.")] = None
    clear_for_seconds: Annotated[Hold | None, setting("How long it must have been good again: the hold.")] = (
        None
    )
    window_seconds: Annotated[
        Window | None,
        setting("Over which time counters are taken; of flapping, the half-life of its penalty."),
    ] = None
    allocatable: Annotated[
        bool | None, setting("Do the devices stay Healthy for the kubelet while the fault stands?")
    ] = None
    enabled: Annotated[bool | None, setting("Is it judged at all?")] = None


class ExpectedLinks(Settings, frozen=True, kw_only=True):
    """Links that must be up: without carrier from the start, they are down and not merely unused."""

    links: Annotated[
        tuple[Glob, ...],
        setting("Globs on the netdev or the PCI address of PFs: ens*np0.", min_length=1, max_length=256),
    ]
    speed_mbps: Annotated[
        Speed | None, setting("How fast they must be; null: as fast as most of their like.")
    ] = None


EXAMPLE_EXPECTED = (
    "All links of the fabric, at 400G:",
    ExpectedLinks(links=("ens*np0",), speed_mbps=400_000),
)
EXAMPLE_RULE = (
    "A link is given back after two minutes with carrier:",
    RuleSettings(rule="carrier_down", clear_for_seconds=120),
)


class GuardSettings(Settings, frozen=True, kw_only=True):
    """No single source may take most of a node's devices away at once."""

    share: Annotated[Share, setting("Of the VFs of all PFs, and of the GPUs; 1 switches the guard off.")] = (
        0.5
    )
    seconds: Annotated[Hold, setting("Within which time, unless a second source says the same.")] = 60.0


class HealthSettings(Settings, frozen=True, kw_only=True):
    """How links are judged."""

    expected: Annotated[
        tuple[ExpectedLinks, ...],
        setting(
            "Links that must be up. Others are judged once they were up, or most of their like are.",
            max_length=64,
            example=EXAMPLE_EXPECTED,
        ),
    ] = ()
    unused: Annotated[
        tuple[Glob, ...], listed("Globs on the netdev or PCI address of PFs that are not judged.")
    ] = ()
    rules: Annotated[
        tuple[RuleSettings, ...],
        setting("What is changed of single rules.", max_length=64, example=EXAMPLE_RULE),
    ] = ()
    guard: Annotated[GuardSettings, setting("Against a source gone wrong.")] = GuardSettings()
    cabling_plan: Annotated[
        AbsolutePath | None,
        setting("A YAML file that maps nodes to links to {switch, port}; LLDP is held against it."),
    ] = None
    state_directory: Annotated[
        AbsolutePath, setting("Where penalties and faults that stand are kept over a restart of the agent.")
    ] = "/var/lib/nodeagent"


def override(settings: RuleSettings) -> Override:
    return Override(
        settings.rule,
        settings.enter,
        settings.clear,
        settings.enter_for_seconds,
        settings.clear_for_seconds,
        settings.window_seconds,
        None if settings.allocatable is None else not settings.allocatable,
        settings.enabled,
    )


def rule_conflicts(rules: Sequence[tuple[Path, RuleSettings]]) -> Iterator[Conflict]:
    """Rules that are changed twice, and changes that a rule cannot have. Paths are as given."""
    first: dict[str, int] = {}
    for path, entry in rules:
        if (before := first.setdefault(entry.rule, int(path[-1]))) != path[-1]:
            yield Conflict(((*path, "rule"),), f"{entry.rule} is changed by health.rules[{before}] already")
        for key, message in _complaints(entry):
            paths = ((*path, key), (*path, "rule"), (*path, "enter"), (*path, "clear"))
            yield Conflict(paths, message)


def _complaints(settings: RuleSettings) -> Iterator[tuple[str, str]]:
    """The keys of a rule that cannot be so, and why."""
    before = default(settings.rule)
    for key in ("enter", "clear"):
        value = getattr(settings, key)
        if value is None:
            continue
        if not before.has_threshold:
            yield key, f"{settings.rule} is {before.unit} and has no {key}; its times may be changed"
        elif value < 0 and before.unit not in _NEGATIVE_UNITS:
            yield key, f"must be at least 0 {before.unit}, is {value:g}"
    if settings.window_seconds is not None and before.window_s is None:
        yield "windowSeconds", f"{settings.rule} looks at the moment and has no window"
    if settings.rule == "flapping_daily" and settings.window_seconds is not None:
        yield "windowSeconds", "flapping_daily counts over a day; leave the window out"
    if settings.rule == "flapping" and settings.clear is not None and settings.clear <= 0:
        yield "clear", "must be more than 0: a penalty that halves again and again never gets there"
    changed = apply(before, override(settings))
    if settings.rule == "flapping" and 0 < changed.clear <= changed.enter:
        most = ceiling(changed.clear, changed.window_s or 1.0)
        if most <= changed.enter:
            yield (
                "windowSeconds" if settings.window_seconds is not None else "enter",
                f"no link would ever be damped: so that none is for longer than an hour, at a half-life of "
                f"{changed.window_s:g} s a penalty goes no higher than {most:.0f}, and enter is {changed.enter:g}; "
                "shorten windowSeconds, or bring enter and clear nearer to each other",
            )
    if before.has_threshold and changed.looser:
        yield ("clear" if settings.clear is not None else "enter"), _looser(changed)


def _looser(rule: Rule) -> str:
    beyond, most = ("below", "least") if rule.below else ("above", "most")
    return (
        f"clear would be {rule.clear:g}, {beyond} enter, {rule.enter:g}: the fault would end and begin again for ever; "
        f"clear must be at {most} {rule.enter:g}"
    )
