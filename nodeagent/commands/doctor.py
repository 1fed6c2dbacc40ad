"""The verb `doctor`: find what is wrong with this node, and what to do."""

from __future__ import annotations

import argparse
import os
import sys
from functools import partial
from pathlib import Path

from nodeagent.console.json_document import json_document
from nodeagent.console.log_lines import log_to_stderr
from nodeagent.console.options import (
    FAILED,
    GOOD,
    KUBELET_DIR,
    Add,
    config_option,
    device_plugins_option,
    json_option,
    kubelet_dir_option,
    seconds,
)
from nodeagent.console.terminal import colored, screen


def add(add: Add) -> None:
    parser = add(
        "doctor",
        _doctor,
        "check this node: findings, why each matters and what to do",
        "Checks kernel, NICs, GPUs, container runtime, kubelet and rights, and changes nothing. Each finding has a\n"
        "reason and a remedy (docs/reference/doctor.md). The exit code is 1 if something must be fixed.\n"
        "Run it where the agent runs:\n"
        "  kubectl -n nodeagent exec ds/nodeagent -- nodeagent doctor\n"
        "The cluster is checked too: in a pod with a service account, with $KUBECONFIG, or with --kubeconfig.",
    )
    config_option(parser)
    json_option(parser)
    kubelet_dir_option(parser, default=None, otherwise=f"{KUBELET_DIR}, or the one below --root")
    device_plugins_option(parser)
    parser.add_argument(
        "--kubeconfig",
        type=Path,
        metavar="FILE",
        help="check this cluster too: rights, CRDs, schedulers, the Node",
    )
    parser.add_argument("--context", metavar="NAME", help="that of the kubeconfig (default: its current one)")
    parser.add_argument(
        "--node",
        default=os.environ.get("NODE_NAME"),
        metavar="NAME",
        help="name of this machine's Node (default: $NODE_NAME)",
    )
    parser.add_argument(
        "--role",
        choices=("agent", "controller"),
        help="compare the caller's rights with the needs of this role (default: the role of the service account;\n"
        "with a kubeconfig the rights of both service accounts are checked, which needs an administrator)",
    )
    parser.add_argument(
        "--wait",
        type=seconds,
        default=0.0,
        metavar="SECONDS",
        help="receive LLDP for this long, or until every link has a neighbor (default: 0; a switch sends every 30 s)",
    )
    parser.add_argument(
        "--timeout",
        type=seconds,
        metavar="SECONDS",
        help="time limit of one check; a check that takes longer is a finding (default: 15)",
    )


def _doctor(options: argparse.Namespace) -> int:
    from nodeagent import doctor

    log_to_stderr(options.log_level or "error")
    timeout_s = doctor.TIMEOUT_S if options.timeout is None else options.timeout
    where = doctor.ClusterOptions(options.kubeconfig, options.node, options.role, context=options.context)
    place = doctor.DoctorOptions(
        options.root,
        options.config,
        options.kubelet_dir,
        options.device_plugins_dir,
        options.wait,
        timeout_s,
        where,
    )
    report = doctor.examine(place)
    if options.json:
        print(json_document(doctor.as_object(report.findings), options.root, None))
    else:
        on = screen()
        print(doctor.finding_table(doctor.TOPICS, report.findings, on.width, partial(colored, on=on)))
    code = GOOD if report.good else FAILED
    if report.hung:
        sys.stdout.flush()
        os._exit(code)  # the interpreter would wait for the hung threads
    return code
