"""The neighbors of a link whose netdev disappears, comes back under another name or is no longer selected.

The tests call ``update_links`` as the source does, with real netdevs and sockets and invented PCI functions.
"""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from nodeagent.facts.model import Function
from nodeagent.host.netlink.netdevs import Netdevs
from nodeagent.host.packet import PacketError, open_socket
from nodeagent.sources.link_selection import SelectedLink
from nodeagent.sources.lldp_receiver import AWAY_S, LldpReceiver
from nodeagent.sources.neighbor_view import LinkRow, of_receiver
from tests.sources.test_lldp_source import Agent, announce
from tests.support.namespaces import Netns, veth

pytestmark = pytest.mark.needs("root", "ip", "nsenter")

PF = Function("0000:1a:00.0", "15b3", "1021", "mlx5_core", None, "ethernet", None, None, None, 0, ())


class ScriptedAgent(Agent):
    """An agent whose links are set by the test: netdevs of PFs and other netdevs."""

    def scan(self, ns: Netns, *, pfs: dict[str, Function] | None = None, others=(), functions=(PF,)) -> None:
        pfs = pfs or {}
        with ns.entered(), Netdevs() as netdevs:
            found = netdevs.read()
            links = [
                SelectedLink(netdev, pfs.get(netdev.name), "mlx5_core")
                for netdev in found
                if netdev.name in pfs or netdev.name in others
            ]
            opened = {
                netdev.ifindex: open_socket(netdev.ifindex) for netdev in self.receiver.netdevs_to_open(links)
            }
        self.receiver.update_links(links, found, functions, opened)
        assert not opened


@pytest.fixture
async def agent():
    tested = ScriptedAgent()
    tested.receiver = LldpReceiver(tested.publish)
    with contextlib.closing(tested.receiver):
        yield tested


@pytest.fixture
def wire():
    with Netns() as near, Netns() as far, Netns() as pod:
        veth(near, "ens1", far, "b0")
        yield near, far, pod


async def receives(agent: ScriptedAgent, far: Netns, netdev: str, switch: str) -> None:
    with far.raw(netdev) as sender:
        sender.send(announce(switch))
        await agent.until(lambda: any(n.system_name == switch and not n.stale for n in agent.neighbors))


async def test_a_pf_in_a_pod_keeps_its_neighbor_even_when_it_returns_with_another_name(agent, wire):
    near, far, pod = wire
    agent.scan(near, pfs={"ens1": PF})
    await receives(agent, far, "b0", "leaf-1")
    near.ip(f"link set ens1 netns {pod.path}")
    agent.scan(near)
    await agent.shows(("ens1", "leaf-1", True))
    agent.receiver.links["ens1"].away_at -= 100 * AWAY_S  # however long the pod runs
    agent.scan(near)
    pod.ip(f"link set ens1 name net1 netns {near.path}")
    near.ip("link set net1 up")
    agent.scan(near, pfs={"net1": PF})
    await agent.shows(("net1", "leaf-1", True))
    await receives(agent, far, "b0", "leaf-1")
    assert list(agent.receiver.links) == ["net1"]


async def test_a_removed_pf_loses_its_neighbors(agent, wire):
    near, far, _ = wire
    agent.scan(near, pfs={"ens1": PF})
    await receives(agent, far, "b0", "leaf-1")
    near.ip("link del ens1")
    agent.scan(near, functions=())
    await agent.shows()
    assert agent.receiver.links == {}


async def test_frames_that_the_kernel_dropped_are_counted_also_those_of_a_closed_socket(agent, wire):
    near, _, _ = wire
    agent.scan(near, others=["ens1"])
    agent.receiver.links["ens1"].socket.dropped = 3  # as its last reading left it
    assert agent.receiver.counts("ens1")["dropped"] == 3
    near.ip("link del ens1")
    agent.scan(near)
    assert agent.receiver.links["ens1"].socket is None
    assert agent.receiver.counts("ens1")["dropped"] == 3


async def test_a_software_netdev_that_stays_away_loses_its_neighbors_after_an_hour(agent, wire):
    near, far, _ = wire
    agent.scan(near, others=["ens1"])
    await receives(agent, far, "b0", "leaf-1")
    near.ip("link del ens1")
    agent.scan(near)
    await agent.shows(("ens1", "leaf-1", True))
    agent.receiver.links["ens1"].away_at -= AWAY_S
    agent.scan(near)
    await agent.shows()


