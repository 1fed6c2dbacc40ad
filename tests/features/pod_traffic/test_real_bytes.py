"""Real bytes: eight ranks on four rails of veths, each rail a ring of TCP connections. One rank stops, one rail drops.

The ranks are processes with sockets, in place of torch and a collective library. Counters are those of the veths; 30 ms
of theirs stand for 30 s of the judge, and the load of the GPUs is given.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import pytest

from nodeagent.fabric.job_traffic import odd_ones, rank_traffic
from nodeagent.fabric.traffic_figures import PodFigures, VfFigures
from tests.support.job_traffic_sim import STEP_S, SimulatedJob
from tests.support.namespaces import Netns, veth
from tests.support.waiting import until

pytestmark = [pytest.mark.needs("root", "ip", "nsenter"), pytest.mark.slow]
RANKS, RAILS = 8, 4
SCALE = 1000.0
MOVED = 1 << 16
"""Bytes that each rail of each rank carries between two readings at least: with SCALE, 4 MB in 30 s."""
RANK = """
import socket, sys, threading, time
rank, ranks, rails = map(int, sys.argv[1:])
def ring(rail):
    server = socket.create_server((f"10.{rail}.{rank}.2", 7000))
    for _ in range(400):
        try:
            out = socket.create_connection((f"10.{rail}.{(rank + 1) % ranks}.2", 7000), 5)
            break
        except OSError:
            time.sleep(0.05)
    into, _ = server.accept()
    out.settimeout(None)
    while True:
        out.sendall(bytes(8192))
        left = 8192
        while left:
            left -= len(into.recv(left))
        time.sleep(0.004)
for rail in range(rails):
    threading.Thread(target=ring, args=(rail,)).start()
"""


class Ring:
    """The namespaces, the processes and the counters. The link of rank R to the next one on rail N: 10.N.R+1.0/24."""

    def __init__(self, stack: ExitStack) -> None:
        self.spaces = [stack.enter_context(Netns()) for _ in range(RANKS)]
        for rank, here in enumerate(self.spaces):
            there = self.spaces[(rank + 1) % RANKS]
            following = (rank + 1) % RANKS
            for rail in range(RAILS):
                veth(here, f"out{rail}", there, f"in{rail}")
                here.ip(f"addr add 10.{rail}.{following}.1/24 dev out{rail}")
                there.ip(f"addr add 10.{rail}.{following}.2/24 dev in{rail}")
        self.processes = [
            subprocess.Popen(
                space.command(sys.executable, "-c", RANK, str(rank), str(RANKS), str(RAILS)),
                stderr=subprocess.DEVNULL,  # the end of a peer
            )
            for rank, space in enumerate(self.spaces)
        ]
        self.job = SimulatedJob(RANKS, RAILS, 1)
        self.now = 0.0
        self.last = self.read()

    def read(self) -> list[list[float]]:
        """The bytes that each rank has sent and received on each rail."""
        found = []
        for space in self.spaces:
            with space.entered():
                lines = Path("/proc/thread-self/net/dev").read_text().splitlines()
            fields = {line.split(":")[0].strip(): line.split(":")[1].split() for line in lines if ":" in line}
            found.append(
                [float(fields[f"out{rail}"][8]) + float(fields[f"in{rail}"][0]) for rail in range(RAILS)]
            )
        return found

    def grown(self, without: int | None = None) -> bool:
        """Whether each rail has carried enough since the last reading."""
        now = self.read()
        return all(
            now[rank][rail] - self.last[rank][rail] >= MOVED
            for rank in range(RANKS)
            for rail in range(RAILS)
            if rail != without
        )

    def step(self, loads: list[tuple[float, float]]) -> None:
        now = self.read()
        self.now += STEP_S
        rates = [
            [SCALE * (after - before) / 2 / STEP_S for before, after in zip(*pair, strict=True)]
            for pair in zip(self.last, now, strict=True)
        ]
        self.last = now
        self.job.step(self.now, STEP_S, rates, [[load] for load in loads])

    def table(self, loads: list[tuple[float, float]]) -> list[str]:
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


@asynccontextmanager
async def ring() -> AsyncIterator[Ring]:
    with ExitStack() as stack:
        made = Ring(stack)
        try:
            for _ in range(6):
                await until(made.grown, "each rail carries bytes")
                made.step([(0.95, 0.4)] * RANKS)
            yield made
        finally:
            for process in made.processes:
                process.kill()
                process.wait()


async def test_a_rank_that_is_stopped_silences_all_rails_and_is_named() -> None:
    async with ring() as made:
        assert not [one for one in made.table([(0.95, 0.4)] * RANKS) if "nothing" in one or "silent" in one]
        os.kill(made.processes[5].pid, signal.SIGSTOP)
        seen = [made.read()]

        def still() -> bool:
            """Four looks found the same: the others have filled the buffers of the one that is stopped."""
            seen.append(made.read())
            return len(seen) > 4 and all(one == seen[-1] for one in seen[-4:])

        await until(still, "nothing is sent any more", pause_s=0.3)
        loads = [(1.0, 0.0)] * RANKS
        loads[5] = (0.0, 0.0)
        for _ in range(6):
            made.step(loads)
        assert made.table(loads) == [
            "all rails silent for 2 min 30 s, 7 GPUs at 100 %, gpu-005/0 at 0 %: it did not arrive (job-5)"
        ]


async def test_a_rail_that_drops_is_named_while_the_others_move() -> None:
    async with ring() as made:
        made.spaces[2].ip("link set out3 down")
        loads = [(0.95, 0.4)] * RANKS
        for _ in range(6):
            await until(lambda: made.grown(without=3), "the other rails carry bytes")
            made.step(loads)
        found = made.table(loads)  # the rings are as fast as this machine makes them: one may carry less
        assert "rail3 carries nothing, the other rails do (8 pods)" in found
        assert not [one for one in found if "silent" in one or "sends nothing" in one]
