"""The agent's marks on its Node: conditions, a label and a taint, beside those of other owners."""

from __future__ import annotations

import asyncio

import pytest

from nodeagent.base.backoff import RateLimit
from nodeagent.cluster import device_marks
from nodeagent.cluster.affected_devices import reported_devices
from nodeagent.cluster.agent_events import AgentEvents
from nodeagent.cluster.cluster_settings import ClusterSettings, TaintSettings
from nodeagent.cluster.device_marks import DeviceMarker, StateTimes
from nodeagent.cluster.node_marks import LINKS_LABEL, LINKS_TAINT, NodeMarks
from nodeagent.facts.inventory import Inventory
from nodeagent.facts.model import State
from nodeagent.kube.resource import NODES
from tests.support.cluster_node import (
    DEGRADED,
    DOWN,
    GPU_LOST,
    GPU_UNKNOWN,
    MISCABLED,
    UNKNOWN,
    WARNED,
    held_pods,
    offered,
    publish,
    snapshot,
)

RAILS = {f"0000:1{n}:00.0": n for n in range(4)}
"""The rails of the first PFs of ``snapshot``. Further PFs have none."""


def conditions(times, facts, now, stale=None):
    marks = times.marks(reported_devices(facts), now, stale=stale)
    return [
        (condition.type.partition("/")[2], condition.status, condition.reason, condition.message)
        for condition in marks.conditions
    ]


def test_a_link_counts_as_down_after_30_s_and_the_worst_state_is_the_reason():
    times = StateTimes()
    bad = snapshot([DOWN, DEGRADED, MISCABLED, None], [None])
    assert conditions(times, bad, 0) == [
        (
            "LinkHealthy",
            "False",
            "Degraded",
            "1 of 4 links is degraded: ens1np0 (0000:11:00.0), 200 Gb/s of 400 Gb/s",
        ),
        ("GpuHealthy", "True", "Healthy", "1 GPUs are healthy"),
    ]
    assert times.due_s(0) == 30
    assert conditions(times, bad, 30)[0] == (
        "LinkHealthy", "False", "LinkDown", "1 of 4 links is down: ens0np0 (0000:10:00.0), no carrier",
    )  # fmt: skip
    assert times.marks(reported_devices(bad), 30).degraded == 3
    assert times.marks(reported_devices(bad), 30, rails=RAILS).rails_down == 1
    good = snapshot([None, None, MISCABLED, WARNED], [GPU_LOST])
    assert conditions(times, good, 31) == [
        ("LinkHealthy", "False", "Miscabled",
         "1 of 4 links is miscabled: ens2np0 (0000:12:00.0), is on leaf02, planned leaf01"),
        ("GpuHealthy", "False", "Unhealthy",
         "1 of 1 GPUs is unhealthy: GPU 0 (GPU-0), XID 79: the GPU has fallen off the bus"),
    ]  # fmt: skip
    healthy = snapshot([None, WARNED])
    assert conditions(times, healthy, 32)[0] == (
        "LinkHealthy", "True", "Healthy",
        "2 links are healthy; warnings: ens1np0 (0000:11:00.0), 71 °C of 70 °C",
    )  # fmt: skip


def test_unknown_is_published_after_five_minutes():
    times = StateTimes()
    unknown = snapshot([UNKNOWN, None])
    assert conditions(times, unknown, 0)[0][1:3] == ("True", "Healthy")
    assert conditions(times, unknown, 300)[0][1:3] == ("Unknown", "Unknown")
    assert conditions(times, snapshot([None]), 301, "pci: hangs")[0][1:3] == ("True", "Healthy")
    assert conditions(times, snapshot([None]), 601, "pci: hangs")[0] == (
        "LinkHealthy", "Unknown", "Unknown", "no current data: pci: hangs",
    )  # fmt: skip


