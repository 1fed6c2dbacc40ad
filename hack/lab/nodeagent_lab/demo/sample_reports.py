"""Sample NodeLinks for `nodeagent plan --from`: the reports of a simulated fabric with one wrong cable."""

from __future__ import annotations

from pathlib import Path

import yaml

from nodeagent.cluster.node_report import body, report
from nodeagent.facts.inventory import Inventory
from nodeagent_lab.demo.control_plane import NAMESPACE
from nodeagent_lab.demo.fabric_show import fabric_of

FILE = "nodelinks.yaml"
_NOW = 1_767_225_600.0
"""2026-01-01T00:00:00Z, so that two runs write the same file."""
_WRONG_RAIL = 3


def write_reports(machine: str, folder: Path, nodes: int) -> str:
    """Write the reports of ``nodes`` nodes to ``FILE`` in ``folder``. Returns what was written, in words."""
    fabric = fabric_of(machine, nodes)
    rail = min(_WRONG_RAIL, len(fabric.rails) - 1)
    node, wrong = fabric.at(fabric.leaf(0, 0))[-1], fabric.leaf(1, rail)
    fabric.plug(node, rail, wrong)
    rails = {address: number for number, address in enumerate(fabric.rails)}
    items = []
    for name in fabric.nodes:
        inventory = Inventory()
        inventory.publish("pci", **fabric.facts(name))
        links = report(inventory.snapshot, name, rails, None, now=_NOW, namespace=NAMESPACE)
        items.append(body(links, None))
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / FILE
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    listed = {"apiVersion": "v1", "kind": "List", "items": items}
    path.write_text(yaml.dump(listed, Dumper=dumper, sort_keys=False))
    return (
        f"{path}: the NodeLinks of {nodes} nodes; rail {rail} of {node} is plugged into {wrong}.\n"
        f"Next: nodeagent plan --from {path}"
    )
