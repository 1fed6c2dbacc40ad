"""Slices: one GPU or whole GPUs, the best fit, invalid requests, and the answer of Allocate."""

from __future__ import annotations

import json
import re
from collections import Counter
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from msgspec.structs import replace

from nodeagent.facts.model import Gpu, Holding, LimitSupport, Snapshot
from nodeagent.kinds import Refused
from nodeagent.kinds.gpu_memory import GpuMemory
from tests.support.kind_machines import SICK, answer_of, as_json, dgx, fleets, gpu_of, pf_of, uuid_of

RESOURCE = "nvidia-dgx-h100/gpu-mem"
SLICES = GpuMemory(RESOURCE)  # 79 slices of 1 GiB on each GPU of the DGX


def ids(index: int, *numbers: int) -> list[str]:
    return [f"{uuid_of(index)}::{n}" for n in numbers]


def everything(snapshot: Snapshot, kind: GpuMemory = SLICES) -> list[str]:
    return [name for devices in kind.devices(snapshot) for name in devices.ids]


def per_gpu(names: list[str]) -> dict[str, int]:
    return Counter(name.partition("::")[0] for name in names)


def holding(resource: str, *names: str) -> Holding:
    return Holding("team", "llm-0", "main", resource, names)


def test_a_slice_is_exactly_its_size_and_there_are_as_many_as_fit_beside_the_reserve() -> None:
    snapshot = Snapshot(gpus=(gpu_of(0, memory_mib=81_559),))
    for slice_mib, reserved, count in ((1024, 0, 79), (1024, 1000, 78), (81_559, 0, 1), (81_560, 0, 0)):
        kind = GpuMemory(RESOURCE, slice_mib=slice_mib, reserved_mib=reserved)
        assert len(everything(snapshot, kind)) == count
    assert everything(snapshot, GpuMemory(RESOURCE, slice_mib=30_000)) == ids(0, 0, 1)
    assert GpuMemory(RESOURCE, reserved_mib=90_000).devices(snapshot) == ()


def test_the_slices_of_a_gpu_are_one_value_and_an_unchanged_gpu_has_the_same_tuple() -> None:
    snapshot = dgx()
    before = SLICES.devices(snapshot)
    sick = replace(snapshot, gpus=(replace(snapshot.gpus[0], health=SICK), *snapshot.gpus[1:]))
    after = SLICES.devices(sick)
    assert [devices.parent for devices in after] == [gpu.uuid for gpu in snapshot.gpus]
    assert all(a.ids is b.ids for a, b in zip(before, after, strict=True))
    assert after[0].health is SICK
    assert after[4].numa_nodes == (1,)
    assert SLICES.devices(Snapshot(gpus=(replace(gpu_of(0), numa_node=None),)))[0].numa_nodes == ()


def test_only_the_selected_gpus_are_offered() -> None:
    kind = structs.replace(SLICES, gpus=frozenset({uuid_of(2)}))
    assert [devices.parent for devices in kind.devices(dgx())] == [uuid_of(2)]
    with pytest.raises(Refused) as refused:
        kind.allocate(dgx(), ids(3, 0))
    assert refused.value.invalid


def test_the_gpu_with_the_smallest_remainder_is_chosen_and_its_lowest_slices() -> None:
    available = [*ids(0, *range(60)), *ids(1, *range(20, 62)), *ids(2, *range(39))]
    assert SLICES.prefer(dgx(), available[::-1], [], 40) == ids(1, *range(20, 60))


def test_of_equal_remainders_the_numa_node_of_the_nics_wins_then_the_nearest_then_the_first() -> None:
    snapshot = dgx()
    nics = {int(pf.pci_address[5:7], 16) - 0x40: pf for pf in snapshot.functions if pf.parent is None}
    free = everything(snapshot)
    assert per_gpu(SLICES.prefer(snapshot, free, [], 40)) == {uuid_of(0): 40}
    assert per_gpu(SLICES.prefer(snapshot, free, [], 40, (nics[5],))) == {uuid_of(5): 40}
    elsewhere = [name for name in free if not name.startswith(uuid_of(5))]
    assert per_gpu(SLICES.prefer(snapshot, elsewhere, [], 40, (nics[5],))) == {uuid_of(4): 40}
    assert per_gpu(SLICES.prefer(snapshot, free, [], 40, (nics[6], nics[7], nics[0]))) == {uuid_of(6): 40}


