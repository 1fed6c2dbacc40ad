"""Evictions of pods with a failed device: after a wait, slowly, and within disruption budgets."""

from __future__ import annotations

import asyncio
import logging
import time

import pytest
from msgspec import structs

from nodeagent.base.backoff import RateLimit
from nodeagent.cluster.agent_events import AgentEvents
from nodeagent.cluster.cluster_settings import ClusterSettings, EvictSettings
from nodeagent.cluster.deliveries import Deliveries
from nodeagent.cluster.device_marks import DeviceMarker
from nodeagent.cluster.event_writer import NoticeBoard
from nodeagent.cluster.evictions import (
    BUDGET_S,
    EVICTIONS_PER_S,
    TAINT_S,
    EvictionCause,
    EvictionQueue,
    Evictions,
    EvictionTaint,
    failed_device_causes,
    over_use_causes,
)
from nodeagent.cluster.node_marks import DEVICE_TAINT, GPU_CONDITION, LINKS_LABEL
from nodeagent.cluster.retry import FORBIDDEN_FIRST_S, FORBIDDEN_JITTER
from nodeagent.facts.allocation import Devices
from nodeagent.facts.inventory import Inventory
from nodeagent.facts.model import Health, Reason, State
from nodeagent.kube.resource import PODS
from nodeagent.sharing.over_use import OverUse
from tests.support.cluster_node import (
    DEGRADED,
    DOWN,
    GPU_LOST,
    held_pods,
    holding,
    offered,
    publish,
    running_pod,
    snapshot,
)
from tests.support.waiting import until

pytestmark = pytest.mark.usefixtures("virtual_time")


def failed(facts):
    return failed_device_causes(facts, offered(facts), lambda _: None, time.monotonic())


def known(causes):
    """The causes with the UIDs that pods have in the stand-in API server."""
    return {pod: cause._replace(uid=f"pods-{'/'.join(pod)}") for pod, cause in causes.items()}


def evicting(client, inventory, causes=failed, after_s=0.01, rate=None, **settings):
    """The evictions of an agent, without their wait between turns."""
    rate = rate or RateLimit(100, 100)
    settings.setdefault("pods", held_pods(client, inventory))
    return Evictions(client, inventory, causes, after_s, node="gpu-0", rate=rate, **settings)


def telling(client, inventory, board):
    """Write the Events of an agent."""
    pods = held_pods(client, inventory)
    return AgentEvents(client, inventory, "gpu-0", offered, pods=pods, board=board).run()


def over_use(*names):
    """Pods of the stand-in API server that use too much, the first one for the longest time."""
    return {
        ("default", name): EvictionCause("GPU-0", "it has used too much", at - 60.0, f"pods-default/{name}")
        for at, name in enumerate(names)
    }


def test_a_pod_is_due_after_its_device_has_failed_without_interruption():
    queue = EvictionQueue(300)
    made = known(failed(snapshot([None, DOWN])))
    queue.observe(made, 0)
    assert queue.due(0) == ([], 300)
    queue.observe(made, 299)
    assert queue.due(300) == ([("default", "b")], 3600)
    queue.observe({}, 301)
    queue.observe(made, 302)
    assert queue.due(302) == ([], 300), "a device that came back starts the wait again"


def test_a_second_failed_device_of_a_pod_has_a_wait_of_its_own():
    queue = EvictionQueue(300)
    held = (holding("b", "x/nic", "0000:10:00.1", "0000:11:00.1"),)
    queue.observe(known(failed(snapshot([DOWN, None], holdings=held))), 0)
    queue.observe(known(failed(snapshot([DOWN, DOWN], holdings=held))), 290)
    assert queue.due(300)[0] == [("default", "b")]
    assert queue.causes["default", "b"].about == "0000:10:00.0", "the one that has failed for this time"
    queue.observe(known(failed(snapshot([None, DOWN], holdings=held))), 299)
    assert queue.due(300) == ([], 290)


def test_a_pod_on_a_gpu_whose_driver_was_upgraded_continues_to_run():
    queue = EvictionQueue(0)
    upgraded = Reason("driver_version_mismatch", "x")
    for reasons, pods in (((upgraded,), []), ((upgraded, Reason("xid_79", "y")), [("default", "a")])):
        made = snapshot([], [Health(State.UNHEALTHY, reasons, allocatable=False)])
        queue.observe(known(failed(made)), 0)
        assert queue.due(0)[0] == pods


