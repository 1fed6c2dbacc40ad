"""The API client against the stand-in server: verbs, pages, watches and failures."""

from __future__ import annotations

import asyncio
import threading
from contextlib import aclosing
from typing import Any

import msgspec
import pytest

from nodeagent.kube import client as kube_client
from nodeagent.kube.access import Access
from nodeagent.kube.client import ApiClient, ApiError
from nodeagent.kube.resource import HYPERNODES, LEASES, NODELINKS, NODES, PODS, Meta, Resource
from nodeagent_lab.sim.apiserver import ApiServer

pytestmark = pytest.mark.usefixtures("virtual_time")


class Spec(msgspec.Struct):
    pod_cidr: str | None = msgspec.field(default=None, name="podCIDR")


class Node(msgspec.Struct):
    metadata: Meta
    spec: Spec = msgspec.field(default_factory=Spec)


def node(name, **meta):
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, **meta},
        "spec": {"podCIDR": "10.0.0.0/24"},
    }


@pytest.fixture
async def server():
    server = await ApiServer(seed=1, bookmark_s=0.05).start()
    yield server
    await server.stop()


@pytest.fixture
async def client(server):
    client = ApiClient(Access(server.url, token=server.token()), timeout_s=10)
    yield client
    await client.close()


async def test_an_object_is_decoded_into_the_requested_type(server, client):
    server.put(node("gpu-0", labels={"a": "b"}))
    whole = await client.get(NODES, "gpu-0")
    assert whole["spec"] == {"podCIDR": "10.0.0.0/24"}
    some = await client.get(NODES.typed(Node), "gpu-0")
    assert (some.metadata.name, some.metadata.labels, some.spec.pod_cidr) == (
        "gpu-0",
        {"a": "b"},
        "10.0.0.0/24",
    )
    least = await client.get(NODES.partial, "gpu-0")
    assert least.metadata.labels == {"a": "b"}


async def test_a_missing_object_is_404_without_a_remedy(client):
    with pytest.raises(ApiError, match=r'get /api/v1/nodes/x: 404 NotFound: nodes "x" not found$') as raised:
        await client.get(NODES, "x")
    assert raised.value.missing


async def test_the_error_of_an_unknown_kind_names_the_crd_to_install(client):
    other = NODELINKS.typed(dict)
    object.__setattr__(other, "plural", "nodelynx")
    with pytest.raises(ApiError, match=r"install the CustomResourceDefinition nodelynx\.nodeagent\.io"):
        await client.list(other)


async def test_a_list_joins_its_pages(server, client, monkeypatch):
    monkeypatch.setattr(kube_client, "PAGE_OBJECTS", 10)
    for i in range(25):
        server.put(node(f"gpu-{i:02}"))
    found = await client.list(NODES.partial)
    assert [one.metadata.name for one in found.items] == [f"gpu-{i:02}" for i in range(25)]
    assert found.resource_version == str(server.store.version)
    assert server.counts["list", "nodes"] == 3


async def test_a_list_is_of_one_moment(server, client, monkeypatch):
    monkeypatch.setattr(kube_client, "PAGE_OBJECTS", 2)
    for i in range(4):
        server.put(node(f"gpu-{i}"))
    seen = []

    def take(obj):
        seen.append(obj["metadata"]["name"])
        if len(seen) == 2:
            server.put(node("gpu-9"))
            server.remove("nodes", "gpu-3")

    version = await client.list_each(NODES, take, seen.clear)
    assert seen == ["gpu-0", "gpu-1", "gpu-2", "gpu-3"]
    assert int(version) == server.store.version - 2


async def test_a_list_with_expired_tokens_starts_again_and_finally_has_one_page(server, client, monkeypatch):
    monkeypatch.setattr(kube_client, "PAGE_OBJECTS", 2)
    for i in range(6):
        server.put(node(f"gpu-{i}"))
    seen = []

    def take(obj):
        seen.append(obj["metadata"]["name"])
        server.expire()

    await client.list_each(NODES, take, seen.clear)
    assert seen == [f"gpu-{i}" for i in range(6)]
    assert "limit" not in server.requests[-1].query


