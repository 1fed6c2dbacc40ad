"""An init container asks for fewer slices of GPU memory than the app container of its pod.

Conditions: a node with partly used GPUs; the kubelet gives the app the slices of its finished init container and asks
only for the rest. What must hold: a pod that fits is admitted, the first of its size too; the agent learns from a
refusal; requests of other sizes keep their best fit; a refusal explains init containers and names a number that fits.
"""

from __future__ import annotations

from collections import Counter

from nodeagent_lab.sim.kubelet import Admission, Container, PodSpec
from tests.support.running_agent import Node, node

MEMORY = "two-gpus-and-two-nics/gpu-mem"
SIZE = 79


def growing(name: str, init: int, app: int) -> PodSpec:
    return PodSpec(
        name, (Container("app", {MEMORY: app}),), init_containers=(Container("init", {MEMORY: init}),)
    )


async def admitted(n: Node, pod: PodSpec) -> None:
    admission = await n.kubelet.admit(pod)
    assert admission.admitted, admission.message


async def run(n: Node, name: str, size: int) -> PodSpec:
    pod = PodSpec.single(name, {MEMORY: size})
    await admitted(n, pod)
    return pod


def gpu_of(n: Node, pod: PodSpec, container: str = "main") -> str:
    (gpu,) = Counter(name.partition("::")[0] for name in n.kubelet.held(pod)[container][MEMORY])
    return gpu


async def partly_used(n: Node, free_a: int, free_b: int) -> tuple[str, str]:
    """Leave this many slices free on two GPUs; whole GPUs first, so that each pod has its own."""
    await n.kubelet.start()
    await n.start_agent()
    await n.allocatable(MEMORY, 2 * SIZE)
    first = await run(n, "a", SIZE - free_a)
    second = await run(n, "b", SIZE - free_b)
    gpus = gpu_of(n, first), gpu_of(n, second)
    assert gpus[0] != gpus[1]
    return gpus


async def test_the_first_pod_whose_app_needs_more_gets_a_gpu_with_room() -> None:
    async with node() as n:
        _, roomy = await partly_used(n, 20, 45)
        pod = growing("grows", 16, 40)
        await admitted(n, pod)
        assert gpu_of(n, pod, "app") == roomy
        assert n.kubelet.held(pod)["init"][MEMORY] < n.kubelet.held(pod)["app"][MEMORY]


async def test_a_size_that_grew_once_is_placed_with_room_again_and_other_sizes_by_best_fit() -> None:
    async with node() as n:
        tight, roomy = await partly_used(n, 20, 45)
        for turn in range(3):
            pod = growing(f"grows-{turn}", 16, 40)
            await admitted(n, pod)
            assert gpu_of(n, pod, "app") == roomy
            n.kubelet.remove(pod)
        first = await run(n, "first", 4)  # of its size: to the emptiest GPU
        n.kubelet.remove(first)
        assert gpu_of(n, await run(n, "second", 4)) == tight


async def test_equal_and_falling_requests_work_on_a_partly_used_node() -> None:
    async with node() as n:
        await partly_used(n, 20, 62)
        for init, app in ((40, 40), (60, 20)):
            pod = growing(f"from-{init}", init, app)
            await admitted(n, pod)
            n.kubelet.remove(pod)


async def test_the_refusal_explains_init_containers_and_the_next_pod_of_that_kind_is_served() -> None:
    async with node() as n:
        _, roomy = await partly_used(n, 20, 45)
        await run(n, "plain", 16)  # 16 is a known size now, and it never grew
        refused: Admission = await n.kubelet.admit(growing("refused", 16, 29))
        assert not refused.admitted
        assert "ask for 29 in the init container too, or for at most 20 here" in refused.message
        assert "16 of 29 slices are fixed on GPU-" in refused.message
        again = growing("again", 16, 29)
        await admitted(n, again)
        assert gpu_of(n, again, "app") == roomy


async def test_a_pod_that_no_gpu_can_serve_is_refused_with_the_number_that_fits() -> None:
    async with node() as n:
        await partly_used(n, 20, 30)
        refused = await n.kubelet.admit(growing("too-large", 16, 40))
        assert not refused.admitted
        assert "ask for 40 in the init container too, or for at most 30 here" in refused.message
        assert "of the pod's init container" in refused.message
        await admitted(n, PodSpec.single("fits", {MEMORY: 30}))
