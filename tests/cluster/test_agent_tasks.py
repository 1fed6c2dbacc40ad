"""The agent and the API server: a simulated node, a stand-in kubelet, and the objects that the agent writes."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from nodeagent.base.supervise import Fatal
from nodeagent.cluster import agent_events, agent_tasks, device_marks
from nodeagent.cluster.cluster_settings import (
    ClusterSettings,
    EvictSettings,
    GpuMemLargestSettings,
    TaintSettings,
)
from nodeagent.cluster.device_marks import DeviceMarker
from nodeagent.cluster.node_report import NodeReporter
from nodeagent_lab.sim.kubelet import PodSpec
from tests.support.agent_and_server import kubeconfig, server
from tests.support.cluster_node import running_pod
from tests.support.running_agent import node, shorten, shorten_holdings

__all__ = ["kubeconfig", "server"]
HEAD = "two-gpus-and-two-nics"


def events(server):
    return {(one["involvedObject"]["kind"], one["reason"]) for one in server.objects("events")}


async def test_a_failed_link_becomes_an_event_a_condition_and_a_report(server, kubeconfig, monkeypatch):
    shorten(monkeypatch, DeviceMarker.__init__, jitter_s=0.0)
    shorten(monkeypatch, NodeReporter.__init__, jitter_s=0.0)
    server.put(running_pod("p", "of-p"))
    async with node() as n:
        await n.kubelet.start()
        text = f"cluster: {{access: kubeconfig, kubeconfig: {kubeconfig}, conditions: true, label: true}}\n"
        await n.start_agent(n.configure(text), node_name="gpu-0")
        await n.allocatable(f"{HEAD}/nic0", 4)
        assert (await n.kubelet.admit(PodSpec.single("p", {f"{HEAD}/nic0": 1}))).admitted
        await n.until(lambda: n.agent.inventory.snapshot.holdings)
        n.machine.set_link(0, up=False)
        await server.until(lambda: {("Pod", "DeviceFailed"), ("Node", "LinkCarrierDown")} <= events(server))
        (pod,) = (
            one["involvedObject"] for one in server.objects("events") if one["reason"] == "DeviceFailed"
        )
        assert pod["uid"] == "of-p"
        await server.until(lambda: server.find("nodes", "gpu-0").get("status", {}).get("conditions"))
        types = {one["type"] for one in server.find("nodes", "gpu-0")["status"]["conditions"]}
        assert types == {"nodeagent.io/LinkHealthy", "nodeagent.io/GpuHealthy"}
        assert server.counts["get", "nodelinks"], "the report of an earlier run is read"
        n.machine.set_link(0, up=True)
        await server.until(lambda: ("Node", "Recovered") in events(server))


@pytest.mark.parametrize("asked", [True, False])
async def test_a_pod_with_a_vf_is_in_the_report_if_the_configuration_asks_for_it(
    server, kubeconfig, monkeypatch, asked
):
    shorten(monkeypatch, NodeReporter.__init__, jitter_s=0.0, gather_s=0.05, gap_s=0.1)
    async with node() as n:
        await n.kubelet.start()
        access = f"access: kubeconfig, kubeconfig: {kubeconfig}"
        text = f"cluster: {{{access}, reportHolders: {str(asked).lower()}}}\n"
        await n.start_agent(n.configure(text), node_name="gpu-0")
        await n.allocatable(f"{HEAD}/nic0", 4)
        assert (await n.kubelet.admit(PodSpec.single("p", {f"{HEAD}/nic0": 1}))).admitted
        await n.until(lambda: n.agent.inventory.snapshot.holdings)
        n.machine.set_link(0, up=False)

        def report():
            return server.find("nodelinks", "gpu-0", "nodeagent") or {"links": []}

        await server.until(lambda: "down" in [link["state"] for link in report()["links"]])
        found = [(holder["pod"], holder["vfs"][0]["link"]) for holder in report().get("holders", ())]
        assert found == ([("p", "nic0")] if asked else [])


async def test_devices_of_mode_dra_are_published_and_a_fault_is_a_taint_until_its_end(
    server, kubeconfig, monkeypatch
):
    shorten_holdings(monkeypatch)

    def slices():
        return {
            one["spec"]["pool"]["name"]: one["spec"]["devices"] for one in server.objects("resourceslices")
        }

    def taints():
        return [taint["value"] for one in slices().get("gpu-0/gpu", ()) for taint in one.get("taints", ())]

    async with node() as n:
        await n.kubelet.start()
        text = (
            f"cluster: {{access: kubeconfig, kubeconfig: {kubeconfig}, report: false, events: false}}\n"
            "resources:\n- {kind: vf, mode: dra}\n- {kind: gpu-mem, mode: dra}\n"
        )
        await n.start_agent(n.configure(text), node_name="gpu-0")
        await server.until(lambda: len(slices()) == 2)
        assert {pool: len(devices) for pool, devices in slices().items()} == {"gpu-0/gpu": 2, "gpu-0/nic": 2}
        assert not n.kubelet.capacity(), "no device plugin offers the same hardware"
        n.machine.lose_gpu(0)
        await server.until(lambda: taints() == ["gpu_lost"])
        for one in server.objects("resourceslices"):
            server.remove("resourceslices", one["metadata"]["name"])
        await server.until(lambda: taints() == ["gpu_lost"])
        n.machine.reset_gpu(0)
        await server.until(lambda: len(slices()) == 2 and not taints())


async def test_changed_settings_of_no_execute_and_of_its_guard_count_for_claims_at_once(
    server, kubeconfig, monkeypatch
):
    shorten_holdings(monkeypatch)

    def effects():
        return [
            taint["effect"]
            for one in server.objects("resourceslices")
            for device in one["spec"]["devices"]
            for taint in device.get("taints", ())
        ]

    async with node() as n:

        def configure(no_execute, share):
            return n.configure(
                f"cluster: {{access: kubeconfig, kubeconfig: {kubeconfig}, report: false, events: false}}\n"
                f"health: {{noExecute: [{no_execute}], guard: {{share: {share}, seconds: 0}}}}\n"
                "resources: [{kind: gpu-mem, mode: dra}]\n"
            )

        await n.kubelet.start()
        await n.start_agent(configure("", 0.5), node_name="gpu-0")
        await server.until(lambda: server.objects("resourceslices"))
        n.machine.lose_gpu(0)
        await server.until(lambda: effects() == ["NoSchedule"])
        configure("gpu_*", 0.5)
        await server.until(lambda: effects() == ["NoExecute"])
        n.machine.lose_gpu(1)
        await server.until(lambda: effects() == ["NoExecute", "NoSchedule"])
        configure("gpu_*", 1)
        await server.until(lambda: effects() == ["NoExecute", "NoExecute"])
        configure("", 1)
        await server.until(lambda: effects() == ["NoSchedule", "NoSchedule"])


async def test_the_node_has_the_largest_free_block_as_a_label(server, kubeconfig, monkeypatch):
    shorten(monkeypatch, DeviceMarker.__init__, jitter_s=0.0)
    monkeypatch.setattr(device_marks, "PER_S", 2.0)  # else the second write comes ten seconds after the first
    shorten_holdings(monkeypatch)
    async with node() as n:
        await n.kubelet.start()
        text = (
            f"cluster: {{access: kubeconfig, kubeconfig: {kubeconfig}, gpuMemLargest: {{enabled: true}}}}\n"
        )
        await n.start_agent(n.configure(text), node_name="gpu-0")
        await n.allocatable(f"{HEAD}/gpu-mem", 158)

        def label() -> str | None:
            return (
                server.find("nodes", "gpu-0")["metadata"]
                .get("labels", {})
                .get("nodeagent.io/gpu-mem-largest")
            )

        await server.until(lambda: label() == "79")
        for name in "pq":
            assert (await n.kubelet.admit(PodSpec.single(name, {f"{HEAD}/gpu-mem": 44}))).admitted
        refused = await n.kubelet.admit(PodSpec.single("r", {f"{HEAD}/gpu-mem": 40}))
        assert "; ask for at most 35, which" in refused.message
        await server.until(lambda: label() == "32")


@pytest.fixture
def granted(server):
    """The rights that daemonset/base gives, enforced, and its CRD."""
    base = Path(__file__).parents[2] / "daemonset" / "base" / "cluster"
    for name in ("nodelinks.yaml", "rbac.yaml"):
        for obj in yaml.safe_load_all((base / name).read_text()):
            if obj["kind"] in ("Role", "RoleBinding"):
                obj["metadata"].setdefault("namespace", "nodeagent")  # as kustomization.yaml does
            server.put(obj)
    server.rbac = True


async def test_the_base_rights_are_enough_and_a_missing_right_is_logged_once(
    server, kubeconfig, granted, caplog, monkeypatch
):
    shorten(monkeypatch, DeviceMarker.__init__, jitter_s=0.0)
    async with node() as n:
        await n.kubelet.start()
        text = f"cluster: {{access: kubeconfig, kubeconfig: {kubeconfig}, conditions: true}}\n"
        await n.start_agent(n.configure(text), node_name="gpu-0")
        await n.allocatable(f"{HEAD}/nic0", 4)
        assert (await n.kubelet.admit(PodSpec.single("p", {f"{HEAD}/nic0": 1}))).admitted
        await n.until(lambda: n.agent.inventory.snapshot.holdings)
        n.machine.set_link(0, up=False)
        await server.until(lambda: {("Pod", "DeviceFailed"), ("Node", "LinkCarrierDown")} <= events(server))
        await server.until(lambda: server.counts["patch", "nodes/status"])
    refused = {(seen.verb, seen.resource) for seen in server.requests if seen.status == 403}
    assert refused == {("get", "pods"), ("get", "nodes"), ("patch", "nodes/status")}
    assert caplog.text.count("a role must grant us the verb patch on nodes/status") == 1


async def test_an_agent_without_its_api_server_serves_its_kubelet(server, kubeconfig):
    await server.stop()
    async with node() as n:
        await n.kubelet.start()
        text = f"cluster: {{access: kubeconfig, kubeconfig: {kubeconfig}}}\n"
        await n.start_agent(n.configure(text), node_name="gpu-0")
        await n.allocatable(f"{HEAD}/nic0", 4)
        await n.registered()
        assert (await n.get("/readyz"))[0] == 200


def test_outside_a_cluster_the_api_client_is_not_loaded():
    code = "import sys, nodeagent.agent; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
    )
    assert not {"urllib3", "nodeagent.kube.client", "nodeagent.cluster.agent_events"} & set(
        done.stdout.split()
    )


def test_a_missing_api_server_is_an_error_only_if_it_is_configured(monkeypatch, tmp_path):
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    assert agent_tasks.node_access(ClusterSettings(), "gpu-0") is None
    assert agent_tasks.node_access(ClusterSettings(access="none"), "gpu-0") is None
    with pytest.raises(Fatal, match="set it to auto or none"):
        agent_tasks.node_access(ClusterSettings(access="in-cluster"), "gpu-0")
    with pytest.raises(Fatal, match="nowhere: No such file"):
        agent_tasks.node_access(
            ClusterSettings(access="kubeconfig", kubeconfig=str(tmp_path / "nowhere")), "gpu-0"
        )


def test_without_a_node_name_nothing_is_written(kubeconfig, caplog):
    settings = ClusterSettings(access="kubeconfig", kubeconfig=str(kubeconfig))
    assert agent_tasks.node_access(settings, None) is None
    assert "Set NODE_NAME" in caplog.text
    assert agent_tasks.node_access(settings, "gpu-0").node == "gpu-0"


def parts(*, accounted: bool = False, **settings: object) -> str:
    """The names of the enabled parts."""
    agent = SimpleNamespace(
        settings=ClusterSettings(**settings),
        sharing=SimpleNamespace(accounting=SimpleNamespace(enabled=accounted)),
    )
    return " ".join(part.name for part in agent_tasks.PARTS if part.enabled(agent))


def test_each_function_that_makes_a_task_has_a_row():
    makers = {
        function
        for function in vars(agent_tasks).values()
        if getattr(function, "__annotations__", {}).get("return") == "Task"
    }
    missing = makers - {part.make for part in agent_tasks.PARTS}
    assert makers
    assert not missing, f"enter it in agent_tasks.PARTS: {sorted(maker.__name__ for maker in missing)}"


def test_each_function_of_notices_is_posted():
    made = {name for name in vars(agent_events) if name.endswith("_notices")}
    text = Path(agent_tasks.__file__).read_text() + Path(agent_events.__file__).read_text()
    unused = [name for name in sorted(made) if len(re.findall(rf"\b{name}\b", text)) < 2]
    assert made
    assert not unused, f"post it by a row in agent_tasks.PARTS: {unused}"


def test_the_settings_enable_the_parts():
    assert parts() == "slices claims nodelinks events state names over-use limits mps"
    assert parts(report=False, events=False) == "slices claims"
    assert parts(report=False, events=False, evict=EvictSettings(enabled=True)) == "slices claims evictions"
    assert parts(report=False, events=False, accounted=True) == "slices claims over-use evictions"
    enabled = {
        "conditions": True,
        "label": True,
        "taint": TaintSettings(enabled=True),
        "gpu_mem_largest": GpuMemLargestSettings(enabled=True),
        "gpu_mem_enforcement": True,
    }
    tainted = EvictSettings(enabled=True, taint=True)
    assert parts(report=False, events=False, evict=tainted) == "slices claims nodestate evictions"
    assert {*enabled, "evict_taint"} == ClusterSettings().marks.keys()
    for name, on in enabled.items():
        assert parts(report=False, events=False, **{name: on}) == "slices claims nodestate"
