"""Claims whose VFs `nodeagent attach` moves: the CDI devices, the names in the pod, status and metadata."""

from __future__ import annotations

import json
from typing import Any

from msgspec.structs import replace

from nodeagent.attach.pod_plan import AttachPlan, PlannedVf
from nodeagent.dra.claim_preparation import CDI_KIND, prepare_claim, renewed
from nodeagent.dra.claim_status import device_statuses, own_entries, same
from nodeagent.dra.prepared_claim import PreparedClaim
from nodeagent.facts.model import ETHERNET, PodNetdev, Snapshot
from tests.dra.test_claim_preparation import ADMIN
from tests.dra.test_claim_status import MAC, stored_errors, with_macs
from tests.support.dra_node import (
    CONFIG,
    NODE,
    claim_of,
    decoded,
    devices_of,
    gpus_of,
    machine,
    pfs_of,
    result,
)

FACTS = with_macs(machine())
FACTS = replace(FACTS, functions=tuple(replace(it, link_type=ETHERNET) for it in FACTS.functions))
WITH_ATTACH = CONFIG + 'attach: {interface: "rail{rail}", addresses: "10.{100+rail}.0.0/16"}\n'
GPU, PF, SECOND = gpus_of(FACTS)[0], *pfs_of(FACTS)[:2]
PLAN = AttachPlan(
    "rail{rail}",
    {
        vf: PlannedVf(rail, 4200, f"10.{100 + rail}.{16 * (index + 1)}.7/16")
        for rail, pf in enumerate((PF, SECOND))
        for index, vf in enumerate(pf.vfs)
    },
)


def prepared(
    claim: dict[str, Any], *others: PreparedClaim, plan: AttachPlan | None = PLAN, text: str = WITH_ATTACH
) -> PreparedClaim:
    return prepare_claim(
        decoded(claim),
        node=NODE,
        devices=devices_of(FACTS, text),
        snapshot=FACTS,
        others=others,
        sequence=len(others) + 1,
        metadata_folder="/metadata",
        attach=plan,
    )


def entries_of(record: PreparedClaim, netdevs: dict[str, PodNetdev] | None, facts: Snapshot = FACTS) -> Any:
    devices = {device.name: device for device in devices_of(facts, WITH_ATTACH)}
    return device_statuses(record, devices, {it.pci_address: it for it in facts.functions}, netdevs)


def in_pod(record: PreparedClaim, name: str = "rail0", *addresses: str) -> dict[str, PodNetdev]:
    (vf,) = record.devices[0].vfs
    return {vf: PodNetdev(vf, "default", record.pods[0], name, addresses or ("10.100.16.7/16",))}


def test_the_container_of_a_claim_names_a_device_that_is_there_once_the_netdev_is_in_the_pod() -> None:
    record = prepared(claim_of("c", result(PF, 2, "r"), result(GPU, 1024, "g"), uid="0b3c-77"))
    stamped = [f"nodeagent.io/attached={vf}-0b3c77.1" for vf in PF.vfs[:2]]
    nic, share = record.devices
    assert nic.cdi_devices == (f"{CDI_KIND}=0b3c-77-0", *stamped)
    assert not any("attached" in name for name in share.cdi_devices)


def test_each_preparation_of_a_claim_names_other_devices() -> None:
    claim = claim_of("c", result(PF, 1, "r"))
    first = prepared(claim)
    other = prepared(claim_of("d", result(SECOND, 1, "r")))
    assert prepared(claim, other).devices[0].cdi_devices[1:] != first.devices[0].cdi_devices[1:]


def test_a_claim_that_is_renewed_names_the_same_devices() -> None:
    """The kubelet has them, and gives them to a container that starts again."""
    record = prepared(claim_of("c", result(PF, 1, "r")))
    again = renewed(record, devices_of(FACTS, WITH_ATTACH), FACTS)
    assert again.devices == record.devices


def test_an_administrator_gets_no_netdev() -> None:
    record = prepared(claim_of("m", result(PF, 0, "all", **ADMIN)))
    assert not any("attached" in name for it in record.devices for name in it.cdi_devices)


def test_without_the_setting_nothing_differs() -> None:
    record = prepared(claim_of("c", result(PF, 1, "r")), plan=None, text=CONFIG)
    assert record.devices[0].cdi_devices == (f"{CDI_KIND}={record.uid}-0",)
    assert record.devices[0].interfaces[0].in_pod is None


def test_the_metadata_has_the_name_and_the_addresses_in_the_pod() -> None:
    record = prepared(claim_of("c", result(PF, 2, "r")))
    text = record.metadata["r"].splitlines()[0]
    networks = [device["networkData"] for device in json.loads(text)["requests"][0]["devices"]]
    assert networks == [
        {"interfaceName": "rail0", "hardwareAddress": MAC, "ips": ["10.100.16.7/16"]},
        {"interfaceName": "rail0b", "hardwareAddress": MAC, "ips": ["10.100.32.7/16"]},
    ]


