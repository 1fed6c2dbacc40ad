"""Measure the idle agent: nine sockets, nine streams, no NVML."""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

from benchmarks.figures import Figure
from benchmarks.stage import Process, Stage
from benchmarks.stand_in_cost import excess_share

_SETTLE_S = 20.0
"""For the first 15 s the agent asks the kubelet every second whether pods hold devices."""
_NOTE = (
    "the simulated driver reads a file instead of waiting for NVML; "
    "the memory does not include NVML's library"
)
_FILES = (
    "CPU time of PCI scan, RDMA and PCIe counters as simulated, less that with paths that the kernel resolves and "
    "files that stay open, at the default intervals"
)
_GRPC_THREADS = ("grpc_global_tim", "event_engine", "lifeguard")
_GRPC = (
    "gRPC's timers tick once or twice a second in each process, which is chance: 9 idle servers alone have 6 to 9 a "
    "second, and 7 to 12 after one call of a client; more CPUs have more timers (docs/reference/benchmarks.md)"
)


async def idle(stage: Stage, *, quick: bool) -> AsyncIterator[Figure]:
    group = "`nodeagent run` at rest"
    async with stage.kubelet() as kubelet, stage.agent(kubelet) as process:
        figures = [figure async for figure in at_rest(group, process, "agent", _NOTE, quick=quick)]
    for figure in figures:
        yield figure
    excess = await asyncio.to_thread(excess_share, stage.root)
    yield Figure(
        group,
        "simulated files: their part of that share, which a node does not pay",
        "%",
        [excess],
        note=_FILES,
    )
    share = next(figure.samples[0] for figure in figures if figure.unit == "%")
    yield Figure(group, "share of a core without them", "%", [max(0.0, share - excess)], key="agent cpu")


async def at_rest(
    group: str, process: Process, who: str, note: str = "", *, quick: bool
) -> AsyncIterator[Figure]:
    """Memory, CPU and wake-ups of a process. ``who`` begins the keys of the figures."""
    await asyncio.sleep(_SETTLE_S)
    began, cpu, woken = time.monotonic(), process.cpu_s(), _wake_ups(process.pid)
    await asyncio.sleep(20.0 if quick else 65.0)
    spent, wall = process.cpu_s() - cpu, time.monotonic() - began
    wake_ups = _wake_ups(process.pid) - woken
    status = status_of(process.pid)
    yield Figure(group, "resident memory (VmRSS)", "MiB", [status["VmRSS"]], note=note, key=f"{who} rss")
    yield Figure(group, "  of that anonymous (RssAnon)", "MiB", [status["RssAnon"]])
    yield Figure(group, "  peak (VmHWM)", "MiB", [status["VmHWM"]])
    yield Figure(group, "threads", "", [status["Threads"]])
    share = 100 * spent / wall
    yield Figure(
        group,
        f"share of a core over {wall:.0f} s",
        "%",
        [share],
        note=note,
        key=f"{who} cpu in all" if note else f"{who} cpu",
    )
    per_second = sum(wake_ups.values()) / wall
    yield Figure(group, "times per second that a thread is woken", "1/s", [per_second], key=f"{who} wake-ups")
    by_grpc = sum(count for name, count in wake_ups.items() if name.startswith(_GRPC_THREADS))
    yield Figure(group, "  of that gRPC's own threads", "1/s", [by_grpc / wall], note=_GRPC)


def _wake_ups(pid: int) -> Counter[str]:
    """The voluntary context switches of each thread, by its name and number. A thread that ends is not counted."""
    counts: Counter[str] = Counter()
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):
            name = f"{(task / 'comm').read_text().strip()} {task.name}"
            counts[name] = int(re.search(r"^voluntary\D+(\d+)", (task / "status").read_text(), re.M)[1])
    return counts


def status_of(pid: int) -> dict[str, float]:
    """Values of /proc/PID/status: sizes in MiB, other numbers as they are."""
    values = {}
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        name, _, value = line.partition(":")
        match value.split():
            case [number, "kB"]:
                values[name] = int(number) / 1024
            case [number] if number.isdigit():
                values[name] = float(number)
    return values
