"""The agent's Events: one for each fault, counted up on return, at a bounded rate, through outages and restarts."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from nodeagent.base.backoff import Backoff, RateLimit
from nodeagent.cluster import event_writer
from nodeagent.cluster.agent_events import (
    AgentEvents,
    device_notices,
    lasting,
    limit_notices,
    unknown_devices,
)
from nodeagent.cluster.deliveries import Deliveries
from nodeagent.cluster.event_writer import (
    BURST,
    HOURLY_S,
    PER_S,
    EventTarget,
    Notice,
    NoticeBoard,
    NoticeLedger,
)
from nodeagent.facts.inventory import Inventory
from nodeagent.facts.model import ContainerLimit, Health, Holding, Reason, StaleSource, State
from nodeagent.host.sysfs import Tree
from nodeagent.kube.resource import PODS
from nodeagent.sharing.cgroup_limits import CgroupLimits
from tests.support.cluster_node import (
    DEGRADED,
    DOWN,
    GPU_LOST,
    GPU_UNKNOWN,
    HELD,
    MISCABLED,
    UNKNOWN,
    WARNED,
    held_pods,
    offered,
    publish,
    running_pod,
    snapshot,
)
from tests.support.waiting import until

pytestmark = pytest.mark.usefixtures("virtual_time")


def test_each_fault_becomes_a_notice_with_a_reason_and_a_message():
    made = snapshot([DEGRADED, DOWN, WARNED, UNKNOWN, MISCABLED], [GPU_LOST])
    standing = device_notices(made, "n", offered(made))
    assert [(n.target.kind, n.target.name, n.reason, n.warning, n.message) for n in standing] == [
        ("Node", "n", "LinkSpeedReduced", True, "ens0np0 (0000:10:00.0): 200 Gb/s of 400 Gb/s"),
        ("Node", "n", "LinkCarrierDown", True, "ens1np0 (0000:11:00.0): no carrier"),
        ("Node", "n", "LinkOpticsTemperature", False, "ens2np0 (0000:12:00.0): 71 °C of 70 °C"),
        ("Node", "n", "LinkMiscabled", True, "ens4np0 (0000:14:00.0): is on leaf02, planned leaf01"),
        ("Node", "n", "GpuXid", True, "GPU 0 (GPU-0): XID 79: the GPU has fallen off the bus"),
        (
            "Pod", "a", "DeviceFailed", True,
            "GPU 0 (GPU-0), held as x/mem (GPU-0::0 and 1 more), has failed: XID 79: the GPU has fallen off the bus",
        ),
        (
            "Pod", "b", "DeviceFailed", True,
            "VF 0000:11:00.1 of ens1np0 (0000:11:00.0), held as x/nic (0000:11:00.1), has failed: no carrier",
        ),
    ]  # fmt: skip


@pytest.mark.parametrize("state", ["in force", "waiting", "unknown", "not in force"])
def test_a_container_without_its_promised_limit_becomes_a_notice_on_its_pod_and_the_node(state):
    limit = ContainerLimit(
        "team", "llm-0", "main", "GPU-0", 40 << 30, state, 1.75e9, "the driver shows no limit"
    )
    inventory = Inventory()
    inventory.publish("limits", gpu_limits=(limit,))
    limits = CgroupLimits(Tree("/"), "/var/log/pods", inventory, lambda: None)
    standing = [(n.target.kind, n.reason, n.message) for n in limit_notices(limits, (), "n")]
    fact = "has 40960 MiB of GPU ? (GPU-0), and no limit keeps it within them: the driver shows no limit"
    assert standing == ([] if state != "not in force" else [
        ("Node", "GpuMemoryNotLimited", f"Container main of pod team/llm-0 {fact}"),
        ("Pod", "GpuMemoryNotLimited", f"Container main {fact}"),
    ])  # fmt: skip


# --- the ledger ---

NODE = EventTarget("Node", "", "n")
FAULT = Notice(NODE, "d", "LinkCarrierDown", "d: no carrier")
WARNING = Notice(NODE, "d", "LinkOptics", "d: warm", warning=False, hourly=True)


def write_due(ledger, now):
    due = ledger.due(now)
    for record in due:
        record.written, record.written_at = record.count, now
    return [(record.notice.reason, record.count) for record in due]


def test_a_fault_its_end_and_its_return_are_each_written_once():
    ledger = NoticeLedger()
    ledger.observe([FAULT], 0, 0)
    assert write_due(ledger, 0) == [("LinkCarrierDown", 1)]
    ledger.observe([FAULT], 1, 1)
    assert write_due(ledger, 1) == []
    ledger.observe([], 2, 2)
    assert write_due(ledger, 2) == [("Recovered", 1)]
    ledger.observe([FAULT], 3, 3)
    assert write_due(ledger, 3) == [("LinkCarrierDown", 2)]
    ledger.observe([], 4, 4)
    assert write_due(ledger, 4) == [("Recovered", 2)]
    ledger.observe([], 5 + HOURLY_S, 5)
    ledger.observe([], 6 + HOURLY_S, 6)
    assert ledger.records == {}


def test_a_recovery_names_the_whole_device():
    made = snapshot([DEGRADED, DOWN], [GPU_LOST])
    ledger = NoticeLedger()
    ledger.observe(device_notices(made, "n", offered(made)), 0, 0)
    write_due(ledger, 0)
    ledger.observe([], 1, 1)
    assert sorted({record.notice.message for record in ledger.due(1)}) == [
        "GPU 0 (GPU-0): its faults have ended",
        "VF 0000:11:00.1 of ens1np0 (0000:11:00.0): its faults have ended",
        "ens0np0 (0000:10:00.0): its faults have ended",
        "ens1np0 (0000:11:00.0): its faults have ended",
    ]


def test_a_fault_that_came_and_went_during_an_outage_is_written():
    ledger = NoticeLedger()
    for now in range(10):
        ledger.observe([FAULT] if now % 2 else [], now, now)
    assert write_due(ledger, 10) == [("LinkCarrierDown", 5)]
    ledger.observe([], 11, 11)
    assert write_due(ledger, 11) == [("Recovered", 1)]


def test_a_gpu_whose_driver_stops_answering_has_not_recovered():
    ledger = NoticeLedger()

    def observe(made, now):
        ledger.observe(device_notices(made, "n", offered(made)), now, now, unknown_devices(made))

    observe(snapshot([None, None], [GPU_LOST]), 0)
    assert write_due(ledger, 0) == [("GpuXid", 1), ("DeviceFailed", 1)]
    observe(snapshot([None, None], [GPU_UNKNOWN]), 1)
    assert write_due(ledger, 1) == []
    observe(snapshot([None, None], [GPU_LOST]), 2)
    assert write_due(ledger, 2) == [], "a fault that lasted all the time did not return"
    observe(snapshot([None, None], [GPU_UNKNOWN]), 3)
    observe(snapshot([None, None], [None]), 4)
    assert write_due(ledger, 4) == [("Recovered", 1), ("Recovered", 1)]


def test_a_missing_device_has_not_recovered_when_a_source_fails():
    ledger = NoticeLedger()
    gone = snapshot([None])
    quiet = structs.replace(gone, stale_sources=(StaleSource("pci", "hangs"),))
    for made in (gone, quiet):
        ledger.observe(device_notices(made, "n", offered(made)), 0, 0, unknown_devices(made))
        assert write_due(ledger, 0) == ([("DeviceFailed", 1)] if made is gone else [])


def test_ten_flaps_a_second_for_an_hour_are_a_handful_of_events():
    ledger, rate, written = NoticeLedger(), RateLimit(BURST, PER_S), 0
    flapping = [
        notice
        for number in range(8)
        for notice in (replace(FAULT, about=str(number)), replace(WARNING, about=str(number)))
    ]
    for tick in range(36_000):
        now = tick / 10
        ledger.observe(flapping if tick % 2 else [], now, now)
        for record in ledger.due(now):
            if rate.wait_s(now):
                break
            rate.take(now)
            record.written, record.written_at, written = record.count, now, written + 1
    assert written <= BURST + 3600 * PER_S + 1
    assert len(ledger.records) == 24


def test_a_warning_is_written_at_most_once_an_hour():
    ledger = NoticeLedger()
    for now in range(100):
        ledger.observe([WARNING] if now % 2 else [], now, now)
        assert len(write_due(ledger, now)) == (now == 1)
    assert write_due(ledger, HOURLY_S) == []
    assert write_due(ledger, HOURLY_S + 2) == [("LinkOptics", 50)]


@given(st.lists(st.lists(st.integers(0, 3000), max_size=900), max_size=6))
def test_the_ledger_is_bounded(rounds):
    ledger = NoticeLedger()
    for now, devices in enumerate(rounds):
        ledger.observe([Notice(NODE, str(one), "x", "m") for one in devices], now, now)
        assert len(ledger.records) <= 512


# --- Events ---


async def test_events_are_read_back_by_the_official_client(server, client, running):
    pytest.importorskip("kubernetes")
    from kubernetes import client as official

    inventory = Inventory()
    publish(inventory, snapshot([DOWN, DOWN], [GPU_LOST]))
    running(AgentEvents(client, inventory, "gpu-0", offered, pods=held_pods(client, inventory)).run())
    await server.until(lambda: len(server.objects("events")) == 5)
    configuration = official.Configuration()
    configuration.host = server.url
    configuration.api_key = {name: f"Bearer {server.token()}" for name in ("authorization", "BearerToken")}
    with official.ApiClient(configuration) as api:
        found = await asyncio.to_thread(official.CoreV1Api(api).list_namespaced_event, "default")
    by_object = {}
    for one in found.items:
        by_object.setdefault(
            (one.involved_object.kind, one.involved_object.name, one.involved_object.uid), []
        ).append(one)
        assert one.source.host == one.reporting_instance == "gpu-0"
        assert (one.type, one.count) == ("Warning", 1)
    assert sorted(by_object) == [
        ("Node", "gpu-0", "gpu-0"), ("Pod", "a", "pods-default/a"), ("Pod", "b", "pods-default/b"),
    ]  # fmt: skip
    assert len(by_object["Node", "gpu-0", "gpu-0"]) == 3


async def test_a_return_increases_the_count_and_a_restart_writes_nothing_twice(server, client, running):
    inventory = Inventory()
    publish(inventory, snapshot([DOWN], holdings=()))
    running(AgentEvents(client, inventory, "gpu-0", offered, pods=held_pods(client, inventory)).run())
    await server.until(lambda: server.objects("events"))
    publish(inventory, snapshot([None], holdings=()))
    await server.until(lambda: len(server.objects("events")) == 2)
    publish(inventory, snapshot([DOWN], holdings=()))

    def counts():
        return {one["reason"]: one["count"] for one in server.objects("events")}

    await server.until(lambda: counts()["LinkCarrierDown"] == 2)
    asked = server.counts["create", "events"]
    running(AgentEvents(client, inventory, "gpu-0", offered, pods=held_pods(client, inventory)).run())
    await server.until(lambda: server.counts["create", "events"] == asked + 1)
    assert any(request.status == 409 for request in server.requests)
    assert counts() == {"LinkCarrierDown": 2, "Recovered": 1}


async def test_the_count_continues_after_a_restart(server, client, running):
    earlier = AgentEvents(client, Inventory(), "gpu-0", offered, pods=held_pods(client, Inventory()))
    earlier.writer.ledger.observe(device_notices(snapshot([DOWN], holdings=()), "gpu-0", ()), 0, 1_000_000)
    (record,) = earlier.writer.ledger.due(0)
    record.count = 7
    await earlier.writer._write(record)
    inventory = Inventory()
    publish(inventory, snapshot([None], holdings=()))
    running(AgentEvents(client, inventory, "gpu-0", offered, pods=held_pods(client, inventory)).run())
    await asyncio.sleep(0)  # it has observed the first snapshot
    publish(inventory, snapshot([DOWN], holdings=()))
    await server.until(lambda: server.objects("events")[0]["count"] == 8)
    assert server.objects("events")[0]["lastTimestamp"] > "2000"
    publish(inventory, snapshot([None], holdings=()))
    await server.until(lambda: len(server.objects("events")) == 2)
    publish(inventory, snapshot([DOWN], holdings=()))
    await server.until(lambda: max(one["count"] for one in server.objects("events")) == 9)


async def test_events_of_an_outage_are_written_after_it(server, client, running, caplog):
    server.fail("500", times=3, resource="events")
    inventory = Inventory()
    publish(inventory, snapshot([DOWN], holdings=()))
    events = AgentEvents(client, inventory, "gpu-0", offered, pods=held_pods(client, inventory))
    events.writer._retry._backoff = Backoff(0.01, 120.0)
    running(events.run())
    await server.until(lambda: server.objects("events"))
    assert [record.message for record in caplog.records if "do not reach" in record.message][1:] == []


@pytest.mark.parametrize("how", ["hang", "500"])
async def test_a_fault_that_came_and_went_during_one_call_of_an_outage_is_written_with_its_end(
    server, client, running, how
):
    """The call of the first Event does not return while an XID comes and goes; the pod's UID is not known either."""
    server.fail(how, times=None, resource="events")
    server.fail(how, times=None, resource="pods")
    inventory = Inventory()
    publish(inventory, snapshot([DOWN], [None], holdings=()))
    running(AgentEvents(client, inventory, "gpu-0", offered, pods=held_pods(client, inventory)).run())
    await asyncio.sleep(1)
    publish(inventory, snapshot([DOWN], [None], holdings=HELD[:1]))
    await asyncio.sleep(1)
    began = time.time()
    publish(inventory, snapshot([DOWN], [GPU_LOST], holdings=HELD[:1]))
    await asyncio.sleep(1)
    publish(inventory, snapshot([DOWN], [None], holdings=HELD[:1]))
    await asyncio.sleep(400)
    assert not server.objects("events")
    server.heal()
    wanted = {
        ("Node", "LinkCarrierDown"), ("Node", "GpuXid"), ("Node", "Recovered"),
        ("Pod", "DeviceFailed"), ("Pod", "Recovered"),
    }  # fmt: skip

    def told():
        return {(one["involvedObject"]["kind"], one["reason"]) for one in server.objects("events")}

    await server.until(lambda: told() == wanted, 1200)
    for one in server.objects("events"):
        assert one["count"] == 1
        if one["reason"] in ("GpuXid", "DeviceFailed"):
            assert abs(datetime.fromisoformat(one["firstTimestamp"]).timestamp() - began) <= 2