def test_an_over_use_is_due_after_its_own_time_on_a_gpu_with_evictions_and_only_with_a_share():
    over = OverUse("team", "llm", "GPU-0", 40 << 30, 45 << 30, since=100.0, uid="u1")
    outside = structs.replace(over, namespace="", pod="")
    without_share = structs.replace(over, pod="probe", granted_bytes=0)
    elsewhere = structs.replace(over, pod="other", uuid="GPU-1")
    causes = over_use_causes((over, outside, without_share, elsewhere), {"GPU-0"})
    assert causes.keys() == {("team", "llm")}
    why = "it has used 45.0 GiB of GPU-0 for 312 s, and its share is 40.0 GiB"
    assert causes["team", "llm"].why(312.4) == why
    queue = EvictionQueue(300)
    queue.observe(causes, 160.0)  # reported after its grace
    assert queue.due(160.0) == ([], 240.0)
    assert queue.due(400.0)[0] == [("team", "llm")]
    recreated = over_use_causes([structs.replace(over, uid="u2", since=399.0)], {"GPU-0"})
    queue.observe(recreated, 401.0)
    assert queue.due(402.0) == ([], 297.0), "a pod of the same name has a time of its own"
    assert not over_use_causes([structs.replace(over, uid="")], {"GPU-0"}), "it may be either of two"
    queue.observe({}, 402.0)
    assert queue.due(403.0)[0] == []


async def test_a_pod_with_a_failed_device_is_evicted_within_its_budget(server, client, running):
    inventory = Inventory()
    server.fail("429", resource="pods/eviction", message="disruption budget", retry_after_s=0)
    publish(inventory, snapshot([None, DOWN], [None]))
    evictions = evicting(client, inventory, budget_s=0.01)
    running(evictions.run())
    await server.until(lambda: server.counts["create", "pods/eviction"] == 1)
    assert len(server.objects("pods")) == 2
    await server.until(lambda: len(server.objects("pods")) == 1)
    assert server.objects("pods")[0]["metadata"]["name"] == "a"


BUDGET = "Cannot evict pod as it would violate the pod's disruption budget."


async def test_a_refused_and_a_done_eviction_are_events_on_the_pod_and_on_the_node(server, client, running):
    """A refusal that repeats is one Event, and so is the eviction."""
    inventory, board = Inventory(), NoticeBoard()
    server.fail("429", resource="pods/eviction", message=BUDGET, retry_after_s=0, times=3)
    publish(inventory, snapshot([None, DOWN], [None]))
    evictions = evicting(client, inventory, board=board, budget_s=0.01)
    running(telling(client, inventory, board))

    def found(reason):
        return {
            event["involvedObject"]["kind"]: event
            for event in server.objects("events")
            if event["reason"] == reason
        }

    running(evictions.run())
    await server.until(lambda: len(found("PodEvicted")) == 2)
    await server.until(lambda: len(found("EvictionRefused")) == 2)
    refused, evicted = found("EvictionRefused"), found("PodEvicted")
    assert "a disruption budget refuses it" in refused["Pod"]["message"]
    assert refused["Node"]["message"].startswith("Pod default/b is not evicted")
    assert (refused["Node"]["count"], refused["Node"]["type"]) == (1, "Warning")
    assert evicted["Node"]["message"].startswith("Pod default/b was evicted: VF 0000:11:00.1 of ens1np0")
    assert evicted["Pod"]["involvedObject"]["name"] == "b"


async def test_refusals_are_spaced_out_whatever_the_server_asks_for(server, client, running):
    server.fail("429", resource="pods/eviction", message=BUDGET, retry_after_s=0, times=None)
    inventory = Inventory()
    publish(inventory, snapshot([None, DOWN], [None]))
    evictions = evicting(client, inventory, budget_s=0.1)
    evictions._rate = RateLimit(1000, 1000)
    for _ in range(8):
        evictions.queue.since = {("default", "b"): -60.0}
        evictions.queue.causes = known(failed(inventory.snapshot))
        evictions.queue.not_before.clear()
        await evictions._evict()
    assert evictions.queue.not_before["default", "b"] - time.monotonic() > 10 * 0.1


