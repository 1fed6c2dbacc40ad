"""The verb `gpus`: the memory and load of each GPU, and the pods that hold and use it."""

from __future__ import annotations

import argparse
import asyncio
from typing import TYPE_CHECKING

from nodeagent.commands.log_lines import log_to_stderr
from nodeagent.commands.options import FAILED, GOOD, Add, config_option, json_option, load
from nodeagent.commands.terminal import note, screen, watching

if TYPE_CHECKING:
    from nodeagent.web.gpu_statuses import GpuStatuses

ALONE = "this is a short look of the command itself: it does not show what pods hold"


def add(add: Add) -> None:
    parser = add(
        "gpus",
        _gpus,
        "show the memory and load of each GPU, and the pods that hold and use it",
        "One line for each GPU: memory that pods were granted, memory in use, free slices, the largest request that\n"
        "fits, load, temperature, health. Below it is a line for each pod, with its share and what its processes\n"
        "use, and for each process that is in no pod. The use by pods needs `gpu.health.processes`.\n\n"
        "The agent that serves the machine below --root answers. Without one the command reads the machine for two\n"
        "seconds. A line on stderr shows which answer it is.",
    )
    config_option(parser)
    json_option(parser)
    parser.add_argument("--watch", action="store_true", help="print again every second, until interrupted")


def _gpus(options: argparse.Namespace) -> int:
    import msgspec

    from nodeagent.commands.gpus import gpu_answers, gpu_table

    config = load(options.config)
    log_to_stderr(options.log_level or "warning")

    alone = False

    def explain(agent: str | None, why: str) -> None:
        nonlocal alone
        alone = agent is None
        line = f"no agent runs here ({why}); {ALONE}" if agent is None else f"the agent at {agent} answers"
        note(line)

    def text(lines: GpuStatuses) -> str:
        return msgspec.json.encode(lines).decode() if options.json else gpu_table.as_table(lines, screen())

    async def run() -> int:
        code = GOOD
        with watching(in_place=options.watch and not options.json) as show:
            async for lines in gpu_answers.views(config, options.root, explain):
                show(text(lines))
                code = FAILED if alone and lines.silent is not None else GOOD
                if not options.watch:
                    break
        return code

    return asyncio.run(run())
