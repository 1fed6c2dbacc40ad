"""The agent's plan for pods: which name, MTU and address each VF has, and what reaches the file."""

from __future__ import annotations

import asyncio
import sys
from ipaddress import IPv4Address, ip_interface
from pathlib import Path

import pytest
import yaml
from msgspec.structs import replace

from nodeagent.attach.attach_settings import AttachSettings
from nodeagent.attach.given_numbers import (
    NOTHING_GIVEN,
    NUMBERS_FILE,
    GivenNumbers,
    given_numbers,
    read_given_numbers,
    write_given_numbers,
)
from nodeagent.attach.host_names import HostNames, HostState
from nodeagent.attach.plan_file import PLAN_FILE, read_attach_plan, switch_off
from nodeagent.attach.pod_plan import AttachPlan, PlannedVf
from nodeagent.attach.vf_plan import attach_plan, node_numbers, route_gateways
from nodeagent.cluster.node_report import report
from nodeagent.cluster.partner_list import RAIL_READ_S
from nodeagent.fabric.rail_partners import AnsweredPartner, RailList, RailNumber, RailPartnersSpec
from nodeagent.facts.inventory import Inventory
from nodeagent.facts.model import Function, Holding, Identifier, Link, Neighbor, NodeNumber, Snapshot
from nodeagent.features.netdevs_in_pods.number_keeper import keep_numbers
from nodeagent.features.netdevs_in_pods.plan_writer import PlanWriter
from nodeagent.kube.access import NodeClaim
from nodeagent.kube.client import ApiClient
from nodeagent_lab.sim.apiserver import ApiServer
from tests.support.manifests import ROOT
from tests.support.waiting import until

PF, VF = "0000:18:00.0", "0000:18:00.2"
SETTINGS = AttachSettings(interface="rail{rail}", addresses="10.{100+rail}.0.0/16")
RAILS = {PF: 3}
DEFINITION = yaml.safe_load((ROOT / "daemonset/components/rails/objects/railpartners.yaml").read_text())


def function(address: str, **changes: object) -> Function:
    plain = Function(
        address,
        "15b3",
        "101e",
        "mlx5_core",
        None,
        "ethernet",
        None,
        None,
        None,
        None,
        ("pci0000:15", address),
    )
    return replace(plain, **changes)


def node(*vfs: Function) -> Snapshot:
    link = Link("ens1f0", PF, "02:00:00:00:00:01", True, True, "up", 400_000, 9000)
    return Snapshot(functions=(function(PF), *vfs), links=(link,))


def vf(address: str = VF, index: int = 0, **changes: object) -> Function:
    return function(address, parent=PF, vf_index=index, **changes)


def test_a_vf_has_the_rail_and_the_mtu_of_its_pf_and_an_address_of_the_plan() -> None:
    plan = attach_plan(
        SETTINGS, node(vf(), vf("0000:18:00.3", 1)), RAILS, {PF: (ip_interface("10.103.0.7/16"),)}
    )
    assert plan == AttachPlan(
        "rail{rail}",
        {
            VF: PlannedVf(3, 9000, "10.103.16.7/16", pf=PF),
            "0000:18:00.3": PlannedVf(3, 9000, "10.103.32.7/16", pf=PF),
        },
        probe=True,
    )


def test_a_vf_whose_pf_gives_no_number_is_planned_with_the_reason() -> None:
    plan = attach_plan(SETTINGS, node(vf()), RAILS, {})
    assert plan.vfs[VF] == PlannedVf(
        3,
        9000,
        None,
        "rail 3: its PF has no address in 10.103.0.0/16, which gives the node its number",
        PF,
    )


