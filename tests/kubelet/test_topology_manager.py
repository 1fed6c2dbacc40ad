"""docs/rails.md: the agent under each policy and scope of the Topology Manager, on a node with a GPU and a NIC on each
of two NUMA nodes.

Every admitted pod has the number of devices that it asked for, no device is held twice, and under an aligning policy
slices and VF are on one NUMA node. What the page calls refused is refused with `TopologyAffinityError`.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import yaml

from nodeagent_lab.sim.kubelet import Admission, Container, Kubelet, PodSpec
from nodeagent_lab.sim.kubelet.topology_manager import Policy, Scope
from tests.support.manifests import ROOT
from tests.support.running_agent import Node, node

HEAD = "two-gpus-and-two-nics"
NIC0, NIC1, MEMORY = f"{HEAD}/nic0", f"{HEAD}/nic1", f"{HEAD}/gpu-mem"


@asynccontextmanager
async def served(policy: Policy, scope: Scope = "container", seed: int = 3) -> AsyncIterator[Node]:
    async with node() as n:
        n.kubelet = Kubelet(n.folder / "k", seed=seed, topology_policy=policy, topology_scope=scope)
        await n.kubelet.start()
        await n.start_agent()
        for resource, count in ((NIC0, 4), (NIC1, 4), (MEMORY, 158)):
            await n.allocatable(resource, count)
        yield n


def numa_nodes(n: Node, pod: PodSpec) -> set[int]:
    """The NUMA nodes of all devices of a pod."""
    snapshot = n.agent.inventory.snapshot if n.agent else None
    assert snapshot is not None
    by_vf = {one.pci_address: one.numa_node for one in snapshot.functions}
    by_gpu = {one.uuid: one.numa_node for one in snapshot.gpus}
    found = set()
    for resources in n.kubelet.held(pod).values():
        for resource, ids in resources.items():
            for device in ids:
                place = by_vf[device] if resource != MEMORY else by_gpu[device.partition("::")[0]]
                assert place is not None
                found.add(place)
    return found


@pytest.mark.parametrize("policy", ["none", "best-effort", "restricted", "single-numa-node"])
async def test_a_pod_with_rails_of_both_nodes_needs_none_or_best_effort(policy: Policy) -> None:
    async with served(policy) as n:
        pod = PodSpec.single("both", {NIC0: 1, NIC1: 1})
        admission = await n.kubelet.admit(pod)
        if policy in ("none", "best-effort"):
            assert admission.admitted
        else:
            assert admission.reason == "TopologyAffinityError"


@pytest.mark.parametrize("policy", ["best-effort", "restricted", "single-numa-node"])
@pytest.mark.parametrize("scope", ["container", "pod"])
async def test_slices_are_on_the_numa_node_of_the_rail(policy: Policy, scope: Scope) -> None:
    async with served(policy, scope) as n:
        held: list[set[str]] = []
        for rail in (NIC1, NIC0, NIC1, NIC0):
            pod = PodSpec.single("worker", {rail: 1, MEMORY: 30})
            admission = await n.kubelet.admit(pod)
            assert admission.admitted, admission.message
            assert len(numa_nodes(n, pod)) == 1
            held += n.kubelet.held(pod)["main"].values()
        assert sum(map(len, held)) == len(set().union(*held)) == 4 * 31


def preparing(rail: str) -> PodSpec:
    """A pod whose init container asks for slices and whose app asks for slices and a VF."""
    app, init = Container("app", {MEMORY: 20, rail: 1}), Container("init", {MEMORY: 20})
    return PodSpec("trainer", (app,), (init,))


async def admissions(scope: Scope) -> list[Admission]:
    """Admit one such pod for each rail on an empty node, in several random orders of the kubelet."""
    made = []
    for seed in (1, 2):
        for rail in (NIC0, NIC1):
            async with served("single-numa-node", scope, seed) as n:
                pod = preparing(rail)
                made.append(await n.kubelet.admit(pod))
                if made[-1].admitted:
                    assert len(numa_nodes(n, pod)) == 1
    return made


async def test_an_init_container_with_slices_needs_the_scope_of_the_pod() -> None:
    in_containers = await admissions("container")
    assert {one.reason for one in in_containers} == {"", "TopologyAffinityError"}
    assert [one.reason for one in await admissions("pod")] == [""] * 4


def test_the_settings_on_the_page_are_those_that_work() -> None:
    (block,) = re.findall(
        r"```yaml\n(.*?)```",
        (ROOT / "docs" / "rails.md").read_text().partition("\n## NUMA alignment\n")[2],
        re.S,
    )
    settings = yaml.safe_load(block)
    assert settings["kind"] == "KubeletConfiguration"
    assert (settings["topologyManagerPolicy"], settings["topologyManagerScope"]) == (
        "single-numa-node",
        "pod",
    )
