"""The cost of a plan at 1k, 10k and 100k nodes with 8 NICs each.

    python hack/bench_fabric.py [NODES ...]

Every size runs in a process of its own, so that its memory is that of this size. The fabric has scalable units of 32
nodes and 8 leaves. Reports are built as structs, so JSON decoding is not measured. The first plan has an empty tree;
its writes and labels are applied, and then the same inputs are planned again. Every plan is computed from all inputs.

The columns are the number of plans, the time to read all reports, and the first plan. Then come the minimum and median
CPU time of a plan, and its median wall time. Copying is the copy of the inputs, in the controller's event loop. Memory
is that after the plans, at its peak, and before. The machine may be shared, so CPU time counts.
"""

from __future__ import annotations

import gc
import resource
import statistics
import subprocess
import sys
import time

from nodeagent.fabric import FabricRules, Planner
from nodeagent.fabric.fabric_settings import TierSettings
from nodeagent.fabric.nodelinks import LinkNeighbor, Metadata, NodeLink, NodeLinks, ReportedId

UNIT, RAILS = 32, 8
SIZES = (1_000, 10_000, 100_000)
PLANS = 9


def report(node: int, unit: int) -> NodeLinks:
    name = f"dgx-{node:06}"
    links = []
    for rail in range(RAILS):
        neighbor = LinkNeighbor(
            chassis_id=ReportedId(
                subtype="mac", value=f"02:{unit // 256:02x}:{unit % 256:02x}:{rail:02x}:00:00"
            ),
            port_id=ReportedId(subtype="ifname", value=f"swp{node % UNIT + 1}s0"),
            system_name=f"su{unit:04}-leaf-r{rail}",
        )
        links.append(
            NodeLink(
                name=f"rail{rail}", rail=rail, fabric="compute", speed_mbps=400_000, state="healthy", neighbor=neighbor
            )
        )  # fmt: skip
    return NodeLinks(metadata=Metadata(name=name), node_name=name, links=tuple(links))


def rss_mib() -> float:
    with open("/proc/self/status") as status:
        for line in status:
            if line.startswith("VmRSS"):
                return int(line.split()[1]) / 1024
    return 0.0


def cpu_s(work) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def apply(planner: Planner, outcome) -> None:
    for node, labels in outcome.labels.items():
        planner.node(node, dict(labels))
    for write in outcome.writes:
        planner.hypernode(write.object.name, None if write.verb == "delete" else write.object)


def measure(nodes: int) -> str:
    bare = rss_mib()
    planner = Planner(FabricRules(tiers=TierSettings(assume_full_bisection=True)))

    def read() -> None:
        for node in range(nodes):
            planner.report(f"dgx-{node:06}", report(node, node // UNIT))
            planner.node(f"dgx-{node:06}", {})

    reading = cpu_s(read)
    start = time.process_time()
    outcome = planner.plan(0.0)
    first = time.process_time() - start
    apply(planner, outcome)
    del outcome
    gc.collect()
    gc.freeze()  # as the controller does after its first plan
    cpu, wall = [], []
    for second in range(PLANS):
        start = time.perf_counter()
        cpu.append(cpu_s(lambda now=1.0 + second: planner.plan(now)))
        wall.append(time.perf_counter() - start)
    assert not planner.plan(PLANS).writes
    copying = statistics.median(cpu_s(planner.inputs.levels) for _ in range(PLANS))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    times = (first, min(cpu), statistics.median(cpu), statistics.median(wall), copying)
    return (
        f"{nodes:>7} {PLANS:>3} {reading:11.2f}"
        + "".join(f"{1000 * one:12.1f}" for one in times)
        + (f"{rss_mib():10.0f}{peak:10.0f}{bare:10.0f}")
    )


def main() -> None:
    if sys.argv[1:2] == ["--one"]:
        print(measure(int(sys.argv[2])))
        return
    sizes = [int(size) for size in sys.argv[1:]] or SIZES
    columns = ("first", "CPU min", "CPU p50", "wall", "copying")
    print(
        f"{'nodes':>7} {'n':>3} {'reading, s':>11}"
        + "".join(f"{name + ', ms':>12}" for name in columns)
        + "".join(f"{name + ', MiB':>10}" for name in ("RSS", "peak", "bare"))
    )
    for size in sizes:
        subprocess.run([sys.executable, __file__, "--one", str(size)], check=True)


if __name__ == "__main__":
    main()