async def test_selectors_filter_a_list(server, client):
    server.put(node("a", labels={"rail": "1"}))
    server.put(node("b", labels={"rail": "2"}))
    assert [n["metadata"]["name"] for n in (await client.list(NODES, labels="rail in (2,3)")).items] == ["b"]
    assert [n["metadata"]["name"] for n in (await client.list(NODES, fields="metadata.name=a")).items] == [
        "a"
    ]


async def test_a_watch_yields_changes_and_versions(server, client):
    version = str(server.store.version)
    async with aclosing(client.watch(NODES.partial, resource_version=version)) as events:
        server.put(node("gpu-0"))
        first = await anext(events)
        server.put(node("gpu-0", labels={"a": "b"}))
        second = await anext(events)
        server.remove("nodes", "gpu-0")
        third = await anext(events)
        fourth = await anext(events)
    assert [e.type for e in (first, second, third, fourth)] == ["ADDED", "MODIFIED", "DELETED", "BOOKMARK"]
    assert second.object.metadata.labels == {"a": "b"}
    assert fourth.resource_version == str(server.store.version)
    assert fourth.object is None


async def test_a_watch_from_an_expired_version_is_gone(server, client):
    server.put(node("gpu-0"))
    server.expire()
    with pytest.raises(ApiError) as raised:
        await anext(client.watch(NODES, resource_version="1"))
    assert raised.value.gone


async def test_closing_a_watch_ends_its_thread_and_its_request(server, client):
    version = str(server.store.version)
    events = client.watch(NODES, resource_version=version)
    waiting = asyncio.ensure_future(anext(events))
    await server.until(lambda: server.watching["nodes"] == 1)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await server.until(lambda: server.watching["nodes"] == 0)
    await client.close()
    # The clock of the test does not wait for the end of a thread, and stands still while another one waits for it.
    watches = [thread for thread in threading.enumerate() if thread.name == "kube-watch"]
    for thread in watches:
        await asyncio.to_thread(thread.join, 40)
    assert not any(thread.is_alive() for thread in watches)


async def test_a_watch_requests_a_timeout_and_bookmarks(server, client):
    waiting = asyncio.ensure_future(anext(client.watch(NODES, resource_version=str(server.store.version))))
    await server.until(lambda: server.watching["nodes"])
    server.drop()
    with pytest.raises(StopAsyncIteration):
        await waiting
    query = dict(part.split("=") for part in server.requests[-1].query.split("&"))
    assert 300 <= int(query["timeoutSeconds"]) <= 600
    assert query["allowWatchBookmarks"] == "true"


async def test_apply_owns_its_fields_and_removes_those_that_it_no_longer_contains(server, client):
    server.put(node("gpu-0", labels={"theirs": "1"}))
    mine = {"metadata": {"name": "gpu-0", "labels": {"a": "1", "b": "2"}}}
    assert (await client.apply(NODES.partial, mine)).metadata.labels == {"theirs": "1", "a": "1", "b": "2"}
    mine["metadata"]["labels"] = {"a": "1"}
    assert (await client.apply(NODES.partial, mine)).metadata.labels == {"theirs": "1", "a": "1"}
    version = server.store.version
    await client.apply(NODES.partial, mine)
    assert server.store.version == version, "nothing was written, for nothing has changed"


async def test_apply_without_force_conflicts_with_another_manager(server, client):
    mine = {"metadata": {"name": "gpu-0", "labels": {"a": "1"}}}
    await client.apply(NODES, mine)
    with pytest.raises(ApiError, match=r'conflict with "nodeagent": \.metadata\.labels\.a') as raised:
        await client.apply(
            NODES, {"metadata": {"name": "gpu-0", "labels": {"a": "2"}}}, manager="other", force=False
        )
    assert raised.value.conflict
    await client.apply(NODES, {"metadata": {"name": "gpu-0", "labels": {"a": "2"}}}, manager="other")
    assert server.find("nodes", "gpu-0")["metadata"]["labels"] == {"a": "2"}


