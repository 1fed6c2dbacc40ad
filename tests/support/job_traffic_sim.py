"""Jobs in simulated time, as their agents see them: bytes of VFs, load of GPUs, levels in reports, alarms.

A job starts, trains, writes checkpoints, evaluates, waits for data, is restarted; its agents are restarted too. A
reading is taken every 30 s near each change of phase; within a long phase one reading covers all of it but its ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import NamedTuple

from nodeagent.cluster.reported_traffic import reported_traffic
from nodeagent.fabric.job_traffic import job_pause, rails_below
from nodeagent.fabric.nodelinks import NodeLinks, TrafficLevel
from nodeagent.facts.model import Snapshot
from nodeagent.features.pod_traffic.traffic_judge import (
    MOVES_BPS,
    GpuLoad,
    PodNow,
    PodVf,
    TrafficJudge,
    VfCounters,
)

STEP_S, NEAR_S = 30.0, 300.0
HOUR = 3600.0
PODS, RAILS, GPUS = 2, 3, 2
LINE_BPS = 50e9
"""Bytes a second of a link of 400 Gbit/s."""


class Phase(NamedTuple):
    """A part of the life of a job. ``load`` and ``memory`` are those of its GPUs, ``rate`` the bytes a second."""

    name: str
    seconds: float
    rate: float
    load: float
    memory: float


class JobKind(NamedTuple):
    """``pauses``: name, mean hours between two, seconds from and to, load and memory of the GPUs."""

    name: str
    pauses: tuple[tuple[str, float, float, float, float, float], ...]
    rate: float = 0.4 * LINE_BPS


CHECKPOINT = ("checkpoint", 0.7, 10.0, 240.0, 0.0, 0.0)
SLOW_STORE = ("slow store", 40.0, 300.0, 3600.0, 0.0, 0.0)
EVALUATION = ("evaluation", 3.0, 60.0, 2400.0, 1.0, 0.02)
DATA = ("data loading", 1.5, 10.0, 600.0, 0.2, 0.1)
STRAGGLER = ("straggler", 2.0, 5.0, 240.0, 1.0, 0.0)
RESTART = ("restart", 60.0, 120.0, 1500.0, 0.1, 0.05)
COMPILE = ("compiling", 30.0, 60.0, 900.0, 0.0, 0.02)
KINDS = (
    JobKind("training", (CHECKPOINT, EVALUATION, DATA, STRAGGLER, RESTART)),
    JobKind("slow store", (CHECKPOINT, SLOW_STORE, EVALUATION, RESTART, COMPILE)),
    JobKind("pipeline", (CHECKPOINT, STRAGGLER, DATA, RESTART), 0.002 * LINE_BPS),
    JobKind("reinforcement", (("rollout", 0.3, 120.0, 1500.0, 0.97, 0.3), CHECKPOINT, STRAGGLER)),
    JobKind("sparse", (CHECKPOINT, EVALUATION, STRAGGLER), 0.6 * MOVES_BPS),
    JobKind("inference without traffic", (DATA,), 0.0),
    JobKind("computes without memory, no traffic", (), 0.0),
)


def phases(kind: JobKind, random: Random) -> Iterator[Phase]:
    yield Phase("start", random.uniform(60, 1500), 0.0, 0.1, 0.05)
    memory = 0.0 if "without memory" in kind.name else 0.4
    if not kind.pauses:
        yield Phase("runs", 1e9, kind.rate, 1.0, memory)
    while True:
        waits = [(random.expovariate(1 / (pause[1] * HOUR)), pause) for pause in kind.pauses]
        until, (name, _, shortest, longest, load, used) = min(waits)
        yield Phase(
            "runs", until + 1, kind.rate * random.uniform(0.7, 1.0), random.uniform(0.85, 1.0), memory
        )
        yield Phase(name, random.uniform(shortest, longest), 0.0, load, used)


class Tally(NamedTuple):
    hours: float
    alarms: tuple[tuple[float, str], ...]
    writes: int
    below: int


class SimulatedJob:
    """The pods of one job, each on a node with an agent and a report of its own."""

    def __init__(self, pods: int = PODS, rails: int = RAILS, gpus: int = GPUS) -> None:
        self.names = [f"ml/job-{number}" for number in range(pods)]
        self.held = PodNow(
            tuple(
                PodVf(f"0000:{rail:02x}:00.2", f"0000:{rail:02x}:00.0", "mlx5_core") for rail in range(rails)
            ),
            tuple(range(gpus)),
        )
        self.links = {vf.pf: f"rail{rail}" for rail, vf in enumerate(self.held.vfs)}
        self.judges = [TrafficJudge() for _ in self.names]
        self.reports = [NodeLinks(node_name=f"n{number}") for number in range(pods)]
        self.sent = [[0.0] * rails for _ in self.names]
        self.writes = 0
        self.started = [0.0] * pods

    def restart_agent(self, pod: int, now: float) -> None:
        self.judges[pod], self.started[pod] = TrafficJudge(), now

    def step(
        self, now: float, seconds: float, rates: list[list[float]], loads: list[list[tuple[float, float]]]
    ) -> None:
        """The readings at ``now``, after ``seconds`` at these rates of each pod and rail."""
        for pod, name in enumerate(self.names):
            counters, own = {}, self.sent[pod]
            for rail, vf in enumerate(self.held.vfs):
                own[rail] += rates[pod][rail] * seconds
                counters[vf.address] = VfCounters(now, own[rail], own[rail])
            gpus = {index: GpuLoad(now, *load) for index, load in enumerate(loads[pod])}
            published = self.judges[pod].take(now, {name: self.held}, counters, gpus)
            report = self.reports[pod]
            traffic = reported_traffic(
                Snapshot(pod_traffic=published),
                self.links,
                report,
                now,
                patient=now - self.started[pod] < 120,
            )
            if traffic != report.traffic:
                self.writes += 1
                self.reports[pod] = NodeLinks(node_name=report.node_name, traffic=traffic)

    @property
    def levels(self) -> list[TrafficLevel]:
        return [level for report in self.reports for level in report.traffic]


def run(kind: JobKind, hours: float, seed: int) -> Tally:
    """One job for so many hours of simulated time."""
    random = Random(f"{seed} {kind.name}")
    job = SimulatedJob()
    now = last = 0.0
    alarms: list[tuple[float, str]] = []
    below = 0
    agents_at = random.expovariate(1 / (100 * HOUR))
    for phase in phases(kind, random):
        end = min(now + phase.seconds, hours * HOUR)
        if phase.name == "restart" and random.random() < 0.5:
            for pod in range(PODS):
                job.restart_agent(pod, now)
        while now < end:
            left = end - now
            begun = left < phase.seconds - NEAR_S
            long = left > 2 * NEAR_S and begun and phase.name == "runs"
            now = now + left - NEAR_S if long else now + min(STEP_S, left)
            if now - last < STEP_S:
                continue
            rates = [[phase.rate * random.uniform(0.9, 1.1) for _ in range(RAILS)] for _ in range(PODS)]
            loads = [[(phase.load, phase.memory)] * GPUS for _ in range(PODS)]
            job.step(now, now - last, rates, loads)
            last = now
            if now > agents_at:
                job.restart_agent(random.randrange(PODS), now)
                agents_at = now + random.expovariate(1 / (100 * HOUR))
            if job_pause(job.levels, now).stalled:
                alarms.append((now, phase.name))
            below += rails_below(job.levels) > 0
        if now >= hours * HOUR:
            break
    return Tally(hours, tuple(alarms), job.writes, below)