def test_a_nic_as_a_whole_keeps_its_addresses_and_gets_one_of_the_plan_if_it_has_none() -> None:
    def planned(
        *own: str, settings: AttachSettings = SETTINGS, numbers: GivenNumbers | None = None, **changes: object
    ) -> PlannedVf | None:
        facts = replace(node(), **changes)
        addresses = {PF: tuple(map(ip_interface, own))}
        plan = attach_plan(settings, facts, RAILS, addresses, numbers=numbers, whole={PF})
        return plan.vfs.get(PF)

    def given(number: int, holder: str = "") -> GivenNumbers:
        return GivenNumbers(
            {
                ("nic3", "10.103.0.0/16"): RailNumber(
                    rail="nic3", prefix="10.103.0.0/16", number=number, holder=holder
                )
            }
        )

    own = "10.103.0.7/16"
    assert planned(own) == PlannedVf(3, whole=True, kept=(own,))
    assert planned(own, "fe80::1/64").kept == (own,)
    assert planned("192.168.4.4/24").kept == ("192.168.4.4/24",), "a guest's own network"
    assert planned(own, settings=AttachSettings(interface="rail{rail}")).kept == (own,)
    refused = planned()
    assert refused.refusal.startswith("rail 3: the NIC has no address on the host, which it would keep")
    assert "attach.numbers" in refused.refusal
    # The controller gives numbers: that of a PF.
    assert planned(numbers=given(9)) == PlannedVf(3, None, "10.103.0.9/16", pf=PF, whole=True)
    assert planned(own, numbers=given(7)).addresses == (own,)
    assert "had the number 7" in planned(own, numbers=given(7, "other")).refusal
    assert "not confirmed" in planned(own, numbers=NOTHING_GIVEN).refusal
    # IPv6: by its MAC address, unless it has an address.
    sixes = AttachSettings(interface="rail{rail}", addresses="fd00:{rail}::/64")
    macs = (replace(function(PF), mac="02:00:00:00:00:01"),)
    assert planned(settings=sixes, functions=macs).address == "fd00:3::ff:fe00:1/64"
    assert planned("fd00:3::7/64", settings=sixes, functions=macs).addresses == ("fd00:3::7/64",)
    assert planned(own, settings=sixes, functions=macs).addresses == (own, "fd00:3::ff:fe00:1/64")
    # An IPAM plugin takes the place of both.
    by_plugin = AttachSettings(interface="rail{rail}", ipam={"type": "nv-ipam", "poolName": "rail{rail}"})
    assert planned(own, settings=by_plugin) == PlannedVf(3, pf=PF, whole=True)
    # Never one that the host needs, and one that has VFs only while a pod holds it.
    (link,) = node().links
    for needed in ({"default_route": True}, {"node_address": True}):
        assert planned(own, links=(replace(link, **needed),)) is None
    divided = {"functions": (replace(function(PF), num_vfs=1), vf())}
    assert planned(own, **divided) is None
    held = (Holding("default", "p", "main", "example.com/nic3", (PF,)),)
    assert planned(own, **divided, holdings=held).whole


async def test_a_nic_in_a_pod_keeps_its_addresses_and_its_number_in_the_plan(tmp_path: Path) -> None:
    names = HostNames(tmp_path)
    names.learn({PF: "ens1f0"})
    names.leave({PF}, {PF: HostState(("10.103.0.7/16",), 1500, up=True)})
    inventory = Inventory()
    inventory.publish("pci", functions=node().functions)
    await PlanWriter(
        SETTINGS, inventory, lambda: RAILS, tmp_path, lambda _pfs: {}, whole=lambda: {PF}
    ).write()
    plan = read_attach_plan(tmp_path)
    assert plan is not None
    assert plan.vfs[PF].kept == ("10.103.0.7/16",)
    assert inventory.snapshot.node_numbers == (NodeNumber(PF, "10.103.0.0/16", 7),)


def test_the_address_of_a_pf_a_gateway_or_a_switch_is_given_to_no_vf() -> None:
    """All of them stand where VF 0, 1 and 2 would have theirs."""
    switch = Neighbor(
        "ens1f0",
        Identifier("local", "leaf"),
        Identifier("ifname", "swp1"),
        "leaf-1",
        management_addresses=("10.103.48.7", "?"),
    )
    facts = replace(node(*(vf(f"0000:18:00.{index + 2}", index) for index in range(4))), neighbors=(switch,))
    addresses = {PF: (ip_interface("10.103.0.7/16"),), "0000:19:00.0": (ip_interface("10.103.16.7/16"),)}
    plan = attach_plan(SETTINGS, facts, RAILS, addresses, (IPv4Address("10.103.32.7"),))
    whose = [it.refusal.partition("is the address of ")[2].partition(": give")[0] for it in plan.vfs.values()]
    assert whose == ["the PF 0000:19:00.0", "a gateway of the node's routes", "the switch leaf-1", ""]
    assert [it.address for it in plan.vfs.values()] == [None, None, None, "10.103.64.7/16"]


