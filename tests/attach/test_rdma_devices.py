"""In the kernel's exclusive RDMA mode the RDMA devices of VFs go into pods and back with their netdevs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodeagent.attach.nri_plugin import AttachRefused
from nodeagent.attach.pod_rdma import PodRdma
from nodeagent.host.netlink.message import NetlinkError
from nodeagent.host.sysfs import Tree
from tests.support.attached_pods import AttachedNode, links, vf
from tests.support.namespaces import Netns
from tests.support.rdma_kernel import RdmaDevice, RdmaKernel, namespace_of

pytestmark = pytest.mark.needs("root", "ip", "nsenter")

OF_RDMA_TOOL = "2000000002140500{sequence}0000000008000100070000000800440004000000"
"""The request of `rdma dev set mlx5_3 netns NAME`, iproute2 6.1.0 (Debian), for the device 7 and the descriptor 4."""


@pytest.fixture
def node(tmp_path: Path) -> Iterator[AttachedNode]:
    made = AttachedNode(tmp_path)
    yield made
    made.close()


@pytest.fixture
def kernel(node: AttachedNode, tmp_path: Path) -> RdmaKernel:
    made = RdmaKernel(tmp_path / "root", node.host.path)
    for number, (rail, index) in enumerate(node.vfs):
        made.add(vf(rail, index), f"mlx5_{number}")
    use(node, made)
    return made


def use(node: AttachedNode, kernel: RdmaKernel) -> None:
    node.rdma = PodRdma(Tree(kernel.root), kernel.connect)
    node.restarted()


async def test_a_vf_and_its_rdma_device_are_in_the_pod_and_come_back_rdma_device_first(
    node: AttachedNode, kernel: RdmaKernel
) -> None:
    sandbox, pod = node.pod("trainer", vf(0), vf(1))
    await node.attachments.begin(sandbox)
    assert {kernel.where(vf(rail)) for rail in range(2)} == {namespace_of(pod.path)}
    assert kernel.where(vf(0, 1)) == kernel.host
    seen: list[set[str]] = []
    kernel.at_move = lambda _device: seen.append(set(links(pod)))
    await node.attachments.end(sandbox)
    assert seen == [{"rail0", "rail1"}, {"rail1"}]
    assert {device.namespace for device in kernel.devices} == {kernel.host}
    assert node.on_host() == node.all_host_names()


async def test_the_request_is_that_of_the_rdma_tool(node: AttachedNode, kernel: RdmaKernel) -> None:
    device = kernel.add("0000:05:00.2", "mlx5_3")
    device.index = 7
    with Netns() as pod:
        host, there = os.open(node.host.path, os.O_RDONLY), os.open(pod.path, os.O_RDONLY)
        try:
            node.rdma.bring(host, there, device.pci)
        finally:
            os.close(host)
            os.close(there)
    said = kernel.requests[-1].hex()
    told = OF_RDMA_TOOL.format(sequence=said[16:24])
    assert (said[:-8], int.from_bytes(bytes.fromhex(said[-8:]), "little")) == (told[:-8], there)


async def test_a_driver_that_cannot_give_its_device_away_refuses_the_pod_and_the_netdevs_go_back(
    node: AttachedNode, kernel: RdmaKernel
) -> None:
    kernel.devices[2].disassociates = False
    sandbox, pod = node.pod("trainer", vf(0), vf(1))
    with pytest.raises(
        AttachRefused, match=r"0000:01:00.2 as rail1: rdma: mlx5_2: RDMA: Operation not supported"
    ):
        await node.attachments.begin(sandbox)
    assert (links(pod), node.on_host()) == ({}, node.all_host_names())
    assert {device.namespace for device in kernel.devices} == {kernel.host}
    assert not node.starts(vf(0))
    assert node.attachments.counts.failures == {"rdma": 1}


async def test_an_end_between_netdev_and_rdma_device_leaves_no_pod_without_rdma(
    node: AttachedNode, kernel: RdmaKernel
) -> None:
    sandbox, pod = node.pod("trainer", vf(0))
    await node.attachments.begin(sandbox)
    kernel.end(namespace_of(pod.path))
    await node.restarted().synchronize((sandbox,))
    assert kernel.where(vf(0)) == namespace_of(pod.path)


async def test_a_pod_does_not_start_while_the_rdma_device_is_in_a_third_namespace(
    node: AttachedNode, kernel: RdmaKernel
) -> None:
    kernel.devices[0].namespace = 1
    kernel.add("0000:09:00.0", "mlx5_9")  # shows the others too
    sandbox, _ = node.pod("trainer", vf(0))
    with pytest.raises(AttachRefused, match="mlx5_0 is neither on the host nor in the pod"):
        await node.attachments.begin(sandbox)


async def test_a_device_of_another_namespace_with_the_same_name_stays_where_it_is(
    node: AttachedNode, kernel: RdmaKernel
) -> None:
    """Kernels after 7.1 have names for each namespace."""
    sandbox, pod = node.pod("trainer", vf(0))
    await node.attachments.begin(sandbox)
    pf = kernel.add("0000:00:00.0", "mlx5_0")
    kernel.moves.clear()
    await node.attachments.end(sandbox)
    assert (kernel.where(vf(0)), pf.namespace, kernel.moves) == (kernel.host, kernel.host, ["mlx5_0"])
    assert namespace_of(pod.path) != kernel.host


async def test_the_shared_mode_asks_nothing_of_the_kernel(node: AttachedNode, tmp_path: Path) -> None:
    kernel = RdmaKernel(tmp_path / "shared", node.host.path, shared=True)
    kernel.add(vf(0), "mlx5_0")
    use(node, kernel)
    sandbox, _ = node.pod("trainer", vf(0))
    await node.attachments.begin(sandbox)
    await node.attachments.end(sandbox)
    assert kernel.requests == []


async def test_a_verbs_node_with_another_number_is_told(
    node: AttachedNode, kernel: RdmaKernel, caplog: pytest.LogCaptureFixture
) -> None:
    kernel.devices[0].node = 200
    kernel.add("0000:09:00.0", "mlx5_9")
    sandbox, _ = node.pod("trainer", vf(0))
    await node.attachments.begin(sandbox)
    assert "vf=0000:00:00.2 was=uverbs200 is=uverbs4" in caplog.text


async def test_a_netdev_leaves_although_its_rdma_device_does_not(
    node: AttachedNode, kernel: RdmaKernel, caplog: pytest.LogCaptureFixture
) -> None:
    sandbox, _ = node.pod("trainer", vf(0))
    await node.attachments.begin(sandbox)

    def refuse(_device: RdmaDevice) -> None:
        raise NetlinkError("RDMA: the kernel did not answer")

    kernel.at_move = refuse
    await node.attachments.end(sandbox)
    assert node.on_host() == node.all_host_names()
    assert "An RDMA device does not leave its pod. vf=0000:00:00.2" in caplog.text