async def test_a_link_that_is_no_longer_selected_loses_its_neighbors_and_its_socket(agent, wire):
    near, far, _ = wire
    agent.scan(near, others=["ens1"])
    await receives(agent, far, "b0", "leaf-1")
    socket = agent.receiver.links["ens1"].socket
    agent.scan(near)
    await agent.shows()
    assert not socket.bound


async def test_two_netdevs_of_one_function_are_two_links(agent, wire):
    near, far, _ = wire
    veth(near, "ens0", far, "b1")
    agent.scan(near, pfs={"ens1": PF})
    await receives(agent, far, "b0", "leaf-1")
    agent.scan(near, pfs={"ens0": PF, "ens1": PF})
    await receives(agent, far, "b1", "leaf-2")
    await agent.shows(("ens0", "leaf-2", False), ("ens1", "leaf-1", False))


async def test_a_socket_error_is_kept_with_its_link_and_opening_is_retried(agent, wire):
    near, far, _ = wire
    with near.entered(), Netdevs() as netdevs:
        listed = netdevs.read()
    links = [SelectedLink(netdev, None, "veth") for netdev in listed if netdev.name == "ens1"]
    (needed,) = agent.receiver.netdevs_to_open(links)
    agent.receiver.update_links(links, listed, (), {needed.ifindex: PacketError("no memory")})
    assert of_receiver(agent.receiver).rows == (LinkRow("ens1", None, "veth", "deaf", error="no memory"),)
    assert agent.receiver.netdevs_to_open(links) == (needed,)
    agent.scan(near, others=["ens1"])
    await receives(agent, far, "b0", "leaf-1")
    assert agent.receiver.links["ens1"].error is None


async def test_a_frame_is_news_although_the_netdevs_were_read_before_the_carrier_came_back(agent, wire):
    near, far, _ = wire
    agent.scan(near, pfs={"ens1": PF})
    await receives(agent, far, "b0", "leaf-1")
    far.ip("link set b0 down")
    agent.scan(near, pfs={"ens1": PF})
    await agent.shows(("ens1", "leaf-1", True))
    agent.receiver.receive_tagged("ens1", announce("leaf-1"))
    agent.scan(near, pfs={"ens1": PF})
    await agent.shows(("ens1", "leaf-1", False))


async def test_a_port_takes_the_place_of_its_subinterface_that_came_first(agent, wire):
    near, far, _ = wire
    agent.scan(near, pfs={"ens1": PF})
    of_port, of_vlan = announce("leaf-1"), announce("leaf-1.100")
    tagged = of_vlan[:12] + b"\x81\0\0\x64" + of_vlan[12:]
    with far.raw("b0") as sender:
        for sent in (tagged, tagged, of_port, of_port):
            sender.send(sent)
        await agent.until(lambda: agent.neighbors and agent.neighbors[0].system_name == "leaf-1")
    assert [one.system_name for one in agent.neighbors] == ["leaf-1", "leaf-1.100"]


async def test_published_facts_stay_when_the_receiver_is_closed(agent, wire):
    near, far, _ = wire
    agent.scan(near, others=["ens1"])
    await receives(agent, far, "b0", "leaf-1")
    before = agent.publications
    agent.receiver.close()
    with far.raw("b0") as sender:
        sender.send(announce("leaf-2"))
    await asyncio.sleep(0)
    assert [n.system_name for n in agent.neighbors] == ["leaf-1"]
    assert agent.publications == before


async def test_a_link_that_was_down_for_a_moment_lists_the_neighbor_of_the_facts(agent):
    """Nothing was published between the loss and the next frame, so the facts are still the objects before it."""
    receiver = agent.receiver
    for now, down in ((0.0, False), (1.0, False), (2.0, True)):
        if down:
            receiver.table.mark_stale("ens1")
        receiver.table.receive("ens1", announce("leaf-1"), now)
        facts = receiver.table.neighbors()
    assert [entry.neighbor for entry in receiver.entries("ens1")] == list(facts)
    assert len(facts) == 1
