"""GPUs that are gone before the agent starts, that the driver does not name, or that another GPU has replaced.

Every test runs the agent with a simulated machine and a stand-in kubelet. A reboot removes the state that belongs to
one boot and loads the driver again, which then counts only the GPUs that answer. A GPU that was offered once stays on
the kubelet's list as Unhealthy, under its own index, and everything that an operator reads names it.
"""

from __future__ import annotations

import asyncio
import json
import re

import pytest

from nodeagent.agent_config import Config
from nodeagent.cli import main
from nodeagent.commands.scan import listing
from nodeagent.facts.model import State
from tests.attacks.test_readiness import becomes
from tests.support.running_agent import Node, node

MEMORY = "two-gpus-and-two-nics/gpu-mem"
EACH = 79
GPU1 = "0000:1c:00.0"


def reboot(n: Node) -> None:
    (n.root / "var/lib/nodeagent/health.json").unlink(missing_ok=True)
    n.machine.reload_driver()


def unhealthy(n: Node) -> set[str]:
    return {
        name.partition("::")[0]
        for name, device in n.kubelet.devices(MEMORY).items()
        if device.health != "Healthy"
    }


async def started(n: Node) -> None:
    """The agent has run once with both GPUs, and has ended."""
    await n.kubelet.start()
    await n.start_agent()
    await n.allocatable(MEMORY, 2 * EACH)
    await n.until((n.root / "var/lib/nodeagent/gpus.json").exists)
    await n.stop_agent()


async def test_a_gpu_that_is_off_the_bus_at_the_start_keeps_its_slices_and_returns_without_a_restart() -> (
    None
):
    async with node() as n:
        await started(n)
        lost = n.machine.gpu(0)
        uuid = lost.gpu.uuid
        n.machine.unplug(lost.address)
        reboot(n)
        await n.start_agent()
        await n.allocatable(MEMORY, EACH)
        assert n.kubelet.capacity()[MEMORY] == 2 * EACH
        assert unhealthy(n) == {uuid}
        await n.registered()
        status, text = await n.get("/readyz")
        assert (status, f"{EACH} of {2 * EACH} healthy" in text) == (200, True), text
        assert (
            f"GPU 0 ({uuid}): gpu_lost: This GPU is not on the PCI bus; reseat it or reboot the node." in text
        )
        _, page = await n.get("/metrics")
        assert 'nodeagent_gpu_health_reason{gpu="0",reason="gpu_lost",severity="fault"} 1' in page
        assert 'nodeagent_gpu_health_state{gpu="0",state="unhealthy"} 1' in page
        assert 'nodeagent_gpu_health_state{gpu="1",state="healthy"} 1' in page
        for state, count in (("on_bus", 1), ("named", 1), ("lost", 1)):
            assert f'nodeagent_gpus{{state="{state}"}} {count}\n' in page
        _, views = await n.get("/health")
        assert [view["state"] for view in json.loads(views) if view["device"] == uuid] == ["unhealthy"]
        n.machine.plug(lost.address)
        await n.allocatable(MEMORY, 2 * EACH)
        assert n.kubelet.panics == []


async def test_a_gpu_on_the_bus_that_the_driver_does_not_list_is_lost_after_a_reboot() -> None:
    async with node() as n:
        await started(n)
        n.machine.lose_gpu(1)
        reboot(n)
        await n.start_agent()
        await n.allocatable(MEMORY, EACH)
        assert n.kubelet.capacity()[MEMORY] == 2 * EACH
        assert n.agent.inventory.snapshot.unusable_gpus == ()
        assert [gpu.lost for gpu in n.agent.inventory.snapshot.gpus] == [False, True]


async def test_a_gpu_that_the_driver_never_named_is_a_fact() -> None:
    async with node() as n:
        n.machine.lose_gpu(0)
        n.machine.reload_driver()
        await n.kubelet.start()
        await n.start_agent()
        await n.allocatable(MEMORY, EACH)
        assert n.kubelet.capacity()[MEMORY] == EACH
        place = n.machine.gpus[0].address
        _, text = await n.get("/readyz")
        assert f"GPU at {place} is not offered: gpu_lost: The driver no longer reaches this GPU" in text
        _, page = await n.get("/metrics")
        assert f'nodeagent_gpu_health_state{{gpu="{place}",state="unhealthy"}} 1' in page
        view = await listing.scan_once(Config(), n.root)
        assert f"GPU at {place}: unhealthy: gpu_lost: The driver no longer reaches" in listing.as_table(view)
        assert [gpu["place"] for gpu in json.loads(listing.as_json(view))["unusableGpus"]] == [place]
        assert f'nodeagent_gpu_health_reason{{gpu="{place}",reason="gpu_lost",severity="fault"}} 1' in page
        _, views = await n.get("/health")
        assert [view["reasons"][0]["key"] for view in json.loads(views) if view["device"] == place] == [
            "gpu_lost"
        ]
        n.machine.find_gpu(n.machine.gpus[0].address)
        await n.allocatable(MEMORY, 2 * EACH)
        assert n.agent.inventory.snapshot.unusable_gpus == ()


