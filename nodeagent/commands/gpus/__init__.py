"""The verb `gpus`: the memory and load of each GPU, and the pods that hold and use it."""

from __future__ import annotations

import argparse
import asyncio

from nodeagent.console.log_lines import log_to_stderr
from nodeagent.console.options import Add, config_option, json_option, load_config, watch_option


def add(add: Add) -> None:
    parser = add(
        "gpus",
        _gpus,
        "show the memory and load of each GPU, and the pods that hold and use it",
        "GPUS: memory that pods were granted, memory in use as nvidia-smi shows it, free slices, the largest request\n"
        "that fits, load, health. HARDWARE: power, temperature, clocks and what limits them, ECC errors since the\n"
        "driver was loaded. USERS: a line for each pod, with its share, what its processes use and whether a limit\n"
        "keeps it within its share, and for each process that is in no pod; their use needs `gpu.health.processes`.\n\n"
        "The agent that serves the machine below --root answers. Without one the command reads the machine for two\n"
        "seconds. A line on stderr shows which answer it is.",
    )
    config_option(parser)
    json_option(parser)
    parser.add_argument("--processes", action="store_true", help="list the processes of each pod too")
    watch_option(parser, every_s=1.0)


def _gpus(options: argparse.Namespace) -> int:
    from nodeagent.commands.gpus import gpu_listing

    config = load_config(options.config)
    log_to_stderr(options.log_level or "warning")
    return asyncio.run(gpu_listing.show_gpus(config, options))