def test_the_names_of_a_second_claim_of_the_pod_come_after_those_of_the_first() -> None:
    first = prepared(claim_of("c", result(PF, 1, "r"), pod="trainer"))
    second = prepared(claim_of("d", result(PF, 1, "r"), pod="trainer"), first)
    assert [it.devices[0].interfaces[0].in_pod for it in (first, second)] == ["rail0", "rail0b"]


def test_another_pods_claim_does_not_count_for_the_names() -> None:
    claim = claim_of("d", result(PF, 1, "r"))
    claim["status"]["reservedFor"][0]["uid"] = "another pod"
    second = prepared(claim, prepared(claim_of("c", result(PF, 1, "r"))))
    assert second.devices[0].interfaces[0].in_pod == "rail0"


def test_a_vf_without_an_address_and_a_plan_that_is_off_tell_no_name() -> None:
    refused = {vf: replace(it, address=None, refusal="no number") for vf, it in PLAN.vfs.items()}
    for plan in (replace(PLAN, vfs=refused), replace(PLAN, on=False), replace(PLAN, vfs={}), None):
        record = prepared(claim_of("c", result(PF, 1, "r")), plan=plan)
        assert record.devices[0].interfaces[0].in_pod is None
        assert len(record.devices[0].cdi_devices) == 2, "it waits for its netdev all the same"


def test_the_status_has_name_mac_and_addresses_in_the_pod() -> None:
    claim = claim_of("c", result(PF, 1, "r"))
    record = prepared(claim)
    moved = replace(
        FACTS,
        functions=tuple(replace(it, netdev=None, mac=None) if it.parent else it for it in FACTS.functions),
    )
    (entry,) = entries_of(record, in_pod(record), moved)
    network = {"interfaceName": "rail0", "hardwareAddress": MAC, "ips": ["10.100.16.7/16"]}
    assert entry["networkData"] == network
    (vf,) = entry["data"]["vfs"]
    assert (vf["interface"], vf["ips"]) == ("rail0", ["10.100.16.7/16"])
    assert stored_errors(claim, [entry]) == []


def test_the_status_tells_the_name_that_the_netdev_really_has() -> None:
    record = prepared(claim_of("c", result(PF, 1, "r")))
    (entry,) = entries_of(record, in_pod(record, "net1", "10.9.0.4/24"))
    assert entry["networkData"] == {
        "interfaceName": "net1",
        "hardwareAddress": MAC,
        "ips": ["10.9.0.4/24"],
    }


def test_before_it_is_in_the_pod_the_status_has_the_netdev_on_the_host() -> None:
    record = prepared(claim_of("c", result(PF, 1, "r")))
    other = in_pod(record)
    (vf,) = other
    for netdevs in ({}, {vf: replace(other[vf], pod="another")}, {vf: replace(other[vf], namespace="other")}):
        (entry,) = entries_of(record, netdevs)
        assert entry["networkData"] == {
            "interfaceName": record.devices[0].interfaces[0].netdev,
            "hardwareAddress": MAC,
        }


def test_an_agent_that_has_just_started_does_not_change_the_status() -> None:
    record = prepared(claim_of("c", result(PF, 1, "r")))
    assert same(entries_of(record, None), entries_of(record, in_pod(record)))


def test_addresses_of_a_cni_plugin_stay_and_ours_are_compared() -> None:
    record = prepared(claim_of("c", result(PF, 1, "r")))
    (on_host,) = entries_of(record, {})
    plugin = {**on_host, "networkData": {**on_host["networkData"], "ips": ["10.9.0.4/24"]}}
    assert same([on_host], own_entries({"status": {"devices": [plugin]}}))
    (ours,) = entries_of(record, in_pod(record))
    other = {**ours, "networkData": {**ours["networkData"], "ips": ["10.9.0.4/24"]}}
    assert not same([ours], own_entries({"status": {"devices": [other]}}))
    assert same([ours], own_entries({"status": {"devices": [ours]}}))


def test_a_claim_on_a_nic_as_a_whole_names_one_device_and_keeps_its_address() -> None:
    nic = PF.pf
    functions = tuple(replace(it, num_vfs=0) for it in FACTS.functions if it.pci_address == nic.pci_address)
    facts = replace(FACTS, functions=functions)
    text = WITH_ATTACH.replace("kind: vf", "kind: nic")
    (whole,) = [device for device in devices_of(facts, text) if device.pool == "nic"]
    plan = AttachPlan("rail{rail}", {nic.pci_address: PlannedVf(0, whole=True, kept=("10.100.0.7/16",))})
    record = prepare_claim(
        decoded(claim_of("c", result(whole, 1, "r"), uid="0b3c-77")),
        node=NODE,
        devices=[whole],
        snapshot=facts,
        others=(),
        sequence=1,
        attach=plan,
    )
    (device,) = record.devices
    assert device.cdi_devices == (
        f"{CDI_KIND}=0b3c-77-0",
        f"nodeagent.io/attached={nic.pci_address}-0b3c77.1",
    )
    (interface,) = device.interfaces
    assert (interface.in_pod, interface.addresses) == ("rail0", ("10.100.0.7/16",))
