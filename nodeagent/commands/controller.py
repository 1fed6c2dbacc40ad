"""The controller of a cluster."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

from nodeagent.commands.options import GOOD, Add, address, log_to_stderr, seconds

LEASE_MIN_S, LEASE_MAX_S = 3.0, 3600.0
"""A third of the least is the time in which a leader's last write must end."""


def add(add: Add) -> None:
    parser = add(
        "controller",
        _controller,
        "turn the reports of all nodes into HyperNodes and node labels (one leader of several replicas)",
        "Reads NodeLinks, Nodes and HyperNodes; writes HyperNodes that carry our source label, and our labels on\n"
        "Nodes. `nodeagent plan` says what it would write, without writing.",
    )
    parser.add_argument(
        "--fabric",
        type=Path,
        metavar="FILE",
        help="the fabric's configuration (default: none, the tree is made from LLDP alone)",
    )
    parser.add_argument(
        "--kubeconfig",
        type=Path,
        metavar="FILE",
        help="how the API server is reached (default: the pod's service account, or else $KUBECONFIG)",
    )
    parser.add_argument(
        "--namespace", metavar="NAME", help="where the NodeLinks and the Lease are (default: the pod's own)"
    )
    parser.add_argument(
        "--listen",
        type=address,
        default=":9809",
        metavar="[HOST]:PORT",
        help="where /metrics, /healthz and /readyz are served (default: %(default)s)",
    )
    parser.add_argument(
        "--lease",
        type=_lease,
        default=15.0,
        metavar="SECONDS",
        help="a leader that is silent for so long is followed by another; one that cannot renew stops after two "
        "thirds of it (default: %(default)g)",
    )
    parser.add_argument("--log-level", choices=("debug", "info", "warning", "error"), default="info")


def _lease(text: str) -> float:
    lease = seconds(text)
    if not LEASE_MIN_S <= lease <= LEASE_MAX_S:
        raise argparse.ArgumentTypeError(
            f"{text} is no lease: give {LEASE_MIN_S:g} to {LEASE_MAX_S:g} seconds"
        )
    return lease


def _controller(options: argparse.Namespace) -> int:
    from nodeagent import controller
    from nodeagent.commands.plan import preview
    from nodeagent.kube.access import in_cluster, kubeconfig

    config, rules = preview.load(options.fabric)
    log_to_stderr(options.log_level)
    access = None if options.kubeconfig else in_cluster()
    access = access or kubeconfig(options.kubeconfig)
    place = controller.Place(
        options.namespace or access.namespace,
        controller.identity(),
        options.listen,
        config.hysteresis.debounce_seconds,
        duration_s=options.lease,
        renew_s=options.lease * 2 / 3,
        retry_s=options.lease * 2 / 15,
    )
    asyncio.run(controller.run(rules, access, place, config))
    return GOOD
