"""The status of prepared claims against an API server: written once, kept right, refused, and never a storm."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from msgspec.structs import replace

from nodeagent.cluster import claim_statuses
from nodeagent.cluster.claim_statuses import BURST, ClaimStatusWriter
from nodeagent.cluster.deliveries import Deliveries
from nodeagent.dra.prepared_claim import PreparedClaim
from nodeagent.facts.inventory import Inventory
from nodeagent.facts.model import HEALTHY, Health
from nodeagent.kube.access import Access
from nodeagent.kube.client import ApiClient
from nodeagent_lab.sim.apiserver import ApiServer
from tests.dra.test_claim_preparation import prepared
from tests.support.dra_node import claim_of, gpus_of, machine, offer_of, publish, result
from tests.support.kind_machines import SICK
from tests.support.waiting import until

Json = dict[str, Any]
FACTS = machine()
GPU = gpus_of(FACTS)[0]
OTHERS = {"driver": "other.io", "pool": "p", "device": "d"}


class Stage:
    """A writer with the claims that a test prepares, and its API server."""

    def __init__(self, server: ApiServer, user: str = "admin") -> None:
        self.server, self.user = server, user
        self.inventory = Inventory()
        self.offer = offer_of(FACTS)
        self.records: dict[str, PreparedClaim] = {}
        self.delivery = Deliveries().of("claims")
        self.seconds = 1000.0

    def prepare(self, name: str, *more: Json) -> Json:
        claim = claim_of(name, result(GPU, 1024, "g"), *more)
        claim["status"]["allocation"]["nodeSelector"] = {}
        record = prepared(claim, FACTS)
        stored = self.server.put(claim)
        self.records = {**self.records, record.uid: record}
        return stored

    def set_health(self, health: Health) -> None:
        gpus = tuple(replace(gpu, health=health) for gpu in FACTS.gpus)
        publish(self.offer, replace(FACTS, gpus=gpus))

    def entries(self, name: str) -> list[Json]:
        claim = self.server.find("resourceclaims", name, "default") or {}
        entries: list[Json] = (claim.get("status") or {}).get("devices") or []
        return entries

    def health(self, name: str) -> str | None:
        found = [it for entry in self.entries(name) for it in entry.get("conditions") or ()]
        return next((str(it["status"]) for it in found if it["type"] == "Healthy"), None)

    @property
    def writes(self) -> int:
        return self.server.counts["patch", "resourceclaims/status"]


@asynccontextmanager
async def writing(
    server: ApiServer, stage: Stage, now: Callable[[], float] | None = None
) -> AsyncIterator[Stage]:
    client = ApiClient(Access(server.url, token=server.token(stage.user)))
    writer = ClaimStatusWriter(
        client,
        stage.inventory,
        stage.offer,
        lambda: stage.records,
        delivery=stage.delivery,
        now=now or (lambda: stage.seconds),
    )
    task = asyncio.create_task(writer.run())
    try:
        yield stage
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        await client.close()


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    server = await ApiServer().start()
    yield server
    await server.stop()


async def test_a_claim_gets_its_status_once_and_a_new_agent_writes_nothing(server: ApiServer) -> None:
    stage = Stage(server)
    stage.prepare("a")
    async with writing(server, stage):
        await server.until(lambda: stage.health("a") == "True")
    meta = (server.find("resourceclaims", "a", "default") or {})["metadata"]
    owner = next(it for it in meta["managedFields"] if it.get("subresource") == "status")
    assert owner["manager"] == "nodeagent.io"
    async with writing(server, stage):
        await server.until(lambda: server.counts["get", "resourceclaims"] == 2)
        stage.prepare("b")
        stage.offer.serve()
        await server.until(lambda: stage.health("b") == "True")
    assert stage.writes == 2


async def test_entries_of_another_driver_are_not_touched(server: ApiServer) -> None:
    stage = Stage(server)
    claim = stage.prepare("a", {"request": "x", **OTHERS})
    server.put({**claim, "status": {**claim["status"], "devices": [OTHERS]}})
    async with writing(server, stage):
        await server.until(lambda: len(stage.entries("a")) == 2)
    assert OTHERS in stage.entries("a")


async def test_a_changed_health_is_written_after_a_while_and_only_if_it_stands(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claim_statuses, "STATUS_LOOK_S", 0.01)
    stage = Stage(server)
    stage.prepare("a")
    async with writing(server, stage):
        await server.until(lambda: stage.health("a") == "True")
        (before,) = stage.entries("a")
        stage.set_health(SICK)
        await asyncio.sleep(0)
        stage.set_health(HEALTHY)
        stage.seconds += 60
        await asyncio.sleep(0.05)
        assert stage.writes == 1, "it has gone by itself"
        stage.set_health(SICK)
        await asyncio.sleep(0.05)
        assert stage.writes == 1, "all nodes may have this fault at once"
        stage.seconds += 60
        await server.until(lambda: stage.health("a") == "False")
    (after,) = stage.entries("a")
    times = [[it["lastTransitionTime"] for it in entry["conditions"]] for entry in (before, after)]
    assert times[0][0] == times[1][0], "it was ready all the time"


async def test_many_claims_are_written_at_a_bounded_rate(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claim_statuses, "STATUS_LOOK_S", 0.01)
    stage = Stage(server)
    for number in range(3 * BURST):
        stage.prepare(f"c{number}")
    async with writing(server, stage):
        await server.until(lambda: stage.writes == BURST)
        await asyncio.sleep(0.05)
        assert stage.writes == BURST
        stage.seconds += 2 / claim_statuses.PER_S
        await server.until(lambda: stage.writes == BURST + 2)


async def test_a_claim_that_was_made_again_or_deallocated_is_left_alone(server: ApiServer) -> None:
    stage = Stage(server)
    again, ended = stage.prepare("again"), stage.prepare("ended")
    server.put({**again, "metadata": {**again["metadata"], "uid": "00000000-0000-4000-8000-00000000beef"}})
    server.put({**ended, "status": {}})
    stage.prepare("good")
    async with writing(server, stage):
        await server.until(lambda: stage.health("good") == "True")
        await until(lambda: server.counts["patch", "resourceclaims/status"] == 2)
    assert (stage.entries("again"), stage.entries("ended")) == ([], [])
    assert stage.delivery.results["refused"] == 1


async def in_virtual_time(server: ApiServer, stage: Stage) -> float:
    """Return the seconds until the claim has its status."""
    stage.prepare("a")
    began = time.monotonic()
    async with writing(server, stage, time.monotonic):
        await until(lambda: stage.delivery.results["ok"], limit_s=86400)
    assert stage.health("a") == "True"
    return time.monotonic() - began


@pytest.mark.usefixtures("virtual_time")
async def test_after_a_conflict_a_claim_is_read_and_written_again_soon(server: ApiServer) -> None:
    server.fail("409", verb="patch", resource="resourceclaims/status", times=3)
    stage = Stage(server)
    took_s = await in_virtual_time(server, stage)
    assert (2 + 4 + 8) / 2 < took_s < (2 + 4 + 8) * 1.5 + 1
    assert server.counts["get", "resourceclaims"] == 4


@pytest.mark.parametrize("how", ["deny", "403", "400"])
@pytest.mark.usefixtures("virtual_time")
async def test_what_a_webhook_refuses_is_sent_again_seldom(server: ApiServer, how: str) -> None:
    server.fail(how, verb="patch", resource="resourceclaims/status", times=3)
    stage = Stage(server)
    took_s = await in_virtual_time(server, stage)
    assert (60 + 120 + 240) / 2 < took_s < (60 + 120 + 240) * 1.5 + 1
    assert stage.delivery.reason is None


@pytest.mark.usefixtures("virtual_time")
async def test_a_conflict_after_refusals_is_tried_again_soon_and_a_refusal_after_conflicts_seldom(
    server: ApiServer,
) -> None:
    for how, times in (("409", 1), ("deny", 8), ("409", 1)):
        server.fail(how, verb="patch", resource="resourceclaims/status", times=times)
    stage = Stage(server)
    took_s = await in_virtual_time(server, stage)
    refused_s = 60 + 120 + 240 + 480 + 960 + 1920 + 3600 + 3600
    assert refused_s / 2 < took_s < refused_s * 1.5 + 3 + 180 + 1


@pytest.mark.usefixtures("virtual_time")
async def test_the_traffic_of_refused_claims_is_bounded(server: ApiServer) -> None:
    server.fail("deny", verb="patch", resource="resourceclaims/status", times=None)
    stage = Stage(server)
    for number in range(4):
        stage.prepare(f"c{number}")
    async with writing(server, stage, time.monotonic):
        await asyncio.sleep(6 * 3600)
        assert stage.writes < 4 * (7 + 2 * 6)
        before = stage.writes
        stage.set_health(SICK)
        await asyncio.sleep(claim_statuses.SPREAD_S[1] + 1)
        assert stage.writes == before + 4, "other entries may be accepted"


@pytest.mark.usefixtures("virtual_time")
async def test_a_claim_that_was_made_again_is_read_once(server: ApiServer) -> None:
    stage = Stage(server)
    again = stage.prepare("again")
    server.put({**again, "metadata": {**again["metadata"], "uid": "00000000-0000-4000-8000-00000000beef"}})
    async with writing(server, stage, time.monotonic):
        await asyncio.sleep(6 * 3600)
    assert (server.counts["get", "resourceclaims"], stage.writes) == (1, 0)


@pytest.mark.usefixtures("virtual_time")
async def test_a_server_that_drops_the_status_is_asked_again_seldom(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Stage(server)
    stage.prepare("a")
    with monkeypatch.context() as dropping:
        dropping.setattr(claim_statuses, "own_entries", lambda _claim: [])
        async with writing(server, stage, time.monotonic):
            await until(lambda: stage.delivery.reason == claim_statuses.DROPPED)
            await asyncio.sleep(7200)
            assert 2 < stage.writes < 14
            dropping.undo()
            await until(lambda: stage.delivery.reason is None, limit_s=7200)


async def test_without_the_right_the_reason_is_shown_and_the_status_comes_with_it() -> None:
    server = await ApiServer(rbac=True).start()
    try:
        agent = "system:serviceaccount:nodeagent:nodeagent"
        rules: list[Json] = [
            {"apiGroups": ["resource.k8s.io"], "resources": ["resourceclaims"], "verbs": ["get"]},
            {"apiGroups": ["resource.k8s.io"], "resources": ["resourceclaims/status"], "verbs": ["patch"]},
        ]
        _grant(server, rules)
        stage = Stage(server, agent)
        stage.prepare("a")
        async with writing(server, stage):
            await until(lambda: "associated-node:patch" in (stage.delivery.reason or ""))
        driver: Json = {"apiGroups": ["resource.k8s.io"], "resources": ["resourceclaims/driver"]}
        _grant(
            server,
            [*rules, {**driver, "resourceNames": ["nodeagent.io"], "verbs": ["associated-node:patch"]}],
        )
        async with writing(server, stage):
            await until(lambda: stage.delivery.reason is None)
        assert stage.health("a") == "True"
    finally:
        await server.stop()


def _grant(server: ApiServer, rules: list[Json]) -> None:
    group = "rbac.authorization.k8s.io"
    server.put(
        {"apiVersion": f"{group}/v1", "kind": "ClusterRole", "metadata": {"name": "r"}, "rules": rules}
    )
    server.put(
        {
            "apiVersion": f"{group}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": "r"},
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "r"},
            "subjects": [{"kind": "ServiceAccount", "name": "nodeagent", "namespace": "nodeagent"}],
        }
    )


async def test_what_others_add_to_an_entry_is_left_alone(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A CNI plugin sets addresses, and a monitor a condition of its own."""
    monkeypatch.setattr(claim_statuses, "STATUS_LOOK_S", 0.01)
    monkeypatch.setattr(claim_statuses, "SPREAD_S", (0.0, 0.0))
    stage = Stage(server)
    stage.prepare("a")
    async with writing(server, stage):
        await server.until(lambda: stage.entries("a"))
    (entry,) = stage.entries("a")
    seen = {"type": "example.com/Seen", "status": "True", "reason": "Seen", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z"}  # fmt: skip
    named = {name: entry[name] for name in ("driver", "pool", "device", "shareID") if name in entry}
    more = {**named, "networkData": {"ips": ["192.0.2.1/24"]}, "conditions": [seen]}
    body = {"metadata": {"name": "a", "namespace": "default"}, "status": {"devices": [more]}}
    cni = ApiClient(Access(server.url, token=server.token("admin")))
    await cni.apply(claim_statuses.RESOURCE_CLAIMS, body, subresource="status", manager="cni")
    writes = stage.writes
    async with writing(server, stage):
        stage.prepare("b")
        await server.until(lambda: stage.entries("b"))
        assert (stage.writes, stage.delivery.reason) == (writes + 1, None)
        stage.set_health(SICK)
        await server.until(lambda: stage.health("a") == "False")
    (entry,) = stage.entries("a")
    assert entry["networkData"] == more["networkData"]
    assert seen in entry["conditions"]
    assert stage.delivery.reason is None
