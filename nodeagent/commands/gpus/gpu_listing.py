"""The GPUs of the agent on this machine, or by a look of the command itself, as a table or as JSON."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from functools import partial
from pathlib import Path

import msgspec

from nodeagent.agent_config import Config
from nodeagent.base.bounded_calls import in_thread
from nodeagent.base.duration import duration
from nodeagent.commands.agent_query import AGAIN_S, ask_for, follow, origin
from nodeagent.commands.json_document import document
from nodeagent.commands.options import FAILED, GOOD
from nodeagent.commands.running_sources import RunningSources, known_kinds
from nodeagent.commands.scan.listing import beginnings
from nodeagent.commands.terminal import OLD, PLAIN, Screen, joined, note, remarks, screen, section, watching
from nodeagent.host.clock import boottime
from nodeagent.offering.offer import Offer
from nodeagent.sharing.gpu_accounting import GpuAccounting
from nodeagent.sharing.over_use import exceeds
from nodeagent.web.gpu_statuses import GpuStatuses, gpu_statuses
from nodeagent.web.pages import device_counts

ALONE = "this is a short look of the command itself: it does not show what pods hold"
GIB = 1 << 30
HEADS = ("GPU", "UUID", "GRANTED", "USED", "FREE", "LARGEST", "LOAD", "TEMP", "HEALTH")
_LINES = msgspec.json.Decoder(GpuStatuses)


async def show(config: Config, options: argparse.Namespace) -> int:
    """Print the GPUs, with ``--watch`` every second. Return the exit code."""
    fetch = partial(ask_for, _LINES, "/gpus", config, options.root)
    answer, source = await in_thread(fetch)
    note(origin(answer, source, ALONE))
    place = None if answer is None else source
    views = _own(config, options.root) if answer is None else follow(answer, fetch)
    code = GOOD
    with watching(in_place=options.watch and not options.json) as show:
        async for lines in views:
            show(document(lines, options.root, place) if options.json else as_table(lines, screen()))
            code = FAILED if answer is None and lines.silent is not None else GOOD
            if not options.watch:
                break
    return code


async def _own(config: Config, root: Path) -> AsyncIterator[GpuStatuses]:
    """Read the machine, and yield its GPUs once a second."""
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
            await asyncio.sleep(AGAIN_S)


def as_table(lines: GpuStatuses, on: Screen = PLAIN) -> str:
    """UUIDs are shortened on a screen that is narrower than the table."""
    uuids = [gpu.uuid for gpu in lines.gpus]
    short = [str(row[1]) for row in _rows(lines, beginnings(uuids))]
    table = section(
        "GPUS",
        HEADS,
        _rows(lines, uuids),
        on,
        shorter={"UUID": short},
        optional=("TEMP", "LARGEST"),
        absent="none" if lines.silent is None else "not known",
    )
    notes = [] if lines.silent is None else [f"source gpus has failed: {lines.silent}"]
    notes += [f"the use by pods is not known: {lines.obstacle}"] if lines.obstacle else []
    for gpu in lines.gpus:
        if gpu.reasons:
            notes.append(f"GPU{gpu.index}: {gpu.state}: {', '.join(gpu.reasons)}")
        if gpu.old_seconds is not None:
            age = duration(gpu.old_seconds)
            notes.append(f"GPU{gpu.index}: its values are {age} old, because it is not measured any more")
    return joined(table, remarks("REMARKS", notes, on))


def _rows(lines: GpuStatuses, uuids: Sequence[str]) -> Iterator[Sequence[object]]:
    for gpu, uuid in zip(lines.gpus, uuids, strict=True):
        old = gpu.old_seconds is not None
        yield (
            gpu.index,
            uuid,
            _memory(gpu.granted_bytes),
            _measured(_memory(gpu.used_bytes), old),
            None if gpu.free is None else f"{gpu.free}/{gpu.slices}",
            gpu.largest,
            _measured(_percent(gpu.utilization), old),
            _measured(None if gpu.celsius is None else f"{gpu.celsius:g} °C", old),
            gpu.state,
        )
        for device in gpu.mig:
            granted = _memory(device.memory_bytes) if device.holder else ""
            state = f"held by {device.holder}" if device.holder else "free"
            yield "", f"  {device.uuid}", granted, "", "", "", "", "", f"{device.profile}, {state}"
        for pod in gpu.pods:
            name = f"{pod.namespace}/{pod.pod}" if pod.namespace else f"pod {pod.pod}"
            used = pod.used_bytes
            over = used is not None and exceeds(used, pod.granted_bytes, lines.tolerance_bytes)
            numbers = (_memory(pod.granted_bytes), _memory(pod.used_bytes), "", "", _percent(pod.utilization))
            yield "", f"  {name}", *numbers, "", "above its share" if over else ""
        for process in gpu.outside:
            name = f"  {process.name or '?'} ({process.pid}), in no pod"
            yield "", name, "", _memory(process.memory_bytes), "", "", "", "", ""


def _measured(value: str | None, old: bool) -> str | None:
    return f"{value} {OLD}" if old and value is not None else value


def _memory(size: int | None) -> str | None:
    return None if size is None else f"{size / GIB:.1f} GiB"


def _percent(part: float | None) -> str | None:
    return None if part is None else f"{100 * part:.0f} %"
