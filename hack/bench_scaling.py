"""The cost of the agent and of the controller against the amount of their work: is any of it worse than linear?

    python hack/bench_scaling.py [--only ROW]... [--quick]

Each row is measured at several sizes, each size in processes of its own. What a process pays without any of the work
is the intercept; the exponent is the slope of the logarithms between the two largest sizes, so 1 is linear and less is
better. Costs are CPU time of one process, so a busy machine changes them less than the clock.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parent)]

from benchmarks.stage import NODEAGENT, Stage, stage  # noqa: E402

from nodeagent_lab.sim.kubelet import PodSpec  # noqa: E402
from nodeagent_lab.sim.machine import Machine  # noqa: E402
from nodeagent_lab.sim.machine.blueprint import parse  # noqa: E402

GPUS = 8
SETTLE_S, WINDOW_S = (2.0, 5.0) if "--quick" in sys.argv else (20.0, 60.0)
"""An agent asks the kubelet more often in its first 15 s, so the figures of ``--quick`` are too high."""
LINEAR = 1.15
"""Above this an exponent is worse than linear: CPU time on a shared machine is this exact."""


class ScalingRow(NamedTuple):
    """``cost`` measures one size; ``unit`` is the unit of what it returns."""

    what: str
    sizes: Sequence[int]
    unit: str
    cost: Callable[[int], float]


def model(nics: int, vfs: int) -> str:
    """So many NICs, each behind a root port of its own, with so many VFs each."""
    lines = [
        "name: bench",
        "product: {sys_vendor: nodeagent, product_name: Bench}",
        'numa: {0: "0-1"}',
        "complexes: {pci0000:00: 0}",
        "parts:",
        '  nic: {kind: nic, vendor: "15b3", device: "1021", driver: mlx5_core, speed_mbps: 400000, rdma: true,',
        '    totalvfs: 64, vf_device: "101e", vf_driver: mlx5_core, vf_offset: 1}',
        "nics:",
    ]
    lines += [
        f'  - {{part: nic, path: "pci0000:00/00:{1 + number // 8:02x}.{number % 8}/{1 + number:02x}:00.0", '
        f"netdev: rail{number}, num_vfs: {vfs}}}"
        for number in range(nics)
    ]
    return "\n".join(lines) + "\n"


async def at_rest(on: Stage, pods: Sequence[PodSpec] = ()) -> float:
    """CPU milliseconds of the agent in a minute at rest."""
    config = on.folder / "nodeagent.yaml"
    config.write_text(
        'apiVersion: nodeagent.io/v1alpha1\nkind: NodeAgentConfig\nresources:\n- {kind: vf, name: "nic{rail}"}\n'
        + ("- {kind: gpu-mem, sliceMiB: 1024}\n" if on.machine.gpus else "gpu: {driver: none}\n")
    )
    async with on.kubelet() as kubelet:
        words = ("run", "--config", str(config), "--root", str(on.root), "--listen", "127.0.0.1:0")
        async with on.process(*NODEAGENT, *words, "--kubelet-dir", str(kubelet.directory)) as process:
            await kubelet.until(lambda: bool(kubelet.registrations), 60.0)
            await asyncio.sleep(3.0)
            for pod in pods:
                await kubelet.admit(pod)
            await asyncio.sleep(SETTLE_S)
            began, cpu = time.monotonic(), process.cpu_s()
            await asyncio.sleep(WINDOW_S)
            return 1000 * (process.cpu_s() - cpu) * 60 / (time.monotonic() - began)


def with_machine(nics: int, vfs: int) -> float:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        machine = Machine(parse(model(nics, vfs)))
        machine.write(Path(name, "root"))
        return asyncio.run(at_rest(Stage(Path(name), Path(name, "root"), machine)))


def with_pods(count: int) -> float:
    pods = [PodSpec.single(f"pod-{number}", {"nvidia-dgx-h100/gpu-mem": 4}) for number in range(count)]
    with stage() as on:
        return asyncio.run(at_rest(on, pods))


def with_slices(count: int) -> float:
    """CPU milliseconds until the first list of all slices is ready to be sent."""
    from benchmarks.inside import NoFiles

    from nodeagent.facts.model import Gpu, Snapshot
    from nodeagent.kinds.gpu_memory import GpuMemory
    from nodeagent.kubelet.grown_requests import GrownRequests
    from nodeagent.kubelet.plugin import Plugin, RecentFunctions
    from nodeagent.kubelet.rpc_stats import RpcStats

    gpus = tuple(
        Gpu(
            uuid=f"GPU-{number}",
            index=number,
            minor=number,
            name="NVIDIA H100 80GB HBM3",
            pci_address=f"0000:{number + 1:02x}:00.0",
            memory_mib=count // GPUS,
            numa_node=0,
        )
        for number in range(GPUS)
    )
    kind = GpuMemory("nodeagent.io/gpu-mem", slice_mib=1)
    took = []
    for _ in range(9):
        served = Plugin(kind, NoFiles(), RecentFunctions(), RpcStats(), GrownRequests(), lambda: None)
        began = time.process_time()
        served.update(kind, Snapshot(gpus=gpus))
        took.append(1000 * (time.process_time() - began))
        assert served.device_list.counts()[0] == count
    return statistics.median(took)


def with_nodes(count: int) -> float:
    """CPU milliseconds of a plan of so many nodes with eight links each."""
    script = str(Path(__file__).with_name("bench_fabric.py"))
    done = subprocess.run(
        [sys.executable, script, "--one", str(count)], capture_output=True, text=True, check=True
    )
    return float(done.stdout.split()[4])


def with_viewers(count: int) -> float:
    """CPU milliseconds of the server for one change of 1,024 nodes that so many viewers fetch."""
    import bench_ui

    bench_ui.live_document.REST_S, bench_ui.live_document.REST_SHARE = 0.05, 0.0
    return 1000 * asyncio.run(bench_ui.with_viewers(count))


ROWS = {
    "nics": ScalingRow(
        "NICs with one VF each, the agent at rest",
        (8, 32, 128),
        "ms a minute",
        lambda size: with_machine(size, 1),
    ),
    "vfs": ScalingRow(
        "VFs of each of 8 PFs, at rest", (8, 16, 64), "ms a minute", lambda size: with_machine(8, size)
    ),
    "slices": ScalingRow("memory slices, the first list", (8, 800, 8_000, 80_000), "ms", with_slices),
    "pods": ScalingRow("pods with slices, at rest", (1, 10, 100), "ms a minute", with_pods),
    "nodes": ScalingRow(
        "nodes, a plan of the controller", (10, 100, 1_000, 10_000, 100_000), "ms", with_nodes
    ),
    # More viewers than 16 are refused a stream and told to come back.
    "viewers": ScalingRow("viewers of 1,024 nodes, one change", (1, 4, 16), "ms", with_viewers),
}


def exponent(sizes: Sequence[int], costs: Sequence[float]) -> float:
    """Of the two largest sizes."""
    return math.log(costs[-1] / costs[-2]) / math.log(sizes[-1] / sizes[-2])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", action="append", choices=ROWS, help="measure this (repeatable)")
    parser.add_argument(
        "--quick",
        action="store_true",
        help="without the largest sizes, a short time at rest: for a quick look",
    )
    parser.add_argument("--one", nargs=2, metavar=("ROW", "SIZE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(ROWS[options.one[0]].cost(int(options.one[1])))
        return
    for name in options.only or ROWS:
        row = ROWS[name]
        sizes = row.sizes[:-1] if options.quick else row.sizes
        costs = []
        for size in sizes:
            print(f"measuring {name} {size} ...", file=sys.stderr, flush=True)
            words = [sys.executable, __file__, "--one", name, str(size), *["--quick"] * options.quick]
            costs.append(
                float(subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()[-1])
            )
        found = exponent(sizes, costs)
        verdict = "" if found <= LINEAR else "  WORSE THAN LINEAR"
        listed = ", ".join(f"{size:,}: {cost:.3g}" for size, cost in zip(sizes, costs, strict=True))
        print(f"{row.what:<38} {listed} {row.unit}; exponent {found:.2f}{verdict}", flush=True)


if __name__ == "__main__":
    main()
