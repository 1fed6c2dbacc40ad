"""The tables of rules in ``docs/health.md`` and of XIDs in ``docs/gpu-health.md``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from hack.docs.markdown import table
from nodeagent.commands.health.tables import rule_row
from nodeagent.health.rule import Rule
from nodeagent.health.xids import FATAL, IGNORE, WATCH


def rules_table(declared: Iterable[Rule]) -> str:
    heads = ("rule", "state", "kubelet", "enter", "clear", "window", "meaning")
    return table(heads, map(_rule, declared))


def _rule(rule: Rule) -> tuple[str, ...]:
    key, state, kubelet, enter, enter_for, clear, clear_for, window, _ = rule_row(rule)
    enter += f" for {enter_for}" if rule.enter_for_s else ""
    clear += f" for {clear_for}" if rule.clear_for_s else ""
    return f"`{key}`", state, kubelet, enter, clear, window, f"{rule.meaning} *{rule.origin}*"


def xids_table() -> str:
    return table(("XID", "effect", "meaning"), _xids())


def _xids() -> Iterator[tuple[str, str, str]]:
    for effect, meanings in (("fatal", FATAL), ("watch", WATCH)):
        for xid, meaning in sorted(meanings.items()):
            yield str(xid), effect, meaning
    ignored = "The application caused it, or it has no effect on the GPU's hardware."
    yield ", ".join(map(str, sorted(IGNORE))), "ignore", ignored
