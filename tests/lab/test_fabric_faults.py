"""The buttons of the fleet's demo: each changes what agents report, and its second press takes that back."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import pytest

from nodeagent.facts.model import State
from nodeagent_lab.demo import fabric_faults
from nodeagent_lab.demo.control_plane import DemoCluster
from nodeagent_lab.demo.fabric_faults import FLAPS, FabricFaults
from nodeagent_lab.sim.machine import Machine
from nodeagent_lab.sim.simulated_fabric import Fabric


class Agents:
    """The nodes of the demo: each change of the state of a link that a report would show."""

    def __init__(self) -> None:
        self.fabric = Fabric(8, Machine.load("dgx-h100"))
        self.replicas: list[Any] = []
        self.seen: list[list[str]] = []
        self.dark: set[str] = set()

    def rescan(self, nodes: Iterable[str]) -> None:
        for node in nodes:
            self.seen.append(faulty(self.fabric, node))

    async def power_off(self, node: str) -> None:
        pass

    def boot(self, node: str) -> None:
        self.rescan([node])

    async def cut_power(self, nodes: Iterable[str]) -> None:
        self.dark.update(nodes)

    def give_power(self, nodes: Iterable[str]) -> None:
        self.dark.difference_update(nodes)


def faulty(fabric: Fabric, node: str) -> list[str]:
    functions: Any = fabric.facts(node)["functions"]
    return [
        f"{one.health.state} {one.health.reasons[0].key}"
        for one in functions
        if one.health.state != State.HEALTHY
    ]


@pytest.fixture
def agents() -> Agents:
    return Agents()


@pytest.fixture
def buttons(agents: Agents, monkeypatch: pytest.MonkeyPatch) -> FabricFaults:
    monkeypatch.setattr(fabric_faults, "FLAP_S", 0.0)
    monkeypatch.setattr(fabric_faults, "REBOOT_S", 0.0)
    return FabricFaults(cast(DemoCluster, agents))


@pytest.mark.parametrize(
    ("key", "reported"),
    [
        ("pull", ["down carrier_down"]),
        ("light", ["degraded optics_rx_power"]),
        ("pcie", ["degraded pcie_width"]),
        ("switch", ["down carrier_down"]),
    ],
)
async def test_a_button_makes_a_fault_and_takes_it_back(
    key: str, reported: list[str], agents: Agents, buttons: FabricFaults
) -> None:
    fabric = agents.fabric
    before = {node: fabric.facts(node) for node in fabric.nodes}
    (fault,) = (one for one in buttons.all() if one.key == key)
    await fault.press()
    assert agents.seen
    assert all(seen == reported for seen in agents.seen)
    await fault.press()
    assert not agents.seen[-1]
    assert {node: fabric.facts(node) for node in fabric.nodes} == before


async def test_a_link_that_flaps_is_reported_down_and_up_each_time(
    agents: Agents, buttons: FabricFaults
) -> None:
    (flap,) = (one for one in buttons.all() if one.key == "flap")
    await flap.press()
    assert agents.seen == [*([["down carrier_down"], []] * FLAPS), ["degraded flapping"]]
    await flap.press()
    assert not agents.seen[-1]


async def test_power_is_cut_of_a_node_and_of_all_nodes_at_a_leaf_and_comes_back(
    agents: Agents, buttons: FabricFaults
) -> None:
    dead, rack = (one for one in buttons.all() if one.key in ("dead", "rack"))
    await dead.press()
    assert len(agents.dark) == 1
    await rack.press()
    assert set(agents.fabric.at(agents.fabric.leaf(1, 0))) < agents.dark
    await dead.press()
    await rack.press()
    assert not agents.dark


async def test_each_button_is_there_once_and_says_what_it_does(buttons: FabricFaults) -> None:
    keys = [fault.key for fault in buttons.all()]
    assert len(keys) == len({*keys}) == len({fault.title for fault in buttons.all()})