def test_gateways_are_read_from_the_routes_of_the_kernel() -> None:
    number = int.from_bytes(IPv4Address("10.103.32.7").packed, sys.byteorder)
    text = (
        f"Iface\tDestination\tGateway\tFlags\nens1\t0000670A\t{number:08X}\t0003\nens1\t0\t00000000\t1\nodd\n"
    )
    assert route_gateways(text) == (IPv4Address("10.103.32.7"),)
    assert route_gateways("") == ()
    assert IPv4Address(0) not in route_gateways()


def test_without_addresses_a_vf_has_a_name_alone() -> None:
    plan = attach_plan(AttachSettings(interface="rail{rail}"), node(vf()), RAILS, {})
    assert plan.vfs[VF] == PlannedVf(3, 9000, pf=PF)


def test_vfs_that_have_no_netdev_of_ethernet_and_pfs_without_a_rail_are_left_out() -> None:
    others = (
        vf("0000:18:00.3", driver="vfio-pci"),
        vf("0000:18:00.4", driver=None),
        vf("0000:18:00.5", link_type="infiniband"),
        vf("0000:18:00.6", vdpa="/dev/vhost-vdpa-0"),
        function("0000:19:00.2", parent="0000:19:00.0", vf_index=0),
    )
    assert attach_plan(SETTINGS, node(*others), RAILS, {}).vfs == {}


async def test_the_plan_is_written_for_the_other_process_and_again_when_it_changes(tmp_path: Path) -> None:
    inventory = Inventory()
    addresses = {PF: (ip_interface("10.103.0.7/16"),)}
    writer = PlanWriter(SETTINGS, inventory, lambda: RAILS, tmp_path, lambda _: addresses)
    await writer.write()
    assert read_attach_plan(tmp_path) is None  # the VFs of running pods would be in no plan
    inventory.publish("pci", functions=node(vf()).functions, links=node().links)
    await writer.write()
    assert read_attach_plan(tmp_path) == attach_plan(SETTINGS, node(vf()), RAILS, addresses)
    written = (tmp_path / PLAN_FILE).stat()
    await writer.write()
    assert (tmp_path / PLAN_FILE).stat().st_ino == written.st_ino
    addresses[PF] = (ip_interface("10.103.0.8/16"),)
    await writer.write()
    plan = read_attach_plan(tmp_path)
    assert plan is not None
    assert plan.vfs[VF].address == "10.103.16.8/16"


async def test_a_plan_that_is_switched_off_keeps_what_pods_have(tmp_path: Path) -> None:
    switch_off(tmp_path)
    assert not (tmp_path / PLAN_FILE).exists()
    inventory = Inventory()
    inventory.publish("pci", functions=node(vf()).functions, links=node().links)
    await PlanWriter(SETTINGS, inventory, lambda: RAILS, tmp_path, lambda _: {}).write()
    before = read_attach_plan(tmp_path)
    assert before is not None
    switch_off(tmp_path)
    assert read_attach_plan(tmp_path) == replace(before, on=False)


def test_a_plan_that_cannot_be_read_is_none(tmp_path: Path) -> None:
    (tmp_path / "attach").mkdir()
    (tmp_path / PLAN_FILE).write_text('{"interface": 3}')
    assert read_attach_plan(tmp_path) is None


def test_the_report_names_the_prefix_of_each_pf_and_the_number_that_its_address_gives() -> None:
    """Nothing of a PF whose address is none of the plan, nor of IPv6, whose addresses follow from the MAC."""
    rails = {PF: 3, "0000:40:00.0": 4, "0000:aa:00.0": 5}
    addresses = {
        PF: (ip_interface("10.103.0.7/16"),),
        "0000:aa:00.0": (ip_interface("10.105.9.7/16"),),
    }
    assert node_numbers(SETTINGS, rails, addresses) == (
        NodeNumber(PF, "10.103.0.0/16", 7),
        NodeNumber("0000:40:00.0", "10.104.0.0/16", 0),
    )
    assert node_numbers(replace(SETTINGS, addresses="fd00:{rail}::/64"), rails, addresses) == ()
    assert node_numbers(replace(SETTINGS, addresses=None), rails, addresses) == ()


async def test_the_numbers_reach_the_facts_for_the_report(tmp_path: Path) -> None:
    inventory = Inventory()
    inventory.publish("pci", functions=node(vf()).functions)
    inventory.publish("link", links=node(vf()).links)
    writer = PlanWriter(
        SETTINGS, inventory, lambda: RAILS, tmp_path, lambda _: {PF: (ip_interface("10.103.0.7/16"),)}
    )
    await writer.write()
    snapshot = inventory.snapshot
    assert snapshot.node_numbers == (NodeNumber(PF, "10.103.0.0/16", 7),)
    (link,) = report(snapshot, "gpu-0", RAILS, None, now=0.0).links
    assert (link.vf_prefix, link.number) == ("10.103.0.0/16", 7)


