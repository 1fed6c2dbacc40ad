"""Accounting in the running agent: from processes of a simulated machine to metrics, log and Events."""

from __future__ import annotations

import json

import pytest

from nodeagent.config.file_errors import ConfigError
from nodeagent.dra import DRIVER
from nodeagent.host.recorded_gpus import PATH
from nodeagent_lab.sim.kubelet import PodSpec
from nodeagent_lab.sim.kubelet.dra_manager import PodClaim
from tests.cluster.test_agent_tasks import HEAD, events, kubeconfig, server
from tests.support.dra_node import claim_of, result
from tests.support.running_agent import node, shorten_holdings

__all__ = ["kubeconfig", "server"]

UID, CONTAINER = "0a1b2c3d-4e5f-4a6b-8c7d-9e0f1a2b3c4d", "ab" * 32
SCOPE = f"0::/kubepods.slice/kubepods-pod{UID.replace('-', '_')}.slice/cri-containerd-{CONTAINER}.scope\n"
GIB = 1 << 30
ACCOUNTING = "gpu: {health: {processes: true, readSeconds: 1}, accounting: {graceSeconds: 2}}\n"


def process(root, pid: int, cgroup: str, comm: str) -> None:
    folder = root / "proc" / str(pid)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cgroup").write_text(cgroup)
    (folder / "comm").write_text(f"{comm}\n")


def use(root, *processes: dict[str, object]) -> str:
    """Let these processes use the first GPU. Return its UUID."""
    path = root / PATH.lstrip("/")
    recording = json.loads(path.read_text())
    for gpu in recording["gpus"]:
        gpu["processes"] = list(processes) if gpu["index"] == 0 else []
    new = path.with_suffix(".new")
    new.write_text(json.dumps(recording))
    new.rename(path)
    return str(next(gpu["uuid"] for gpu in recording["gpus"] if gpu["index"] == 0))


@pytest.mark.slow
async def test_a_pod_that_takes_more_than_its_share_is_named_with_numbers(server, kubeconfig, caplog):
    async with node() as n:
        process(n.root, 2, "0::/\n", "kthreadd")
        process(n.root, 11, SCOPE, "python3")
        process(n.root, 12, "0::/user.slice\n", "miner")
        (n.root / "var/log/pods" / f"default_p_{UID}").mkdir(parents=True)
        uuid = use(n.root, {"pid": 11, "memory_bytes": 45 * GIB, "utilization": 0.5},
                   {"pid": 12, "memory_bytes": 2 * GIB})  # fmt: skip
        await n.kubelet.start()
        text = f"{ACCOUNTING}cluster: {{access: kubeconfig, kubeconfig: {kubeconfig}}}\n"
        await n.start_agent(n.configure(text), node_name="gpu-0")
        await n.allocatable(f"{HEAD}/gpu-mem", 158)
        assert (await n.kubelet.admit(PodSpec.single("p", {f"{HEAD}/gpu-mem": 40}))).admitted
        await server.until(
            lambda: {("Pod", "GpuMemoryExceeded"), ("Node", "GpuMemoryExceeded")} <= events(server)
        )
        await server.until(lambda: ("Node", "GpuUsedOutsidePods") in events(server))
        messages = {one["message"] for one in server.objects("events")}
        share = f"45.0 GiB of GPU 0 ({uuid}) for 2 s, and its share is 40.0 GiB"
        assert {f"The pod uses {share}", f"Pod default/p uses {share}"} <= messages
        assert f"GPU 0 ({uuid}): 2.0 GiB are used outside of pods for 2 s, by miner (12)" in messages
        _, page = await n.get("/metrics")
        labels = '{gpu="0",namespace="default",pod="p"}'
        assert f"nodeagent_gpu_pod_memory_used_bytes{labels} {45 * GIB}" in page
        assert f"nodeagent_gpu_pod_memory_granted_bytes{labels} {40 * GIB}" in page
        assert f"nodeagent_gpu_pod_utilization_ratio{labels} 0.5" in page
        assert f'nodeagent_gpu_outside_memory_used_bytes{{gpu="0"}} {2 * GIB}' in page
        assert "nodeagent_gpu_accounting_on 1" in page
        assert "GPU memory is used beyond its share. pod=default/p" in caplog.text
        await n.until((n.root / "var/lib/nodeagent/over-uses.json").exists)
        outside = f"GPU memory is used by processes in no pod. gpu={uuid} used_gib=2.0 processes='miner (12)'"
        assert outside in caplog.text
        use(n.root, {"pid": 11, "memory_bytes": 40 * GIB})
        await server.until(lambda: ("Pod", "Recovered") in events(server))
        assert "pod=/" not in caplog.text


EVICT = """
gpu: {health: {processes: true, readSeconds: 1}, accounting: {graceSeconds: 1, evictSeconds: 3}}
resources: [{kind: gpu-mem, enforcement: evict}]
"""


