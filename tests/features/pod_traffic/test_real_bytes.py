"""Real bytes: eight ranks on four rails of veths, each rail a ring of TCP connections. One rank stops, one rail drops.

The ranks are processes with sockets, in place of torch and a collective library; `hack/real_rails.py` has those of
torch with gloo. Counters are those of the veths.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager

import pytest

from tests.support.namespaces import Netns, veth
from tests.support.real_rails import RealRails
from tests.support.waiting import until

pytestmark = [pytest.mark.needs("root", "ip", "nsenter"), pytest.mark.slow]
RANKS, RAILS = 8, 4
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


class Ring(RealRails):
    """The namespaces and the processes. The link of rank R to the next one on rail N: 10.N.R+1.0/24."""

    def __init__(self, stack: ExitStack) -> None:
        self.spaces: list[Netns] = [stack.enter_context(Netns()) for _ in range(RANKS)]
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
        rails = range(RAILS)
        super().__init__(self.spaces, [f"out{rail}" for rail in rails], [f"in{rail}" for rail in rails])


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
