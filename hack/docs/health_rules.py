"""The tables of rules in ``docs/reference/nic-rules.md``, and of rules and XIDs in ``gpu-rules.md``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from hack.docs.markdown import table
from nodeagent.commands.health.device_health import rule_row
from nodeagent.config.setting import wire
from nodeagent.health.gpu_settings import GpuHealthSettings
from nodeagent.health.rule import Rule
from nodeagent.health.rules.gpu_rules import measured_rules
from nodeagent.health.rules.xids import FATAL, IGNORE, RECOVERY_ACTION_CHANGED, WATCH


def rules_table(declared: Iterable[Rule]) -> str:
    heads = ("rule", "state", "kubelet", "enter", "clear", "window", "meaning")
    return table(heads, map(_rule, declared))


def _rule(rule: Rule) -> tuple[str, ...]:
    key, state, kubelet, enter, enter_for, clear, clear_for, window, _ = rule_row(rule)
    enter += f" for {enter_for}" if rule.enter_for_s else ""
    clear += f" for {clear_for}" if rule.clear_for_s else ""
    return f"`{key}`", state, kubelet, enter, clear, window, f"{rule.meaning} *{rule.origin}*"


def gpu_rules_table() -> str:
    """Return the rules on measured values of GPUs. A setting belongs to the rules that change with it."""
    defaults = GpuHealthSettings()
    rules = measured_rules(defaults)
    settings: dict[str, list[str]] = {rule.key: [] for rule in rules}
    for name in defaults.__struct_fields__:
        value = getattr(defaults, name)
        if value is None or type(value) in (int, float):
            changed = measured_rules(replace(defaults, **{name: (value or 0) + 1}))
            for before, after in zip(rules, changed, strict=True):
                if (before.limit, before.clears) != (after.limit, after.clears):
                    settings[before.key].append(f"`{wire(name)}`")
    heads = ("reason", "begins", "state", "clears", "settings in gpu.health", "meaning")
    rows = (
        (
            *(f"`{rule.key}`", rule.limit or "", rule.state.value, rule.clears or ""),
            *(", ".join(settings[rule.key]), rule.meaning),
        )
        for rule in rules
    )
    return table(heads, rows)


def xids_table() -> str:
    return table(("XID", "effect", "meaning"), _xids())


def _xids() -> Iterator[tuple[str, str, str]]:
    for effect, meanings in (("fatal", FATAL), ("watch", WATCH)):
        for xid, meaning in sorted(meanings.items()):
            yield str(xid), effect, meaning
    changed = "The recovery action changed. It is fatal only if the driver does not report the action (before r565)."
    yield str(RECOVERY_ACTION_CHANGED), "as the action", changed
    ignored = "The application caused it, or it has no effect on the GPU's hardware."
    yield ", ".join(map(str, sorted(IGNORE))), "ignore", ignored