async def test_a_long_outage_keeps_the_newest_events_alone(monkeypatch):
    monkeypatch.setattr(event_writer, "RECORDS_MAX", 5)
    board = NoticeBoard()
    for number in range(50):
        board.post("a", replace(FAULT, about=str(number)))
    assert [one.about for one in board.take()] == ["45", "46", "47", "48", "49"]
    assert [one.about for one in board.take()] == ["49"]


async def test_a_deleted_namespace_does_not_block_other_events(server, client, running):
    inventory = Inventory()
    held = (Holding("gone", "p", "main", "x/nic", ("0000:10:00.1",)),)
    server.put(running_pod("p", namespace="gone"))
    publish(inventory, snapshot([DOWN], holdings=held))
    events = AgentEvents(client, inventory, "gpu-0", offered, pods=held_pods(client, inventory))
    running(events.run())
    await server.until(lambda: server.counts["create", "events"] == 2)
    assert [one["involvedObject"]["kind"] for one in server.objects("events")] == ["Node"]


def test_a_rejected_event_whose_time_has_come_is_due_at_once():
    """Another call that takes longer than the wait must not leave it unwritten."""
    ledger = event_writer.NoticeLedger()
    notice = event_writer.Notice(
        event_writer.EventTarget("Node", "", "gpu-0"), "nic0", "LinkDown", "it is down"
    )
    ledger.observe([notice], 0.0, 0.0)
    (record,) = ledger.due(0.0)
    assert ledger.next_s(0.0) is None
    wait_s = record.rejected(0.0, passing=True)
    assert wait_s is not None
    assert ledger.next_s(0.0) == wait_s
    assert ledger.due(0.0) == []
    assert ledger.next_s(wait_s + 5) == 0.0
    assert ledger.due(wait_s + 5) == [record]
    record.wrote(1, wait_s + 6)
    assert ledger.next_s(wait_s + 6) is None


