"""Evictions of pods with a failed device: after a wait, slowly, and within disruption budgets."""

from __future__ import annotations

from nodeagent.backoff import RateLimit
from nodeagent.cluster.affected_devices import affected_pods
from nodeagent.cluster.evictions import EvictionQueue, Evictions
from nodeagent.inventory import Inventory
from tests.support.cluster_node import DOWN, offered, publish, snapshot


def test_a_pod_is_due_after_its_device_has_failed_without_interruption():
    queue = EvictionQueue(300)
    made = snapshot([None, DOWN])
    queue.observe(affected_pods(made, offered(made)), 0)
    assert queue.due(0) == ([], 300)
    queue.observe(affected_pods(made, offered(made)), 299)
    assert queue.due(300) == ([("default", "b")], 3600)
    queue.observe((), 301)
    queue.observe(affected_pods(made, offered(made)), 302)
    assert queue.due(302) == ([], 300), "a device that came back starts the wait again"


async def test_a_pod_with_a_failed_device_is_evicted_within_its_budget(server, client, running):
    inventory = Inventory()
    server.fail("429", resource="pods/eviction", message="disruption budget", retry_after_s=0)
    publish(inventory, snapshot([None, DOWN], [None]))
    evictions = Evictions(client, inventory, offered, 0.01)
    evictions._rate = RateLimit(100, 100)
    running(evictions.run())
    await server.until(lambda: server.counts["create", "pods/eviction"] == 1)
    assert len(server.objects("pods")) == 2
    await server.until(lambda: len(server.objects("pods")) == 1)
    assert server.objects("pods")[0]["metadata"]["name"] == "a"


async def test_a_pod_that_a_policy_refuses_does_not_stop_the_eviction_of_another(server, client, running):
    """The admission policy of the evictions refuses a protected namespace with 422."""
    inventory = Inventory()
    publish(inventory, snapshot([DOWN, DOWN], [None]))
    assert [one["metadata"]["name"] for one in server.objects("pods")] == ["a", "b"]
    server.fail("422", resource="pods/eviction", name="a", message="an agent may not evict pods", times=None)
    evictions = Evictions(client, inventory, offered, 0.01)
    evictions._rate = RateLimit(100, 100)
    running(evictions.run())
    await server.until(lambda: [one["metadata"]["name"] for one in server.objects("pods")] == ["a"])
