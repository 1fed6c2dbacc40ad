"""The verb `scan`: show this machine and the devices that would be offered."""

from __future__ import annotations

import argparse
import asyncio
from functools import partial
from typing import TYPE_CHECKING

from nodeagent.commands.log_lines import log_to_stderr
from nodeagent.commands.options import (
    FAILED,
    GOOD,
    Add,
    config_option,
    json_option,
    load,
    seconds,
)
from nodeagent.commands.terminal import note, screen, watching

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from nodeagent.commands.scan.agent_view import AgentView
    from nodeagent.web.machine_view import MachineView


def add(add: Add) -> None:
    parser = add(
        "scan",
        _scan,
        "show this machine: GPUs, NICs and VFs, and the devices that would be offered",
        "Needs no cluster. Health is shown with its reasons. The GPU-NIC table shows their PCIe distance in the terms\n"
        "of `nvidia-smi topo -m`: PIX (one PCIe switch), PXB (several), PHB (host bridge), NODE (same NUMA node),\n"
        "SYS (across NUMA nodes).\n"
        "The agent that serves the machine below --root answers, with the health that it has derived. Without one the\n"
        "command reads the machine itself. A line on stderr, and `agent` in JSON, shows which answer it is.",
    )
    config_option(parser)
    json_option(parser)
    parser.add_argument("--watch", action="store_true", help="print at every change, until interrupted")
    parser.add_argument(
        "--wait",
        type=seconds,
        default=0.0,
        metavar="SECONDS",
        help="receive LLDP for this long, or until every link has a neighbor (default: 0; a switch sends every 30 s)",
    )


def _scan(options: argparse.Namespace) -> int:
    from nodeagent.base.bounded_calls import in_thread
    from nodeagent.commands.running_sources import unanswered
    from nodeagent.commands.scan import agent_view, listing

    config = load(options.config)
    log_to_stderr(options.log_level or "warning")

    async def views(agent: AgentView) -> AsyncIterator[MachineView]:
        if agent.view is not None:
            seen = agent_view.watch(agent) if options.watch else agent_view.once(agent, options.wait)
        elif options.watch:
            seen = listing.watch(config, options.root)
        else:
            seen = listing.once(config, options.root, options.wait)
        async for view in seen:
            yield view

    async def run() -> int:
        agent = await in_thread(partial(agent_view.fetch, config, options.config, options.root))
        named, code = options.json, GOOD
        with watching(in_place=options.watch and not options.json) as show:
            async for view in views(agent):
                if not named:
                    note(agent.sentence)
                named = True
                as_json, as_table = listing.as_json, listing.as_table
                show(as_json(view, agent.place) if options.json else as_table(view, screen()))
                code = FAILED if agent.view is None and unanswered(view.snapshot.stale_sources) else GOOD
        return code

    return asyncio.run(run())