@pytest.mark.parametrize("status", ["404", "409", "410"])
async def test_an_event_that_is_refused_once_is_written_later_as_a_new_one(
    server, client, running, monkeypatch, status
):
    monkeypatch.setattr(event_writer, "AGAIN_FIRST_S", 0.05)
    server.fail(status, verb="create", resource="events")
    inventory = Inventory()
    publish(inventory, snapshot([DOWN], holdings=()))
    running(AgentEvents(client, inventory, "gpu-0", offered, pods=held_pods(client, inventory)).run())
    await server.until(lambda: server.objects("events"))
    assert server.objects("events")[0]["count"] == 1


async def test_an_event_that_expired_between_two_calls_is_written_as_a_new_one(
    server, client, running, monkeypatch
):
    monkeypatch.setattr(event_writer, "AGAIN_FIRST_S", 0.05)
    inventory = Inventory()
    publish(inventory, snapshot([DOWN], holdings=()))
    running(AgentEvents(client, inventory, "gpu-0", offered, pods=held_pods(client, inventory)).run())
    await server.until(lambda: server.objects("events"))
    # The next agent finds the Event, and its patch of it is refused.
    server.fail("404", verb="patch", resource="events")
    running(AgentEvents(client, inventory, "gpu-0", offered, pods=held_pods(client, inventory)).run())
    await server.until(lambda: server.counts["patch", "events"] == 2)
    assert len(server.objects("events")) == 1


