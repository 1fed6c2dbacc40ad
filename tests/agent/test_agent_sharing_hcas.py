"""An agent that shares HCAs, with the stand-in kubelet: pods at once, a lost link, a full HCA, a restart."""

from __future__ import annotations

from nodeagent_lab.sim.kubelet import PodSpec
from tests.support.running_agent import node

HEAD = "two-gpus-and-two-nics"
SHARED = "resources: [{kind: vf}, {kind: rdma, shares: 3}]\n"
RDMA0, NIC0 = f"{HEAD}/rdma0", f"{HEAD}/nic0"


async def test_pods_share_an_hca_until_it_is_full_and_keep_their_shares_over_a_restart() -> None:
    async with node() as n:
        await n.kubelet.start()
        await n.start_agent(n.configure(SHARED))
        await n.allocatable(RDMA0, 3)
        given = []
        pods = [PodSpec.single(f"p{number}", {RDMA0: 1}) for number in range(3)]
        for pod in pods:
            admission = await n.kubelet.admit(pod)
            assert admission.phase == "Running"
            given.append(admission.given["main"])
        paths = {tuple(sorted(one.host_path for one in it.device_nodes)) for it in given}
        assert len(paths) == 1, "the same device nodes for all"
        assert any("uverbs" in path for path in next(iter(paths)))
        held = [n.kubelet.held(pod)["main"][RDMA0] for pod in pods]
        assert len({id_ for ids in held for id_ in ids}) == 3
        assert not (await n.kubelet.admit(PodSpec.single("fourth", {RDMA0: 1}))).admitted
        vf = await n.kubelet.admit(PodSpec.single("vf", {NIC0: 1}))
        assert vf.phase == "Running", "the VFs of the HCA are free of its shares"
        await n.stop_agent()
        await n.start_agent(n.configure(SHARED))
        await n.allocatable(RDMA0, 3)
        assert not (await n.kubelet.admit(PodSpec.single("fifth", {RDMA0: 1}))).admitted
        n.machine.set_link(0, up=False)
        await n.allocatable(RDMA0, 0)
        assert n.kubelet.capacity()[RDMA0] == 3
        n.machine.set_link(0, up=True)
        await n.allocatable(RDMA0, 3)