async def test_an_applied_condition_leaves_those_of_other_managers(server, client):
    server.put(node("gpu-0") | {"status": {"conditions": [{"type": "Ready", "status": "True"}]}})
    ours = {"type": "nodeagent.io/LinkHealthy", "status": "False", "reason": "LinkDown"}
    await client.apply(
        NODES, {"metadata": {"name": "gpu-0"}, "status": {"conditions": [ours]}}, subresource="status"
    )
    assert server.find("nodes", "gpu-0")["status"]["conditions"] == [
        {"type": "Ready", "status": "True"},
        ours,
    ]
    await client.apply(
        NODES, {"metadata": {"name": "gpu-0"}, "status": {"conditions": []}}, subresource="status"
    )
    assert server.find("nodes", "gpu-0")["status"]["conditions"] == [{"type": "Ready", "status": "True"}]


async def test_patch_create_delete(server, client):
    lease = {"metadata": {"name": "l"}, "spec": {"holderIdentity": "a"}}
    made = await client.create(LEASES, lease, namespace="nodeagent")
    with pytest.raises(ApiError, match="AlreadyExists"):
        await client.create(LEASES, lease, namespace="nodeagent")
    version = made["metadata"]["resourceVersion"]
    body = {"metadata": {"resourceVersion": version}, "spec": {"holderIdentity": "b"}}
    await client.patch(LEASES, "l", body, namespace="nodeagent")
    with pytest.raises(ApiError, match="the object has been modified") as raised:
        await client.patch(LEASES, "l", body, namespace="nodeagent")
    assert raised.value.reason == "Conflict"
    with pytest.raises(ApiError, match="Precondition failed"):
        await client.delete(LEASES, "l", namespace="nodeagent", uid="another")
    await client.delete(LEASES, "l", namespace="nodeagent", uid=made["metadata"]["uid"])
    assert server.objects("leases") == []


async def test_a_pod_is_evicted_and_a_budget_may_refuse(server, client):
    meta = {"name": "p", "namespace": "default", "uid": "u-1"}
    server.put({"apiVersion": "v1", "kind": "Pod", "metadata": meta})
    message = "Cannot evict pod as it would violate the pod's disruption budget."
    server.fail("429", resource="pods/eviction", retry_after_s=10, message=message)
    with pytest.raises(ApiError, match="disruption budget") as raised:
        await client.evict("p", namespace="default", uid="u-1")
    assert (raised.value.status, raised.value.retry_after_s) == (429, 10.0)
    with pytest.raises(ApiError, match=r"the UID in the precondition \(u-0\) does not match") as raised:
        await client.evict("p", namespace="default", uid="u-0")
    assert raised.value.conflict
    await client.evict("p", namespace="default", uid="u-1")
    assert server.objects("pods") == []
    assert server.counts["create", "pods/eviction"] == 3


async def test_a_403_names_the_missing_verb_and_resource():
    server = await ApiServer(rbac=True).start()
    client = ApiClient(Access(server.url, token=server.token("system:serviceaccount:nodeagent:agent")))
    with pytest.raises(
        ApiError, match=r"a role must grant us the verb patch on nodes/status \(API group ''\)$"
    ):
        await client.patch(NODES, "gpu-0", {}, subresource="status")
    with pytest.raises(ApiError, match=r"the verb list on leases .*coordination.*in namespace 'nodeagent'$"):
        await client.list(LEASES, namespace="nodeagent")
    await client.close()
    await server.stop()


async def test_a_call_waits_for_retry_after(server, client):
    server.put(node("gpu-0"))
    server.fail("429", retry_after_s=0, times=2)
    assert (await client.get(NODES.partial, "gpu-0")).metadata.name == "gpu-0"
    assert [seen.status for seen in server.requests] == [429, 429, 200]
    server.fail("429", retry_after_s=3600)
    with pytest.raises(ApiError) as raised:
        await client.get(NODES, "gpu-0")
    assert raised.value.retry_after_s == 300


@pytest.mark.parametrize(
    ("how", "reason"), [("500", "InternalError"), ("half", "Broken"), ("close", "Broken"), ("lost", "Broken")]
)
async def test_every_failure_of_the_server_is_an_api_error(server, client, how, reason):
    server.put(node("gpu-0"))
    server.fail(how)
    with pytest.raises(ApiError) as raised:
        await client.get(NODES, "gpu-0")
    assert raised.value.reason == reason
    assert (await client.get(NODES.partial, "gpu-0")).metadata.name == "gpu-0"