async def test_an_event_waits_for_its_namespace_and_delays_no_other(server, client, running, monkeypatch):
    monkeypatch.setattr(event_writer, "AGAIN_FIRST_S", 0.05)
    inventory = Inventory()
    held = (Holding("late", "p", "main", "x/nic", ("0000:10:00.1",)),)
    server.put(running_pod("p", namespace="late"))
    publish(inventory, snapshot([DOWN], holdings=held))
    running(AgentEvents(client, inventory, "gpu-0", offered, pods=held_pods(client, inventory)).run())
    await server.until(lambda: server.counts["create", "events"] >= 3)
    assert [one["involvedObject"]["kind"] for one in server.objects("events")] == ["Node"]
    server.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "late"}})
    await server.until(lambda: len(server.objects("events")) == 2)


async def test_a_namespace_that_ends_is_no_missing_right(server, client, running, monkeypatch):
    monkeypatch.setattr(event_writer, "AGAIN_FIRST_S", 0.05)
    message = "unable to create new content in namespace default because it is being terminated"
    server.fail("403", verb="create", resource="events", message=message)
    inventory = Inventory()
    publish(inventory, snapshot([DOWN], holdings=()))
    running(AgentEvents(client, inventory, "gpu-0", offered, pods=held_pods(client, inventory)).run())
    await server.until(lambda: server.objects("events"))


