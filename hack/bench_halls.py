"""The cost of larger halls: each work of the controller at several sizes, with the slope of its cost.

    python hack/bench_halls.py [NODES ...] [--row NAME]... [--json FILE]

A node has 8 links; units are of 32 nodes and 8 leaves, as in ``bench_fabric.py``. Each size runs in a process of its
own. A cost is the least CPU time of three repetitions, so other load counts little. The slope is that of a straight
line through the logarithms of sizes and costs: 1 is a cost in proportion to the nodes, and n log n has the slope in the
last line. A row that is steeper than that by more than ``LEEWAY`` is marked; caches of the CPU that become too small
make up to that much.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
from bench_controller import as_lines, plan_cost, start_cost
from bench_fabric import RAILS, UNIT, apply, report

from nodeagent.fabric import FabricRules, Planner
from nodeagent.fabric.away_nodes import UNREACHABLE, AwayNode
from nodeagent.fabric.fabric_settings import TierSettings
from nodeagent.fabric.fabric_view import fabric_view
from nodeagent.fabric.jobs import FabricOfJobs, JobKey, JobPod, by_job, in_trouble_first
from nodeagent.fabric.node_numbers import NumberBook
from nodeagent.fabric.node_values import NodeValues, values_text
from nodeagent.fabric.nodelinks import NodeLinks, ReportedGpu
from nodeagent.fabric.odd_nodes import odd_counts, odd_values
from nodeagent.fabric.planner import Plan
from nodeagent.fabric.rail_choice import choose
from nodeagent.fabric.rail_suspects import RailEnd, RailPlace
from nodeagent.fabric.troubles import troubles

SIZES = (1_000, 10_000, 100_000)
REPEAT = 3
LEEWAY = 0.15
JOB_NODES = 16
SICK_EVERY = 10
"""One node of so many has a GPU in trouble, or is away."""
_SINCE = "2026-11-01T08:00:00Z"

Work = Callable[[], object]
ROWS: dict[str, Callable[[int], Work]] = {}


def row(name: str) -> Callable[[Callable[[int], Work]], Callable[[int], Work]]:
    """A row of the table: a function that prepares a hall of so many nodes, and returns the work to measure."""

    def add(prepare: Callable[[int], Work]) -> Callable[[int], Work]:
        ROWS[name] = prepare
        return prepare

    return add


def name_of(node: int) -> str:
    return f"dgx-{node:06}"


def planner(
    nodes: int, of_node: Callable[[int, NodeLinks], NodeLinks] = lambda _node, links: links
) -> Planner:
    made = Planner(FabricRules(tiers=TierSettings(assume_full_bisection=True)))
    for node in range(nodes):
        made.report(name_of(node), of_node(node, report(node, node // UNIT)))
        made.node(name_of(node), {})
    return made


def settled(made: Planner) -> Planner:
    """After the first plan was written."""
    apply(made, made.plan(0.0))
    return made


def plan_of(made: Planner) -> Plan:
    return made.prepare(1.0)()


def with_gpus(node: int, links: NodeLinks) -> NodeLinks:
    sick = ReportedGpu(
        index=3,
        state="unhealthy",
        reasons=("xid",),
        reason_details=("XID 79",),
        since=_SINCE,
        pods=(f"ml/job-{node // JOB_NODES}-{node}",),
    )
    return msgspec.structs.replace(links, gpus=(sick,)) if node % SICK_EVERY == 0 else links


def with_dead(made: Planner, nodes: int) -> Planner:
    for node in range(0, nodes, SICK_EVERY):
        since = 1e9 + node % 7 * 3600
        made.inputs.take_away(name_of(node), AwayNode(UNREACHABLE, since, "its kubelet does not answer"))
    return made


@row("reports are read")
def _(nodes: int) -> Work:
    reports = [report(node, node // UNIT) for node in range(nodes)]
    made = Planner(FabricRules())

    def read() -> None:
        for one in reports:
            made.report(one.node_name, one)

    return read


@row("first plan, with the labels of all nodes")
def _(nodes: int) -> Work:
    made = planner(nodes)
    return made.prepare(0.0)


@row("plan")
def _(nodes: int) -> Work:
    return settled(planner(nodes)).prepare(1.0)


@row("plan, a GPU in trouble on one node of ten")
def _(nodes: int) -> Work:
    return settled(planner(nodes, with_gpus)).prepare(1.0)


@row("plan, one node of ten dead")
def _(nodes: int) -> Work:
    return with_dead(settled(planner(nodes)), nodes).prepare(1.0)


@row("list of troubles, one node of ten dead and GPUs in trouble on others")
def _(nodes: int) -> Work:
    def shifted(node: int, links: NodeLinks) -> NodeLinks:
        return with_gpus(node - 1, links)

    plan = plan_of(with_dead(settled(planner(nodes, shifted)), nodes))
    return lambda: troubles(plan, 0.0, 2e9)


@row("document of the map")
def _(nodes: int) -> Work:
    plan = plan_of(settled(planner(nodes, with_gpus)))
    return lambda: msgspec.json.encode(fabric_view(plan, 1.0, 2e9))


@row("jobs of 16 nodes")
def _(nodes: int) -> Work:
    plan = plan_of(settled(planner(nodes, with_gpus)))
    pods = [
        JobPod(
            JobKey("ml", "Job", f"job-{node // JOB_NODES}"),
            f"job-{node // JOB_NODES}-{node}",
            name_of(node),
            _SINCE,
        )
        for node in range(nodes)
    ]
    held = {pod.node: {f"ml/{pod.name}": tuple(f"rail{rail}" for rail in range(RAILS))} for pod in pods}

    def jobs() -> None:
        fabric = FabricOfJobs(plan, held)
        in_trouble_first((fabric.of(job, of_job) for job, of_job in by_job(pods).items()), 100)

    return jobs


def compared(nodes: int, firmware: Callable[[int], str]) -> Work:
    known = {
        name_of(node): NodeValues(
            values_text(
                {
                    "model": "DGXH100",
                    "NIC firmware": firmware(node),
                    "GPU driver": "580.95.05",
                    "kernel": "6.8.0",
                }
            )
        )
        for node in range(nodes)
    }
    return lambda: odd_counts(odd_values(known, 2e9))


@row("values of nodes that are alike")
def _(nodes: int) -> Work:
    return compared(nodes, lambda _node: "28.43.2026")


@row("values of nodes of which no two are alike")
def _(nodes: int) -> Work:
    return compared(nodes, lambda node: f"28.43.2026; nic3: {node}")


@row("values of which half are digests")
def _(nodes: int) -> Work:
    return compared(nodes, lambda node: f"#{node // 2:06x}" if node % 2 else f"28.{node}")


@row("partners of all rails")
def _(nodes: int) -> Work:
    places = {
        RailEnd(name_of(node), f"rail{rail}"): RailPlace(
            str(rail), f"su{node // UNIT}-leaf-r{rail}", f"spine-{rail}", ""
        )
        for node in range(nodes)
        for rail in range(RAILS)
    }
    return lambda: choose(places, {})


@row("numbers of all nodes")
def _(nodes: int) -> Work:
    def numbered(_node: int, links: NodeLinks) -> NodeLinks:
        ours = tuple(
            msgspec.structs.replace(link, vf_prefix=f"10.{link.rail}.0.0/16") for link in links.links
        )
        return msgspec.structs.replace(links, links=ours)

    reports = planner(nodes, numbered).inputs.reports
    names = set(map(name_of, range(nodes)))
    return lambda: NumberBook().assign(reports, names)


@row("cold start of the controller, more than with one unit")
def _(nodes: int) -> Work:
    def start(of_nodes: int) -> float:
        with tempfile.TemporaryDirectory(prefix="nodeagent-halls-") as folder:
            return start_cost(of_nodes, Path(folder))[0]

    cpu_s = start(nodes) - start(UNIT)
    return lambda: cpu_s


@row("the verb plan --from, more than with one unit")
def _(nodes: int) -> Work:
    def plan(of_nodes: int) -> float:
        with tempfile.TemporaryDirectory(prefix="nodeagent-halls-") as folder:
            file = Path(folder, "links.json")
            with file.open("w") as target:
                target.writelines(as_lines(of_nodes))
            return plan_cost(file)[0]

    cpu_s = plan(nodes) - plan(UNIT)
    return lambda: cpu_s


def cost_s(work: Work) -> float:
    """The CPU time of a work, in seconds; one that was done by a process of its own returns it."""
    began = time.process_time()
    result = work()
    return result if isinstance(result, float) else time.process_time() - began


def measure(name: str, nodes: int) -> float:
    """The least CPU time of one row at this size, in seconds."""
    work = ROWS[name](nodes)
    gc.collect()
    gc.freeze()  # as the controller does after its first plan
    return min(cost_s(work) for _ in range(REPEAT))


def slope(sizes: Sequence[float], costs: Sequence[float]) -> float:
    """The exponent of a power of the size, by least squares of the logarithms."""
    points = [(math.log(size), math.log(max(cost, 1e-6))) for size, cost in zip(sizes, costs, strict=True)]
    mean_x, mean_y = (sum(column) / len(points) for column in zip(*points, strict=True))
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / sum((x - mean_x) ** 2 for x, _ in points)


def n_log_n(sizes: Sequence[int]) -> float:
    return slope(sizes, [size * math.log(size) for size in sizes])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "nodes", type=int, nargs="*", help=f"three sizes or more ({' '.join(map(str, SIZES))})"
    )
    parser.add_argument("--row", action="append", choices=ROWS, help="this row (repeatable)")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    names = options.row or list(ROWS)
    if options.one is not None:
        print(json.dumps({name: measure(name, options.one) for name in names}))
        return
    sizes = options.nodes or SIZES
    if len(set(sizes)) < 3 or min(sizes) < UNIT:
        parser.error(f"a slope needs three different sizes, of {UNIT} nodes or more")
    costs: dict[str, list[float]] = {name: [] for name in names}
    most = n_log_n(sizes)
    print(f"{'CPU in ms at so many nodes':<72}" + "".join(f"{size:>10,}" for size in sizes) + f"{'slope':>8}")
    for name in names:
        for size in sizes:
            command = [sys.executable, __file__, "--one", str(size), "--row", name]
            done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
            costs[name].append(json.loads(done.stdout)[name])
        found = slope(sizes, costs[name])
        mark = "  STEEP" if found > most + LEEWAY else ""
        shown = "".join(f"{1000 * cost:>10.1f}" for cost in costs[name])
        print(f"{name:<72}{shown}{found:>8.2f}{mark}", flush=True)
    print(f"n log n has the slope {most:.2f} between these sizes. Load {os.getloadavg()[0]:.1f}.")
    if options.json is not None:
        options.json.write_text(json.dumps({"sizes": list(sizes), "cpu_s": costs}, indent=1) + "\n")


if __name__ == "__main__":
    main()
