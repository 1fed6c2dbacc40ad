"""MIG devices as resources of their own: their names, the choice, the answer of Allocate, and what they exclude."""

from __future__ import annotations

import doctest
from collections import Counter
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from msgspec.structs import replace

from nodeagent.facts.cdi import GPU_KIND
from nodeagent.facts.model import Gpu, Holding, HostPaths, MigDevice, Snapshot
from nodeagent.kinds import Refused, mig
from nodeagent.kinds.gpu_memory import GpuMemory
from nodeagent.kinds.mig import MigDevices
from nodeagent.kinds.mps_clients import MpsShares
from nodeagent.kinds.resource_settings import MigResource
from nodeagent.kinds.whole_gpu import WholeGpus
from nodeagent.offering.gpu_kinds import GpuContext, gpu_kinds
from tests.support.kind_machines import SICK, answer_of, as_json, dgx, gpu_of, pf_of, uuid_of

SMALL = "1g.10gb"
KIND = MigDevices("x/mig-1g.10gb", profile=SMALL)


def part(gpu: int, number: int, profile: str = SMALL) -> MigDevice:
    nodes = (f"/dev/nvidia-caps/nvidia-cap{66 + 9 * number}", f"/dev/nvidia-caps/nvidia-cap{67 + 9 * number}")
    return MigDevice(f"MIG-{gpu}-{number}", profile, 9856, 7 + number, 0, nodes)


def divided(index: int, *profiles: str, **changes: object) -> Gpu:
    devices = tuple(part(index, number, profile) for number, profile in enumerate(profiles))
    return replace(gpu_of(index), mig=True, mig_devices=devices, **changes)


def machine(*gpus: Gpu, **facts: object) -> Snapshot:
    return Snapshot(gpus=gpus, holdings=(), **facts)


NODE = machine(divided(0, SMALL, SMALL, "3g.40gb"), divided(1, SMALL, "1g.10gb+me"), gpu_of(2))


def kinds(snapshot: Snapshot, *, own_cdi: bool = True) -> dict[str, MigDevices]:
    made = gpu_kinds(MigResource(), GpuContext(snapshot, frozenset(), "x", own_cdi, MpsShares("/mps")))
    return {kind.resource: kind for kind in made if isinstance(kind, MigDevices)}


def test_each_profile_is_a_resource_with_a_name_that_kubernetes_accepts() -> None:
    made = kinds(NODE)
    assert list(made) == ["x/mig-1g.10gb", "x/mig-1g.10gb.me", "x/mig-3g.40gb"]
    ids = {name: [id_ for entry in kind.devices(NODE) for id_ in entry.ids] for name, kind in made.items()}
    assert ids == {
        "x/mig-1g.10gb": ["MIG-0-0", "MIG-0-1", "MIG-1-0"],
        "x/mig-1g.10gb.me": ["MIG-1-1"],
        "x/mig-3g.40gb": ["MIG-0-2"],
    }
    assert doctest.testmod(mig).failed == 0


def test_a_gpu_in_mig_mode_is_neither_sliced_nor_offered_whole() -> None:
    assert [entry.parent for entry in GpuMemory("x/gpu-mem").devices(NODE)] == [uuid_of(2)]
    assert [entry.parent for entry in WholeGpus("x/gpu").devices(NODE)] == [uuid_of(2)]
    for kind in (GpuMemory("x/gpu-mem"), WholeGpus("x/gpu")):
        with pytest.raises(Refused):
            kind.allocate(NODE, [uuid_of(0), f"{uuid_of(0)}::0"])


def test_the_devices_have_the_health_and_the_numa_node_of_their_gpu() -> None:
    snapshot = machine(divided(0, SMALL, health=SICK), divided(1, SMALL))
    assert [(it.parent, it.health.allocatable) for it in KIND.devices(snapshot)] == [
        (uuid_of(0), False),
        (uuid_of(1), True),
    ]
    assert KIND.free(snapshot) == {uuid_of(0): 0, uuid_of(1): 1}
    with pytest.raises(Refused, match="MIG-0-0 is unhealthy"):
        KIND.allocate(snapshot, ["MIG-0-0"])


def test_the_gpu_with_the_fewest_free_devices_is_chosen_then_the_nearest_to_the_nics() -> None:
    available = ["MIG-0-0", "MIG-0-1", "MIG-1-0"]
    assert KIND.prefer(NODE, available, [], 1) == ["MIG-1-0"]
    assert KIND.prefer(NODE, available, ["MIG-0-1"], 2) == ["MIG-0-1", "MIG-0-0"]
    with pytest.raises(Refused, match="4 MIG devices were requested and 3 are available"):
        KIND.prefer(NODE, available, [], 4)
    even = replace(dgx(), gpus=tuple(divided(index, SMALL) for index in range(8)), holdings=())
    free = [f"MIG-{index}-0" for index in range(8)]
    assert KIND.prefer(even, free, [], 1, (pf_of(5),)) == ["MIG-5-0"]


