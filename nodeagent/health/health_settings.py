"""Settings of the health of NICs: expected links, changed rules, the guard (for GPUs too), files."""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec

from nodeagent.config.file_errors import Conflict, Path
from nodeagent.config.setting import SECONDS_MAX, AbsolutePath, Glob, Settings, listed, setting
from nodeagent.health.carrier_losses import LINK_SETTLE_S
from nodeagent.health.hold import ceiling
from nodeagent.health.rule import Rule
from nodeagent.health.rules import NIC_RULE_KEYS, NIC_RULES, default

if TYPE_CHECKING:
    RuleKey = str  # mypy accepts only a Literal whose values stand in the source
else:
    RuleKey = Literal[NIC_RULE_KEYS]

_Hold = Annotated[float, msgspec.Meta(ge=0, le=SECONDS_MAX)]
Window = Annotated[float, msgspec.Meta(ge=1, le=SECONDS_MAX)]
_Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Speed = Annotated[int, msgspec.Meta(ge=1, le=100_000_000)]


class RuleSettings(Settings, frozen=True, kw_only=True):
    """Changes of one rule. null leaves the default, which `nodeagent health rules` prints."""

    rule: Annotated[RuleKey, setting("Key of the rule.")]
    enter: Annotated[
        float | None,
        setting(
            "Value from which the fault starts, in the unit of the rule; 1e-12 is allowed.", exponent=True
        ),
    ] = None
    clear: Annotated[
        float | None, setting("Value at which the fault ends; never looser than enter.", exponent=True)
    ] = None
    enter_for_seconds: Annotated[
        _Hold | None, setting("Seconds that the value must be bad before the fault starts.")
    ] = None
    clear_for_seconds: Annotated[
        _Hold | None, setting("Seconds that the value must be good before the fault ends.")
    ] = None
    window_seconds: Annotated[
        Window | None,
        setting("Seconds over which counters are summed; for flapping, the half-life of the penalty."),
    ] = None
    allocatable: Annotated[
        bool | None, setting("true: the devices stay Healthy for the kubelet during the fault.")
    ] = None
    enabled: Annotated[bool | None, setting("false: the rule is off.")] = None


class ExpectedLinks(Settings, frozen=True, kw_only=True):
    """Links that must be up. Without carrier since the start they are down, not unused."""

    links: Annotated[
        tuple[Glob, ...],
        setting(
            "Globs on the netdev's name or the PCI address of PFs: ens*np0.", min_length=1, max_length=256
        ),
    ]
    speed_mbps: Annotated[
        Speed | None,
        setting(
            "Speed in Mbit/s that the links must have; null: the speed of most links with the same role."
        ),
    ] = None


EXAMPLE_EXPECTED = (
    "All links of the fabric, at 400G:",
    ExpectedLinks(links=("ens*np0",), speed_mbps=400_000),
)
EXAMPLE_RULE = (
    "A link is Healthy again after two minutes with carrier:",
    RuleSettings(rule="carrier_down", clear_for_seconds=120),
)


class GuardSettings(Settings, frozen=True, kw_only=True):
    """The guard: a single source cannot make most devices of a node Unhealthy at once."""

    share: Annotated[
        _Share,
        setting(
            "Share of the VFs of all PFs, and of the GPUs, that may become Unhealthy within `seconds`; 1 "
            "turns the guard off."
        ),
    ] = 0.5
    seconds: Annotated[
        _Hold,
        setting("Seconds. A fault that lasts longer, or that a second source confirms, passes the guard."),
    ] = 60.0


class HealthSettings(Settings, frozen=True, kw_only=True):
    """Rules for the health of NICs, and a guard for NICs and GPUs."""

    expected: Annotated[
        tuple[ExpectedLinks, ...],
        setting(
            "Links that must be up. Other links are evaluated once they were up, or when most links with the "
            "same role were.",
            max_length=64,
            example=EXAMPLE_EXPECTED,
        ),
    ] = ()
    unused: Annotated[
        tuple[Glob, ...], listed("Globs on the netdev's name or the PCI address of PFs without evaluation.")
    ] = ()
    rules: Annotated[
        tuple[RuleSettings, ...],
        setting("Changes of single rules.", max_length=64, example=EXAMPLE_RULE),
    ] = ()
    settle_seconds: Annotated[
        _Hold,
        setting(
            "Seconds after the carrier has returned in which bit errors of link training do not count; and after a "
            "change of MTU, rings, channels, pauses, VFs or driver, in which a lost carrier is no flap."
        ),
    ] = LINK_SETTLE_S
    guard: Annotated[
        GuardSettings, setting("Limit on how many devices one source can make Unhealthy at once.")
    ] = GuardSettings()
    vf_guids: Annotated[
        Literal["required", "fromCni"],
        setting(
            "required: an InfiniBand VF without a GUID is Unhealthy, because it reaches no peer. fromCni: it is "
            "offered, because ib-sriov-cni or another CNI plugin gives the VF of each pod a GUID."
        ),
    ] = "required"
    no_execute: Annotated[
        tuple[Glob, ...],
        listed(
            "Globs on the keys of reasons, such as xid_79 or gpu_*. A device of mode dra that is Unhealthy for one of "
            "them gets the taint NoExecute, which deletes its pods without regard to disruption budgets; never more "
            "than the guard's share of the GPUs or PFs. Empty: pods stay."
        ),
    ] = ()
    cabling_plan: Annotated[
        AbsolutePath | None,
        setting(
            "Absolute path in the agent's container of a YAML file that maps nodes to links to {switch, port}. The "
            "neighbors of LLDP are compared with it. null: none.",
            restart=True,
        ),
    ] = None
    state_directory: Annotated[
        AbsolutePath,
        setting(
            "Absolute path of the host: the directory where active faults, penalties, the rails of NICs and the sizes "
            "of slices are kept over a restart of the agent.",
            restart=True,
        ),
    ] = "/var/lib/nodeagent"


