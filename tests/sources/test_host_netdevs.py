"""Which netdevs the host itself needs for the addresses of its Node, on drawn trees."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from msgspec.structs import replace

from nodeagent.agent_config import Config
from nodeagent.discovery import Discovery
from nodeagent.facts.inventory import Inventory
from nodeagent.host.sysfs import Tree
from nodeagent.sources.pci_source import scan, sweep_links
from tests.support.drawn_trees import Machine, routes

NIC, OTHER = "0000:1a:00.0", "0000:2a:00.0"
ON_LINK = "{}\t{}\t00000000\t{}\t0\t0\t100\t{}\t0\t0\t0"
"""A network of a netdev: 0012000A is 10.0.18.0 as a machine with the lowest byte first prints it."""


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    machine = Machine(tmp_path)
    for address, name in ((NIC, "ens1"), (OTHER, "ens2")):
        machine.function(address)
        machine.netdev(name, address)
    return machine


def networks(*rows: tuple[str, str, str], flags: str = "0001", default: str = "") -> str:
    return "\n".join(
        [routes(*default.split()), *(ON_LINK.format(name, net, flags, mask) for name, net, mask in rows)]
    )


def of_node(machine: Machine, *addresses: str) -> list[str]:
    return [link.netdev for link in scan(Tree(machine.root), addresses).links if link.node_address]


def test_the_nic_in_the_network_of_the_address_is_the_nodes(machine: Machine) -> None:
    machine.draw(
        "/proc/net/route", networks(("ens1", "0012000A", "00FFFFFF"), ("ens2", "0013000A", "00FFFFFF"))
    )
    assert of_node(machine, "10.0.18.7") == ["ens1"]
    assert of_node(machine, "10.0.19.7") == ["ens2"]
    assert of_node(machine, "10.0.18.7", "10.0.19.7") == ["ens1", "ens2"]
    assert of_node(machine, "10.0.20.7") == []
    assert of_node(machine) == []


def test_the_longest_network_counts_and_all_netdevs_in_it(machine: Machine) -> None:
    inside = (("ens1", "0000000A", "000000FF"), ("ens2", "0012000A", "00FFFFFF"))
    machine.draw("/proc/net/route", networks(*inside))
    assert of_node(machine, "10.0.18.7") == ["ens2"]
    both = (("ens1", "0012000A", "00FFFFFF"), ("ens2", "0012000A", "00FFFFFF"))
    machine.draw("/proc/net/route", networks(*both))
    assert of_node(machine, "10.0.18.7") == ["ens1", "ens2"]


def test_beside_a_nic_of_the_network_with_the_default_route_no_other_is_taken(machine: Machine) -> None:
    both = (("ens1", "0012000A", "00FFFFFF"), ("ens2", "0012000A", "00FFFFFF"))
    machine.draw("/proc/net/route", networks(*both, default="ens2"))
    assert of_node(machine, "10.0.18.7") == []
    machine.draw("/proc/net/route", networks(both[0], default="ens2"))
    assert of_node(machine, "10.0.18.7") == ["ens1"], "the default route goes through another network"


def test_an_address_above_a_bond_is_followed_down_and_a_sweep_keeps_it(machine: Machine) -> None:
    machine.netdev("bond0", **{"bonding/mode": "802.3ad 4"})
    machine.lower("bond0", "ens1")
    machine.draw("/proc/net/route", networks(("bond0", "0012000A", "00FFFFFF")))
    facts = scan(Tree(machine.root), ["10.0.18.7"])
    assert [(link.netdev, link.node_address, link.default_route) for link in facts.links] == [
        ("ens1", True, False), ("ens2", False, False),
    ]  # fmt: skip
    before = tuple(replace(link, carrier=None) for link in facts.links)
    assert sweep_links(Tree(machine.root), facts.functions, before) == facts.links


def test_the_kernel_names_the_netdev_of_an_ipv6_address(machine: Machine) -> None:
    row = "fd000000000000000000000000000012 03 40 00 80 {:>8}"
    machine.draw(
        "/proc/net/if_inet6", "\n".join([row.format("ens2"), "x y", row.format("ens1").replace("12 ", "13 ")])
    )
    assert of_node(machine, "fd00::12") == ["ens2"]
    assert of_node(machine, "fd00::14") == []


@pytest.mark.parametrize("address", ["", "node-7", "10.0.18", "10.0.18.7/24"])
def test_a_text_that_is_no_address_takes_no_nic(machine: Machine, address: str) -> None:
    machine.draw("/proc/net/route", networks(("ens1", "0012000A", "00FFFFFF")))
    assert of_node(machine, address) == []
    assert of_node(machine, address, "10.0.18.7") == ["ens1"]


@pytest.mark.parametrize(
    "row",
    [
        "ens1",
        "ens1\tno\t00000000\t0001\t0\t0\t0\t00FFFFFF",
        "ens1\t1112000A00\t00000000\t0001\t0\t0\t0\tFFFFFFFFFF",
    ],
)
def test_a_malformed_row_hides_no_other(machine: Machine, row: str) -> None:
    machine.draw("/proc/net/route", f"{networks(('ens2', '0012000A', '00FFFFFF'))}\n{row}\n")
    assert of_node(machine, "10.0.18.7") == ["ens2"]


def test_a_reject_route_and_one_by_a_gateway_are_no_network_of_a_nic(machine: Machine) -> None:
    net = ("ens1", "0012000A", "00FFFFFF")
    machine.draw("/proc/net/route", networks(net, flags="0201"))
    assert of_node(machine, "10.0.18.7") == []
    machine.draw("/proc/net/route", networks(net).replace("0012000A\t00000000", "0012000A\t0100000A"))
    assert of_node(machine, "10.0.18.7") == []


async def test_the_agent_knows_the_addresses_by_a_variable(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.draw("/proc/net/route", networks(("ens2", "0012000A", "00FFFFFF")))
    monkeypatch.setenv("NODE_IPS", "10.0.18.7,fd00::12")
    inventory = Inventory()
    task = asyncio.create_task(Discovery(inventory, Config, machine.root).run())
    try:
        async with asyncio.timeout(30):
            while not inventory.snapshot.links:
                await inventory.changed(inventory.snapshot.revision)
        assert [link.netdev for link in inventory.snapshot.links if link.node_address] == ["ens2"]
        assert inventory.snapshot.whole_nics.keys() == {NIC}
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
