"""Evictions of pods with a failed device: after a wait, slowly, and within disruption budgets."""

from __future__ import annotations

import asyncio
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
from nodeagent.facts.inventory import Inventory
from nodeagent.facts.model import Health, Reason, State
from nodeagent.sharing.over_use import OverUse
from tests.support.cluster_node import DEGRADED, DOWN, GPU_LOST, holding, offered, publish, snapshot
from tests.support.waiting import until

pytestmark = pytest.mark.usefixtures("virtual_time")


def failed(facts):
    return failed_device_causes(facts, offered(facts), 0.01)


def test_a_pod_is_due_after_its_device_has_failed_without_interruption():
    queue = EvictionQueue(300)
    made = snapshot([None, DOWN])
    queue.observe(failed(made), 0)
    assert queue.due(0) == ([], 300)
    queue.observe(failed(made), 299)
    assert queue.due(300) == ([("default", "b")], 3600)
    queue.observe({}, 301)
    queue.observe(failed(made), 302)
    assert queue.due(302) == ([], 300), "a device that came back starts the wait again"


def test_a_second_failed_device_of_a_pod_has_a_wait_of_its_own():
    queue = EvictionQueue(300)
    held = (holding("b", "x/nic", "0000:10:00.1", "0000:11:00.1"),)
    queue.observe(failed(snapshot([DOWN, None], holdings=held)), 0)
    queue.observe(failed(snapshot([DOWN, DOWN], holdings=held)), 290)
    assert queue.due(300)[0] == [("default", "b")]
    assert queue.causes["default", "b"].about == "0000:10:00.0", "the one that has failed for this time"
    queue.observe(failed(snapshot([None, DOWN], holdings=held)), 299)
    assert queue.due(300) == ([], 290)


def test_a_pod_on_a_gpu_whose_driver_was_upgraded_continues_to_run():
    queue = EvictionQueue(0)
    upgraded = Reason("driver_version_mismatch", "x")
    for reasons, pods in (((upgraded,), []), ((upgraded, Reason("xid_79", "y")), [("default", "a")])):
        made = snapshot([], [Health(State.UNHEALTHY, reasons, allocatable=False)])
        queue.observe(failed(made), 0)
        assert queue.due(0)[0] == pods


def test_an_over_use_is_due_after_its_own_time_on_a_gpu_with_evictions_and_only_with_a_share():
    over = OverUse("team", "llm", "GPU-0", 40 << 30, 45 << 30, since=100.0, uid="u1")
    outside = structs.replace(over, namespace="", pod="")
    without_share = structs.replace(over, pod="probe", granted_bytes=0)
    elsewhere = structs.replace(over, pod="other", uuid="GPU-1")
    causes = over_use_causes((over, outside, without_share, elsewhere), {"GPU-0"}, 300)
    assert causes.keys() == {("team", "llm")}
    why = "it has used 45.0 GiB of GPU-0 for 300 s, and its share is 40.0 GiB"
    assert causes["team", "llm"].why == why
    queue = EvictionQueue(300)
    queue.observe(causes, 160.0)  # reported after its grace
    assert queue.due(160.0) == ([], 240.0)
    assert queue.due(400.0)[0] == [("team", "llm")]
    recreated = over_use_causes([structs.replace(over, uid="u2", since=399.0)], {"GPU-0"}, 300)
    queue.observe(recreated, 401.0)
    assert queue.due(402.0) == ([], 297.0), "a pod of the same name has a time of its own"
    assert not over_use_causes([structs.replace(over, uid="")], {"GPU-0"}, 300), "it may be either of two"
    queue.observe({}, 402.0)
    assert queue.due(403.0)[0] == []


async def test_a_pod_that_was_made_again_under_the_same_name_is_not_evicted(server, client, running):
    inventory = Inventory()
    publish(inventory, snapshot([None, DOWN], [None]))
    cause = EvictionCause("GPU-0", "it has used too much", uid="of-the-pod-before")
    evictions = Evictions(
        client, inventory, lambda _: {("default", "b"): cause}, 0, node="gpu-0", rate=RateLimit(100, 100)
    )
    running(evictions.run())
    await server.until(lambda: server.counts["create", "pods/eviction"] == 1)
    assert len(server.objects("pods")) == 2


async def test_a_pod_with_a_failed_device_is_evicted_within_its_budget(server, client, running):
    inventory = Inventory()
    server.fail("429", resource="pods/eviction", message="disruption budget", retry_after_s=0)
    publish(inventory, snapshot([None, DOWN], [None]))
    evictions = Evictions(client, inventory, failed, 0.01, node="gpu-0", budget_s=0.01)
    evictions._rate = RateLimit(100, 100)
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
    evictions = Evictions(client, inventory, failed, 0.01, node="gpu-0", board=board, budget_s=0.01)
    evictions._rate = RateLimit(100, 100)
    running(AgentEvents(client, inventory, "gpu-0", offered, board=board).run())

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
    evictions = Evictions(client, inventory, failed, 0.01, node="gpu-0", budget_s=0.1)
    evictions._rate = RateLimit(1000, 1000)
    for _ in range(8):
        evictions.queue.since = {("default", "b"): -60.0}
        evictions.queue.causes = failed(inventory.snapshot)
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
    causes = {("default", name): EvictionCause("GPU-0", "it has used too much", since) for name, since in
              (("a", 0.0), ("b", 1.0))}  # fmt: skip
    evictions = Evictions(client, inventory, lambda _: causes, 0.01, node="gpu-0", board=board)
    evictions._rate = RateLimit(100, 100)
    running(AgentEvents(client, inventory, "gpu-0", offered, board=board).run())
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
    causes = {("default", name): EvictionCause("GPU-0", "it has used too much", since) for name, since in
              (("a", 0.0), ("b", 1.0))}  # fmt: skip
    evictions = Evictions(
        client, inventory, lambda _: causes, 0.01, node="gpu-0", delivery=deliveries.of("evictions")
    )
    evictions._rate = RateLimit(100, 100)
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
    evictions = Evictions(client, inventory, failed, 0.01, node="gpu-0", delivery=deliveries.of("evictions"))
    evictions._rate = RateLimit(100, 100)
    evictions.queue.observe(failed(inventory.snapshot), -60.0)
    assert await evictions._evict() >= FORBIDDEN_FIRST_S * FORBIDDEN_JITTER[0]
    assert not evictions.queue.not_before
    assert deliveries.remarks()


async def test_one_pod_is_evicted_in_ten_seconds(server, client):
    inventory = Inventory()
    publish(inventory, snapshot([DOWN, DOWN], [None]))
    evictions = Evictions(client, inventory, failed, 0.01, node="gpu-0")
    causes = {("default", name): EvictionCause("GPU-0", "it has used too much", -60.0) for name in "ab"}
    evictions.queue.observe(causes, 0.0)
    for _ in range(2):
        assert 0 < await evictions._evict() <= 10
    assert server.counts["create", "pods/eviction"] == 1


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
        evictions = Evictions(
            client, self.inventory, failed, after_s, node="gpu-0", board=board, rate=rate, taint=taint
        )
        events = AgentEvents(client, self.inventory, "gpu-0", offered, board=board)
        self.parts = marker.run, evictions.run, events.run

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
