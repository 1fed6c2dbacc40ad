"""The health of this node as a custom plugin of Node Problem Detector prints it: one line and an exit code. Pure.

The exit codes are 0 (no problem), 1 (problem) and 2 (unknown), and the line becomes the message of the Node condition
(kubernetes/node-problem-detector, docs/custom_plugin_monitor.md). The states are those of the conditions that the agent
itself can set: a warning is no problem.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from nodeagent.base.plain_text import one_line
from nodeagent.facts.model import State
from nodeagent.health.explain import DeviceView

Kind = Literal["links", "gpus"]

NO_PROBLEM, PROBLEM, UNKNOWN = 0, 1, 2
LENGTH_MAX = 80
"""``max_output_length`` of Node Problem Detector by default; it cuts a longer line."""
_PROBLEMS = (State.DOWN, State.UNHEALTHY, State.DEGRADED, State.MISCABLED)


def problem_line(views: Sequence[DeviceView], kind: Kind) -> tuple[int, str]:
    """Return the exit code and the line for the links or the GPUs."""
    devices = [view for view in views if (view.kind == "nic") is (kind == "links")]
    noun = kind if kind == "links" else "GPUs"
    bad = sorted(
        (view for view in devices if view.state in _PROBLEMS), key=lambda view: _PROBLEMS.index(view.state)
    )
    unknown = [view for view in devices if view.state is State.UNKNOWN]
    if bad:
        reasons = "; ".join(f"{view.name} {', '.join(_keys(view)) or view.state}" for view in bad)
        return PROBLEM, cut(f"{len(bad)} of {len(devices)} {noun}: {reasons}")
    if unknown or not devices:
        why = (
            f"{len(unknown)} of {len(devices)} {noun} have no current data"
            if devices
            else f"no {noun} are known"
        )
        return UNKNOWN, cut(why)
    return NO_PROBLEM, cut(f"{len(devices)} {noun} are healthy")


def cut(line: str) -> str:
    """The line as Node Problem Detector takes it."""
    return one_line(line, LENGTH_MAX)


def _keys(view: DeviceView) -> list[str]:
    return [reason.key for reason in view.reasons if not reason.warning]