def test_after_a_start_the_last_number_stands_until_the_addresses_are_read() -> None:
    read = replace(node(), node_numbers=(NodeNumber(PF, "10.103.0.0/16", 7),))
    before = report(read, "gpu-0", RAILS, None, now=0.0)
    (link,) = report(node(), "gpu-0", RAILS, before, now=1.0, patient=True).links
    assert (link.vf_prefix, link.number) == ("10.103.0.0/16", 7)
    (link,) = report(node(), "gpu-0", RAILS, before, now=1.0).links
    assert (link.vf_prefix, link.number) == (None, None)


GIVEN = replace(SETTINGS, numbers=True)


def told(number: int, holder: str = "", prefix: str = "10.103.0.0/16") -> GivenNumbers:
    one = RailNumber(rail="nic3", prefix=prefix, number=number, holder=holder)
    return given_numbers(RailPartnersSpec(numbers=(one,)))


@pytest.mark.parametrize(
    ("pf", "said", "address", "why"),
    [
        (None, told(7), "10.103.16.7/16", ""),
        ("10.103.0.7/16", told(7), "10.103.16.7/16", ""),
        ("10.103.0.7/16", None, None, "has not confirmed the number 7 of this node in 10.103.0.0/16 yet"),
        (None, None, None, "has not confirmed a number for this node in 10.103.0.0/16 yet"),
        ("10.103.0.8/16", told(7), None, "has not confirmed the number 8 of this node"),
        ("10.103.0.7/16", told(7, "gpu-9"), None, "the node gpu-9 had the number 7 in 10.103.0.0/16 first"),
        (None, told(7, "gpu-9"), None, "the node gpu-9 had the number 7"),
        (None, told(7, prefix="10.203.0.0/16"), None, "has not confirmed a number for this node"),
        (None, told(2000), None, "the controller's number 2000 of this node is beyond `nodes: 1000`"),
        ("10.103.9.7/16", told(7), None, "is not one of 10.103.0.1 to 10.103.3.232"),
    ],
)
def test_with_numbers_a_vf_gets_an_address_by_the_number_that_the_controller_has_written(
    pf: str | None, said: GivenNumbers | None, address: str | None, why: str
) -> None:
    """So no pod has an address before the controller knows that no other node has the number."""
    pfs = {} if pf is None else {PF: (ip_interface(pf),)}
    (planned,) = attach_plan(GIVEN, node(vf()), RAILS, pfs, numbers=said or NOTHING_GIVEN).vfs.values()
    assert planned.address == address
    assert why in planned.refusal
    assert bool(planned.refusal) == bool(why)


def test_the_number_of_a_pf_is_not_that_of_another_pf_that_has_its_name_now() -> None:
    """A NIC more on the rail: pods of the other PF have addresses by the number, until the controller has a new one."""
    other = RailNumber(rail="nic3", pci_address="0000:99:00.0", prefix="10.103.0.0/16", number=7)
    mine = RailNumber(rail="nic3.1", pci_address=PF, prefix="10.103.0.0/16", number=9)
    for numbers, address in (((other,), None), ((other, mine), "10.103.16.9/16")):
        given = given_numbers(RailPartnersSpec(numbers=numbers))
        (planned,) = attach_plan(GIVEN, node(vf()), RAILS, {}, numbers=given).vfs.values()
        assert planned.address == address


def test_the_address_of_a_partner_on_another_node_is_given_to_no_vf() -> None:
    partner = AnsweredPartner(node="gpu-9", nic="nic3", address="10.103.16.7")
    spec = RailPartnersSpec(
        rails=(RailList(rail="nic3", answer=(partner,)),),
        numbers=(RailNumber(rail="nic3", prefix="10.103.0.0/16", number=7),),
    )
    (planned,) = attach_plan(GIVEN, node(vf()), RAILS, {}, numbers=given_numbers(spec)).vfs.values()
    assert planned.address is None
    assert "is the address of nic3 of the node gpu-9" in planned.refusal


