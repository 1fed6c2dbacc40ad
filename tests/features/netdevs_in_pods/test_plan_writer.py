"""The agent's plan for pods: which name, MTU and address each VF has, and what reaches the file."""

from __future__ import annotations

from ipaddress import ip_interface
from pathlib import Path

from msgspec.structs import replace

from nodeagent.attach.attach_settings import AttachSettings
from nodeagent.attach.plan_file import PLAN_FILE, read_attach_plan, switch_off
from nodeagent.attach.pod_plan import AttachPlan, PlannedVf
from nodeagent.attach.vf_plan import attach_plan
from nodeagent.facts.inventory import Inventory
from nodeagent.facts.model import Function, Link, Snapshot
from nodeagent.features.netdevs_in_pods.plan_writer import PlanWriter

PF, VF = "0000:18:00.0", "0000:18:00.2"
SETTINGS = AttachSettings(interface="rail{rail}", addresses="10.{100+rail}.0.0/16")
RAILS = {PF: 3}


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
