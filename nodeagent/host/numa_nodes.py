"""The NUMA nodes that are as near to a device as its own, by the rule of KEP-6072.

The kernel names one NUMA node for a PCI device. Where a socket has several, its other nodes at the least distance in
the firmware's table (ACPI SLIT) serve the device as well.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress

from nodeagent.host.sysfs import SysfsError, Tree

_NODES = "/sys/devices/system/node"
CPUS = "/sys/devices/system/cpu"


def near_nodes(tree: Tree) -> Mapping[int, tuple[int, ...]]:
    """Return the nodes near each NUMA node: itself, then the others in order. A node whose distances cannot be read is
    near to itself alone."""
    names: list[re.Match[str] | None] = []
    with suppress(SysfsError):
        names = [re.fullmatch(r"node([0-9]+)", name) for name in tree.names(_NODES)]
    nodes = sorted(int(name[1]) for name in names if name is not None)
    sockets = {node: _socket(tree, node) for node in nodes}
    return {node: _near(node, nodes, _distances(tree, node), sockets) for node in nodes}


def _near(
    node: int, nodes: list[int], distances: list[int], sockets: Mapping[int, int | None]
) -> tuple[int, ...]:
    if len(distances) != len(nodes):
        return (node,)
    by_node = dict(zip(nodes, distances, strict=True))
    del by_node[node]
    least = min(by_node.values(), default=0)
    # A node without CPUs, such as the memory of a GPU, has no known socket and counts.
    others = (
        other
        for other, distance in by_node.items()
        if distance == least and (None in (sockets[node], sockets[other]) or sockets[node] == sockets[other])
    )
    return (node, *others)


def _distances(tree: Tree, node: int) -> list[int]:
    """The distances to each node in their order; empty if they cannot be read."""
    with suppress(SysfsError, ValueError):
        return [int(number) for number in (tree.text(f"{_NODES}/node{node}/distance") or "").split()]
    return []


def _socket(tree: Tree, node: int) -> int | None:
    """The socket of the first CPU of a node; ``None`` without a CPU."""
    with suppress(SysfsError, ValueError):
        first = re.match(r"[0-9]+", tree.text(f"{_NODES}/node{node}/cpulist") or "")
        if first is not None:
            return tree.integer(f"{CPUS}/cpu{first[0]}/topology/physical_package_id")
    return None
