"""`nodeagent mps`: the MPS daemons of one node."""

from __future__ import annotations

import argparse
import asyncio
import signal
from contextlib import suppress
from pathlib import Path

from nodeagent.console.log_lines import log_to_stderr
from nodeagent.console.options import GOOD, USAGE, Add
from nodeagent.console.terminal import note


def add(add: Add) -> None:
    parser = add(
        "mps",
        _mps,
        "run the MPS daemons of this node, one for each GPU that the agent shares with enforcement mps",
        "The agent names the GPUs in a file of its state directory. At the end of this command its daemons end, and\n"
        "their programs lose the GPU: it is a process of its own so that an update of the agent ends none. It needs\n"
        "nvidia-cuda-mps-control, and the processes of the host.",
    )
    parser.add_argument(
        "--directory",
        type=Path,
        default=Path("/var/lib/nodeagent/mps"),
        metavar="DIR",
        help="the folder `mps` below `health.stateDirectory`, at the same path as on the host (default: %(default)s)",
    )


def _mps(options: argparse.Namespace) -> int:
    from nodeagent.host.sysfs import no_machine

    if not (options.root / "sys").exists():
        note(no_machine(options.root))
        return USAGE
    log_to_stderr(options.log_level or "info", daemon=True)
    asyncio.run(_run(options.directory))
    return GOOD


async def _run(folder: Path) -> None:
    """Run until SIGTERM or SIGINT. The end takes some seconds: each daemon is asked to quit."""
    from nodeagent.host.nvml import set_compute_mode
    from nodeagent.sharing.mps_supervisor import MpsSupervisor, share_memory

    task = asyncio.ensure_future(MpsSupervisor(folder, set_compute_mode).run())
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, task.cancel)
    share_memory()
    with suppress(asyncio.CancelledError):
        await task
