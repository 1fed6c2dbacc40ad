"""MIG on a running node: the mode changes and devices come and go, with pods and without a restart of the agent."""

from __future__ import annotations

import pytest

from nodeagent.kubelet import removed_devices
from nodeagent_lab.sim.kubelet import PodSpec
from tests.support.running_agent import node, shorten_holdings

MEMORY, SMALL, LARGE = "example.com/gpu-mem", "example.com/mig-1g.10gb", "example.com/mig-3g.40gb"
SETTINGS = """\
resourcePrefix: example.com
scanSeconds: 1
resources: [{kind: gpu-mem}, {kind: mig, deviceListStrategy: envvar}]
"""


@pytest.mark.slow
async def test_mig_devices_come_and_go_while_the_agent_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(removed_devices, "FREE_S", 0.5)
    shorten_holdings(monkeypatch)
    async with node() as n:
        await n.kubelet.start()
        await n.start_agent(n.configure(SETTINGS))
        await n.allocatable(MEMORY, 158)

        n.machine.set_mig_mode(0, on=True)
        await n.allocatable(MEMORY, 79)
        await n.kubelet.until(lambda: n.kubelet.capacity()[MEMORY] == 79, 60)

        n.machine.make_mig_device(0, "MIG-a", "1g.10gb", 9856)
        n.machine.make_mig_device(0, "MIG-b", "1g.10gb", 9856)
        n.machine.make_mig_device(0, "MIG-c", "3g.40gb", 40192)
        await n.allocatable(SMALL, 2)
        await n.allocatable(LARGE, 1)
        pod = PodSpec.single("small", {SMALL: 1})
        admission = await n.kubelet.admit(pod)
        assert admission.admitted
        (held,) = n.kubelet.held(pod)["main"][SMALL]
        await n.until(lambda: n.agent is not None and bool(n.agent.inventory.snapshot.holdings))

        free = "MIG-b" if held == "MIG-a" else "MIG-a"
        n.machine.destroy_mig_device(0, free)
        await n.allocatable(SMALL, 1)
        await n.kubelet.until(lambda: n.kubelet.capacity()[SMALL] == 1, 60)
        refused = await n.kubelet.admit(PodSpec.single("second", {SMALL: 1}))
        assert not refused.admitted, "the other one is held"

        n.machine.destroy_mig_device(0, held)
        await n.allocatable(SMALL, 0)
        assert n.kubelet.held(pod)["main"][SMALL] == {held}, "the pod keeps what the kubelet gave it"
        n.kubelet.remove(pod)

        n.machine.set_mig_mode(0, on=False)
        await n.allocatable(MEMORY, 158)
        await n.allocatable(LARGE, 0)
        whole = await n.kubelet.admit(PodSpec.single("large", {MEMORY: 158}))
        assert whole.admitted
        assert n.kubelet.panics == []
