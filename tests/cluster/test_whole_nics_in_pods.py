"""A pod that holds a NIC as a whole is known by it wherever pods with VFs are: Events, reports, jobs, claims."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from nodeagent.cluster.affected_devices import affected_pods, failed_ids
from nodeagent.cluster.node_report import vf_holders
from nodeagent.dra.devices import DraDevice
from nodeagent.dra.nccl_devices import ib_hca
from nodeagent.dra.pf_device import pf_devices
from nodeagent.facts.device_pods import pods_by_device
from nodeagent.facts.model import Function, Holding, Rdma, Snapshot
from nodeagent.kinds.vf import VfPool
from tests.support.kind_machines import SICK, pf_of, vf_of

NIC = replace(pf_of(0), num_vfs=0)
WHOLE0 = VfPool("x/whole0", (NIC.pci_address,), whole=True)


def held(nic: Function, claim: str = "", *more: Function) -> Snapshot:
    holding = Holding("default", "worker", "main", "x/whole0", (nic.pci_address,), claim=claim)
    return Snapshot(functions=(nic, *more), holdings=(holding,))


def affected(snapshot: Snapshot) -> list[str]:
    offered = {"x/whole0": WHOLE0.devices(snapshot)}
    return [
        f"{pod.namespace}/{pod.pod} {pod.device.title}"
        for pod in affected_pods(snapshot, tuple(offered.items()))
    ]


@pytest.mark.parametrize("claim", ["", "rails"])
def test_a_pod_with_a_sound_nic_has_no_trouble_and_one_with_a_sick_nic_has_it(claim: str) -> None:
    assert affected(held(NIC, claim)) == []
    assert failed_ids(held(NIC, claim), [NIC.pci_address]) == frozenset()
    sick = held(replace(NIC, health=SICK), claim)
    assert affected(sick) == [f"default/worker {NIC.netdev} ({NIC.pci_address})"]
    assert failed_ids(sick, [NIC.pci_address]) == {NIC.pci_address}


def test_vfs_that_somebody_makes_of_a_held_nic_do_not_make_its_pod_one_without_a_device() -> None:
    divided = replace(NIC, num_vfs=1)
    assert affected(held(divided, "", vf_of(divided, 0))) == []


def test_the_report_and_the_pages_name_the_pod_of_a_nic() -> None:
    snapshot = held(NIC)
    (holder,) = vf_holders(snapshot, {NIC.pci_address: "nic0"}, None, "2026-11-30T00:00:00Z")
    assert (holder.pod, [(vf.link, vf.pci_address) for vf in holder.vfs]) == (
        "worker",
        [("nic0", NIC.pci_address)],
    )
    assert pods_by_device(snapshot) == {NIC.pci_address: ("default/worker",)}


def test_nccl_is_told_the_rail_of_a_nic_as_a_whole() -> None:
    nic = replace(NIC, rdma=Rdma("mlx5_7", "/dev/infiniband/uverbs7"))
    snapshot = Snapshot(functions=(nic,))
    devices: list[DraDevice] = [*pf_devices(WHOLE0, {nic.pci_address: 3}, snapshot, vf_devices=False)]
    assert ib_hca([nic.pci_address], devices, snapshot.functions) == "=mlx5_7:1:3"
