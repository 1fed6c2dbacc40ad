"""The shows: simulated hardware, stand-ins for what a cluster has besides, and the real programs between them.

What is real: ``nodeagent run`` and ``nodeagent controller`` as processes of their own, their sockets and every byte
on them, every file they read and write. What is simulated is said so, by each show at its beginning.

``node`` is one machine and its kubelet, ``fabric`` a cluster and its API server.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
import tempfile
from pathlib import Path

from nodeagent.commands.demo.fabric_show import FabricShow
from nodeagent.commands.demo.node_show import NodeShow, write
from nodeagent.commands.demo.run import DemoError

__all__ = ["DemoError", "main", "write"]


def main(machine: str, *, once: bool, nodes: int | None = None) -> int:
    """Run a show: of one node, or of a fabric of so many. Returns the exit code."""
    folder = Path(tempfile.mkdtemp(prefix="nodeagent-demo-"))
    try:
        show = NodeShow(machine, folder) if nodes is None else FabricShow(machine, folder, nodes)
        asyncio.run(_run(show, once=once))
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


async def _run(show: NodeShow | FabricShow, *, once: bool) -> None:
    task = asyncio.current_task()
    if task is not None:
        for number in (signal.SIGTERM, signal.SIGHUP):  # a closed terminal is a Ctrl-C too
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    await show.run(once=once)
