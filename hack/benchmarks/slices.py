"""Measure the ResourceSlices of an agent with mode dra, against the stand-in API server in this process."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path

from benchmarks.figures import Figure
from benchmarks.idle import status_of
from benchmarks.stage import NODEAGENT, PATIENCE_S, Stage
from nodeagent_lab.sim.apiserver import ApiServer

NODE = "bench"
SLICES = "resourceslices"
BACK_MS = 1000.0
_PAUSE_S = 32.0
"""A slice that is deleted again and again is written four times at once, then every 30 s."""
_CONFIG = """\
apiVersion: nodeagent.io/v1alpha1
kind: NodeAgentConfig
resources:
- {{kind: vf, mode: dra}}
- {{kind: gpu-mem, mode: dra}}
cluster: {{access: kubeconfig, kubeconfig: {kubeconfig}, report: false, events: false}}
listen: null
"""


async def slices(stage: Stage, *, quick: bool) -> AsyncIterator[Figure]:
    """The time from the deletion of all slices until they are back, their size, and the memory of the agent."""
    group = "ResourceSlices of an agent with mode dra: 8 GPUs, 8 PFs"
    rounds = 3 if quick else 9
    server = await ApiServer(seed=1).start()
    try:
        server.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})
        arguments = ("run", "--root", str(stage.root), "--config", str(_configuration(stage, server)))
        async with (
            stage.kubelet() as kubelet,
            stage.process(
                "env", f"NODE_NAME={NODE}", *NODEAGENT, *arguments, "--kubelet-dir", str(kubelet.directory)
            ) as process,
        ):
            try:
                async with asyncio.timeout(PATIENCE_S):
                    await server.until(lambda: len(server.objects(SLICES)) == 2 and server.watching[SLICES])
            except TimeoutError:
                raise RuntimeError(f"no slices; the agent's log:\n{process.log_tail()}") from None
            published_ms = 1000 * (time.monotonic() - process.began)
            size = sum(len(json.dumps(obj, separators=(",", ":"))) for obj in server.objects(SLICES))
            back = []
            for number in range(rounds):
                if number >= 2:
                    await asyncio.sleep(_PAUSE_S)
                began = time.monotonic()
                for obj in server.objects(SLICES):
                    server.remove(SLICES, obj["metadata"]["name"])
                await server.until(lambda: len(server.objects(SLICES)) == 2)
                back.append(1000 * (time.monotonic() - began))
            written = sum(server.counts[verb, SLICES] for verb in ("create", "patch"))
            await asyncio.sleep(5 if quick else 30)
            again = sum(server.counts[verb, SLICES] for verb in ("create", "patch")) - written
            memory = status_of(process.pid)["VmRSS"]
    finally:
        await server.stop()
    yield Figure(group, "published, from exec", "ms", [published_ms])
    yield Figure(group, "back after the kubelet has deleted them", "ms", back, {"max": BACK_MS})
    yield Figure(group, "size of both slices as JSON", "B", [size])
    yield Figure(group, "writes in a steady state", "", [again], {"max": 0})
    yield Figure(group, "resident memory (VmRSS)", "MiB", [memory])


def _configuration(stage: Stage, server: ApiServer) -> Path:
    kubeconfig = stage.folder / "kubeconfig"
    kubeconfig.touch(mode=0o600)
    kubeconfig.write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": NODE,
                "clusters": [{"name": NODE, "cluster": {"server": server.url}}],
                "users": [{"name": NODE, "user": {"token": server.token()}}],
                "contexts": [{"name": NODE, "context": {"cluster": NODE, "user": NODE}}],
            }
        )
    )
    config = stage.folder / "nodeagent-dra.yaml"
    config.write_text(_CONFIG.format(kubeconfig=kubeconfig))
    return config
