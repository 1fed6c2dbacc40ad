"""One device for each VF: as Multus finds it, with a taint of its own, in several slices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from nodeagent.agent_config import load
from nodeagent.config.faults import ConfigError
from nodeagent.dra.claim_preparation import prepare_claim
from nodeagent.dra.devices import Occupied
from nodeagent.dra.offered import without_plugin_holders
from nodeagent.dra.pf_device import PfDevice
from nodeagent.dra.prepared_claim import PreparedClaim, holdings
from nodeagent.facts.inventory import Inventory
from nodeagent.facts.model import Holding, Link, Snapshot
from nodeagent.kinds import Refused
from nodeagent.kubelet.rail_memory import RailMemory
from nodeagent.offering.kept_rails import KeptRails
from nodeagent.offering.offer import Offer
from nodeagent_lab.sim.apiserver import resource_slices
from nodeagent_lab.sim.claim_allocator import AllocationError, allocate
from tests.dra.test_claim_status import conditions, entries_of
from tests.dra.test_published_pools import CONFIG as PUBLISHED
from tests.dra.test_published_pools import Node, values
from tests.support.dra_node import CONFIG, NODE, claim_of, decoded, devices_of, machine, result
from tests.support.kind_machines import SICK, dgx

BY_VF = CONFIG.replace("{kind: vf, mode: dra,", "{kind: vf, mode: dra, vfDevices: true,")
PUBLISHED_BY_VF = PUBLISHED.replace("{kind: vf, mode: dra}", "{kind: vf, mode: dra, vfDevices: true}")
FACTS = machine()
BARE = {"consumedCapacity": None, "shareID": None}
"""The scheduler gives a device that is not shared no amount and no share."""


def vfs_of(snapshot: Snapshot, text: str = BY_VF) -> list[PfDevice]:
    return [it for it in devices_of(snapshot, text) if isinstance(it, PfDevice)]


def prepared(
    *devices: PfDevice, facts: Snapshot = FACTS, others: tuple[PreparedClaim, ...] = ()
) -> PreparedClaim:
    results = (result(device, 1, "r", **BARE) for device in devices)
    return prepare_claim(
        decoded(claim_of(f"c{len(others)}", *results)),
        node=NODE,
        devices=devices_of(facts, BY_VF),
        snapshot=facts,
        others=others,
        sequence=len(others) + 1,
    )


def with_vf(address: str, facts: Snapshot = FACTS) -> Snapshot:
    """This VF alone is sick."""
    sick = (replace(it, health=SICK) if it.pci_address == address else it for it in facts.functions)
    return replace(facts, functions=tuple(sick))


def test_each_vf_is_a_device_by_rail_and_index_and_no_pf_is_one() -> None:
    devices = vfs_of(FACTS)
    assert [(it.rail, it.vf.vf_index) for it in devices if it.vf is not None] == [
        (rail, index) for rail in range(2) for index in range(4)
    ]
    assert devices[0].name == "vf-" + devices[0].vfs[0].replace(":", "-").replace(".", "-")
    assert len({it.name for it in devices}) == 8


async def test_a_rail_keeps_its_number_over_a_restart_without_the_nic_before_it(tmp_path: Path) -> None:
    """A DeviceClass selects by the rail: another number would put pods on another network."""
    config = load(CONFIG, name="test.yaml")

    async def offered(facts: Snapshot) -> list[PfDevice]:
        memory, inventory = RailMemory(tmp_path, tmp_path / "checkpoint", pod_resources=True), Inventory()
        inventory.publish("pci", functions=facts.functions)
        offer = Offer(config, memory.content.numbering)
        devices = offer.dra_devices(facts)
        await KeptRails(memory, inventory).save(offer, (), facts)
        return [it for it in devices if isinstance(it, PfDevice)]

    first, second = before = await offered(FACTS)
    assert (first.rail, second.rail) == (0, 1)
    gone = (first.pf.pci_address, *first.vfs)
    left = tuple(it for it in FACTS.functions if it.pci_address not in gone)
    assert await offered(replace(FACTS, functions=left)) == [second]
    assert await offered(FACTS) == before


def test_a_claim_gets_vfs_of_one_index_on_all_planes_or_waits() -> None:
    """Two rails stand for two planes; a pod of one plane alone holds the first VF of one of them."""
    slices = Node(dgx(), PUBLISHED_BY_VF).stored()
    classes = [{"metadata": {"name": "vf"}, "spec": {}}]

    def request(rail: int) -> dict[str, Any]:
        own = 'device.attributes["nodeagent.io"]'
        expression = f'device.driver == "nodeagent.io" && {own}.kind == "nic" && {own}.rail == {rail}'
        selectors = [{"cel": {"expression": expression}}]
        return {"name": f"plane{rail}", "exactly": {"deviceClassName": "vf", "selectors": selectors}}

    def claim(*rails: int) -> dict[str, Any]:
        devices: dict[str, Any] = {"requests": [request(rail) for rail in rails]}
        if len(rails) > 1:
            devices["constraints"] = [{"matchAttribute": "nodeagent.io/vfIndex"}]
        return {"metadata": {"name": f"c{rails}", "namespace": "ml"}, "spec": {"devices": devices}}

    indexes = {one["name"]: values(one).get("vfIndex") for obj in slices for one in obj["spec"]["devices"]}
    taken = [claim(0)]
    taken[0]["status"] = {"allocation": allocate(taken[0], slices, classes, ())[1]}
    found = []
    while True:
        pair = claim(0, 1)
        try:
            pair["status"] = {"allocation": allocate(pair, slices, classes, taken)[1]}
        except AllocationError:
            break
        taken.append(pair)
        results = pair["status"]["allocation"]["devices"]["results"]
        found.append([indexes[one["device"]] for one in results])
    assert all(one == other for one, other in found)
    every = {index for name, index in indexes.items() if index is not None}
    assert {one for one, _ in found} == every - {0}


def test_multus_finds_the_vf_and_the_name_of_its_network_on_every_device() -> None:
    """Multus refuses the network of a pod if one device of its claims lacks one of the two, GPUs included."""
    node = Node(dgx(), PUBLISHED_BY_VF)
    vf = values(node.devices("nic")[0])
    assert vf["k8s.cni.cncf.io/deviceID"] == vf["resource.kubernetes.io/pciBusID"] == vf["pciAddress"]
    assert vf["k8s.cni.cncf.io/resourceName"] == "example.com/nic0"
    assert (vf["vfIndex"], vf["rail"], vf["kind"]) == (0, 0, "nic")
    assert vf["pfPciAddress"] != vf["pciAddress"]
    gpu = values(node.devices("gpu")[0])
    assert gpu["k8s.cni.cncf.io/deviceID"] == gpu["resource.kubernetes.io/pciBusID"]
    assert gpu["k8s.cni.cncf.io/resourceName"] == "example.com/gpu-mem"
    of_pfs = Node(dgx())
    assert not [
        name
        for pool in ("gpu", "nic")
        for device in of_pfs.devices(pool)
        for name in device["attributes"]
        if "cni" in name
    ]


def test_a_vf_is_not_shared_and_many_are_in_several_slices() -> None:
    node = Node(machine(rails=8, gpus=1, vfs=16), PUBLISHED_BY_VF)
    slices = [it for it in node.stored() if it["spec"]["pool"]["name"].endswith("/nic")]
    assert [len(it["spec"]["devices"]) for it in slices] == [64, 64]
    assert {it["spec"]["pool"]["resourceSliceCount"] for it in slices} == {2}
    for one in slices:
        assert list(resource_slices.errors(one, None)) == []
        assert not any("capacity" in it or "allowMultipleAllocations" in it for it in one["spec"]["devices"])


def test_a_sick_vf_has_a_taint_and_its_neighbors_have_none() -> None:
    facts = machine()
    node = Node(facts, PUBLISHED_BY_VF)
    sick = vfs_of(facts)[2]
    node.take(with_vf(sick.vfs[0], facts))
    assert list(node.taints("nic")) == [2]


def test_after_a_restart_the_last_speed_of_a_pf_is_that_of_its_vfs() -> None:
    facts = machine()
    pf = next(it for it in facts.functions if it.parent is None)
    assert pf.netdev is not None
    link = Link(
        pf.netdev,
        pf.pci_address,
        None,
        admin_up=True,
        carrier=True,
        operstate="up",
        speed_mbps=400_000,
        mtu=9000,
    )
    before = Node(replace(facts, links=(link,)), PUBLISHED_BY_VF)
    after = Node(replace(facts, links=(replace(link, speed_mbps=None, carrier=False),)), PUBLISHED_BY_VF)
    speeds = [values(it).get("speedMbps") for it in after.devices("nic", before.stored())]
    assert speeds == [400_000] * 4 + [None] * 4


def test_a_claim_gets_the_vfs_that_the_scheduler_chose_and_no_other_claim_does() -> None:
    devices = vfs_of(FACTS)
    record = prepared(devices[3], devices[1])
    assert [it.vfs for it in record.devices] == [devices[3].vfs, devices[1].vfs]
    env = dict(record.edits[f"{record.uid}-0"].env)
    chosen = sorted(devices[1].vfs + devices[3].vfs)
    assert sorted(env["PCIDEVICE_NVIDIA_DGX_H100_NIC0"].split(",")) == chosen
    assert len(record.device_info) == 2
    assert {id_ for it in holdings((record,)) for id_ in it.device_ids} == set(chosen)
    with pytest.raises(Occupied, match="has 1 of vfs, and other claims hold 1 of 1"):
        prepared(devices[1], others=(record,))
    prepared(devices[0], others=(record,))


def test_a_sick_vf_is_refused_and_its_status_names_the_reason() -> None:
    device = vfs_of(FACTS)[0]
    facts = with_vf(device.vfs[0])
    with pytest.raises(Refused):
        prepared(device, facts=facts)
    (entry,) = entries_of(prepared(device), facts)
    assert conditions(entry)["Healthy"] == ("False", SICK.reasons[0].key)
    assert entry["networkData"]["interfaceName"]
    assert "shareID" not in entry


def test_a_pod_of_the_device_plugin_keeps_its_vf_alone() -> None:
    devices = devices_of(FACTS, BY_VF)
    held = vfs_of(FACTS)[5]
    holding = Holding("ns", "old", "main", "nvidia-dgx-h100/nic1", held.vfs)
    free, left_out = without_plugin_holders(devices, replace(FACTS, holdings=(holding,)))
    assert [device.name for device in left_out] == [held.name]
    assert len(free) == len(devices) - 1


def test_a_name_that_no_attribute_holds_is_refused_on_the_machine() -> None:
    long = BY_VF.replace("nvidia-dgx-h100", "a" * 60 + ".io")
    messages = [it.message for it in Offer(load(long, name="test.yaml")).troubles(FACTS) if it.fatal]
    assert "vfDevices needs a shorter name" in messages[0]
    assert not Offer(load(BY_VF, name="test.yaml")).troubles(FACTS)


def test_without_mode_dra_the_setting_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"needs mode: dra"):
        load(BY_VF.replace("mode: dra, vfDevices", "vfDevices"), name="test.yaml")
