"""The agent where it was once found wanting: reloads, restarts and faults at the wrong moment."""

from __future__ import annotations

import asyncio

import pytest

from nodeagent.sim.kubelet import PodSpec
from tests.worlds import Node, node

HEAD = "two-gpus-and-two-nics"
NIC0, NIC1, MEMORY = f"{HEAD}/nic0", f"{HEAD}/nic1", f"{HEAD}/gpu-mem"


async def ready(n: Node) -> None:
    await n.allocatable(NIC0, 4)
    await n.allocatable(NIC1, 4)
    await n.allocatable(MEMORY, 158)


async def test_a_vf_that_a_pod_holds_under_an_old_name_is_not_handed_out_under_a_new_one() -> None:
    async with node() as n:
        config = n.configure("resources: [{kind: vf, name: 'nic{rail}'}]\n")
        await n.kubelet.start()
        await n.start_agent(config)
        await n.allocatable(NIC0, 4)
        one = PodSpec.single("one", {NIC0: 1})
        assert (await n.kubelet.admit(one)).admitted
        n.configure("resources: [{kind: vf, name: 'rail{rail}'}]\n")
        await n.kubelet.until(lambda: f"{HEAD}/rail0" in n.kubelet.capacity())
        await n.until(lambda: bool(n.agent.inventory.snapshot.holdings))
        two = PodSpec.single("two", {f"{HEAD}/rail0": 4})
        admitted = await n.kubelet.admit(two)
        assert not admitted.admitted
        assert "4 VFs were asked for and 3 can be given" in admitted.message
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
        await asyncio.sleep(0.1)
        assert n.kubelet.resource_health(pod)["main"][NIC0] == {vf: "Healthy"}
        n.machine.return_netdev(vf)
        await n.allocatable(NIC0, 4)