async def test_the_other_gpus_keep_their_indexes_and_their_resources_while_one_is_lost() -> None:
    async with node("dgx-h100") as n:
        config = n.configure(
            "resourcePrefix: nodeagent.io\nresources:\n"
            "- {kind: gpu-mem, name: gpu-mem, sliceMiB: 1024, select: {indexes: [0-3]}}\n"
            "- {kind: gpu, name: gpu, select: {indexes: [4-7]}}\n"
        )
        await n.kubelet.start()
        await n.start_agent(config)
        await n.allocatable("nodeagent.io/gpu", 4)
        whole = set(n.kubelet.devices("nodeagent.io/gpu"))
        await n.until((n.root / "var/lib/nodeagent/gpus.json").exists)
        await n.stop_agent()
        n.machine.unplug(n.machine.gpu(2).address)
        reboot(n)
        await n.start_agent(config)
        await n.allocatable("nodeagent.io/gpu-mem", 3 * EACH)
        assert set(n.kubelet.devices("nodeagent.io/gpu")) == whole
        assert [gpu.index for gpu in n.agent.inventory.snapshot.gpus] == list(range(8))


@pytest.mark.parametrize("restart", [False, True])
async def test_a_gpu_that_the_driver_does_not_list_at_the_first_start_has_its_index(restart: bool) -> None:
    """It fails to initialize, so NVML counts without it, until a reset."""
    async with node("dgx-h100") as n:
        config = n.configure(
            "resourcePrefix: nodeagent.io\nresources:\n"
            "- {kind: gpu-mem, name: 'gpu-mem{gpu}', sliceMiB: 1024, select: {indexes: [0-3]}}\n"
            "- {kind: gpu, name: gpu, select: {indexes: [4-7]}}\n"
        )
        lost = n.machine.gpus[2].address
        uuids = [device.gpu.uuid for device in n.machine.gpus]
        n.machine.lose_gpu(2)
        n.machine.reload_driver()
        await n.kubelet.start()
        await n.start_agent(config)
        await n.allocatable("nodeagent.io/gpu", 4)
        assert set(n.kubelet.devices("nodeagent.io/gpu")) == set(uuids[4:])
        indexes = [0, 1, 3, 4, 5, 6, 7]
        assert [gpu.index for gpu in n.agent.inventory.snapshot.gpus] == indexes
        stored = n.root / "var/lib/nodeagent/gpus.json"
        await n.until(stored.exists)
        assert [gpu["index"] for gpu in json.loads(stored.read_text())] == indexes
        if restart:
            await n.stop_agent()
            await n.start_agent(config)
        await n.allocatable("nodeagent.io/gpu-mem3", EACH)
        n.machine.find_gpu(lost)
        for index in range(4):
            await n.allocatable(f"nodeagent.io/gpu-mem{index}", EACH)
            held = {name.partition("::")[0] for name in n.kubelet.devices(f"nodeagent.io/gpu-mem{index}")}
            assert held == {uuids[index]}
        assert set(n.kubelet.devices("nodeagent.io/gpu")) == set(uuids[4:])
        assert [gpu.index for gpu in n.agent.inventory.snapshot.gpus] == list(range(8))


async def test_a_gpu_in_the_slot_of_another_one_takes_its_place(caplog: pytest.LogCaptureFixture) -> None:
    async with node() as n:
        await started(n)
        old, new = n.machine.gpu(1).gpu.uuid, "GPU-00000000-0000-0000-0000-00000000beef"
        n.machine.replace_gpu(1, new)
        reboot(n)
        await n.start_agent()
        await n.until(lambda: len(n.agent.inventory.snapshot.gpus) == 2)
        await n.until(lambda: {gpu.uuid for gpu in n.agent.inventory.snapshot.gpus} >= {new})
        assert f"A GPU was replaced in its slot; the old one is forgotten. old={old} new={new}" in caplog.text
        remembered = n.root / "var/lib/nodeagent/gpus.json"
        await n.until(lambda: old not in remembered.read_text() and new in remembered.read_text())
        assert len(n.agent.inventory.snapshot.gpus) == 2


