"""Measure the agent on this machine: a table on stdout and every sample in a JSON file.

    python hack/bench.py [--only NAME]... [--quick] [--json FILE]

The machine and the kubelet are nodeagent's own stand-ins. All else is real: `nodeagent run` in a process of its own,
sockets, gRPC. No figure fails the run, because a busy machine is not a defect.
"""

from __future__ import annotations

import argparse
import asyncio
import compileall
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict
from pathlib import Path

os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

from benchmarks import (
    accounting,
    bare,
    calls,
    claims,
    enforcement,
    features,
    health,
    idle,
    life,
    pods,
    push,
    rails,
    sampling,
    slices,
    taps,
)
from benchmarks.figures import Figure, table
from benchmarks.ratios import ratio_table, ratios
from benchmarks.stage import stage

import nodeagent

Measurement = Callable[..., AsyncIterator[Figure]]
MEASUREMENTS: dict[str, Measurement] = {
    "start": life.start,
    "restart": life.restart,
    "health": health.health,
    "calls": calls.calls,
    "claims": claims.claims,
    "push": push.push,
    "idle": idle.idle,
    "pods": pods.pods,
    "rails": rails.rails,
    "sampling": sampling.sampling,
    "accounting": accounting.accounting,
    "enforcement": enforcement.enforcement,
    "slices": slices.slices,
    "taps": taps.taps,
    "bare": bare.bare,
    "features": features.features,
}


def circumstances() -> dict[str, object]:
    """The conditions of the measurement."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    )
    return {
        "commit": commit.stdout.strip() or None,
        "python": platform.python_version(),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "cpus": len(os.sched_getaffinity(0)),
        "load_1min": round(os.getloadavg()[0], 2),
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


async def measure(name: str, *, quick: bool) -> list[Figure]:
    print(f"measuring {name} ...", file=sys.stderr, flush=True)
    with stage() as on:
        return [figure async for figure in MEASUREMENTS[name](on, quick=quick)]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", action="append", choices=MEASUREMENTS, help="measure this (repeatable)")
    parser.add_argument("--quick", action="store_true", help="few runs: for a quick look, not to quote")
    parser.add_argument("--json", type=Path, default=Path("bench.json"), metavar="FILE")
    options = parser.parse_args()
    # As the image does. Otherwise each start may compile the modules that it imports (PYTHONDONTWRITEBYTECODE).
    compileall.compile_dir(Path(nodeagent.__file__).parent, quiet=1)
    around = circumstances()
    began = time.monotonic()
    figures = [
        figure
        for name in options.only or MEASUREMENTS
        for figure in asyncio.run(measure(name, quick=options.quick))
    ]
    print(", ".join(f"{name} {value}" for name, value in around.items()))
    found = ratios(figures)
    print(table(figures), "", ratio_table(found), "", sep="\n")
    document = {
        "circumstances": around,
        "quick": options.quick,
        "seconds": round(time.monotonic() - began),
        "load_1min_at_the_end": round(os.getloadavg()[0], 2),
        "figures": [figure.as_json() for figure in figures],
        "ratios": [asdict(one) | {"met": one.met()} for one in found],
    }
    options.json.write_text(json.dumps(document, indent=1) + "\n")
    print(f"{len(figures)} figures in {time.monotonic() - began:.0f} s; every sample is in {options.json}")


if __name__ == "__main__":
    main()