POLICY = "ValidatingAdmissionPolicy 'x' with binding 'x' denied request: an agent may not evict pods"


TWO_BUDGETS = (
    "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
)


async def test_a_pod_of_two_budgets_is_told_as_refused_and_does_not_stop_another(server, client, running):
    """The API server answers 500."""
    inventory, board = Inventory(), NoticeBoard()
    publish(inventory, snapshot([DOWN, DOWN], [None]))
    server.fail("500", resource="pods/eviction", name="a", message=TWO_BUDGETS, times=None)
    causes = over_use("a", "b")
    evictions = evicting(client, inventory, lambda _: causes, board=board)
    running(telling(client, inventory, board))
    running(evictions.run())
    told = {("EvictionRefused", "a"), ("PodEvicted", "b")}
    await server.until(
        lambda: told <= {(it["reason"], it["involvedObject"]["name"]) for it in server.objects("events")}
    )
    assert [one["metadata"]["name"] for one in server.objects("pods")] == ["a"]


@pytest.mark.parametrize("status", ["403", "422"])
async def test_a_pod_that_a_policy_refuses_does_not_stop_the_eviction_of_another(
    server, client, running, status, caplog
):
    inventory, deliveries = Inventory(), Deliveries()
    publish(inventory, snapshot([DOWN, DOWN], [None]))
    assert [one["metadata"]["name"] for one in server.objects("pods")] == ["a", "b"]
    server.fail(
        status, resource="pods/eviction", name="a", message=f'pods "a" is forbidden: {POLICY}', times=None
    )
    causes = over_use("a", "b")
    evictions = evicting(client, inventory, lambda _: causes, delivery=deliveries.of("evictions"))
    running(evictions.run())
    await until(lambda: deliveries.of("evictions").results["ok"])
    assert [one["metadata"]["name"] for one in server.objects("pods")] == ["a"]
    assert [seen.name for seen in server.requests if seen.resource == "pods/eviction"] == ["a", "b"]
    assert evictions.queue.not_before["default", "a"] < time.monotonic() + 2 * BUDGET_S
    assert deliveries.of("evictions").results == {"refused": 1, "ok": 1}
    assert caplog.text.count("A pod cannot be evicted") == (status == "403"), (
        "a policy of others may refuse them all"
    )


async def test_a_missing_right_stops_the_evictions(server, client, running):
    inventory, deliveries = Inventory(), Deliveries()
    publish(inventory, snapshot([None, DOWN], [None]))
    right = 'pods "b" is forbidden: User "x" cannot create resource "pods/eviction" in API group ""'
    server.fail("403", resource="pods/eviction", message=right)
    evictions = evicting(client, inventory, delivery=deliveries.of("evictions"))
    evictions.queue.observe(known(failed(inventory.snapshot)), -60.0)
    assert await evictions._evict() >= FORBIDDEN_FIRST_S * FORBIDDEN_JITTER[0]
    assert not evictions.queue.not_before
    assert deliveries.remarks()


async def test_one_pod_is_evicted_in_ten_seconds(server, client):
    inventory = Inventory()
    publish(inventory, snapshot([DOWN, DOWN], [None]))
    evictions = evicting(client, inventory, rate=RateLimit(1, EVICTIONS_PER_S))
    evictions.queue.observe(over_use("a", "b"), 0.0)
    for _ in range(2):
        assert 0 < await evictions._evict() <= 10
    assert server.counts["create", "pods/eviction"] == 1


def eight_pods(*health, name="w{}"):
    """A gang of eight pods, each with a VF of the first link; a ninth pod has one of the second."""
    made = snapshot(health)
    vfs = [f"0000:10:00.{n}" for n in range(1, 9)]
    held = [holding(name.format(n), "x/nic", one) for n, one in enumerate(vfs)]
    first = Devices("0000:10:00.0", tuple(vfs), (0,), health[0] or Health())
    second = Devices("0000:11:00.0", ("0000:11:00.1",), (0,), health[1] or Health())
    return structs.replace(made, holdings=(*held, holding("b", "x/nic", "0000:11:00.1"))), [
        ("x/nic", [first, second])
    ]