async def test_an_event_that_a_quota_or_a_policy_refuses_delays_no_other(
    server, client, running, monkeypatch
):
    monkeypatch.setattr(event_writer, "AGAIN_FIRST_S", 0.05)
    message = 'events "b.1" is forbidden: exceeded quota: events, requested: count/events=1'
    server.fail("403", verb="create", resource="events", message=message)
    inventory, deliveries = Inventory(), Deliveries()
    publish(inventory, snapshot([DOWN, DOWN], holdings=()))
    delivery = deliveries.of("events")
    running(
        AgentEvents(
            client, inventory, "gpu-0", offered, pods=held_pods(client, inventory), delivery=delivery
        ).run()
    )
    await until(lambda: delivery.results["ok"] >= 2)
    assert server.counts["create", "events"] == 3
    assert delivery.results == {"refused": 1, "ok": 2}


def told_of(server, name="b"):
    """The UIDs and reasons of the Events on the pods of this name."""
    about = [(one["involvedObject"], one["reason"]) for one in server.objects("events")]
    return sorted(
        (one.get("uid"), reason) for one, reason in about if (one["kind"], one["name"]) == ("Pod", name)
    )


async def test_the_next_pod_of_a_name_has_events_of_its_own(server, client, running):
    inventory = Inventory()
    publish(inventory, snapshot([None, DOWN]))
    running(AgentEvents(client, inventory, "gpu-0", offered, pods=held_pods(client, inventory)).run())
    await server.until(lambda: told_of(server) == [("pods-default/b", "DeviceFailed")])
    await client.delete(PODS, "b", namespace="default")
    publish(inventory, snapshot([None, None], holdings=()))
    await server.until(lambda: len(told_of(server)) == 2)
    server.put(running_pod("b", "the-next"))
    publish(inventory, snapshot([None, None]))
    publish(inventory, snapshot([None, DOWN]))
    await server.until(lambda: ("the-next", "DeviceFailed") in told_of(server))
    assert [one["count"] for one in server.objects("events") if one["reason"] == "DeviceFailed"] == [1, 1]


