"""The folders of the files that containers need take no file.

Conditions: the device-info folder or the CDI folder is full (a real ENOSPC), mounted read-only, a file, or a mount that
does not answer; a FIFO or a folder is in the place of a file. What must hold: a resource that needs the file is
withheld, and returns within seconds; every other resource stays; pods keep their devices; `/readyz`, a metric and the
refusal of an allocation name the path, the errno and the remedy.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from contextlib import suppress
from pathlib import Path

import pytest

from nodeagent.base.bounded_calls import hanging_calls
from nodeagent.cluster import agent_events
from nodeagent.kubelet import offer_files
from nodeagent_lab.sim.apiserver import ApiServer
from nodeagent_lab.sim.kubelet import PodSpec
from tests.dra.test_agent import kubeconfig
from tests.support.dead_files import dead
from tests.support.own_mounts import remount, run_in_own_mounts, tmpfs
from tests.support.running_agent import Node, node
from tests.support.waiting import until

HEAD = "two-gpus-and-two-nics"
NIC0, NIC1, MEMORY = f"{HEAD}/nic0", f"{HEAD}/nic1", f"{HEAD}/gpu-mem"
DEVICE_INFO = "var/run/k8s.cni.cncf.io/devinfo/dp"
CDI = "var/run/cdi"
GPU_SPEC = f"{CDI}/nodeagent-gpu.json"

own_mounts = pytest.mark.needs("root", "unshare", "mount")


async def ready(n: Node) -> None:
    for resource, count in ((NIC0, 4), (NIC1, 4), (MEMORY, 158)):
        await n.allocatable(resource, count)
    await n.registered()
    status, body = await n.get("/readyz")
    assert status == 200, body


async def started(n: Node) -> None:
    await n.kubelet.start()
    await n.start_agent()


async def not_ready_because(n: Node, resource: str, path: Path, errno: str, remedy: str) -> None:
    await n.until(lambda: any(resource in text for text in map(str, n.agent.offering.withheld)))
    status, body = await n.get("/readyz")
    (line,) = (line for line in body.splitlines() if line.startswith(f"{resource}: "))
    assert status == 503
    assert str(path) in line
    assert errno in line
    assert remedy in line
    _, metrics = await n.get("/metrics")
    assert f'nodeagent_resource_registered{{resource="{resource}"}} 0\n' in metrics
    assert f'nodeagent_file_unwritable{{file="{path}",error="{errno}"}} 1\n' in metrics


def fill(folder: Path) -> Path:
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file, suppress(OSError):
        for _ in range(1024):  # many times the size of the folder
            file.write(b"x" * 4096)
    return filler


async def a_full_device_info_folder() -> None:
    async with node() as n:
        folder = n.root / DEVICE_INFO
        with tmpfs(folder, "size=64k"):
            await started(n)
            await ready(n)
            holder = PodSpec.single("holder", {NIC0: 1, MEMORY: 3})
            assert (await n.kubelet.admit(holder)).admitted
            before = n.kubelet.held(holder), n.kubelet.resource_health(holder)
            filler = fill(folder)
            refused = await n.kubelet.admit(PodSpec.single("between", {NIC1: 1}))
            assert not refused.admitted
            assert str(folder) in refused.message
            assert "No space left on device" in refused.message
            await n.allocatable(NIC0, 0)
            await n.allocatable(NIC1, 0)
            await n.allocatable(MEMORY, 158)
            await not_ready_because(n, NIC0, folder, "ENOSPC", "free space")
            assert (n.kubelet.held(holder), n.kubelet.resource_health(holder)) == before
            assert (await n.kubelet.admit(PodSpec.single("slices", {MEMORY: 1}))).admitted
            filler.unlink()
            await ready(n)
            assert (await n.kubelet.admit(PodSpec.single("next", {NIC1: 1}))).admitted


async def a_device_info_folder_that_becomes_read_only_without_an_allocation() -> None:
    offer_files.FILES_CHECK_S = 0.5  # of this process alone
    async with node() as n:
        folder = n.root / DEVICE_INFO
        with tmpfs(folder):
            await started(n)
            await ready(n)
            remount(folder, "ro")
            await n.allocatable(NIC0, 0)
            await not_ready_because(n, NIC1, folder, "EROFS", "read-write")
            remount(folder, "rw")
            await ready(n)


async def a_read_only_cdi_folder() -> None:
    async with node() as n:
        folder = n.root / CDI
        with tmpfs(folder, "ro"):
            await started(n)
            await n.allocatable(NIC0, 4)
            await not_ready_because(n, MEMORY, n.root / GPU_SPEC, "EROFS", "read-write")
            assert MEMORY not in n.kubelet.capacity()
            remount(folder, "rw")
            await ready(n)
            # The spec is on the disk now: nothing is to be written, and nothing is withheld.
            remount(folder, "ro")
            assert (await n.kubelet.admit(PodSpec.single("worker", {MEMORY: 3}))).admitted
            await ready(n)


@own_mounts
def test_a_full_device_info_folder_withholds_the_vfs_and_nothing_else() -> None:
    run_in_own_mounts(a_full_device_info_folder)


@own_mounts
def test_a_device_info_folder_that_becomes_read_only_is_noticed_before_a_pod_fails() -> None:
    run_in_own_mounts(a_device_info_folder_that_becomes_read_only_without_an_allocation)


@own_mounts
def test_a_read_only_cdi_folder_withholds_the_gpus_until_their_spec_is_written() -> None:
    run_in_own_mounts(a_read_only_cdi_folder)


async def test_a_file_in_place_of_a_folder_withholds_what_needs_the_folder() -> None:
    async with node() as n:
        (n.root / "var/run").mkdir(parents=True, exist_ok=True)
        (n.root / CDI).write_text("a file where the folder should be")
        await started(n)
        await n.allocatable(NIC0, 4)
        await not_ready_because(n, MEMORY, n.root / GPU_SPEC, "EEXIST", "remove")
        (n.root / CDI).unlink()
        await ready(n)


async def test_a_fifo_in_place_of_a_spec_is_replaced_and_blocks_nothing() -> None:
    async with node() as n:
        (n.root / CDI).mkdir(parents=True)
        os.mkfifo(n.root / GPU_SPEC)
        await started(n)
        await ready(n)
        assert json.loads((n.root / GPU_SPEC).read_text())["kind"] == "nodeagent.io/gpu"


async def test_a_folder_in_place_of_a_spec_withholds_the_gpus_until_it_is_removed() -> None:
    async with node() as n:
        (n.root / GPU_SPEC / "in the way").mkdir(parents=True)
        await started(n)
        await n.allocatable(NIC0, 4)
        await not_ready_because(n, MEMORY, n.root / GPU_SPEC, "EISDIR", "remove")
        (n.root / GPU_SPEC / "in the way").rmdir()
        (n.root / GPU_SPEC).rmdir()
        await ready(n)


async def test_a_folder_in_place_of_one_device_info_file_withholds_its_resource_alone() -> None:
    async with node() as n:
        await started(n)
        await ready(n)
        in_the_way = []
        for vf in n.kubelet.devices(NIC0):
            path = n.root / DEVICE_INFO / f"{NIC0.replace('/', '-')}-{vf}-device.json"
            path.mkdir(parents=True)
            in_the_way.append(path)
        refused = await n.kubelet.admit(PodSpec.single("worker", {NIC0: 1}))
        assert not refused.admitted
        assert "-device.json cannot be written: Is a directory" in refused.message
        await n.allocatable(NIC0, 0)
        await n.allocatable(NIC1, 4)
        for path in in_the_way:
            path.rmdir()
        await ready(n)
        assert (await n.kubelet.admit(PodSpec.single("next", {NIC0: 1}))).admitted


@pytest.mark.slow
@pytest.mark.needs("root", "fuse")
@pytest.mark.parametrize("folder", [DEVICE_INFO, CDI])
async def test_a_folder_that_does_not_answer_withholds_what_needs_it_until_it_answers(folder: str) -> None:
    async with node() as n:
        (n.root / folder).mkdir(parents=True)
        lost, kept = ((NIC0, 4), (MEMORY, 158)) if folder == DEVICE_INFO else ((MEMORY, 158), (NIC0, 4))
        path = n.root / (folder if folder == DEVICE_INFO else GPU_SPEC)
        with dead(n.root / folder):
            await n.kubelet.start()
            await n.start_agent()
            await n.allocatable(*kept)
            await n.until(lambda: any("ETIMEDOUT" in str(one) for one in n.agent.offering.withheld))
            await not_ready_because(n, lost[0], path, "ETIMEDOUT", "mount it again")
            assert lost[0] not in n.kubelet.capacity()
        await ready(n)
        assert (await n.kubelet.admit(PodSpec.single("next", {NIC0: 1, MEMORY: 3}))).admitted


@pytest.mark.slow
@pytest.mark.needs("root", "fuse")
async def test_a_folder_that_is_slow_at_the_start_delays_its_resource_and_is_no_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(offer_files, "HANGS_S", 60.0)
    caplog.set_level(logging.INFO)
    async with node() as n:
        (n.root / DEVICE_INFO).mkdir(parents=True)
        with dead(n.root / DEVICE_INFO):
            await n.kubelet.start()
            await n.start_agent()
            await n.allocatable(MEMORY, 158)
            await not_ready_because(n, NIC0, n.root / DEVICE_INFO, "EINPROGRESS", "has not answered yet")
            records = [one for one in caplog.records if one.name == "nodeagent.kubelet.offer_files"]
            assert [one.levelno for one in records] == [logging.INFO], caplog.text
        await ready(n)


@pytest.mark.slow
@pytest.mark.needs("root", "fuse")
async def test_a_folder_that_is_slow_withholds_nothing_and_delays_no_other_news(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As on a loaded machine, or on a disk that writes back."""
    monkeypatch.setattr(offer_files, "HANGS_S", 60.0)
    async with node() as n:
        await started(n)
        await ready(n)
        with dead(n.root / DEVICE_INFO):
            # The allocation fails, and the folder is tried at once.
            assert not (await n.kubelet.admit(PodSpec.single("between", {NIC0: 1}))).admitted
            n.machine.set_link(1, up=False)
            await n.allocatable(NIC1, 0)
            await asyncio.sleep(1.2)
            assert n.kubelet.allocatable()[NIC0] == 4
            assert n.agent.offering.withheld == ()
        # The hanging writes have returned once the file of the failed allocation is there.
        await until(lambda: any((n.root / DEVICE_INFO).glob("*-device.json")))
        await until(lambda: not hanging_calls() and not n.agent.offering.withheld)
        await n.allocatable(NIC0, 4)
        assert (await n.kubelet.admit(PodSpec.single("next", {NIC0: 1}))).admitted


