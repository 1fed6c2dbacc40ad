"""Regressions of the agent: reloads, restarts and faults at the wrong moment."""

from __future__ import annotations

import asyncio
import sys
import threading
from pathlib import Path

import pytest

from nodeagent.agent_config import Config
from nodeagent.config.faults import ConfigError
from nodeagent.discovery import Discovery
from nodeagent.facts.inventory import Inventory
from nodeagent.kubelet import holdings, offer_files
from nodeagent.metrics.exposition import Exposition
from nodeagent.sampling.sampler import Sampler
from nodeagent_lab.sim.kubelet import Kubelet, PodSpec
from nodeagent_lab.sim.machine import Machine
from tests.support.running_agent import Node, node, shorten
from tests.support.waiting import LIMIT_S

HEAD = "two-gpus-and-two-nics"
NIC0, NIC1, MEMORY = f"{HEAD}/nic0", f"{HEAD}/nic1", f"{HEAD}/gpu-mem"


async def a_later_list(n: Node) -> None:
    """Lose the link of the second NIC: what came before it has reached the kubelet with it."""
    n.machine.set_link(1, up=False)
    await n.allocatable(NIC1, 0)


async def ready(n: Node) -> None:
    await n.allocatable(NIC0, 4)
    await n.allocatable(NIC1, 4)
    await n.allocatable(MEMORY, 158)


async def test_a_vf_that_a_pod_holds_under_an_old_resource_name_is_not_allocated_under_a_new_one() -> None:
    async with node() as n:
        config = n.configure("resources: [{kind: vf, name: 'nic{rail}'}]\n")
        await n.kubelet.start()
        await n.start_agent(config)
        await n.allocatable(NIC0, 4)
        one = PodSpec.single("one", {NIC0: 1})
        assert (await n.kubelet.admit(one)).admitted
        n.configure("resources: [{kind: vf, name: 'rail{rail}'}]\n")
        await n.kubelet.until(lambda: f"{HEAD}/rail0" in n.kubelet.capacity())
        await n.allocatable(f"{HEAD}/rail0", 3)
        assert not (await n.kubelet.admit(PodSpec.single("two", {f"{HEAD}/rail0": 4}))).admitted
        three = PodSpec.single("three", {f"{HEAD}/rail0": 3})
        assert (await n.kubelet.admit(three)).admitted
        (held,) = n.kubelet.held(one)["main"][NIC0]
        assert held not in n.kubelet.held(three)["main"][f"{HEAD}/rail0"]


@pytest.mark.parametrize("driver", ["any", "rdma"])
async def test_a_vf_whose_rdma_device_is_in_a_pod_stays_healthy_through_an_agents_restart(
    driver: str,
) -> None:
    async with node() as n:
        config = n.configure(f"resources: [{{kind: vf, vfDriver: {driver}}}]\n")
        await n.kubelet.start()
        await n.start_agent(config)
        await n.allocatable(NIC0, 4)
        pod = PodSpec.single("worker", {NIC0: 1})
        assert (await n.kubelet.admit(pod)).admitted
        (vf,) = n.kubelet.held(pod)["main"][NIC0]
        n.machine.move_netdev(vf)
        await n.stop_agent()
        await n.kubelet.until(lambda: n.kubelet.allocatable()[NIC0] == 0)
        await n.start_agent(config)
        await n.allocatable(NIC0, 4)
        await n.until(lambda: bool(n.agent.inventory.snapshot.holdings))
        await a_later_list(n)
        assert n.kubelet.resource_health(pod)["main"][NIC0] == {vf: "Healthy"}
        n.machine.return_netdev(vf)
        await n.allocatable(NIC0, 4)


async def test_a_reload_that_brings_the_first_gpus_brings_their_cdi_spec_too() -> None:
    async with node() as n:
        config = n.configure("resources: [{kind: vf}]\n")
        await n.kubelet.start()
        await n.start_agent(config)
        await n.allocatable(NIC0, 4)
        n.configure("resources: [{kind: vf}, {kind: gpu-mem}]\n")
        await n.allocatable(MEMORY, 158)
        await n.until((n.root / "var/run/cdi/nodeagent-gpu.json").exists)


