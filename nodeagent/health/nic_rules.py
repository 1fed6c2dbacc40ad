"""The rules of PFs: thresholds, times and effects. Pure.

The defaults stand here; their sources are in the docstrings of the measures.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from nodeagent.facts.model import State
from nodeagent.health import adapter_rules, infiniband_rules, link_rules
from nodeagent.health.carrier_losses import ADMINISTRATION, COUNTERS
from nodeagent.health.rule import Measure, Rule, apply_all
from nodeagent.measurements.sample import Source

if TYPE_CHECKING:
    from nodeagent.health.health_settings import RuleSettings


def _rule(state: State, measure: Measure, **settings: Any) -> Rule:
    return Rule(key=measure.__name__, state=state, measure=measure, **settings)


_DOWN, _DEGRADED, _WARN = State.DOWN, State.DEGRADED, State.HEALTHY
_BITS = ("fec_corrected_bits", "phy_rx_bits")
_PAUSES_SENT = ("prio_tx_pause_seconds", "global_tx_pause_seconds")
_PAUSES_RECEIVED = ("prio_rx_pause_seconds", "global_rx_pause_seconds")
_STALLS = ("pcie_stalled_read_seconds", "pcie_stalled_write_seconds")

DEFAULTS: tuple[Rule, ...] = (
    _rule(_DOWN, link_rules.device_missing, clear_for_s=60, withdraws=True, on_facts=True, ungated=True),
    _rule(_DOWN, link_rules.not_answering, enter_for_s=30, withdraws=True, on_facts=True, ungated=True),
    _rule(_DOWN, link_rules.driver_unbound, withdraws=True, on_facts=True, ungated=True),
    _rule(
        _DOWN,
        link_rules.firmware_fatal,
        clear_for_s=60,
        window_s=600,
        withdraws=True,
        counters=("kernel_events",),
    ),
    _rule(_DOWN, link_rules.admin_down, withdraws=True, on_facts=True),
    _rule(_DOWN, link_rules.carrier_down, clear_for_s=60, withdraws=True, on_facts=True, by_losses=True),
    _rule(_DOWN, infiniband_rules.ib_disabled, withdraws=True),
    _rule(_DOWN, infiniband_rules.ib_no_sm, enter_for_s=60, withdraws=True),
    _rule(_DOWN, infiniband_rules.ib_armed, enter_for_s=60, withdraws=True),
    _rule(_DOWN, infiniband_rules.ib_no_lid, enter_for_s=60, withdraws=True),
    _rule(
        _DEGRADED,
        link_rules.flapping,
        unit="points",
        enter=2500,
        clear=1000,
        window_s=600,
        withdraws=True,
        counters=("carrier_down",),
        by_losses=True,
        decays="penalty",
    ),
    _rule(
        _DEGRADED,
        link_rules.flapping_daily,
        unit="losses",
        enter=5,
        clear=0,
        clears="an hour without a loss",
        window_s=86400,
        withdraws=True,
        counters=("carrier_down",),
        by_losses=True,
        decays="losses",
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
        source=Source.MODES,
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
        settles=True,
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
        settles=True,
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
        settles=True,
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
        settles=True,
    ),
    _rule(
        _DEGRADED,
        adapter_rules.optics_temperature,
        unit="°C above the limit",
        may_be_negative=True,
        enter=0,
        clear=-3,
        clear_for_s=600,
    ),
    _rule(
        _DEGRADED,
        adapter_rules.optics_rx_power,
        unit="dB above the limit",
        may_be_negative=True,
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
        source=Source.PCIE,
    ),
    _rule(
        _DEGRADED,
        adapter_rules.pcie_speed,
        unit="of expected",
        enter=1,
        clear=1,
        enter_for_s=60,
        clear_for_s=60,
        window_s=60,
        withdraws=True,
        below=True,
        patient=True,
        gap_s=300,
        loads=("phy_rx_bytes", "phy_tx_bytes", "rx_bytes", "tx_bytes"),
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
        withdraws=True,
        counters=("pause_storm_errors",),
    ),
    _rule(
        _DEGRADED,
        adapter_rules.pause_source,
        unit="of the time",
        enter=0.5,
        clear=0.05,
        enter_for_s=60,
        clear_for_s=600,
        window_s=60,
        withdraws=True,
        counters=_PAUSES_SENT,
    ),
    _rule(
        _DEGRADED,
        adapter_rules.gid_missing,
        enter_for_s=30,
        clear_for_s=30,
        withdraws=True,
        source=Source.RDMA,
    ),
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
        settles=True,
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
        settles=True,
    ),
    _rule(
        _WARN,
        adapter_rules.optics_temperature_warning,
        unit="°C above the limit",
        may_be_negative=True,
        enter=0,
        clear=-3,
        clear_for_s=600,
    ),
    _rule(
        _WARN,
        adapter_rules.optics_rx_power_warning,
        unit="dB above the limit",
        may_be_negative=True,
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
        counters=_PAUSES_SENT,
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
        counters=_PAUSES_RECEIVED,
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
"""The gravest first; the reasons of a PF have this order."""

KEYS: tuple[str, ...] = tuple(rule.key for rule in DEFAULTS)


def effective(settings: Iterable[RuleSettings]) -> tuple[Rule, ...]:
    """Return the default rules with these changes, in the same order."""
    return apply_all(DEFAULTS, settings)


def default(key: str) -> Rule:
    """Return the default rule with this key. Raises ``KeyError``."""
    for rule in DEFAULTS:
        if rule.key == key:
            return rule
    raise KeyError(key)


def damping(rules: Sequence[Rule]) -> Rule:
    """Return the rule on the penalty of lost carriers. Its window is the half-life of the penalty."""
    return next(rule for rule in rules if rule.decays == "penalty")


def settling(rules: Sequence[Rule]) -> frozenset[str]:
    """Return the counters of errors that link training makes too."""
    return frozenset(name for rule in rules if rule.settles for name in rule.counters)


def counting(rules: Sequence[Rule]) -> tuple[Rule, ...]:
    """Return the rules whose value counters or their decay may change."""
    return tuple(rule for rule in rules if rule.counters or rule.decays is not None)


def traffic(rules: Sequence[Rule]) -> frozenset[str]:
    """Return the counters that cause no evaluation by themselves."""
    alone = {name for rule in rules for name in rule.counters}
    return frozenset(name for rule in rules for name in rule.loads if name not in alone)


def windows(rules: Sequence[Rule]) -> dict[str, float]:
    """Return the longest window that any rule needs of each counter. Lost links and changes by an administrator are
    always counted: losses restart the time to clear of ``carrier_down``."""
    longest = dict.fromkeys((*COUNTERS, ADMINISTRATION), 0.0)
    for rule in rules:
        for name in (*rule.counters, *rule.loads) if rule.enabled else ():
            longest[name] = max(longest.get(name, 0.0), rule.window_s or 0.0)
    return longest
