"""Four racks of 18 trays with 4 GPUs each, from the GPU driver of a simulated tray to HyperNodes and labels."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import structs

from nodeagent.agent_config import load
from nodeagent.cluster.node_report import body, report
from nodeagent.commands.scan.listing import scan_machine
from nodeagent.fabric.fabric_settings import HysteresisSettings, LabelSettings, TierSettings
from nodeagent.fabric.nodelinks import NodeLinks
from nodeagent.facts.model import Identifier, Neighbor, Snapshot
from nodeagent.health.service import HealthService
from nodeagent.host.recorded_gpus import RecordedGpuDriver
from nodeagent.sources.gpu_publisher import GpuPublisher
from nodeagent.sources.nvml_session import DriverReading
from nodeagent_lab.sim.apiserver import ApiServer
from nodeagent_lab.sim.machine import Machine
from tests.controller.test_controller import RULES, labels, running
from tests.support.volcano_rules import VolcanoTree

RACKS, TRAYS, GPUS = 4, 18, 4
QUICK = HysteresisSettings(
    move_seconds=1.0,
    settle_seconds=0.0,
    grace_seconds=1.0,
    hold_seconds=0.0,
    hold_percent=100,
    debounce_seconds=0.2,
)
NVLINK = structs.replace(
    RULES,
    hysteresis=QUICK,
    tiers=TierSettings(nvlink="auto"),
    labels=LabelSettings(presets=("topograph", "gpu-clique")),
)
TIER = "topology.nodeagent.io/tier-{}".format


def cluster_uuid(rack: int) -> str:
    return f"9c6f5af3-4f59-4f8d-bb27-{rack:012x}"


class Racks:
    """All trays: one simulated machine, of which the driver is read once for each of them.

    ``rack`` is that of each node; ``plain`` are nodes whose GPUs are in no domain.
    """

    def __init__(self, root: Path) -> None:
        self.machine = Machine.load("gb200-nvl72-tray")
        self.machine.write(root)
        self.root = root
        self.rack = {f"r{rack}-t{tray:02}": rack for rack in range(RACKS) for tray in range(TRAYS)}
        self.plain: set[str] = set()
        view = asyncio.run(
            scan_machine(load("apiVersion: nodeagent.io/v1alpha1\nkind: NodeAgentConfig\n", name="c"), root)
        )
        self.snapshot = view.snapshot
        self.rails = {
            link.pci_address: rail
            for rail, link in enumerate(link for link in view.snapshot.links if not link.default_route)
        }
        self.reports: dict[str, NodeLinks] = {}

    def nodes(self, rack: int) -> list[str]:
        return [node for node, of in self.rack.items() if of == rack]

    def report(self, node: str, clique: int) -> dict[str, Any]:
        """The report of the agent on a tray after two readings of its driver."""
        rack = self.rack[node]
        self.machine.join_nvlink_domain("" if node in self.plain else cluster_uuid(rack), clique)
        driver = RecordedGpuDriver(self.root)
        driver.open()
        published: list[Any] = []
        publisher = GpuPublisher(HealthService())
        publisher.publish_to(published.append)
        for _ in range(2):
            publisher.take_reading(DriverReading("580.95.05", driver.gpus(), {}))
        driver.close()
        facts = structs.replace(
            self.snapshot, gpus=published[-1], neighbors=tuple(self._neighbors(rack, node))
        )
        assert len(facts.gpus) == GPUS
        made = report(facts, node, self.rails, self.reports.get(node), now=0.0, namespace="nodeagent")
        self.reports[node] = made
        written = json.loads(msgspec.json.encode(body(made, None)))
        return {"apiVersion": "nodeagent.io/v1alpha1", "kind": "NodeLinks", **written}

    def _neighbors(self, rack: int, node: str) -> Iterator[Neighbor]:
        for link in self.snapshot.links:
            rail = self.rails.get(link.pci_address)
            if rail is not None:
                yield Neighbor(
                    link.netdev,
                    Identifier("mac", f"02:00:00:00:{rack:02x}:{rail:02x}"),
                    Identifier("ifname", f"Ethernet{node[-2:]}"),
                    system_name=f"r{rack}-leaf{rail}",
                    confirmed=True,
                )


def hypernodes(server: ApiServer, tier: int) -> dict[str, frozenset[tuple[str, str]]]:
    return {
        one["metadata"]["name"]: frozenset(
            (member["type"], member["selector"]["exactMatch"]["name"]) for member in one["spec"]["members"]
        )
        for one in server.objects("hypernodes")
        if one["spec"]["tier"] == tier
    }


def sizes(server: ApiServer, tier: int) -> Counter[int]:
    return Counter(map(len, hypernodes(server, tier).values()))


async def until(good: Callable[[], object], what: str, server: ApiServer) -> None:
    """To look is much work for the loop of the server, so it looks five times a second."""
    for _ in range(200):
        if good():
            return
        await asyncio.sleep(0.2)
    pytest.fail(f"timed out waiting for {what}: {[sizes(server, tier) for tier in (1, 2, 3)]}")


def check_each_write(server: ApiServer, plain: set[str]) -> int:
    """Apply the writes to the HyperNodes again, one after the other. Returns their number."""
    tree, count = VolcanoTree(), 0
    for change in server.store.table("topology.volcano.sh", "hypernodes").history:
        tree.objects[change.key] = json.loads(change.body)
        if change.type == "DELETED":
            del tree.objects[change.key]
        assert not tree.faults(), change
        assert all(nodes.isdisjoint(plain) for nodes in tree.leaves().values())
        count += 1
    return count


@pytest.fixture
def racks(tmp_path: Path) -> Racks:
    return Racks(tmp_path / "tray")


@pytest.mark.slow
async def test_racks_partitions_and_plain_nodes_through_the_whole_chain(racks: Racks) -> None:
    racks.plain = set(racks.nodes(3)[:6])
    server = await ApiServer().start()
    try:
        for node in racks.rack:
            server.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node, "labels": {}}})
            server.put(racks.report(node, 4026))
        async with running(server, NVLINK) as controller:
            await until(
                lambda: sizes(server, 1) == {18: 3, 12: 1} and sizes(server, 2) == {1: 3, 7: 1},
                "the domains",
                server,
            )
            domains = hypernodes(server, 1)
            (mixed,) = (members for members in hypernodes(server, 2).values() if len(members) == 7)
            assert {name for kind, name in mixed if kind == "Node"} == racks.plain
            await until(
                lambda: all(TIER(2) in labels(server, node) for node in racks.rack), "the labels", server
            )
            node, plain = racks.nodes(0)[0], min(racks.plain)
            assert labels(server, node).keys() == {
                TIER(1), TIER(2), "fabric.topograph.run/tier-0", "accelerator.topograph.run/domain",
                "nvidia.com/gpu.clique",
            }  # fmt: skip
            assert labels(server, node)["nvidia.com/gpu.clique"] == f"{cluster_uuid(0)}.4026"
            assert labels(server, plain).keys() == {TIER(2), "fabric.topograph.run/tier-0"}

            for number, node in enumerate(racks.nodes(1)):
                server.put(racks.report(node, 1 + number // 9))
            await until(lambda: sizes(server, 1) == {18: 2, 12: 1, 9: 2}, "two partitions of a rack", server)
            await until(lambda: sizes(server, 2) == {1: 2, 2: 1, 7: 1}, "both below the leaf group", server)
            assert domains.keys() < hypernodes(server, 1).keys()

            def clique() -> str:
                return labels(server, racks.nodes(1)[0])["nvidia.com/gpu.clique"]

            for node in racks.nodes(1):
                server.put(racks.report(node, 7))
            await until(lambda: sizes(server, 1) == {18: 3, 12: 1}, "one partition again", server)
            await until(lambda: sizes(server, 2) == {1: 3, 7: 1}, "one below the leaf group", server)
            await until(lambda: clique().endswith(".7"), "the label of the new clique", server)
            assert not controller.progress.outcome.anomalies
        assert check_each_write(server, racks.plain) > 12
    finally:
        await server.stop()


def test_the_scan_of_a_tray_shows_its_domain(racks: Racks) -> None:
    assert isinstance(racks.snapshot, Snapshot)
    assert {gpu.nvlink_domain for gpu in racks.snapshot.gpus} == {"9c6f5af3-4f59-4f8d-bb27-f3a2a3f1c5aa.4026"}