async def test_the_plan_follows_the_kept_numbers_also_while_no_api_server_answers(tmp_path: Path) -> None:
    inventory = Inventory()
    inventory.publish("pci", functions=node(vf()).functions)
    inventory.publish("link", links=node(vf()).links)

    async def address() -> str | None:
        await PlanWriter(GIVEN, inventory, lambda: RAILS, tmp_path, lambda _: {}, node="gpu-0").write()
        plan = read_attach_plan(tmp_path)
        assert plan is not None
        return plan.vfs[VF].address

    assert await address() is None
    one = RailNumber(rail="nic3", prefix="10.103.0.0/16", number=7)
    write_given_numbers(tmp_path, "gpu-1", RailPartnersSpec(numbers=(one,)))
    assert await address() is None, "the disk was copied from another node"
    write_given_numbers(tmp_path, "gpu-0", RailPartnersSpec(numbers=(one,)))
    assert await address() == "10.103.16.7/16"
    (tmp_path / NUMBERS_FILE).write_text("{")
    assert await address() is None, "a broken file is no number"


@pytest.mark.parametrize(
    ("pf", "said", "number"),
    [
        (None, told(7), 7),
        ("10.103.0.8/16", told(7), 8),
        (None, told(7, "gpu-9"), 0),
        (None, told(7, prefix="10.203.0.0/16"), 0),
        (None, NOTHING_GIVEN, 0),
    ],
)
def test_the_number_that_pods_have_addresses_by_is_reported(
    pf: str | None, said: GivenNumbers, number: int
) -> None:
    """A controller whose objects were deleted while it did not run would give it to another node."""
    pfs = {} if pf is None else {PF: (ip_interface(pf),)}
    assert node_numbers(GIVEN, RAILS, pfs, said) == (NodeNumber(PF, "10.103.0.0/16", number),)


async def test_the_report_has_the_kept_number_with_the_setting_alone(tmp_path: Path) -> None:
    one = RailNumber(rail="nic3", prefix="10.103.0.0/16", number=7)
    write_given_numbers(tmp_path, "gpu-0", RailPartnersSpec(numbers=(one,)))
    for settings, number in ((GIVEN, 7), (SETTINGS, 0)):
        inventory = Inventory()
        inventory.publish("pci", functions=node(vf()).functions)
        await PlanWriter(settings, inventory, lambda: RAILS, tmp_path, lambda _: {}, node="gpu-0").write()
        assert inventory.snapshot.node_numbers == (NodeNumber(PF, "10.103.0.0/16", number),)


@pytest.mark.usefixtures("virtual_time")
async def test_numbers_of_a_node_that_was_made_again_under_its_name_are_not_used(
    tmp_path: Path, server: ApiServer, client: ApiClient
) -> None:
    """Its object went with the former Node, and its number may be another node's by now."""
    server.put(DEFINITION)
    one = RailNumber(rail="nic3", prefix="10.103.0.0/16", number=7)

    async def kept(owner: str | None) -> bool:
        write_given_numbers(tmp_path, "gpu-0", RailPartnersSpec(numbers=(one,)), "first")
        claim = None if owner is None else NodeClaim("gpu-0", owner)
        keeping = asyncio.create_task(keep_numbers(tmp_path, client, "gpu-0", None, claim))
        await asyncio.sleep(3 * RAIL_READ_S)
        keeping.cancel()
        return bool(read_given_numbers(tmp_path, "gpu-0").of)

    assert await kept("first")
    assert await kept(None), "a token of before Kubernetes 1.30 does not name the Node"
    assert not await kept("second")


@pytest.mark.usefixtures("virtual_time")
async def test_the_object_of_the_node_is_kept_and_stays_when_it_is_deleted(
    tmp_path: Path, server: ApiServer, client: ApiClient
) -> None:
    server.put(DEFINITION)
    number = {"rail": "nic3", "prefix": "10.103.0.0/16", "number": 7}
    meta = {"apiVersion": "nodeagent.io/v1alpha1", "kind": "RailPartners", "metadata": {"name": "gpu-0"}}
    server.put(meta | {"spec": {"numbers": [number]}})
    keeping = asyncio.create_task(keep_numbers(tmp_path, client, "gpu-0", None, None))
    await until(lambda: read_given_numbers(tmp_path, "gpu-0").of)
    server.remove("railpartners", "gpu-0")
    await asyncio.sleep(3 * RAIL_READ_S)
    (kept,) = read_given_numbers(tmp_path, "gpu-0").of.values()
    assert kept.number == 7
    keeping.cancel()
