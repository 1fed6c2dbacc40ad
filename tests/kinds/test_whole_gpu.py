"""Whole GPUs: the choice of near GPUs, and the answer of Allocate."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from msgspec.structs import replace

from nodeagent.facts.affinity import Affinity, affinity
from nodeagent.facts.model import DeviceNode, Gpu, Holding, Snapshot
from nodeagent.kinds import Refused, gpu_access
from nodeagent.kinds.whole_gpu import WholeGpus
from tests.support.kind_machines import SICK, answer_of, dgx, fleets, gpu_of, pf_of, uuid_of

GPUS = WholeGpus("nvidia-dgx-h100/gpu")


def uuids(*indexes: int) -> list[str]:
    return [uuid_of(index) for index in indexes]


def test_a_device_is_a_gpu_with_its_health_and_numa_node() -> None:
    snapshot = dgx()
    snapshot = replace(snapshot, gpus=(*snapshot.gpus[:7], replace(snapshot.gpus[7], health=SICK)))
    kind = structs.replace(GPUS, gpus=frozenset(uuids(6, 7)))
    devices = kind.devices(snapshot)
    assert [it.ids for it in devices] == [(uuid_of(6),), (uuid_of(7),)]
    assert devices[1].health is SICK
    assert devices[1].numa_nodes == (1,)


def test_gpus_of_one_switch_then_of_one_numa_node_are_chosen_together() -> None:
    # Two below one switch, one on the same NUMA node, three on the other.
    gpus = (
        gpu_of(0, root=0, leg=0, numa=0),
        gpu_of(1, root=2, leg=0, numa=1),
        gpu_of(2, root=0, leg=0, numa=0),
        gpu_of(3, root=1, leg=0, numa=0),
        gpu_of(4, root=3, leg=0, numa=1),
        gpu_of(5, root=4, leg=0, numa=1),
    )
    snapshot = Snapshot(gpus=gpus)
    free = [gpu.uuid for gpu in gpus]
    assert GPUS.prefer(snapshot, free, [], 1) == uuids(0)
    assert GPUS.prefer(snapshot, free, [], 2) == uuids(0, 2)
    assert GPUS.prefer(snapshot, free, [], 3) == uuids(0, 2, 3)
    assert GPUS.prefer(snapshot, free, uuids(1), 3) == uuids(1, 4, 5)
    assert GPUS.prefer(snapshot, free, uuids(5, 1), 2) == uuids(5, 1)
    assert sorted(GPUS.prefer(snapshot, free, [], 6)) == free


def test_the_worst_hop_of_a_group_counts_before_all_its_others() -> None:
    # A pair below one switch, whose third would be on the other NUMA node, against three on one node.
    pair = (gpu_of(0, root=0, numa=0), gpu_of(1, root=0, numa=0))
    three = tuple(gpu_of(index, root=index, numa=1) for index in (2, 3, 4))
    assert gpu_access.cluster((*pair, *three), 3) == list(three)
    # Of groups within one NUMA node, the one with a pair below one switch.
    alone = tuple(gpu_of(index, root=index, numa=0) for index in (0, 1))
    pair = (gpu_of(2, root=2, numa=0), gpu_of(3, root=2, numa=0))
    assert gpu_access.cluster((*alone, *pair), 3) == [alone[0], *pair]


def test_being_on_the_numa_node_of_all_nics_counts_before_being_next_to_one() -> None:
    nics = (pf_of(0, numa_node=0), pf_of(1, numa_node=1))
    beside = replace(gpu_of(0, numa=0), pci_path=(*nics[0].pci_path[:-1], "0000:20:00.0"))
    both = replace(gpu_of(1, numa=1), pci_path=())
    assert gpu_access.cluster((beside, both), 1, nics) == [beside]
    assert gpu_access.cluster((beside, both), 1, (*nics, replace(nics[1], pci_path=("pci0000:77",)))) == [
        both
    ]
    # Two functions that do not know their NUMA node are not on the same one.
    lost = replace(gpu_of(1), numa_node=None, pci_path=())
    away = replace(gpu_of(0), pci_path=())
    assert gpu_access.cluster((away, lost), 1, (pf_of(0, numa_node=None),)) == [away]


def test_equal_groups_are_ordered_by_the_nics_and_then_by_index() -> None:
    snapshot = dgx()
    nic = {int(pf.pci_address[5:7], 16) - 0x40: pf for pf in snapshot.functions if pf.parent is None}
    free = uuids(*range(7, -1, -1))
    assert GPUS.prefer(snapshot, free, [], 2) == uuids(0, 1)
    assert GPUS.prefer(snapshot, free, [], 1, (nic[6],)) == uuids(6)
    assert GPUS.prefer(snapshot, free, [], 2, (nic[6], nic[3], nic[5])) == uuids(5, 6)


def test_unhealthy_gpus_and_gpus_of_other_resources_are_skipped() -> None:
    snapshot = replace(
        dgx(), holdings=(Holding("ns", "old", "c", "nvidia-dgx-h100/gpu-mem", (f"{uuid_of(1)}::4",)),)
    )
    snapshot = replace(snapshot, gpus=(replace(snapshot.gpus[0], health=SICK), *snapshot.gpus[1:]))
    assert GPUS.prefer(snapshot, uuids(*range(8)), [], 1) == uuids(2)
    with pytest.raises(Refused, match="7 GPUs were requested and 6 are available"):
        GPUS.prefer(snapshot, uuids(*range(8)), [], 7)
    with pytest.raises(Refused, match="is unhealthy: XID 79"):
        GPUS.allocate(snapshot, uuids(0))
    with pytest.raises(Refused, match="is held by ns/old through nvidia-dgx-h100/gpu-mem"):
        GPUS.allocate(snapshot, uuids(1))


def test_holdings_of_the_same_resource_are_ignored() -> None:
    snapshot = replace(dgx(), holdings=(Holding("ns", "ended", "c", GPUS.resource, (uuid_of(0),)),))
    assert GPUS.prefer(snapshot, uuids(0), [], 1) == uuids(0)
    assert GPUS.allocate(snapshot, uuids(0)).cdi_devices == (f"nvidia.com/gpu={uuid_of(0)}",)


@pytest.mark.parametrize("names", [[], uuids(1, 1), uuids(8), [f"{uuid_of(0)}::0"], ["0000:1a:00.3"]])
def test_invalid_ids_are_refused(names: list[str]) -> None:
    with pytest.raises(Refused) as refused:
        GPUS.allocate(dgx(), names)
    assert refused.value.invalid
    with pytest.raises(Refused) as refused:
        GPUS.prefer(dgx(), names, [*names, "GPU-unheard-of"], 9)
    assert refused.value.invalid


def test_two_gpus_are_two_cdi_devices_or_one_variable() -> None:
    assert GPUS.allocate(dgx(), uuids(5, 2)).cdi_devices == tuple(
        f"nvidia.com/gpu={uuid}" for uuid in uuids(2, 5)
    )
    assert GPUS.allocate(dgx(), uuids(5, 2)).env == ()
    kind = structs.replace(GPUS, strategy="envvar", pass_device_nodes=True, control_nodes=("/dev/nvidiactl",))
    given_ = kind.allocate(dgx(), uuids(5, 2))
    assert given_.env == (("NVIDIA_VISIBLE_DEVICES", ",".join(uuids(2, 5))),)
    assert given_.cdi_devices == ()
    paths = ("/dev/nvidia2", "/dev/nvidia5", "/dev/nvidiactl")
    assert given_.device_nodes == tuple(DeviceNode(path, path) for path in paths)


def test_a_gpu_without_a_minor_number_is_left_to_the_runtime() -> None:
    kind = structs.replace(GPUS, pass_device_nodes=True, control_nodes=("/dev/nvidiactl",))
    snapshot = Snapshot(gpus=(replace(gpu_of(0), minor=None),))
    assert [it.host_path for it in kind.allocate(snapshot, uuids(0)).device_nodes] == ["/dev/nvidiactl"]


def worst(gpus: tuple[Gpu, ...]) -> int:
    return max(
        (affinity(a.pci_path, a.numa_node, b.pci_path, b.numa_node) for a, b in combinations(gpus, 2)),
        default=Affinity.PIX,
    )


@given(fleets(most=7), st.data())
def test_no_other_group_has_a_better_worst_hop(gpus: tuple[Gpu, ...], data: st.DataObject) -> None:
    size = data.draw(st.integers(1, len(gpus)))
    pinned = data.draw(st.sets(st.sampled_from(gpus), max_size=size))
    group = gpu_access.cluster(gpus, size, (), sorted(pinned, key=lambda gpu: gpu.index))
    assert len({gpu.uuid for gpu in group}) == size
    assert pinned <= set(group)
    assert worst(tuple(group)) == min(worst(it) for it in combinations(gpus, size) if pinned <= set(it))


@given(fleets(), st.data())
def test_a_preferred_choice_can_be_allocated_and_only_a_shortage_is_refused(
    gpus: tuple[Gpu, ...], data: st.DataObject
) -> None:
    snapshot = Snapshot(gpus=gpus)
    free = data.draw(st.lists(st.sampled_from([gpu.uuid for gpu in gpus]), unique=True))
    usable = [gpu.uuid for gpu in gpus if gpu.uuid in free and gpu.health.allocatable]
    must = data.draw(st.lists(st.sampled_from(usable), unique=True)) if usable else []
    size = data.draw(st.integers(max(1, len(must)), len(gpus) + 1))
    chosen = answer_of(lambda: GPUS.prefer(snapshot, free, must, size))
    if isinstance(chosen, Refused):
        assert not chosen.invalid
        assert len(usable) < size
        return
    assert len(set(chosen)) == len(chosen) == size
    assert set(must) <= set(chosen) <= set(usable)
    assert len(GPUS.allocate(snapshot, chosen).cdi_devices) == size
