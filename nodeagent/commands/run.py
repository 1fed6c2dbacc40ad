"""The daemon."""

from __future__ import annotations

import argparse
import asyncio
import os
from pathlib import Path

from nodeagent.commands.options import GOOD, Add, address, config_option, load, log_to_stderr


def add(add: Add) -> None:
    parser = add(
        "run",
        _run,
        "the daemon: discover, register with the kubelet, hand out devices, tell it of health",
        "Serves /metrics, /healthz and /readyz on one port; /readyz is true when every configured resource is\n"
        "registered. A change of the configuration file, or SIGHUP, is taken up without losing allocations; a\n"
        "file with faults is refused and the running configuration stays.",
    )
    config_option(parser)
    parser.add_argument(
        "--kubelet-dir",
        type=Path,
        default=Path("/var/lib/kubelet"),
        metavar="DIR",
        help="the kubelet's folder, which holds device-plugins/ and pod-resources/ (default: %(default)s)",
    )
    parser.add_argument(
        "--listen",
        type=address,
        metavar="[HOST]:PORT",
        help="where metrics and probes are served (default: `listen:`)",
    )


def _run(options: argparse.Namespace) -> int:
    from nodeagent import agent

    config = load(options.config)
    log_to_stderr(config.log.level)
    place = agent.Place(
        options.root,
        options.kubelet_dir,
        options.config,
        options.listen,
        os.environ.get("NODE_NAME"),
    )
    asyncio.run(agent.run(config, place))
    return GOOD