@pytest.mark.slow
async def test_with_enforcement_evict_the_pod_is_evicted_through_the_api(server, kubeconfig, caplog):
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "default", "uid": UID}}
    server.put(pod)
    async with node() as n:
        process(n.root, 2, "0::/\n", "kthreadd")
        process(n.root, 11, SCOPE, "python3")
        (n.root / "var/log/pods" / f"default_p_{UID}").mkdir(parents=True)
        use(n.root, {"pid": 11, "memory_bytes": 45 * GIB})
        await n.kubelet.start()
        text = f"{EVICT}cluster: {{access: kubeconfig, kubeconfig: {kubeconfig}}}\n"
        await n.start_agent(n.configure(text), node_name="gpu-0")
        await n.allocatable(f"{HEAD}/gpu-mem", 158)
        assert (await n.kubelet.admit(PodSpec.single("p", {f"{HEAD}/gpu-mem": 40}))).admitted
        await server.until(lambda: server.find("pods", "p", "default") is None)
        await server.until(lambda: {("Pod", "PodEvicted"), ("Node", "PodEvicted")} <= events(server))
        (message,) = (
            one["message"] for one in server.objects("events")
            if one["reason"] == "PodEvicted" and one["involvedObject"]["kind"] == "Pod"
        )  # fmt: skip
        assert "it has used 45.0 GiB of GPU-" in message
        assert "its share is 40.0 GiB" in message
        _, page = await n.get("/metrics")
        assert f'nodeagent_resource_enforcement{{resource="{HEAD}/gpu-mem",level="evict"}} 1' in page


@pytest.mark.slow
async def test_with_enforcement_evict_a_pod_with_a_claim_is_evicted_too(server, kubeconfig, monkeypatch):
    """The setting was accepted, and nobody was evicted."""
    shorten_holdings(monkeypatch)
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "default", "uid": UID}}
    server.put(pod)
    async with node() as n:
        process(n.root, 2, "0::/\n", "kthreadd")
        process(n.root, 11, SCOPE, "python3")
        (n.root / "var/log/pods" / f"default_p_{UID}").mkdir(parents=True)
        uuid = use(n.root, {"pid": 11, "memory_bytes": 45 * GIB})
        await n.kubelet.start()
        text = EVICT.replace("enforcement: evict", "enforcement: evict, mode: dra")
        access = f"access: kubeconfig, kubeconfig: {kubeconfig}"
        text += f"cluster: {{{access}, gpuMemEnforcement: true}}\n"
        server.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}})
        await n.start_agent(n.configure(text), node_name="n1")
        await n.kubelet.until(lambda: n.kubelet.dra.registered(DRIVER), 20)
        await n.until(lambda: any(n.agent.offering.dra.current.devices()))
        gpu = next(it for it in n.agent.offering.dra.current.devices() if it.gpu.uuid == uuid)
        claim = server.put(claim_of("c", result(gpu, 40 << 10, "g"), pod="p"))
        await n.kubelet.dra.prepare("p", [PodClaim("default", "c", claim["metadata"]["uid"], (DRIVER,))])
        await server.until(lambda: server.find("pods", "p", "default") is None)
        label = "nodeagent.io/gpu-mem-enforcement"
        await server.until(
            lambda: server.find("nodes", "n1")["metadata"].get("labels", {}).get(label) == "evict"
        )


@pytest.mark.parametrize(
    ("enforcement", "missing"), [("evict", "hostPID"), ("env", "driver 580.95.05 is older than 615")]
)
async def test_a_level_that_the_node_lacks_is_refused_at_the_start(enforcement: str, missing: str) -> None:
    async with node() as n:
        await n.kubelet.start()
        text = EVICT.replace("enforcement: evict", f"enforcement: {enforcement}")
        with pytest.raises(ConfigError, match=f"enforcement {enforcement} is not possible .*{missing}"):
            await n.start_agent(n.configure(text))


@pytest.mark.parametrize(
    ("setting", "reason"), [("true", "hostPID"), ("false", "gpu.health.processes is false")]
)
async def test_without_what_it_needs_accounting_is_off_and_names_the_reason(
    setting: str, reason: str
) -> None:
    async with node() as n:
        use(n.root, {"pid": 11, "memory_bytes": 45 * GIB})
        await n.kubelet.start()
        await n.start_agent(n.configure(f"gpu: {{health: {{processes: {setting}, readSeconds: 1}}}}\n"))
        await n.allocatable(f"{HEAD}/gpu-mem", 158)
        await n.until(lambda: reason in (n.agent.sharing.accounting.obstacle or ""))
        _, page = await n.get("/metrics")
        assert "nodeagent_gpu_accounting_on 0" in page
        assert "nodeagent_gpu_pod_memory" not in page
