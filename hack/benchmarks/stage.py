"""The measured system: a simulated DGX H100, a stand-in kubelet in this process, the agent in another process.

Both processes use ``time.monotonic``, which on Linux is the same clock for all processes.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.cpu_time import cpu_ns
from nodeagent.host.recorded_gpus import RecordedGpuDriver
from nodeagent_lab.sim.kubelet import Kubelet
from nodeagent_lab.sim.machine import Machine

NODEAGENT = (sys.executable, "-c", "import sys; from nodeagent.cli import main; sys.exit(main())")
"""The same as the installed script ``nodeagent``."""
INSIDE = (sys.executable, str(Path(__file__).with_name("inside.py")))
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}

RESOURCES = 9
SWITCH_S = 0.0005
PATIENCE_S = 30.0
QUIET_S = 1.5
"""The agent repeats its reads for 1.2 s after an event; a fault after that is a first one."""

_CONFIG = """\
apiVersion: nodeagent.io/v1alpha1
kind: NodeAgentConfig
resources:
- kind: vf
  name: "nic{rail}"
- kind: gpu-mem
  sliceMiB: SLICE
  reservedMiB: RESERVED
health:
  rules:
  - {rule: carrier_down, clearForSeconds: 0}
  - {rule: flapping, enabled: false}
"""


@dataclass
class Stage:
    folder: Path
    root: Path
    machine: Machine

    def config(self, slices_per_gpu: int = 79) -> Path:
        """A configuration file that gives each GPU this number of slices."""
        memory = RecordedGpuDriver(self.root).gpus()[0].memory_mib
        assert memory is not None
        size = memory // slices_per_gpu
        path = self.folder / f"nodeagent-{slices_per_gpu}.yaml"
        reserved = memory - size * slices_per_gpu
        path.write_text(_CONFIG.replace("SLICE", str(size)).replace("RESERVED", str(reserved)))
        return path

    @asynccontextmanager
    async def kubelet(self) -> AsyncIterator[Kubelet]:
        """A new kubelet in a folder of its own."""
        folder = Path(tempfile.mkdtemp(dir=self.folder))
        kubelet = Kubelet(folder, seed=1)
        await kubelet.start()
        try:
            yield kubelet
        finally:
            await kubelet.stop()
            shutil.rmtree(folder)

    @asynccontextmanager
    async def agent(
        self,
        kubelet: Kubelet,
        config: Path | None = None,
        command: tuple[str, ...] = NODEAGENT,
        node: str | None = None,
    ) -> AsyncIterator[Process]:
        """``nodeagent run``, on this node, after all resources are registered and listed."""
        arguments: tuple[str, ...] = (
            "run",
            "--config",
            str(config or self.config()),
            "--root",
            str(self.root),
        )
        arguments += ("--kubelet-dir", str(kubelet.directory), "--listen", "127.0.0.1:0")
        # The faults of an earlier measurement must not become those of this one.
        (self.root / "var/lib/nodeagent/health.json").unlink(missing_ok=True)
        named = ("env", f"NODE_NAME={node}") if node is not None else ()
        async with self.process(*named, *command, *arguments) as process:
            try:
                await kubelet.until(lambda: settled(kubelet, process.began), PATIENCE_S)
            except TimeoutError as error:
                raise RuntimeError(f"{error}; the agent's log:\n{process.log_tail()}") from error
            yield process

    @asynccontextmanager
    async def process(self, *command: str) -> AsyncIterator[Process]:
        log = self.folder / "agent.log"
        with log.open("wb") as file:
            began = time.monotonic()
            running = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=file,
                env=ENVIRONMENT,
            )
        try:
            yield Process(running, began, log)
        finally:
            if running.returncode is None:
                running.terminate()
            await running.communicate()


@dataclass
class Process:
    """``began`` is the time just before the start."""

    running: asyncio.subprocess.Process
    began: float
    log: Path

    @property
    def pid(self) -> int:
        return self.running.pid

    def cpu_s(self) -> float:
        return cpu_ns(self.pid) / 1e9

    async def answer(self) -> dict[str, Any]:
        """The next line of ``inside.py``."""
        assert self.running.stdout is not None
        line = await self.running.stdout.readline()
        if not line:
            raise RuntimeError(f"the process ended; its log:\n{self.log_tail()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    async def ask(self, question: str) -> dict[str, Any]:
        assert self.running.stdin is not None
        self.running.stdin.write(f"{question}\n".encode())
        return await self.answer()

    def log_tail(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-20:])


def registrations(kubelet: Kubelet, since: float) -> dict[str, float]:
    """The time of the first successful registration of each resource since then."""
    times: dict[str, float] = {}
    for entry in kubelet.registrations:
        if entry.at >= since and entry.error is None:
            times.setdefault(entry.resource, entry.done)
    return times


def first_lists(kubelet: Kubelet, since: float) -> dict[str, float]:
    times: dict[str, float] = {}
    for entry in kubelet.updates:
        if entry.at >= since:
            times.setdefault(entry.resource, entry.at)
    return times


def settled(kubelet: Kubelet, since: float) -> bool:
    return len(registrations(kubelet, since)) == len(first_lists(kubelet, since)) == RESOURCES


class Delay(NamedTuple):
    """Seconds from a change of the machine to its message at the kubelet. ``after_event`` begins when the simulated
    kernel or GPU driver has announced the change, so it is without the time in which the stand-in writes files."""

    whole: float
    after_event: float


async def change(
    stage: Stage,
    kubelet: Kubelet,
    resource: str,
    happen: Callable[[], None],
    *,
    healthy: Callable[[int], bool],
) -> Delay:
    """Let ``happen`` change the machine, and wait for the message."""
    before = len(kubelet.updates)
    announced = began = time.monotonic()

    def announce() -> None:
        nonlocal announced
        announced = time.monotonic()

    stage.machine.announced = announce
    await asyncio.to_thread(happen)

    def arrival() -> float | None:
        news = kubelet.updates[before:]
        return next(
            (update.at for update in news if update.resource == resource and healthy(update.healthy)), None
        )

    await kubelet.until(lambda: arrival() is not None, PATIENCE_S)
    at = arrival()
    assert at is not None
    return Delay(at - began, at - announced)


@contextmanager
def stage() -> Iterator[Stage]:
    """A machine and folders that nobody has used: what one measurement leaves, such as prepared claims, would change
    what the agent of the next one offers."""
    # In memory, as sysfs is: on a disk each changed file would wait for the syncs of other programs.
    shm = Path("/dev/shm")
    # Kubelet and machine are one process here: neither holds the interpreter while a message for the other waits.
    sys.setswitchinterval(SWITCH_S)
    with tempfile.TemporaryDirectory(
        prefix="nodeagent-bench-", dir=shm if os.access(shm, os.W_OK) else None
    ) as name:
        root = Path(name, "root")
        machine = Machine.load("dgx-h100")
        machine.write(root)
        yield Stage(Path(name), root, machine)
