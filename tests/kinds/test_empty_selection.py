"""An entry of ``resources`` that selects nothing says which of its lists is the cause, and what there is instead."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from nodeagent.agent_config import load
from nodeagent.facts.model import Function, GpuFunction, Health, Link, Snapshot, State
from nodeagent.offering.offer import Offer
from tests.support.kind_machines import gpu_of, pf_of, vf_of

HEAD = "apiVersion: nodeagent.io/v1alpha1\nkind: NodeAgentConfig\nresourcePrefix: example.com\n"
PFS = tuple(replace(pf_of(rail, 2), netdev=f"enp{rail}s0np0", total_vfs=16) for rail in range(2))
VFS = tuple(
    vf_of(pf, index, device="101e", netdev=f"{pf.netdev}v{index}") for pf in PFS for index in range(2)
)
NICS = Snapshot(functions=(*PFS, *VFS))
GPUS = Snapshot(gpus=tuple(gpu_of(index) for index in range(2)))


def message(entry: str, facts: Snapshot) -> str:
    found = Offer(load(f"{HEAD}resources: [{entry}]\n", name="c")).troubles(facts)
    (trouble,) = (one for one in found if one.key == "idle")
    assert trouble.ready, "one configuration is for nodes of several types"
    return trouble.message.partition(": nothing is offered: ")[2]


A, B = (pf.pci_address for pf in PFS)
THERE = f"{A} (enp0s0np0), {B} (enp1s0np0)"


@pytest.mark.parametrize(
    ("select", "cause"),
    [
        (
            f'pciAddresses: ["{VFS[2].pci_address}"]',
            f"select.pciAddresses {VFS[2].pci_address} names VFs, and it selects PFs: name {B}, and the VFs by "
            "select.vfIndexes (0)",
        ),
        (
            'pciAddresses: ["0000:ff:00.0"]',
            f"no NIC has an address of select.pciAddresses 0000:ff:00.0: there are {THERE}",
        ),
        (
            "devices: ['101e']",
            f"select.devices 101e is the ID of VFs, and it selects PFs: write {PFS[0].device}, that of their PFs, or "
            "leave the list out",
        ),
        ("devices: ['ffff']", f"no NIC has a device ID of select.devices ffff: there are {PFS[0].device}"),
        (
            "netdevs: [enp1s0]",
            "no NIC has a name of select.netdevs enp1s0: enp1s0np0 may be its new name; enp1s0* matches both",
        ),
        (
            "netdevs: [enp1s0np0v1]",
            "select.netdevs enp1s0np0v1 names VFs, and it selects PFs: name enp1s0np0, and the VFs by select.vfIndexes",
        ),
        ("netdevs: [enp]", "no NIC has a name of select.netdevs enp: there are enp0s0np0, enp1s0np0"),
        ("vendors: ['8086']", f"no NIC matches select.vendors 8086: there are {PFS[0].vendor}"),
        ("drivers: ['ice*']", f"no NIC matches select.drivers ice*: there are {PFS[0].driver}"),
        ("linkTypes: [ethernet]", "no NIC matches select.linkTypes ethernet: there are infiniband"),
        (
            f'pciAddresses: ["{A}"], netdevs: [enp1s0np0]',
            f"no NIC matches all lists of select, and none of select.exclude: there are {THERE}",
        ),
        (
            'exclude: ["enp*"]',
            f"no NIC matches all lists of select, and none of select.exclude: there are {THERE}",
        ),
        ("rdma: false", f"each selected NIC has an RDMA device (select.rdma): {THERE}"),
    ],
)
def test_a_list_that_no_nic_matches_is_named_with_its_cause(select: str, cause: str) -> None:
    assert message(f"{{kind: vf, select: {{{select}}}}}", NICS) == cause


def test_a_vf_without_an_index_or_a_present_pf_is_named_without_it() -> None:
    vf = replace(VFS[2], vf_index=None)
    entry = f'{{kind: vf, select: {{pciAddresses: ["{vf.pci_address}"]}}}}'
    assert message(entry, replace(NICS, functions=(*PFS, vf))).endswith(
        f"name {B}, and the VFs by select.vfIndexes"
    )
    lost = replace(NICS, functions=(PFS[0], vf))
    assert message(entry, lost).startswith("no NIC has an address of select.pciAddresses ")


def test_a_nic_that_is_selected_and_whose_vfs_are_not_offered_says_why() -> None:
    (pf,) = (replace(PFS[0], num_vfs=0),)

    def link(**changes: object) -> Link:
        return replace(Link(pf.netdev or "", A, None, True, True, "up", 100_000, 9000), **changes)

    def said(function: Function, links: tuple[Link, ...] = (), entry: str = "{kind: vf}") -> str:
        return message(entry, Snapshot(functions=(function,), links=links))

    assert said(pf, (link(default_route=True),)) == (
        f"the default route of the host goes through {A} (enp0s0np0), so none of its VFs is offered "
        "(select.defaultRoute)"
    )
    assert said(pf, (link(node_address=True),), "{kind: nic}") == (
        f"an address of the Node is on {A} (enp0s0np0), and such a NIC is never offered whole"
    )
    assert said(pf, (link(),), "{kind: vf, select: {minSpeedMbps: 400000}}") == (
        f"each selected NIC is slower than select.minSpeedMbps 400000: {A} (enp0s0np0)"
    )
    bonded = (link(default_route=True, bonded=True),)
    of_bond = "{kind: vf, select: {defaultRoute: bond, rdma: false}}"
    assert said(pf, bonded, of_bond) == f"each selected NIC has an RDMA device (select.rdma): {A} (enp0s0np0)"
    slow, other = link(speed_mbps=10_000), replace(PFS[1], num_vfs=0, rdma=None)
    facts = Snapshot(functions=(pf, other), links=(slow,))
    assert message("{kind: vf, select: {rdma: true, minSpeedMbps: 400000}}", facts) == (
        f"no selected NIC meets both select.rdma and select.minSpeedMbps: {THERE}"
    )
    assert said(replace(pf, total_vfs=None, num_vfs=None)).startswith(
        f"{A} (enp0s0np0) has no SR-IOV: switch it on"
    )
    guest = Snapshot(guest=True, functions=(replace(pf, total_vfs=None, num_vfs=None),))
    assert message("{kind: vf}", guest) == (
        f"{A} (enp0s0np0) has no SR-IOV: this is a virtual machine, its host makes the VFs and passes them through "
        "whole. Offer them with kind nic"
    )
    assert said(replace(pf, health=Health(State.UNUSED))) == (
        f"{A} (enp0s0np0) has no link and no VF: connect it, or create its VFs (vfs)"
    )
    assert message("{kind: vf}", Snapshot()) == "this machine has no NIC"


@pytest.mark.parametrize(
    ("entry", "cause"),
    [
        ("kind: gpu, select: {indexes: ['7']}", "no GPU matches select.indexes 7: there are 0, 1"),
        (
            "kind: gpu-mem, select: {models: ['*B200*']}",
            "no GPU matches select.models *B200*: there are {name}",
        ),
        (
            f"kind: gpu, select: {{indexes: ['0'], uuids: [{GPUS.gpus[1].uuid}]}}",
            "no GPU matches all lists of select: there are {uuids}",
        ),
    ],
)
def test_a_list_that_no_gpu_matches_is_named(entry: str, cause: str) -> None:
    assert message(f"{{{entry}}}", GPUS) == cause.format(
        name=GPUS.gpus[0].name, uuids=", ".join(gpu.uuid for gpu in GPUS.gpus)
    )


def test_a_machine_without_gpus_says_so() -> None:
    assert message("{kind: gpu-mem}", Snapshot()) == "this machine has no GPU"
    of_guest = Snapshot(gpu_functions=(GpuFunction("0000:1b:00.0", "vfio-pci"),))
    assert message("{kind: gpu-mem}", of_guest) == (
        "the driver lists no GPU, and the PCI bus has 0000:1b:00.0: they are kept for guests, or gpu.driver is none"
    )
