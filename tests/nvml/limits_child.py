"""A process with the stand-in on its loader path: ``pass`` sets limits once, ``follow`` keeps them.

``pass``: each line of input is a list of shares; the answer is the state of each, or the driver's error.
``follow``: each line of input replaces the shares; each change of the states is a line of output.
"""

import asyncio
import json
import logging
import sys

from nodeagent.facts.inventory import Inventory
from nodeagent.host.gpu_driver import DriverError
from nodeagent.host.sysfs import Tree
from nodeagent.sharing.cgroup_limits import CgroupLimits, set_limits
from nodeagent.sharing.shares import Share

MODE, ROOT = sys.argv[1], sys.argv[2]
LOGS = "/var/log/pods"


def shown(states):
    return [
        [*state.share[:4], state.word, list(state.cgroups), state.failure, state.in_words] for state in states
    ]


def answer(value):
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def passes():
    for line in sys.stdin:
        shares = tuple(Share(*share) for share in json.loads(line))
        try:
            states, writes, folders = set_limits(Tree(ROOT), LOGS, shares)
        except DriverError as error:
            answer({"error": str(error)})
        else:
            answer({"states": shown(states), "writes": writes, "folders": sorted(folders)})


async def follow():
    inventory, held = Inventory(), [()]
    limits = CgroupLimits(Tree(ROOT), LOGS, inventory, lambda: held[0], interval_s=0.2)
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    tasks = [asyncio.create_task(limits.run()), asyncio.create_task(report(limits, inventory))]
    revision = 0
    while line := await reader.readline():
        held[0] = tuple(Share(*share) for share in json.loads(line))
        revision += 1
        inventory.publish("pods", product=str(revision))
    for task in tasks:
        task.cancel()


async def report(limits, inventory):
    while True:
        revision = limits.revision
        kept = inventory.snapshot.limits_kept
        facts = [[limit.state, limit.since, limit.why] for limit in limits.limits]
        answer({"states": shown(limits.states), "writes": limits.writes, "kept": kept, "facts": facts})
        await limits.changed(revision)


logging.basicConfig(level=logging.INFO)
if MODE == "pass":
    passes()
else:
    asyncio.run(follow())