def test_a_device_by_the_agents_cdi_spec_has_the_nodes_of_its_instances() -> None:
    kind = kinds(NODE)["x/mig-3g.40gb"]
    assert kind.cdi_kind == GPU_KIND
    assert as_json(kind.allocate(NODE, ["MIG-0-2"]))["cdi_devices"] == ["nodeagent.io/gpu=MIG-0-2"]
    spec = kind.cdi_specs(NODE)[GPU_KIND].devices["MIG-0-2"]
    assert [node.host_path for node in spec.device_nodes] == [
        "/dev/nvidia0",
        "/dev/nvidia-caps/nvidia-cap84",
        "/dev/nvidia-caps/nvidia-cap85",
    ]


def test_the_vendors_spec_is_used_where_it_has_all_devices_of_the_profile() -> None:
    paths = HostPaths(vendor_gpus=frozenset({"MIG-0-2", "MIG-0-0"}))
    made = kinds(replace(NODE, paths=paths))
    assert made["x/mig-3g.40gb"].cdi_kind == "nvidia.com/gpu"
    assert made["x/mig-1g.10gb"].cdi_kind == GPU_KIND, (
        "the spec was written before the other devices were made"
    )
    assert kinds(NODE, own_cdi=False)["x/mig-1g.10gb"].cdi_kind == "nvidia.com/gpu"


def test_a_device_whose_nodes_are_not_known_is_refused_only_where_the_agent_writes_the_spec() -> None:
    bare = replace(part(0, 0), nodes=())
    snapshot = machine(replace(gpu_of(0), mig=True, mig_devices=(bare,)))
    ours = kinds(snapshot)["x/mig-1g.10gb"]
    with pytest.raises(
        Refused,
        match="MIG-0-0: the device nodes of the MIG device are not known; mount /proc/driver/nvidia-caps",
    ):
        ours.allocate(snapshot, ["MIG-0-0"])
    beside = machine(replace(gpu_of(0), mig=True, mig_devices=(bare, part(0, 1))))
    assert [(it.ids, it.health.allocatable) for it in ours.devices(beside)] == [
        (("MIG-0-0",), False),
        (("MIG-0-1",), True),
    ]
    assert bare.uuid not in ours.cdi_specs(snapshot)[GPU_KIND].devices
    vendor = structs.replace(ours, cdi_kind="nvidia.com/gpu")
    assert vendor.allocate(snapshot, ["MIG-0-0"]).cdi_devices == ("nvidia.com/gpu=MIG-0-0",)


def test_by_envvar_the_runtime_gets_the_uuid_and_the_kubelet_the_nodes() -> None:
    kind = structs.replace(
        KIND, strategy="envvar", pass_device_nodes=True, control_nodes=("/dev/nvidiactl", "/dev/nvidia-uvm")
    )
    answer = as_json(kind.allocate(NODE, ["MIG-1-0"]))
    assert answer["env"] == {"NVIDIA_VISIBLE_DEVICES": "MIG-1-0"}
    assert [node[0] for node in answer["devices"]] == [
        "/dev/nvidia1",
        "/dev/nvidia-caps/nvidia-cap66",
        "/dev/nvidia-caps/nvidia-cap67",
        "/dev/nvidiactl",
        "/dev/nvidia-uvm",
    ]


def test_a_device_that_another_plugin_has_given_away_is_refused() -> None:
    held = Holding("team", "old", "main", "nvidia.com/mig-1g.10gb", ("MIG-0-0",))
    snapshot = replace(NODE, holdings=(held,))
    with pytest.raises(Refused, match=r"held by team/old through nvidia.com/mig-1g.10gb"):
        KIND.allocate(snapshot, ["MIG-0-0"])
    assert KIND.prefer(snapshot, ["MIG-0-0", "MIG-0-1"], [], 1) == ["MIG-0-1"]


@given(data=st.data())
def test_any_allocation_is_of_free_healthy_devices_of_the_profile(data: st.DataObject) -> None:
    profiles = st.lists(st.sampled_from((SMALL, SMALL, "2g.20gb")), max_size=7)
    gpus = [
        divided(index, *data.draw(profiles), **({"health": SICK} if data.draw(st.booleans()) else {}))
        for index in range(data.draw(st.integers(1, 4)))
    ]
    snapshot = machine(*gpus)
    taken: list[str] = []
    for _ in range(6):
        lists = KIND.devices(snapshot)
        available = [id_ for it in lists if it.health.allocatable for id_ in it.ids if id_ not in taken]
        size = data.draw(st.integers(1, 4))
        chosen = answer_of(partial(KIND.prefer, snapshot, available, [], size))
        if isinstance(chosen, Refused):
            assert len(available) < size
            continue
        assert len(chosen) == size
        assert set(chosen) <= set(available)
        KIND.allocate(snapshot, chosen)
        taken += chosen
        snapshot = replace(snapshot, holdings=(Holding("ns", "p", "c", KIND.resource, tuple(taken)),))
    assert max(Counter(taken).values(), default=1) == 1
    healthy = sum(len(it.ids) for it in KIND.devices(snapshot) if it.health.allocatable)
    free = KIND.free(snapshot)
    assert free is not None
    assert sum(free.values()) == healthy - len(taken), "podresources accounts for each of them"
