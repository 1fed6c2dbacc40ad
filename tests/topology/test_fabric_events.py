"""The controller's Events: one for each occurrence of an obstacle, written with the right to create Events alone."""

from __future__ import annotations

from nodeagent.base.backoff import Backoff
from nodeagent.fabric.outcome import Breaker, Overlap, PlanOutcome, obstacles
from nodeagent.topology.hypernodes import FabricEvents

OVERLAP = Overlap("ufm-leaf", "ufm", ("node-00",))
BREAKER = Breaker(0.0, 300.0, 5, 8, 0, 2)


def outcome(*overlaps: Overlap, breaker: Breaker | None = None) -> PlanOutcome:
    return PlanOutcome((), {}, {}, (), (), (), overlaps=overlaps, breaker=breaker)


def written(server):
    return sorted(
        (event["involvedObject"]["kind"], event["involvedObject"]["name"], event["reason"], event["count"])
        for event in server.objects("events")
    )


async def test_each_occurrence_of_an_obstacle_is_an_event_of_its_own(server, client):
    server.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "nodeagent"}})
    events = FabricEvents(client, "nodeagent", "replica-a", "nodeagent-controller")
    for _ in range(3):
        assert await events.write(outcome(OVERLAP, breaker=BREAKER)) is None
    first = [
        ("HyperNode", "ufm-leaf", "ForeignHyperNode", 1),
        ("Lease", "nodeagent-controller", "BreakerOpen", 1),
    ]
    assert written(server) == first
    assert {event["metadata"]["namespace"] for event in server.objects("events")} == {"default", "nodeagent"}
    assert await events.write(outcome()) is None
    assert written(server) == first, "the end of an obstacle is no Event"
    assert await events.write(outcome(OVERLAP)) is None
    assert written(server) == sorted([*first, first[0]])
    assert {verb for verb, resource in server.counts if resource == "events"} == {"create"}


async def test_an_event_that_fails_is_written_later(server, client, caplog):
    server.fail("500", resource="events", times=1)
    events = FabricEvents(client, "nodeagent", "replica-a", "nodeagent-controller")
    events.writer._retry._backoff = Backoff(0.0, 120.0)
    assert await events.write(outcome(OVERLAP)) == 0.0
    assert written(server) == []
    assert await events.write(outcome(OVERLAP)) is None
    assert written(server) == [("HyperNode", "ufm-leaf", "ForeignHyperNode", 1)]
    assert sum("do not reach the API server" in record.message for record in caplog.records) == 1


async def test_a_new_leader_with_the_same_obstacle_needs_no_other_right(server, client):
    for instance in ("replica-a", "replica-b"):
        events = FabricEvents(client, "nodeagent", instance, "nodeagent-controller")
        assert await events.write(outcome(OVERLAP)) is None
    assert len(written(server)) == 2
    assert {verb for verb, resource in server.counts if resource == "events"} == {"create"}


def test_an_overlap_names_its_owner_as_far_as_it_has_a_source() -> None:
    unnamed = Overlap("their-leaf", None, ("node-00",))
    sentences = obstacles(outcome(OVERLAP, unnamed))
    assert sentences["overlap/ufm-leaf"].startswith("HyperNode ufm-leaf of ufm holds node-00,")
    assert sentences["overlap/their-leaf"].startswith(
        "HyperNode their-leaf of an owner without a source label holds node-00,"
    )