def test_spread_takes_the_emptiest_gpu_and_nic_affinity_the_nearest_with_the_best_fit_after_it() -> None:
    snapshot = dgx()
    nics = {int(pf.pci_address[5:7], 16) - 0x40: pf for pf in snapshot.functions if pf.parent is None}
    free = [*ids(0, *range(79)), *ids(1, *range(45)), *ids(5, *range(60)), *ids(6, *range(79))]

    def chosen(preferred: str, size: int, *near: int) -> dict[str, int]:
        kind = structs.replace(SLICES, preferred=preferred)
        return per_gpu(kind.prefer(snapshot, free, [], size, tuple(nics[rail] for rail in near)))

    assert chosen("pack", 40, 6) == {uuid_of(1): 40}
    assert chosen("spread", 40) == {uuid_of(0): 40}
    assert chosen("spread", 40, 6) == {uuid_of(6): 40}, "both are idle"
    assert chosen("nic-affinity", 40, 6) == {uuid_of(6): 40}
    assert chosen("nic-affinity", 70, 5) == {uuid_of(6): 70}, "GPU 5 is nearer and too full"
    assert chosen("nic-affinity", 40) == {uuid_of(1): 40}, "without a NIC as pack"
    assert chosen("nic-affinity", 158, 5) == {uuid_of(0): 79, uuid_of(6): 79}
    assert chosen("spread", 158) == {uuid_of(0): 79, uuid_of(6): 79}


def test_required_slices_decide_before_the_preferred_gpu() -> None:
    for preferred in ("spread", "nic-affinity"):
        kind = structs.replace(SLICES, preferred=preferred)
        available = [*ids(0, *range(79)), *ids(1, *range(45))]
        assert per_gpu(kind.prefer(dgx(), available, ids(1, 3), 20, (pf_of(0),))) == {uuid_of(1): 20}


def test_being_on_the_numa_node_of_all_nics_counts_before_being_next_to_one() -> None:
    nics = (pf_of(0, numa_node=0), pf_of(1, numa_node=1), pf_of(2, numa_node=1, pci_path=("pci0000:77",)))
    beside = replace(gpu_of(0, numa=0), pci_path=(*nics[0].pci_path[:-1], "0000:20:00.0"))
    snapshot = Snapshot(gpus=(beside, replace(gpu_of(1, numa=1), pci_path=())))
    assert per_gpu(SLICES.prefer(snapshot, everything(snapshot), [], 1, nics[:2])) == {uuid_of(0): 1}
    assert per_gpu(SLICES.prefer(snapshot, everything(snapshot), [], 1, nics)) == {uuid_of(1): 1}


def test_a_multiple_is_taken_from_the_fewest_gpus_and_never_from_more_than_it_makes() -> None:
    sizes = (1, 1, 1, 1, 2, 2, 2)
    snapshot = Snapshot(gpus=tuple(gpu_of(i, memory_mib=1024 * size) for i, size in enumerate(sizes)))
    free = everything(snapshot)
    assert per_gpu(SLICES.prefer(snapshot, free, [], 4)) == {uuid_of(4): 2, uuid_of(5): 2}
    assert len(per_gpu(SLICES.prefer(snapshot, free, ids(3, 0), 4))) == 4
    with pytest.raises(Refused) as refused:
        SLICES.prefer(snapshot, free, [*ids(4, 0), *ids(5, 0), *ids(6, 0)], 4)
    assert not refused.value.invalid


def test_a_request_that_may_grow_is_placed_where_its_largest_later_size_fits_best() -> None:
    available = [*ids(0, *range(20)), *ids(1, *range(45)), *ids(2, *range(79)), *ids(3, *range(44))]

    def gpu(later_sizes: tuple[int, ...] | None) -> dict[str, int]:
        return per_gpu(SLICES.prefer(dgx(), available, [], 16, (), later_sizes))

    assert gpu(()) == {uuid_of(0): 16}
    assert gpu((40,)) == {uuid_of(3): 16}
    assert gpu((40, 45)) == {uuid_of(1): 16}
    assert gpu((40, 100)) == {uuid_of(3): 16}, "no GPU has 100"
    assert gpu((8, 100)) == {uuid_of(0): 16}
    assert gpu(None) == {uuid_of(2): 16}, "the first request of its size"


