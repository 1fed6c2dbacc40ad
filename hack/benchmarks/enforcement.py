"""Allocate with each enforcement, and one search for the cgroups of containers.

The plugin serves in this process, so a figure has the time of client and server. NVML is not part of it: of the
limits by cgroup, only the search is measured, in files of a simulated node.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path

from benchmarks.calls import ALLOCATE_P99_MS, channel, timed
from benchmarks.figures import Figure
from benchmarks.stage import Stage
from nodeagent.kinds.enforcement import EnforcementLevel
from nodeagent.kube import deviceplugin_pb2 as pb

GPUS, SLICES, PODS = 8, 79, 200
RESOURCE = "nvidia-dgx-h100/gpu-mem"
LEVELS: tuple[EnforcementLevel, ...] = ("none", "env", "nvml-limits", "mps", "evict")
GROUP = "Allocate of 40 slices of 632 with each enforcement, client and server in one process"


async def enforcement(on: Stage, *, quick: bool) -> AsyncIterator[Figure]:
    from nodeagent.facts.model import Gpu, Holding, LimitSupport, Snapshot
    from nodeagent.kinds.gpu_memory import GpuMemory
    from nodeagent.kinds.mps_clients import MpsShares
    from nodeagent.kubelet.cdi_files import CdiSpecFiles
    from nodeagent.kubelet.device_info import DeviceInfoFiles
    from nodeagent.kubelet.grown_requests import GrownRequests
    from nodeagent.kubelet.offer_files import OfferFiles
    from nodeagent.kubelet.plugin import Plugin, RecentFunctions
    from nodeagent.kubelet.rpc_stats import RpcStats

    gpus = tuple(Gpu(f"GPU-{n}", n, n, "H100", f"0000:{n:02x}:00.0", 81_559, 0) for n in range(GPUS))
    snapshot = Snapshot(
        gpus=gpus,
        gpu_driver="615.71.09",
        limit_support=LimitSupport(cgroup2=True, hidden_processes="", cgroup_obstacle=""),
        mps_obstacles=tuple((gpu.uuid, "") for gpu in gpus),
        holdings=tuple(
            Holding("ns", f"pod-{n}", "main", RESOURCE, (f"GPU-{n % GPUS}::{n}",)) for n in range(30)
        ),
    )
    files = OfferFiles(DeviceInfoFiles(on.folder / "info"), CdiSpecFiles(on.folder / "cdi"))
    ids = [f"GPU-3::{n}" for n in range(39, 79)]
    request = pb.AllocateRequest(container_requests=[pb.ContainerAllocateRequest(devices_ids=ids)])
    for level in LEVELS:
        shares = MpsShares("/var/lib/nodeagent/mps", by_share=True) if level == "mps" else None
        kind = GpuMemory(RESOURCE, enforcement=level, mps=shares)
        plugin = Plugin(kind, files, RecentFunctions(), RpcStats(), GrownRequests(), lambda: None)
        plugin.update(kind, snapshot)
        socket = on.folder / f"{level}.sock"
        await plugin.start(socket)
        async with channel(socket) as connection:
            samples = await timed(connection, "Allocate", request.SerializeToString(), 50 if quick else 500)
        await plugin.stop()
        yield Figure(GROUP, f"enforcement {level}", "ms", samples, {"p99": ALLOCATE_P99_MS})
    yield _search(on.folder / "cgroups", quick=quick)


def _search(root: Path, *, quick: bool) -> Figure:
    from nodeagent.host.sysfs import Tree
    from nodeagent.sharing.container_cgroups import ContainerCgroups
    from nodeagent.sharing.shares import Share

    shares = []
    for n in range(PODS):
        uid = f"{n:08x}-0000-4000-8000-{n:012x}"
        pod = f"kubepods-burstable-pod{uid.replace('-', '_')}.slice"
        folder = root / f"sys/fs/cgroup/kubepods.slice/kubepods-burstable.slice/{pod}"
        for container in range(2):
            scope = folder / f"cri-containerd-{n * 2 + container:064x}.scope"
            scope.mkdir(parents=True)
            (scope / "cgroup.procs").touch()
        (root / "var/log/pods" / f"ns_pod-{n}_{uid}").mkdir(parents=True)
        links = root / "var/log/containers"
        links.mkdir(parents=True, exist_ok=True)
        (links / f"pod-{n}_ns_main-{n * 2:064x}.log").touch()
        if n % 4 == 0:
            shares.append(Share("ns", f"pod-{n}", "main", "GPU-0", 1 << 30))
    samples = []
    for _ in range(10 if quick else 100):
        began = time.process_time()
        found = ContainerCgroups(Tree(root), "/var/log/pods").of(shares)
        samples.append(1000 * (time.process_time() - began))
        assert all(len(entry.cgroups) == 1 and entry.named for entry in found.values())
    return Figure(
        "limits of GPU memory",
        f"the cgroups of 50 containers among {PODS} pods, CPU time of the thread",
        "ms",
        samples,
    )
