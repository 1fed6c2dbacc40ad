"""The rules by which a PF is judged: thresholds, times and what follows. Pure.

The law of this file:

* A rule is entered when its value has been at or beyond ``enter`` for ``enter_for_s``, and cleared when it has
  been at or within ``clear`` for ``clear_for_s``. In between nothing changes. What is not known is neither.
* A clear that is looser than its enter would toggle for ever; it is refused.
* Every rule has a way back.
* The defaults stand here, and their sources in the measures' docstrings.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from nodeagent.health import adapter_rules, link_rules
from nodeagent.health.measures import Measure
from nodeagent.model import State

YES_OR_NO = "yes or no"
"""The unit of a rule without thresholds."""


@dataclass(frozen=True, slots=True)
class Rule:
    """``state`` is what the rule alone makes of the PF; ``HEALTHY`` is a warning. ``withdraws``: its devices are
    Unhealthy for the kubelet. ``below``: the value is bad when it is less than ``enter``. ``counters``: what is
    kept over ``window_s``.
    """

    key: str
    state: State
    measure: Measure
    unit: str = YES_OR_NO
    enter: float = 1.0
    clear: float = 0.0
    enter_for_s: float = 0.0
    clear_for_s: float = 0.0
    window_s: float | None = None
    withdraws: bool = False
    enabled: bool = True
    below: bool = False
    counters: tuple[str, ...] = ()

    @property
    def has_threshold(self) -> bool:
        return self.unit != YES_OR_NO

    def bad(self, value: float) -> bool:
        return value < self.enter if self.below else value >= self.enter

    def good(self, value: float) -> bool:
        """Not the opposite of bad: what lies between changes nothing."""
        return not self.bad(value) and (value >= self.clear if self.below else value <= self.clear)

    @property
    def looser(self) -> bool:
        """Whether the clear is looser than the enter."""
        return self.clear < self.enter if self.below else self.clear > self.enter

    @property
    def meaning(self) -> str:
        return (self.measure.__doc__ or "").strip().partition("\n\n")[0].replace("\n    ", " ")

    @property
    def origin(self) -> str:
        """Where the default comes from."""
        return (self.measure.__doc__ or "").strip().partition("\n\n")[2].strip().replace("\n    ", " ")


def _rule(state: State, measured: Measure, **known: object) -> Rule:
    return replace(Rule(measured.__name__, state, measured), **known)  # type: ignore[arg-type]


_DOWN, _DEGRADED, _WARN = State.DOWN, State.DEGRADED, State.HEALTHY
_BITS = ("fec_corrected_bits", "phy_rx_bits")
_PRIO_TX, _PRIO_RX = ("prio_tx_pause_seconds",), ("prio_rx_pause_seconds",)
_STALLS = ("pcie_stalled_read_seconds", "pcie_stalled_write_seconds")

DEFAULTS: tuple[Rule, ...] = (
    _rule(_DOWN, link_rules.device_missing, clear_for_s=60, withdraws=True),
    _rule(_DOWN, link_rules.driver_unbound, withdraws=True),
    _rule(
        _DOWN,
        link_rules.firmware_fatal,
        clear_for_s=60,
        window_s=600,
        withdraws=True,
        counters=("kernel_events",),
    ),
    _rule(_DOWN, link_rules.admin_down, withdraws=True),
    _rule(_DOWN, link_rules.carrier_down, clear_for_s=60, withdraws=True),
    _rule(
        _DEGRADED,
        link_rules.flapping,
        unit="points",
        enter=2500,
        clear=1000,
        window_s=600,
        withdraws=True,
        counters=("carrier_down",),
    ),
    _rule(
        _DEGRADED,
        link_rules.flapping_daily,
        unit="losses",
        enter=5,
        clear=2,
        window_s=86400,
        counters=("carrier_down",),
    ),
    _rule(
        _DEGRADED,
        link_rules.speed_reduced,
        unit="of expected",
        enter=1,
        clear=1,
        enter_for_s=10,
        clear_for_s=60,
        withdraws=True,
        below=True,
    ),
    _rule(
        _DEGRADED,
        link_rules.post_fec_errors,
        unit="of all bits",
        enter=1e-12,
        clear=1e-13,
        clear_for_s=900,
        window_s=300,
        withdraws=True,
        counters=("symbol_errors", "phy_rx_bits"),
    ),
    _rule(
        _DEGRADED,
        link_rules.fec_uncorrectable,
        unit="blocks",
        enter=10,
        clear=0,
        clear_for_s=900,
        window_s=300,
        counters=("fec_uncorrectable_blocks",),
    ),
    _rule(
        _DEGRADED,
        link_rules.pre_fec_ber,
        unit="of all bits",
        enter=1e-4,
        clear=5e-5,
        enter_for_s=600,
        clear_for_s=900,
        window_s=60,
        counters=_BITS,
    ),
    _rule(
        _DEGRADED,
        link_rules.crc_errors,
        unit="per second",
        enter=10,
        clear=0,
        clear_for_s=600,
        window_s=60,
        counters=("crc_errors",),
    ),
    _rule(
        _DEGRADED,
        adapter_rules.optics_temperature,
        unit="°C above the limit",
        enter=0,
        clear=-3,
        clear_for_s=600,
    ),
    _rule(
        _DEGRADED,
        adapter_rules.optics_rx_power,
        unit="dB above the limit",
        enter=0,
        clear=0.5,
        enter_for_s=300,
        clear_for_s=600,
        below=True,
    ),
    _rule(
        _DEGRADED,
        adapter_rules.pcie_width,
        unit="of expected",
        enter=1,
        clear=1,
        enter_for_s=10,
        clear_for_s=60,
        withdraws=True,
        below=True,
    ),
    _rule(
        _DEGRADED,
        adapter_rules.pcie_speed,
        unit="of expected",
        enter=1,
        clear=1,
        enter_for_s=900,
        clear_for_s=0,
        below=True,
    ),
    _rule(
        _DEGRADED,
        adapter_rules.pcie_aer_fatal,
        unit="errors",
        enter=1,
        clear=0,
        clear_for_s=3600,
        window_s=600,
        counters=("aer_fatal",),
    ),
    _rule(
        _DEGRADED,
        adapter_rules.pcie_aer_nonfatal,
        unit="errors",
        enter=1,
        clear=0,
        clear_for_s=3600,
        window_s=600,
        counters=("aer_nonfatal",),
    ),
    _rule(
        _DEGRADED,
        adapter_rules.pause_storm,
        unit="storms",
        enter=1,
        clear=0,
        clear_for_s=900,
        window_s=60,
        counters=("pause_storm_errors",),
    ),
    _rule(_DEGRADED, adapter_rules.gid_missing, enter_for_s=30, clear_for_s=30, withdraws=True),
    _rule(State.MISCABLED, adapter_rules.miscabled, enter_for_s=60),
    _rule(
        _WARN,
        link_rules.pre_fec_ber_warning,
        unit="of all bits",
        enter=1e-5,
        clear=5e-6,
        enter_for_s=600,
        clear_for_s=900,
        window_s=60,
        counters=_BITS,
    ),
    _rule(
        _WARN,
        link_rules.lane_imbalance,
        unit="times the next",
        enter=10,
        clear=5,
        enter_for_s=60,
        clear_for_s=600,
        window_s=300,
        counters=("lane_errors",),
    ),
    _rule(
        _WARN,
        adapter_rules.optics_temperature_warning,
        unit="°C above the limit",
        enter=0,
        clear=-3,
        clear_for_s=600,
    ),
    _rule(
        _WARN,
        adapter_rules.optics_rx_power_warning,
        unit="dB above the limit",
        enter=0,
        clear=0.5,
        enter_for_s=300,
        clear_for_s=600,
        below=True,
    ),
    _rule(
        _WARN,
        adapter_rules.pcie_aer_correctable,
        unit="errors",
        enter=1000,
        clear=500,
        clear_for_s=3600,
        window_s=3600,
        counters=("aer_correctable",),
    ),
    _rule(
        _WARN,
        adapter_rules.pcie_stall,
        unit="of the time",
        enter=0.1,
        clear=0.05,
        enter_for_s=600,
        clear_for_s=600,
        window_s=60,
        counters=_STALLS,
    ),
    _rule(
        _WARN,
        adapter_rules.host_stall,
        unit="of the time",
        enter=0.05,
        clear=0.025,
        enter_for_s=600,
        clear_for_s=600,
        window_s=60,
        counters=_PRIO_TX,
    ),
    _rule(
        _WARN,
        adapter_rules.network_paused,
        unit="of the time",
        enter=0.25,
        clear=0.1,
        enter_for_s=600,
        clear_for_s=600,
        window_s=60,
        counters=_PRIO_RX,
    ),
    _rule(
        _WARN,
        adapter_rules.rdma_timeouts,
        unit="per second",
        enter=1,
        clear=0,
        enter_for_s=300,
        clear_for_s=600,
        window_s=60,
        counters=("rdma_ack_timeouts",),
    ),
    _rule(
        _WARN,
        adapter_rules.slow_restart,
        unit="per second",
        enter=10,
        clear=5,
        enter_for_s=60,
        clear_for_s=600,
        window_s=60,
        counters=("rdma_slow_restarts",),
    ),
    _rule(
        _WARN,
        adapter_rules.out_of_sequence,
        unit="per second",
        enter=100,
        clear=50,
        enter_for_s=600,
        clear_for_s=600,
        window_s=60,
        counters=("rdma_out_of_sequence",),
    ),
)
"""The gravest first, which is the order of a PF's reasons."""

