"""The rails in the report of a node, read as those of a stranger."""

from __future__ import annotations

from nodeagent.cluster.agent_tasks import NodeAccess, reported_rails
from nodeagent.cluster.node_report import rails_of
from nodeagent.fabric.nodelinks import NodeLink, NodeLinks
from nodeagent.kinds.rail_numbers import Rail
from nodeagent.kinds.resource_settings import GpuMemResource, VfResource
from nodeagent.kube.access import Access
from nodeagent_lab.sim.apiserver import ApiServer

A, B = "0000:20:00.0", "0000:30:00.0"
MAC = "b8:ce:f6:00:00:01"


def rails(*links: NodeLink) -> tuple[Rail, ...]:
    return rails_of(NodeLinks(node_name="n1", links=links))


def link(rail: int | None, address: str | None, mac: str | None = None) -> NodeLink:
    return NodeLink(name="nic", rail=rail, pci_address=address, mac=mac)


def test_a_rail_has_its_number_address_and_mac() -> None:
    assert rails(link(1, B), link(0, A, MAC)) == (Rail(0, A, MAC), Rail(1, B))


def test_a_link_without_a_rail_or_with_one_that_cannot_be_is_left_out() -> None:
    links = (
        link(None, A),
        link(-1, A),
        link(1 << 40, A),
        link(2, None),
        link(3, "../../x"),
        link(4, f"{A}\n"),
    )
    assert rails(*links, link(5, B)) == (Rail(5, B),)


def test_an_address_that_occurs_twice_is_left_out_and_a_number_may_be_that_of_two_selections() -> None:
    assert rails(link(0, A), link(0, B)) == (Rail(0, A), Rail(0, B))
    assert rails(link(0, A), link(1, A)) == ()


def test_a_mac_that_names_no_card_leaves_the_address() -> None:
    assert rails(link(0, A, MAC), link(1, B, MAC)) == (Rail(0, A), Rail(1, B))
    assert rails(link(0, A, "80:00:00:29:fe:80:00:00:00:00:00:00:b8:ce:f6:03:00:9a:2c:56")) == (Rail(0, A),)


async def test_a_node_without_vfs_asks_nobody_for_its_rails() -> None:
    server = await ApiServer().start()
    links = [{"name": "nic", "rail": 3, "pciAddress": A}]
    server.put(
        {"apiVersion": "nodeagent.io/v1alpha1", "kind": "NodeLinks", "nodeName": "n1", "links": links}
        | {"metadata": {"name": "n1", "namespace": "nodeagent"}}
    )
    access = NodeAccess(Access(server.url, "nodeagent", token=server.token()), "n1")
    gpus = GpuMemResource(name="example.com/gpu-mem")
    assert await reported_rails(access, [gpus]) == ()
    assert not server.requests
    assert await reported_rails(access, [gpus, VfResource(name="example.com/vf")]) == (Rail(3, A),)
    await server.stop()
