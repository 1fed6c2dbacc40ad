"""The containers of a claim learn of its GPUs and NICs as vLLM, UCX, NVSHMEM and NCCL read it."""

from __future__ import annotations

from itertools import permutations, product

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from nodeagent.agent_config import load
from nodeagent.config.file_errors import ConfigError
from nodeagent.dra.claim_preparation import prepare_claim, renewed
from nodeagent.dra.devices import DraDevice
from nodeagent.dra.gpu_device import GpuDevice
from nodeagent.dra.pf_device import PfDevice
from nodeagent.dra.prepared_claim import PreparedClaim
from nodeagent.dra.told_pairs import pairs
from nodeagent.facts.affinity import affinity
from nodeagent.facts.model import Function, Gpu, Snapshot
from tests.support.dra_node import CONFIG, NODE, claim_of, decoded, devices_of, machine, result
from tests.support.kind_machines import gpu_of, pf_of, vf_of

NAMES = (
    "VLLM_GPU_NIC_PCIE_MAPPING",
    "VLLM_NIC_SELECTION_VARS",
    "UCX_NET_DEVICES",
    "NVSHMEM_HCA_LIST",
    "NCCL_IB_HCA",
)


def telling(*programs: str) -> str:
    return CONFIG.replace("{kind: vf, mode: dra,", f"{{kind: vf, mode: dra, tell: [{', '.join(programs)}],")


def prepared(facts: Snapshot, text: str, *devices: DraDevice) -> PreparedClaim:
    results = [
        result(device, 1 if device.pool == "nic" else device.capacity.total, f"r{number}")
        for number, device in enumerate(devices)
    ]
    return prepare_claim(
        decoded(claim_of("c", *results)),
        node=NODE,
        devices=devices_of(facts, text),
        snapshot=facts,
        others=(),
        sequence=1,
    )


def told(record: PreparedClaim) -> list[dict[str, str]]:
    """The variables for programs of each CDI device of the claim."""
    return [{name: value for name, value in edits.env if name in NAMES} for edits in record.edits.values()]


def split(facts: Snapshot, text: str) -> tuple[list[GpuDevice], list[PfDevice]]:
    devices = devices_of(facts, text)
    return (
        [it for it in devices if isinstance(it, GpuDevice)],
        [it for it in devices if isinstance(it, PfDevice)],
    )


def rdma_of(facts: Snapshot, device: PfDevice) -> str:
    return next(it.rdma.device for it in facts.functions if it.pci_address == device.vfs[0] and it.rdma)


def test_vllm_learns_the_nic_of_each_gpu_and_sets_the_variables_of_the_transports_itself() -> None:
    facts = machine(rails=4, gpus=4)
    text = telling("vllm", "ucx", "nvshmem", "nccl")
    gpus, pfs = split(facts, text)
    record = prepared(facts, text, pfs[3], gpus[1], pfs[1], gpus[3])
    names = {device: rdma_of(facts, pfs[device]) for device in (1, 3)}
    expected = {
        "VLLM_GPU_NIC_PCIE_MAPPING": f"0000:21:00.0={pfs[1].vfs[0]},0000:23:00.0={pfs[3].vfs[0]}",
        "VLLM_NIC_SELECTION_VARS": "UCX_NET_DEVICES:1,NVSHMEM_HCA_LIST:1",
        "NCCL_IB_HCA": f"={names[1]}:1:1,{names[3]}:1:3",
    }
    assert told(record) == [expected, {}, expected, {}], "each NIC of the claim names all its NICs"


