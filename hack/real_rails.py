"""Does the table of a job name a rank that is stopped and a rail that drops, with the bytes of torch and gloo?

    python hack/real_rails.py --python FOLDER/bin/python [--cause stop|drop|wire]

``--python`` is that of an environment with torch, which no other part of the project needs. Eight ranks in network
namespaces have four rails, each a bridge; gloo reduces on each rail in a group of its own. The counters are those of
the veths, judged as those of VFs; the load of GPUs is given (``tests/support/real_rails.py``). The causes: SIGSTOP to
rank 5; rail 3 of rank 2 down; and, as ``wire``, one group over all rails in turn with rail 3 of rank 2 down. It needs
root, and prints the table of the job before and after each cause. Exit status 1: a cause was not named.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.support.namespaces import Netns, veth
from tests.support.real_rails import Loads, RealRails
from tests.support.waiting import until

RANKS, RAILS = 8, 4
WAIT_S = 300.0
WORKS, WAITS, IDLE = (0.95, 0.4), (1.0, 0.0), (0.0, 0.0)
RANK = """
import sys, threading, time
from datetime import timedelta
import torch
import torch.distributed as dist
rank, ranks, rails, store, groups = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], sys.argv[5]
torch.set_num_threads(1)
store = dist.FileStore(store, ranks)
gloo = dist.ProcessGroupGloo
def reduce(name, netdevs):
    options = gloo._Options()
    options._devices = [gloo.create_device(interface=netdev) for netdev in netdevs]
    options._timeout = timedelta(hours=1)
    options._threads = len(netdevs)
    group = gloo(dist.PrefixStore(name, store), rank, ranks, options)
    sums = torch.ones(8192)
    while True:
        group.allreduce([sums]).wait()
        sums.fill_(1.0)
        time.sleep(0.02)
names = [f"rail{rail}" for rail in range(rails)]
if groups == "all":
    reduce("all", names)
for name in names:
    threading.Thread(target=reduce, args=(name, [name])).start()
"""


class GlooJob(RealRails):
    """Rank R is 10.N.0.R+1 on rail N."""

    def __init__(self, stack: ExitStack, python: str, groups: str) -> None:
        switch = stack.enter_context(Netns())
        spaces = [stack.enter_context(Netns()) for _ in range(RANKS)]
        for rail in range(RAILS):
            switch.ip(f"link add name sw{rail} type bridge\nlink set sw{rail} up")
            for rank, space in enumerate(spaces):
                port = f"r{rank}n{rail}"
                veth(space, f"rail{rail}", switch, port)
                switch.ip(f"link set {port} master sw{rail}")
                space.ip(f"addr add 10.{rail}.0.{rank + 1}/24 dev rail{rail}")
        for space in spaces:
            space.ip("link set lo up")
        store = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "store"
        self.processes = [
            subprocess.Popen(
                space.command(python, "-c", RANK, *map(str, (rank, RANKS, RAILS, store, groups)))
            )
            for rank, space in enumerate(spaces)
        ]
        stack.callback(self._end)
        names = [f"rail{rail}" for rail in range(RAILS)]
        super().__init__(spaces, names, names)

    def _end(self) -> None:
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.wait()

    async def run(self, steps: int, loads: Loads, without: int | None = None) -> None:
        for _ in range(steps):
            await until(lambda: self.grown(without), "each rail carries bytes", pause_s=0.2, limit_s=WAIT_S)
            self.step(loads)

    async def come_to_rest(self) -> None:
        """Wait until four looks found the same bytes: the others have filled the buffers of the one that is stopped.
        The keep-alives of the network come later than that."""
        seen = [self.read()]

        def still() -> bool:
            seen.append(self.read())
            return len(seen) > 4 and all(one == seen[-1] for one in seen[-4:])

        await until(still, "nothing is sent any more", pause_s=2.0, limit_s=WAIT_S)


async def stop(job: GlooJob) -> tuple[Loads, str]:
    os.kill(job.processes[5].pid, signal.SIGSTOP)
    await job.come_to_rest()
    loads = [WAITS] * RANKS
    loads[5] = IDLE
    for _ in range(6):
        job.step(loads)
    return loads, "gpu-005/0 at 0 %: it did not arrive (job-5)"


async def drop(job: GlooJob) -> tuple[Loads, str]:
    job.spaces[2].ip("link set rail3 down")
    loads = [WORKS] * RANKS
    await job.run(6, loads, without=3)
    return loads, "rail3 carries nothing, the other rails do (8 pods)"


async def wire(job: GlooJob) -> tuple[Loads, str]:
    job.spaces[2].ip("link set rail3 down")
    await job.come_to_rest()
    loads = [WAITS] * RANKS
    for _ in range(6):
        job.step(loads)
    return loads, "all rails silent for 2 min 30 s"


CAUSES: dict[str, tuple[str, Callable[[GlooJob], Awaitable[tuple[Loads, str]]]]] = {
    "stop": ("each", stop),
    "drop": ("each", drop),
    "wire": ("all", wire),
}


async def tried(python: str, cause: str) -> bool:
    groups, plant = CAUSES[cause]
    with ExitStack() as stack:
        job = GlooJob(stack, python, groups)
        await job.run(6, [WORKS] * RANKS)
        print(f"{cause}: before: {job.table([WORKS] * RANKS) or 'nothing is odd'}", flush=True)
        loads, wanted = await plant(job)
        found = job.table(loads)
        print(f"{cause}: after: {found}", flush=True)
    return any(wanted in one for one in found)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--python", required=True, help="the interpreter of an environment with torch")
    parser.add_argument("--cause", choices=CAUSES, action="append", help="this one alone")
    options = parser.parse_args()
    found = [asyncio.run(tried(options.python, cause)) for cause in options.cause or CAUSES]
    return 0 if all(found) else 1


if __name__ == "__main__":
    sys.exit(main())
