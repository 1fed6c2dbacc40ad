"""The controller of a cluster."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

from nodeagent.verbs.common import GOOD, Add, address, log_to_stderr, seconds, text


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
        "--debounce",
        type=seconds,
        default=10.0,
        metavar="SECONDS",
        help="plan when nothing has changed for so long (default: %(default)g)",
    )
    parser.add_argument("--log-level", choices=("debug", "info", "warning", "error"), default="info")


def _controller(options: argparse.Namespace) -> int:
    from nodeagent import controller
    from nodeagent.config.fabric import load_fabric, rules_of
    from nodeagent.fabric import Rules
    from nodeagent.kube.access import in_cluster, kubeconfig

    rules = Rules()
    if options.fabric is not None:
        rules = rules_of(load_fabric(text(options.fabric), name=str(options.fabric)))
    log_to_stderr(options.log_level)
    access = None if options.kubeconfig else in_cluster()
    access = access or kubeconfig(options.kubeconfig)
    place = controller.Place(
        options.namespace or access.namespace, controller.identity(), options.listen, options.debounce
    )
    asyncio.run(controller.run(rules, access, place))
    return GOOD
