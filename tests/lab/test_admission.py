"""The stand-in kubelet's admissions: which devices a pod gets, in which order, and what leaks."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from collections import Counter
from pathlib import Path

import grpc
import pytest

from nodeagent.facts.model import DeviceNode, Holding, Mount
from nodeagent.kube import deviceplugin_pb2 as pb
from nodeagent.kube.podresources_client import PodResources, PodResourcesError
from nodeagent_lab.sim.kubelet import Container, Kubelet, KubeletPanic, PodSpec
from nodeagent_lab.sim.kubelet.topology_manager import NumaHint, hints, merge
from tests.support.device_plugin import Plugin, RefusalError, device, many

NIC = "nvidia-dgx-h100/nic0"
MEM = "nvidia-dgx-h100/gpu-mem"


class Node:
    """A kubelet and the plugins registered with it."""

    def __init__(self, folder, **options):
        self.kubelet = Kubelet(folder, seed=1, **options)
        self.plugins = {}

    async def offer(self, resource, devices, **options):
        path = self.kubelet.socket.parent / f"{len(self.plugins)}.sock"
        plugin = self.plugins[resource] = await Plugin(path, resource, devices, **options).start()
        return await self.register(plugin)

    async def register(self, plugin):
        count = len(self.kubelet.updates)
        await plugin.register(self.kubelet.socket)
        await self.kubelet.until(lambda: len(self.kubelet.updates) > count)
        return plugin

    async def back(self, plugin):
        """The plugin comes back after a kubelet restart."""
        await plugin.stop()
        await plugin.start()
        await self.register(plugin)


@pytest.fixture
async def nodes():
    made = []
    folders = []

    async def make(**options):
        folders.append(Path(tempfile.mkdtemp(prefix="k")))
        node = Node(folders[-1], **options)
        await node.kubelet.start()
        made.append(node)
        return node

    yield make
    for node in made:
        for plugin in node.plugins.values():
            await plugin.stop()
        await node.kubelet.stop()
    for folder in folders:
        shutil.rmtree(folder)


@pytest.fixture
async def node(nodes):
    return await nodes()


def first(available, must_include, size):
    return sorted(available)[:size]


def veto(available, must_include, size):
    raise RefusalError(grpc.StatusCode.FAILED_PRECONDITION, "the largest free block is 3")


def given(ids, **fields):
    return pb.AllocateResponse(container_responses=[pb.ContainerAllocateResponse(**fields)])


def of(kubelet, pod, resource=NIC, container="main"):
    return set(kubelet.held(pod)[container][resource])


# Which devices.


async def test_the_preferred_devices_are_taken(node):
    plugin = await node.offer(NIC, many("vf", 8), prefer=first)
    pod = PodSpec.single("a", {NIC: 3})
    assert (await node.kubelet.admit(pod)).phase == "Running"
    assert of(node.kubelet, pod) == {"vf0", "vf1", "vf2"}
    (asked,) = plugin.called("GetPreferredAllocation")[0].container_requests
    assert sorted(asked.available_deviceIDs) == [f"vf{n}" for n in range(8)]
    assert (list(asked.must_include_deviceIDs), asked.allocation_size) == ([], 3)


async def test_the_plugin_is_called_even_if_every_device_is_needed(node):
    plugin = await node.offer(NIC, many("vf", 4, 0), prefer=first)
    assert (await node.kubelet.admit(PodSpec.single("a", {NIC: 4}))).admitted
    assert len(plugin.called("GetPreferredAllocation")) == 1


async def test_a_plugin_without_the_option_is_not_called(node):
    plugin = await node.offer(NIC, many("vf", 4))
    assert (await node.kubelet.admit(PodSpec.single("a", {NIC: 2}))).admitted
    assert plugin.called("GetPreferredAllocation") == []


async def test_a_plugins_order_is_not_the_kubelets(node):
    plugin = await node.offer(MEM, many("slice", 200), prefer=first)
    await node.kubelet.admit(PodSpec.single("a", {MEM: 1}))
    await node.kubelet.admit(PodSpec.single("b", {MEM: 1}))
    orders = [
        list(call.container_requests[0].available_deviceIDs)
        for call in plugin.called("GetPreferredAllocation")
    ]
    assert all(order != [d.ID for d in many("slice", 200)] for order in orders)
    assert orders[0][:100] != orders[1][:100]


@pytest.mark.parametrize(
    ("answer", "certain"),
    [
        ([], set()),
        (["vf1"], {"vf1"}),
        (["vf1", "foreign"], {"vf1"}),
        (["vf0", "vf1", "vf2", "vf3", "vf4"], set()),
    ],
)
async def test_a_short_long_or_foreign_answer_is_intersected_and_filled(node, answer, certain):
    await node.offer(NIC, many("vf", 8), prefer=lambda available, must, size: answer)
    pod = PodSpec.single("a", {NIC: 3})
    assert (await node.kubelet.admit(pod)).admitted
    held = of(node.kubelet, pod)
    assert len(held) == 3
    assert certain <= held
    assert "foreign" not in held
    if len(answer) > 3:
        assert held <= set(answer), "a long answer is cut at random"


async def test_unhealthy_and_allocated_devices_are_not_available(node):
    await node.offer(NIC, [device("vf0", health="Unhealthy"), *many("ok", 3)])
    a, b = PodSpec.single("a", {NIC: 2}), PodSpec.single("b", {NIC: 2})
    assert (await node.kubelet.admit(a)).admitted
    refused = await node.kubelet.admit(b)
    assert (refused.phase, refused.reason) == ("Failed", "UnexpectedAdmissionError")
    assert refused.message == (
        f"Allocate failed due to requested number of devices unavailable for {NIC}. "
        "Requested: 2, Available: 1, which is unexpected"
    )


async def test_a_resource_with_no_healthy_device_fails_the_pod(node):
    await node.offer(NIC, [device("vf0", health="Unhealthy")])
    refused = await node.kubelet.admit(PodSpec.single("a", {NIC: 1}))
    assert f"no healthy devices present; cannot allocate unhealthy devices {NIC}" in refused.message


async def test_a_resource_that_was_never_listed_is_skipped_and_the_pod_runs_without(node):
    pod = PodSpec.single("a", {NIC: 1})
    assert (await node.kubelet.admit(pod)).phase == "Running"
    assert node.kubelet.held(pod) == {}


async def test_a_resource_gone_from_the_node_but_still_held_is_unregistered(node):
    plugin = await node.offer(NIC, many("vf", 8))
    assert (await node.kubelet.admit(PodSpec.single("a", {NIC: 1}))).admitted
    await plugin.stop()
    await node.kubelet.until(lambda: node.kubelet.allocatable() == {NIC: 0})
    node.kubelet.stop_grace_s = 0.0
    assert node.kubelet.capacity() == {NIC: 0}
    refused = await node.kubelet.admit(PodSpec.single("b", {NIC: 1}))
    assert f"cannot allocate unregistered device {NIC}" in refused.message


async def test_a_pod_that_is_admitted_again_must_request_the_same_count(node):
    plugin = await node.offer(NIC, many("vf", 8))
    pod = PodSpec.single("a", {NIC: 2})
    await node.kubelet.admit(pod)
    assert (await node.kubelet.admit(pod)).admitted
    assert len(plugin.called("Allocate")) == 1
    more = PodSpec("a", (Container("main", {NIC: 3}),), uid=pod.uid)
    assert f'changed request for resource "{NIC}" from 2 to 3' in (await node.kubelet.admit(more)).message


async def test_a_pod_whose_device_has_turned_unhealthy_is_not_admitted_again(node):
    plugin = await node.offer(NIC, many("vf", 2))
    pod = PodSpec.single("a", {NIC: 1})
    await node.kubelet.admit(pod)
    (mine,) = of(node.kubelet, pod)
    plugin.say([device(d.ID, health="Unhealthy" if mine == d.ID else "Healthy") for d in many("vf", 2)])
    await node.kubelet.until(lambda: len(node.kubelet.updates) == 2)
    assert "previously allocated devices are no longer healthy" in (await node.kubelet.admit(pod)).message


async def test_an_app_container_reuses_an_init_containers_devices_without_a_call_to_the_plugin(node):
    plugin = await node.offer(NIC, many("vf", 8), prefer=first)
    pod = PodSpec("a", (Container("main", {NIC: 2}),), init_containers=(Container("init", {NIC: 3}),))
    assert (await node.kubelet.admit(pod)).admitted
    assert of(node.kubelet, pod) < of(node.kubelet, pod, container="init")
    assert len(plugin.called("GetPreferredAllocation")) == 1
    assert len(plugin.called("Allocate")) == 2


async def test_an_app_container_that_needs_more_than_it_reuses_must_include_it(node):
    plugin = await node.offer(NIC, many("vf", 8), prefer=first)
    pod = PodSpec("a", (Container("main", {NIC: 3}),), init_containers=(Container("init", {NIC: 1}),))
    assert (await node.kubelet.admit(pod)).admitted
    (asked,) = plugin.called("GetPreferredAllocation")[1].container_requests
    assert set(asked.must_include_deviceIDs) == of(node.kubelet, pod, container="init")
    assert asked.allocation_size == 3
    assert len(asked.available_deviceIDs) == 8


async def test_a_sidecars_devices_are_not_reused(node):
    await node.offer(NIC, many("vf", 8))
    pod = PodSpec(
        "a",
        (Container("main", {NIC: 2}),),
        init_containers=(Container("sidecar", {NIC: 2}, restartable=True),),
    )
    assert (await node.kubelet.admit(pod)).admitted
    assert not of(node.kubelet, pod) & of(node.kubelet, pod, container="sidecar")


# Allocate and its failures.


async def test_one_allocate_for_each_container_and_resource_in_random_order(node):
    order = []
    for name in (MEM, NIC):
        await node.offer(
            name, many(name[-4:], 64), give=lambda ids, name=name: order.append(name) or given(ids)
        )
    for number in range(16):
        pod = PodSpec(f"p{number}", (Container("a", {MEM: 1, NIC: 1}), Container("b", {MEM: 2, NIC: 2})))
        assert (await node.kubelet.admit(pod)).admitted
    assert len(order) == 64
    assert set(order[::4]) == {MEM, NIC}, "the first asked is now the one, now the other"
    sizes = [len(c.container_requests[0].devices_ids) for c in node.plugins[MEM].called("Allocate")]
    assert sizes == [1, 2] * 16


async def test_an_error_of_get_preferred_allocation_fails_the_pod(node):
    plugin = await node.offer(NIC, many("vf", 8), prefer=veto)
    refused = await node.kubelet.admit(PodSpec.single("a", {NIC: 4}))
    assert (refused.phase, refused.reason) == ("Failed", "UnexpectedAdmissionError")
    assert refused.message == (
        "Allocate failed due to device plugin GetPreferredAllocation rpc failed with err: "
        "rpc error: code = FailedPrecondition desc = the largest free block is 3, which is unexpected"
    )
    assert plugin.called("Allocate") == []
    assert node.kubelet.allocated(NIC) == set(), "a veto leaves nothing behind under policy none"
    call = node.kubelet.calls[-1]
    assert (call.resource, call.method) == (NIC, "GetPreferredAllocation")
    assert "FailedPrecondition" in call.error
    assert call.at <= call.done


async def test_a_veto_after_aligned_devices_were_taken_leaks_them_until_a_pod_is_removed(nodes):
    node = await nodes(topology_policy="best-effort")
    both = [*many("near", 2, 0), *many("far", 3, 1), *many("any", 4)]
    plugin = await node.offer(NIC, both)
    holder = PodSpec.single("holder", {NIC: 1})
    await node.kubelet.admit(holder)
    plugin.options.get_preferred_allocation_available = True
    plugin.prefer = veto
    await plugin.stop()
    await node.kubelet.until(lambda: len(node.kubelet.ends) == 1)
    await plugin.start()
    await node.register(plugin)
    refused = await node.kubelet.admit(PodSpec.single("a", {NIC: 6}))
    assert "GetPreferredAllocation rpc failed" in refused.message
    leaked = node.kubelet.allocated(NIC) - of(node.kubelet, holder)
    assert leaked
    await node.kubelet.admit(PodSpec.single("other", {}))
    assert node.kubelet.allocated(NIC) >= leaked
    node.kubelet.remove(holder)
    await node.kubelet.admit(PodSpec.single("b", {NIC: 99}))
    assert not node.kubelet.allocated(NIC) & leaked


async def test_an_error_of_allocate_frees_the_devices_at_once(node):
    def refuse(ids):
        raise RefusalError(grpc.StatusCode.FAILED_PRECONDITION, "slices of two GPUs")

    await node.offer(NIC, many("vf", 8), give=refuse)
    refused = await node.kubelet.admit(PodSpec.single("a", {NIC: 4}))
    assert refused.message == (
        "Allocate failed due to rpc error: code = FailedPrecondition desc = slices of two GPUs, "
        "which is unexpected"
    )
    assert node.kubelet.allocated(NIC) == set()


async def test_an_answer_for_no_container_fails_the_pod_and_leaks(node):
    await node.offer(NIC, many("vf", 8), give=lambda ids: pb.AllocateResponse())
    refused = await node.kubelet.admit(PodSpec.single("a", {NIC: 4}))
    assert "no containers return in allocation response" in refused.message
    assert len(node.kubelet.allocated(NIC)) == 4


async def test_a_hang_in_allocate_blocks_every_other_admission(node):
    slow = await node.offer(NIC, many("vf", 8))
    await node.offer(MEM, many("slice", 8))
    slow.allocate_gate.clear()
    hanging = asyncio.create_task(node.kubelet.admit(PodSpec.single("a", {NIC: 1})))
    await slow.until(lambda: slow.called("Allocate"))
    other = asyncio.create_task(node.kubelet.admit(PodSpec.single("b", {MEM: 1})))
    done, _ = await asyncio.wait({other}, timeout=0.05)
    assert not done
    slow.allocate_gate.set()
    assert (await hanging).admitted
    assert (await other).admitted


async def test_a_plugin_that_dies_in_allocate_fails_the_pod(node):
    plugin = await node.offer(NIC, many("vf", 8))
    plugin.allocate_gate.clear()
    hanging = asyncio.create_task(node.kubelet.admit(PodSpec.single("a", {NIC: 1})))
    await plugin.until(lambda: plugin.called("Allocate"))
    await plugin.stop()
    assert "rpc error: code = " in (await hanging).message
    assert node.kubelet.allocated(NIC) == set()


async def test_a_device_that_is_removed_in_flight_ends_the_kubelet(node):
    plugin = await node.offer(NIC, many("vf", 2))
    plugin.allocate_gate.clear()
    dying = asyncio.create_task(node.kubelet.admit(PodSpec.single("a", {NIC: 2})))
    await plugin.until(lambda: plugin.called("Allocate"))
    plugin.say([device("vf0")])
    await node.kubelet.until(lambda: len(node.kubelet.updates) == 2)
    plugin.allocate_gate.set()
    with pytest.raises(KubeletPanic, match="vf1"):
        await dying
    assert len(node.kubelet.panics) == 1
    assert not node.kubelet.running
    await node.kubelet.start()


async def test_a_device_that_turns_unhealthy_in_flight_does_not_end_the_kubelet(node):
    plugin = await node.offer(NIC, many("vf", 2))
    plugin.allocate_gate.clear()
    pod = PodSpec.single("a", {NIC: 2})
    admitting = asyncio.create_task(node.kubelet.admit(pod))
    await plugin.until(lambda: plugin.called("Allocate"))
    plugin.say([device("vf0"), device("vf1", health="Unhealthy")])
    await node.kubelet.until(lambda: len(node.kubelet.updates) == 2)
    plugin.allocate_gate.set()
    assert (await admitting).admitted
    assert node.kubelet.panics == []


# What the container is started with.


async def test_of_two_answers_with_one_name_the_first_wins_and_the_pods_own_environment_overrides(node):
    for name, value in ((MEM, "mem"), (NIC, "nic")):
        await node.offer(
            name,
            many(value, 40),
            give=lambda ids, value=value: given(
                ids,
                envs={"SHARED": value, "USER": value, value: "own"},
                mounts=[pb.Mount(container_path="/x", host_path=f"/{value}", read_only=True)],
                devices=[pb.DeviceSpec(container_path="/dev/x", host_path=f"/dev/{value}", permissions="rw")],
                annotations={"shared": value},
                cdi_devices=[pb.CDIDevice(name="a.b/c=same"), pb.CDIDevice(name=f"a.b/c={value}")],
            ),
        )
    winners = set()
    pod = PodSpec.single("p", {MEM: 1, NIC: 1}, env=(("USER", "pod"),))
    assert (await node.kubelet.admit(pod)).given["main"].env
    for _ in range(16):
        allocation = await node.kubelet.start_container(pod, "main")
        env = dict(allocation.env)
        winner = env["SHARED"]
        winners.add(winner)
        assert (env["USER"], env["mem"], env["nic"]) == ("pod", "own", "own")
        assert allocation.mounts == (Mount(f"/{winner}", "/x", read_only=True),)
        assert allocation.device_nodes == (DeviceNode(f"/dev/{winner}", "/dev/x", "rw"),)
        assert allocation.annotations == (("shared", winner),)
        assert sorted(allocation.cdi_devices) == ["a.b/c=mem", "a.b/c=nic", "a.b/c=same"]
    assert winners == {"mem", "nic"}, "which is first is left to chance"


async def test_a_container_restart_repeats_pre_start_and_not_allocate(node):
    plugin = await node.offer(NIC, many("vf", 8), pre_start=True)
    pod = PodSpec.single("a", {NIC: 2})
    await node.kubelet.admit(pod)
    await node.kubelet.start_container(pod, "main")
    assert len(plugin.called("Allocate")) == 1
    asked = [set(call.devices_ids) for call in plugin.called("PreStartContainer")]
    assert asked == [of(node.kubelet, pod)] * 2


async def test_the_answer_is_cached_over_a_kubelet_restart(node):
    plugin = await node.offer(NIC, many("vf", 8, 1), give=lambda ids: given(ids, envs={"A": "1"}))
    pod = PodSpec.single("a", {NIC: 2})
    await node.kubelet.admit(pod)
    held = node.kubelet.held(pod)
    await node.kubelet.restart()
    assert node.kubelet.held(pod) == held
    await node.back(plugin)
    assert dict((await node.kubelet.start_container(pod, "main")).env) == {"A": "1"}
    assert len(plugin.called("Allocate")) == 1
    assert node.kubelet.allocated(NIC) == held["main"][NIC]


async def test_an_init_containers_devices_fail_the_pod_at_a_kubelet_restart(node):
    await node.offer(NIC, many("vf", 8))
    pod = PodSpec("a", (Container("main", {NIC: 2}),), init_containers=(Container("init", {NIC: 2}),))
    plain = PodSpec.single("b", {NIC: 1})
    await node.kubelet.admit(pod)
    await node.kubelet.admit(plain)
    await node.kubelet.restart()
    assert node.kubelet.admissions[pod.uid].phase == "Failed"
    assert "no healthy devices present" in node.kubelet.admissions[pod.uid].message
    assert node.kubelet.admissions[plain.uid].phase == "Running"


# Giving back.


async def test_the_devices_of_a_removed_pod_are_freed_at_the_next_search(node):
    await node.offer(NIC, many("vf", 2))
    a, b = PodSpec.single("a", {NIC: 2}), PodSpec.single("b", {NIC: 2})
    await node.kubelet.admit(a)
    node.kubelet.remove(a)
    assert len(node.kubelet.allocated(NIC)) == 2, "the plugin gets no call, and no device is freed yet"
    assert (await node.kubelet.admit(b)).admitted


async def test_the_scheduler_counts_an_unhealthy_device_in_use_twice(node):
    plugin = await node.offer(NIC, many("vf", 4))
    pod = PodSpec.single("a", {NIC: 2})
    assert node.kubelet.insufficient(pod) == ()
    await node.kubelet.admit(pod)
    assert node.kubelet.insufficient(PodSpec.single("b", {NIC: 2})) == ()
    mine = min(of(node.kubelet, pod))
    plugin.say([device(d.ID, health="Unhealthy" if mine == d.ID else "Healthy") for d in many("vf", 4)])
    await node.kubelet.until(lambda: len(node.kubelet.updates) == 2)
    assert node.kubelet.insufficient(PodSpec.single("b", {NIC: 2})) == (NIC,)


# The podresources API.


async def test_resource_health_is_the_plugins_latest_health_of_each_device(node):
    plugin = await node.offer(NIC, many("vf", 2))
    pod = PodSpec.single("a", {NIC: 2})
    await node.kubelet.admit(pod)
    plugin.say([device("vf0"), device("vf1", health="Unhealthy")])
    await node.kubelet.until(lambda: len(node.kubelet.updates) == 2)
    expected = {"main": {NIC: {"vf0": "Healthy", "vf1": "Unhealthy"}}}
    assert node.kubelet.resource_health(pod) == expected
    await plugin.stop()
    await node.kubelet.until(lambda: node.kubelet.allocatable() == {NIC: 0})
    assert node.kubelet.resource_health(pod) == expected, "a dead plugin changes nothing"
    await node.kubelet.restart()
    assert set(node.kubelet.resource_health(pod)["main"][NIC].values()) == {"Healthy"}, "unknown is Healthy"


@pytest.fixture
def client(node):
    return PodResources(node.kubelet.podresources_socket)


async def test_the_client_lists_each_device_once_although_the_kubelet_lists_it_per_numa_node(node, client):
    await node.offer(MEM, many("slice", 3, 0, 1))
    await node.offer(NIC, many("vf", 3))
    await node.kubelet.admit(PodSpec.single("b", {NIC: 3}))
    await node.kubelet.admit(PodSpec("a", (Container("x", {MEM: 3}), Container("y", {})), namespace="team"))
    assert await client.list() == (
        Holding("default", "b", "main", NIC, ("vf0", "vf1", "vf2")),
        Holding("team", "a", "x", MEM, ("slice0", "slice1", "slice2")),
    )


async def test_podresources_shows_a_sidecar_and_no_other_init_container(node, client):
    await node.offer(NIC, many("vf", 8))
    inits = (Container("init", {NIC: 1}), Container("sidecar", {NIC: 1}, restartable=True))
    await node.kubelet.admit(PodSpec("a", (Container("main", {NIC: 1}),), init_containers=inits))
    assert [holding.container for holding in await client.list()] == ["main", "sidecar"]


async def test_a_request_to_podresources_frees_the_devices_of_ended_pods(node, client):
    await node.offer(NIC, many("vf", 2))
    pod = PodSpec.single("a", {NIC: 2})
    await node.kubelet.admit(pod)
    node.kubelet.remove(pod)
    assert await client.list() == ()
    assert node.kubelet.allocated(NIC) == set()


async def test_after_a_restart_podresources_is_empty_until_the_pods_are_known(node, client):
    await node.offer(NIC, many("vf", 2))
    await node.kubelet.admit(PodSpec.single("a", {NIC: 2}))
    before = await client.list()
    assert before
    await node.kubelet.restart(sources_delay_s=3600)
    assert await client.list() == ()
    assert len(node.kubelet.allocated(NIC)) == 2
    await node.kubelet.restart()
    assert await client.list() == before


async def test_the_pods_are_received_after_the_delay(node):
    await node.offer(NIC, many("vf", 2))
    pod = PodSpec("a", (Container("main", {NIC: 1}),), init_containers=(Container("init", {NIC: 1}),))
    await node.kubelet.admit(pod)
    await node.kubelet.restart(sources_delay_s=0.01)
    assert node.kubelet.admissions[pod.uid].phase == "Running"
    await node.kubelet.until(lambda: node.kubelet.admissions[pod.uid].phase == "Failed")


async def test_podresources_of_an_absent_kubelet_names_the_socket_and_the_cause(node):
    await node.kubelet.stop()
    client = PodResources(node.kubelet.podresources_socket)
    with pytest.raises(
        PodResourcesError, match=f"{node.kubelet.podresources_socket}.*UNAVAILABLE.*No such file"
    ):
        await client.list()
    await node.kubelet.start()
    assert await client.list() == (), "the next question connects afresh, without waiting for a back-off"


async def test_podresources_answers_no_more_than_its_rate(node, client):
    answers = await asyncio.gather(*(client.list() for _ in range(200)), return_exceptions=True)
    refused = [answer for answer in answers if isinstance(answer, PodResourcesError)]
    assert "RESOURCE_EXHAUSTED: rejected by rate limit" in str(refused[0])
    assert answers.count(()) >= 10


async def test_podresources_returns_the_healthy_devices_and_one_pod(node):
    from nodeagent.kube import podresources_pb2 as podresources

    await node.offer(NIC, [device("vf0", 0, 1), device("vf1"), device("vf2", health="Unhealthy")])
    await node.kubelet.admit(PodSpec.single("a", {NIC: 2}))
    target = f"unix:{node.kubelet.podresources_socket}"
    async with grpc.aio.insecure_channel(target) as channel:

        async def ask(method, request, answer):
            call = channel.unary_unary(
                f"/v1.PodResourcesLister/{method}",
                request_serializer=type(request).SerializeToString,
                response_deserializer=answer.FromString,
            )
            return await call(request)

        allocatable = await ask(
            "GetAllocatableResources",
            podresources.AllocatableResourcesRequest(),
            podresources.AllocatableResourcesResponse,
        )
        assert sorted((d.device_ids[0], *(n.ID for n in d.topology.nodes)) for d in allocatable.devices) == [
            ("vf0", 0),
            ("vf0", 1),
            ("vf1",),
        ]
        request = podresources.GetPodResourcesRequest(pod_name="a", pod_namespace="default")
        answer = await ask("Get", request, podresources.GetPodResourcesResponse)
        assert answer.pod_resources.containers[0].name == "main"
        request = podresources.GetPodResourcesRequest(pod_name="b", pod_namespace="default")
        with pytest.raises(grpc.aio.AioRpcError, match="not found"):
            await ask("Get", request, podresources.GetPodResourcesResponse)


# NUMA alignment.


async def test_with_fewer_needed_than_aligned_the_plugin_chooses_among_the_aligned_only(nodes):
    node = await nodes(topology_policy="single-numa-node")
    plugin = await node.offer(NIC, [*many("a", 4, 0), *many("b", 2, 1)], prefer=first)
    pod = PodSpec.single("p", {NIC: 3})
    assert (await node.kubelet.admit(pod)).admitted
    (asked,) = plugin.called("GetPreferredAllocation")[0].container_requests
    assert sorted(asked.available_deviceIDs) == ["a0", "a1", "a2", "a3"]
    assert of(node.kubelet, pod) == {"a0", "a1", "a2"}


async def test_with_as_many_needed_as_aligned_the_plugin_is_not_called(nodes):
    node = await nodes(topology_policy="single-numa-node")
    plugin = await node.offer(NIC, [*many("a", 4, 0), *many("b", 2, 1)], prefer=first)
    pod = PodSpec.single("p", {NIC: 4})
    assert (await node.kubelet.admit(pod)).admitted
    assert of(node.kubelet, pod) == {"a0", "a1", "a2", "a3"}
    assert plugin.called("GetPreferredAllocation") == []


async def test_with_more_needed_than_aligned_all_aligned_are_taken_before_the_plugin_is_called(nodes):
    node = await nodes(topology_policy="best-effort")
    plugin = await node.offer(NIC, [*many("a", 2, 0), *many("free", 4)], prefer=first)
    pod = PodSpec.single("p", {NIC: 2})
    assert (await node.kubelet.admit(pod)).admitted
    assert of(node.kubelet, pod) == {"a0", "a1"}
    assert plugin.called("GetPreferredAllocation") == []
    node.kubelet.remove(pod)
    more = PodSpec.single("q", {NIC: 3})
    assert (await node.kubelet.admit(more)).admitted
    (asked,) = plugin.called("GetPreferredAllocation")[0].container_requests
    assert set(asked.must_include_deviceIDs) == {"a0", "a1"}
    assert {"a0", "a1"} < of(node.kubelet, more)


@pytest.mark.parametrize(("policy", "phase"), [("best-effort", "Running"), ("restricted", "Failed")])
async def test_a_request_that_one_node_could_hold_and_cannot_now_is_refused_by_restricted(
    nodes, policy, phase
):
    node = await nodes(topology_policy=policy)
    await node.offer(NIC, [*many("a", 2, 0), *many("b", 2, 1)])
    pods = [PodSpec.single(name, {NIC: 1}) for name in "pqr"]
    for pod in pods:
        await node.kubelet.admit(pod)
    assert [min(of(node.kubelet, pod))[0] for pod in pods] == ["a", "a", "b"]
    node.kubelet.remove(pods[0])
    admission = await node.kubelet.admit(PodSpec.single("s", {NIC: 2}))
    assert admission.phase == phase
    assert admission.reason == ("" if phase == "Running" else "TopologyAffinityError")


async def test_single_numa_node_refuses_what_spans_two(nodes):
    node = await nodes(topology_policy="single-numa-node")
    await node.offer(NIC, [*many("a", 2, 0), *many("b", 2, 1)])
    refused = await node.kubelet.admit(PodSpec.single("p", {NIC: 3}))
    assert (refused.reason, refused.message) == (
        "TopologyAffinityError",
        "Resources cannot be allocated with Topology locality",
    )


async def test_two_resources_are_aligned_to_one_node(nodes):
    node = await nodes(topology_policy="single-numa-node")
    await node.offer(NIC, [*many("a", 2, 0), *many("b", 2, 1)])
    await node.offer(MEM, [*many("m", 1, 0), *many("n", 8, 1)])
    pod = PodSpec.single("p", {NIC: 1, MEM: 4})
    assert (await node.kubelet.admit(pod)).admitted
    assert {name[0] for name in of(node.kubelet, pod)} == {"b"}
    assert {name[0] for name in of(node.kubelet, pod, MEM)} == {"n"}


async def test_devices_without_numa_nodes_are_indifferent_to_every_policy(nodes):
    node = await nodes(topology_policy="single-numa-node")
    plugin = await node.offer(NIC, many("vf", 4), prefer=first)
    assert (await node.kubelet.admit(PodSpec.single("p", {NIC: 4}))).admitted
    assert len(plugin.called("GetPreferredAllocation")) == 1


def test_hints_list_every_possible_affinity_and_prefer_the_narrowest():
    counted = Counter({(0,): 4, (1,): 2})
    found = hints(numa_nodes=(0, 1), listed=counted, available=counted, reusable=Counter(), request=3)
    assert found == (NumaHint(0b01, True), NumaHint(0b11, False))


def test_numa_nodes_unknown_to_the_machine_are_ignored():
    counted = Counter({(7,): 4, (0,): 4})
    found = hints(numa_nodes=(0, 1), listed=counted, available=counted, reusable=Counter(), request=4)
    assert found == (NumaHint(0b01, True),)


def test_a_reusable_device_must_lie_in_the_affinity():
    counted = Counter({(0,): 4, (1,): 4})
    found = hints(
        numa_nodes=(0, 1), listed=counted, available=counted, reusable=Counter({(1,): 1}), request=2
    )
    assert found == (NumaHint(0b10, True), NumaHint(0b11, False))


def test_merging_prefers_preferred_then_narrow():
    wide, left, right = NumaHint(0b11, False), NumaHint(0b01, True), NumaHint(0b10, True)
    assert merge("best-effort", (0, 1), [(left, right, wide), (right, wide)]) == right
    assert merge("best-effort", (0, 1), [(left, wide), (right, wide)]).preferred is False
    assert merge("restricted", (0, 1), []) == NumaHint(0b11, True)
    assert merge("single-numa-node", (0, 1), [(NumaHint(None, True),)]) == NumaHint(None, True)
    assert merge("single-numa-node", (0, 1), [(wide,)]) == NumaHint(None, False)


# Size.


async def test_a_hundred_thousand_devices_are_admitted_in_time(node):
    node.plugins[MEM] = plugin = await Plugin(
        node.kubelet.socket.parent / "m.sock", MEM, many("0-", 100_000, 0), prefer=first
    ).start()
    await node.register(plugin)
    assert node.kubelet.allocatable() == {MEM: 100_000}
    began = time.process_time()
    assert (await node.kubelet.admit(PodSpec.single("a", {MEM: 1000}))).admitted
    assert time.process_time() - began < 5, "a square of 100,000 would take hours"
