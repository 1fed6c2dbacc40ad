"""The GPUs of the agent on this machine, or by a look of the command itself, as a table or as JSON."""

from __future__ import annotations

import argparse
import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from functools import partial
from pathlib import Path

import msgspec

from nodeagent.agent_config import Config
from nodeagent.base.bounded_calls import in_thread
from nodeagent.base.duration import duration
from nodeagent.console.agent_query import ASK_AGAIN_S, ask_for, follow_agent, origin
from nodeagent.console.json_document import json_document
from nodeagent.console.options import GOOD, USAGE
from nodeagent.console.running_sources import RunningSources, known_kinds
from nodeagent.console.terminal import (
    OLD,
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
from nodeagent.facts.model import ContainerLimit
from nodeagent.host.clock import boottime
from nodeagent.offering.offer import Offer
from nodeagent.sharing.gpu_accounting import GpuAccounting
from nodeagent.sharing.over_use import exceeds
from nodeagent.web.gpu_statuses import GpuStatus, GpuStatuses, gpu_statuses
from nodeagent.web.pages import device_counts

_ALONE = "this is a short look of the command itself: it does not show what pods hold"
_GIB = 1 << 30
HEADS = ("GPU", "UUID", "GRANTED", "USED", "FREE", "LARGEST", "LOAD", "HEALTH")
HARDWARE = ("GPU", "POWER", "TEMP", "SM CLOCK", "MEM CLOCK", "ECC ERRORS", "SLOWED BY")
USERS = ("GPU", "POD OR PROCESS", "GRANTED", "USED", "LOAD", "REMARK")
LIMITED_BY = {
    "idle": "no load",
    "application_clocks": "setting of the clocks",
    "power_cap": "power limit",
    "hardware_slowdown": "hardware slowdown",
    "sync_boost": "sync boost",
    "thermal": "heat",
    "hardware_thermal": "heat (hardware)",
    "power_brake": "power brake",
    "display": "setting for displays",
}
"""Words for the reasons of ``host.nvml_vitals.CLOCK_REASONS``."""
_LINES = msgspec.json.Decoder(GpuStatuses)


async def show_gpus(config: Config, options: argparse.Namespace) -> int:
    """Print the GPUs, with ``--watch`` again and again. Return the exit code."""
    fetch = partial(ask_for, _LINES, "/gpus", config, options.root)
    answer, source = await in_thread(fetch)
    note(origin(answer, source, _ALONE))
    place = None if answer is None else source
    if answer is None and options.processes:
        health = msgspec.structs.replace(config.gpu.health, processes=True)
        config = msgspec.structs.replace(config, gpu=msgspec.structs.replace(config.gpu, health=health))
    if answer is None:
        views = _own(config, options.root, options.watch or ASK_AGAIN_S)
    else:
        views = follow_agent(answer, fetch, every_s=options.watch)
    code = GOOD
    with watching(in_place=options.watch is not None and not options.json) as show:
        async for lines in views:
            text = partial(gpu_table, lines, screen(), processes=options.processes)
            show(json_document(lines, options.root, place) if options.json else text())
            code = USAGE if answer is None and lines.silent is not None else GOOD
            if options.watch is None:
                break
    return code


async def _own(config: Config, root: Path, every_s: float) -> AsyncIterator[GpuStatuses]:
    """Read the machine, and yield its GPUs each ``every_s``."""
    sources = RunningSources(config, root)
    accounting = GpuAccounting(config.gpu, lambda: sources.inventory.snapshot, lambda: {})
    sources.gpu_publisher.publish_usage_to(accounting.take_usage)
    async with sources:
        offer = Offer(config)
        while True:
            snapshot = sources.inventory.snapshot
            counts = device_counts(known_kinds(offer, snapshot), snapshot)
            samples = sources.gpu_publisher.samples()
            yield gpu_statuses(
                snapshot,
                counts,
                samples,
                accounting.accounts(),
                accounting.obstacle,
                settings=config.gpu,
                now=boottime(),
            )
            await asyncio.sleep(every_s)


def gpu_table(
    lines: GpuStatuses, on: Screen = PLAIN, *, processes: bool = False, now: float | None = None
) -> str:
    """UUIDs are shortened on a screen that is narrower than the table. ``processes``: list those of each pod. ``now``:
    Unix time, if it is not that of the clock."""
    models = Counter(gpu.model for gpu in lines.gpus if gpu.model)
    about = [", ".join(f"{number} x {model}" for model, number in models.items())]
    about += [f"driver {lines.driver}"] if lines.driver else []
    table = screen_section(
        ": ".join(filter(None, ("GPUS", ", ".join(filter(None, about))))),
        HEADS,
        _rows(lines),
        on,
        shorter={"UUID": [str(row[1]) for row in _rows(lines, short=True)]},
        optional=("LARGEST", "UUID"),
        absent="none" if lines.silent is None else "not known",
    )
    hardware = [_hardware(gpu, old=gpu.old_seconds is not None) for gpu in lines.gpus]
    users = [
        row
        for gpu in lines.gpus
        for row in _users(gpu, lines.tolerance_bytes, now or time.time(), processes=processes)
    ]
    notes = [] if lines.silent is None else [f"source gpus has failed: {lines.silent}"]
    notes += [f"the use by pods is not known: {lines.obstacle}"] if lines.obstacle else []
    for gpu in lines.gpus:
        name = f"GPU{gpu.index}" if len(models) < 2 else f"GPU{gpu.index} ({gpu.model})"
        if gpu.reasons or len(models) > 1:
            notes.append(": ".join(filter(None, (name, gpu.state, ", ".join(gpu.reasons)))))
        for limit in gpu.limits:
            if limit.why:
                where = f"{limit.namespace}/{limit.pod}, container {limit.container}"
                notes.append(f"{where}: its limit on {name} is {limit.state}: {limit.why}")
        if gpu.old_seconds is not None:
            age = duration(gpu.old_seconds)
            notes.append(f"{name}: its values are {age} old, because it is not measured any more")
    return joined(
        table,
        screen_section("HARDWARE", HARDWARE, hardware, on) if hardware else "",
        screen_section("USERS", USERS, users, on) if users else "",
        remarks("REMARKS", notes, on),
    )


def _rows(lines: GpuStatuses, *, short: bool = False) -> Iterator[Sequence[object]]:
    def names(uuids: list[str]) -> list[str]:
        return beginnings(uuids) if short else uuids

    migs = iter(names([device.uuid for gpu in lines.gpus for device in gpu.mig]))
    for gpu, uuid in zip(lines.gpus, names([gpu.uuid for gpu in lines.gpus]), strict=True):
        old = gpu.old_seconds is not None
        yield (
            gpu.index,
            uuid,
            _memory(gpu.granted_bytes),
            _measured(None if gpu.used_bytes is None else _of(gpu.used_bytes, gpu.memory_bytes), old),
            None if gpu.free is None else f"{gpu.free}/{gpu.slices}",
            gpu.largest,
            _measured(_percent(gpu.utilization), old),
            gpu.state,
        )
        for device in gpu.mig:
            granted = _memory(device.memory_bytes) if device.holder else ""
            state = f"held by {device.holder}" if device.holder else "free"
            yield "", f"  {next(migs)}", granted, "", "", "", "", f"{device.profile}, {state}"


def _hardware(gpu: GpuStatus, *, old: bool) -> Sequence[object]:
    power, limit = gpu.power_watts, gpu.power_limit_watts
    ecc = {"corrected": gpu.ecc_correctable, "uncorrected": gpu.ecc_uncorrectable}
    errors = ", ".join(f"{count} {word}" for word, count in ecc.items() if count)
    reasons = None if gpu.clock_reasons is None else [LIMITED_BY.get(one, one) for one in gpu.clock_reasons]
    values = (
        None if power is None else f"{power:.0f} W" if limit is None else f"{power:.0f}/{limit:.0f} W",
        None if gpu.celsius is None else f"{gpu.celsius:g} °C",
        *(None if hertz is None else f"{hertz / 1e6:.0f} MHz" for hertz in (gpu.sm_hertz, gpu.memory_hertz)),
        errors or (None if gpu.ecc_uncorrectable is None else "0"),
        None if reasons is None else ", ".join(reasons) or "nothing",
    )
    return gpu.index, *(_measured(value, old) for value in values)


def _users(
    gpu: GpuStatus, tolerance_bytes: int, now: float, *, processes: bool
) -> Iterator[Sequence[object]]:
    for pod in gpu.pods:
        name = f"{pod.namespace}/{pod.pod}" if pod.namespace else f"pod {pod.pod}"
        used = pod.used_bytes
        over = used is not None and exceeds(used, pod.granted_bytes, tolerance_bytes)
        numbers = (_memory(pod.granted_bytes), _memory(used), _percent(pod.utilization))
        limits = [limit for limit in gpu.limits if (limit.namespace, limit.pod) == (pod.namespace, pod.pod)]
        remark = [*(["above its share"] if over else ()), *_limits(limits, now)]
        yield gpu.index, name, *numbers, ", ".join(remark)
        for process in pod.members if processes else ():
            yield "", f"  {process.name or '?'} ({process.pid})", "", _memory(process.memory_bytes), "", ""
    for process in gpu.outside:
        name = f"{process.name or '?'} ({process.pid})"
        yield gpu.index, name, "", _memory(process.memory_bytes), "", "in no pod"


def _limits(limits: Sequence[ContainerLimit], now: float) -> Iterator[str]:
    """The state of the hard limits of a pod: each state of its containers, and for how long it is so."""
    for state in dict.fromkeys(limit.state for limit in limits):
        since = min(limit.since for limit in limits if limit.state == state)
        yield f"limit {state} for {duration(now - since)}"


def _of(part: int, whole: int) -> str:
    return f"{part / _GIB:.1f}/{whole / _GIB:.1f} GiB"


def _measured(value: str | None, old: bool) -> str | None:
    return f"{value} {OLD}" if old and value is not None else value


def _memory(size: int | None) -> str | None:
    return None if size is None else f"{size / _GIB:.1f} GiB"


def _percent(part: float | None) -> str | None:
    return None if part is None else f"{100 * part:.0f} %"
