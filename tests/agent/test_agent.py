"""The agent from end to end: a simulated node, a stand-in kubelet, real sockets and files between them."""

from __future__ import annotations

import asyncio
import json
import os
import shutil

import pytest

from nodeagent.config.file_errors import ConfigError
from nodeagent.host.sysfs import SysfsError
from nodeagent.kubelet import removed_devices
from nodeagent_lab.sim.kubelet import PodSpec
from tests.support.running_agent import Node, node, shorten_holdings

pytestmark = pytest.mark.usefixtures("with_and_without_features")
HEAD = "two-gpus-and-two-nics"
NIC0, NIC1, MEMORY = f"{HEAD}/nic0", f"{HEAD}/nic1", f"{HEAD}/gpu-mem"
VF = "0000:18:00.1"


async def ready(n: Node) -> None:
    await n.allocatable(NIC0, 4)
    await n.allocatable(NIC1, 4)
    await n.allocatable(MEMORY, 158)


async def test_a_dgx_h100_offers_exactly_nine_resources_with_their_numa_nodes() -> None:
    async with node("dgx-h100") as n:
        await n.kubelet.start()
        await n.start_agent()
        await n.kubelet.until(lambda: len(n.kubelet.allocatable()) == 9)
        await n.allocatable("nvidia-dgx-h100/gpu-mem", 8 * 79)
        expected = {f"nvidia-dgx-h100/nic{rail}": 8 for rail in range(8)} | {"nvidia-dgx-h100/gpu-mem": 632}
        await n.kubelet.until(lambda: n.kubelet.allocatable() == expected)
        for rail in range(8):
            seen = n.kubelet.devices(f"nvidia-dgx-h100/nic{rail}")
            assert {device.numa_nodes for device in seen.values()} == {(rail // 4,)}
        assert (await n.get("/readyz"))[0] == 200


async def test_health_of_gpus_links_and_functions_reaches_the_kubelet_in_both_directions() -> None:
    async with node() as n:
        await n.kubelet.start()
        await n.start_agent()
        await ready(n)
        n.machine.set_link(0, up=False)
        await n.allocatable(NIC0, 0)
        n.machine.set_link(0, up=True)
        await n.allocatable(NIC0, 4)
        n.machine.raise_xid(1, 79)
        n.machine.set_recovery_action(1, "gpu_reset")
        await n.allocatable(MEMORY, 79)
        reasons = [reason.key for gpu in n.agent.inventory.snapshot.gpus for reason in gpu.health.reasons]
        assert "xid_79" in reasons
        await n.until(lambda: "recovery_gpu_reset" in str(n.agent.inventory.snapshot.gpus))
        n.machine.set_recovery_action(1, "none")
        await n.allocatable(MEMORY, 158)
        assert not any(update.repeated for update in n.kubelet.updates)


@pytest.mark.slow
async def test_a_measured_gpu_fault_makes_it_unhealthy_and_its_end_healthy() -> None:
    async with node() as n:
        await n.kubelet.start()
        await n.start_agent(n.configure("gpu: {health: {readSeconds: 1}}\n"))
        await ready(n)
        n.machine.ecc(1, uncorrectable=1)
        await n.allocatable(MEMORY, 79)
        assert n.kubelet.capacity()[MEMORY] == 158
        reasons = [reason.key for gpu in n.agent.inventory.snapshot.gpus for reason in gpu.health.reasons]
        assert reasons == ["sram_uncorrectable"]
        status, health = await n.get("/health")
        (gpu,) = [one for one in json.loads(health) if one["name"] == "GPU1"]
        (rule,) = [rule for rule in gpu["rules"] if rule["phase"] == "active"]
        assert (status, rule["measured"], rule["threshold"]) == (200, "1 error", "≥ 1 error")
        _, metrics = await n.get("/metrics")
        assert 'nodeagent_gpu_ecc_errors_total{gpu="1",' in metrics
        assert 'nodeagent_gpu_health_reason{gpu="1",reason="sram_uncorrectable"' in metrics
        assert 'nodeagent_gpu_nvlink_up{gpu="0",link="17"} 1' in metrics
        n.machine.set_recovery_action(1, "gpu_reset")
        await n.until(lambda: "recovery_gpu_reset" in str(n.agent.inventory.snapshot.gpus))
        n.machine.reset_gpu(1)
        await n.allocatable(MEMORY, 158)
        assert not any(update.repeated for update in n.kubelet.updates)


async def test_a_latched_gpu_fault_stays_over_a_restart_until_a_reset() -> None:
    async with node() as n:
        await n.kubelet.start()
        await n.start_agent()
        await ready(n)
        n.machine.raise_xid(1, 79)
        n.machine.set_recovery_action(1, "gpu_reset")
        await n.until(lambda: "recovery_gpu_reset" in str(n.agent.inventory.snapshot.gpus))
        await n.allocatable(MEMORY, 79)
        await n.stop_agent()
        assert "xid" in (n.root / "var/lib/nodeagent/health.json").read_text()
        await n.start_agent()
        await n.until(lambda: n.agent.inventory.snapshot.gpus)
        assert "xid_79" in str(n.agent.inventory.snapshot.gpus)
        await n.allocatable(MEMORY, 79)
        await n.stop_agent()
        n.machine.reset_gpu(1)  # while no agent runs
        await n.start_agent()
        await n.until(lambda: n.agent.inventory.snapshot.gpus)
        assert "xid_79" not in str(n.agent.inventory.snapshot.gpus)
        await n.allocatable(MEMORY, 158)


async def test_an_unplugged_device_is_unhealthy_never_removed_and_healthy_when_it_is_back() -> None:
    async with node() as n:
        await n.kubelet.start()
        await n.start_agent()
        await ready(n)
        n.machine.unplug("0000:18:00.0")
        await n.allocatable(NIC0, 0)
        assert n.kubelet.capacity()[NIC0] == 4
        n.machine.plug("0000:18:00.0", vfs=4)
        await n.allocatable(NIC0, 4)
        assert n.kubelet.panics == []


async def test_vfs_that_are_removed_and_created_again_while_the_agent_runs() -> None:
    async with node() as n:
        await n.kubelet.start()
        await n.start_agent()
        await ready(n)
        n.machine.set_vfs(0, 0)
        await n.allocatable(NIC0, 0)
        assert n.kubelet.capacity()[NIC0] == 4
        n.machine.set_vfs(0, 8)
        await n.allocatable(NIC0, 8)


async def test_a_pod_gets_its_vf_and_slices_and_the_device_info_file_is_there_first() -> None:
    async with node() as n:
        await n.kubelet.start()
        await n.start_agent()
        await ready(n)
        admission = await n.kubelet.admit(PodSpec.single("worker", {NIC0: 1, MEMORY: 20}))
        assert admission.phase == "Running"
        given = admission.given["main"]
        env = dict(given.env)
        vf = env["PCIDEVICE_TWO-GPUS-AND-TWO-NICS_NIC0"]
        assert vf == env["PCIDEVICE_TWO_GPUS_AND_TWO_NICS_NIC0"]
        assert env["NODEAGENT_GPU_MEM_MIB"] == "20480"
        assert "NVIDIA_GPU_MEMORY_LIMIT" not in env, "driver 580 enforces no limit"
        assert given.cdi_devices == (f"nodeagent.io/gpu={env['NODEAGENT_GPU_UUID']}",)
        folder = n.root / "var/run/k8s.cni.cncf.io/devinfo/dp"
        (path,) = folder.glob("*-device.json")
        assert path.name == f"{HEAD}-nic0-{vf}-device.json"
        assert json.loads(path.read_text())["pci"]["pci-address"] == vf
        spec = json.loads((n.root / "var/run/cdi/nodeagent-gpu.json").read_text())
        assert env["NODEAGENT_GPU_UUID"] in {device["name"] for device in spec["devices"]}


async def test_files_of_an_earlier_agent_are_removed_except_those_of_running_pods() -> None:
    async with node() as n:
        folder = n.root / "var/run/k8s.cni.cncf.io/devinfo/dp"
        await n.kubelet.start()
        await n.start_agent()
        await ready(n)
        await n.kubelet.admit(PodSpec.single("one", {NIC0: 1}))
        (held,) = folder.glob("*-device.json")
        await n.stop_agent()
        stale = folder / f"{HEAD}-nic1-0000:9a:00.4-device.json"
        stranger = folder / "example.com-nic1-0000:9a:00.4-device.json"
        stale.write_text("{}")
        stranger.write_text("{}")
        fresh = folder / f"{HEAD}-nic1-0000:9a:00.3-device.json"  # of an Allocate that is not noted yet
        fresh.write_text("{}")
        for path in (stale, stranger, held):
            os.utime(path, (1, 1))
        await n.start_agent()
        await n.until(lambda: not stale.exists())
        await ready(n)
        await n.kubelet.admit(PodSpec.single("two", {NIC1: 1}))
        names = {path.name for path in folder.iterdir()}
        assert {held.name, stranger.name, fresh.name} < names
        assert len(names) == 4


async def test_a_restarted_agent_reads_again_what_pods_hold_and_does_not_split_a_whole_gpu() -> None:
    async with node() as n:
        await n.kubelet.start()
        await n.start_agent()
        await ready(n)
        small = PodSpec.single("small", {MEMORY: 1})
        assert (await n.kubelet.admit(small)).admitted
        await n.stop_agent()
        await n.kubelet.until(lambda: n.kubelet.allocatable()[MEMORY] == 0)
        await n.start_agent()
        await n.allocatable(MEMORY, 158)
        await n.until(lambda: bool(n.agent.inventory.snapshot.holdings))
        whole = PodSpec.single("whole", {MEMORY: 79})
        assert (await n.kubelet.admit(whole)).admitted
        gpus = {id_.partition("::")[0] for id_ in n.kubelet.held(whole)["main"][MEMORY]}
        assert len(gpus) == 1
        assert gpus.isdisjoint(id_.partition("::")[0] for id_ in n.kubelet.held(small)["main"][MEMORY])


async def test_a_device_held_by_a_pod_and_gone_before_the_restart_is_on_the_list_unhealthy() -> None:
    async with node() as n:
        await n.kubelet.start()
        await n.start_agent()
        await ready(n)
        pod = PodSpec.single("worker", {NIC0: 4})
        await n.kubelet.admit(pod)
        await n.stop_agent()
        n.machine.set_vfs(0, 2)
        await n.start_agent()
        await n.kubelet.until(
            lambda: set(n.kubelet.resource_health(pod)["main"][NIC0].values()) == {"Healthy", "Unhealthy"}
        )
        assert n.kubelet.capacity()[NIC0] == 4


async def test_removed_vfs_leave_the_capacity_once_no_pod_holds_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """As ``vfs apply`` with a smaller number does."""
    monkeypatch.setattr(removed_devices, "FREE_S", 0.5)
    shorten_holdings(monkeypatch)
    async with node() as n:
        await n.kubelet.start()
        await n.start_agent(n.configure("scanSeconds: 1\n"))
        await ready(n)
        pod = PodSpec.single("worker", {NIC0: 4})
        assert (await n.kubelet.admit(pod)).admitted
        n.machine.set_vfs(0, 2)
        await n.allocatable(NIC0, 2)
        await n.until(lambda: n.agent is not None and bool(n.agent.inventory.snapshot.holdings))
        assert n.kubelet.capacity()[NIC0] == 4, "a pod holds the removed ones"
        n.kubelet.remove(pod)
        await n.kubelet.until(lambda: n.kubelet.capacity()[NIC0] == 2, 60)
        assert n.kubelet.panics == []
        n.machine.set_vfs(0, 4)
        await n.allocatable(NIC0, 4)
        assert (await n.kubelet.admit(pod)).admitted


async def test_a_changed_configuration_applies_and_allocations_stay() -> None:
    async with node() as n:
        config = n.configure("resourcePrefix: example.com\n")
        await n.kubelet.start()
        await n.start_agent(config)
        await n.allocatable("example.com/gpu-mem", 158)
        pod = PodSpec.single("worker", {"example.com/gpu-mem": 10})
        await n.kubelet.admit(pod)
        n.configure(
            "resourcePrefix: example.com\nresources:\n- {kind: gpu-mem, select: {indexes: ['0']}}\n"
            "- {kind: gpu, select: {indexes: ['1']}}\n- {kind: vf, name: vfs}\n"
        )
        await n.allocatable("example.com/vfs", 8)
        await n.allocatable("example.com/gpu", 1)
        assert n.kubelet.capacity()["example.com/gpu-mem"] == 158
        assert n.kubelet.held(pod)["main"]["example.com/gpu-mem"]
        assert n.kubelet.panics == []


async def test_a_config_map_that_the_kubelet_swaps_applies() -> None:
    """The file is a link to ..data/FILE, and ..data one to a folder; the kubelet renames a new ..data over it."""
    async with node() as n:
        config = n.configure("resourcePrefix: one.example\n")
        file = n.config_file

        def swap(name: str, text: str) -> None:
            (file.parent / name).mkdir()
            (file.parent / name / file.name).write_text(text)
            (file.parent / "..data_tmp").symlink_to(name)
            (file.parent / "..data_tmp").rename(file.parent / "..data")

        text = file.read_text()
        file.unlink()
        swap("..2026_1", text)
        file.symlink_to(f"..data/{file.name}")
        await n.kubelet.start()
        await n.start_agent(config)
        await n.allocatable("one.example/gpu-mem", 158)
        swap("..2026_2", text.replace("one.example", "two.example"))
        await n.allocatable("two.example/gpu-mem", 158)


async def test_a_fragment_beside_the_file_applies_and_one_that_breaks_changes_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with node() as n:
        config = n.configure("resources: [{kind: gpu-mem}]\n")
        folder = n.config_file.with_suffix(".d")
        await n.kubelet.start()
        await n.start_agent(config)
        await n.allocatable(MEMORY, 158)
        folder.mkdir()
        (folder / "prefix.part").write_text("resourcePrefix: one.example\n")
        (folder / "prefix.part").rename(folder / "prefix.yaml")
        await n.allocatable("one.example/gpu-mem", 158)
        (folder / "again.part").write_text("resourcePrefix: two.example\n")
        (folder / "again.part").rename(folder / "again.yaml")
        twice = f"resourcePrefix: is set twice, in {folder}/again.yaml:1 and in {folder}/prefix.yaml:1"
        await n.until(lambda: twice in caplog.text)
        assert n.kubelet.allocatable()["one.example/gpu-mem"] == 158
        assert "nodeagent_configuration_in_force 0" in (await n.get("/metrics"))[1]
        (folder / "prefix.yaml").unlink()
        await n.allocatable("two.example/gpu-mem", 158)
        assert "nodeagent_configuration_in_force 1" in (await n.get("/metrics"))[1]


@pytest.mark.parametrize(
    ("change", "logged"),
    [
        ("resources: [{kind: gpu-mem, sliceMib: 2}]\n", "did you mean sliceMiB?"),
        ("resources: [{kind: gpu-mem}, {kind: gpu, select: {indexes: ['1']}}]\n", "offered twice"),
        ("resources: [{kind: gpu-mem, sliceMiB: 1}]\n", "the kubelet refuses more than 4194304"),
        (
            "resources: [{kind: gpu-mem, sliceMiB: 2048}]\n",
            "cannot change from 1024 to 2048 while pods hold 10",
        ),
    ],
)
async def test_a_changed_configuration_with_faults_is_refused_and_the_running_one_stays(
    change: str, logged: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with node() as n:
        config = n.configure("")
        await n.kubelet.start()
        await n.start_agent(config)
        await ready(n)
        await n.kubelet.admit(PodSpec.single("worker", {MEMORY: 10}))
        n.agent._read_pods.set()
        await n.until(lambda: bool(n.agent.inventory.snapshot.holdings))
        temporary = n.config_file.with_suffix(".tmp")
        temporary.write_text(f"apiVersion: nodeagent.io/v1alpha1\nkind: NodeAgentConfig\n{change}")
        temporary.replace(n.config_file)
        await n.until(lambda: logged in caplog.text)
        assert "the running one stays" in caplog.text
        assert "configuration: refused, the running one stays: " in (await n.get("/readyz"))[1]
        assert "nodeagent_configuration_in_force 0" in (await n.get("/metrics"))[1]
        assert n.kubelet.allocatable()[MEMORY] == 158
        assert (await n.kubelet.admit(PodSpec.single("next", {MEMORY: 1}))).admitted


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("resources: [{kind: gpu-mem, sliceMiB: 1}]\n", "sliceMiB: .* is the smallest that fits"),
        (
            "resources: [{kind: gpu-mem, select: {models: ['*80GB*']}}, {kind: gpu, select: {models: ['*H100*']}}]\n",
            "offered twice",
        ),
    ],
)
async def test_a_configuration_that_cannot_work_on_this_machine_ends_the_start(
    text: str, reason: str
) -> None:
    async with node() as n:
        with pytest.raises(ConfigError, match=reason):
            await n.start_agent(n.configure(text))


async def test_a_root_without_sys_ends_the_start() -> None:
    async with node() as n:
        n.root = n.folder / "empty"
        n.root.mkdir()
        with pytest.raises(SysfsError, match="has no /sys"):
            await n.start_agent()


async def test_a_failing_driver_silences_the_gpu_source_and_the_nics_continue(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    async with node() as n:
        await n.kubelet.start()
        await n.start_agent()
        await ready(n)
        n.machine.fail_driver("wait", "Unknown Error")
        await n.until(lambda: "A call of the GPU driver failed" in caplog.text)
        n.machine.fail_driver("list", "Unknown Error")
        await n.until(lambda: any(s.source == "gpus" for s in n.agent.inventory.snapshot.stale_sources))
        assert n.kubelet.allocatable()[MEMORY] == 158  # neither makes a device unhealthy
        n.machine.set_link(1, up=False)
        await n.allocatable(NIC1, 0)
        n.machine.heal_driver()
        await n.until(lambda: not n.agent.inventory.snapshot.stale_sources)
        n.machine.raise_xid(0, 79)
        await n.allocatable(MEMORY, 79)


async def test_a_driver_that_fails_from_the_start_does_not_delay_the_nics() -> None:
    async with node() as n:
        n.machine.fail_driver("init", "Driver/library version mismatch")
        await n.kubelet.start()
        await n.start_agent()
        await n.allocatable(NIC0, 4)
        assert MEMORY not in n.kubelet.capacity()
        n.machine.heal_driver()
        await n.allocatable(MEMORY, 158)


async def test_the_pages_of_the_web_server_show_the_state_of_the_agent() -> None:
    async with node() as n:
        await n.start_agent()
        await n.until(lambda: NIC0 in {one.resource for one in n.agent.plugins.statuses()})
        status, body = await n.get("/readyz")
        assert status == 503
        assert f"{NIC0}: not registered" in body
        assert await n.get("/healthz") == (200, "ok\n")
        await n.kubelet.start()
        await ready(n)
        await n.until(lambda: all(s.registered for s in n.agent.plugins.statuses()))
        status, body = await n.get("/readyz")
        assert status == 200
        assert f"{MEMORY}: 158 of 158 healthy" in body
        await n.kubelet.admit(PodSpec.single("worker", {MEMORY: 3}))
        _, metrics = await n.get("/metrics")
        assert f'nodeagent_resource_registered{{resource="{NIC0}"}} 1\n' in metrics
        assert f'nodeagent_rpcs_total{{resource="{MEMORY}",method="Allocate",result="OK"}} 1\n' in metrics
        _, openmetrics = await n.get("/metrics", accept="application/openmetrics-text")
        assert openmetrics.endswith("# EOF\n")


async def test_a_storm_of_changes_ends_in_the_last_state() -> None:
    async with node() as n:
        await n.kubelet.start()
        await n.start_agent()
        await ready(n)
        for i in range(60):
            n.machine.set_link(0, up=i % 2 == 1)
            n.machine.set_link(1, up=i % 3 == 0)
            await asyncio.sleep(0)
        await n.allocatable(NIC0, 4)
        await n.allocatable(NIC1, 0)


async def test_vfs_by_cdi_have_a_spec_before_they_are_offered_and_no_device_nodes_of_their_own() -> None:
    async with node() as n:
        await n.kubelet.start()
        await n.start_agent(n.configure("resources: [{kind: vf, deviceListStrategy: cdi}]\n"))
        await n.allocatable(NIC0, 4)
        given = (await n.kubelet.admit(PodSpec.single("worker", {NIC0: 1}))).given["main"]
        (name,) = given.cdi_devices
        assert given.device_nodes == ()
        kind, _, device = name.partition("=")
        spec = json.loads((n.root / "var/run/cdi/nodeagent-vf.json").read_text())
        assert spec["kind"] == kind == "nodeagent.io/vf"
        nodes = {d["name"]: d["containerEdits"]["deviceNodes"] for d in spec["devices"]}
        assert any(node["path"].startswith("/dev/infiniband/uverbs") for node in nodes[device])


async def test_an_allocation_whose_cdi_spec_is_gone_and_cannot_be_written_names_the_file() -> None:
    async with node() as n:
        await n.kubelet.start()
        await n.start_agent()
        await ready(n)
        cdi = n.root / "var/run/cdi"
        shutil.rmtree(cdi)
        cdi.write_text("a file where the folder should be")
        refused = await n.kubelet.admit(PodSpec.single("worker", {MEMORY: 1}))
        assert not refused.admitted
        assert "nodeagent-gpu.json cannot be written" in refused.message
        await n.allocatable(MEMORY, 0)
        cdi.unlink()
        await n.allocatable(MEMORY, 158)
        assert (await n.kubelet.admit(PodSpec.single("next", {MEMORY: 1}))).admitted


async def test_the_specs_of_gpus_and_the_vendors_own_follow_what_is_on_the_host() -> None:
    async with node() as n:
        uuids = [gpu.gpu.uuid for gpu in n.machine.gpus]
        folder = n.root / "etc/cdi"
        folder.mkdir(parents=True)
        devices = [{"name": u, "containerEdits": {"env": ["A=1"]}} for u in uuids]
        (folder / "nvidia.json").write_text(
            json.dumps({"cdiVersion": "0.6.0", "kind": "nvidia.com/gpu", "devices": devices})
        )
        await n.kubelet.start()
        await n.start_agent()
        await ready(n)
        given = (await n.kubelet.admit(PodSpec.single("worker", {MEMORY: 1}))).given["main"]
        assert given.cdi_devices[0].startswith("nvidia.com/gpu=GPU-")
        assert not (n.root / "var/run/cdi/nodeagent-gpu.json").exists()


async def test_what_registration_does_not_need_waits_until_the_kubelet_lists_every_resource() -> None:
    async with node() as n:
        await n.kubelet.start()
        await n.start_agent()
        await n.agent.settled.wait()
        listed = {status.resource for status in n.agent.plugins.statuses() if status.streams}
        assert listed == {NIC0, NIC1, MEMORY}