async def test_the_pods_of_one_failed_device_leave_in_one_turn_and_those_of_another_in_the_next(
    server, client, running
):
    inventory, (made, devices) = Inventory(), eight_pods(DOWN, DOWN)
    for n in range(8):
        server.put(running_pod(f"w{n}"))
    publish(inventory, made)

    def causes(facts):
        return failed_device_causes(facts, devices, lambda _: None, time.monotonic())

    running(evicting(client, inventory, causes, 20.0, RateLimit(1, EVICTIONS_PER_S)).run())
    began = time.monotonic()
    turns = {}
    while len(turns) < 9:
        await asyncio.sleep(0.5)
        for seen in server.requests:
            if seen.resource == "pods/eviction":
                turns.setdefault(seen.name, round(time.monotonic() - began))
    assert turns.pop("b") == 20
    assert set(turns.values()) == {30}, "the gang computes nothing until the last of them has gone"


async def test_the_wait_counts_from_the_begin_of_the_failure_and_the_text_has_the_true_time(
    server, client, running
):
    """The agent was started again 250 s after the device had failed."""
    inventory, board = Inventory(), NoticeBoard()
    publish(inventory, snapshot([None, DOWN], [None]))
    asked, began = [], time.monotonic()

    def failed_s(keys):
        asked.append(tuple(keys))
        return 250.0 + time.monotonic() - began

    def causes(facts):
        return failed_device_causes(facts, offered(facts), failed_s, time.monotonic())

    running(telling(client, inventory, board))
    running(evicting(client, inventory, causes, 300.0, board=board).run())
    await server.until(lambda: server.counts["create", "pods/eviction"], timeout_s=60)
    assert 50 <= time.monotonic() - began < 52
    assert set(asked) == {("0000:11:00.0", "0000:11:00.1")}
    await server.until(lambda: any(one["reason"] == "PodEvicted" for one in server.objects("events")))
    (text,) = (
        one["message"]
        for one in server.objects("events")
        if (one["reason"], one["involvedObject"]["kind"]) == ("PodEvicted", "Pod")
    )
    assert text.endswith("has failed for 300 s")


async def test_the_taint_too_counts_from_the_begin_of_the_failure():
    taint = EvictionTaint()
    assert taint.observe({"GPU-0": -250.0}, {"GPU-0"}, 0.0, 300.0) == 50.0
    taint.observe({"GPU-0": -250.0}, {"GPU-0"}, 50.0, 300.0)
    assert taint.asked == {"GPU-0"}


async def test_the_successor_on_another_node_stays_and_nobody_is_told_of_a_refusal(
    server, client, running, caplog
):
    """Volcano makes a gang again under the same names while the next turn is awaited."""
    caplog.set_level(logging.INFO)
    inventory, board, deliveries = Inventory(), NoticeBoard(), Deliveries()
    publish(inventory, snapshot([None, DOWN], [None]))
    running(telling(client, inventory, board))
    evictions = evicting(client, inventory, after_s=20.0, board=board, delivery=deliveries.of("evictions"))
    running(evictions.run())
    await asyncio.sleep(10)
    assert evictions._pods.uids, "it is read when the cause begins"
    await client.delete(PODS, "b", namespace="default")
    server.put(running_pod("b", "of-the-successor", node="gpu-1"))
    await asyncio.sleep(120)
    assert [pod["metadata"]["uid"] for pod in server.objects("pods")] == [
        "pods-default/a",
        "of-the-successor",
    ]
    assert server.counts["create", "pods/eviction"] == 0
    assert not [one for one in server.objects("events") if "vict" in one["reason"]]
    assert deliveries.of("evictions").results == {}
    assert caplog.text.count("A pod has ended before its eviction. pod=default/b uid=pods-default/b") == 1


