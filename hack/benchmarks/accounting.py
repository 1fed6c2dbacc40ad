"""One pass of the accounting: eight GPUs, 48 processes on each, and a folder of logs with 200 pods.

NVML itself is not part of it: the processes are given. Files are those of a simulated /proc in memory.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

from benchmarks.figures import Figure
from benchmarks.stage import Stage

GPUS, PROCESSES, PODS = 8, 48, 200
GIB = 1 << 30


def uid(number: int) -> str:
    return f"{number:08x}-0000-4000-8000-{number:012x}"


async def accounting(on: Stage, *, quick: bool) -> AsyncIterator[Figure]:
    """Measure the thread of the driver, and the event loop with 632 held slices, apart."""
    from nodeagent.facts.model import Gpu, Holding, Snapshot
    from nodeagent.health.gpu_settings import GpuHealthSettings, GpuSettings
    from nodeagent.host.gpu_driver import GpuProcess
    from nodeagent.host.sysfs import Tree
    from nodeagent.sharing.gpu_accounting import GpuAccounting
    from nodeagent.sources.gpu_users import GpuUsers

    root = on.folder / "accounting"
    for folder, comm in (("2", "kthreadd"),):
        (root / "proc" / folder).mkdir(parents=True)
        (root / "proc" / folder / "comm").write_text(f"{comm}\n")
    for pod in range(PODS):
        (root / "var/log/pods" / f"team_pod-{pod}_{uid(pod)}").mkdir(parents=True)
    for pid in range(1000, 1000 + GPUS * PROCESSES):
        pod = uid(pid % PODS).replace("-", "_")
        slice_ = f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{pod}.slice"
        (root / "proc" / str(pid)).mkdir()
        (root / "proc" / str(pid) / "cgroup").write_text(f"0::{slice_}/cri-containerd-{'ab' * 32}.scope\n")
    gpus = tuple(Gpu(f"GPU-{n}", n, n, "H100", f"0000:{n:02x}:00.0", 81_559, 0) for n in range(GPUS))
    holdings = tuple(
        Holding("team", f"pod-{n}", "main", "x/gpu-mem", tuple(f"GPU-{n}::{k}" for k in range(79)))
        for n in range(GPUS)
    )
    snapshot = Snapshot(gpus=gpus, holdings=holdings)
    processes = [
        [GpuProcess(1000 + n * PROCESSES + k, GIB, 0.01) for k in range(PROCESSES)] for n in range(GPUS)
    ]
    users = GpuUsers(Tree(root), "/var/log/pods")
    settings = GpuSettings(health=GpuHealthSettings(processes=True))
    kept = GpuAccounting(settings, lambda: snapshot, lambda: {"x/gpu-mem": GIB})
    reading, judging = [], []
    for _ in range(20 if quick else 200):
        began = time.perf_counter()
        obstacle = users.begin()
        assert obstacle is None, obstacle
        usage = {}
        for gpu, members in zip(gpus, processes, strict=True):
            users.by_container(members)
            usage[gpu.uuid] = users.usage(members)
        read = time.perf_counter()
        kept.take_usage(usage, None)
        reading.append(1000 * (read - began))
        judging.append(1000 * (time.perf_counter() - read))
    assert sum(len(account.pods) for account in kept.accounts()) >= GPUS * PROCESSES
    yield Figure(
        "accounting, 8 GPUs with 48 processes each", "processes → pods, in the driver's thread", "ms", reading
    )
    yield Figure(
        "accounting, 8 GPUs with 48 processes each", "accounts and over-use, on the event loop", "ms", judging
    )
