"""NCCL_IB_HCA of a claim: rails and planes as the node has them."""

from __future__ import annotations

import re

from msgspec.structs import replace

from nodeagent.dra.claim_preparation import prepare_claim
from nodeagent.dra.pf_device import PfDevice
from nodeagent.dra.prepared_claim import PreparedClaim, holdings
from nodeagent.facts.model import Function, Rdma, Snapshot
from tests.support.dra_node import CONFIG, NODE, claim_of, decoded, devices_of, machine, result
from tests.support.kind_machines import pf_of, vf_of

VF_ENTRY = "- {kind: vf, mode: dra, select: {drivers: [mlx5_core]}}\n"
ONE_PLANE = CONFIG.replace("{kind: vf, mode: dra,", "{kind: vf, mode: dra, ncclIbHca: true,")
PLANES = CONFIG.replace(
    VF_ENTRY,
    "".join(
        f'- {{kind: vf, mode: dra, ncclIbHca: true, name: "nic{{rail}}p{n}", select: {{pciAddresses: ["*.{n}"]}}}}\n'
        for n in range(2)
    ),
)


def two_planes(rails: int = 2, vfs: int = 4) -> Snapshot:
    """NICs of two PFs in one slot. RDMA devices have numbers in the order of probing."""
    functions: list[Function] = []
    for rail in range(rails):
        for plane in range(2):
            first = pf_of(rail)
            pf = replace(first, pci_address=f"{first.pci_address[:-1]}{plane}", netdev=f"ib{rail}p{plane}")
            functions.append(pf)
            for index in range(vfs):
                vf = vf_of(pf, index, pci_address=f"{pf.pci_address[:-4]}{plane + 1:02x}.{index}")
                rdma = Rdma(f"mlx5_{20 + rail * 10 + plane * vfs + index}", f"/dev/infiniband/uverbs{index}")
                functions.append(replace(vf, rdma=rdma))
    return replace(machine(), functions=tuple(sorted(functions, key=lambda it: it.pci_address)))


def pfs(facts: Snapshot, text: str) -> list[PfDevice]:
    return [it for it in devices_of(facts, text) if isinstance(it, PfDevice)]


def prepared(
    facts: Snapshot, text: str, *devices: PfDevice, others: tuple[PreparedClaim, ...] = (), vfs: int = 1
) -> PreparedClaim:
    results = [result(device, vfs, f"r{number}") for number, device in enumerate(devices)]
    return prepare_claim(
        decoded(claim_of(f"c{len(others)}", *results)),
        node=NODE,
        devices=devices_of(facts, text),
        snapshot=replace(facts, holdings=holdings(others)),
        others=others,
        sequence=len(others) + 1,
    )


def values(record: PreparedClaim) -> list[str | None]:
    return [dict(edits.env).get("NCCL_IB_HCA") for edits in record.edits.values()]


def test_every_device_of_a_claim_names_the_rdma_devices_of_all_its_rails() -> None:
    facts = machine()
    zero, one = pfs(facts, ONE_PLANE)
    of = {it.pci_address: it.rdma.device for it in facts.functions if it.rdma}
    value = f"={of[zero.vfs[0]]}:1:0,{of[one.vfs[0]]}:1:1"
    assert values(prepared(facts, ONE_PLANE, one, zero)) == [value, value]
    assert values(prepared(facts, CONFIG, *pfs(facts, CONFIG))) == [None, None], "off by default"
    bare = replace(facts, functions=tuple(replace(it, rdma=None) for it in facts.functions))
    assert values(prepared(bare, ONE_PLANE, *pfs(bare, ONE_PLANE))) == [None, None]


def test_the_planes_of_a_nic_have_one_rail_and_the_numbers_of_their_pfs() -> None:
    facts = two_planes()
    devices = pfs(facts, PLANES)
    assert [(it.rail, it.pf.pci_address[-1]) for it in devices] == [(0, "0"), (0, "1"), (1, "0"), (1, "1")]
    expected = "=mlx5_20:1:0:0,mlx5_24:1:0:1,mlx5_30:1:1:0,mlx5_34:1:1:1"
    assert values(prepared(facts, PLANES, *reversed(devices))) == [expected] * 4
    assert values(prepared(facts, PLANES, devices[3], vfs=2)) == ["=mlx5_34:1:1:1,mlx5_35:1:1:1"]


def test_a_name_without_a_rail_gives_no_tags() -> None:
    facts = machine(rails=1)
    text = ONE_PLANE.replace("ncclIbHca: true,", "ncclIbHca: true, name: nic,")
    assert re.fullmatch(r"=mlx5_\d+:1", values(prepared(facts, text, *pfs(facts, text)))[0] or "")


def test_claims_get_one_index_on_all_planes_although_one_plane_is_used_more() -> None:
    facts = two_planes(rails=1)
    zero, one = pfs(facts, PLANES)
    alone = prepared(facts, PLANES, zero)
    record = prepared(facts, PLANES, one, zero, others=(alone,))
    index = {it.pci_address: it.vf_index for it in facts.functions}
    assert [index[vf] for device in record.devices for vf in device.vfs] == [1, 1]


def test_the_former_name_of_the_setting_means_the_same() -> None:
    facts = machine()
    first, *rest = (
        values(prepared(facts, text, *pfs(facts, text)))
        for text in (
            ONE_PLANE,
            ONE_PLANE.replace("ncclIbHca: true", "tell: [nccl]"),
            ONE_PLANE.replace("ncclIbHca: true", "ncclIbHca: true, tell: [nccl]"),
        )
    )
    assert rest == [first, first]
    assert None not in first
