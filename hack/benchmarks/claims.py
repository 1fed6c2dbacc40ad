"""NodePrepareResources and NodeUnprepareResources: a claim with one GPU share and one VF, by the stand-in kubelet."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.figures import Figure
from benchmarks.stage import NODEAGENT, PATIENCE_S, Stage
from nodeagent_lab.sim.apiserver import ApiServer
from nodeagent_lab.sim.kubelet.dra_manager import PodClaim

DRIVER, NODE = "nodeagent.io", "bench"
PREPARED = (1, 64)
OneDevice = tuple[str, str, str]
"""Driver, pool and name of a device of claims."""
GROUP = "Claims of Dynamic Resource Allocation: one GPU share and one VF, the read of the claim and the disk included"

_CONFIG = """\
apiVersion: nodeagent.io/v1alpha1
kind: NodeAgentConfig
resources:
- {kind: vf, mode: dra}
- {kind: gpu-mem, mode: dra}
cluster: {access: kubeconfig, kubeconfig: KUBECONFIG, report: false, events: false}
"""


async def claims(stage: Stage, *, quick: bool) -> AsyncIterator[Figure]:
    runs = 10 if quick else 300
    server = await ApiServer().start()
    config = stage.folder / "dra.yaml"
    config.write_text(_CONFIG.replace("KUBECONFIG", str(kubeconfig(stage.folder, server))))
    arguments = ("run", "--config", str(config), "--root", str(stage.root))
    try:
        async with stage.kubelet() as kubelet:
            folder = ("--kubelet-dir", str(kubelet.directory), "--listen", "127.0.0.1:0")
            async with stage.process("env", f"NODE_NAME={NODE}", *NODEAGENT, *arguments, *folder) as process:
                try:
                    await kubelet.until(lambda: len(kubelet.dra.health) > 1, PATIENCE_S)
                except TimeoutError as error:
                    raise RuntimeError(f"{error}; the agent's log:\n{process.log_tail()}") from error
                devices = sorted(kubelet.dra.health)
                held = 0
                for count in PREPARED:
                    while held < count - 1:
                        await kubelet.dra.prepare(f"held-{held}", [share_and_vf(server, devices, held)])
                        held += 1
                    prepare, unprepare = [], []
                    for _ in range(runs):
                        claim = share_and_vf(server, devices, count - 1)
                        began = time.perf_counter()
                        await kubelet.dra.prepare("pod", [claim])
                        prepared = time.perf_counter()
                        await kubelet.dra.unprepare("pod")
                        unprepare.append((time.perf_counter() - prepared) * 1e3)
                        prepare.append((prepared - began) * 1e3)
                    yield Figure(GROUP, f"Prepare with {count} prepared claims", "ms", prepare)
                    yield Figure(GROUP, f"Unprepare with {count} prepared claims", "ms", unprepare)
    finally:
        await server.stop()


def share_and_vf(server: ApiServer, devices: list[OneDevice], number: int) -> PodClaim:
    gpus = [it for it in devices if it[1].endswith("/gpu")]
    pfs = [it for it in devices if it[1].endswith("/nic")]
    chosen = {
        "g": (gpus[number % len(gpus)], {"memory": "4Gi"}),
        "r": (pfs[number % len(pfs)], {"vfs": "1"}),
    }
    return claim_of(server, number, chosen)


def claim_of(
    server: ApiServer, number: int, chosen: Mapping[str, tuple[OneDevice, dict[str, str]]]
) -> PodClaim:
    """Store a claim as the scheduler allocated it: for each request a device, and how much of its capacities."""
    name, uid = f"c{number}", str(uuid.uuid4())
    results = [
        {
            "request": request,
            "driver": driver,
            "pool": pool,
            "device": device,
            "shareID": str(uuid.uuid4()),
            "consumedCapacity": amounts,
        }
        for request, ((driver, pool, device), amounts) in chosen.items()
    ]
    claim: dict[str, Any] = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": f"{name}-{uid}", "namespace": "default", "uid": uid},
        "status": {"allocation": {"devices": {"results": results}}},
    }
    server.put(claim)
    return PodClaim("default", f"{name}-{uid}", uid, (DRIVER,))


def kubeconfig(folder: Path, server: ApiServer) -> Path:
    """A file by which an agent finds this API server."""
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "bench",
        "clusters": [{"name": "bench", "cluster": {"server": server.url}}],
        "users": [{"name": "bench", "user": {"token": server.token()}}],
        "contexts": [{"name": "bench", "context": {"cluster": "bench", "user": "bench"}}],
    }
    path = folder / "kubeconfig"
    path.write_text(json.dumps(content))
    return path