def test_required_slices_fix_the_gpu_even_if_another_fits_better() -> None:
    available = [*ids(0, *range(79)), *ids(1, *range(10))]
    assert SLICES.prefer(dgx(), available, ids(0, 7), 3) == ids(0, 7, 0, 1)
    why = r"1 of 11 slices are fixed on GPU-00000001…, which has 10 .* ask for 11 .* or for at most 10 here"
    with pytest.raises(Refused, match=why):
        SLICES.prefer(dgx(), available, ids(1, 7), 11)
    with pytest.raises(Refused, match="no single GPU has 2 free slices"):
        SLICES.prefer(dgx(), available, [*ids(0, 7), *ids(1, 7)], 2)


def test_an_exact_multiple_takes_whole_idle_gpus_close_together() -> None:
    snapshot = dgx()
    free = [name for name in everything(snapshot) if name not in ids(2, 5) + ids(0, 0) + ids(1, 0)]
    chosen = SLICES.prefer(snapshot, free, [], 158)
    assert per_gpu(chosen) == {uuid_of(4): 79, uuid_of(5): 79}  # 3 is idle too, but alone on its node
    assert per_gpu(SLICES.prefer(snapshot, free, ids(6, 3), 158)) == {uuid_of(4): 79, uuid_of(6): 79}
    with pytest.raises(Refused, match=r"474 slices \(474 GiB\) are 6 whole GPUs, not so many are idle"):
        SLICES.prefer(snapshot, free, [], 474)


def test_one_whole_gpu_must_be_idle() -> None:
    available = [*ids(0, *range(78)), *ids(3, *range(79)), *ids(5, *range(1, 79))]
    assert per_gpu(SLICES.prefer(dgx(), available, [], 79)) == {uuid_of(3): 79}
    with pytest.raises(Refused, match="no single GPU has 79 free slices"):
        SLICES.prefer(dgx(), ids(0, *range(78)), [], 79)


def test_a_gpu_that_is_idle_by_podresources_too_comes_first_but_the_kubelets_list_decides() -> None:
    """Podresources may name a pod that has ended; believing it would fail the next pod on a free node."""
    snapshot = replace(dgx(), holdings=(holding(RESOURCE, *ids(0, 1)),))
    free = everything(snapshot)
    assert per_gpu(SLICES.prefer(snapshot, free, [], 158)) == {uuid_of(1): 79, uuid_of(2): 79}
    assert len(per_gpu(SLICES.prefer(snapshot, free, [], 8 * 79))) == 8
    assert per_gpu(SLICES.prefer(snapshot, free, ids(0, 1), 158)) == {uuid_of(0): 79, uuid_of(1): 79}
    ours = replace(snapshot, holdings=(holding(RESOURCE, *ids(5, 1)),))  # what must be included is no other's
    assert per_gpu(SLICES.prefer(ours, free, ids(5, 1), 3 * 79)) == dict.fromkeys(map(uuid_of, (4, 5, 6)), 79)
    most = replace(snapshot, holdings=(holding(RESOURCE, *ids(5, 1), *ids(7, 1)),))
    assert uuid_of(7) not in per_gpu(SLICES.prefer(most, free, ids(5, 1), 4 * 79))


def test_a_gpu_held_through_another_resource_is_not_allocated() -> None:
    snapshot = replace(dgx(), holdings=(holding("nvidia.com/gpu", uuid_of(0), "3", "MIG-1"),))
    free = everything(snapshot)
    assert per_gpu(SLICES.prefer(snapshot, free, [], 10)) == {uuid_of(1): 10}
    with pytest.raises(Refused, match=r"is held by team/llm-0 through nvidia\.com/gpu") as refused:
        SLICES.allocate(snapshot, ids(0, 1))
    assert not refused.value.invalid
    assert SLICES.free(snapshot) == {uuid_of(n): 79 if n else 0 for n in range(8)}


