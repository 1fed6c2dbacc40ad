"""`nodeagent run`: the options, and the start of the agent."""

from __future__ import annotations

import argparse
import asyncio
import gc
import os

from nodeagent.console.log_lines import log_to_stderr
from nodeagent.console.options import (
    GOOD,
    USAGE,
    Add,
    address,
    config_option,
    device_plugins_option,
    kubelet_dir_option,
    load,
)
from nodeagent.console.terminal import note


def add(add: Add) -> None:
    parser = add(
        "run",
        _run,
        "run the agent: discover devices, register them with the kubelet, allocate them, publish their health",
        "Serves /metrics, /healthz and /readyz on one port; /readyz succeeds when every configured resource is\n"
        "registered and the node offers the hardware that it has, or as much as `expect` asks for. A change of the\n"
        "configuration file, or SIGHUP, applies it without losing allocations. A file with errors is refused, and the\n"
        "running configuration stays.",
    )
    config_option(parser)
    kubelet_dir_option(parser)
    device_plugins_option(parser)
    parser.add_argument(
        "--listen",
        type=address,
        metavar="[HOST]:PORT",
        help="the address of metrics and probes (default: `listen:`)",
    )


def _run(options: argparse.Namespace) -> int:
    gc.disable()  # the modules and their objects stay; the agent collects and enables it once it has settled
    from nodeagent import agent
    from nodeagent.host.sysfs import no_machine

    config = load(options.config)
    if not (options.root / "sys").exists():
        note(no_machine(options.root))
        return USAGE
    log_to_stderr(options.log_level or config.log.level, daemon=True)
    agent_options = agent.AgentOptions(
        options.root,
        options.kubelet_dir,
        options.config,
        options.listen,
        os.environ.get("NODE_NAME"),
        options.log_level,
        _own_pod(os.environ.get("POD_NAMESPACE"), os.environ.get("POD_NAME")),
        options.device_plugins_dir,
    )
    asyncio.run(agent.run(config, agent_options))
    return GOOD


def _own_pod(namespace: str | None, name: str | None) -> tuple[str, str] | None:
    return (namespace, name) if namespace and name else None
