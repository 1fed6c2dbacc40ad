"""Run a demo: of one machine with its kubelet, or of a cluster with its API server.

Real are ``nodeagent run`` and ``nodeagent controller`` as processes, with their sockets and files. Each demo prints at
its start what is simulated.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from nodeagent.base.supervise import ending_signals
from nodeagent_lab.demo.claim_show import ClaimShow
from nodeagent_lab.demo.demo_steps import DemoError
from nodeagent_lab.demo.fabric_show import FabricShow
from nodeagent_lab.demo.node_show import NodeShow
from nodeagent_lab.demo.simulated_node import SimulatedNode

__all__ = ["DemoError", "follow", "main"]

_ROOM, _FILES = 512 << 20, 50_000
"""Free bytes and files: several times what the largest machine needs."""


def main(
    machine: str, *, once: bool, nodes: int | None = None, by_claim: bool = False, ui: bool = False
) -> int:
    """Run the demo of one node, of a fabric with ``nodes`` nodes, or of claims. Returns the exit code. ``ui``: a page
    in place of the steps; the demo of claims has none."""
    folder = Path(tempfile.mkdtemp(prefix="nodeagent-demo-", dir=memory_folder()))
    try:
        if by_claim:
            asyncio.run(_run(partial(ClaimShow(machine, folder).run, once=once)))
        else:
            show = NodeShow(machine, folder) if nodes is None else FabricShow(machine, folder, nodes)
            asyncio.run(_run(partial(show.run, once=once, ui=ui)))
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


def memory_folder(memory: str = "/dev/shm") -> str | None:  # noqa: S108 - mkdtemp makes a folder in it
    """A folder in memory for the 13,000 small files of a machine, which take a busy disk 20 s; ``None``, the usual one,
    if TMPDIR names one, or where memory has no room or runs no library of the simulated driver, as in a container."""
    if os.environ.get("TMPDIR"):
        return None
    try:
        found = os.statvfs(memory)
    except OSError:
        return None
    fits = found.f_bavail * found.f_frsize >= _ROOM and (not found.f_files or found.f_favail >= _FILES)
    return memory if fits and not found.f_flag & os.ST_NOEXEC and os.access(memory, os.W_OK) else None


def follow(node: SimulatedNode, root: Path, faults: Path) -> int:
    """Apply the faults that the file ``faults`` names to the machine under ``root``, until a signal."""
    with suppress(asyncio.CancelledError):
        asyncio.run(_run(partial(node.follow, root, faults)))
    return 0


async def _run(run: Callable[[], Awaitable[None]]) -> None:
    task = asyncio.current_task()
    if task is not None:
        for number in ending_signals(signal.SIGHUP):  # a closed terminal ends the demo like Ctrl-C
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    await run()
