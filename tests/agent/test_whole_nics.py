"""NICs as a whole on a running node: a pod takes one, VFs come and go, and the device stays what it is."""

from __future__ import annotations

import pytest

from nodeagent_lab.sim.kubelet import PodSpec
from tests.support.running_agent import node, shorten_holdings

SETTINGS = """\
resourcePrefix: example.com
scanSeconds: 1
resources: [{kind: vf}, {kind: nic, name: 'whole{rail}'}]
"""


@pytest.mark.slow
async def test_a_pod_takes_a_nic_as_a_whole_and_its_vfs_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    shorten_holdings(monkeypatch)
    async with node() as n:
        pf = max((it for it in n.machine.pfs if it.num_vfs), key=lambda it: it.address)
        n.machine.set_vfs(pf.address, 0)
        await n.kubelet.start()
        await n.start_agent(n.configure(SETTINGS))
        await n.until(lambda: any("whole" in name for name in n.kubelet.capacity()))
        whole = next(name for name in n.kubelet.capacity() if "whole" in name)
        divided = whole.replace("whole", "nic")
        await n.allocatable(whole, 1)

        pod = PodSpec.single("trainer", {whole: 1})
        assert (await n.kubelet.admit(pod)).admitted
        assert n.kubelet.held(pod)["main"][whole] == {pf.address}
        n.machine.move_netdev(pf.address)
        await n.until(
            lambda: any(
                it.pci_address == pf.address and it.netdev is None
                for it in n.agent.inventory.snapshot.functions
            )
        )
        await n.until(lambda: bool(n.agent.inventory.snapshot.holdings))
        await n.allocatable(whole, 1)

        n.machine.set_vfs(pf.address, 2)
        await n.kubelet.until(lambda: n.kubelet.capacity().get(divided) == 2, 60)
        await n.allocatable(divided, 0)
        assert not (await n.kubelet.admit(PodSpec.single("thief", {divided: 1}))).admitted
        assert n.kubelet.capacity()[whole] == 1, "what a pod holds stays on the list"

        n.kubelet.remove(pod)
        await n.allocatable(divided, 2)
        n.machine.set_vfs(pf.address, 0)
        n.machine.return_netdev(pf.address)
        await n.allocatable(whole, 1)
        assert (await n.kubelet.admit(PodSpec.single("next", {whole: 1}))).admitted
        assert n.kubelet.panics == []