async def test_a_gpu_that_moved_to_another_slot_keeps_its_uuid() -> None:
    async with node() as n:
        await started(n)
        first, second = (device.gpu.uuid for device in n.machine.gpus)
        n.machine.replace_gpu(0, second)
        n.machine.unplug(n.machine.gpus[1].address)
        n.machine.gpus[1].gpu.uuid = "GPU-gone"
        reboot(n)
        await n.start_agent()
        await n.allocatable(MEMORY, EACH)
        assert unhealthy(n) == {first}


async def test_a_gpu_that_is_bound_to_vfio_is_kept_for_guests_and_raises_no_alarm() -> None:
    async with node() as n:
        await started(n)
        kept = n.machine.gpu(1)
        n.machine.bind(kept.address, "vfio-pci")
        reboot(n)
        await n.start_agent()
        await n.allocatable(MEMORY, EACH)
        (health,) = [g.health for g in n.agent.inventory.snapshot.gpus if g.pci_address == kept.address]
        assert (health.state, health.reasons[0].key) == (State.UNUSED, "gpu_passthrough")
        n.machine.bind(kept.address, "nvidia")
        await n.allocatable(MEMORY, 2 * EACH)


@pytest.mark.parametrize("kept_by", ["vfio-pci", "nvgrace_gpu_vfio_pci", "pciback", "the driver"])
async def test_a_node_whose_gpus_are_all_kept_from_pods_is_ready(kept_by: str) -> None:
    async with node() as n:
        await n.kubelet.start()
        for gpu in n.machine.gpus:
            if kept_by == "the driver":
                n.machine.exclude_gpu(gpu.address)
            else:
                n.machine.bind(gpu.address, None)
                driver = n.root / "sys/bus/pci/devices" / gpu.address / "driver"
                driver.symlink_to(f"../../../bus/pci/drivers/{kept_by}")
        n.machine.reload_driver()
        await n.start_agent()
        await becomes(n, 200, "gpu_excluded" if kept_by == "the driver" else kept_by)


@pytest.mark.parametrize("known", [True, False])
async def test_a_gpu_that_the_driver_leaves_out_on_request_is_unused_and_raises_no_alarm(known: bool) -> None:
    async with node() as n:
        if known:
            await started(n)
        else:
            await n.kubelet.start()
        left_out = n.machine.gpu(0)
        n.machine.exclude_gpu(0)
        reboot(n)
        await n.start_agent()
        await n.allocatable(MEMORY, EACH)
        snapshot = n.agent.inventory.snapshot
        by_place = {gpu.pci_address: gpu.health for gpu in snapshot.gpus}
        by_place |= {gpu.place: gpu.health for gpu in snapshot.unusable_gpus}
        health = by_place[left_out.address]
        assert (health.state, [reason.key for reason in health.reasons]) == (State.UNUSED, ["gpu_excluded"])
        assert n.kubelet.capacity()[MEMORY] == (2 if known else 1) * EACH
        await becomes(n, 200, "take it out of NVreg_ExcludedGpus")
        assert 'state="unhealthy"} 1' not in (await n.get("/metrics"))[1]


async def test_gpus_without_a_kernel_driver_at_the_start_are_listed_and_unhealthy_until_it_is_bound() -> None:
    async with node() as n:
        await started(n)
        for device in n.machine.gpus:
            n.machine.bind(device.address, None)
        reboot(n)
        await n.start_agent()
        await n.until(lambda: n.kubelet.capacity().get(MEMORY) == 2 * EACH and len(unhealthy(n)) == 2)
        await n.allocatable(MEMORY, 0)
        await n.until(lambda: str(n.agent.offering.remarks).count("gpu_lost: No kernel driver is bound") == 2)
        for device in n.machine.gpus:
            n.machine.bind(device.address, "nvidia")
        await n.allocatable(MEMORY, 2 * EACH)


@pytest.mark.parametrize(
    "content", [b"{", b"[]", b'[{"uuid": "all", "index": 0, "pci_address": "x", "memory_mib": 1}]']
)
async def test_a_damaged_memory_costs_nothing_that_is_there(
    content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with node() as n:
        folder = n.root / "var/lib/nodeagent"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "gpus.json").write_bytes(content)
        await n.kubelet.start()
        await n.start_agent()
        await n.allocatable(MEMORY, 2 * EACH)
        assert n.kubelet.capacity()[MEMORY] == 2 * EACH
        assert ("cannot be read" in caplog.text) == (content == b"{")
        assert ("A remembered GPU cannot be true" in caplog.text) == (b"all" in content)


