"""The verdict with everything behind it: what was measured, beside which threshold, since when, what would clear it.

Pure, and made when somebody asks: live values stand here and never in a fact.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from nodeagent.health.engine import Engine, order
from nodeagent.health.hold import Hold
from nodeagent.health.measures import Measured
from nodeagent.health.nic_state import Pf
from nodeagent.health.rules import Rule
from nodeagent.model import Health, Reason, State

Phase = Literal["active", "entering", "clearing", "quiet", "unknown", "off"]


class RuleView(msgspec.Struct, frozen=True, rename="camel"):
    """One rule on one device. ``for_s``: how long it has been in this phase. ``in_s``: when it changes if the value
    stays as it is. ``clears``: what would clear it, in words."""

    rule: str
    phase: Phase
    state: State
    withdraws: bool
    measured: str | None
    value: float | None
    threshold: str
    for_s: float | None = None
    in_s: float | None = None
    began: str | None = None
    clears: str | None = None


class DeviceView(msgspec.Struct, frozen=True, rename="camel"):
    """A PF or a GPU. ``watched``: it has passed the gate, so that a missing link is a fault."""

    device: str
    name: str
    kind: Literal["nic", "gpu"]
    state: State
    allocatable: bool
    watched: bool
    for_s: float | None
    reasons: tuple[Reason, ...]
    rules: tuple[RuleView, ...] = ()
    silent: tuple[str, ...] = ()


def explain(engine: Engine, health: dict[str, Health], now: float) -> tuple[DeviceView, ...]:
    """Of every PF, the gravest first. ``health`` is the last verdict, by PCI address."""
    views = []
    for pf in engine.pfs.values():
        pf.history.ask(now)
        verdict = health.get(pf.address, Health())
        views.append(
            DeviceView(
                device=pf.address,
                name=pf.netdev or pf.address,
                kind="nic",
                state=verdict.state,
                allocatable=verdict.allocatable,
                watched=pf.watched,
                for_s=None if pf.changed_at is None else max(0.0, now - pf.changed_at),
                reasons=verdict.reasons,
                rules=_rules(engine, pf, now),
                silent=tuple(source.value for source in pf.history.stale()),
            )
        )
    return tuple(sorted(views, key=lambda view: (-order(view.state), view.device)))


def _rules(engine: Engine, pf: Pf, now: float) -> tuple[RuleView, ...]:
    seen = engine.seen(pf, now)
    views = []
    for rule in engine.terms.rules:
        if not rule.enabled:
            views.append(_view(rule, "off", None, None, now))
            continue
        measured = pf.measure(rule, seen, now) if pf.applies(rule.key) else None
        hold = pf.holds.get(rule.key)
        views.append(_view(rule, _phase(hold, measured), measured, hold, now))
    return tuple(views)


def _phase(hold: Hold | None, measured: Measured | None) -> Phase:
    if hold is not None and hold.active:
        return "active" if hold.good_since is None else "clearing"
    if measured is None:
        return "unknown"
    return "entering" if hold is not None and hold.since is not None else "quiet"


def _view(rule: Rule, phase: Phase, measured: Measured | None, hold: Hold | None, now: float) -> RuleView:
    active = phase in ("active", "clearing")
    due = hold.due(rule) if hold is not None else None
    began = hold.since if hold is not None else None
    return RuleView(
        rule=rule.key,
        phase=phase,
        state=rule.state,
        withdraws=rule.withdraws,
        measured=None if measured is None else measured.said,
        value=None if measured is None else measured.value,
        threshold=(measured.limit if measured is not None else None) or threshold(rule),
        for_s=None if began is None else max(0.0, now - began),
        in_s=None if due is None else max(0.0, due - now),
        began=hold.said if hold is not None and active else None,
        clears=clears(rule) if active else None,
    )


def threshold(rule: Rule) -> str:
    """``≥ 10 per second``; of a rule without thresholds its unit."""
    if not rule.has_threshold:
        return rule.unit
    return f"{'<' if rule.below else '≥'} {rule.enter:g} {rule.unit}"


def clears(rule: Rule) -> str:
    """What would clear it, in words."""
    what = "when it ends"
    if rule.has_threshold:
        what = f"{'≥' if rule.below else '≤'} {rule.clear:g} {rule.unit}"
    return f"{what}, for {rule.clear_for_s:g} s" if rule.clear_for_s else what
