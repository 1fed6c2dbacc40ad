"""The shares whose limits are read back: slices by podresources, choices of Volcano, and claims."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from nodeagent.dra.claim_preparation import prepare_claim
from nodeagent.dra.gpu_device import gpu_devices
from nodeagent.dra.prepared_claim import PreparedClaim, container_shares, holdings
from nodeagent.facts.model import ClaimUser, Holding, VgpuShare
from nodeagent.kinds.volcano_vgpus import MEMORY, NUMBER, VgpuParts, VgpuPlaces
from nodeagent.sharing.shares import HARD_LEVELS, shares_of
from tests.kinds.test_gpu_memory import ALLOWED, SLICES
from tests.support.dra_node import NODE, claim_of, decoded, result
from tests.support.kind_machines import uuid_of

GIB = 1 << 30


def test_the_shares_of_volcano_are_on_the_gpu_that_it_chose_and_not_on_that_of_the_numbers() -> None:
    memory = structs.replace(SLICES, resource=MEMORY, enforcement="nvml-limits")
    kinds = VgpuPlaces(memory), VgpuParts(memory, "memory"), VgpuParts(memory, "cores")
    one, other = uuid_of(0), uuid_of(1)
    holdings = (
        Holding("ns", "pod", "a", NUMBER, (f"{one}::vgpu0",)),
        Holding("ns", "pod", "a", MEMORY, (f"{other}::mem0", f"{other}::mem1")),
        Holding("ns", "pod", "b", NUMBER, (f"{one}::vgpu1", f"{other}::vgpu0")),
        Holding("ns", "bare", "a", NUMBER, (f"{one}::vgpu2",)),
    )
    shares = (
        VgpuShare("ns", "pod", one, 2, "a"),
        VgpuShare("ns", "pod", one, 3, "b"),
        VgpuShare("ns", "pod", other, 3, "b"),
        VgpuShare("ns", "bare", one, 5),  # of the whole pod: what its container has is not known
        VgpuShare("ns", "bound", other, 9, "a"),  # the kubelet has not given it the GPU
    )
    snapshot = structs.replace(ALLOWED, holdings=holdings, vgpu_shares=shares)
    assert [tuple(share) for share in shares_of(kinds, snapshot, *HARD_LEVELS) or ()] == [
        ("ns", "pod", "a", one, 2 * GIB, "env"),
        ("ns", "pod", "b", one, 3 * GIB, "env"),
        ("ns", "pod", "b", other, 3 * GIB, "env"),
    ]
    evicting = structs.replace(memory, enforcement="evict")
    assert shares_of([VgpuParts(evicting, "memory")], snapshot, *HARD_LEVELS) == ()


@pytest.mark.parametrize(
    ("level", "read"),
    [("auto", True), ("env", True), ("nvml-limits", True), ("evict", False), ("none", False)],
)
def test_the_containers_of_a_claim_have_its_shares_to_be_read_and_never_to_be_set(
    level: Any, read: bool
) -> None:
    gpus = gpu_devices(structs.replace(SLICES, enforcement=level), ALLOWED)

    def prepare(claim: dict[str, Any]) -> PreparedClaim:
        return prepare_claim(decoded(claim), node=NODE, devices=gpus, snapshot=ALLOWED, others=(), sequence=1)

    two = prepare(claim_of("two", result(gpus[0], 2048, "g"), result(gpus[1], 2048, "g")))
    again = prepare(claim_of("again", result(gpus[0], 1024, "g")))
    apart = prepare(claim_of("apart", result(gpus[2], 1024, "a"), result(gpus[3], 1024, "b")))
    seen = prepare(claim_of("seen", result(gpus[4], 0, "g", adminAccess=True)))
    records = (two, again, apart, seen)
    names = {one.name: frozenset(it.cdi_devices[0] for it in one.devices) for one in records}
    users = (
        ClaimUser("ns", "pod", "a", names["two"] | names["again"] | {"k8s.io/foreign=1"}),
        ClaimUser("ns", "pod", "b", names["two"]),
        ClaimUser("ns", "other", "a", names["apart"] | names["seen"]),
    )
    snapshot = structs.replace(
        ALLOWED, holdings=holdings(records), claim_shares=tuple(container_shares(records, users))
    )
    found = shares_of([gpu.kind for gpu in gpus], snapshot, *HARD_LEVELS)
    expected = [
        ("ns", "pod", "a", uuid_of(0), 3 * GIB, "env"),
        ("ns", "pod", "a", uuid_of(1), 2 * GIB, "env"),
        ("ns", "pod", "b", uuid_of(0), 2 * GIB, "env"),
        ("ns", "pod", "b", uuid_of(1), 2 * GIB, "env"),
    ]
    assert [tuple(share) for share in found or ()] == (expected if read else [])


def test_the_devices_of_another_plugin_that_had_the_name_are_no_share() -> None:
    memory = structs.replace(SLICES, enforcement="nvml-limits")
    theirs = (Holding("ns", "pod", "a", memory.resource, ("rival0",)),)
    assert shares_of([memory], structs.replace(ALLOWED, holdings=theirs), *HARD_LEVELS) == ()
    ours = (Holding("ns", "pod", "a", memory.resource, (f"{uuid_of(0)}::0",)),)
    assert shares_of([memory], structs.replace(ALLOWED, holdings=ours), *HARD_LEVELS) != ()