async def test_a_reload_logs_that_changed_samples_need_a_restart(caplog: pytest.LogCaptureFixture) -> None:
    async with node() as n:
        config = n.configure("samples: {moduleSeconds: 60}\n")
        await n.kubelet.start()
        await n.start_agent(config)
        n.configure("samples: {moduleSeconds: 120}\n")
        needed = "A changed setting takes effect when the agent is restarted. setting=samples.moduleSeconds"
        await n.until(lambda: needed in caplog.messages)


async def test_a_cdi_spec_that_could_not_be_written_is_written_when_it_can_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(offer_files, "FILES_CHECK_S", 0.5)
    async with node() as n:
        (n.root / "var/run").mkdir(parents=True, exist_ok=True)
        cdi = n.root / "var/run/cdi"
        cdi.write_text("a file where the folder should be")
        await n.kubelet.start()
        await n.start_agent(n.configure("scanSeconds: 1\n"))
        await n.allocatable(NIC0, 4)
        cdi.unlink()
        await n.until((cdi / "nodeagent-gpu.json").exists)
        (cdi / "nodeagent-gpu.json").unlink()
        await n.until((cdi / "nodeagent-gpu.json").exists)


async def test_a_configuration_changed_while_the_agent_starts_applies() -> None:
    async with node() as n:
        old = n.configure("resourcePrefix: example.com\n")
        await n.kubelet.start()
        n.configure("resourcePrefix: example.org\n")
        await n.start_agent(old)
        await n.allocatable("example.org/gpu-mem", 158)


async def test_the_agent_is_not_ready_while_a_configured_resource_waits_for_its_source() -> None:
    async with node() as n:
        n.machine.fail_driver("init", "Driver/library version mismatch")
        await n.kubelet.start()
        await n.start_agent()
        await n.allocatable(NIC0, 4)
        await n.until(lambda: all(s.registered for s in n.agent.plugins.statuses()))
        status, body = await n.get("/readyz")
        assert status == 503
        assert MEMORY in body
        assert "mismatch" in body
        n.machine.heal_driver()
        await n.allocatable(MEMORY, 158)
        await n.until(lambda: all(s.registered for s in n.agent.plugins.statuses()))
        assert (await n.get("/readyz"))[0] == 200


async def test_a_list_that_gets_too_long_after_the_start_is_not_sent() -> None:
    async with node() as n:
        n.machine.fail_driver("init", "Driver/library version mismatch")
        await n.kubelet.start()
        await n.start_agent(n.configure("resources: [{kind: vf}, {kind: gpu-mem, sliceMiB: 1}]\n"))
        await n.allocatable(NIC0, 4)
        n.machine.heal_driver()
        await n.until(lambda: bool(n.agent.inventory.snapshot.gpus))
        await a_later_list(n)
        assert sum(r.resource == MEMORY for r in n.kubelet.registrations) == 0
        status, body = await n.get("/readyz")
        assert status == 503
        assert "sliceMiB" in body
        assert n.kubelet.allocatable()[NIC0] == 4


async def test_a_resource_keeps_its_name_while_its_netdev_is_missing() -> None:
    async with node() as n:
        await n.kubelet.start()
        await n.start_agent(n.configure("resources: [{kind: vf, name: 'net-{netdev}'}]\n"))
        await n.kubelet.until(lambda: len(n.kubelet.capacity()) == 2)
        names = set(n.kubelet.capacity())
        n.machine.bind("0000:18:00.0", None)
        await n.kubelet.until(lambda: 0 in n.kubelet.allocatable().values())
        n.machine.set_link(1, up=False)  # a change of the other one shows a later list of devices
        await n.kubelet.until(lambda: set(n.kubelet.allocatable().values()) == {0})
        assert set(n.kubelet.capacity()) == names
        assert {s.resource for s in n.agent.plugins.statuses()} == names


