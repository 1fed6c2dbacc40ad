"""Each reason for which Allocate may refuse a device, and how the kubelet is told before it chooses the device.

A refused Allocate ends the pod, and its controller makes the next one at once. So a device that no container can have
is Unhealthy, or is not listed. The table has each place of the code that refuses.
"""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest
from msgspec.structs import replace

from nodeagent.cluster.affected_devices import affected_pods
from nodeagent.cluster.largest_block import free_block
from nodeagent.facts.cdi import GPU_KIND
from nodeagent.facts.model import Function, Holding, MigDevice, Snapshot
from nodeagent.health.health_settings import HealthSettings
from nodeagent.health.nic import NicJudge
from nodeagent.health.structural import find_faults
from nodeagent.kinds import DeviceKind, Refused
from nodeagent.kinds.gpu_memory import GpuMemory
from nodeagent.kinds.mig import MigDevices
from nodeagent.kinds.mps_clients import MpsShares
from nodeagent.kinds.vf import VfPool
from nodeagent.kinds.volcano_vgpus import VgpuParts, VgpuPlaces
from nodeagent.kinds.whole_gpu import WholeGpus
from tests.support.kind_machines import SICK, gpu_of, pf_of, uuid_of

ROOT = Path(__file__).parents[2] / "nodeagent"

REQUEST = "the request itself is wrong, whatever the state of the devices"
CHOICE = "there are too few devices to choose from, which the device list says too"
STATE = "a device that no container can have: it is Unhealthy or not listed"
VOLCANO = "what Volcano chose for the pod, which no device list can say"

REFUSALS = {
    "kinds/__init__.py:requested": (REQUEST, 1),
    "kinds/__init__.py:preference": (REQUEST, 3),
    "kinds/__init__.py:_distinct": (REQUEST, 1),
    "kinds/__init__.py:unknown": (STATE, 1),
    "kinds/__init__.py:unhealthy": (STATE, 2),
    "kinds/__init__.py:held_by": (STATE, 1),
    "kinds/whole_gpu.py:choose": (CHOICE, 1),
    "kinds/mig.py:choose": (CHOICE, 2),
    "kinds/mig.py:_usable": (STATE, 1),
    "kinds/vf.py:choose": (CHOICE, 1),
    "kinds/vf.py:_refusal": (STATE, 1),
    "kinds/hca_shares.py:choose": (CHOICE, 1),
    "kinds/gpu_memory.py:allocate": (REQUEST, 1),
    "kinds/gpu_memory.py:_blocks": (STATE, 1),
    "kinds/gpu_memory.py:_no_fit": (CHOICE, 1),
    "kinds/volcano_vgpus.py:choose": (VOLCANO, 2),
    "kinds/volcano_vgpus.py:allocate": (VOLCANO, 1),
    "kinds/volcano_vgpus.py:_check": (VOLCANO, 1),
    "kinds/volcano_vgpus.py:next_waiting": (VOLCANO, 4),
    "kubelet/plugin.py:_refuse_missing": (STATE, 1),
    "kubelet/messages.py:read_allocate_request": (REQUEST, 1),
    "kubelet/messages.py:read_preferred_request": (REQUEST, 1),
}


def test_each_refusal_of_the_code_is_in_the_table() -> None:
    found: Counter[str] = Counter()
    for path in (*sorted((ROOT / "kinds").glob("*.py")), *sorted((ROOT / "kubelet").glob("*.py"))):
        for function in ast.walk(ast.parse(path.read_text())):
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                calls = [node for node in ast.walk(function) if isinstance(node, ast.Call)]
                made = sum(isinstance(it.func, ast.Name) and it.func.id == "Refused" for it in calls)
                found[f"{path.relative_to(ROOT)}:{function.name}"] += made
    assert +found == {place: count for place, (_, count) in REFUSALS.items()}


PF = replace(pf_of(0, 2), link_type="ethernet")


def vf_of(**changes: object) -> Function:
    values: dict[str, object] = {
        "pci_address": "0000:40:00.1",
        "parent": PF.pci_address,
        "vf_index": 0,
        "num_vfs": None,
        "total_vfs": None,
        "netdev": None,
        "rdma": None,
    }
    return replace(PF, **values | changes)


def node_of(*vfs: Function) -> Snapshot:
    """A node whose functions are judged, as the agent judges them."""
    functions, faults = find_faults((PF, *vfs), ())
    judge = NicJudge(HealthSettings())
    judge.take_facts(functions, (), faults)
    return Snapshot(functions=judge.judge(0.0), holdings=())