def test_a_faulty_device_that_becomes_unknown_keeps_its_fault_for_five_minutes():
    times = StateTimes()
    conditions(times, snapshot([DOWN], [GPU_LOST]), 0)
    assert [condition[1] for condition in conditions(times, snapshot([DOWN], [GPU_LOST]), 30)] == [
        "False",
        "False",
    ]
    unknown = snapshot([UNKNOWN], [GPU_UNKNOWN])
    assert [condition[1:3] for condition in conditions(times, unknown, 31)] == [
        ("False", "LinkDown"), ("False", "Unhealthy"),
    ]  # fmt: skip
    assert times.marks(reported_devices(unknown), 32, rails=RAILS).rails_down == 1
    assert [condition[1] for condition in conditions(times, unknown, 331)] == ["Unknown", "Unknown"]
    assert [condition[1] for condition in conditions(times, snapshot([None], [None]), 332)] == [
        "True",
        "True",
    ]


def test_a_device_that_comes_back_as_unknown_has_no_earlier_state():
    times = StateTimes()
    conditions(times, snapshot([DOWN], [GPU_LOST]), 0)
    conditions(times, snapshot([], []), 30)
    back = snapshot([UNKNOWN], [GPU_UNKNOWN])
    assert [one[1] for one in conditions(times, back, 60)] == ["True", "True"]
    assert [one[1] for one in conditions(times, back, 360)] == ["Unknown", "Unknown"]


def test_a_port_without_a_rail_never_counts_for_the_taint():
    """An empty storage port is down for good where most ports of its role were up."""
    times = StateTimes()
    devices = reported_devices(snapshot([DOWN, None, None, None, DOWN, DOWN]))
    times.marks(devices, 0, rails=RAILS)
    marks = times.marks(devices, 30, rails=RAILS)
    assert (marks.degraded, marks.rails_down) == (3, 1)
    assert times.marks(devices, 31).rails_down == 0, "links are known, and none has a rail"
    assert times.marks((), 32, rails=RAILS).rails_down is None


def test_a_node_without_links_has_no_conditions():
    assert StateTimes().marks((), 0).conditions == ()


def taint_at(rails_down: int) -> ClusterSettings:
    taint = TaintSettings(enabled=True, rails_down=rails_down)
    return ClusterSettings(conditions=True, label=True, taint=taint)


async def test_marks_of_other_owners_stay(server, client, running):
    other = {"key": "dedicated", "effect": "NoSchedule", "value": "gpu"}
    ready = {"type": "Ready", "status": "True"}
    server.put(
        {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": "gpu-0", "labels": {"a": "b"}},
            "spec": {"taints": [other]},
            "status": {"conditions": [ready]},
        }
    )
    inventory = Inventory()
    publish(inventory, snapshot([DEGRADED, None]))
    marker = DeviceMarker(client, inventory, "gpu-0", taint_at(1), rails=lambda: RAILS, jitter_s=0)
    marker._rate = RateLimit(100, 100)
    running(marker.run())

    def node():
        return server.find("nodes", "gpu-0")

    await server.until(lambda: LINKS_LABEL in node()["metadata"]["labels"])
    assert node()["metadata"]["labels"] == {"a": "b", LINKS_LABEL: "1"}
    first, ours = node()["status"]["conditions"]
    assert first == ready
    assert (ours["type"], ours["status"], ours["reason"]) == ("nodeagent.io/LinkHealthy", "False", "Degraded")
    marker._times.since = {("0000:10:00.0", State.DOWN): -1e9}
    publish(inventory, snapshot([DOWN, None]))
    await server.until(lambda: len(node()["spec"]["taints"]) == 2)
    assert node()["spec"]["taints"] == [other, {"key": LINKS_TAINT.key, "effect": "NoSchedule"}]
    publish(inventory, snapshot([None, None]))
    await server.until(lambda: LINKS_LABEL not in node()["metadata"]["labels"])
    assert node()["spec"]["taints"] == [other]
    assert node()["status"]["conditions"][1]["status"] == "True"