@pytest.mark.parametrize("other", [True, False])
async def test_a_conflict_ends_the_cause_for_another_uid_and_is_a_refusal_for_the_same_one(
    server, client, running, other
):
    inventory, deliveries = Inventory(), Deliveries()
    publish(inventory, snapshot([None, DOWN], [None]))
    if not other:
        server.fail("409", resource="pods/eviction", message="the object has been modified")
    evictions = evicting(client, inventory, delivery=deliveries.of("evictions"), budget_s=5.0)
    replaced, evict = [], client.evict

    async def late(name, **of):
        if other and not replaced:
            replaced.append(name)
            await client.delete(PODS, name, namespace="default")
            server.put(running_pod(name, "of-the-successor", node="gpu-1"))
        await evict(name, **of)

    client.evict = late
    running(evictions.run())
    await asyncio.sleep(60)
    assert deliveries.of("evictions").results == ({} if other else {"refused": 1, "ok": 1})
    assert len(server.objects("pods")) == (2 if other else 1)


@pytest.mark.parametrize("gone", [True, False])
async def test_without_the_right_to_read_pods_another_pod_of_the_name_is_no_refusal(
    server, client, running, gone
):
    """An over-use has the UID without the API server."""
    inventory, board, deliveries = Inventory(), NoticeBoard(), Deliveries()
    publish(inventory, snapshot([None], [None]))
    right = 'pods "b" is forbidden: User "x" cannot get resource "pods" in API group "" in the namespace "default"'
    server.fail("403", verb="get", resource="pods", message=right, times=None)
    await client.delete(PODS, "b", namespace="default")
    if not gone:
        server.put(running_pod("b", "of-the-successor", node="gpu-1"))
    causes = over_use("b")
    running(telling(client, inventory, board))
    delivery = deliveries.of("evictions")
    running(evicting(client, inventory, lambda _: causes, pods=None, board=board, delivery=delivery).run())
    await asyncio.sleep(BUDGET_S / 2)
    assert server.counts["create", "pods/eviction"] == 1
    assert deliveries.of("evictions").results == {}
    assert not [one for one in server.objects("events") if "vict" in one["reason"]]
    assert len(server.objects("pods")) == (1 if gone else 2)


async def test_a_device_whose_holder_is_not_known_yet_changes_nothing_for_the_other_one_of_the_pod():
    """Its UID was not found, because the kubelet did not answer."""
    queue = EvictionQueue(300)
    pod, second = ("default", "b"), EvictionCause("GPU-1", "it has failed", None, "u1")
    queue.observe({pod: second}, 0)
    queue.not_before[pod] = 900.0
    first = EvictionCause("GPU-0", "it has failed", None, "", more=(second,))
    queue.observe({pod: first}, 290)
    assert queue.since[pod] == 0
    assert queue.not_before == {pod: 900.0}
    queue.observe({pod: first._replace(more=(second._replace(uid="u2"),))}, 295)
    assert queue.since[pod] == 295, "another pod has the name"
    assert queue.not_before == {}


async def test_a_pod_that_somebody_else_has_asked_to_end_is_not_evicted(server, client, running):
    inventory = Inventory()
    publish(inventory, snapshot([None, DOWN], [None]))
    ending = running_pod("b")
    ending["metadata"] |= {"deletionTimestamp": "2026-11-28T12:00:00Z", "finalizers": ["x.io/wait"]}
    server.put(ending)
    running(evicting(client, inventory).run())
    await asyncio.sleep(1000)
    assert server.counts["create", "pods/eviction"] == 0
    assert server.counts["get", "pods"] < 10


async def test_an_agent_without_the_right_to_read_pods_evicts_none_and_says_why(server, client, running):
    inventory, deliveries = Inventory(), Deliveries()
    publish(inventory, snapshot([None, DOWN], [None]))
    right = 'pods "b" is forbidden: User "x" cannot get resource "pods" in API group "" in the namespace "default"'
    server.fail("403", verb="get", resource="pods", message=right, times=3)
    running(evicting(client, inventory, delivery=deliveries.of("evictions")).run())
    await asyncio.sleep(3)
    assert server.counts["create", "pods/eviction"] == 0
    assert "verb get on pods" in str(deliveries.remarks())
    await server.until(lambda: server.counts["create", "pods/eviction"], timeout_s=300)
    await until(lambda: not deliveries.remarks())


TAINTED = ClusterSettings(label=True, conditions=True, evict=EvictSettings(enabled=True, taint=True))
OTHER = {"key": "dedicated", "effect": "NoSchedule"}


