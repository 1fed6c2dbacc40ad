"""This node's ResourceSlices against an API server: wiped, deleted, changed by others, refused and dropped."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from nodeagent.cluster import slice_publisher
from nodeagent.cluster.deliveries import Deliveries
from nodeagent.cluster.slice_publisher import BURST, DELETED_BURST, LOOK_S, SlicePublisher
from nodeagent.dra.published_pools import SlicePools
from nodeagent.kube.access import Access, NodeClaim
from nodeagent.kube.client import ApiClient
from nodeagent_lab.sim.apiserver import ApiServer, resource_slices
from tests.dra.test_slice_layout import read
from tests.support.waiting import until

Json = dict[str, Any]
NODE = "gpu-7"
OWNER = NodeClaim(NODE, "nodes-gpu-7")
SLICES = "resourceslices"


def device(name: str, rail: int = 0, **more: Any) -> Json:
    attributes = {"kind": {"string": "nic"}, "rail": {"int": rail}}
    return {"name": name, "attributes": attributes, "allowMultipleAllocations": True, **more}


class Stage:
    """A publisher with devices that a test sets, and its API server."""

    def __init__(self, server: ApiServer) -> None:
        self.server = server
        self.devices: dict[str, list[Json]] = {
            f"{NODE}/gpu": [device("gpu-0")],
            f"{NODE}/nic": [device("nic-0")],
        }
        self.unknown: tuple[str, ...] = ()
        self.near_nodes: dict[int, tuple[int, ...]] = {}
        self.deliveries = Deliveries()
        self.stirred = asyncio.Event()
        self.awaited = 0

    def pools(self, _stored: Sequence[Json]) -> SlicePools:
        self.stirred.clear()
        return SlicePools(self.devices, self.unknown)

    async def changed(self) -> None:
        self.awaited += 1
        assert self.awaited < 1000, "the publisher waits for a change that it has not looked at, without end"
        await self.stirred.wait()

    def stir(self) -> None:
        """Wake the publisher as a new fact does."""
        self.stirred.set()

    def names(self) -> list[str]:
        return [obj["metadata"]["name"] for obj in self.server.objects(SLICES)]

    def spec(self, pool: str) -> Json:
        return next(
            obj["spec"]
            for obj in self.server.objects(SLICES)
            if obj["spec"]["pool"]["name"] == f"{NODE}/{pool}"
        )

    def written(self) -> int:
        return sum(self.server.counts[verb, SLICES] for verb in ("create", "patch", "delete"))

    @property
    def delivery(self) -> Any:
        return self.deliveries.of("slices")


@asynccontextmanager
async def publishing(server: ApiServer, stage: Stage | None = None, **options: Any) -> AsyncIterator[Stage]:
    stage = stage or Stage(server)
    server.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE, "uid": OWNER.uid}})
    client = ApiClient(Access(server.url, token=server.token()))
    options = {"owner": OWNER, "gap_s": 0.05} | options
    publisher = SlicePublisher(client, NODE, stage, delivery=stage.delivery, **options)
    task = asyncio.create_task(publisher.run())
    try:
        yield stage
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        await client.close()


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    server = await ApiServer(seed=1, bookmark_s=0.05).start()
    yield server
    await server.stop()


async def test_two_pools_are_published_with_the_node_as_owner_and_vanish_with_it(server: ApiServer) -> None:
    async with publishing(server):
        await server.until(lambda: len(server.objects(SLICES)) == 2)
        for obj in server.objects(SLICES):
            (owner,) = obj["metadata"]["ownerReferences"]
            assert (owner["kind"], owner["uid"], owner["controller"]) == ("Node", OWNER.uid, True)
            assert obj["spec"]["nodeName"] == NODE
    server.remove("nodes", NODE)
    assert server.objects(SLICES) == []


async def test_the_steady_state_writes_nothing_and_neither_does_a_restart(server: ApiServer) -> None:
    async with publishing(server) as stage:
        await server.until(lambda: len(server.objects(SLICES)) == 2)
    before = stage.written()
    versions = [obj["metadata"]["resourceVersion"] for obj in server.objects(SLICES)]
    async with publishing(server, stage):
        await server.until(lambda: server.watching[SLICES])
        stage.stir()
        await server.until(lambda: server.counts["watch", SLICES] or server.watching[SLICES])
        stage.devices[f"{NODE}/nic"] = [
            device("nic-0", rail=3)
        ]  # a change shows that the publisher has compared
        stage.stir()
        await server.until(lambda: stage.spec("nic")["devices"][0]["attributes"]["rail"]["int"] == 3)
    assert stage.written() == before + 1
    gpu, nic = server.objects(SLICES)
    assert gpu["metadata"]["resourceVersion"] == versions[0]
    assert nic["spec"]["pool"]["generation"] == 1


async def test_slices_that_the_kubelet_wipes_are_back_and_counted(server: ApiServer) -> None:
    async with publishing(server) as stage:
        await server.until(lambda: len(server.objects(SLICES)) == 2 and server.watching[SLICES])
        for round_ in (1, 2):
            for name in stage.names():
                server.remove(SLICES, name)
            assert server.objects(SLICES) == []
            await server.until(lambda: len(server.objects(SLICES)) == 2)
            await server.until(lambda r=round_: stage.delivery.removed == 2 * r)
        assert stage.delivery.results["conflict"] == 0


async def test_a_device_that_changes_all_the_time_is_written_at_a_bounded_rate_and_delays_no_other_pool(
    server: ApiServer,
) -> None:
    async with publishing(server, gap_s=3600.0) as stage:
        await server.until(lambda: len(server.objects(SLICES)) == 2)
        for speed in range(10):
            nic = device("nic-0") | {"attributes": {"speedMbps": {"int": speed}}}
            stage.devices[f"{NODE}/nic"] = [nic]
            stage.stir()
            if speed < BURST:  # these are written at once
                await server.until(lambda nic=nic: stage.spec("nic")["devices"] == [nic])
        for name in ("gpu-1", "gpu-2"):
            stage.devices[f"{NODE}/gpu"] = [device(name)]
            stage.stir()
            await server.until(lambda name=name: stage.spec("gpu")["devices"][0]["name"] == name)
        assert server.counts["patch", SLICES] == BURST + 2
        assert stage.spec("nic")["devices"][0]["attributes"]["speedMbps"] == {"int": BURST - 1}


async def test_a_slice_that_is_deleted_before_the_answer_to_its_creation_is_back(server: ApiServer) -> None:
    def deleted_at_once() -> None:
        if created := server.objects(SLICES):
            server.store._changed = lambda: None
            server.remove(SLICES, created[0]["metadata"]["name"])
            server.store._changed = server._notify

    async with publishing(server) as stage:
        await server.until(lambda: len(server.objects(SLICES)) == 2 and server.watching[SLICES])
        server.store._changed = deleted_at_once
        server.remove(SLICES, stage.names()[0])
        await server.until(lambda: len(server.objects(SLICES)) == 2)
    assert stage.delivery.removed >= 2


@pytest.mark.usefixtures("virtual_time")
async def test_slices_that_vanish_while_no_watch_runs_are_back(server: ApiServer) -> None:
    async with publishing(server) as stage:
        await server.until(lambda: len(server.objects(SLICES)) == 2 and server.watching[SLICES])
        server.drop(SLICES)
        for name in stage.names():
            server.remove(SLICES, name)
        server.expire()
        await server.until(lambda: len(server.objects(SLICES)) == 2)


async def test_a_foreign_change_is_undone_and_a_conflict_is_counted(server: ApiServer) -> None:
    async with publishing(server) as stage:
        await server.until(lambda: len(server.objects(SLICES)) == 2 and server.watching[SLICES])
        nic = next(obj for obj in server.objects(SLICES) if obj["spec"]["pool"]["name"].endswith("nic"))
        nic["spec"]["devices"] = []
        server.fail("409", verb="patch", resource=SLICES)
        server.put(nic)
        await server.until(lambda: [one["name"] for one in stage.spec("nic")["devices"]] == ["nic-0"])
        assert stage.delivery.results["conflict"] == 1


async def test_a_slice_of_an_earlier_layout_is_deleted_and_a_pool_without_facts_is_kept(
    server: ApiServer,
) -> None:
    stage = Stage(server)
    async with publishing(server, stage):
        await server.until(lambda: len(server.objects(SLICES)) == 2)
    old = server.objects(SLICES)[1]
    old["metadata"] = {"name": "old-twin"}
    server.put(old)
    foreign = {**old, "metadata": {"name": "foreign"}, "spec": {**old["spec"], "driver": "gpu.example.com"}}
    server.put(foreign)
    stage.devices.pop(f"{NODE}/gpu")
    stage.unknown = (f"{NODE}/gpu",)
    async with publishing(server, stage):
        await server.until(lambda: "old-twin" not in stage.names())
    assert len(stage.names()) == 3
    assert "foreign" in stage.names()
    assert stage.delivery.removed == 0


def foreign_slice(name: str) -> Json:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": name},
        "spec": {
            "driver": "nodeagent.io",
            "nodeName": NODE,
            "pool": {"name": NODE, "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": "gpu-0"}],
        },
    }


async def test_a_driver_that_publishes_under_our_name_is_told_once_and_fought_at_a_bounded_rate(
    server: ApiServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with publishing(server, deleted_gap_s=3600) as stage:
        await server.until(lambda: len(server.objects(SLICES)) == 2 and server.watching[SLICES])
        for count in range(1, DELETED_BURST + 1):  # each has a new name, as of generateName
            server.put(foreign_slice(f"{NODE}-nodeagent.io-{count}"))
            await server.until(lambda count=count: server.counts["delete", SLICES] == count)
        server.put(foreign_slice(last := f"{NODE}-nodeagent.io-last"))
        stage.devices[f"{NODE}/nic"] = [device("nic-0", rail=3)]
        stage.stir()
        await server.until(lambda: stage.spec("nic")["devices"][0]["attributes"]["rail"]["int"] == 3)
        assert last in stage.names()
        assert server.counts["delete", SLICES] == DELETED_BURST
        (line,) = (it for it in caplog.messages if "name of the DRA driver is taken" in it)
        assert f"{NODE}-nodeagent.io-1" in line
        (remark,) = stage.deliveries.remarks()
        assert remark.startswith("cluster slices: another DRA driver publishes ResourceSlices")
        assert remark.endswith("remove the other one")


async def test_a_driver_is_told_of_before_its_slices_are_deleted(server: ApiServer) -> None:
    server.put(foreign_slice(name := f"{NODE}-nodeagent.io-x"))
    server.fail("403", verb="delete", resource=SLICES, times=None)
    async with publishing(server) as stage:
        await server.until(lambda: stage.delivery.reason is not None)
        assert name in stage.names()
        assert any(repr(name) in line for line in stage.deliveries.remarks())


async def test_a_driver_that_has_gone_is_not_told_of_any_more(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr(slice_publisher, "FOREIGN_S", 0)
    server.put(foreign_slice(f"{NODE}-nodeagent.io-x"))
    async with publishing(server) as stage:
        await until(lambda: any("name any more" in line for line in caplog.messages))
        assert stage.delivery.remark is None


async def test_a_server_that_drops_fields_is_named_once_and_not_fought(
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = await ApiServer(gates=()).start()
    taint = {"key": "nodeagent.io/unhealthy", "value": "x", "effect": "NoSchedule"}
    stage = Stage(server)
    stage.devices = {f"{NODE}/nic": [device(f"nic-{n}", taints=[taint]) for n in range(100)]}
    async with publishing(server, stage):
        await server.until(lambda: len(server.objects(SLICES)) == 2 and server.watching[SLICES])
        for _ in range(3):
            stage.stir()
            await asyncio.sleep(0)
        stage.devices = stage.devices | {
            f"{NODE}/gpu": []
        }  # a third slice shows that the two were compared again
        stage.stir()
        await server.until(lambda: len(server.objects(SLICES)) == 3)
    assert server.counts["patch", SLICES] == 0
    lines = [line for line in caplog.messages if "drops fields" in line]
    assert len(lines) == 1
    assert "devices.taints" in lines[0]
    assert stage.delivery.left_out == ("devices.allowMultipleAllocations", "devices.taints")
    assert any("feature gates" in line for line in stage.deliveries.remarks())
    await server.stop()


@pytest.mark.parametrize("minor", [33, 35])
async def test_below_the_floor_nothing_is_requested_and_one_line_has_the_reason(
    minor: int, caplog: pytest.LogCaptureFixture
) -> None:
    server = await ApiServer(minor=minor).start()
    async with publishing(server, floor_check_s=0.01) as stage:
        await server.until(lambda: server.counts["get", ""] > 3)
    assert stage.written() == 0
    assert server.counts["list", SLICES] == 0
    assert len([line for line in caplog.messages if "newer Kubernetes" in line]) == 1
    assert f"1.{minor}" in stage.delivery.reason
    await server.stop()


@pytest.mark.usefixtures("virtual_time")
async def test_a_change_while_the_server_fails_waits_for_the_next_attempt(server: ApiServer) -> None:
    async with publishing(server) as stage:
        await server.until(lambda: len(server.objects(SLICES)) == 2 and server.watching[SLICES])
        server.fail("500", verb="patch", resource=SLICES)
        for rail in (3, 4):
            stage.devices = stage.devices | {f"{NODE}/nic": [device("nic-0", rail)]}
            stage.stir()
            await until(lambda: stage.delivery.reason is not None)
        await server.until(lambda: stage.spec("nic")["devices"] == stage.devices[f"{NODE}/nic"])
    assert server.counts["patch", SLICES] == 2


@pytest.mark.usefixtures("virtual_time")
async def test_a_server_without_the_api_group_gets_no_write(caplog: pytest.LogCaptureFixture) -> None:
    server = ApiServer()
    del server._kinds["resource.k8s.io", "v1", SLICES]
    await server.start()
    async with publishing(server) as stage:
        await stage.deliveries.changed.wait()
        assert "resource.k8s.io/v1" in stage.delivery.reason
        stage.stir()
        await asyncio.sleep(3 * LOOK_S)
    assert stage.written() == 0
    assert len([line for line in caplog.messages if "no definition of this resource" in line]) == 1
    await server.stop()


async def test_a_name_that_another_client_has_is_logged_and_not_tried_all_the_time(
    server: ApiServer, caplog: pytest.LogCaptureFixture
) -> None:
    spec = {
        "driver": "x.io",
        "nodeName": "other",
        "pool": {"name": "p", "generation": 1, "resourceSliceCount": 1},
    }
    name = f"00000-nodeagent.io-{NODE}-gpu"
    server.put(
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {"name": name},
            "spec": spec,
        }
    )
    async with publishing(server) as stage:
        await stage.deliveries.changed.wait()
    assert stage.delivery.results["conflict"] == 4
    assert stage.spec("nic")["devices"], "the other pool is published"
    assert [line for line in caplog.messages if "do not reach the API server" in line and name in line]


async def test_an_upgrade_of_the_server_starts_the_publication() -> None:
    old = await ApiServer(minor=35).start()
    port = old.port
    stage = Stage(old)
    async with publishing(old, stage, floor_check_s=0.05):
        await old.until(lambda: stage.delivery.reason)
        await old.stop()
        new = ApiServer()
        stage.server = new
        token = next(iter(old._tokens))
        new._tokens[token] = old._tokens[token]
        await new.start(port)
        await new.until(lambda: len(new.objects(SLICES)) == 2)
        await until(lambda: stage.delivery.reason is None)
    await new.stop()


async def test_a_missing_right_is_a_remark(server: ApiServer) -> None:
    message = (
        f'{SLICES} is forbidden: User "x" cannot create resource "{SLICES}" in API group "resource.k8s.io"'
    )
    server.fail("403", verb="create", resource=SLICES, message=message, times=None)
    async with publishing(server) as stage:
        await stage.deliveries.changed.wait()
    assert stage.delivery.results["refused"] == 1
    assert server.counts["create", SLICES] == 1
    (line,) = stage.deliveries.remarks()
    assert line.startswith("cluster slices: is refused by the API server")


async def test_without_a_node_in_the_token_the_owner_is_read(server: ApiServer) -> None:
    async with publishing(server, owner=None):
        await server.until(lambda: len(server.objects(SLICES)) == 2)
    (owner,) = server.objects(SLICES)[0]["metadata"]["ownerReferences"]
    assert owner["uid"] == OWNER.uid


async def test_slices_of_an_earlier_node_of_this_name_get_the_new_owner(server: ApiServer) -> None:
    stage = Stage(server)
    async with publishing(server, stage, owner=NodeClaim(NODE, "earlier")):
        await server.until(lambda: len(server.objects(SLICES)) == 2)
    async with publishing(server, stage):
        await server.until(
            lambda: all(
                obj["metadata"]["ownerReferences"][0]["uid"] == OWNER.uid for obj in server.objects(SLICES)
            )
        )


@pytest.mark.usefixtures("virtual_time")
@pytest.mark.parametrize("seed", range(64))
async def test_after_any_disorder_the_slices_are_the_wanted_ones_and_then_rest(
    server: ApiServer, seed: int
) -> None:
    chance = random.Random(seed)
    async with publishing(server, gap_s=0.005, deleted_gap_s=0.005) as stage:
        await server.until(lambda: len(server.objects(SLICES)) == 2 and server.watching[SLICES])
        for _ in range(25):
            found = server.objects(SLICES)
            action = chance.choice(("wipe", "remove", "foreign", "change", "grow", "conflict"))
            if action == "wipe":
                for obj in found:
                    server.remove(SLICES, obj["metadata"]["name"])
            elif action == "remove" and found:
                server.remove(SLICES, chance.choice(found)["metadata"]["name"])
            elif action == "foreign" and found:
                obj = chance.choice(found)
                obj["spec"]["devices"] = []
                obj["spec"]["pool"]["generation"] += chance.randint(0, 3)
                server.put(obj)
            elif action == "conflict":
                server.fail("409", verb=chance.choice(("create", "patch")), resource=SLICES)
            else:
                count = chance.choice((1, 63, 64, 65, 130)) if action == "grow" else 2
                devices = [device(f"nic-{n}", chance.randint(0, 7)) for n in range(count)]
                stage.devices = stage.devices | {f"{NODE}/nic": devices}
                stage.stir()
            for _ in range(chance.randint(0, 20)):
                await asyncio.sleep(0)
        server.heal()

        def right() -> bool:
            stored = {obj["metadata"]["name"]: obj for obj in server.objects(SLICES)}
            return all(
                read(stored, pool) == [f"{one['name']}={one['attributes']['rail']['int']}" for one in devices]
                for pool, devices in stage.devices.items()
            )

        await server.until(right, timeout_s=100)


NUMA = "resource.kubernetes.io/numaNode"


class ListStage(Stage):
    """Devices whose NUMA nodes are lists, until the publisher gives that up."""

    def __init__(self, server: ApiServer) -> None:
        super().__init__(server)
        self.near_nodes = {0: (0, 1)}

    def pools(self, stored: Sequence[Json]) -> SlicePools:
        value: Json = {"ints": [0, 1]} if self.near_nodes else {"int": 0}
        self.devices = {
            f"{NODE}/{kind}": [{"name": f"{kind}-0", "attributes": {NUMA: value}}] for kind in ("gpu", "nic")
        }
        return super().pools(stored)


@pytest.mark.parametrize(
    ("gates", "stored"), [((), {"int": 0}), (("DRAListTypeAttributes",), {"ints": [0, 1]})]
)
async def test_a_server_without_lists_gets_one_number_and_the_log_says_so(
    gates: tuple[str, ...], stored: Json, caplog: pytest.LogCaptureFixture
) -> None:
    server = await ApiServer(gates=(*resource_slices.SINCE_1_36, *gates)).start()
    try:
        async with publishing(server, ListStage(server)) as stage:
            await server.until(lambda: len(server.objects(SLICES)) == 2)
            await until(lambda: stage.delivery.reason is None and len(stage.delivery.published) == 2)
            for kind in ("gpu", "nic"):
                assert stage.spec(kind)["devices"][0]["attributes"][NUMA] == stored
    finally:
        await server.stop()
    assert ("set cluster.numaNodeList to false" in caplog.text) == (not gates)