MIG = MigDevice(
    "MIG-0", "1g.10gb", 9856, 7, 0, ("/dev/nvidia-caps/nvidia-cap66", "/dev/nvidia-caps/nvidia-cap67")
)
MIGS = MigDevices("x/mig", profile="1g.10gb", cdi_kind=GPU_KIND)
DIVIDED = replace(gpu_of(0), mig=True, mig_devices=(MIG,))
MEMORY = GpuMemory("x/gpu-mem", slice_mib=40_000)
POOL = VfPool("x/nic0", (PF.pci_address,))
VF = "0000:40:00.1"


def held(resource: str, *ids: str) -> tuple[Holding, ...]:
    return (Holding("ml", "job-0", "main", resource, ids),)


FULL = Snapshot(
    gpus=(gpu_of(0),), mps_obstacles=((uuid_of(0), ""),), holdings=held("x/gpu-mem", f"{uuid_of(0)}::0")
)
"""A GPU with two slices; one container has one of them."""


@pytest.mark.parametrize(
    ("kind", "snapshot", "device"),
    [
        pytest.param(POOL, node_of(vf_of(driver=None)), VF, id="a VF without a driver"),
        pytest.param(POOL, node_of(vf_of(driver="igb_uio")), VF, id="a VF of a UIO driver"),
        pytest.param(POOL, node_of(vf_of(driver="vfio-pci")), VF, id="a VF of vfio without IOMMU group"),
        pytest.param(POOL, node_of(vf_of(driver="mlx5_vfio_pci")), VF, id="a VF of mlx5's vfio without one"),
        pytest.param(
            replace(POOL, vf_driver="rdma"), node_of(vf_of()), VF, id="a VF without its RDMA device"
        ),
        pytest.param(
            replace(POOL, vf_driver="netdevice"),
            node_of(vf_of(driver="vfio-pci", vfio_group="45")),
            VF,
            id="a VF of another driver",
        ),
        pytest.param(POOL, Snapshot(functions=(PF,), holdings=()), VF, id="a VF that is gone"),
        pytest.param(
            POOL,
            replace(node_of(vf_of()), holdings=held("intel.com/sriov", VF)),
            VF,
            id="a VF that a pod holds through another resource",
        ),
        pytest.param(
            WholeGpus("x/gpu"),
            Snapshot(gpus=(gpu_of(0),), holdings=held("nvidia.com/gpu.shared", f"{uuid_of(0)}::3")),
            uuid_of(0),
            id="a GPU that a pod holds through another resource",
        ),
        pytest.param(
            MEMORY,
            Snapshot(gpus=(gpu_of(0),), holdings=held("nvidia.com/gpu", uuid_of(0))),
            f"{uuid_of(0)}::0",
            id="a slice of a GPU that a pod holds through another resource",
        ),
        pytest.param(
            MIGS,
            Snapshot(gpus=(DIVIDED,), holdings=held("nvidia.com/mig-1g.10gb", MIG.uuid)),
            MIG.uuid,
            id="a MIG device that a pod holds through another resource",
        ),
        pytest.param(
            WholeGpus("x/gpu"), Snapshot(gpus=(replace(gpu_of(0), health=SICK),)), uuid_of(0), id="a sick GPU"
        ),
        pytest.param(WholeGpus("x/gpu"), Snapshot(gpus=(DIVIDED,)), uuid_of(0), id="a whole GPU in MIG mode"),
        pytest.param(
            MEMORY, Snapshot(gpus=(replace(gpu_of(0), health=SICK),)), f"{uuid_of(0)}::0", id="a sick slice"
        ),
        pytest.param(
            MEMORY, Snapshot(gpus=(DIVIDED,)), f"{uuid_of(0)}::0", id="a slice of a GPU in MIG mode"
        ),
        pytest.param(
            replace(MEMORY, enforcement="mps", mps=MpsShares("/mps")),
            Snapshot(gpus=(gpu_of(0),)),
            f"{uuid_of(0)}::0",
            id="a slice without its MPS daemon",
        ),
        pytest.param(
            replace(MEMORY, enforcement="mps", mps=MpsShares("/mps", clients=1)),
            FULL,
            f"{uuid_of(0)}::1",
            id="a free slice of a GPU that has all its MPS clients",
        ),
        pytest.param(
            MIGS, Snapshot(gpus=(replace(DIVIDED, health=SICK),)), MIG.uuid, id="a MIG device of a sick GPU"
        ),
        pytest.param(
            MIGS,
            Snapshot(gpus=(replace(DIVIDED, mig_devices=(replace(MIG, nodes=()),)),)),
            MIG.uuid,
            id="a MIG device without nodes",
        ),
        pytest.param(
            MIGS,
            Snapshot(gpus=(replace(DIVIDED, minor=None),)),
            MIG.uuid,
            id="a MIG device of a GPU without a node",
        ),
    ],
)
def test_a_device_that_no_container_can_have_is_unhealthy_or_not_listed(
    kind: DeviceKind, snapshot: Snapshot, device: str
) -> None:
    with pytest.raises(Refused):
        kind.allocate(snapshot, [device])
    listed = {id_: entry.health for entry in kind.devices(snapshot) for id_ in entry.ids}
    assert device not in listed or not listed[device].allocatable
    if device in listed:
        assert listed[device].reasons, "a person is told why"
    with pytest.raises(Refused):
        kind.prefer(snapshot, [device], [], 1)


