"""The health of each device, with its rules: from the agent on this machine, or by a short look of the command."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from nodeagent.agent_config import Config
from nodeagent.base.bounded_calls import in_thread
from nodeagent.base.duration import duration
from nodeagent.base.plain_text import few, one_line
from nodeagent.console.agent_query import (
    ASK_AGAIN_S,
    AgentQueryError,
    ask_for,
    fetch_page,
    follow_agent,
    origin,
)
from nodeagent.console.json_document import json_document
from nodeagent.console.options import GOOD, USAGE
from nodeagent.console.running_sources import (
    RunningSources,
    nics_of_machine,
    offered_by_machine,
    sentences,
    unanswered,
)
from nodeagent.console.similar_names import similar_names
from nodeagent.console.terminal import (
    GAP,
    PLAIN,
    Screen,
    beginnings,
    joined,
    note,
    remarks,
    screen,
    screen_section,
    watching,
)
from nodeagent.facts.model import StaleSource, State
from nodeagent.health.explain import DeviceView, RuleView
from nodeagent.health.health_settings import effective
from nodeagent.health.rule import YES_OR_NO, Rule, clears, gravity, threshold

ALONE = "this is a short look of the command itself, without earlier samples, holds and penalties"
_VIEWS = msgspec.json.Decoder(tuple[DeviceView, ...])


class UnknownDeviceError(Exception):
    """No device has this name; the message lists the names."""


class DeviceHealth(NamedTuple):
    """The devices, and the sources without an answer, whose devices may be more."""

    views: tuple[DeviceView, ...]
    silent: tuple[StaleSource, ...] = ()


class _Facts(msgspec.Struct):
    stale_sources: tuple[StaleSource, ...] = ()


class _Scan(msgspec.Struct):
    """The part of the page ``/scan`` that ``/health`` lacks."""

    snapshot: _Facts


_SCAN = msgspec.json.Decoder(_Scan)


async def show_health(config: Config, options: argparse.Namespace, device: str | None) -> int:
    """Print all devices or one, with ``--watch`` again and again. Return the exit code."""
    fetch = partial(_of_agent, config, options.root, options.listen)
    answer, source = await in_thread(fetch)
    note(origin(answer, source, ALONE))
    place = None if answer is None else source
    if answer is None:
        views = _own(config, options.root, options.watch or ASK_AGAIN_S)
    else:
        views = follow_agent(answer, fetch, every_s=options.watch)
    code = GOOD
    with watching(in_place=options.watch is not None and not options.json) as show:
        async for health in views:
            show(_text(health, device, options, place))
            code = USAGE if answer is None and health.silent else GOOD
            if options.watch is None:
                break
    return code


def _text(health: DeviceHealth, device: str | None, options: argparse.Namespace, place: str | None) -> str:
    view = None if device is None else _find(health, device)
    silent = sentences(health.silent)
    if options.json:
        for sentence in silent:
            note(sentence)
        return json_document(health.views if view is None else view, options.root, place)
    return health_table(health.views, screen(), silent) if view is None else as_detail(view, screen())


def _of_agent(config: Config, root: Path, listen: str | None) -> tuple[DeviceHealth | None, str]:
    """Ask the agent, also for its sources without an answer where not only its web server can be asked.

    Raises ``AgentQueryError``."""
    views, source = fetch_health(config, root, listen)
    if views is None:
        return None, source
    scan = None if listen else ask_for(_SCAN, "/scan", config, root)[0]
    return DeviceHealth(views, unanswered(scan.snapshot.stale_sources) if scan is not None else ()), source


async def _own(config: Config, root: Path, every_s: float) -> AsyncIterator[DeviceHealth]:
    """Read the machine, without the state file, and yield its health each ``every_s``."""
    async with RunningSources(config, root) as sources:
        while True:
            snapshot = sources.inventory.snapshot
            names = nics_of_machine(config, root, snapshot)
            offered = offered_by_machine(config, root, snapshot)
            views = _VIEWS.decode(sources.gpu_publisher.health.explain_json(names, offered, snapshot))
            yield DeviceHealth(views, unanswered(snapshot.stale_sources))
            await asyncio.sleep(every_s)


def fetch_health(config: Config, root: Path, listen: str | None) -> tuple[tuple[DeviceView, ...] | None, str]:
    """Return the answer of the agent that serves this root, and its place; or ``None``, and why none answers.

    Raises ``AgentQueryError``.
    """
    answer = fetch_page("/health", config, root, listen)
    if answer.body is None:
        return None, answer.source
    try:
        return _VIEWS.decode(answer.body), answer.source
    except msgspec.MsgspecError as error:
        raise AgentQueryError(
            f"the server at {answer.source} is not a nodeagent of this version: {error}"
        ) from error


def _find(health: DeviceHealth, name: str) -> DeviceView:
    """Find a device by any of its names: nic7, netdev, RDMA device, PCI address, GPU0, the beginning of a UUID.

    Raises ``UnknownDeviceError``."""
    word = name.lower()
    for view in health.views:
        names = (
            view.label,
            view.name,
            view.netdev,
            view.rdma,
            view.device,
            view.device.removeprefix("0000:"),
        )
        if word in {one.lower() for one in names if one}:
            return view
    begun = [view for view in health.views if view.kind == "gpu" and view.device.lower().startswith(word)]
    if len(begun) == 1 and word not in ("g", "gp", "gpu", "gpu-"):
        return begun[0]
    known = ", ".join(_both_names(view) for view in health.views) or "none"
    similar = similar_names(name, {view.label for view in health.views})
    hint = f"; similar are {', '.join(similar)}" if similar else ""
    if health.silent:
        why = "; ".join(sentences(health.silent))
        raise UnknownDeviceError(f"no device is known as {name!r}{hint}; known are: {known}; {why}")
    raise UnknownDeviceError(f"no device is called {name!r} here{hint}; there are: {known}")


def _both_names(view: DeviceView) -> str:
    return f"{view.label} ({view.name})" if view.label != view.name else view.name


# --- tables ---------------------------------------------------------------------------------------------


def health_table(views: Sequence[DeviceView], on: Screen = PLAIN, silent: Sequence[str] = ()) -> str:
    """Faults come first. ``silent``: a sentence on each source without an answer."""
    views = sorted(views, key=lambda view: (-gravity(view.state), not view.reasons))
    rows = [
        (
            view.label,
            view.netdev if view.nic else None,
            view.device,
            view.state,
            ("Healthy" if view.allocatable else "Unhealthy") if view.offered else None,
            _for(view.for_s),
        )
        for view in views
    ]
    short = iter(beginnings([view.device for view in views if view.device.startswith("GPU-")]))
    ids = [next(short) if view.device.startswith("GPU-") else view.device for view in views]
    table = screen_section(
        "HEALTH",
        ("DEVICE", "NETDEV", "ID", "STATE", "KUBELET", "FOR"),
        rows,
        on,
        shorter={"ID": ids},
        optional=("NETDEV", "KUBELET"),
        absent="not known" if silent else "none",
        below=[[*_sentences(view)] for view in views],
    )
    return joined(table, remarks("REMARKS", silent, on))


def _sentences(view: DeviceView) -> Iterator[str]:
    rules = {rule.rule: rule for rule in view.rules}
    for reason in view.reasons:
        yield f"{reason.key}: {reason.detail}"
        if (rule := rules.get(reason.key)) is not None:
            yield f"{GAP}{_live(rule)}"
    if view.reasons and view.pods:
        yield f"pods: {', '.join(few(view.pods))}"
    if view.reasons and view.remedy:
        yield f"do: {view.remedy}"


def _live(rule: RuleView) -> str:
    parts = [f"now: {rule.measured or 'no reading'}"]
    if rule.threshold != YES_OR_NO:
        parts.append(f"threshold: {rule.threshold}")
    if rule.for_s is not None:
        parts.append(f"for {duration(rule.for_s)}")
    if rule.clears is not None:
        parts.append(f"clears: {rule.clears}")
    if rule.in_s is not None:
        parts.append(f"{duration(rule.in_s)} to go")
    return "; ".join(parts)


def as_detail(view: DeviceView, on: Screen = PLAIN) -> str:
    """Return one device with every rule."""
    rows = [
        (
            rule.rule,
            rule.phase,
            rule.measured or None,
            rule.threshold,
            _for(rule.for_s),
            _for(rule.in_s),
            rule.clears or None,
        )
        for rule in view.rules
    ]
    heads = ("RULE", "PHASE", "MEASURED", "THRESHOLD", "FOR", "TO GO", "CLEARS")
    table = screen_section("RULES", heads, rows, on, optional=("TO GO",)) if rows else ""
    netdevs = [
        (f"{one.namespace}/{one.pod}", one.device, one.netdev, ", ".join(one.addresses) or None)
        for one in view.pod_netdevs
    ]
    inside = (
        screen_section(
            "NETDEVS IN PODS", ("POD", "DEVICE", "NETDEV", "ADDRESS"), netdevs, on, optional=("ADDRESS",)
        )
        if netdevs
        else ""
    )
    return joined(health_table([view], on), inside, table)


def show_rules(config: Config, options: argparse.Namespace) -> int:
    """Print the rules in force."""
    rules = effective(config.health.rules)
    if not options.json:
        print(rules_table(rules, screen()))
        return GOOD
    keys = ("rule", "state", "kubelet", "enter", "enterFor", "clear", "clearFor", "window", "enabled")
    rows = [
        dict(zip(keys, rule_row(rule), strict=True)) | {"meaning": rule.meaning, "origin": rule.origin}
        for rule in rules
    ]
    print(json_document(rows, options.root, None))
    return GOOD


def rules_table(rules: Iterable[Rule], on: Screen = PLAIN) -> str:
    """Return the table of the rules in force."""
    return screen_section(
        "RULES", RULE_HEADS, map(rule_row, rules), on, optional=("ENABLED", "WINDOW", "STATE")
    )


RULE_HEADS = ("RULE", "STATE", "KUBELET", "ENTER", "FOR", "CLEAR", "FOR", "WINDOW", "ENABLED")


def rule_row(rule: Rule) -> tuple[str, ...]:
    clear = clears(rule).partition(",")[0]
    return (
        rule.key,
        "warning" if rule.state.value == "healthy" else rule.state.value,
        "Unhealthy" if rule.withdraws else "Healthy",
        threshold(rule),
        duration(rule.enter_for_s),
        clear,
        duration(rule.clear_for_s),
        "-" if rule.window_s is None else duration(rule.window_s),
        "yes" if rule.enabled else "no",
    )


def _for(count: float | None) -> str | None:
    return None if count is None else duration(count)


# --- Node Problem Detector ------------------------------------------------------------------------------

Kind = Literal["links", "gpus"]

NO_PROBLEM, PROBLEM, UNKNOWN = 0, 1, 2
"""The exit codes of a custom plugin (kubernetes/node-problem-detector, docs/custom_plugin_monitor.md). Its line becomes
the message of the Node condition."""
LENGTH_MAX = 80
"""``max_output_length`` of Node Problem Detector by default; it cuts a longer line."""
_PROBLEMS = (State.DOWN, State.UNHEALTHY, State.DEGRADED, State.MISCABLED)
"""The states of the conditions that the agent itself can set: a warning is no problem."""


def show_problem(config: Config, options: argparse.Namespace) -> int:
    """Print the line. Only the state that the agent has derived counts: a look of the command itself has no holds."""
    try:
        views, source = fetch_health(config, options.root, options.listen)
    except AgentQueryError as error:
        views, source = None, str(error)
    code, line = UNKNOWN, cut(f"no agent: {source}")
    if views is not None:
        code, line = problem_line(views, options.problem)
    print(line)
    return code


def problem_line(views: Sequence[DeviceView], kind: Kind) -> tuple[int, str]:
    """Return the exit code and the line for the links or the GPUs."""
    devices = [view for view in views if (view.kind == "nic") is (kind == "links")]
    noun = kind if kind == "links" else "GPUs"
    bad = sorted(
        (view for view in devices if view.state in _PROBLEMS), key=lambda view: _PROBLEMS.index(view.state)
    )
    unknown = [view for view in devices if view.state is State.UNKNOWN]
    if bad:
        reasons = "; ".join(f"{view.label} {', '.join(_keys(view)) or view.state}" for view in bad)
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
