"""`nodeagent demo`: the options."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from nodeagent.console.options import GOOD, USAGE, Add

MODEL_MAX = 1 << 20
"""Bytes; the largest model of the package has 4 KiB."""


UNIT_NODES = 2
"""The nodes of a unit on the machines that ``--node`` writes."""


def add(add: Add) -> None:
    parser = add(
        "demo",
        _demo,
        "show the agent on a simulated machine with a stand-in kubelet, or the controller on a simulated fabric",
        "Nothing on this machine is changed: the simulated one is a temporary folder. The kubelet is a stand-in that\n"
        "behaves like the real one, including its races.\n\n"
        "With --nodes, a fabric instead: simulated nodes and switches, a stand-in API server, and the real\n"
        "controller, which turns the reports of the nodes into HyperNodes and labels. With --dra, an agent that\n"
        "publishes ResourceSlices, and claims that a stand-in of the scheduler allocates.",
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--nodes",
        type=int,
        metavar="COUNT",
        help="show a fabric with this number of nodes, in scalable units of 32",
    )
    what.add_argument("--dra", action="store_true", help="show ResourceSlices and claims on one machine")
    parser.add_argument(
        "--machine", default="dgx-h100", metavar="NAME|FILE", help="the machine model (default: %(default)s)"
    )
    parser.add_argument(
        "--ui",
        action="store_true",
        help="instead of the steps: the pages in a browser, with buttons for the faults (docs/ui.md)",
    )
    parser.add_argument(
        "--once",
        action="store_true",
        help="end after the last step, as without a terminal",
    )
    parser.add_argument(
        "--write",
        type=Path,
        metavar="DIR",
        help="write the files of the simulated machine to DIR and end, for `--root DIR` of the other verbs; with "
        "--nodes the NodeLinks of the fabric, for `nodeagent plan --from`",
    )
    parser.add_argument(
        "--no-rdma",
        action="store_true",
        help="with --write: NICs without RDMA, so that a real kubelet gives pods no device node that does not exist",
    )

    parser.add_argument(
        "--node",
        metavar="NAME",
        help="with --write: the machine of this node, with UUIDs of its own and leaf switches by the number at the end "
        "of the name, in DIR/.nodeagent/lldp.json",
    )
    parser.add_argument(
        "--unit-nodes",
        type=int,
        metavar="COUNT",
        help=f"with --node: the nodes that share their leaf switches (default: {UNIT_NODES})",
    )
    parser.add_argument(
        "--faults",
        type=Path,
        metavar="FILE",
        help="with --write: stay up and apply the faults that FILE names, such as nic3=down, gpu2=xid79 or "
        "gpu2=thermal_slowdown, one a line or with commas between them; a fault that is removed from FILE ends",
    )


def _demo(options: argparse.Namespace) -> int:
    from nodeagent_lab.demo import shows

    _check_model(options.machine)
    if options.nodes is not None and (fault := _fault_of(options.nodes)):
        print(f"nodeagent: {fault}", file=sys.stderr)
        return USAGE
    unit_nodes = UNIT_NODES if options.unit_nodes is None else options.unit_nodes
    if unit_nodes < 1:
        print("nodeagent: --unit-nodes must be 1 or more", file=sys.stderr)
        return USAGE
    if (unused := _unused(options)) is not None:
        print(f"nodeagent: {unused}", file=sys.stderr)
        return USAGE
    if options.write is not None and options.nodes is not None:
        from nodeagent_lab.demo.sample_reports import write_reports

        print(write_reports(options.machine, options.write, options.nodes))
        return GOOD
    if options.write is not None:
        from nodeagent_lab.demo.simulated_node import SimulatedNode

        node = SimulatedNode(
            options.machine, rdma=not options.no_rdma, node=options.node, unit_nodes=unit_nodes
        )
        print(node.write(options.write), flush=True)
        return GOOD if options.faults is None else shows.follow(node, options.write, options.faults)
    if options.ui and options.dra:
        print("nodeagent: the demo of claims has no page: give --ui without --dra", file=sys.stderr)
        return USAGE
    return shows.main(
        options.machine,
        once=options.once or not (options.ui or sys.stdout.isatty()),
        nodes=options.nodes,
        by_claim=options.dra,
        ui=options.ui,
    )


def _unused(options: argparse.Namespace) -> str | None:
    """Return the sentence about an option that would change nothing beside the others."""
    machine = options.node is not None or options.faults is not None or options.no_rdma
    if machine and (options.write is None or options.nodes is not None):
        return "--node, --faults and --no-rdma are for the machine that --write writes; give --write without --nodes"
    if options.unit_nodes is not None and options.node is None:
        return "--unit-nodes is for the place of one node; give --node NAME too"
    if options.write is not None and (options.dra or options.ui or options.once):
        return "--write DIR writes files and shows nothing; leave --dra, --ui and --once out"
    return None


def _fault_of(nodes: int) -> str | None:
    from nodeagent_lab.demo.fabric_show import fault_of

    return fault_of(nodes)


def _check_model(machine: str) -> None:
    """Raises ``UserFileError`` for a name of no machine, and for a file that is no machine model."""
    from nodeagent.console import user_files
    from nodeagent_lab.sim.machine import ModelError, blueprint

    if not blueprint.is_file(machine):
        try:
            blueprint.load(machine)
        except ModelError as error:
            raise user_files.UserFileError(machine, str(error), "the name of a machine, or a file") from error
        return
    expected = "a machine model; nodeagent_lab/sim/machines has examples"
    content = user_files.read_user_file(machine, expected, MODEL_MAX)
    user_files.refuse_unless_utf8(content, machine, expected)
    try:
        blueprint.parse(content.decode(), machine)
    except (ModelError, RecursionError) as error:
        raise user_files.UserFileError(machine, str(error).removeprefix(f"{machine}: "), expected) from error
