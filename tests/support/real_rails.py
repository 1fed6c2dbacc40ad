"""Ranks on rails of veths, with real counters: the judge of each pod and the table of the job read them.

A reading stands for 30 s of the judge, whatever time has passed. The load of the GPUs is given.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from nodeagent.fabric.job_traffic import odd_ones, rank_traffic
from nodeagent.fabric.traffic_figures import PodFigures, VfFigures
from tests.support.job_traffic_sim import STEP_S, SimulatedJob
from tests.support.namespaces import Netns

SCALE = 1000.0
MOVED = 1 << 16
"""Bytes that each rail of each rank carries between two readings at least: with SCALE, 65 MB in 30 s."""
Loads = Sequence[tuple[float, float]]


class RealRails:
    """``sends`` and ``receives`` are the netdevs of each rail, in each of the namespaces."""

    def __init__(self, spaces: Sequence[Netns], sends: Sequence[str], receives: Sequence[str]) -> None:
        self.spaces, self._sends, self._receives = spaces, sends, receives
        self.job = SimulatedJob(len(spaces), len(sends), 1)
        self.now = 0.0
        self.last = self.read()

    def read(self) -> list[list[float]]:
        """The bytes that each rank has sent and received on each rail."""
        found = []
        for space in self.spaces:
            with space.entered():
                lines = Path("/proc/thread-self/net/dev").read_text().splitlines()
            fields = {line.split(":")[0].strip(): line.split(":")[1].split() for line in lines if ":" in line}
            pairs = zip(self._sends, self._receives, strict=True)
            found.append([float(fields[out][8]) + float(fields[into][0]) for out, into in pairs])
        return found

    def grown(self, without: int | None = None) -> bool:
        """Whether each rail has carried enough since the last reading."""
        now = self.read()
        return all(
            after - before >= MOVED
            for pair in zip(self.last, now, strict=True)
            for rail, (before, after) in enumerate(zip(*pair, strict=True))
            if rail != without
        )

    def step(self, loads: Loads) -> None:
        now = self.read()
        self.now += STEP_S
        rates = [
            [SCALE * (after - before) / 2 / STEP_S for before, after in zip(*pair, strict=True)]
            for pair in zip(self.last, now, strict=True)
        ]
        self.last = now
        self.job.step(self.now, STEP_S, rates, [[load] for load in loads])

    def table(self, loads: Loads) -> list[str]:
        ranks = []
        for number, name in enumerate(self.job.names):
            judge, pod = self.job.judges[number], name.partition("/")[2]
            vfs = []
            for rail, vf in enumerate(self.job.held.vfs):
                rate, moved_at = judge.rates()[vf.address]
                assert rate is not None
                quiet_s = None if moved_at is None else self.now - moved_at
                vfs.append(
                    VfFigures(
                        f"rail{rail}", vf.address, rate.seconds, rate.received, rate.sent, 1.0, 1.0, quiet_s
                    )
                )
            since, longest = judge.quiet(name)
            quiet_s = None if since is None else self.now - since
            figures = PodFigures("ml", pod, tuple(vfs), {"0": loads[number][0]}, quiet_s, longest)
            ranks.append(rank_traffic(pod, f"gpu-{number:03d}", None, None, figures, self.now))
        return [one.sentence for one in odd_ones(ranks)]
