"""The size of a slice over restarts of the agent: slices that pods hold keep their size."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from nodeagent.facts.model import Holding, Snapshot, StaleSource
from nodeagent.kinds.gpu_memory import GpuMemory
from nodeagent.kubelet.slice_sizes import SIZES_FORM, SliceSizes
from nodeagent_lab.sim.kubelet import PodSpec
from tests.support.running_agent import Node, node

MEMORY, NIC0 = "two-gpus-and-two-nics/gpu-mem", "two-gpus-and-two-nics/nic0"
DOUBLE = "resources: [{kind: gpu-mem, sliceMiB: 2048}, {kind: vf}]\n"
STATE = "var/lib/nodeagent/slices.json"

KIND = GpuMemory("x/mem", slice_mib=2048)
NO_PODS = Snapshot(holdings=())
HELD = Snapshot(holdings=(Holding("ns", "pod", "main", "x/mem", ("GPU-1::1", "GPU-1::2")),))


async def restarted(n: Node, text: str) -> None:
    await n.stop_agent()
    await n.start_agent(n.configure(text))


async def read_pods(n: Node) -> None:
    """Make the agent read podresources now."""
    await n.until(n.agent.settled.is_set)
    n.agent._read_pods.set()


async def test_slices_that_a_pod_holds_keep_their_size_over_a_restart_with_another(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with node() as n:
        await n.kubelet.start()
        await n.start_agent(n.configure("resources: [{kind: gpu-mem}, {kind: vf}]\n"))
        await n.allocatable(MEMORY, 158)
        assert json.loads((n.root / STATE).read_text()) == {MEMORY: 1024}
        assert (await n.kubelet.admit(PodSpec.single("worker", {MEMORY: 20}))).admitted
        await restarted(n, DOUBLE)
        await n.allocatable(MEMORY, 158)
        assert json.loads((n.root / STATE).read_text()) == {MEMORY: 1024}
        kept = "slices stay 1024 MiB although 2048 MiB are configured: pods hold 20 slices; drain the node"
        await n.registered()
        status, body = await n.get("/readyz")
        assert (status, f"{MEMORY}: {kept}" in body) == (200, True)
        assert sum(kept in one.getMessage() for one in caplog.records) == 1
        given = (await n.kubelet.admit(PodSpec.single("next", {MEMORY: 2}))).given["main"]
        assert dict(given.env)["NODEAGENT_GPU_MEM_MIB"] == "2048"
        assert n.kubelet.panics == []


async def test_if_no_pod_holds_slices_the_new_size_applies_once_the_holdings_are_published() -> None:
    async with node() as n:
        await n.kubelet.start()
        await n.start_agent(n.configure("resources: [{kind: gpu-mem}, {kind: vf}]\n"))
        await n.allocatable(MEMORY, 158)
        await restarted(n, DOUBLE)
        await n.allocatable(NIC0, 4)
        # The kubelet lists no pod, which may be wrong in the first seconds after its start.
        status, body = await n.get("/readyz")
        assert status == 503
        assert (
            f"{MEMORY}: its slices are to change from 1024 to 2048 MiB, and what pods hold is not known"
            in body
        )
        assert json.loads((n.root / STATE).read_text()) == {MEMORY: 1024}
        assert (await n.kubelet.admit(PodSpec.single("other", {NIC0: 1}))).admitted
        await read_pods(n)
        await n.allocatable(MEMORY, 78)
        assert json.loads((n.root / STATE).read_text()) == {MEMORY: 2048}
        await n.registered()
        assert (await n.get("/readyz"))[0] == 200


async def test_after_the_drain_the_next_agent_applies_the_new_size() -> None:
    async with node() as n:
        await n.kubelet.start()
        await n.start_agent(n.configure("resources: [{kind: gpu-mem}, {kind: vf}]\n"))
        await n.allocatable(MEMORY, 158)
        pod = PodSpec.single("worker", {MEMORY: 20})
        await n.kubelet.admit(pod)
        await n.kubelet.admit(PodSpec.single("other", {NIC0: 1}))
        await restarted(n, DOUBLE)
        await n.allocatable(MEMORY, 158)
        n.kubelet.remove(pod)
        await restarted(n, DOUBLE)
        await n.allocatable(MEMORY, 78)


async def test_a_folder_that_cannot_be_written_is_logged_once_and_has_no_other_effect(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with node() as n:
        (n.root / "var/lib").mkdir(parents=True, exist_ok=True)
        (n.root / "var/lib/nodeagent").write_text("a file where the folder should be")
        await n.kubelet.start()
        await n.start_agent(n.configure("resources: [{kind: gpu-mem}, {kind: vf}]\n"))
        await n.allocatable(MEMORY, 158)
        n.machine.set_link(0, up=False)
        await n.allocatable(NIC0, 0)
        said = [one for one in caplog.records if "The slice sizes cannot be written" in one.getMessage()]
        assert len(said) == 1


# --- one decision at a time ----------------------------------------------------------------------------


def sizes(tmp_path: Path) -> SliceSizes:
    ours = SliceSizes(tmp_path)
    ours.in_force["x/mem"] = 1024
    return ours


def test_the_reason_of_a_failed_podresources_source_is_named(tmp_path: Path) -> None:
    stale = Snapshot(stale_sources=(StaleSource("pods", "no socket"),))
    refusal = sizes(tmp_path).settle(KIND, stale, pod_resources=True)
    assert isinstance(refusal, str)
    assert refusal.endswith("what pods hold is not known yet: no socket")


def test_without_podresources_the_old_size_stays(tmp_path: Path) -> None:
    ours = sizes(tmp_path)
    kept = ours.settle(KIND, Snapshot(), pod_resources=False)
    assert isinstance(kept, GpuMemory)
    assert kept.slice_mib == 1024
    assert "turn it on" in ours.remarks[0]


def test_a_kept_size_stays_after_the_pods_end_until_the_configured_size_returns(tmp_path: Path) -> None:
    ours = sizes(tmp_path)
    for snapshot in (HELD, NO_PODS):
        kept = ours.settle(KIND, snapshot, pod_resources=True)
        assert isinstance(kept, GpuMemory)
        assert kept.slice_mib == 1024
        assert ours.refusal(KIND, snapshot) is None  # it is not what the reload changes
    back = GpuMemory("x/mem", slice_mib=1024)
    assert ours.settle(back, HELD, pod_resources=True) is back
    assert ours.remarks == ()


def test_a_reload_is_refused_against_the_size_in_force(tmp_path: Path) -> None:
    ours = sizes(tmp_path)
    ours.settle(KIND, HELD, pod_resources=True)
    third = GpuMemory("x/mem", slice_mib=512)
    assert "cannot change from 1024 to 512 while pods hold 2" in (ours.refusal(third, HELD) or "")
    assert ours.refusal(third, NO_PODS) is None
    assert ours.settle(third, NO_PODS, pod_resources=True) is third
    assert ours.in_force == {"x/mem": 512}


@pytest.mark.parametrize("text", [b"", b"[]", b'{"x/mem":0}', b'{"x/mem":"1"}', b"\xff", b"x" * (1 << 23)])
def test_an_invalid_file_is_logged_and_ignored(
    text: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / SIZES_FORM.name).write_bytes(text)
    ours = SliceSizes(tmp_path)
    assert ours.settle(KIND, Snapshot(), pod_resources=True) is KIND
    assert len(caplog.records) == 1
    assert caplog.records[0].levelno == logging.WARNING


async def test_the_size_of_a_resource_that_is_not_offered_now_is_kept(tmp_path: Path) -> None:
    ours = sizes(tmp_path)
    await ours.save([GpuMemory("x/other", slice_mib=512)])
    assert SliceSizes(tmp_path).in_force == {"x/mem": 1024, "x/other": 512}


def test_the_devices_of_another_plugin_that_had_the_name_are_no_slices(tmp_path: Path) -> None:
    theirs = Snapshot(holdings=(Holding("ns", "pod", "main", "x/mem", ("rival0", "rival1")),))
    assert sizes(tmp_path).settle(KIND, theirs, pod_resources=True) is KIND
