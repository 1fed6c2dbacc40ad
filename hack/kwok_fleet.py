"""A fleet of simulated nodes for a test of schedulers at scale: Nodes that KWOK keeps Ready, and their NodeLinks.

    pip install . ./hack/lab
    python hack/kwok_fleet.py --nodes 1000 > fleet.json
    kubectl apply --server-side -f fleet.json

The Nodes offer the resources of the machine model. The reports are those of its agent, in a fabric of scalable units
with a leaf switch for each rail. The controller in the cluster makes HyperNodes and labels of them, as of real nodes.
KWOK manages a Node with the annotation ``kwok.x-k8s.io/node: fake`` (KWOK, "Manage nodes"); the taint of the same name
keeps real pods away. Write the fleet again with a fault, and apply it: the controller sees the changed reports.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nodeagent.agent_config import Config
from nodeagent.cluster.node_report import body, report
from nodeagent.commands.scan.listing import scan_once
from nodeagent.facts.inventory import Inventory
from nodeagent_lab.sim.machine import Machine
from nodeagent_lab.sim.machine.blueprint import ModelError
from nodeagent_lab.sim.simulated_fabric import Fabric

KWOK = "kwok.x-k8s.io/node"
NAMESPACE = "nodeagent"
AT = 1_767_225_600.0
"""2026-01-01T00:00:00Z, so that two runs write the same reports."""


def offered(machine: Machine) -> dict[str, str]:
    """The resources that an agent with the default configuration offers on this machine, with their amounts."""
    with tempfile.TemporaryDirectory() as folder:
        machine.write(Path(folder))
        view = asyncio.run(scan_once(Config(), Path(folder)))
    return {name: str(sum(len(entry.ids) for entry in devices)) for name, devices in view.resources}


def node(name: str, resources: dict[str, str]) -> dict[str, Any]:
    """One Node as KWOK manages it. The label keeps the agent's DaemonSet away: its report is in the fleet."""
    amounts = {"cpu": "224", "memory": "2Ti", "pods": "110", **resources}
    labels = {
        "kubernetes.io/hostname": name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
        "nodeagent.io/agent": "false",
        "type": "kwok",
    }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels, "annotations": {KWOK: "fake"}},
        "spec": {"taints": [{"key": KWOK, "value": "fake", "effect": "NoSchedule"}]},
        "status": {"allocatable": amounts, "capacity": amounts, "phase": "Running"},
    }


def fleet(nodes: int, model: str, wrong_cables: int, dead_switches: int) -> Iterator[dict[str, Any]]:
    """The Nodes, then their NodeLinks.

    ``wrong_cables``: so many of the first nodes have one cable in the second unit. ``dead_switches``: so many leaf
    switches of the last unit, from the last rail on, have neither carrier nor LLDP.
    """
    machine = Machine.load(model)
    resources, fabric = offered(machine), Fabric(nodes, machine)
    for number in range(wrong_cables):
        rail = number % len(fabric.rails)
        fabric.plug(fabric.nodes[number], rail, fabric.leaf(1, rail))
    for rail in range(len(fabric.rails) - dead_switches, len(fabric.rails)):
        fabric.stop_frames(fabric.leaf(fabric.units - 1, rail))
    rails = {address: number for number, address in enumerate(fabric.rails)}
    for name in fabric.nodes:
        yield node(name, resources)
    for name in fabric.nodes:
        inventory = Inventory()
        inventory.publish("pci", **fabric.facts(name))
        reported = body(report(inventory.snapshot, name, rails, None, now=AT, namespace=NAMESPACE), None)
        yield {"apiVersion": "nodeagent.io/v1alpha1", "kind": "NodeLinks", **reported}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--machine", default="dgx-h100", help="a machine model of `nodeagent demo --machine`")
    parser.add_argument("--wrong-cables", type=int, default=0, metavar="N")
    parser.add_argument("--dead-switches", type=int, default=0, metavar="N")
    options = parser.parse_args()
    if options.nodes < 1:
        parser.error("--nodes must be 1 or more")
    if not 0 <= options.wrong_cables <= options.nodes:
        parser.error("--wrong-cables must be 0 to the number of nodes")
    try:
        rails = len(Fabric(1, Machine.load(options.machine)).rails)
    except (ModelError, OSError) as error:
        parser.error(f"--machine: {error}")
    if not 0 <= options.dead_switches <= rails:
        parser.error(f"--dead-switches must be 0 to {rails}, the leaf switches of a unit")
    objects = fleet(options.nodes, options.machine, options.wrong_cables, options.dead_switches)
    sys.stdout.write('{"apiVersion": "v1", "kind": "List", "items": [\n')
    for number, one in enumerate(objects):
        sys.stdout.write(",\n" * bool(number) + json.dumps(one))
    sys.stdout.write("\n]}\n")


if __name__ == "__main__":
    main()