async def test_a_restart_keeps_the_transition_time_and_removes_a_taint_that_is_disabled(
    server, client, running, monkeypatch
):
    monkeypatch.setattr(device_marks, "PER_S", 10.0)  # two writes
    long_ago = "2026-01-01T00:00:00Z"
    condition = {"type": "nodeagent.io/LinkHealthy", "status": "False", "lastTransitionTime": long_ago}
    server.put(
        {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": "gpu-0"},
            "spec": {"taints": [{"key": LINKS_TAINT.key, "effect": "NoSchedule"}]},
            "status": {"conditions": [condition]},
        }
    )
    inventory = Inventory()
    publish(inventory, snapshot([DEGRADED]))
    running(
        DeviceMarker(
            client, inventory, "gpu-0", ClusterSettings(conditions=True, label=False), jitter_s=0
        ).run()
    )
    await server.until(lambda: "message" in server.find("nodes", "gpu-0")["status"]["conditions"][0])
    node = server.find("nodes", "gpu-0")
    assert node["status"]["conditions"][0]["lastTransitionTime"] == long_ago
    assert not node["spec"].get("taints")


async def test_a_restart_changes_no_mark_of_links_that_stay_down(server, client, running):
    def condition(status):
        kind = {"type": "nodeagent.io/LinkHealthy", "status": status}
        return kind | {"lastTransitionTime": "2026-01-01T00:00:00Z"}

    server.put(
        {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": "gpu-0", "labels": {LINKS_LABEL: "2"}},
            "spec": {"taints": [{"key": LINKS_TAINT.key, "effect": "NoSchedule"}]},
            "status": {"conditions": [condition("False")]},
        }
    )
    inventory = Inventory()
    publish(inventory, snapshot([DOWN, DOWN]))
    marker = DeviceMarker(client, inventory, "gpu-0", taint_at(2), rails=lambda: RAILS, jitter_s=0)
    marker._rate = RateLimit(100, 100)
    running(marker.run())
    await server.until(lambda: server.counts["patch", "nodes/status"])
    node = server.find("nodes", "gpu-0")
    assert node["spec"]["taints"] == [{"key": LINKS_TAINT.key, "effect": "NoSchedule"}]
    assert node["metadata"]["labels"] == {LINKS_LABEL: "2"}
    assert node["status"]["conditions"][0]["status"] == "False"
    assert node["status"]["conditions"][0]["lastTransitionTime"] == "2026-01-01T00:00:00Z"
    assert server.counts["patch", "nodes"] == 0, "the label and the taint were there"


@pytest.mark.parametrize(
    "earlier",
    [
        {"metadata": {"name": "gpu-0", "labels": {LINKS_LABEL: "2"}}},
        {
            "metadata": {"name": "gpu-0"},
            "spec": {"taints": [{"key": LINKS_TAINT.key, "effect": "NoSchedule"}]},
        },
    ],
    ids=["label", "taint"],
)
async def test_links_that_are_down_count_at_once_if_an_earlier_agent_has_one_mark_of_them(
    server, client, running, earlier
):
    server.put({"apiVersion": "v1", "kind": "Node", **earlier})
    inventory = Inventory()
    publish(inventory, snapshot([DOWN, DOWN]))
    running(DeviceMarker(client, inventory, "gpu-0", taint_at(2), rails=lambda: RAILS, jitter_s=0).run())
    await server.until(lambda: server.counts["patch", "nodes/status"])
    (condition,) = server.find("nodes", "gpu-0")["status"]["conditions"]
    assert (condition["type"], condition["status"]) == ("nodeagent.io/LinkHealthy", "False")


async def test_a_restart_with_the_marks_of_before_writes_nothing(server, client, running):
    inventory = Inventory()
    publish(inventory, snapshot([DEGRADED]))
    settings = ClusterSettings(conditions=True, label=True)
    first = asyncio.ensure_future(DeviceMarker(client, inventory, "gpu-0", settings, jitter_s=0).run())
    await server.until(lambda: server.counts["patch", "nodes/status"])
    first.cancel()
    await client.patch(NODES, "gpu-0", {"metadata": {"labels": {LINKS_LABEL: "1"}}})
    marker = DeviceMarker(client, inventory, "gpu-0", settings, jitter_s=0)
    marker._rate = RateLimit(100, 100)
    running(marker.run())
    await server.until(lambda: server.counts["get", "nodes"] == 2)
    publish(inventory, snapshot([None]))
    await server.until(lambda: LINKS_LABEL not in server.find("nodes", "gpu-0")["metadata"].get("labels", {}))
    assert server.counts["patch", "nodes/status"] == 2, "the start wrote no condition; the change did"
    assert server.counts["patch", "nodes"] == 2, "the one above, and the change; the start wrote no label"