async def test_a_pod_of_the_name_on_another_node_is_not_told(server, client, running):
    server.put(running_pod("b", "elsewhere", node="gpu-1"))
    inventory = Inventory()
    publish(inventory, snapshot([None, DOWN], [GPU_LOST]))
    running(AgentEvents(client, inventory, "gpu-0", offered, pods=held_pods(client, inventory)).run())
    await server.until(lambda: len(server.objects("events")) == 3)
    await asyncio.sleep(300)
    assert (told_of(server), told_of(server, "a")) == ([], [("pods-default/a", "DeviceFailed")])


@pytest.mark.parametrize("claim", ["", "train"], ids=["device plugin", "claim"])
async def test_a_pod_that_left_a_dead_device_is_told_that_it_holds_it_no_more(server, client, running, claim):
    inventory = Inventory()
    held = tuple(structs.replace(one, claim=claim) for one in HELD)
    publish(inventory, snapshot([None, DOWN], [GPU_LOST], holdings=held))
    offers = (lambda _: ()) if claim else offered
    running(AgentEvents(client, inventory, "gpu-0", offers, pods=held_pods(client, inventory)).run())
    await server.until(lambda: len(server.objects("events")) == 4)
    publish(inventory, snapshot([None, DOWN], [GPU_LOST], holdings=()))
    await server.until(lambda: len(told_of(server)) == len(told_of(server, "a")) == 2)
    publish(inventory, snapshot([None, None], [None], holdings=()))
    await server.until(lambda: len(server.objects("events")) == 8)
    texts = {
        (one["involvedObject"]["kind"], one["reason"]): one["message"]
        for one in server.objects("events")
        if one["type"] == "Normal"
    }
    assert texts["Pod", "DeviceReleased"].endswith(": the pod no longer holds it")
    assert texts["Node", "Recovered"].endswith(": its faults have ended")
    assert texts.keys() == {("Pod", "DeviceReleased"), ("Node", "Recovered")}


@pytest.mark.parametrize("withdrawn", ["x/mem", "x/nic"])
@pytest.mark.parametrize("known", [True, False], ids=["holdings", "no holdings"])
async def test_a_dead_device_that_is_not_offered_any_more_has_not_recovered_for_its_pod(
    server, client, running, withdrawn, known
):
    """Its entry left the configuration, or the resource is withheld. The pod was told that the faults have ended."""
    inventory = Inventory()
    names = {"x/mem", "x/nic"}

    def offers(made):
        return [one for one in offered(made) if one[0] in names]

    publish(inventory, snapshot([None, DOWN], [GPU_LOST]))
    running(AgentEvents(client, inventory, "gpu-0", offers, pods=held_pods(client, inventory)).run())
    await server.until(lambda: len(server.objects("events")) == 4)
    names.remove(withdrawn)
    publish(inventory, snapshot([None, DOWN, None], [GPU_LOST], holdings=HELD if known else None))
    await asyncio.sleep(100)
    assert len(server.objects("events")) == 4
    publish(inventory, snapshot([None, None], [None]))
    await server.until(lambda: len(server.objects("events")) == 8)
    assert {one["reason"] for one in server.objects("events") if one["type"] == "Normal"} == {"Recovered"}


