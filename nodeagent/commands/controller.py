"""`nodeagent controller`: the options, and the start of the controller."""

from __future__ import annotations

import argparse
import asyncio
from functools import partial
from pathlib import Path

from nodeagent.console.log_lines import log_to_stderr
from nodeagent.console.options import GOOD, Add, address, seconds

LEASE_MIN_S, LEASE_MAX_S = 3.0, 3600.0
"""A third of the lease is the time within which a leader's last write must end: at least 1 s."""


def add(add: Add) -> None:
    parser = add(
        "controller",
        _controller,
        "run the controller: write HyperNodes and node labels from the reports of all nodes",
        "Reads NodeLinks, Nodes and HyperNodes. Writes HyperNodes with our source label, and our labels on Nodes. Of\n"
        "several replicas one leads and writes. `nodeagent plan` prints what it would write. A change of the\n"
        "configuration or of its topology file, or SIGHUP, applies it. A file with errors is refused, and the running\n"
        "configuration stays.",
    )
    parser.add_argument(
        "--fabric",
        type=Path,
        metavar="FILE",
        help="the configuration of the fabric, with the fragments in the folder beside it (fabric.d/*.yaml of "
        "fabric.yaml), or a folder of fragments (default: none; the tree is built from LLDP alone)",
    )
    parser.add_argument(
        "--kubeconfig",
        type=Path,
        metavar="FILE",
        help="the access to the API server (default: the pod's service account, otherwise $KUBECONFIG)",
    )
    parser.add_argument(
        "-n",
        "--namespace",
        metavar="NAMESPACE",
        help="the namespace of the NodeLinks and the Lease (default: the pod's own)",
    )
    parser.add_argument(
        "--listen",
        type=address,
        default=":9809",
        metavar="[HOST]:PORT",
        help="the address of /metrics, /healthz and /readyz (default: %(default)s)",
    )
    parser.add_argument(
        "--lease",
        type=_lease,
        default=15.0,
        metavar="SECONDS",
        help="seconds without a renewal after which another replica leads; a leader that cannot renew stops after two "
        "thirds of it (default: %(default)g)",
    )


def _lease(text: str) -> float:
    lease = seconds(text)
    if not LEASE_MIN_S <= lease <= LEASE_MAX_S:
        raise argparse.ArgumentTypeError(f"give {LEASE_MIN_S:g} to {LEASE_MAX_S:g} seconds, not {text}")
    return lease


def _controller(options: argparse.Namespace) -> int:
    from nodeagent import controller
    from nodeagent.config.followed_configuration import read_at_start
    from nodeagent.controller_config import read_fabric
    from nodeagent.kube.access import in_cluster, kubeconfig

    file: Path | None = options.fabric
    config, topology = read_fabric(None) if file is None else read_at_start(file, partial(read_fabric, file))
    log_to_stderr(options.log_level or "info", daemon=True)
    access = None if options.kubeconfig else in_cluster()
    access = access or kubeconfig(options.kubeconfig)
    settings = controller.ReplicaSettings(
        options.namespace or access.namespace,
        controller.identity(),
        options.listen,
        duration_s=options.lease,
        renew_s=options.lease * 2 / 3,
        retry_s=options.lease * 2 / 15,
    )
    asyncio.run(controller.run_controller(config, access, settings, topology, options.fabric))
    return GOOD
