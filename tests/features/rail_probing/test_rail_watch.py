"""The probes of a node by its list in the API server, from the netdevs of a namespace to report, rules and verb."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from ipaddress import ip_interface
from types import SimpleNamespace
from typing import Any

import pytest

from nodeagent.cluster import partner_list
from nodeagent.cluster.deliveries import Delivery
from nodeagent.cluster.node_report import report
from nodeagent.cluster.partner_list import follow_partners
from nodeagent.fabric.fabric_settings import FabricRules
from nodeagent.fabric.nodelinks import NodeLinks, RailLeg, decode_nodelinks
from nodeagent.fabric.rail_partners import RailPartners, rail_partners_object, rail_partners_of
from nodeagent.fabric.reports import InternPool, RefusedReportError, ReportReader
from nodeagent.facts.inventory import Inventory
from nodeagent.facts.model import Function, Link, LossyLeg, RailCheck, Snapshot
from nodeagent.features.rail_probing.rail_settings import RailsSettings
from nodeagent.features.rail_probing.rail_watch import RailWatch, read_rail_links
from nodeagent.kube.access import NodeClaim
from nodeagent.kube.failure import ApiError
from nodeagent_lab.sim.netns import Netns
from tests.support.rail_rig import address, partners_of, set_kernel

PF = "0000:18:00.0"


def link(netdev: str, *, default_route: bool = False, pci: str = PF) -> Link:
    return Link(netdev, pci, "02:00:00:00:00:01", True, True, "up", 400000, 1500, default_route)


@pytest.mark.needs("root", "ip")
def test_each_rail_has_its_addresses_or_says_why_it_cannot_be_checked() -> None:
    pcis = [f"0000:{number}:00.0" for number in range(10, 16)]
    netdevs = ["good", "routed", "slave", "bare", "dark", "gone"]
    with Netns() as ns:
        set_kernel(ns, "net/ipv6/conf/default/disable_ipv6", "1")
        for netdev in netdevs[:-1]:
            ns.ip(f"link add {netdev} type veth peer name p-{netdev}\nlink set {netdev} up")
            if netdev != "dark":
                ns.ip(f"link set p-{netdev} up")
        ns.ip("addr add 10.1.2.1/31 dev good\naddr add 10.3.0.1/24 dev routed\naddr add 10.4.0.1/24 dev dark")
        ns.ip("link add br0 type bridge\nlink set slave master br0")
        links = [
            link(netdev, default_route=netdev == "routed", pci=pci)
            for netdev, pci in zip(netdevs, pcis, strict=True)
        ]
        with ns.entered():
            found = read_rail_links(links, {pci: number for number, pci in enumerate(pcis)})
    faults = {rail.netdev: rail.fault for rail in found}
    assert faults == {
        "good": "",
        "routed": "default-route",
        "slave": "bond",
        "bare": "no-address",
        "dark": "down",
        "gone": "no-netdev",
    }
    assert (found[0].name, found[0].addresses, found[0].mtu) == ("nic0", (ip_interface("10.1.2.1/31"),), 1500)
    assert found[1].addresses == (), "the host's own address is no address of a rail"


class Lists:
    """An API server with one list, or with a failure."""

    def __init__(self) -> None:
        self.answer: object = None
        self.asked: list[str] = []

    async def get(self, _resource: object, name: str) -> object:
        self.asked.append(name)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def taking(probes: Any) -> Callable[[RailPartners | None], Awaitable[None]]:
    async def take(partners: RailPartners | None) -> None:
        probes.take_partners(partners)

    return take


async def test_a_list_that_cannot_be_read_stays_in_force(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partner_list, "FIRST_S", 0.0)
    monkeypatch.setattr(partner_list, "RAIL_READ_S", 0.0)
    taken: list[RailPartners | None] = []
    server, done = Lists(), asyncio.Event()
    wanted = partners_of(0, 0)
    answers = [
        rail_partners_object(wanted),
        {"spec": {"rails": [{"rail": "nic0", "probe": [{}] * 9}]}},
        ApiError("get", "/", 404, "NotFound", "gone"),
        rail_partners_object(wanted),
    ]

    class Probes:
        def take_partners(self, partners: RailPartners | None) -> None:
            taken.append(partners)
            if answers:
                server.answer = answers.pop(0)
            else:
                done.set()

    server.answer = answers.pop(0)
    task = asyncio.create_task(follow_partners(server, "gpu-0", taking(Probes()), None))  # type: ignore[arg-type]
    while len(taken) < 1:
        await asyncio.sleep(0)
    for _ in range(50):
        await asyncio.sleep(0)
    assert taken[0] == wanted
    assert set(server.asked) == {"gpu-0"}
    assert len(taken) == 1, "a refused list replaces none"
    server.answer = ApiError("get", "/", 404, "NotFound", "gone")
    while len(taken) < 2:
        await asyncio.sleep(0)
    assert taken[1] is None
    task.cancel()


@pytest.mark.usefixtures("virtual_time")
@pytest.mark.parametrize(
    ("owner", "there"),
    [(None, True), (NodeClaim("gpu-0", "now"), True), (NodeClaim("gpu-0", "later"), False)],
)
async def test_the_list_of_a_former_node_of_this_name_is_none(owner: NodeClaim | None, there: bool) -> None:
    """It is deleted some time after its Node."""
    server, taken = Lists(), list[RailPartners | None]()
    made = rail_partners_object(partners_of(0, 0))
    server.answer = made | {
        "metadata": {"name": "gpu-0", "ownerReferences": [{"kind": "Node", "uid": "now"}]}
    }

    class Probes:
        def take_partners(self, partners: RailPartners | None) -> None:
            taken.append(partners)

    following = follow_partners(server, "gpu-0", taking(Probes()), None, owner)  # type: ignore[arg-type]
    task = asyncio.create_task(following)
    await asyncio.sleep(partner_list.FIRST_S)
    assert [one is not None for one in taken] == [there]
    task.cancel()


@pytest.mark.usefixtures("virtual_time")
async def test_a_list_that_is_made_after_the_start_is_read_in_minutes() -> None:
    """The controller makes it after the first report, and reads the report of a new node later than the agent asks."""
    server, times = Lists(), list[float]()
    loop = asyncio.get_running_loop()
    server.answer = ApiError("get", "/", 404, "NotFound", "gone")
    taken = asyncio.Event()

    class Probes:
        def take_partners(self, partners: RailPartners | None) -> None:
            times.append(loop.time())
            if partners is not None:
                taken.set()

    began = loop.time()
    task = asyncio.create_task(follow_partners(server, "gpu-0", taking(Probes()), None))  # type: ignore[arg-type]
    await asyncio.sleep(61.0)
    server.answer = rail_partners_object(partners_of(0, 0))
    await taken.wait()
    assert loop.time() - began <= 61.0 + 1.5 * 120.0
    server.answer, before = ApiError("get", "/", 404, "NotFound", "gone"), len(times)
    await asyncio.sleep(3 * 3600.0)
    assert 3 * 3600 / 900 <= len(times) - before <= 3 * 3600 / 300 + 8, "in the end every ten minutes"
    task.cancel()


@pytest.mark.usefixtures("virtual_time")
async def test_a_server_that_has_no_list_is_reached() -> None:
    """The right came after the start, and the list has not come yet."""
    server, delivery = Lists(), Delivery("rails", asyncio.Event(), "the API server")
    server.answer = ApiError("get", "/", 403, "Forbidden", "no right")
    probes = SimpleNamespace(take_partners=lambda _partners: None)
    task = asyncio.create_task(follow_partners(server, "gpu-0", taking(probes), delivery))  # type: ignore[arg-type]
    await asyncio.sleep(61.0)
    assert delivery.reason is not None
    server.answer = ApiError("get", "/", 404, "NotFound", "none")
    await asyncio.sleep(1200.0)
    assert delivery.reason is None
    task.cancel()


def test_a_list_keeps_its_content_on_the_way() -> None:
    wanted = partners_of(1, 3)
    assert rail_partners_of(rail_partners_object(wanted)) == wanted
    assert wanted.spec.rails[0].probe[2].address == address(0, 3)


def snapshot(*checks: RailCheck) -> Snapshot:
    function = Function(
        PF, "15b3", "1021", "mlx5_core", "eth0", "ethernet", None, None, None, 0, ("pci0000:15", PF)
    )
    return Snapshot(functions=(function,), links=(link("eth0"),), rail_checks=checks)


LEG = LossyLeg("gpu-1", "nic0", "leaf", 10, False, "2026-11-27T14:02:00Z")


def made(facts: Snapshot, before: NodeLinks | None = None, *, patient: bool = False) -> NodeLinks:
    return report(facts, "gpu-0", {PF: 0}, before, now=1.8e9, patient=patient)


def test_the_report_has_the_legs_and_keeps_them_over_a_restart() -> None:
    first = made(snapshot(RailCheck(PF, ("10.1.2.1/31",), "yes", (LEG,))))
    (reported,) = first.links
    assert (reported.addresses, reported.rail_checked) == (("10.1.2.1/31",), "yes")
    assert reported.legs == (
        RailLeg(node="gpu-1", nic="nic0", scope="leaf", level=10, since="2026-11-27T14:02:00Z"),
    )
    assert made(snapshot(), first, patient=True).links == first.links, "a restart writes nothing"
    assert made(snapshot(), first).links[0].rail_checked is None, "probes that were switched off say nothing"


def test_the_controller_refuses_a_report_with_too_many_legs() -> None:
    reader = ReportReader(FabricRules(), InternPool())
    legs = [{"node": f"n{i}", "nic": "nic0", "level": 10} for i in range(17)]
    for text, fits in ((legs[:16], True), (legs, False), ([{**legs[0], "node": "x" * 2000}], False)):
        raw = {"nodeName": "gpu-0", "links": [{"name": "nic0", "legs": text}]}
        links = decode_nodelinks(json.dumps(raw).encode())
        if fits:
            reader.read("gpu-0", links)
        else:
            with pytest.raises(RefusedReportError):
                reader.read("gpu-0", links)


async def test_a_check_says_why_it_cannot_be_made() -> None:
    watch, server = RailWatch(RailsSettings(probe=True), Inventory(), dict), Reports()
    assert "set rails.probe" in (await watch.check("gpu-0", "gpu-1", 1)).why
    task = asyncio.create_task(watch.run(server, "gpu-0", "nodeagent"))  # type: ignore[arg-type]
    while watch._probes is None:
        await asyncio.sleep(0)
    assert "this is node gpu-0" in (await watch.check("gpu-2", "gpu-1", 1)).why
    assert "this is node gpu-0" in (await watch.check("gpu-0", "gpu-0", 1)).why
    server.answers["gpu-1"] = {"nodeName": "gpu-1", "links": [{"name": "nic0", "addresses": ["10.1.2.1/31"]}]}
    assert "no rail of this node has a counterpart" in (await watch.check("gpu-0", "gpu-1", 1)).why
    server.answers["gpu-1"] = {"links": 1}
    assert "cannot be read" in (await watch.check("gpu-0", "gpu-1", 1)).why
    assert "no node gpu-9" in (await watch.check("gpu-0", "gpu-9", 1)).why
    watch._checking = True
    assert "another check" in (await watch.check("gpu-0", "gpu-1", 1)).why
    task.cancel()


async def test_whose_check_is_answered_is_read_in_its_own_report() -> None:
    watch, server = RailWatch(RailsSettings(probe=True), Inventory(), dict), Reports()
    task = asyncio.create_task(watch.run(server, "gpu-0", "nodeagent"))  # type: ignore[arg-type]
    while watch._probes is None:
        await asyncio.sleep(0)
    server.answers["gpu-1"] = {
        "nodeName": "gpu-1",
        "links": [{"name": "nic0", "addresses": ["10.1.2.1/31", "fe80::1/64"]}, {"name": "nic1"}],
    }
    assert await watch._addresses("gpu-1") == {"10.1.2.1", "fe80::1"}
    assert [await watch._addresses(name) for name in ("gpu-9", "", "..")] == [frozenset()] * 3
    assert server.asked == ["gpu-1", "gpu-9"]
    task.cancel()


async def test_names_that_no_node_can_have_are_asked_of_nobody_and_a_server_that_is_away_is_no_answer(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A packet of a check carries any bytes as the name of its node."""
    watch, server = RailWatch(RailsSettings(probe=True), Inventory(), dict), Reports()
    task = asyncio.create_task(watch.run(server, "gpu-0", "nodeagent"))  # type: ignore[arg-type]
    while watch._probes is None:
        await asyncio.sleep(0)
    strange = ("", "..", "GPU-1", "a/b", "a?watch=1", "a\n", "-a", "a-", "ä", "a" * 254, "%2e%2e")
    assert [await watch._addresses(name) for name in strange] == [frozenset()] * len(strange)
    assert not server.asked
    caplog.clear()
    with caplog.at_level("INFO"):
        assert await watch._addresses("gpu-9") == frozenset()
        assert not caplog.records, "strangers make up names"
        server.answers["gpu-1"] = ApiError("get", "/", 503, "ServiceUnavailable", "not now")
        assert await watch._addresses("gpu-1") is None
        server.answers["gpu-1"] = {"links": 1}
        assert await watch._addresses("gpu-1") == frozenset()
    assert len(caplog.records) == 2
    task.cancel()


class Reports:
    """An API server with NodeLinks."""

    def __init__(self) -> None:
        self.answers: dict[str, object] = {}
        self.asked: list[str] = []

    async def get(self, _resource: object, name: str, *, namespace: str) -> object:
        assert namespace == "nodeagent"
        self.asked.append(name)
        if name not in self.answers:
            raise ApiError("get", "/", 404, "NotFound", "gone")
        if isinstance(self.answers[name], Exception):
            raise self.answers[name]
        return self.answers[name]
