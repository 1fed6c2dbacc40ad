"""However the pods of a node behave, its report changes for their traffic at most so often.

The bound is one of construction: a level that differs needs the budget of the node (``LevelBudget``), all pods of a
moment together. Without it change a pod that comes or goes, which changes the holders of the report anyhow, and once
after a start of the agent each pod that was there before it.
"""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from nodeagent.cluster.reported_traffic import reported_traffic
from nodeagent.fabric.nodelinks import NodeLinks
from nodeagent.facts.model import Snapshot
from nodeagent.features.pod_traffic.traffic_judge import (
    BURST,
    EACH_S,
    SAY_S,
    GpuLoad,
    PodNow,
    PodVf,
    TrafficJudge,
    VfCounters,
)
from tests.support.examples import examples
from tests.support.manifests import ROOT

VFS, PODS = 4, 6
FULL = 20e9
NODES = 1000


class Adversary:
    """A node whose pods and counters do what costs most. It reads and judges every 30 s."""

    def __init__(self, random: Random) -> None:
        self.random, self.now = random, 0.0
        self.judge, self.started = TrafficJudge(), 0.0
        self.report = NodeLinks(node_name="n")
        self.pods: dict[str, PodNow] = {}
        self.sent: dict[str, float] = {}
        self.next = 0
        self.writes = 0
        """Changes of the levels in the report."""
        self.free = 0
        """Changes without the budget: pods that came or went, and those that an agent met at its start."""

    def come(self) -> None:
        name, slot = f"ml/pod-{self.next}", self.next
        self.next += 1
        self.free += 2  # it comes, and it is judged for the first time
        vfs = tuple(PodVf(f"{slot:04x}:{n:02x}:00.2", f"0000:{n:02x}:00.0", "mlx5_core") for n in range(VFS))
        self.pods[name] = PodNow(vfs, (slot % 8,))
        self.sent |= dict.fromkeys((vf.address for vf in vfs), 1.0)

    def go(self) -> None:
        self.free += 1
        del self.pods[self.random.choice(sorted(self.pods))]

    def restart_agent(self) -> None:
        self.judge, self.started = TrafficJudge(), self.now
        self.free += BURST + 2 * len(self.pods)

    def step(self, rates: tuple[float, ...]) -> None:
        self.now += 30
        counters = {}
        for held in self.pods.values():
            for vf in held.vfs:
                self.sent[vf.address] += 30 * self.random.choice(rates)
                counters[vf.address] = VfCounters(self.now, self.sent[vf.address], self.sent[vf.address])
        load = self.random.choice(((1.0, 0.0), (0.0, 0.0), (0.9, 0.4)))
        loads = {index: GpuLoad(self.now, *load) for index in range(8)}
        published = self.judge.take(self.now, self.pods, counters, loads)
        links = {f"0000:{n:02x}:00.0": f"rail{n}" for n in range(VFS)}
        snapshot, patient = Snapshot(pod_traffic=published), self.now - self.started < SAY_S
        traffic = reported_traffic(snapshot, links, self.report, self.now, patient=patient)
        if traffic != self.report.traffic:
            self.writes += 1
            self.report = NodeLinks(node_name="n", traffic=traffic)

    @property
    def bound(self) -> float:
        return BURST + self.now / EACH_S + self.free


@settings(max_examples=examples(10))
@given(st.integers(0, 1 << 32), st.sampled_from((0.0, 0.02)), st.sampled_from((0.0, 0.01)))
def test_no_behavior_of_pods_writes_more_than_the_bound(seed: int, moves: float, restarts: float) -> None:
    random = Random(seed)
    node = Adversary(random)
    for _ in range(PODS):
        node.come()
    rates: tuple[float, ...] = (FULL,)
    for number in range(300):
        if number % 5 == 0:
            rates = random.choice(((FULL,), (0.0,), (0.0, FULL), (0.3 * FULL, FULL)))
        if random.random() < moves:
            node.come()
        if random.random() < moves and node.pods:
            node.go()
        if random.random() < restarts:
            node.restart_agent()
        node.step(rates)
        assert node.writes <= node.bound


def test_the_bound_is_reached_by_flapping_and_not_passed() -> None:
    """With pods that stay: it is no figure that nobody meets."""
    node = Adversary(Random(1))
    node.come()
    node.come()
    hours = 8
    for number in range(hours * 120):
        node.step((FULL,) if number // 5 % 2 else (0.0, FULL))
    assert hours * 3600 / EACH_S / 2 < node.writes <= node.bound


def test_the_page_states_the_bound_of_these_constants() -> None:
    """It depends on the nodes alone, whatever the number of jobs and pods is."""
    page = " ".join((ROOT / "docs/slow-training.md").read_text().split())
    assert f"{BURST} changes at once and {3600 / EACH_S:.0f} an hour" in page
    assert f"at most {NODES / EACH_S:.1f} writes a second that last" in page
    assert f"{NODES * BURST:,} after all agents start at once" in page
