"""A simulated node, a stand-in kubelet and the agent between them, in this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from nodeagent.agent import Agent, AgentOptions
from nodeagent.agent_config import Config, load
from nodeagent.kubelet import holdings
from nodeagent_lab.sim.kubelet import Kubelet
from nodeagent_lab.sim.machine import Machine
from tests.support.waiting import LIMIT_S, until

SMALL = "two-gpu-two-nic"
IN_MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
"""A machine is thousands of small files, which a disk creates slowly."""


PROMPT = """\
health:
  rules:
  - {rule: carrier_down, clearForSeconds: 0}
  - {rule: device_missing, clearForSeconds: 0}
  - {rule: flapping, enabled: false}
"""
"""Healthy devices are returned at once: for tests of other things than holds."""
HEAD = "apiVersion: nodeagent.io/v1alpha1\nkind: NodeAgentConfig\n"


def shorten(patch: pytest.MonkeyPatch, function: Any, **periods: float) -> None:
    """Shorten periods that are keyword defaults of a function, for tests of other things than these waits."""
    for name, seconds in periods.items():
        assert name in function.__kwdefaults__
        patch.setitem(function.__kwdefaults__, name, seconds)


def shorten_holdings(patch: pytest.MonkeyPatch) -> None:
    """Read the holdings every half second, and accept an empty list at once."""
    shorten(patch, holdings.watch_holdings, interval_s=0.5, empty_stands_s=0.1)


class Node:
    """One node of a test. The path of a socket has at most 107 characters, so its folder is a short one."""

    def __init__(self, folder: Path, model: str) -> None:
        self.folder = folder
        self.root = folder / "r"
        self.config_file = folder / "nodeagent.yaml"
        self.machine = Machine.load(model)
        self.machine.write(self.root)
        self.kubelet = Kubelet(folder / "k", seed=3)
        self.port = 0
        self._task: asyncio.Task[None] | None = None
        self.agent: Agent | None = None

    def configure(self, text: str) -> Config:
        """Write the whole configuration file. Without the head, holds are switched off too."""
        if "apiVersion" not in text:
            text = f"{HEAD}{text}" if "health:" in text else f"{HEAD}{PROMPT}{text}"
        temporary = self.config_file.with_suffix(".tmp")
        temporary.write_text(text)
        temporary.replace(self.config_file)
        return load(text, name=str(self.config_file))

    async def start_agent(
        self,
        config: Config | None = None,
        listen: str = "127.0.0.1:0",
        node_name: str | None = None,
        own_pod: tuple[str, str] | None = None,
    ) -> None:
        config = config or load(HEAD + PROMPT, name="prompt")
        listening: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        options = AgentOptions(
            self.root,
            self.kubelet.directory,
            self.config_file if self.config_file.exists() else None,
            listen,
            node_name,
            own_pod=own_pod,
        )
        self.agent = Agent(config, options, listening.set_result)
        self._task = asyncio.create_task(self.agent.run())
        await asyncio.wait((self._task, listening), return_when=asyncio.FIRST_COMPLETED, timeout=20)
        if self._task.done():
            await self._task
        self.port = listening.result()

    async def stop_agent(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))
        self._task = self.agent = None

    async def allocatable(self, resource: str, count: int) -> None:
        await self.kubelet.until(lambda: self.kubelet.allocatable().get(resource) == count, LIMIT_S)

    async def registered(self) -> None:
        """Wait until each resource is registered. They do not finish together."""
        await self.until(lambda: all(status.registered for status in self.agent.plugins.statuses()))

    async def until(self, predicate: Callable[[], bool]) -> None:
        """Wait for a condition without an event."""
        await until(predicate)

    async def get(self, path: str, accept: str = "") -> tuple[int, str]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(
            f"GET {path} HTTP/1.1\r\nHost: x\r\nAccept: {accept}\r\nConnection: close\r\n\r\n".encode()
        )
        head, _, body = (await asyncio.wait_for(reader.read(), 10)).partition(b"\r\n\r\n")
        writer.close()
        return int(head.split()[1]), body.decode()


@asynccontextmanager
async def node(model: str = SMALL) -> AsyncIterator[Node]:
    # A thread of the ended agent may still write a file.
    with TemporaryDirectory(prefix="na-", dir=IN_MEMORY, ignore_cleanup_errors=True) as folder:
        made = Node(Path(folder), model)
        try:
            yield made
        finally:
            await made.stop_agent()
            await made.kubelet.stop()
