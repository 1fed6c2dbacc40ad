"""Churn a simulated node and its cluster for minutes, and decide whether the daemons grow.

    python hack/soak.py [--minutes N] [--rests N] [--claims] [--seed N] [--json FILE] [--trace]

The agent and the controller are real processes. After a warm-up the faults are taken back and both are measured at
rest. After the churn the same is done again, with ``--rests N`` N times in equal parts of it. The result is FAIL, with
exit code 1, if a daemon ended, if a device was held twice, if a device did not return, or if a figure grew by more than
its bound. The slope of the resident memory during the churn is printed and has no bound: a few minutes show how arenas
fill.

With ``--trace`` the lines follow whose objects grew most between the two. A daemon that is traced is slower and has
more memory, so the bound of its memory does not count then.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
import time
import tracemalloc
from pathlib import Path

from benchmarks.churn import ENVIRONMENT, Churn, SoakError, churning

WARM_UP, WARM_UP_MAX_S = 0.25, 600.0
"""The share of the time that fills caches: names, memory arenas, compiled pages."""
PAUSE_S = (0.02, 0.4)
"""Between two actions."""
SAMPLE_S = 5.0
REST_S = 8.0
"""At rest before a measurement: longer than idle threads and closing connections live."""
TRACED_LINES = 25
BOUNDS = {"rss_mib": 8.0, "threads": 4.0, "files": 6.0, "tasks": 6.0}
"""How much a figure may grow between the first and the last measurement at rest. The others explain the memory."""

Figures = dict[str, dict[str, float]]
Sample = tuple[float, Figures]


async def churn_for(churn: Churn, seconds: float, samples: list[Sample], began: float) -> None:
    end = time.monotonic() + seconds
    due = time.monotonic()
    while (now := time.monotonic()) < end:
        if now >= due:
            due = now + SAMPLE_S
            samples.append((now - began, figures(churn)))
            progress(churn, *samples[-1])
        await churn.act()
        churn.check()
        await asyncio.sleep(churn.chance.uniform(*PAUSE_S))


async def at_rest(churn: Churn) -> Figures:
    """The lowest of some readings: a task or a connection of a moment is no growth."""
    await churn.settle()
    await asyncio.sleep(REST_S)
    readings = []
    for _ in range(5):
        readings.append(figures(churn))
        await asyncio.sleep(1)
    return {
        name: {figure: min(reading[name][figure] for reading in readings) for figure in readings[0][name]}
        for name in churn.processes
    }


def figures(churn: Churn) -> Figures:
    return {name: churn.figures(name) for name in churn.processes}


def progress(churn: Churn, at_s: float, shown: Figures) -> None:
    daemons = "   ".join(
        f"{name} {one['rss_mib']:.1f} MiB, {one['threads']:g} threads, {one['files']:g} files, {one['tasks']:g} tasks"
        for name, one in shown.items()
    )
    print(f"{at_s:6.0f} s  {sum(churn.done.values()):6} actions   {daemons}", flush=True)


def slope(samples: list[Sample], name: str) -> float | None:
    """MiB per hour, by least squares."""
    points = [(at / 3600, shown[name]["rss_mib"]) for at, shown in samples]
    if len(points) < 3:
        return None
    mean_x, mean_y = (sum(column) / len(points) for column in zip(*points, strict=True))
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / spread


def growth(start: Figures, end: Figures) -> list[str]:
    return [
        f"{name}: {figure} grew from {before:.1f} to {end[name][figure]:.1f}, by more than {BOUNDS[figure]:g}"
        for name, measured in start.items()
        for figure, before in measured.items()
        if figure in BOUNDS and end[name][figure] - before > BOUNDS[figure]
    ]


async def traced(churn: Churn, traces: dict[str, list[tracemalloc.Snapshot]]) -> None:
    for name in churn.processes:
        traces.setdefault(name, []).append(await churn.traced(name))


def grown(before: tracemalloc.Snapshot, after: tracemalloc.Snapshot) -> list[str]:
    """The lines whose objects grew most, and all of them together."""
    found = after.compare_to(before, "lineno")
    lines = [
        f"{one.size_diff / 1024:+9.1f} KiB {one.count_diff:+7} objects  {one.traceback}"
        for one in found[:TRACED_LINES]
    ]
    return [*lines, f"{sum(one.size_diff for one in found) / 1024:+9.1f} KiB in all"]


async def soak(
    minutes: float, model: str, seed: int, *, rests: int = 1, trace: bool = False, claims: bool = False
) -> dict[str, object]:
    seconds = minutes * 60
    samples: list[Sample] = []
    # asyncio of Python 3.11 logs a connection that the stand-in kubelet accepts at the moment of its end.
    asyncio.get_running_loop().set_exception_handler(lambda _loop, _context: None)
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)  # it ends the daemons too
    document: dict[str, object] = {"minutes": minutes, "machine": model, "seed": seed, "bounds": BOUNDS}
    async with churning(model, seed, claims=claims) as churn:
        began = time.monotonic()
        try:
            warm_up = min(seconds * WARM_UP, WARM_UP_MAX_S)
            await churn_for(churn, warm_up, [], began)
            measured = [await at_rest(churn)]
            show_rest(began, churn, measured[-1])
            traces: dict[str, list[tracemalloc.Snapshot]] = {}
            if trace:
                await traced(churn, traces)
            for _ in range(rests):
                await churn_for(churn, (seconds - warm_up) / rests, samples, began)
                measured.append(await at_rest(churn))
                show_rest(began, churn, measured[-1])
            if trace:
                await traced(churn, traces)
        except SoakError as error:
            return document | {"faults": [str(error)], "actions": dict(churn.done)}
        slopes = {name: slope(samples, name) for name in churn.processes}
        return document | {
            "actions": dict(churn.done),
            "start": measured[0],
            "end": measured[-1],
            "rests": measured,
            "rss_slope_mib_per_hour": slopes,
            "samples": samples,
            "grown": {name: grown(*of_daemon) for name, of_daemon in traces.items()},
            "faults": [
                fault for fault in growth(measured[0], measured[-1]) if not (trace and ": rss_mib" in fault)
            ],
        }


def show_rest(began: float, churn: Churn, measured: Figures) -> None:
    done = sum(churn.done.values())
    for name, one in measured.items():
        shown = "   ".join(f"{figure} {value:.2f}" for figure, value in one.items())
        print(f"at rest after {time.monotonic() - began:.0f} s, {done} actions: {name} {shown}", flush=True)


def show(document: dict[str, object]) -> None:
    start, end, slopes = (document.get(key) for key in ("start", "end", "rss_slope_mib_per_hour"))
    if isinstance(start, dict) and isinstance(end, dict) and isinstance(slopes, dict):
        for name, before in start.items():
            for figure, value in before.items():
                print(f"{name:<12} {figure:<8} {value:8.1f} at the start {end[name][figure]:8.1f} at the end")
            if slopes[name] is not None:
                print(f"{name:<12} slope of the resident memory {slopes[name]:+.1f} MiB per hour")
    grown_lines = document.get("grown")
    for name, lines in grown_lines.items() if isinstance(grown_lines, dict) else ():
        print(f"{name}: objects at rest, the second time less the first", *lines, sep="\n")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=5.0, help="of churn, with the warm-up (default: 5)")
    parser.add_argument(
        "--rests", type=int, default=1, help="measurements at rest after the warm-up (default: 1)"
    )
    parser.add_argument("--machine", default="two-gpu-two-nic", help="the machine model")
    parser.add_argument("--claims", action="store_true", help="VFs are given by claims")
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4)), help="of the churn")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every sample")
    parser.add_argument("--trace", action="store_true", help="name the lines whose objects grew")
    options = parser.parse_args()
    if options.trace:
        ENVIRONMENT["NODEAGENT_TRACE"] = "1"
    print(f"soak: {options.minutes:g} minutes on {options.machine}, seed {options.seed}", flush=True)
    how = {"rests": options.rests, "trace": options.trace, "claims": options.claims}
    document = asyncio.run(soak(options.minutes, options.machine, options.seed, **how))
    show(document)
    if options.json is not None:
        options.json.write_text(json.dumps(document, indent=1) + "\n")
    faults = document["faults"]
    assert isinstance(faults, list)
    for fault in faults:
        print(f"FAIL: {fault}", flush=True)
    if not faults:
        print("OK: nothing grew, nothing was lost")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
