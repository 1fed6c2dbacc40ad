"""A copy that is kept by list and watch: what ends a watch, what ages, and what is told."""

from __future__ import annotations

import asyncio

import pytest

from nodeagent.kube.access import Access
from nodeagent.kube.client import Client
from nodeagent.kube.reflector import Reflector
from nodeagent.kube.resource import LEASES, NODES
from nodeagent.sim.apiserver import ApiServer


class Told:
    """What the reflector has told, and a way to wait for it."""

    def __init__(self):
        self.all = []
        self._stir = asyncio.Event()

    def __call__(self, key, was, now):
        self.all.append((key, was, now))
        self._stir.set()

    async def until(self, true):
        while not true():
            self._stir.clear()
            await self._stir.wait()


def node(name, **labels):
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}}


@pytest.fixture
async def server():
    server = await ApiServer(bookmark_s=0.02).start()
    yield server
    await server.stop()


@pytest.fixture
async def client(server):
    client = Client(Access(server.url, token=server.token()))
    yield client
    await client.close()


@pytest.fixture
async def told():
    return Told()


@pytest.fixture
async def nodes(client, told):
    reflector = Reflector(
        client,
        NODES.partial,
        take=lambda obj: obj.metadata.labels or {},
        changed=told,
        first_s=0.01,
        max_s=0.05,
    )
    running = asyncio.ensure_future(reflector.run())
    yield reflector
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_the_copy_follows(server, nodes, told):
    server.put(node("a", rail="1"))
    await nodes.synced.wait()
    assert nodes.objects == {"a": {"rail": "1"}}
    await server.until(lambda: server.watching["nodes"])
    server.put(node("b"))
    server.put(node("a", rail="2"))
    server.remove("nodes", "b")
    await told.until(lambda: len(told.all) == 4)
    assert told.all == [
        ("a", None, {"rail": "1"}),
        ("b", None, {}),
        ("a", {"rail": "1"}, {"rail": "2"}),
        ("b", {}, None),
    ]
    assert nodes.objects == {"a": {"rail": "2"}}
    assert nodes.age_s is not None


async def test_what_is_kept_and_equal_is_told_to_nobody(server, nodes, told):
    server.put(node("a"))
    await nodes.synced.wait()
    await server.until(lambda: server.watching["nodes"])
    server.put(node("a") | {"status": {"images": ["x"]}})
    server.put(node("b"))
    await told.until(lambda: len(told.all) == 2)
    assert [key for key, _, _ in told.all] == ["a", "b"]


async def test_a_watch_that_the_server_ends_is_followed_by_another_without_a_list(server, nodes, told):
    await nodes.synced.wait()
    await server.until(lambda: server.watching["nodes"])
    server.drop()
    server.put(node("a"))
    await told.until(lambda: told.all)
    assert server.counts["list", "nodes"] == 1
    assert nodes.restarts == {"start": 1}


async def test_a_version_that_is_gone_leads_to_a_list_and_to_what_was_missed(server, nodes, told):
    server.put(node("a"))
    await nodes.synced.wait()
    await server.until(lambda: server.watching["nodes"])
    server.fail("500", verb="watch", times=2)
    server.drop()
    server.put(node("b"))
    server.remove("nodes", "a")
    server.expire()
    await told.until(lambda: len(told.all) == 3)
    assert nodes.objects == {"b": {}}
    assert nodes.restarts["gone"] == 1


@pytest.mark.parametrize("how", ["500", "half", "close", "403"])
async def test_a_server_in_trouble_leaves_the_copy_standing(server, client, nodes, told, how):
    server.put(node("a"))
    await nodes.synced.wait()
    await server.until(lambda: server.watching["nodes"])
    server.fail(how, times=None)
    server.drop()
    asked = server.counts.total()
    await server.until(lambda: server.counts.total() > asked + 3)
    assert nodes.objects == {"a": {}}
    assert nodes.trouble
    server.heal()
    server.put(node("b"))
    await told.until(lambda: len(told.all) == 2)
    await server.until(lambda: nodes.trouble is None)
    assert nodes.objects == {"a": {}, "b": {}}


async def test_the_first_list_may_take_its_time(server, client, told):
    server.fail("500", verb="list", times=3)
    reflector = Reflector(client, NODES, changed=told, first_s=0.01, max_s=0.05)
    running = asyncio.ensure_future(reflector.run())
    await reflector.synced.wait()
    assert server.counts["list", "nodes"] == 4
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_keys_have_a_namespace_where_all_are_watched(server, client):
    for name in ("default", "nodeagent"):
        meta = {"name": "l", "namespace": name}
        server.put({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": meta})
    every, one = Reflector(client, LEASES), Reflector(client, LEASES, namespace="nodeagent")
    running = [asyncio.ensure_future(each.run()) for each in (every, one)]
    await every.synced.wait()
    await one.synced.wait()
    assert (sorted(every.objects), sorted(one.objects)) == (["default/l", "nodeagent/l"], ["l"])
    for each in running:
        each.cancel()
    await asyncio.gather(*running, return_exceptions=True)
