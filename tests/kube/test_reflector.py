"""A copy kept by list and watch: the end of a watch, failures, and the reported changes."""

from __future__ import annotations

import asyncio

import pytest

from nodeagent.kube.access import Access
from nodeagent.kube.client import ApiClient
from nodeagent.kube.reflector import Reflector
from nodeagent.kube.resource import LEASES, NODES
from nodeagent_lab.sim.apiserver import ApiServer
from tests.support.waiting import until

pytestmark = pytest.mark.usefixtures("virtual_time")


class Changes:
    """Record the reported changes."""

    def __init__(self):
        self.all = []

    def __call__(self, key, was, now):
        self.all.append((key, was, now))


def node(name, **labels):
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}}


@pytest.fixture
async def server():
    server = await ApiServer(bookmark_s=0.02).start()
    yield server
    await server.stop()


@pytest.fixture
async def client(server):
    client = ApiClient(Access(server.url, token=server.token()))
    yield client
    await client.close()


@pytest.fixture
async def changes():
    return Changes()


@pytest.fixture
async def nodes(client, changes):
    reflector = Reflector(
        client,
        NODES.partial,
        take=lambda obj: obj.metadata.labels or {},
        changed=changes,
        first_s=0.01,
        max_s=0.05,
    )
    running = asyncio.ensure_future(reflector.run())
    yield reflector
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_the_copy_follows(server, nodes, changes):
    server.put(node("a", rail="1"))
    await nodes.synced.wait()
    assert nodes.objects == {"a": {"rail": "1"}}
    await server.until(lambda: server.watching["nodes"])
    server.put(node("b"))
    server.put(node("a", rail="2"))
    server.remove("nodes", "b")
    await until(lambda: len(changes.all) == 4)
    assert changes.all == [
        ("a", None, {"rail": "1"}),
        ("b", None, {}),
        ("a", {"rail": "1"}, {"rail": "2"}),
        ("b", {}, None),
    ]
    assert nodes.objects == {"a": {"rail": "2"}}
    assert nodes.age_s is not None


async def test_an_equal_value_is_not_reported(server, nodes, changes):
    server.put(node("a"))
    await nodes.synced.wait()
    await server.until(lambda: server.watching["nodes"])
    server.put(node("a") | {"status": {"images": ["x"]}})
    server.put(node("b"))
    await until(lambda: len(changes.all) == 2)
    assert [key for key, _, _ in changes.all] == ["a", "b"]


async def test_after_a_watch_ends_another_one_follows_without_a_list(server, nodes, changes):
    await nodes.synced.wait()
    await server.until(lambda: server.watching["nodes"])
    server.drop()
    server.put(node("a"))
    await until(lambda: changes.all)
    assert server.counts["list", "nodes"] == 1
    assert nodes.restarts == {"start": 1}


async def test_after_an_expired_version_a_list_reports_what_was_missed(server, nodes, changes):
    server.put(node("a"))
    await nodes.synced.wait()
    await server.until(lambda: server.watching["nodes"])
    server.fail("500", verb="watch", times=2)
    server.drop()
    server.put(node("b"))
    server.remove("nodes", "a")
    server.expire()
    await until(lambda: len(changes.all) == 3)
    assert nodes.objects == {"b": {}}
    assert nodes.restarts["gone"] == 1


@pytest.mark.parametrize("how", ["500", "half", "close", "403"])
async def test_the_copy_stays_while_the_server_fails(server, client, nodes, changes, how):
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
    await until(lambda: len(changes.all) == 2)
    await server.until(lambda: nodes.trouble is None)
    assert nodes.objects == {"a": {}, "b": {}}


async def test_the_first_list_is_retried(server, client, changes):
    server.fail("500", verb="list", times=3)
    reflector = Reflector(client, NODES, changed=changes, first_s=0.01, max_s=0.05)
    running = asyncio.ensure_future(reflector.run())
    await reflector.synced.wait()
    assert server.counts["list", "nodes"] == 4
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_keys_contain_the_namespace_if_all_are_watched(server, client):
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
