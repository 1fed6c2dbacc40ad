"""Tables and sentences of health and rules for people. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from nodeagent.commands.terminal import PLAIN, Screen, remarks, section
from nodeagent.health.explain import DeviceView, RuleView
from nodeagent.health.rule import YES_OR_NO, Rule, clears, threshold


def as_table(views: Sequence[DeviceView], on: Screen = PLAIN, silent: Sequence[str] = ()) -> str:
    """``silent``: a sentence on each source without an answer."""
    rows = [
        (
            view.name,
            view.device,
            view.state.value,
            "Healthy" if view.allocatable else "Unhealthy",
            "-" if view.for_s is None else seconds(view.for_s),
            ", ".join(reason.key for reason in view.reasons) or "-",
        )
        for view in views
    ]
    lines = [*(line for view in views for line in _sentences(view)), *silent]
    heads = ("DEVICE", "ID", "STATE", "KUBELET", "FOR", "REASONS")
    absent = "not known" if silent else "none"
    parts = (section("HEALTH", heads, rows, on, absent=absent), remarks("REASONS", lines, on))
    return "\n".join(part for part in parts if part)


def _sentences(view: DeviceView) -> Iterator[str]:
    rules = {rule.rule: rule for rule in view.rules}
    for reason in view.reasons:
        yield f"{view.name}: {reason.key}: {reason.detail}"
        if (rule := rules.get(reason.key)) is not None:
            yield f"    {_live(rule)}"


def _live(rule: RuleView) -> str:
    parts = [f"measured now: {rule.measured or 'nothing'}"]
    if rule.threshold != YES_OR_NO:
        parts[0] += f", threshold: {rule.threshold}"
    if rule.for_s is not None:
        parts.append(f"for {seconds(rule.for_s)}")
    if rule.clears is not None:
        parts.append(f"clears {rule.clears}")
    if rule.in_s is not None:
        parts.append(f"{seconds(rule.in_s)} to go")
    return "; ".join(parts)


def as_detail(view: DeviceView, on: Screen = PLAIN) -> str:
    """Return one device with every rule."""
    rows = [
        (
            rule.rule,
            rule.phase,
            rule.measured or "-",
            rule.threshold,
            "-" if rule.for_s is None else seconds(rule.for_s),
            "-" if rule.in_s is None else seconds(rule.in_s),
            rule.clears or "-",
        )
        for rule in view.rules
    ]
    heads = ("RULE", "PHASE", "MEASURED", "THRESHOLD", "FOR", "TO GO", "CLEARS")
    parts = [as_table([view], on)]
    if rows:
        parts.append(section("RULES", heads, rows, on, optional=("TO GO",)))
    return "\n".join(parts)


def rules_table(rules: Iterable[Rule], on: Screen = PLAIN) -> str:
    """Return the table of the rules in force."""
    return section("RULES", RULE_HEADS, map(rule_row, rules), on, optional=("ENABLED", "WINDOW", "STATE"))


RULE_HEADS = ("RULE", "STATE", "KUBELET", "ENTER", "FOR", "CLEAR", "FOR", "WINDOW", "ENABLED")


def rule_row(rule: Rule) -> tuple[str, ...]:
    clear = clears(rule).partition(",")[0]
    return (
        rule.key,
        "warning" if rule.state.value == "healthy" else rule.state.value,
        "Unhealthy" if rule.withdraws else "Healthy",
        threshold(rule),
        seconds(rule.enter_for_s),
        clear,
        seconds(rule.clear_for_s),
        "-" if rule.window_s is None else seconds(rule.window_s),
        "yes" if rule.enabled else "no",
    )


def seconds(count: float) -> str:
    """Return a duration such as ``90 s``, ``15 min``, ``2 h``, in the largest unit with a count of at least 2."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if count >= 2 * size:
            return f"{count / size:.3g} {unit}"
    return f"{count:.3g} s"