def test_an_unhealthy_gpu_is_skipped_and_its_slices_are_refused_with_the_reason() -> None:
    snapshot = dgx()
    snapshot = replace(snapshot, gpus=(replace(snapshot.gpus[0], health=SICK), *snapshot.gpus[1:]))
    assert per_gpu(SLICES.prefer(snapshot, everything(snapshot), [], 10)) == {uuid_of(1): 10}
    for ask in (
        lambda: SLICES.allocate(snapshot, ids(0, 1)),
        lambda: SLICES.prefer(snapshot, ids(0, 1, 2), ids(0, 1), 2),
    ):
        with pytest.raises(Refused, match="is unhealthy: XID 79") as refused:
            ask()
        assert not refused.value.invalid


def test_free_slices_follow_the_holdings_and_are_unknown_without_them() -> None:
    snapshot = Snapshot(gpus=(gpu_of(0), gpu_of(1), replace(gpu_of(2), health=SICK)))
    assert SLICES.free(snapshot) is None
    heard = replace(snapshot, holdings=(holding(RESOURCE, *ids(1, 0, 1, 5000), "garbage"),))
    assert SLICES.free(heard) == {uuid_of(0): 79, uuid_of(1): 77, uuid_of(2): 0}


def test_a_refusal_names_the_largest_free_blocks() -> None:
    available = [*ids(1, *range(12)), *ids(0, *range(40))]
    snapshot = Snapshot(gpus=(gpu_of(0), gpu_of(1)))
    with pytest.raises(Refused) as refused:
        SLICES.prefer(snapshot, available, [], 60)
    assert str(refused.value) == (
        "nvidia-dgx-h100/gpu-mem: no single GPU has 60 free slices (60 GiB);"
        " free slices: GPU-00000000… 40, GPU-00000001… 12; ask for at most 40"
    )
    with pytest.raises(Refused, match=r"100 slices \(48000 MiB\) are more than one GPU holds"):
        GpuMemory(RESOURCE, slice_mib=480, reserved_mib=80_000).prefer(snapshot, [], [], 100)
    with pytest.raises(Refused, match="it has no GPU"):
        SLICES.prefer(Snapshot(), [], [], 1)


@pytest.mark.parametrize(
    ("available", "must", "size"),
    [
        (ids(0, 0, 1), [], 0),
        (ids(0, 0, 1), [], -1),
        (ids(0, 0, 1), ids(0, 2), 1),
        (ids(0, 0, 1), ids(0, 0, 1), 1),
        (ids(0, 0, 1), ids(0, 0, 0), 2),
        (ids(0, 0, 999), ids(0, 999), 2),
    ],
)
def test_a_senseless_preference_request_is_invalid(available: list[str], must: list[str], size: int) -> None:
    with pytest.raises(Refused) as refused:
        SLICES.prefer(dgx(), available, must, size)
    assert refused.value.invalid


@pytest.mark.parametrize(
    "names",
    [
        [],
        ids(0, 1, 1),
        ids(0, 79),
        ids(9, 0),
        [uuid_of(0)],
        [f"{uuid_of(0)}::01"],
        [f"{uuid_of(0)}::-1"],
        [f"{uuid_of(0)}::\u0661"],
        ["0000:1a:00.3"],
        [*ids(0, 1), ""],
    ],
)
def test_missing_repeated_or_foreign_ids_are_invalid(names: list[str]) -> None:
    with pytest.raises(Refused) as refused:
        SLICES.allocate(dgx(), names)
    assert refused.value.invalid


def test_a_hundred_thousand_garbage_ids_get_a_short_answer() -> None:
    garbage = [f"\U0001f980\x1b[31m{n}" * 40 for n in range(100_000)]
    with pytest.raises(Refused) as refused:
        SLICES.allocate(dgx(), garbage)
    assert len(str(refused.value).encode()) < 1000
    assert str(refused.value).endswith("and 99997 more")
    assert "\x1b" not in str(refused.value)
    assert SLICES.prefer(dgx(), [*garbage, *ids(0, 3)], [], 1) == ids(0, 3)


def test_a_refusal_stays_short_on_a_node_with_many_gpus() -> None:
    snapshot = Snapshot(gpus=tuple(gpu_of(n) for n in range(64)))
    with pytest.raises(Refused) as refused:
        SLICES.prefer(snapshot, everything(snapshot), [], 80)
    assert len(str(refused.value).encode()) < 1000
    assert str(refused.value).endswith(
        "and 56 more; ask for at most 79, or for 158, 237, 316, 395, 474, 553, 632, 711, …"
    )


