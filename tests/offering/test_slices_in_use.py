"""Random pods through the stand-in kubelet: the agent's view and podresources agree, and no slice is lost."""

from __future__ import annotations

import random
from collections import Counter

from nodeagent_lab.sim.kubelet import PodSpec
from tests.support.running_agent import node

RESOURCE = "two-gpus-and-two-nics/gpu-mem"
SIZES = (1, 8, 16, 20, 40, 60, 79, 80, 158)


def counts(ids: frozenset[str]) -> Counter[str]:
    return Counter(id_.partition("::")[0] for id_ in ids)


async def test_random_pods_split_exceed_and_lose_nothing() -> None:
    choose = random.Random(16)  # the same sequence in each run
    async with node() as n:
        await n.kubelet.start()
        await n.start_agent()
        await n.allocatable(RESOURCE, 158)
        pods: dict[str, Counter[str]] = {}
        specs: dict[str, PodSpec] = {}
        admitted = 0
        for number in range(60):
            if pods and choose.random() < 0.4:
                name = choose.choice(sorted(pods))
                n.kubelet.remove(specs[name])
                del pods[name]
            size, name = choose.choice(SIZES), f"p{number}"
            free = {gpu.uuid: 79 for gpu in n.agent.inventory.snapshot.gpus}
            for parts in pods.values():
                free = {uuid: left - parts[uuid] for uuid, left in free.items()}
            specs[name] = PodSpec.single(name, {RESOURCE: size})
            admission = await n.kubelet.admit(specs[name])
            fits = max(free.values()) >= size or (size == 158 and min(free.values()) == 79)
            assert admission.admitted == fits, (free, size, admission.message)
            if admission.admitted:
                admitted += 1
                pods[name] = counts(n.kubelet.held(admission.pod)["main"][RESOURCE])
                assert len(pods[name]) == 1 or pods[name] == Counter(dict.fromkeys(free, 79))
                assert pods[name].total() == size
        assert admitted > 15
        used = Counter[str]()
        for parts in pods.values():
            used += parts
        n.agent._read_pods.set()
        (kind,) = (kind for kind in n.agent.offering.offered if kind.resource == RESOURCE)
        expected = {uuid: 79 - used[uuid] for uuid in free}
        await n.until(lambda: kind.free(n.agent.inventory.snapshot) == expected)