async def test_an_empty_storage_port_and_one_rail_down_do_not_taint_a_node(server, client, running):
    storage = 5
    server.put(
        {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": "gpu-0"},
            "status": {"conditions": [{"type": "nodeagent.io/LinkHealthy", "status": "False",
                                       "lastTransitionTime": "2026-01-01T00:00:00Z"}]},
        }
    )  # fmt: skip
    inventory = Inventory()
    links = [DOWN, None, None, None, None]
    publish(inventory, snapshot([*links, DOWN]))
    assert f"0000:1{storage}:00.0" not in RAILS
    marker = DeviceMarker(client, inventory, "gpu-0", taint_at(2), rails=lambda: RAILS, jitter_s=0)
    marker._rate = RateLimit(100, 100)
    running(marker.run())

    def node():
        return server.find("nodes", "gpu-0")

    await server.until(lambda: node()["metadata"].get("labels", {}).get(LINKS_LABEL) == "2")
    assert not node().get("spec", {}).get("taints"), "one rail of the two is down"
    marker._times.since["0000:11:00.0", State.DOWN] = -1e9
    publish(inventory, snapshot([DOWN, DOWN, None, None, None, None]))
    await server.until(lambda: node().get("spec", {}).get("taints"))


async def test_a_missing_right_for_the_taint_does_not_block_the_conditions(server, client, running, caplog):
    server.fail("403", verb="get", resource="nodes", times=None)
    server.fail("403", verb="patch", resource="nodes", times=None)
    inventory = Inventory()
    publish(inventory, snapshot([DEGRADED]))
    running(DeviceMarker(client, inventory, "gpu-0", taint_at(1), jitter_s=0).run())
    await server.until(lambda: server.counts["patch", "nodes/status"])
    conditions = server.find("nodes", "gpu-0")["status"]["conditions"]
    assert [condition["reason"] for condition in conditions] == ["Degraded"]
    assert "The taint of the Node cannot be written" in caplog.text


async def test_nothing_is_written_before_links_are_known_and_at_most_one_write_in_ten_seconds(
    server, client, running
):
    inventory = Inventory()
    marker = DeviceMarker(
        client, inventory, "gpu-0", ClusterSettings(conditions=True, label=True), jitter_s=0
    )
    running(marker.run())
    publish(inventory, snapshot([DEGRADED]))
    await server.until(lambda: server.counts["patch", "nodes/status"])
    publish(inventory, snapshot([None]))
    running(AgentEvents(client, inventory, "gpu-0", offered, pods=held_pods(client, inventory)).run())
    publish(inventory, snapshot([DOWN]))
    await server.until(lambda: server.objects("events"))
    assert server.counts["patch", "nodes"] + server.counts["patch", "nodes/status"] == 1


async def test_the_first_write_waits_so_that_not_all_nodes_write_after_an_update(server, client, running):
    """A second marker without the wait, started later, shows that the first would have written by now."""
    server.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "gpu-1"}})
    inventory = Inventory()
    publish(inventory, snapshot([DEGRADED]))
    settings = ClusterSettings(conditions=True, label=True)
    running(DeviceMarker(client, inventory, "gpu-0", settings, jitter_s=3600).run())
    running(DeviceMarker(client, inventory, "gpu-1", settings, jitter_s=0).run())
    await server.until(lambda: server.counts["patch", "nodes/status"])
    written = {seen.name for seen in server.requests if seen.resource.startswith("nodes")}
    assert written == {"gpu-1"}


async def test_taints_that_are_as_wanted_are_not_written(server, client):
    marks = NodeMarks(client)
    for _ in range(2):
        await marks.set_taint("gpu-0", LINKS_TAINT, on=True)
    assert not await marks.remove_taint("gpu-0", "nodeagent.io/starting")
    assert server.counts["patch", "nodes"] == 1
    assert await marks.remove_taint("gpu-0", LINKS_TAINT.key)
    assert not server.find("nodes", "gpu-0")["spec"].get("taints")