def test_a_refusal_names_the_sizes_that_fit_and_each_of_them_is_granted() -> None:
    """Of eight GPUs three are idle, one is sick, and the others have at most 45 free slices."""
    sick = replace(dgx(), gpus=(replace(dgx().gpus[0], health=SICK), *dgx().gpus[1:]))
    parts = [*ids(4, *range(45)), *ids(5, *range(45)), *ids(6, 1), *ids(7)]
    available = [name for name in everything(sick) if name.startswith(tuple(map(uuid_of, (0, 1, 2, 3))))]
    for size in (80, 8 * 79):
        with pytest.raises(Refused, match=r"; ask for at most 79, or for 158, 237$"):
            SLICES.prefer(sick, [*available, *parts], [], size)
    for size in (1, 79, 158, 237):
        assert len(SLICES.prefer(sick, [*available, *parts], [], size)) == size
    with pytest.raises(Refused, match=r"; ask for at most 45$"):
        SLICES.prefer(sick, parts, [], 46)
    with pytest.raises(Refused, match=r"; nothing is free now$"):
        SLICES.prefer(sick, ids(0, *range(79)), [], 1)


VISIBLE = LimitSupport(cgroup2=True, hidden_processes="")
MODERN = replace(dgx(), gpu_driver="615.71.09", limit_support=VISIBLE)
OLD = replace(MODERN, gpu_driver="580.95.05")
CGROUP1 = replace(MODERN, limit_support=replace(VISIBLE, cgroup2=False))
ALLOWED = replace(MODERN, limit_support=replace(VISIBLE, cgroup_obstacle=""))
KEPT = replace(ALLOWED, limits_kept=True)
READ_ONLY = replace(
    MODERN, limit_support=replace(VISIBLE, cgroup_obstacle="/sys/fs/cgroup: it is mounted read-only")
)
BLIND = replace(MODERN, limit_support=replace(VISIBLE, hidden_processes="the agent's pod needs hostPID"))


@pytest.mark.parametrize(
    ("enforcement", "snapshot", "level", "variables", "refusal"),
    [
        ("auto", MODERN, "env", True, None),
        ("auto", OLD, "none", False, None),
        ("auto", CGROUP1, "none", False, None),
        ("auto", dgx(), "none", False, None),
        ("none", MODERN, "none", False, None),
        ("env", MODERN, "env", True, None),
        ("env", OLD, "env", False, "driver 580.95.05 is older than 615"),
        ("env", CGROUP1, "env", False, "the host has no cgroup v2"),
        ("env", dgx(), "env", False, "the version of the GPU driver is not known"),
        ("auto", ALLOWED, "env", True, None),  # no limit was read back yet
        ("auto", KEPT, "nvml-limits", True, None),
        ("auto", replace(KEPT, limit_support=READ_ONLY.limit_support), "env", True, None),
        ("auto", replace(KEPT, gpu_driver="580.95.05"), "none", False, None),
        ("nvml-limits", ALLOWED, "nvml-limits", True, None),
        ("nvml-limits", READ_ONLY, "nvml-limits", True, "/sys/fs/cgroup: it is mounted read-only"),
        ("nvml-limits", OLD, "nvml-limits", False, "driver 580.95.05 is older than 615"),
        ("evict", MODERN, "evict", True, None),
        ("evict", OLD, "evict", False, None),
        ("evict", BLIND, "evict", True, "the agent's pod needs hostPID"),
    ],
)
def test_a_level_is_in_force_or_refused_with_the_part_that_is_missing(
    enforcement: str, snapshot: Snapshot, level: str, variables: bool, refusal: str | None
) -> None:
    kind = structs.replace(SLICES, enforcement=enforcement)
    assert kind.level(snapshot) == level
    env = dict(kind.allocate(snapshot, ids(0, 0)).env)
    assert ("NVIDIA_GPU_MEMORY_LIMIT" in env) == ("NVIDIA_GPU_MEMORY_REQUEST" in env) == variables
    assert env["NODEAGENT_GPU_MEM_MIB"] == "1024"
    expected = refusal and f"enforcement {enforcement} is not possible on this node: {refusal}"
    assert kind.refusal(snapshot) == expected
    assert kind.refusal(replace(snapshot, gpus=())) is None, "a node without GPUs enforces nothing"