async def test_a_crowd_of_remembered_gpus_takes_no_place_of_a_gpu_that_is_there(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A virtual machine whose GPU has another UUID and address after each start collects them."""
    crowd = [
        {"uuid": f"GPU-{n}", "index": n, "pci_address": f"{n + 1:04x}:40:00.0", "memory_mib": 2048}
        for n in range(100)
    ]
    async with node() as n:
        folder = n.root / "var/lib/nodeagent"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "gpus.json").write_text(json.dumps(crowd))
        await n.kubelet.start()
        await n.start_agent()
        await n.allocatable(MEMORY, 2 * EACH)
        assert len(n.agent.inventory.snapshot.gpus) == 64 + 2
        assert "Too many GPUs are remembered" in caplog.text


async def test_a_command_drops_a_gpu_that_was_taken_out(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with node() as n:
        await started(n)
        gone, here = n.machine.gpu(1).gpu.uuid, n.machine.gpu(0).gpu.uuid
        n.machine.unplug(n.machine.gpu(1).address)
        n.machine.reload_driver()
        config = n.configure("scanSeconds: 1\n")
        await n.start_agent(config)
        await n.allocatable(MEMORY, EACH)
        verb = ["remembered", "--root", str(n.root), "--config", str(n.config_file)]
        assert await asyncio.to_thread(main, verb) == 0
        table = capsys.readouterr().out
        assert re.search(rf"1 +{gone} .* no\n", table), table
        assert re.search(rf"0 +{here} .* yes\n", table), table
        for wrong in (["forget"], ["forget", "nic0", gone], ["forget", gone, "--all-rails"], ["show"]):
            assert await asyncio.to_thread(main, [*verb, *wrong]) == 2
        assert await asyncio.to_thread(main, [*verb, "forget", gone, here]) == 0
        await n.until(lambda: {gpu.uuid for gpu in n.agent.inventory.snapshot.gpus} == {here})
        remembered = n.root / "var/lib/nodeagent/gpus.json"
        await n.until(lambda: here in remembered.read_text() and gone not in remembered.read_text())
        assert n.kubelet.capacity()[MEMORY] == 2 * EACH, "the kubelet needs each ID until the agent ends"
        await n.stop_agent()
        await n.start_agent(config)
        await n.until(lambda: n.kubelet.capacity().get(MEMORY) == EACH)
        await n.stop_agent()
        assert main([*verb, "forget", "GPU-x"]) == 2
        assert f"GPU-x: no such GPU in {remembered}; there are: {here}" in capsys.readouterr().err


@pytest.mark.slow
async def test_a_gpu_forgotten_while_no_agent_runs_stays_forgotten(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with node() as n:
        await started(n)
        gone = n.machine.gpu(1).gpu.uuid
        n.machine.unplug(n.machine.gpu(1).address)
        n.machine.reload_driver()
        await n.start_agent()
        await n.allocatable(MEMORY, EACH)
        health = n.root / "var/lib/nodeagent/health.json"
        await n.until(lambda: health.exists() and '"lost":true' in health.read_text())
        await n.stop_agent()
        assert main(["remembered", "--root", str(n.root), "forget", gone]) == 0
        await n.start_agent()
        await n.until(lambda: n.agent.inventory.snapshot.gpus)
        assert len(n.agent.inventory.snapshot.gpus) == 1
        capsys.readouterr()


async def test_a_dgx_that_lost_a_gpu_before_a_reboot_has_553_of_632_slices() -> None:
    async with node("dgx-h100") as n:
        await n.kubelet.start()
        await n.start_agent()
        await n.allocatable("nvidia-dgx-h100/gpu-mem", 632)
        await n.until((n.root / "var/lib/nodeagent/gpus.json").exists)
        await n.stop_agent()
        n.machine.unplug(n.machine.gpu(5).address)
        reboot(n)
        await n.start_agent()
        await n.allocatable("nvidia-dgx-h100/gpu-mem", 553)
        assert n.kubelet.capacity()["nvidia-dgx-h100/gpu-mem"] == 632
        assert "nvidia-dgx-h100/gpu-mem: 553 of 632 healthy\n" in (await n.get("/readyz"))[1]


async def test_with_the_driver_none_no_gpu_is_a_fact_and_the_memory_stays() -> None:
    async with node() as n:
        await started(n)
        remembered = (n.root / "var/lib/nodeagent/gpus.json").read_bytes()
        n.machine.unplug(n.machine.gpu(1).address)
        await n.start_agent(n.configure("gpu: {driver: none}\n"))
        await n.allocatable("two-gpus-and-two-nics/nic0", 4)
        snapshot = n.agent.inventory.snapshot
        assert (snapshot.gpus, snapshot.unusable_gpus, n.agent.offering.remarks) == ((), (), ())
        await n.stop_agent()
        assert (n.root / "var/lib/nodeagent/gpus.json").read_bytes() == remembered