def _apply(rule: Rule, settings: RuleSettings) -> Rule:
    """Return the rule with the changes of the configuration; ``None`` leaves the default."""
    changes = {
        "enter": settings.enter,
        "clear": settings.clear,
        "enter_for_s": settings.enter_for_seconds,
        "clear_for_s": settings.clear_for_seconds,
        "window_s": settings.window_seconds,
        "withdraws": None if settings.allocatable is None else not settings.allocatable,
        "enabled": settings.enabled,
    }
    return msgspec.structs.replace(
        rule, **{name: value for name, value in changes.items() if value is not None}
    )


def apply_all(rules: Iterable[Rule], settings: Iterable[RuleSettings]) -> tuple[Rule, ...]:
    """Return the rules with their changes, in their order."""
    changed = {entry.rule: entry for entry in settings}
    return tuple(_apply(rule, changed[rule.key]) if rule.key in changed else rule for rule in rules)


def effective(settings: Iterable[RuleSettings]) -> tuple[Rule, ...]:
    """Return the default rules with these changes, in the same order."""
    return apply_all(NIC_RULES, settings)


def rule_conflicts(rules: Sequence[tuple[Path, RuleSettings]]) -> Iterator[Conflict]:
    """Rules that are changed twice, and changes that a rule does not allow."""
    first: dict[str, int] = {}
    for path, entry in rules:
        if (before := first.setdefault(entry.rule, int(path[-1]))) != path[-1]:
            yield Conflict(((*path, "rule"),), f"{entry.rule} is already changed by health.rules[{before}]")
        for key, message in _complaints(entry):
            paths = ((*path, key), (*path, "rule"), (*path, "enter"), (*path, "clear"))
            yield Conflict(paths, message)


def _complaints(settings: RuleSettings) -> Iterator[tuple[str, str]]:
    """The invalid keys of a rule, and the reasons."""
    before = default(settings.rule)
    for key in ("enter", "clear"):
        value = getattr(settings, key)
        if value is None:
            continue
        if not before.has_threshold:
            yield key, f"{settings.rule} is a fact and has no {key}; only its times can be changed"
        elif value < 0 and not before.may_be_negative:
            yield key, f"must be at least 0 {before.unit}, is {value:g}"
    if settings.window_seconds is not None and before.window_s is None:
        yield "windowSeconds", f"{settings.rule} uses the present value and has no window"
    if before.decays == "losses" and settings.window_seconds is not None:
        yield "windowSeconds", f"{settings.rule} counts over a day; remove windowSeconds"
    if before.decays == "penalty" and settings.clear is not None and settings.clear <= 0:
        yield "clear", "must be more than 0: a penalty that decays by half never reaches 0"
    changed = _apply(before, settings)
    if before.decays == "penalty" and 0 < changed.clear <= changed.enter:
        most = ceiling(changed.clear, changed.window_s or 1.0)
        if most <= changed.enter:
            yield (
                "windowSeconds" if settings.window_seconds is not None else "enter",
                f"no link would ever be damped: no link is damped for longer than an hour, so with a half-life of "
                f"{changed.window_s:g} s a penalty is at most {most:.0f}, but enter is {changed.enter:g}; "
                "shorten windowSeconds, or set enter and clear closer to each other",
            )
    if before.has_threshold and changed.looser:
        yield ("clear" if settings.clear is not None else "enter"), _looser(changed)


def _looser(rule: Rule) -> str:
    beyond, most = ("below", "least") if rule.below else ("above", "most")
    return (
        f"clear would be {rule.clear:g}, {beyond} enter, {rule.enter:g}: the fault would toggle without end; "
        f"clear must be at {most} {rule.enter:g}"
    )