def test_slices_of_several_gpus_are_refused_unless_they_are_all_of_them() -> None:
    with pytest.raises(Refused, match="GPU-00000000… 2, GPU-00000001… 1") as refused:
        SLICES.allocate(dgx(), [*ids(0, 0, 1), *ids(1, 0)])
    assert not refused.value.invalid
    with pytest.raises(Refused):
        SLICES.allocate(dgx(), [*ids(0, *range(79)), *ids(1, *range(78))])
    both = SLICES.allocate(MODERN, [*ids(1, *range(79)), *ids(0, *range(79))])
    assert both.cdi_devices == (f"nvidia.com/gpu={uuid_of(0)}", f"nvidia.com/gpu={uuid_of(1)}")
    assert dict(both.env)["NVIDIA_GPU_MEMORY_LIMIT"] == str(79 * 1024)  # of each


def test_whole_gpus_of_different_sizes_are_not_allocated_together() -> None:
    snapshot = Snapshot(gpus=(gpu_of(0, memory_mib=2048), gpu_of(1, memory_mib=4096)))
    with pytest.raises(Refused, match="whole GPUs of one size"):
        SLICES.allocate(snapshot, [*ids(0, 0, 1), *ids(1, 0, 1, 2, 3)])


def test_forty_slices_by_cdi_are_one_device_and_its_limit() -> None:
    snapshot = MODERN
    assert as_json(SLICES.allocate(snapshot, ids(3, *range(39, -1, -1)))) == json.loads(
        """{
          "env": {
            "NVIDIA_GPU_MEMORY_REQUEST": "40960",
            "NVIDIA_GPU_MEMORY_LIMIT": "40960",
            "NODEAGENT_GPU_UUID": "GPU-00000003-aaaa-bbbb-cccc-000000000003",
            "NODEAGENT_GPU_MEM_MIB": "40960"
          },
          "mounts": [],
          "devices": [],
          "annotations": {},
          "cdi_devices": ["nvidia.com/gpu=GPU-00000003-aaaa-bbbb-cccc-000000000003"],
          "device_info": {}
        }"""
    )


def test_the_variables_of_a_resource_of_one_gpu_end_with_its_number() -> None:
    kind = structs.replace(SLICES, gpus=frozenset({uuid_of(3)}), number=3, enforcement="none")
    env = dict(kind.allocate(dgx(), ids(3, 0, 1)).env)
    assert env == {"NODEAGENT_GPU_UUID_3": uuid_of(3), "NODEAGENT_GPU_MEM_MIB_3": "2048"}


def test_two_slices_by_envvar_with_device_nodes_name_everything_the_driver_needs() -> None:
    kind = structs.replace(SLICES, strategy="envvar", pass_device_nodes=True, enforcement="none")
    assert as_json(kind.allocate(dgx(), ids(3, 0, 1))) == json.loads(
        """{
          "env": {
            "NVIDIA_VISIBLE_DEVICES": "GPU-00000003-aaaa-bbbb-cccc-000000000003",
            "NODEAGENT_GPU_UUID": "GPU-00000003-aaaa-bbbb-cccc-000000000003",
            "NODEAGENT_GPU_MEM_MIB": "2048"
          },
          "mounts": [],
          "devices": [
            ["/dev/nvidia3", "/dev/nvidia3", "rw"],
            ["/dev/nvidiactl", "/dev/nvidiactl", "rw"],
            ["/dev/nvidia-uvm", "/dev/nvidia-uvm", "rw"],
            ["/dev/nvidia-uvm-tools", "/dev/nvidia-uvm-tools", "rw"],
            ["/dev/nvidia-modeset", "/dev/nvidia-modeset", "rw"]
          ],
          "annotations": {},
          "cdi_devices": [],
          "device_info": {}
        }"""
    )


@st.composite
def questions(draw: st.DrawFn) -> tuple[Snapshot, list[str], list[str], int]:
    """Any fleet, any availability, any part of it that must be included, any size."""
    snapshot = Snapshot(gpus=draw(fleets()))
    devices = SLICES.devices(snapshot)
    # Mostly whole GPUs, so that idle ones are not a rarity.
    taken = draw(st.sets(st.sampled_from(everything(snapshot)), max_size=2)) if devices else set()
    free = [name for it in devices if draw(st.integers(0, 3)) for name in it.ids if name not in taken]
    must = draw(st.lists(st.sampled_from(free), unique=True, max_size=3)) if free else []
    size = draw(st.integers(1, 5) | st.sampled_from((4, 6, 8)))
    return snapshot, draw(st.permutations(free)), must, max(size, len(must))


