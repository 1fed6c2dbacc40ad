"""Run the agent with probes inside its process.

    inside.py run --config FILE --root DIR ...   the agent, with timestamps of its start and a probe of its loop
    inside.py endpoint SOCKET IDS                only one plugin, with this number of slices on eight GPUs

It answers commands on stdin with JSON lines on stdout: ``lag`` (the loop's longest stall since the last command, ms)
and, for a plugin, ``flip`` (changes the health of the first GPU; the time of it).
"""

from __future__ import annotations

import time

BORN = time.monotonic()
# The other imports come after it, because they are a part of the time that is measured.

import argparse  # noqa: E402
import asyncio  # noqa: E402
import gc  # noqa: E402
import json  # noqa: E402
import logging  # noqa: E402
import os  # noqa: E402
import sys  # noqa: E402
from collections.abc import Callable  # noqa: E402
from pathlib import Path  # noqa: E402

TICK_S = 0.001


class Lag:
    """Measure the longest delay of a task that is due every millisecond."""

    def __init__(self) -> None:
        self._worst = 0.0
        self._task = asyncio.ensure_future(self._run())

    async def _run(self) -> None:
        while True:
            due = time.monotonic() + TICK_S
            await asyncio.sleep(TICK_S)
            self._worst = max(self._worst, time.monotonic() - due)

    def take_ms(self) -> float:
        worst, self._worst = self._worst, 0.0
        return 1000 * worst


def say(**facts: object) -> None:
    print(json.dumps(facts), flush=True)


async def answer(questions: dict[str, Callable[[], dict[str, object]]]) -> None:
    """Answer until stdin ends."""
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        say(**questions[line.decode().strip()]())


async def run(arguments: list[str]) -> None:
    from nodeagent.agent import Agent, AgentOptions
    from nodeagent.agent_config import load

    parser = argparse.ArgumentParser()
    for name in ("--config", "--root", "--kubelet-dir"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--listen")
    options = parser.parse_args(arguments)
    imported = time.monotonic()
    config = load(options.config.read_text(), name=str(options.config))
    agent = Agent(config, AgentOptions(options.root, options.kubelet_dir, options.config, options.listen))
    ready = time.monotonic()
    running = asyncio.ensure_future(agent.run())
    published: dict[str, float] = {}
    sources = {"pci", "gpus", "paths"}
    while sources - published.keys():
        snapshot = await agent.inventory.changed(agent.inventory.snapshot.revision)
        now = time.monotonic()
        published |= {name: now for name in sources - published.keys() if agent.inventory.has_published(name)}
        del snapshot
    lag = Lag()
    say(born=BORN, imported=imported, ready=ready, published=published)
    asking = asyncio.ensure_future(answer({"lag": lambda: {"lag_ms": lag.take_ms()}}))
    await asyncio.wait((running, asking), return_when=asyncio.FIRST_COMPLETED)


class NoFiles:
    """No files: slices with the vendor's CDI spec need none before the answer."""

    def stamped(self, allocation: object) -> object:
        return allocation

    def due(self, _allocation: object) -> bool:
        return False

    def write(self, _allocation: object) -> None:
        raise AssertionError("nothing is due")


async def endpoint(socket: Path, ids: int) -> None:
    """A plugin as in the agent, without the check that refuses a list that is too long for the kubelet."""
    from msgspec.structs import replace

    from nodeagent.facts.model import Gpu, Health, Snapshot, State
    from nodeagent.kinds.gpu_memory import GpuMemory
    from nodeagent.kubelet.grown_requests import GrownRequests
    from nodeagent.kubelet.plugin import Plugin, RecentFunctions
    from nodeagent.kubelet.rpc_stats import RpcStats

    gpus = tuple(
        Gpu(
            uuid=f"GPU-{i:08x}-0000-4000-8000-000000000000",
            index=i,
            minor=i,
            name="NVIDIA H100 80GB HBM3",
            pci_address=f"0000:{i + 1:02x}:00.0",
            memory_mib=ids // 8,
            numa_node=i // 4,
        )
        for i in range(8)
    )
    kind = GpuMemory("nodeagent.io/gpu-mem", slice_mib=1)
    served = Plugin(kind, NoFiles(), RecentFunctions(), RpcStats(), GrownRequests(), lambda: None)
    snapshot = Snapshot(gpus=gpus)
    served.update(kind, snapshot)
    await served.start(socket)
    gc.freeze()  # as the agent does once it has started
    lag = Lag()

    def flip() -> dict[str, object]:
        nonlocal snapshot
        first = snapshot.gpus[0]
        health = Health() if not first.health.allocatable else Health(State.UNHEALTHY, allocatable=False)
        snapshot = replace(snapshot, gpus=(replace(first, health=health), *snapshot.gpus[1:]))
        at = time.monotonic()
        served.update(kind, snapshot)
        return {"at": at}

    say(size=len(served.device_list.message))
    await answer({"lag": lambda: {"lag_ms": lag.take_ms()}, "flip": flip})
    await served.stop()


def main() -> None:
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    logging.basicConfig(level="INFO", stream=sys.stderr)
    match sys.argv[1:]:
        case ["run", *arguments]:
            asyncio.run(run(arguments))
        case ["endpoint", socket, ids]:
            asyncio.run(endpoint(Path(socket), int(ids)))
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()
