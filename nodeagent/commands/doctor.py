"""What is wrong here, and what to do."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from nodeagent.commands.options import (
    FAILED,
    GOOD,
    Add,
    config_option,
    json_option,
    log_to_stderr,
    seconds,
    terminal_width,
)


def add(add: Add) -> None:
    parser = add(
        "doctor",
        _doctor,
        "check this node, and say what to do about what is wrong",
        "Looks at kernel, NICs, GPUs, container runtime, kubelet and rights, and changes nothing. Each finding says\n"
        "what is, why it matters and what to do; docs/doctor.md lists them all. Exit code 1 where something must be\n"
        "fixed. Run it where the agent runs:\n"
        "  kubectl exec ds/nodeagent -- nodeagent doctor --root /host --config /etc/nodeagent/nodeagent.yaml\n"
        "The cluster is asked as well in a pod with a service account, by $KUBECONFIG, or by --kubeconfig.",
    )
    config_option(parser)
    json_option(parser)
    parser.add_argument(
        "--kubelet-dir",
        type=Path,
        metavar="DIR",
        help="the kubelet's folder (default: /var/lib/kubelet, or the one below --root)",
    )
    parser.add_argument(
        "--kubeconfig",
        type=Path,
        metavar="FILE",
        help="ask this cluster too: rights, CRDs, schedulers, the Node",
    )
    parser.add_argument(
        "--node",
        default=os.environ.get("NODE_NAME"),
        metavar="NAME",
        help="what this machine is called in the cluster (default: $NODE_NAME)",
    )
    parser.add_argument(
        "--role",
        choices=("agent", "controller"),
        help="whose needs the rights of whoever asks are held against (default: by the service account; with a\n"
        "kubeconfig the rights of both accounts are asked for, which takes an administrator)",
    )
    parser.add_argument(
        "--wait",
        type=seconds,
        default=0.0,
        metavar="SECONDS",
        help="listen to LLDP for so long, or until every link was heard (default: 0; a switch speaks every 30 s)",
    )
    parser.add_argument(
        "--timeout",
        type=seconds,
        metavar="SECONDS",
        help="how long one check may take; one that takes longer is a finding (default: 15)",
    )


def _doctor(options: argparse.Namespace) -> int:
    from nodeagent import doctor

    log_to_stderr("error")
    timeout_s = doctor.TIMEOUT_S if options.timeout is None else options.timeout
    where = doctor.Where(options.kubeconfig, options.node, options.role)
    place = doctor.Place(options.root, options.config, options.kubelet_dir, options.wait, timeout_s, where)
    report = doctor.examine(place)
    if options.json:
        print(doctor.as_json(report.findings))
    else:
        print(doctor.as_table(doctor.TOPICS, report.findings, terminal_width()))
    code = GOOD if report.good else FAILED
    if report.hung:
        sys.stdout.flush()
        os._exit(code)  # the interpreter would wait for what hangs
    return code
