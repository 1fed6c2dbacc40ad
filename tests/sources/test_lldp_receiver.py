"""Which neighbors a link keeps when its netdev goes, comes back elsewhere or is no longer asked for.

The ear is told of links as the source would tell it; the netdevs and the sockets are real, the PCI functions
are not.
"""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from nodeagent.commands.neighbors.live import Row, _seen
from nodeagent.host.netlink.netdevs import Netdevs
from nodeagent.host.packet import PacketError, open_on
from nodeagent.model import Function
from nodeagent.sources.link_selection import Selected
from nodeagent.sources.lldp_receiver import AWAY_S, Ear
from tests.sources.test_neighbor_table import Agent, announce
from tests.support.namespaces import Netns, veth

pytestmark = pytest.mark.needs("root", "ip", "nsenter")

PF = Function("0000:1a:00.0", "15b3", "1021", "mlx5_core", None, "ethernet", None, None, None, 0, ())


class Told(Agent):
    """An agent whose links are said by the test: netdevs that are PFs, and those that are not."""

    def look(self, ns: Netns, *, pfs: dict[str, Function] | None = None, others=(), functions=(PF,)) -> None:
        pfs = pfs or {}
        with ns.entered(), Netdevs() as netdevs:
            found = netdevs.read()
            links = [
                Selected(netdev, pfs.get(netdev.name), "mlx5_core")
                for netdev in found
                if netdev.name in pfs or netdev.name in others
            ]
            opened = {netdev.ifindex: open_on(netdev.ifindex) for netdev in self.ear.needs(links)}
        self.ear.follow(links, found, functions, opened)
        assert not opened


@pytest.fixture
async def told():
    one = Told()
    one.ear = Ear(one.state)
    with contextlib.closing(one.ear):
        yield one


@pytest.fixture
def wire():
    with Netns() as near, Netns() as far, Netns() as pod:
        veth(near, "ens1", far, "b0")
        yield near, far, pod


async def hears(told: Told, far: Netns, netdev: str, switch: str) -> None:
    with far.raw(netdev) as sender:
        sender.send(announce(switch))
        await told.until(lambda: any(n.system_name == switch and not n.stale for n in told.neighbors))


async def test_a_pf_in_a_pod_keeps_its_neighbor_and_takes_it_along_under_another_name(told, wire):
    near, far, pod = wire
    told.look(near, pfs={"ens1": PF})
    await hears(told, far, "b0", "leaf-1")
    near.ip(f"link set ens1 netns {pod.path}")
    told.look(near)
    await told.sees(("ens1", "leaf-1", True))
    told.ear.lines["ens1"].away_at -= 100 * AWAY_S  # however long the pod runs
    told.look(near)
    pod.ip(f"link set ens1 name net1 netns {near.path}")
    near.ip("link set net1 up")
    told.look(near, pfs={"net1": PF})
    await told.sees(("net1", "leaf-1", True))
    await hears(told, far, "b0", "leaf-1")
    assert list(told.ear.lines) == ["net1"]


async def test_a_pf_that_is_pulled_out_is_forgotten(told, wire):
    near, far, _ = wire
    told.look(near, pfs={"ens1": PF})
    await hears(told, far, "b0", "leaf-1")
    near.ip("link del ens1")
    told.look(near, functions=())
    await told.sees()
    assert told.ear.lines == {}


async def test_a_software_netdev_that_stays_away_is_forgotten_in_the_end(told, wire):
    near, far, _ = wire
    told.look(near, others=["ens1"])
    await hears(told, far, "b0", "leaf-1")
    near.ip("link del ens1")
    told.look(near)
    await told.sees(("ens1", "leaf-1", True))
    told.ear.lines["ens1"].away_at -= AWAY_S
    told.look(near)
    await told.sees()


async def test_a_link_that_is_no_longer_asked_for_is_forgotten_and_not_listened_on(told, wire):
    near, far, _ = wire
    told.look(near, others=["ens1"])
    await hears(told, far, "b0", "leaf-1")
    receiver = told.ear.lines["ens1"].receiver
    told.look(near)
    await told.sees()
    assert not receiver.bound


async def test_two_netdevs_of_one_function_are_two_links(told, wire):
    near, far, _ = wire
    veth(near, "ens0", far, "b1")
    told.look(near, pfs={"ens1": PF})
    await hears(told, far, "b0", "leaf-1")
    told.look(near, pfs={"ens0": PF, "ens1": PF})
    await hears(told, far, "b1", "leaf-2")
    await told.sees(("ens0", "leaf-2", False), ("ens1", "leaf-1", False))


async def test_trouble_with_one_link_is_kept_with_it_and_tried_again(told, wire):
    near, far, _ = wire
    with near.entered(), Netdevs() as netdevs:
        found = netdevs.read()
    links = [Selected(netdev, None, "veth") for netdev in found if netdev.name == "ens1"]
    (needed,) = told.ear.needs(links)
    told.ear.follow(links, found, (), {needed.ifindex: PacketError("no memory")})
    assert _seen(told.ear).rows == (Row("ens1", None, "veth", "deaf", trouble="no memory"),)
    assert told.ear.needs(links) == (needed,)
    told.look(near, others=["ens1"])
    await hears(told, far, "b0", "leaf-1")
    assert told.ear.lines["ens1"].trouble is None


async def test_what_was_stated_stands_when_the_ear_is_closed(told, wire):
    near, far, _ = wire
    told.look(near, others=["ens1"])
    await hears(told, far, "b0", "leaf-1")
    told_before = told.told
    told.ear.close()
    with far.raw("b0") as sender:
        sender.send(announce("leaf-2"))
    await asyncio.sleep(0)
    assert [n.system_name for n in told.neighbors] == ["leaf-1"]
    assert told.told == told_before