@pytest.mark.parametrize(
    ("programs", "names"),
    [
        ((), set()),
        (("vllm",), {"VLLM_GPU_NIC_PCIE_MAPPING", "VLLM_NIC_SELECTION_VARS"}),
        (("ucx",), {"UCX_NET_DEVICES"}),
        (("nvshmem",), {"NVSHMEM_HCA_LIST"}),
        (("nccl", "ucx"), {"NCCL_IB_HCA", "UCX_NET_DEVICES"}),
    ],
)
def test_a_program_that_is_not_asked_for_is_told_nothing(programs: tuple[str, ...], names: set[str]) -> None:
    facts = machine()
    gpus, pfs = split(facts, telling(*programs))
    gpu, nic = told(prepared(facts, telling(*programs), gpus[0], pfs[0]))
    assert (gpu, nic.keys()) == ({}, names)


def test_without_vllm_the_devices_of_the_claim_are_listed_with_their_port() -> None:
    facts = machine()
    text = telling("ucx", "nvshmem")
    _, pfs = split(facts, text)
    assert told(prepared(facts, text, pfs[1]))[0]["UCX_NET_DEVICES"] == f"{rdma_of(facts, pfs[1])}:1"
    both = ",".join(f"{rdma_of(facts, it)}:1" for it in sorted(pfs, key=lambda it: it.vfs[0]))
    assert told(prepared(facts, text, *reversed(pfs)))[0] == {
        "UCX_NET_DEVICES": both,
        "NVSHMEM_HCA_LIST": both,
    }


def test_where_others_hand_out_the_gpus_every_gpu_of_the_node_has_a_nic() -> None:
    facts = machine(rails=2, gpus=3)
    text = telling("vllm")
    _, pfs = split(facts, text)
    mapping = dict(
        pair.split("=")
        for pair in told(prepared(facts, text, *pfs))[0]["VLLM_GPU_NIC_PCIE_MAPPING"].split(",")
    )
    assert mapping.keys() == {gpu.pci_address for gpu in facts.gpus}
    assert mapping["0000:20:00.0"] == pfs[0].vfs[0]
    assert mapping["0000:21:00.0"] == pfs[1].vfs[0]


def test_without_a_gpu_of_the_node_vllm_is_told_nothing_and_the_transports_are() -> None:
    facts = machine(gpus=0)
    text = telling("vllm", "ucx")
    _, pfs = split(facts, text)
    assert told(prepared(facts, text, pfs[0])) == [{"UCX_NET_DEVICES": f"{rdma_of(facts, pfs[0])}:1"}]
    lost = replace(machine(gpus=1), gpus=(replace(gpu_of(0), lost=True),))
    assert told(prepared(lost, text, split(lost, text)[1][0]))[0].keys() == {"UCX_NET_DEVICES"}


def test_without_an_rdma_device_nobody_is_told_anything() -> None:
    facts = machine()
    bare = replace(facts, functions=tuple(replace(it, rdma=None) for it in facts.functions))
    text = telling("vllm", "ucx", "nvshmem", "nccl")
    gpus, pfs = split(bare, text)
    assert told(prepared(bare, text, gpus[0], pfs[0])) == [{}, {}]


def test_a_driver_that_names_its_devices_anew_changes_what_is_told() -> None:
    facts = machine()
    text = telling("ucx", "vllm", "nvshmem")
    gpus, pfs = split(facts, text)
    record = prepared(facts, text, gpus[0], pfs[0])
    anew = replace(
        facts,
        functions=tuple(
            replace(it, rdma=replace(it.rdma, device=f"{it.rdma.device}0")) if it.rdma else it
            for it in facts.functions
        ),
    )
    same, other = (
        renewed(record, devices_of(facts, text), facts),
        renewed(record, devices_of(anew, text), anew),
    )
    assert told(same) == told(record)
    assert told(other) == told(record), "pairs are PCI addresses"
    text = telling("ucx")
    record = prepared(facts, text, pfs[0])
    assert told(renewed(record, devices_of(anew, text), anew)) == [
        {"UCX_NET_DEVICES": f"{rdma_of(facts, pfs[0])}0:1"}
    ]


