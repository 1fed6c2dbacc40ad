"""The verdict on a GPU with everything behind it, as ``explain`` gives it for NICs.

Pure, and made when somebody asks: live values stand here and never in a fact.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from nodeagent.health.explain import DeviceView, Phase, RuleView
from nodeagent.health.gpu_rules import RULES, Hold, Limits, Rule, Says
from nodeagent.health.xids import Fault, Latch, Rules, Severity, announced, grade, limits_of, verdict
from nodeagent.model import State


def explain_gpu(
    latch: Latch, values: Mapping[str, float], rules: Rules, now: float, since: float | None = None
) -> DeviceView:
    """``values``: the last vitals. ``since``: when the state became what it is."""
    health = verdict(latch, rules)
    return DeviceView(
        device=latch.uuid,
        name=f"GPU{latch.reading.index}",
        kind="gpu",
        state=health.state,
        allocatable=health.allocatable,
        watched=True,
        for_s=None if since is None else max(0.0, now - since),
        reasons=health.reasons,
        rules=(*_announced(latch, rules, now), *_measured(latch, values, rules)),
    )


def _announced(latch: Latch, rules: Rules, now: float) -> Iterator[RuleView]:
    """What the driver said of its own accord. Only what stands: that it said nothing needs no line."""
    if latch.lost:
        yield _standing("gpu_lost", "the driver lists it again")
    action = latch.reading.recovery_action
    if action not in (None, "none"):
        yield _standing(f"recovery_{action}", "the driver no longer asks for it")
    for fault in latch.faults:
        yield _fault(fault, rules, now)
    if latch.unreadable_since is not None:
        yield RuleView(
            rule="gpu_unreadable",
            phase="active" if now - latch.unreadable_since >= rules.unreadable_after_s else "entering",
            state=State.UNHEALTHY,
            withdraws=True,
            measured=latch.reading.fault,
            value=None,
            threshold=f"for {rules.unreadable_after_s:g} s",
            for_s=max(0.0, now - latch.unreadable_since),
            clears="its calls no longer fail",
        )


def _standing(key: str, clears: str) -> RuleView:
    return RuleView(key, "active", State.UNHEALTHY, True, None, None, "the driver says so", clears=clears)


def _fault(fault: Fault, rules: Rules, now: float) -> RuleView:
    fatal = grade(fault.xid, rules) is Severity.FATAL
    reason = announced(fault.xid)
    age = max(0.0, now - fault.at)
    never = rules.clear_after_s == float("inf")
    return RuleView(
        rule=reason.key,
        phase="active",
        state=State.UNHEALTHY if fatal else State.DEGRADED,
        withdraws=fatal,
        measured=None,
        value=None,
        threshold="any",
        for_s=age,
        in_s=None if never else max(0.0, rules.clear_after_s - age),
        began=reason.detail,
        clears="a reset" if never else f"a reset, or {rules.clear_after_s:g} s without another",
    )


def _measured(latch: Latch, values: Mapping[str, float], rules: Rules) -> Iterator[RuleView]:
    limits = limits_of(latch, rules)
    holds = {hold.mark: hold for hold in latch.chart.holds}
    for rule in RULES:
        says = rule.look(values, latch.chart, limits)
        hold = holds.get(rule.mark)
        phase: Phase = "off" if rule.mark in limits.ignore else _phase(hold, says)
        yield _view(rule, phase, hold, says, limits, latch.read_at)


def _phase(hold: Hold | None, says: Says | None) -> Phase:
    if hold is not None and hold.detail:
        return "active" if hold.bad else "clearing"
    if hold is not None and hold.bad:
        return "entering"
    return "quiet" if says is not None else "unknown"


def _view(
    rule: Rule, phase: Phase, hold: Hold | None, says: Says | None, limits: Limits, read_at: float
) -> RuleView:
    grave = rule.mark in limits.grave
    stands = hold is not None and phase in ("active", "clearing")
    for_s = in_s = None
    if hold is not None and phase in ("entering", "clearing"):
        hold_s = rule.enter_s(limits) if phase == "entering" else rule.clear_s(limits)
        in_s = max(0.0, hold_s - hold.held_s)
    if hold is not None:
        for_s = hold.held_s if hold.since is None else max(0.0, read_at - hold.since)
    enter_s = rule.enter_s(limits)
    return RuleView(
        rule=rule.mark.value,
        phase=phase,
        state=State.UNHEALTHY if grave else State.DEGRADED,
        withdraws=grave,
        measured=None if says is None else says.measured,
        value=None if says is None else says.value,
        threshold=rule.limit(limits) + (f" for {enter_s:g} s" if enter_s else ""),
        for_s=for_s,
        in_s=in_s,
        began=hold.detail if hold is not None and stands else None,
        clears=f"clean for {rule.clear_s(limits):g} s, or clean after a reset" if stands else None,
    )
