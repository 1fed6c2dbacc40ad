"""The NUMA nodes near a device: sockets, distances, nodes without CPUs, unreadable tables."""

from __future__ import annotations

from pathlib import Path

from nodeagent.host.numa_nodes import near_nodes
from nodeagent.host.sysfs import Tree


def machine(root: Path, distances: list[str], sockets: list[int | None]) -> Tree:
    """A machine whose NUMA node n has the CPUs 8n to 8n+7; ``None``: it has none."""
    for node, (row, socket) in enumerate(zip(distances, sockets, strict=True)):
        folder = root / f"sys/devices/system/node/node{node}"
        folder.mkdir(parents=True)
        (folder / "distance").write_text(f"{row}\n")
        (folder / "cpulist").write_text("\n" if socket is None else f"{8 * node}-{8 * node + 7}\n")
        if socket is not None:
            topology = root / f"sys/devices/system/cpu/cpu{8 * node}/topology"
            topology.mkdir(parents=True)
            (topology / "physical_package_id").write_text(f"{socket}\n")
    (root / "sys/devices/system/node").mkdir(parents=True, exist_ok=True)
    return Tree(root)


def test_the_other_half_of_a_socket_is_near(tmp_path: Path) -> None:
    rows = ["10 12 32 32", "12 10 32 32", "32 32 10 12", "32 32 12 10"]
    tree = machine(tmp_path, rows, [0, 0, 1, 1])
    assert near_nodes(tree) == {0: (0, 1), 1: (1, 0), 2: (2, 3), 3: (3, 2)}


def test_the_node_of_another_socket_is_not_near_though_it_is_the_nearest(tmp_path: Path) -> None:
    assert near_nodes(machine(tmp_path, ["10 21", "21 10"], [0, 1])) == {0: (0,), 1: (1,)}


def test_the_memory_of_a_gpu_is_near_to_the_cpus_beside_it(tmp_path: Path) -> None:
    """A GB200 reports the node of its memory, which has no CPUs."""
    tree = machine(tmp_path, ["10 40 80", "40 10 120", "80 120 10"], [0, 1, None])
    assert near_nodes(tree)[2] == (2, 0)


def test_a_table_that_cannot_be_read_leaves_each_node_alone(tmp_path: Path) -> None:
    assert near_nodes(machine(tmp_path, ["10 x", "10"], [0, 0])) == {0: (0,), 1: (1,)}


def test_a_machine_without_numa_has_no_node(tmp_path: Path) -> None:
    assert near_nodes(machine(tmp_path, [], [])) == {}
