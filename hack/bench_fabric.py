"""What planning costs: a full recompute and the change of one node, at 1k, 10k and 100k nodes of 8 NICs.

    python hack/bench_fabric.py [NODES ...]

Each size in a process of its own, so that the memory is that size's. Rail-optimised scalable units of 32 nodes
and 8 leaves; reports are built as structs and told to the planner (that is the decoding left out); what is
planned is published as the API server would. Full: everything derived is forgotten and done again. Delta: one
node reports otherwise (a link down, a cable in another unit, back), median and worst of 200. Times are of the
CPU, for the machine may be shared.
"""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
import time
from dataclasses import replace

from nodeagent.fabric import Planner, Rules
from nodeagent.fabric.nodelinks import Identifier, LinkNeighbor, Metadata, NodeLink, NodeLinks

UNIT, RAILS = 32, 8
SIZES = (1_000, 10_000, 100_000)


def report(node: int, unit: int, moved: int | None = None, down: int | None = None) -> NodeLinks:
    name = f"dgx-{node:06}"
    links = []
    for rail in range(RAILS):
        leaf = f"su{(unit if rail != moved else unit + 1):04}-leaf-r{rail}"
        neighbor = LinkNeighbor(
            chassis_id=Identifier(
                subtype="mac", value=f"02:{unit // 256:02x}:{unit % 256:02x}:{rail:02x}:00:00"
            ),
            port_id=Identifier(subtype="ifname", value=f"swp{node % UNIT + 1}s0"),
            system_name=leaf,
            stale=rail == down,
        )
        if rail == moved:
            neighbor = LinkNeighbor(
                chassis_id=Identifier(
                    subtype="mac", value=f"02:{(unit + 1) // 256:02x}:{(unit + 1) % 256:02x}:{rail:02x}:00:00"
                ),
                port_id=Identifier(subtype="ifname", value="swp60"),
                system_name=leaf,
            )
        links.append(
            NodeLink(
                name=f"rail{rail}", rail=rail, fabric="compute", speed_mbps=400_000,
                state="down" if rail == down else "healthy", neighbor=neighbor,
            )
        )  # fmt: skip
    return NodeLinks(metadata=Metadata(name=name), node_name=name, links=tuple(links))


def mac(unit: int, rail: int) -> str:
    return f"02:{unit // 256:02x}:{unit % 256:02x}:{rail:02x}:00:00"


def rss_mib() -> float:
    with open("/proc/self/status") as status:
        for line in status:
            if line.startswith("VmRSS"):
                return int(line.split()[1]) / 1024
    return 0.0


def publish(planner: Planner, outcome) -> None:
    for node, labels in outcome.labels.items():
        planner.node(node, dict(labels))
    for write in outcome.writes:
        planner.hypernode(write.object.name, None if write.verb == "delete" else write.object)


def measure(nodes: int) -> str:
    base = rss_mib()
    rules = Rules()
    planner = Planner(replace(rules, assume_full_bisection=True))
    start = time.process_time()
    for node in range(nodes):
        planner.report(f"dgx-{node:06}", report(node, node // UNIT))
    for node in range(nodes):
        planner.node(f"dgx-{node:06}", {})
    told = time.process_time() - start
    start = time.process_time()
    outcome = planner.plan(0.0)
    cold = time.process_time() - start
    publish(planner, outcome)
    assert not planner.plan(1.0).writes
    fulls = []
    for _ in range(5):
        start = time.process_time()
        planner.plan(2.0, full=True)
        fulls.append(time.process_time() - start)
    deltas = []
    for i in range(200):
        node = (i * 7919) % nodes
        unit = node // UNIT
        said = (report(node, unit, down=3), report(node, unit, moved=2), report(node, unit))[i % 3]
        start = time.process_time()
        planner.report(f"dgx-{node:06}", said)
        planner.plan(3.0 + i)
        deltas.append((time.process_time() - start) * 1000)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return (
        f"{nodes:>7} {told:9.2f} {cold:9.3f} {statistics.median(fulls):9.3f} {statistics.median(deltas):9.2f} "
        f"{max(deltas):9.2f} {rss_mib():9.0f} {peak:9.0f} {base:9.0f}"
    )


def main() -> None:
    if sys.argv[1:2] == ["--one"]:
        print(measure(int(sys.argv[2])))
        return
    sizes = [int(one) for one in sys.argv[1:]] or SIZES
    print("  nodes  told, s   first, s   full, s delta, ms worst, ms  RSS, MiB  peak, MiB  bare, MiB")
    for size in sizes:
        subprocess.run([sys.executable, __file__, "--one", str(size)], check=True)


if __name__ == "__main__":
    main()