KEYS: tuple[str, ...] = tuple(rule.key for rule in DEFAULTS)


@dataclass(frozen=True, slots=True)
class Override:
    """What a configuration changes of one rule; ``None`` leaves the default."""

    key: str
    enter: float | None = None
    clear: float | None = None
    enter_for_s: float | None = None
    clear_for_s: float | None = None
    window_s: float | None = None
    withdraws: bool | None = None
    enabled: bool | None = None


def effective(overrides: Iterable[Override]) -> tuple[Rule, ...]:
    """The table with these changes, in its own order."""
    changed = {override.key: override for override in overrides}
    return tuple(apply(rule, changed[rule.key]) if rule.key in changed else rule for rule in DEFAULTS)


def apply(rule: Rule, override: Override) -> Rule:
    known = {
        name: value
        for name in ("enter", "clear", "enter_for_s", "clear_for_s", "window_s", "withdraws", "enabled")
        if (value := getattr(override, name)) is not None
    }
    return replace(rule, **known)


def default(key: str) -> Rule:
    """Raises ``KeyError`` for a key that no rule has."""
    for rule in DEFAULTS:
        if rule.key == key:
            return rule
    raise KeyError(key)


def windows(rules: Sequence[Rule]) -> dict[str, float]:
    """The longest window of each counter that a rule needs; a lost carrier matters to its hold as well."""
    longest: dict[str, float] = {"carrier_down": 0.0}
    for rule in rules:
        for name in rule.counters if rule.enabled else ():
            longest[name] = max(longest.get(name, 0.0), rule.window_s or 0.0)
    return longest
