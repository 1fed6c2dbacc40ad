"""Machines for the tests of kinds: one like a DGX, and machines drawn by Hypothesis."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st
from msgspec.structs import replace

from nodeagent.facts.allocation import Allocation
from nodeagent.facts.model import (
    HEALTHY,
    Function,
    Gpu,
    Health,
    HostPaths,
    Link,
    Mount,
    Rdma,
    Reason,
    Snapshot,
    State,
)
from nodeagent.kinds import Refused

WITH_DRIVER = HostPaths(
    driver_files=(Mount("/usr/lib64/libcuda.so.580.95.05", "/usr/lib64/libcuda.so.1", read_only=True),),
    rdma_cm=True,
)
"""A host that has the library of the GPU driver, without which no GPU is offered, and ``/dev/infiniband/rdma_cm``."""
SICK = Health(State.UNHEALTHY, (Reason("xid", "XID 79: the GPU has fallen off the bus"),), allocatable=False)


def uuid_of(index: int) -> str:
    return f"GPU-{index:08x}-aaaa-bbbb-cccc-{index:012x}"


def gpu_of(
    index: int, *, memory_mib: int = 81_559, numa: int | None = None, root: int | None = None, leg: int = 0
) -> Gpu:
    """``root`` and ``leg`` are the host bridge and the switch below it; each has its own bus."""
    root = index if root is None else root
    path = (f"pci0000:{root:02x}", f"0000:{root:02x}:{leg:02x}.0", f"0000:{leg:02x}:{index:02x}.0")
    return Gpu(
        uuid=uuid_of(index),
        index=index,
        minor=index,
        name="NVIDIA H100 80GB HBM3",
        pci_address=f"0000:{0x20 + index:02x}:00.0",
        memory_mib=memory_mib,
        numa_node=index // 4 if numa is None else numa,
        pci_path=(*path, f"0000:{0x20 + index:02x}:00.0"),
    )


def pf_of(rail: int, num_vfs: int = 8, **changes: object) -> Function:
    address = f"0000:{0x40 + rail:02x}:00.0"
    function = Function(
        pci_address=address,
        vendor="15b3",
        device="1021",
        driver="mlx5_core",
        netdev=f"ibp{rail}",
        link_type="infiniband",
        rdma=Rdma(f"mlx5_{rail}", f"/dev/infiniband/uverbs{rail}"),
        vfio_group=None,
        vdpa=None,
        numa_node=rail // 4,
        pci_path=(f"pci0000:{rail:02x}", f"0000:{rail:02x}:00.0", f"0000:00:{rail:02x}.1", address),
        num_vfs=num_vfs,
        total_vfs=16,
    )
    return replace(function, **changes)


def vf_of(pf: Function, index: int, **changes: object) -> Function:
    number = 100 + int(pf.pci_address[5:7], 16) * 16 + index
    address = f"{pf.pci_address[:-4]}{(index + 1) // 8:02x}.{(index + 1) % 8}"
    function = replace(
        pf,
        pci_address=address,
        device="101e",
        netdev=f"{pf.netdev}v{index}",
        rdma=Rdma(
            f"mlx5_{number}",
            f"/dev/infiniband/uverbs{number}",
            f"/dev/infiniband/umad{number}",
            f"/dev/infiniband/issm{number}",
        ),
        vfio_group=str(number),
        pci_path=(*pf.pci_path[:-1], address),
        parent=pf.pci_address,
        vf_index=index,
        num_vfs=None,
        total_vfs=None,
    )
    return replace(function, **changes)


def dgx(num_vfs: int = 8) -> Snapshot:
    """Eight GPUs and eight NICs, one of each below every switch, four switches on every NUMA node."""
    pfs = [pf_of(rail, num_vfs) for rail in range(8)]
    functions = [*pfs, *(vf_of(pf, index) for pf in pfs for index in range(num_vfs))]
    links = [Link(pf.netdev or "", pf.pci_address, None, True, True, "up", 400_000, 9000) for pf in pfs]
    return Snapshot(
        revision=1,
        gpus=tuple(gpu_of(index) for index in range(8)),
        functions=tuple(sorted(functions, key=lambda function: function.pci_address)),
        links=tuple(links),
    )


@st.composite
def fleets(draw: st.DrawFn, most: int = 6) -> tuple[Gpu, ...]:
    """GPUs of a few slices each (one slice is 1024 MiB), some of them unhealthy, anywhere in a PCIe tree."""
    gpus = []
    for index in range(draw(st.integers(1, most))):
        root = draw(st.integers(0, 2))
        gpu = gpu_of(
            index,
            memory_mib=1024 * draw(st.sampled_from((2, 2, 2, 1, 3, 4, 0))) + draw(st.sampled_from((0, 1023))),
            numa=root // 2,
            root=root,
            leg=draw(st.integers(0, 1)),
        )
        gpus.append(replace(gpu, health=draw(st.sampled_from((HEALTHY, HEALTHY, HEALTHY, HEALTHY, SICK)))))
    return tuple(gpus)


def answer_of(ask: Callable[[], Any]) -> Any:
    """Return the answer or the refusal."""
    try:
        return ask()
    except Refused as refused:
        return refused


def as_json(allocation: Allocation) -> dict[str, object]:
    return {
        "env": dict(allocation.env),
        "mounts": list(allocation.mounts),
        "devices": [[it.host_path, it.container_path, it.permissions] for it in allocation.device_nodes],
        "annotations": dict(allocation.annotations),
        "cdi_devices": list(allocation.cdi_devices),
        "device_info": {it.name: json.loads(it.text) for it in allocation.device_info},
    }