@pytest.mark.parametrize("value", ["[vlm]", "vllm", "[vllm, vllm]"])
def test_a_program_that_is_not_known_or_named_twice_is_an_error_of_the_file(value: str) -> None:
    with pytest.raises(ConfigError, match="tell"):
        load(
            CONFIG.replace("{kind: vf, mode: dra,", f"{{kind: vf, mode: dra, tell: {value},"),
            name="test.yaml",
        )


def places(roots: list[int], legs: list[int]) -> list[tuple[str, ...]]:
    return [
        (f"pci0000:{root:02x}", f"0000:{root:02x}:{leg:02x}.0", f"0000:{root + 1:02x}:{leg:02x}.0")
        for root, leg in zip(roots, legs, strict=True)
    ]


@st.composite
def sides(draw: st.DrawFn) -> tuple[list[Gpu], list[Function]]:
    """Up to four GPUs and four NICs at two switches of two roots each."""
    where = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1)), min_size=1, max_size=4)
    gpus, nics = [], []
    for index, (root, leg) in enumerate(draw(where)):
        gpu = gpu_of(index, numa=root)
        (path,) = places([root], [leg])
        gpus.append(replace(gpu, pci_path=(*path, gpu.pci_address)))
    for index, (root, leg) in enumerate(draw(where)):
        vf = vf_of(pf_of(index), 0, numa_node=root)
        (path,) = places([root], [leg])
        nics.append(replace(vf, pci_path=(*path, vf.pci_address)))
    return gpus, nics


def cost(gpus: list[Gpu], nics: list[Function], choice: dict[str, str]) -> tuple[int, int]:
    """The sum of all hops, then the GPUs that share a NIC."""
    by = {nic.pci_address: nic for nic in nics}
    hops = sum(
        affinity(gpu.pci_path, gpu.numa_node, (nic := by[choice[gpu.pci_address]]).pci_path, nic.numa_node)
        for gpu in gpus
    )
    loads = [list(choice.values()).count(nic) for nic in by]
    return hops, sum(load * load for load in loads)


@given(sides())
@example(([gpu_of(0)], [vf_of(pf_of(0), 0), vf_of(pf_of(0), 1)]))
def test_no_other_pairs_are_nearer_or_better_spread(machine: tuple[list[Gpu], list[Function]]) -> None:
    gpus, nics = machine
    found = pairs(gpus, nics)
    assert found.keys() == {gpu.pci_address for gpu in gpus}
    every = product([nic.pci_address for nic in nics], repeat=len(gpus))
    best = min(
        cost(gpus, nics, {gpu.pci_address: nic for gpu, nic in zip(gpus, choice, strict=True)})
        for choice in every
    )
    assert cost(gpus, nics, found) == best


@given(sides(), st.data())
def test_the_order_of_what_is_known_does_not_change_the_pairs(
    machine: tuple[list[Gpu], list[Function]], data: st.DataObject
) -> None:
    gpus, nics = machine
    found = pairs(gpus, nics)
    assert pairs(data.draw(st.sampled_from(list(permutations(gpus)))), nics) == found
    assert pairs(gpus, data.draw(st.sampled_from(list(permutations(nics))))) == found


def test_two_vfs_of_one_nic_are_used_before_one_vf_twice_and_two_nics_before_two_vfs() -> None:
    path = ("pci0000:00", "0000:00:00.0", "0000:01:00.0")
    gpus = [replace(gpu_of(i), pci_path=(*path, f"0000:{0x20 + i:02x}:00.0")) for i in range(3)]
    vfs = [
        replace(vf, pci_path=(*path, vf.pci_address))
        for vf in (vf_of(pf_of(0), 0), vf_of(pf_of(0), 1), vf_of(pf_of(1), 0))
    ]
    assert sorted(pairs(gpus[:2], vfs).values()) == sorted((vfs[0].pci_address, vfs[2].pci_address))
    assert set(pairs(gpus, vfs).values()) == {it.pci_address for it in vfs}
