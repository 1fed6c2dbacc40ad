"""Volcano's deviceshare with the whole agent and a stand-in kubelet. In real time: gRPC has threads of its own."""

from __future__ import annotations

import asyncio
from pathlib import Path

import yaml

from nodeagent.features.volcano_deviceshare import volcano_annotations as notes
from nodeagent.kinds.volcano_vgpus import CORES, MEMORY, NUMBER
from nodeagent_lab.sim.apiserver import ApiServer
from nodeagent_lab.sim.kubelet import PodSpec
from tests.support.running_agent import node
from tests.support.volcano_scheduler import Scheduler

NODE = "gpu-0"


async def test_a_kubelet_that_is_faster_than_the_annotations_waits_for_them_and_the_pod_gets_its_gpu(
    tmp_path: Path,
) -> None:
    """The whole agent: registration of the three resources, a placed pod, its report, and a pod without a choice."""
    server = await ApiServer(seed=1).start()
    server.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(
        yaml.safe_dump(
            {
                "current-context": "here",
                "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}}],
                "clusters": [{"name": "c", "cluster": {"server": server.url}}],
                "users": [{"name": "u", "user": {"token": server.token("agent")}}],
            }
        )
    )
    settings = (
        f"cluster: {{access: kubeconfig, kubeconfig: {kubeconfig}}}\n"
        "resources: [{kind: gpu-mem, volcano: true, deviceListStrategy: envvar}]\n"
    )
    try:
        async with node() as n:
            await n.kubelet.start()
            await n.start_agent(n.configure(settings), node_name=NODE)
            for resource, count in ((NUMBER, 128), (MEMORY, 158), (CORES, 200)):
                await n.allocatable(resource, count)
            await server.until(lambda: _notes(server, "nodes", NODE).get(notes.REGISTER))
            scheduler = Scheduler(server)
            limits = {NUMBER: 1, MEMORY: 40, CORES: 30}
            container = {
                "name": "main",
                "resources": {"limits": {key: str(it) for key, it in limits.items()}},
            }
            meta = {"name": "a", "namespace": "default", "uid": "uid-a"}
            server.put(
                {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {"containers": [container]}}
            )

            admitting = asyncio.ensure_future(n.kubelet.admit(PodSpec.single("a", limits)))
            await asyncio.sleep(0)
            scheduler.bind("a", NODE)
            admission = await admitting
            assert admission.admitted, admission
            chosen = _notes(server, "pods", "a")[notes.CHOSEN].partition(",")[0]
            env = dict(admission.given["main"].env)
            assert (env["NVIDIA_VISIBLE_DEVICES"], env["NODEAGENT_GPU_MEM_MIB"]) == (chosen, str(40 * 1024))
            await server.until(lambda: _notes(server, "pods", "a")[notes.BIND_PHASE] == "success")
            await server.until(lambda: notes.NODE_LOCK not in _notes(server, "nodes", NODE))

            refused = await n.kubelet.admit(PodSpec.single("b", {NUMBER: 1, MEMORY: 8}))
            assert "no pod that Volcano placed here waits for 1 GPUs" in refused.message
            assert n.kubelet.panics == []
    finally:
        await server.stop()


def _notes(server: ApiServer, plural: str, name: str) -> dict[str, str]:
    found = server.find(plural, name, "default" if plural == "pods" else None)
    assert found is not None
    return dict(found["metadata"].get("annotations") or {})
