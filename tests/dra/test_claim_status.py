"""The entries of ``status.devices``: bounded, with the VF that a claim got, and with its health."""

from __future__ import annotations

import json
from typing import Any

from msgspec.structs import replace

from nodeagent.dra.claim_status import VFS_MAX, device_statuses, same, with_times
from nodeagent.dra.prepared_claim import PreparedClaim
from nodeagent.facts.model import Reason, Snapshot, State
from nodeagent_lab.sim.apiserver import resource_claims
from tests.dra.test_claim_preparation import ADMIN, prepared
from tests.support.dra_node import claim_of, devices_of, gpus_of, machine, pfs_of, result
from tests.support.kind_machines import SICK

MAC = "02:00:00:00:00:07"


def with_macs(snapshot: Snapshot) -> Snapshot:
    vfs = (replace(it, mac=MAC) if it.parent is not None else it for it in snapshot.functions)
    return replace(snapshot, functions=tuple(vfs))


def entries_of(record: PreparedClaim, snapshot: Snapshot) -> list[dict[str, Any]]:
    functions = {function.pci_address: function for function in snapshot.functions}
    return device_statuses(record, {device.name: device for device in devices_of(snapshot)}, functions)


def conditions(entry: dict[str, Any]) -> dict[str, tuple[str, str]]:
    return {it["type"]: (it["status"], it["reason"]) for it in entry["conditions"]}