def test_another_notice_on_the_pod_does_not_end_that_of_its_failed_device():
    made = snapshot([], [GPU_LOST])
    (failed,) = (it for it in device_notices(made, "n", offered(made)) if it.target.kind == "Pod")
    other = replace(failed, reason="GpuMemoryExceeded", ids=())
    assert lasting(made, [other])(failed)
    assert not lasting(made, [replace(failed, reason="DeviceUnhealthy")])(failed)
    assert not lasting(made, [])(other)
    assert not lasting(snapshot([], [GPU_LOST], holdings=()), [])(failed)
    assert not lasting(snapshot([], [None]), [])(failed)


async def test_a_device_that_left_the_node_has_not_recovered_for_its_pod(server, client, running):
    inventory = Inventory()
    publish(inventory, snapshot([None], [GPU_LOST]))
    offers = []
    running(
        AgentEvents(
            client,
            inventory,
            "gpu-0",
            lambda made: offers or offered(made),
            pods=held_pods(client, inventory),
        ).run()
    )
    await server.until(lambda: told_of(server, "a") == [("pods-default/a", "DeviceFailed")])
    offers.append(("y/z", ()))
    publish(inventory, snapshot([None], []))
    await asyncio.sleep(100)
    assert told_of(server, "a") == [("pods-default/a", "DeviceFailed")]


async def test_a_link_that_is_down_and_then_not_used_has_not_recovered(server, client, running):
    inventory = Inventory()
    publish(inventory, snapshot([None, DOWN]))
    running(AgentEvents(client, inventory, "gpu-0", offered, pods=held_pods(client, inventory)).run())
    await server.until(lambda: len(server.objects("events")) == 2)
    unused = Health(State.UNUSED, (Reason("admin_down", "is set down"),), allocatable=False)
    publish(inventory, snapshot([None, unused]))
    await server.until(lambda: len(server.objects("events")) == 4)
    ends = [one for one in server.objects("events") if one["type"] == "Normal"]
    assert {one["reason"] for one in ends} == {"DeviceUnused"}
    assert {one["involvedObject"]["kind"] for one in ends} == {"Node", "Pod"}
    assert all(one["message"].endswith(": it is not in use any more") for one in ends)
    publish(inventory, snapshot([None, None]))
    await asyncio.sleep(100)
    assert len(server.objects("events")) == 4


async def test_a_pod_that_still_holds_its_device_is_told_that_it_recovered_and_nothing_when_it_ends(
    server, client, running
):
    inventory = Inventory()
    publish(inventory, snapshot([None, DOWN]))
    running(AgentEvents(client, inventory, "gpu-0", offered, pods=held_pods(client, inventory)).run())
    await server.until(lambda: told_of(server) == [("pods-default/b", "DeviceFailed")])
    publish(inventory, snapshot([None, None]))
    both = [("pods-default/b", "DeviceFailed"), ("pods-default/b", "Recovered")]
    await server.until(lambda: told_of(server) == both)
    publish(inventory, snapshot([None, None], holdings=()))
    await asyncio.sleep(100)
    assert told_of(server) == both


async def test_without_the_right_to_read_pods_events_have_no_uid(server, client, running):
    server.fail("403", resource="pods", times=None)
    inventory = Inventory()
    publish(inventory, snapshot([DOWN, DOWN], [GPU_LOST]))
    running(AgentEvents(client, inventory, "gpu-0", offered, pods=held_pods(client, inventory)).run())
    await server.until(lambda: len(server.objects("events")) == 5)
    assert server.counts["get", "pods"] == 1
    pods = [
        one["involvedObject"] for one in server.objects("events") if one["involvedObject"]["kind"] == "Pod"
    ]
    assert all("uid" not in one for one in pods)
