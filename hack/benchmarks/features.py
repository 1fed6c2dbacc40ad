"""The agent at rest with every feature that combines switched on, and with none: memory, CPU, wake-ups.

With none it offers its devices to the kubelet and applies its rules: no API server, no report, no probes. With every
feature it writes to a stand-in of the API server all that it can, probes its rails, compares values, judges traffic,
attaches netdevs, and asks for NVSentinel's socket, which is not there.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from benchmarks.claims import kubeconfig
from benchmarks.figures import Figure
from benchmarks.idle import at_rest
from benchmarks.stage import Stage
from nodeagent_lab.sim.apiserver import ApiServer

NODE = "bench"
NONE = "cluster: {access: none}\n"
EVERY = """\
cluster:
  access: kubeconfig
  kubeconfig: KUBECONFIG
  reportHolders: true
  conditions: true
  label: true
  gpuMemLargest: {enabled: true, step: 8}
  gpuMemEnforcement: true
  taint: {enabled: true, railsDown: 2}
  evict: {enabled: true, afterSeconds: 300, taint: true}
attach: {interface: "rail{rail}", addresses: "10.{100+rail}.0.0/16", nodes: 1000, vfs: 8}
gpu:
  health: {processes: true}
infiniband: {query: auto}
rails: {probe: true}
peers: {compare: true}
traffic: {report: true}
history: {file: history.json}
nvSentinel: {socket: /var/run/nvsentinel/nvsentinel.sock}
"""
GROUPS = {
    "no feature": "`nodeagent run` at rest without any feature, and without an API server",
    "every feature": "`nodeagent run` at rest with every feature that combines",
}


async def features(stage: Stage, *, quick: bool) -> AsyncIterator[Figure]:
    server = await ApiServer().start()
    try:
        server.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})
        every = EVERY.replace("KUBECONFIG", str(kubeconfig(stage.folder, server)))
        for (who, group), more in zip(GROUPS.items(), (NONE, every), strict=True):
            config = stage.folder / f"{who.replace(' ', '-')}.yaml"
            config.write_text(stage.config().read_text() + more)
            async with stage.kubelet() as kubelet, stage.agent(kubelet, config, node=NODE) as process:
                async for figure in at_rest(group, process, who, quick=quick):
                    yield figure
    finally:
        await server.stop()