async def test_a_watch_without_any_data_is_ended(server):
    """Not even a bookmark: a firewall in between may have dropped the connection without a reset."""
    client = ApiClient(Access(server.url, token=server.token()), no_data_s=0.2)
    try:
        server.fail("hang", verb="watch")
        async with asyncio.timeout(20), aclosing(client.watch(NODES, resource_version="1")) as events:
            with pytest.raises(ApiError, match="Timeout"):
                await anext(events)
    finally:
        await client.close()


async def test_a_call_to_a_hanging_server_ends_at_the_deadline(server):
    client = ApiClient(Access(server.url, token=server.token()), timeout_s=0.2)
    server.fail("hang")
    with pytest.raises(ApiError, match="no answer") as raised:
        await client.get(NODES, "gpu-0")
    assert (raised.value.status, raised.value.reason) == (None, "Timeout")
    await client.close()


async def test_a_call_to_a_dripping_server_ends_at_the_deadline(server):
    client = ApiClient(Access(server.url, token=server.token()), timeout_s=0.2)
    server.fail("drip")
    with pytest.raises(ApiError) as raised:
        await client.list(NODES)
    assert raised.value.reason == "Timeout"
    await server.until(lambda: server.watching["nodes"] == 0)
    await client.close()


async def test_a_stopped_server_is_unreachable(server):
    client = ApiClient(Access(server.url, token="x"))
    await server.stop()
    with pytest.raises(ApiError, match="is the API server up") as raised:
        await client.get(NODES, "gpu-0")
    assert raised.value.reason == "Unreachable"
    await client.close()


async def test_a_caller_that_stops_waiting_ends_the_call(server, client):
    server.fail("hang", times=4)
    calls = [asyncio.ensure_future(client.get(NODES, "gpu-0")) for _ in range(4)]
    await server.until(lambda: not server._faults.rules)
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    server.put(node("gpu-0"))
    assert await client.get(NODES, "gpu-0"), "the threads are free again"


async def test_the_token_is_read_again(server, tmp_path):
    file = tmp_path / "token"
    file.write_text(server.token())
    client = ApiClient(Access(server.url, token_file=file))
    await client.list(NODES)
    server.revoke(file.read_text())
    with pytest.raises(ApiError, match="is it from this cluster, and not expired"):
        await client.list(NODES)
    file.write_text(server.token())
    await client.list(NODES)
    file.unlink()
    with pytest.raises(ApiError, match="token: No such file"):
        await client.list(NODES)
    await client.close()


async def test_a_guard_forbids_writes_and_limits_their_time(server, client):
    class NoError(Exception):
        pass

    def guard():
        raise NoError

    guarded = ApiClient(Access(server.url, token=server.token()), guard=guard)
    await guarded.list(NODES)
    with pytest.raises(NoError):
        await guarded.apply(NODES, {"metadata": {"name": "gpu-0"}})
    assert server.objects("nodes") == []
    await guarded.close()
    late = ApiClient(Access(server.url, token=server.token()), guard=lambda: 0.0)
    with pytest.raises(ApiError, match=r"before it could be sent|no answer"):
        await late.apply(NODES, {"metadata": {"name": "gpu-0"}})
    await late.close()
    assert server.counts["patch", "nodes"] == 0


async def test_control_characters_of_a_server_message_are_escaped(server, client):
    server.fail("403", message="\x1b[31mred\x1b[0m\nline two " + "x" * 10_000)
    with pytest.raises(ApiError) as raised:
        await client.get(NODES, "gpu-0")
    assert "\x1b" not in str(raised.value)
    assert len(str(raised.value)) < 700


async def test_the_paths_of_crds_hypernodes_and_pods(server, client):
    crds: Resource[Any] = Resource(
        "apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", False, dict
    )
    assert (await client.list(crds)).items == []
    await client.apply(HYPERNODES, {"metadata": {"name": "t1"}, "spec": {"tier": 1, "members": []}})
    assert (await client.list(HYPERNODES)).items[0]["spec"]["tier"] == 1
    assert (await client.list(PODS, fields="spec.nodeName=gpu-0")).items == []