@pytest.mark.slow
@pytest.mark.needs("root", "fuse")
async def test_a_folder_that_hangs_under_a_running_agent_is_withheld_until_it_answers() -> None:
    async with node() as n:
        await started(n)
        await ready(n)
        with dead(n.root / DEVICE_INFO):
            assert not (await n.kubelet.admit(PodSpec.single("between", {NIC0: 1}))).admitted
            await n.allocatable(NIC0, 0)
            await not_ready_because(n, NIC0, n.root / DEVICE_INFO, "ETIMEDOUT", "mount it again")
        await ready(n)


async def test_a_state_folder_that_cannot_be_written_is_a_remark_a_metric_and_an_event_and_the_node_stays_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_events, "STATE_LOOK_S", 0.1)
    server = await ApiServer(seed=1).start()
    server.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}})
    try:
        async with node() as n:
            folder = n.root / "var/lib/nodeagent"
            folder.parent.mkdir(parents=True, exist_ok=True)
            folder.write_text("a file where the folder should be")
            access = f"access: kubeconfig, kubeconfig: {kubeconfig(tmp_path, server)}"
            await n.kubelet.start()
            text = f"scanSeconds: 1\ncluster: {{{access}, report: false}}\n"
            await n.start_agent(n.configure(text), node_name="n1")
            await ready(n)
            status, body = await n.get("/readyz")
            assert status == 200
            (line,) = (line for line in body.splitlines() if str(folder) in line)
            assert "rails are those of the node's report and of held VFs" in line
            assert "health.stateDirectory" in line
            file = folder / "rails.json"
            assert f'nodeagent_state_unwritable{{file="{file}"}} 1' in (await n.get("/metrics"))[1]

            def events() -> list[tuple[str, str]]:
                return [(one["involvedObject"]["kind"], one["reason"]) for one in server.objects("events")]

            await server.until(lambda: ("Node", "StateUnwritable") in events())
            (event,) = (one for one in server.objects("events") if one["reason"] == "StateUnwritable")
            assert str(folder) in event["message"]
            folder.unlink()
            await n.until(file.exists)
            async with asyncio.timeout(20):
                while str(folder) in (await n.get("/readyz"))[1]:
                    await asyncio.sleep(0.05)
            await server.until(lambda: ("Node", "Recovered") in events())
    finally:
        await server.stop()