def stored_errors(claim: dict[str, Any], entries: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Return the fields that the API server refuses of a claim with these entries."""
    claim["spec"]["devices"]["requests"] = [
        {
            "name": it["request"],
            "exactly": {"deviceClassName": "c", "allocationMode": "ExactCount", "count": 1},
        }
        for it in claim["status"]["allocation"]["devices"]["results"]
    ]
    after = {
        **claim,
        "status": {**claim["status"], "devices": with_times(entries, [], "2026-11-26T21:00:00Z")},
    }
    return list(resource_claims.errors(after, claim))


def test_the_status_names_the_vf_that_the_claim_got_and_the_share_of_the_gpu() -> None:
    facts = with_macs(machine())
    gpu, pf = gpus_of(facts)[0], pfs_of(facts)[0]
    claim = claim_of("c", result(pf, 1, "r"), result(gpu, 2048, "g"))
    nic, share = entries_of(prepared(claim, facts), facts)
    results = claim["status"]["allocation"]["devices"]["results"]
    assert [nic["shareID"], share["shareID"]] == [it["shareID"] for it in results]
    vf = next(it for it in facts.functions if it.pci_address == pf.vfs[0])
    assert vf.netdev is not None
    assert vf.rdma is not None
    assert nic["networkData"] == {"interfaceName": vf.netdev, "hardwareAddress": MAC}
    assert nic["data"] == {
        "vfs": [
            {"pciAddress": pf.vfs[0], "netdev": vf.netdev, "mac": MAC, "rdmaDevice": vf.rdma.device},
        ]
    }
    assert share["data"] == {"uuid": gpu.gpu.uuid, "memoryMiB": 2048}
    assert "networkData" not in share
    assert conditions(nic) == {"Ready": ("True", "Prepared"), "Healthy": ("True", "NoFault")}
    assert stored_errors(claim, [nic, share]) == []


def test_the_netdev_of_a_vf_is_remembered_when_a_cni_plugin_has_moved_it() -> None:
    facts = with_macs(machine())
    pf = pfs_of(facts)[0]
    record = prepared(claim_of("c", result(pf, 1, "r")), facts)
    moved = replace(facts, functions=tuple(replace(it, netdev=None, mac=None) for it in facts.functions))
    assert same(entries_of(record, moved), entries_of(record, facts))


def test_a_netdev_that_has_another_name_on_the_host_by_now_is_told() -> None:
    """A driver that was loaded again, or udev, has renamed it while the claim is prepared."""
    facts = with_macs(machine())
    pf = pfs_of(facts)[0]
    record = prepared(claim_of("c", result(pf, 1, "r")), facts)
    renamed = replace(
        facts,
        functions=tuple(
            replace(it, netdev="eth77", mac="02:00:00:00:00:99", rdma=None)
            if it.pci_address == pf.vfs[0]
            else it
            for it in facts.functions
        ),
    )
    (before,), (after,) = entries_of(record, facts), entries_of(record, renamed)
    assert after["networkData"] == {"interfaceName": "eth77", "hardwareAddress": "02:00:00:00:00:99"}
    (data,) = after["data"]["vfs"]
    assert data == before["data"]["vfs"][0] | {"netdev": "eth77", "mac": "02:00:00:00:00:99"}


def test_the_health_is_that_of_the_vfs_of_the_claim() -> None:
    facts = machine()
    pf = pfs_of(facts)[0]
    record = prepared(claim_of("c", result(pf, 2, "r")), facts)

    def with_vf(address: str, **changes: Any) -> Snapshot:
        functions = (replace(it, **changes) if it.pci_address == address else it for it in facts.functions)
        return replace(facts, functions=tuple(functions))

    (other,) = entries_of(record, with_vf(pf.vfs[3], health=SICK))
    assert conditions(other)["Healthy"] == ("True", "NoFault"), "another claim's VF"
    (sick,) = entries_of(record, with_vf(pf.vfs[1], health=SICK))
    assert conditions(sick)["Healthy"][0] == "False"
    assert sick["conditions"][1]["message"]
    degraded = replace(SICK, state=State.DEGRADED, allocatable=True)
    (marked,) = entries_of(record, with_vf(pf.vfs[1], health=degraded))
    assert conditions(marked)["Healthy"] == ("True", SICK.reasons[0].key)
    gone = replace(facts, functions=tuple(it for it in facts.functions if it.pci_address != pf.vfs[0]))
    (lost,) = entries_of(record, gone)
    assert conditions(lost)["Healthy"] == ("Unknown", "NotFound")


def test_the_entry_of_many_vfs_and_of_a_hostile_reason_stays_within_the_limits() -> None:
    facts = with_macs(machine(rails=1, gpus=0, vfs=100))
    (pf,) = pfs_of(facts)
    loud = replace(SICK, reasons=(Reason("link_down", "\U0001f4a3" * 9000),), allocatable=True)
    facts = replace(facts, functions=tuple(replace(it, health=loud) for it in facts.functions))
    claim = claim_of("c", result(pf, 100, "r"))
    (entry,) = entries_of(prepared(claim, facts), facts)
    assert len(entry["data"]["vfs"]) == VFS_MAX
    assert entry["data"]["more"] == 100 - VFS_MAX
    assert "networkData" not in entry, "it has room for one interface"
    assert len(json.dumps(entry)) < 8000
    assert stored_errors(claim, [entry]) == []


def test_an_administrator_has_a_status_without_a_share() -> None:
    facts = machine()
    gpu = gpus_of(facts)[0]
    claim = claim_of("c", result(gpu, 0, "g", **ADMIN))
    (entry,) = entries_of(prepared(claim, facts), facts)
    assert entry["data"] == {"adminAccess": True}
    assert stored_errors(claim, [entry]) == []


def test_a_condition_keeps_its_time_while_its_status_is_the_same() -> None:
    facts = machine()
    record = prepared(claim_of("c", result(gpus_of(facts)[0], 1024, "g")), facts)
    first = with_times(entries_of(record, facts), [], "2026-11-26T21:00:00Z")
    sick = replace(facts, gpus=tuple(replace(it, health=SICK) for it in facts.gpus))
    assert same(entries_of(record, facts), first)
    assert not same(entries_of(record, sick), first)
    (entry,) = with_times(entries_of(record, sick), first, "2026-11-26T22:00:00Z")
    assert [it["lastTransitionTime"][11:13] for it in entry["conditions"]] == ["21", "22"]