def answers(gpus: tuple[Gpu, ...], free: list[str], must: list[str], size: int) -> list[tuple[str, ...]]:
    """Every set of GPUs that the law allows, by brute force."""
    room = per_gpu([name for name in free if name.partition("::")[0] in {g.uuid for g in gpus if usable(g)}])
    total = {gpu.uuid: SLICES.count(gpu) for gpu in gpus}
    pinned = set(per_gpu(must))
    found = []
    for count in range(1, len(gpus) + 1):
        for group in combinations([gpu.uuid for gpu in gpus if room.get(gpu.uuid)], count):
            one = count == 1 and room[group[0]] >= size
            idle = all(room[uuid] == total[uuid] for uuid in group)
            whole = idle and len({total[uuid] for uuid in group}) == 1
            if pinned <= set(group) and (one or (whole and sum(room[uuid] for uuid in group) == size)):
                found.append(group)
    return found


def usable(gpu: Gpu) -> bool:
    return gpu.health.allocatable


@given(questions())
def test_an_answer_keeps_the_rule_and_is_the_best_and_a_refusal_means_that_none_exists(
    question: tuple[Snapshot, list[str], list[str], int],
) -> None:
    snapshot, free, must, size = question
    possible = answers(snapshot.gpus, free, must, size)
    chosen = answer_of(lambda: SLICES.prefer(snapshot, free, must, size))
    if isinstance(chosen, Refused):
        assert not chosen.invalid
        assert not possible
        _, advised, fitting = str(chosen).partition("; ask for at most ")
        if advised and not must:
            named = {int(word) for word in re.findall(r"\d+", fitting)}
            largest = int(fitting.partition(",")[0])
            granted = {n for n in range(1, 80 * 8) if answers(snapshot.gpus, free, [], n)}
            assert named - {largest} == {n for n in granted if n > largest}
            assert largest in granted
        return
    assert len(set(chosen)) == len(chosen) == size
    assert set(must) <= set(chosen) <= set(free)
    group = per_gpu(chosen)
    assert tuple(gpu.uuid for gpu in snapshot.gpus if gpu.uuid in group) in possible
    assert len(group) == min(len(other) for other in possible)
    if len(group) == 1:
        room = per_gpu(free)
        assert room[next(iter(group))] == min(room[other[0]] for other in possible if len(other) == 1)
    allocation = SLICES.allocate(snapshot, chosen)
    assert len(allocation.cdi_devices) == len(group)
    assert {int(value) for name, value in allocation.env if name.endswith("_MIB")} == {
        count * 1024 for count in group.values()
    }


@given(questions())
def test_the_answer_does_not_depend_on_the_order_of_the_request(
    question: tuple[Snapshot, list[str], list[str], int],
) -> None:
    snapshot, free, must, size = question
    first, second = (
        answer_of(lambda names=names: SLICES.prefer(snapshot, names, must, size))
        for names in (free, sorted(free))
    )
    assert str(first) == str(second)


@given(fleets(), st.data())
def test_every_allocation_is_on_one_gpu_or_on_whole_gpus(gpus: tuple[Gpu, ...], data: st.DataObject) -> None:
    """The kubelet fills up as it likes; nothing that breaks the law gets through Allocate."""
    snapshot = Snapshot(gpus=gpus)
    names = everything(snapshot)
    chosen = data.draw(st.lists(st.sampled_from(names), unique=True, min_size=1) if names else st.just(["x"]))
    counts = {gpu.uuid: SLICES.count(gpu) for gpu in gpus}
    per = per_gpu(chosen)
    healthy = all(gpu.health.allocatable for gpu in gpus if gpu.uuid in per)
    lawful = len(per) == 1 or (len(set(per.values())) == 1 and all(per[u] == counts[u] for u in per))
    answer = answer_of(lambda: SLICES.allocate(snapshot, chosen))
    if chosen != ["x"] and healthy and lawful:
        assert len(answer.cdi_devices) == len(per)
    else:
        assert answer.invalid == (chosen == ["x"])