async def test_two_resources_that_select_the_same_vfs_in_different_ways_end_the_start() -> None:
    async with node() as n:
        config = n.configure(
            "resources:\n- {kind: vf, name: a, select: {vendors: ['15b3']}}\n"
            "- {kind: vf, name: b, select: {pciAddresses: ['0000:18:*']}}\n"
        )
        with pytest.raises(ConfigError, match=r"VF 0000:18:00.1 is offered twice, as .*/a and as .*/b"):
            await n.start_agent(config)


async def test_an_allocation_of_slices_or_vfs_is_in_the_holdings_before_the_next_regular_reading(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shorten(monkeypatch, holdings.watch_holdings, interval_s=3600.0)
    async with node() as n:
        await n.kubelet.start()
        await n.start_agent()
        await ready(n)
        for resource in (MEMORY, NIC0):
            assert (await n.kubelet.admit(PodSpec.single("worker", {resource: 1}))).admitted
            await n.until(lambda: resource in str(n.agent.inventory.snapshot.holdings))  # noqa: B023


async def test_a_request_that_numa_affinity_splits_is_refused_without_a_leak() -> None:
    """The kubelet takes all slices near the NIC before it asks which to prefer, and a veto leaks them."""
    async with node() as n:
        n.kubelet = Kubelet(n.folder / "k", seed=5, topology_policy="best-effort")
        await n.kubelet.start()
        await n.start_agent()
        await ready(n)
        one = PodSpec.single("one", {MEMORY: 40, NIC0: 1})
        assert (await n.kubelet.admit(one)).admitted
        for _ in range(6):  # the kubelet asks for the two resources in random order
            refused = await n.kubelet.admit(PodSpec.single("two", {MEMORY: 40, NIC0: 1}))
            assert "39 of 40 slices are fixed on GPU-" in refused.message
            assert n.kubelet.allocated(MEMORY) == n.kubelet.held(one)["main"][MEMORY]


async def test_a_failed_scan_keeps_missing_devices_and_devices_in_pods() -> None:
    async with node() as n:
        config = n.configure(
            "scanSeconds: 1\nkubelet: {podResources: false}\nresources: [{kind: vf, vfDriver: rdma}]\n"
        )
        await n.kubelet.start()
        await n.start_agent(config)
        await n.allocatable(NIC0, 4)
        n.machine.move_netdev("0000:18:00.1")
        n.machine.unplug("0000:9a:00.0")
        await n.allocatable(NIC1, 0)
        devices = n.root / "sys/bus/pci/devices"
        devices.rename(devices.with_name("away"))
        devices.symlink_to("devices")  # a link to itself: not absent but unreadable
        await n.until(lambda: any(s.source == "pci" for s in n.agent.inventory.snapshot.stale_sources))
        devices.unlink()
        devices.with_name("away").rename(devices)
        await n.until(lambda: not any(s.source == "pci" for s in n.agent.inventory.snapshot.stale_sources))
        n.machine.set_link(0, up=False)  # a change shows that the facts after the failed scan have arrived
        await n.allocatable(NIC0, 0)
        n.machine.set_link(0, up=True)
        await n.allocatable(NIC0, 4)
        assert n.kubelet.capacity()[NIC1] == 4
        keys = {r.key for f in n.agent.inventory.snapshot.functions for r in f.health.reasons}
        assert "device_missing" in keys


async def test_a_lost_link_is_one_line_of_the_log_for_all_its_vfs(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    async with node() as n:
        await n.kubelet.start()
        await n.start_agent()
        await ready(n)
        n.machine.set_link(0, up=False)
        await n.allocatable(NIC0, 0)
        n.machine.set_link(0, up=True)
        await n.allocatable(NIC0, 4)
        lines = [record.getMessage() for record in caplog.records if "Devices are" in record.message]
        assert [line.partition(".")[0] for line in lines] == [
            "Devices are unhealthy",
            "Devices are healthy again",
        ]
        assert all("count=4 first=0000:18:00.1" in line for line in lines)


async def test_a_missing_podresources_socket_is_logged_once_and_has_no_other_effect(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with node() as n:
        await n.kubelet.start()
        n.kubelet.podresources_socket.unlink()
        await n.start_agent()
        await ready(n)
        for name in ("one", "two"):
            assert (await n.kubelet.admit(PodSpec.single(name, {NIC0: 1, MEMORY: 5}))).admitted
            await asyncio.sleep(0.6)
        assert caplog.text.count("The holdings of pods cannot be read") == 1
        assert 'nodeagent_source_silent{source="pods"} 1\n' in (await n.get("/metrics"))[1]


async def test_a_task_that_failed_and_works_again_leaves_no_facts_marked_as_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Facts that stay marked as old keep an alert active, and keep pods on devices that are gone."""
    Machine.load("two-gpu-two-nic").write(tmp_path)
    inventory = Inventory()
    begun = []
    again = asyncio.Event()

    async def watch(sampler: object, _hints: object) -> None:
        begun.append(sampler)
        if len(begun) == 1:
            raise KeyError("once")
        again.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(Sampler, "watch", watch)
    task = asyncio.create_task(Discovery(inventory, Config, tmp_path, sampled=True).run())
    try:
        async with asyncio.timeout(30):
            await again.wait()
            await inventory.changed(0)
        assert inventory.snapshot.stale_sources == ()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_scrape_reads_no_file_socket_or_driver() -> None:
    """An audit hook reports opened files, ioctls and messages; between two awaits they are the scrape's."""
    asked: list[str] = []
    watched, mine = False, threading.get_ident()

    def hook(event: str, _arguments: object) -> None:
        if watched and threading.get_ident() == mine and event not in ("object.__getattr__", "gc.start"):
            asked.append(event)

    async with node() as n:
        await n.kubelet.start()
        await n.start_agent()
        await ready(n)
        await n.until(lambda: any("carrier" in one.values for one in n.agent.pages.scrape_input().samples))
        sys.addaudithook(hook)
        exposition = Exposition(10_000)
        for _ in range(2):  # the second page uses the lines of the first
            watched = True
            pieces = list(exposition.pieces(n.agent.pages.scrape_input(), openmetrics=True))
            watched = False
            assert "nodeagent_link_carrier{" in "".join(pieces)
        assert asked == []
        watched = True
        with n.config_file.open("wb"):
            watched = False
        assert asked, "the hook receives nothing"


async def test_the_agent_is_not_ready_before_the_first_scan() -> None:
    async with node() as n:
        devices = n.root / "sys/bus/pci/devices"
        devices.rename(devices.with_name("away"))
        devices.symlink_to("devices")  # a link to itself: not absent but unreadable
        await n.kubelet.start()
        await n.start_agent()
        await n.until(lambda: bool(n.agent.offering.withheld))
        status, body = await n.get("/readyz")
        assert status == 503
        assert "nic{rail}" in body
        assert "symbolic links" in body
        devices.unlink()
        devices.with_name("away").rename(devices)
        await ready(n)
        assert {resource.partition("/")[0] for resource in n.kubelet.capacity()} == {HEAD}


async def test_xids_and_stuck_threads_are_counted() -> None:
    async with node() as n:
        await n.kubelet.start()
        await n.start_agent()
        await ready(n)
        n.machine.raise_xid(1, 13)
        counted = 'nodeagent_gpu_xid_errors_total{gpu="1",xid="13"} 1\n'
        async with asyncio.timeout(LIMIT_S):
            while counted not in (metrics := (await n.get("/metrics"))[1]):
                await asyncio.sleep(0.01)
        assert "nodeagent_gpu_driver_stuck_threads 0\n" in metrics
        assert n.kubelet.allocatable()[MEMORY] == 158


async def test_an_unreadable_product_name_renames_no_resource() -> None:
    async with node() as n:
        await n.kubelet.start()
        await n.start_agent()
        await ready(n)
        (n.root / "sys/class/dmi/id/product_name").unlink()
        n.machine.set_vfs(0, 2)
        await n.allocatable(NIC0, 2)
        assert len(n.kubelet.capacity()) == 3
        assert {s.resource for s in n.agent.plugins.statuses()} == {NIC0, NIC1, MEMORY}