@pytest.mark.parametrize(
    ("kind", "snapshot", "ids"),
    [
        (POOL, node_of(vf_of()), (VF,)),
        (WholeGpus("x/gpu"), Snapshot(gpus=(gpu_of(0),)), (uuid_of(0),)),
        (MEMORY, Snapshot(gpus=(gpu_of(0),)), (f"{uuid_of(0)}::0",)),
        (VgpuPlaces(MEMORY), Snapshot(gpus=(gpu_of(0),)), (f"{uuid_of(0)}::vgpu0",)),
        (VgpuParts(MEMORY, "memory"), Snapshot(gpus=(gpu_of(0),)), (f"{uuid_of(0)}::mem0",)),
        (MIGS, Snapshot(gpus=(DIVIDED,)), (MIG.uuid,)),
    ],
)
def test_a_device_that_a_pod_holds_elsewhere_is_unhealthy_without_a_fault(
    kind: DeviceKind, snapshot: Snapshot, ids: tuple[str, ...]
) -> None:
    """Its state stays, so that no pod is evicted, and pods that hold it through this resource change nothing."""
    ours = replace(snapshot, holdings=held(kind.resource, *ids))
    assert kind.devices(ours) == kind.devices(snapshot)
    other = replace(snapshot, holdings=held("x/old", *ids))
    (entry,) = kind.devices(other)
    assert not entry.health.allocatable
    assert entry.health.state is kind.devices(snapshot)[0].health.state
    assert [(reason.key, reason.detail) for reason in entry.health.reasons[:1]] == [
        ("held_elsewhere", "ml/job-0 through x/old holds it; it is healthy again after the end of that pod")
    ]
    both = replace(snapshot, holdings=(*ours.holdings, *other.holdings))
    assert affected_pods(both, [(kind.resource, kind.devices(both))]) == ()


def test_the_other_mig_devices_of_a_gpu_stay_healthy() -> None:
    second = replace(MIG, uuid="MIG-1")
    node = Snapshot(
        gpus=(replace(DIVIDED, mig_devices=(MIG, second)),), holdings=held("nvidia.com/mig-1g.10gb", MIG.uuid)
    )
    assert [(entry.ids, entry.health.allocatable) for entry in MIGS.devices(node)] == [
        (("MIG-0",), False),
        (("MIG-1",), True),
    ]


def test_the_slices_that_clients_of_a_full_gpu_hold_stay_healthy() -> None:
    kind = replace(MEMORY, enforcement="mps", mps=MpsShares("/mps", clients=1))
    held_slice, free = (f"{uuid_of(0)}::{n}" for n in range(2))
    found = [(entry.ids, entry.health.allocatable) for entry in kind.devices(FULL)]
    assert found == [((held_slice,), True), ((free,), False)]
    assert kind.devices(FULL)[1].health.state is gpu_of(0).health.state, "no fault: no pod is evicted"
    (reason,) = kind.devices(FULL)[1].health.reasons
    assert (reason.key, reason.warning) == ("mps_clients", True)
    assert reason.detail == f"{uuid_of(0)} has 1 containers, and gpu.mps.clients is 1"
    more = replace(kind, mps=MpsShares("/mps", clients=2))
    assert [(entry.ids, entry.health.allocatable) for entry in more.devices(FULL)] == [
        ((held_slice, free), True)
    ]
    assert free_block([kind], FULL).whole == 2


def test_a_full_gpu_whose_slices_are_all_held_has_one_entry() -> None:
    kind = replace(MEMORY, enforcement="mps", mps=MpsShares("/mps", clients=1))
    both = replace(FULL, holdings=held("x/gpu-mem", *(f"{uuid_of(0)}::{n}" for n in range(2))))
    assert [entry.health.allocatable for entry in kind.devices(both)] == [True]