class TaintedNode:
    """The evictions and the marks of one agent, with their taint."""

    def __init__(self, server, client, after_s=0.01, **node):
        server.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "gpu-0"}, **node})
        self.server, self.inventory, board = server, Inventory(), NoticeBoard()
        taint = EvictionTaint()
        rate = RateLimit(100, 100)
        marker = DeviceMarker(
            client, self.inventory, "gpu-0", TAINTED, evict_taint=taint, rate=rate, jitter_s=0
        )
        evictions = evicting(client, self.inventory, failed, after_s, rate, board=board, taint=taint)
        self.parts = marker.run, evictions.run, lambda: telling(client, self.inventory, board)

    @property
    def taints(self):
        return [
            taint["key"] for taint in self.server.find("nodes", "gpu-0").get("spec", {}).get("taints") or ()
        ]

    @property
    def label(self):
        """It is written after the taint."""
        return self.server.find("nodes", "gpu-0")["metadata"].get("labels", {}).get(LINKS_LABEL)

    @property
    def pods(self):
        return [pod["metadata"]["name"] for pod in self.server.objects("pods")]


async def test_the_node_has_its_taint_before_the_eviction_and_until_pods_can_get_the_device(
    server, client, running
):
    node = TaintedNode(server, client, spec={"taints": [OTHER]})
    publish(node.inventory, snapshot([None, DOWN, DOWN], [None]))
    began = time.monotonic()
    for part in node.parts:
        running(part())
    await server.until(lambda: node.pods == ["a"])
    assert time.monotonic() - began < 1, "each tells the other"
    writes = [(seen.verb, seen.resource) for seen in server.requests if seen.status < 400]
    assert writes.index(("patch", "nodes")) < writes.index(("create", "pods/eviction"))
    assert node.taints == ["dedicated", DEVICE_TAINT.key]
    publish(node.inventory, snapshot([None, DOWN, DOWN], [None], holdings=()))
    await server.until(lambda: any(one["reason"] == "PodEvicted" for one in server.objects("events")))
    assert node.taints == ["dedicated", DEVICE_TAINT.key], "no pod holds the device, and none can get it"
    publish(node.inventory, snapshot([None, None, DOWN], [None], holdings=()))
    await server.until(lambda: node.taints == ["dedicated"])


async def test_a_failed_device_that_no_pod_holds_taints_no_node(server, client, running):
    node = TaintedNode(server, client)
    publish(node.inventory, snapshot([DEGRADED, None, DOWN], [None]))
    for part in node.parts:
        running(part())
    await server.until(lambda: node.label == "2", timeout_s=40)
    assert not node.taints
    publish(node.inventory, snapshot([DEGRADED, DOWN, DOWN], [None]))
    await server.until(lambda: node.taints)


async def test_a_pod_that_ends_by_itself_leaves_the_taint_to_come(server, client, running):
    """Kueue makes it again on this Node, and replaces the Node only for a taint."""
    node = TaintedNode(server, client, after_s=300.0)
    publish(node.inventory, snapshot([None, DOWN], [None]))
    began = time.monotonic()
    for part in node.parts:
        running(part())
    await server.until(lambda: any(one["reason"] == "DeviceFailed" for one in server.objects("events")))
    publish(node.inventory, snapshot([None, DOWN], [None], holdings=()))
    await server.until(lambda: node.taints, timeout_s=400)
    assert 300 <= time.monotonic() - began < 310
    assert server.counts["create", "pods/eviction"] == 0


async def test_a_taint_that_the_server_refuses_delays_the_eviction_by_a_minute(server, client, running):
    server.fail("403", verb="patch", resource="nodes", times=None)
    node = TaintedNode(server, client)
    publish(node.inventory, snapshot([None, DOWN], [None]))
    began = time.monotonic()
    for part in node.parts:
        running(part())
    await server.until(lambda: node.pods == ["a"], timeout_s=2 * TAINT_S)
    assert time.monotonic() - began >= TAINT_S
    await server.until(lambda: any(one["reason"] == "PodEvicted" for one in server.objects("events")))
    (told,) = (
        one["message"]
        for one in server.objects("events")
        if (one["involvedObject"]["kind"], one["reason"]) == ("Pod", "PodEvicted")
    )
    assert told.startswith(
        f"The pod was evicted without the taint {DEVICE_TAINT.key} of the Node: VF 0000:11:00.1"
    )


