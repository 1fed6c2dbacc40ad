"""Compare the size of device lists with bytes encoded by hand as protobuf."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.agent_config import Config, check
from nodeagent.config.file_errors import ConfigError
from nodeagent.kinds.device_list_size import (
    ASSUMED_MIB,
    LIMIT,
    POD_DEVICES_MAX,
    STATUS_LIMIT,
    device_size,
    list_refusal,
    size_conflicts,
    slices,
    slices_size,
    smallest_slice,
    status_remark,
    status_remarks,
)
from nodeagent.kinds.resource_settings import GpuMemResource, GpuSelect

H100 = 81559
UUID = "GPU-5c8e1a50-0d1f-4c43-a3d6-1f2e3d4c5b6a"


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def field(number: int, content: bytes) -> bytes:
    """Length-delimited, wire type 2."""
    return varint(number << 3 | 2) + varint(len(content)) + content


def device(device_id: str, health: str, nodes: list[int]) -> bytes:
    """One ``devices`` field of a ``v1beta1.ListAndWatchResponse``."""
    numa = b"".join(field(1, b"\x08" + varint(node) if node else b"") for node in nodes)
    topology = field(3, numa) if nodes else b""
    return field(1, field(1, device_id.encode()) + field(2, health.encode()) + topology)


def gpu_slices(counts: list[int]) -> bytes:
    ids = [f"{UUID}::{n}" for count in counts for n in range(count)]
    return b"".join(device(one, "Unhealthy", [1]) for one in ids)


def test_a_known_device_has_the_expected_bytes() -> None:
    assert device("a", "Healthy", [1]) == bytes.fromhex("0a12 0a0161 12074865616c746879 1a040a020801")
    assert device_size(1, (1,), healthy=True) == 20


@given(st.integers(1, 20_000), st.lists(st.integers(0, 2**62), max_size=40), st.booleans())
def test_the_size_of_a_device_is_the_length_of_its_bytes(
    length: int, nodes: list[int], healthy: bool
) -> None:
    encoded = device("x" * length, "Healthy" if healthy else "Unhealthy", nodes)
    assert device_size(length, nodes, healthy=healthy) == len(encoded)


@given(st.lists(st.integers(0, 1200), max_size=4))
def test_the_size_of_a_list_of_slices_is_the_length_of_its_bytes(counts: list[int]) -> None:
    encoded = gpu_slices(counts)
    assert slices_size(counts) == len(encoded)
    assert sum(device_size(len(f"{UUID}::{n}"), (1,)) for count in counts for n in range(count)) == len(
        encoded
    )


def test_a_device_without_a_numa_node_carries_no_topology() -> None:
    assert device_size(12) == len(device("0000:1a:00.3", "Unhealthy", []))


def test_a_gpu_offers_what_its_memory_less_the_reserve_holds() -> None:
    assert slices(H100, 512, 1024) == 79
    assert slices(H100, 0, 1024) == 79
    assert slices(512, 512, 1024) == 0
    assert slices(100, 512, 1024) == 0


@given(st.lists(st.integers(1, 200_000), min_size=1, max_size=16), st.integers(0, 2048))
def test_the_smallest_slice_fits_and_one_less_does_not(memories: list[int], reserved: int) -> None:
    least = smallest_slice(reserved, memories)
    assert slices_size(slices(memory, reserved, least) for memory in memories) <= LIMIT
    if least > 1:
        assert slices_size(slices(memory, reserved, least - 1) for memory in memories) > LIMIT


def test_the_default_fits_every_machine_there_is() -> None:
    assert not [*size_conflicts(Config().resources)]
    assert not [*size_conflicts(Config().resources, (288 * 1024,) * 16)]
    assert not [*size_conflicts(Config().resources, ())]


def test_slices_of_a_mebibyte_are_refused_with_the_numbers_and_the_remedy() -> None:
    (conflict,) = size_conflicts((GpuMemResource(slice_mib=1),))
    assert conflict.paths == (("resources", 0, "sliceMiB"),)
    assert conflict.message == (
        "1 MiB makes 648376 devices on 8 GPUs (assumed: 8 GPUs of 81559 MiB), a list of 44000688 bytes; the "
        "kubelet refuses more than 4194304, the limit here is 3145728; sliceMiB: 14 is the smallest that fits"
    )
    assert not [*size_conflicts((GpuMemResource(slice_mib=14),))]
    assert [*size_conflicts((GpuMemResource(slice_mib=13),))]


def test_only_the_gpus_that_an_entry_selects_count() -> None:
    assert [*size_conflicts((GpuMemResource(slice_mib=2),), ASSUMED_MIB)]
    one = GpuSelect(indexes=("3",))
    assert not [*size_conflicts((GpuMemResource(slice_mib=2, select=one),), ASSUMED_MIB)]
    two = GpuSelect(uuids=(UUID,))
    assert not [*size_conflicts((GpuMemResource(slice_mib=2, select=two),), ASSUMED_MIB)]


def test_a_slice_larger_than_every_gpu_is_refused_on_a_known_machine_only() -> None:
    resource = GpuMemResource(slice_mib=100_000)
    assert list_refusal(resource.slice_mib, resource.reserved_mib, [H100, 40_000]) == (
        "no GPU holds a slice of 100000 MiB beside 512 MiB reserved: the largest has 81559 MiB (this machine)"
    )
    assert list_refusal(resource.slice_mib, resource.reserved_mib, [H100, 200_000]) is None
    assert list_refusal(resource.slice_mib, resource.reserved_mib, []) is None
    assert not [*size_conflicts((resource,))]


def test_check_reports_the_line() -> None:
    head = "apiVersion: nodeagent.io/v1alpha1\nkind: NodeAgentConfig\n"
    text = head + "resources:\n- kind: gpu-mem\n  sliceMiB: 1\n"
    with pytest.raises(ConfigError) as caught:
        check(text, name="file", gpu_memories_mib=[H100] * 2)
    (fault,) = caught.value.errors
    assert (fault.path, fault.line) == ("resources[0].sliceMiB", 5)
    assert "162094 devices on 2 GPUs (this machine)" in fault.message
    assert check(text, name="file", gpu_memories_mib=[1000]).resources[0] == GpuMemResource(slice_mib=1)


def status_entry(n: int) -> dict[str, str]:
    """ResourceHealth (core/v1) as the kubelet writes it; the largest number is the longest ID."""
    return {"resourceID": f"{UUID}::{n}", "health": "Unhealthy"}


def test_a_pod_with_as_many_slices_as_the_limit_allows_has_a_status_that_etcd_accepts() -> None:
    entries = [status_entry(n) for n in range(POD_DEVICES_MAX)]
    status = {"allocatedResourcesStatus": [{"name": "nvidia-dgx-h100/gpu-mem", "resources": entries}]}
    size = len(json.dumps(status, separators=(",", ":")))
    assert STATUS_LIMIT * 0.85 < size < STATUS_LIMIT
    assert 16_000 < POD_DEVICES_MAX < 17_500


@given(st.lists(st.integers(1, 300_000), min_size=1, max_size=16), st.integers(1, 4096))
def test_the_slice_size_in_the_remark_has_no_remark_and_one_less_has(
    memories: list[int], slice_mib: int
) -> None:
    remark = status_remark(slice_mib, 512, memories)
    if remark is None:
        assert sum(slices(memory, 512, slice_mib) for memory in memories) <= POD_DEVICES_MAX
        return
    least = int(remark.rpartition("sliceMiB: ")[2].split()[0])
    assert status_remark(least, 512, memories) is None
    assert status_remark(least - 1, 512, memories) is not None


def test_the_default_has_no_remark_and_a_small_slice_of_all_gpus_has_one() -> None:
    assert not [*status_remarks(Config().resources)]
    (remark,) = status_remarks((GpuMemResource(slice_mib=32),))
    assert "gpu-mem: slices of 32 MiB make 20256 devices" in remark
    assert not [*status_remarks((GpuMemResource(slice_mib=32, select=GpuSelect(indexes=("0-3",))),))]
