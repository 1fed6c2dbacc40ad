"""The GPUs as a table for people. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nodeagent.commands.scan.listing import beginnings
from nodeagent.commands.terminal import PLAIN, Screen, remarks, section
from nodeagent.web.gpu_statuses import GpuStatus, GpuStatuses

GIB = 1 << 30
HEADS = ("GPU", "UUID", "GRANTED", "USED", "FREE", "LARGEST", "LOAD", "TEMP", "HEALTH")


def as_table(lines: GpuStatuses, on: Screen = PLAIN) -> str:
    """UUIDs are shortened on a screen that is narrower than the table."""
    uuids = [gpu.uuid for gpu in lines.gpus]
    short = [row[1] for row in _rows(lines.gpus, beginnings(uuids))]
    table = section(
        "GPUS",
        HEADS,
        _rows(lines.gpus, uuids),
        on,
        shorter={"UUID": short},
        optional=("TEMP", "LARGEST"),
        absent="none" if lines.silent is None else "not known",
    )
    notes = [] if lines.silent is None else [f"source gpus has failed: {lines.silent}"]
    notes += [f"the use by pods is not known: {lines.obstacle}"] if lines.obstacle else []
    notes += [f"GPU{gpu.index}: {gpu.state}: {', '.join(gpu.reasons)}" for gpu in lines.gpus if gpu.reasons]
    return "\n".join(part for part in (table, remarks("REMARKS", notes, on)) if part)


def _rows(gpus: Sequence[GpuStatus], uuids: Sequence[str]) -> Iterator[Sequence[str]]:
    for gpu, uuid in zip(gpus, uuids, strict=True):
        yield (
            str(gpu.index),
            uuid,
            _memory(gpu.granted_bytes),
            _memory(gpu.used_bytes),
            "-" if gpu.free is None else f"{gpu.free}/{gpu.slices}",
            "-" if gpu.largest is None else str(gpu.largest),
            _percent(gpu.utilization),
            "-" if gpu.celsius is None else f"{gpu.celsius:g} °C",
            gpu.state,
        )
        for device in gpu.mig:
            granted = _memory(device.memory_bytes) if device.holder else ""
            state = f"held by {device.holder}" if device.holder else "free"
            yield "", f"  {device.uuid}", granted, "", "", "", "", "", f"{device.profile}, {state}"
        for pod in gpu.pods:
            name = f"{pod.namespace}/{pod.pod}" if pod.namespace else f"pod {pod.pod}"
            over = pod.used_bytes is not None and pod.used_bytes > pod.granted_bytes
            numbers = (_memory(pod.granted_bytes), _memory(pod.used_bytes), "", "", _percent(pod.utilization))
            yield "", f"  {name}", *numbers, "", "above its share" if over else ""
        for process in gpu.outside:
            name = f"  {process.name or '?'} ({process.pid}), in no pod"
            yield "", name, "", _memory(process.memory_bytes), "", "", "", "", ""


def _memory(size: int | None) -> str:
    return "-" if size is None else f"{size / GIB:.1f} GiB"


def _percent(part: float | None) -> str:
    return "-" if part is None else f"{100 * part:.0f} %"