async def test_a_new_agent_keeps_the_taint_until_no_device_has_failed(server, client, running):
    """It does not know for which device the earlier one has set it, and its first facts have no GPU."""
    taints = [{"key": DEVICE_TAINT.key, "effect": DEVICE_TAINT.effect}]
    node = TaintedNode(server, client, spec={"taints": taints})

    node.inventory.publish("pci", functions=snapshot([DEGRADED]).functions)
    node.inventory.mark_stale("gpus", "the driver does not answer")
    for part in node.parts:
        running(part())
    await server.until(lambda: node.label == "1")
    assert node.taints == [DEVICE_TAINT.key]
    publish(node.inventory, snapshot([DEGRADED, DEGRADED], [GPU_LOST], holdings=()))
    await server.until(lambda: node.label == "2")
    assert node.taints == [DEVICE_TAINT.key]
    publish(node.inventory, snapshot([DEGRADED, DEGRADED], [None], holdings=()))
    await server.until(lambda: not node.taints)


async def test_a_taint_that_somebody_removed_is_there_again_before_the_next_eviction(server, client, running):
    node = TaintedNode(server, client)
    publish(node.inventory, snapshot([None, DOWN], [None]))
    for part in node.parts:
        running(part())
    await server.until(lambda: node.pods == ["a"])
    server.put({**server.find("nodes", "gpu-0"), "spec": {"taints": [OTHER]}})
    publish(node.inventory, snapshot([None, DOWN], [GPU_LOST]))
    await server.until(lambda: not node.pods)
    assert node.taints == ["dedicated", DEVICE_TAINT.key]
    publish(node.inventory, snapshot([None, None], [None], holdings=()))
    await server.until(lambda: node.taints == ["dedicated"])


@pytest.mark.parametrize("away_s", [900, 974])
async def test_after_an_api_server_was_away_the_taint_is_first(server, client, running, away_s):
    node = TaintedNode(server, client, after_s=300.0)
    publish(node.inventory, snapshot([None, DOWN], [None]))
    for part in node.parts:
        running(part())
    await server.until(lambda: node.label == "1", timeout_s=60)
    server.fail("503", times=None)
    await asyncio.sleep(away_s)
    assert node.pods == ["a", "b"]
    server.heal()
    await server.until(lambda: node.pods == ["a"], timeout_s=300)
    assert node.taints == [DEVICE_TAINT.key]
    publish(node.inventory, snapshot([None, None], [None], holdings=()))
    await server.until(lambda: not node.taints, timeout_s=300)


@pytest.mark.parametrize("status", ["400", "422"])
async def test_a_webhook_that_refuses_the_taint_stops_no_other_mark(server, client, running, status):
    refusal = 'admission webhook "x" denied the request: no taints'
    server.fail(status, verb="patch", resource="nodes", message=refusal, times=None)
    node = TaintedNode(server, client)
    publish(node.inventory, snapshot([None, DOWN], [None]))
    for part in node.parts:
        running(part())
    await server.until(lambda: node.pods == ["a"], timeout_s=2 * TAINT_S)
    publish(node.inventory, snapshot([None, DOWN], [GPU_LOST]))

    def gpus_are_healthy():
        found = server.find("nodes", "gpu-0").get("status", {}).get("conditions", ())
        return {one["type"]: one["status"] for one in found}.get(GPU_CONDITION)

    await server.until(lambda: gpus_are_healthy() == "False", timeout_s=60)


async def test_a_new_agent_keeps_the_taint_until_the_gpus_are_known(server, client, running):
    taints = [{"key": DEVICE_TAINT.key, "effect": DEVICE_TAINT.effect}]
    node = TaintedNode(server, client, spec={"taints": taints})
    node.inventory.publish("pci", functions=snapshot([DEGRADED]).functions)
    for part in node.parts:
        running(part())
    await server.until(lambda: node.label == "1")
    assert node.taints == [DEVICE_TAINT.key]
    publish(node.inventory, snapshot([DEGRADED], [None], holdings=()))
    await server.until(lambda: not node.taints)
