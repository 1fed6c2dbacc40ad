"""The stand-in API server, read by the official client: its answers are those of a real one."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import urllib.request
from contextlib import suppress
from pathlib import Path

import pytest

from nodeagent_lab.sim.apiserver import ApiServer
from nodeagent_lab.sim.apiserver.tls import Certificates

pytestmark = pytest.mark.needs("kubernetes")


@pytest.fixture
async def server():
    server = await ApiServer(seed=1, bookmark_s=0.05).start()
    yield server
    await server.stop()


@pytest.fixture
async def official(server):
    """The official client's ApiClient; its calls block, so they are made in threads."""
    from kubernetes import client

    configuration = client.Configuration()
    configuration.host = server.url
    configuration.api_key = {"authorization": f"Bearer {server.token()}"}
    configuration.api_key["BearerToken"] = configuration.api_key["authorization"]
    api = client.ApiClient(configuration)
    yield api
    api.close()


def node(name, **meta):
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, **meta}}


async def ask(call, *args, **more):
    return await asyncio.to_thread(call, *args, **more)


async def test_the_official_client_reads_pages_of_nodes(server, official):
    from kubernetes.client import CoreV1Api

    for i in range(5):
        server.put(node(f"gpu-{i}", labels={"rail": str(i % 2)}))
    core = CoreV1Api(official)
    first = await ask(core.list_node, limit=2)
    assert [one.metadata.name for one in first.items] == ["gpu-0", "gpu-1"]
    assert first.metadata.remaining_item_count == 3
    rest = await ask(core.list_node, limit=10, _continue=first.metadata._continue)
    assert [one.metadata.name for one in rest.items] == ["gpu-2", "gpu-3", "gpu-4"]
    odd = await ask(core.list_node, label_selector="rail=1")
    assert [one.metadata.name for one in odd.items] == ["gpu-1", "gpu-3"]
    server.expire()
    from kubernetes.client import ApiException

    with pytest.raises(ApiException) as raised:
        await ask(core.list_node, limit=10, _continue=first.metadata._continue)
    assert raised.value.status == 410
    assert json.loads(raised.value.body)["reason"] == "Expired"


async def test_the_official_client_writes_and_reads_back(server, official):
    from kubernetes.client import (
        ApiException,
        CoordinationV1Api,
        CoreV1Api,
        V1Lease,
        V1LeaseSpec,
        V1ObjectMeta,
    )

    core, leases = CoreV1Api(official), CoordinationV1Api(official)
    server.put(node("gpu-0"))
    patched = await ask(core.patch_node, "gpu-0", {"metadata": {"labels": {"a": "b"}}})
    assert patched.metadata.labels == {"a": "b"}
    condition = {"type": "Ready", "status": "True", "reason": "x", "message": "y"}
    await ask(core.patch_node_status, "gpu-0", {"status": {"conditions": [condition]}})
    other = {"type": "Other", "status": "False", "reason": "x", "message": "y"}
    await ask(core.patch_node_status, "gpu-0", {"status": {"conditions": [other]}})
    read = await ask(core.read_node, "gpu-0")
    assert [one.type for one in read.status.conditions] == ["Ready", "Other"], "a strategic merge, by type"
    made = await ask(
        leases.create_namespaced_lease,
        "nodeagent",
        V1Lease(metadata=V1ObjectMeta(name="l"), spec=V1LeaseSpec(holder_identity="a")),
    )
    made.spec.holder_identity = "b"
    replaced = await ask(leases.replace_namespaced_lease, "l", "nodeagent", made)
    assert replaced.spec.holder_identity == "b"
    with pytest.raises(ApiException) as raised:
        await ask(leases.replace_namespaced_lease, "l", "nodeagent", made)
    assert raised.value.status == 409
    with pytest.raises(ApiException) as raised:
        await ask(leases.read_namespaced_lease, "l", "nowhere")
    assert raised.value.status == 404


async def test_the_official_client_watches(server, official):
    from kubernetes.client import CoreV1Api
    from kubernetes.watch import Watch

    server.put(node("gpu-0"))
    core = CoreV1Api(official)

    def watch():
        seen = []
        watcher = Watch()
        for event in watcher.stream(core.list_node, timeout_seconds=5):
            seen.append((event["type"], event["object"].metadata.name))
            if len(seen) == 1:
                loop.call_soon_threadsafe(server.put, node("gpu-1"))
            if len(seen) == 2:
                watcher.stop()
        return seen

    loop = asyncio.get_running_loop()
    assert await asyncio.to_thread(watch) == [("ADDED", "gpu-0"), ("ADDED", "gpu-1")]


async def test_the_dynamic_client_discovers_resources_and_applies(server, official, tmp_path):
    from kubernetes.dynamic import DynamicClient

    def work():
        dynamic = DynamicClient(official, cache_file=str(tmp_path / "discovery"))
        hypernodes = dynamic.resources.get(api_version="topology.volcano.sh/v1alpha1", kind="HyperNode")
        body = {
            "apiVersion": "topology.volcano.sh/v1alpha1",
            "kind": "HyperNode",
            "metadata": {"name": "t1"},
            "spec": {"tier": 1},
        }
        hypernodes.server_side_apply(body=body, name="t1", field_manager="me")
        nodelinks = dynamic.resources.get(api_version="nodeagent.io/v1alpha1", kind="NodeLinks")
        return hypernodes.get(name="t1"), [one.metadata.name for one in nodelinks.get().items]

    applied, links = await asyncio.to_thread(work)
    assert applied.spec.tier == 1
    assert applied.metadata.managedFields[0].manager == "me"
    assert applied.metadata.managedFields[0].operation == "Apply"
    assert links == []


async def test_events_and_evictions_by_the_official_client(server, official):
    from kubernetes.client import CoreV1Api, CoreV1Event, V1Eviction, V1ObjectMeta, V1ObjectReference

    server.put({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "default"}})
    core = CoreV1Api(official)
    event = CoreV1Event(
        metadata=V1ObjectMeta(generate_name="p."),
        involved_object=V1ObjectReference(kind="Pod", name="p"),
        reason="X",
    )
    made = await ask(core.create_namespaced_event, "default", event)
    assert made.metadata.name.startswith("p.")
    await ask(
        core.create_namespaced_pod_eviction, "p", "default", V1Eviction(metadata=V1ObjectMeta(name="p"))
    )
    assert server.objects("pods") == []


async def test_a_binding_sets_node_and_annotations_in_one_write_and_once(server, official):
    from kubernetes.client import ApiException, CoreV1Api, V1Binding, V1ObjectMeta, V1ObjectReference

    meta = {"name": "p", "namespace": "default", "uid": "u", "annotations": {"a": "1", "b": "1"}}
    before = server.put({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {}})
    seen = []
    server.admit.append(lambda _user, *change: seen.append(change))
    core = CoreV1Api(official)

    def binding(**changes):
        return V1Binding(
            metadata=V1ObjectMeta(name="p", annotations={"b": "2", "c": "2"}, **changes),
            target=V1ObjectReference(kind="Node", name="n"),
        )

    with pytest.raises(ApiException, match="Precondition failed"):
        await ask(
            core.create_namespaced_pod_binding, "p", "default", binding(uid="x"), _preload_content=False
        )
    await ask(core.create_namespaced_pod_binding, "p", "default", binding(uid="u"), _preload_content=False)
    bound = server.find("pods", "p", "default")
    assert bound["spec"]["nodeName"] == "n"
    assert bound["metadata"]["annotations"] == {"a": "1", "b": "2", "c": "2"}
    assert int(bound["metadata"]["resourceVersion"]) == int(before["metadata"]["resourceVersion"]) + 1
    assert [(verb, resource, old) for verb, resource, old, _ in seen] == [
        ("create", "pods/binding", None)
    ] * 2
    with pytest.raises(ApiException, match="already assigned to node"):
        await ask(core.create_namespaced_pod_binding, "p", "default", binding(), _preload_content=False)


CRD = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "widgets.example.com"},
    "spec": {
        "group": "example.com",
        "names": {"plural": "widgets", "kind": "Widget"},
        "scope": "Namespaced",
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "subresources": {"status": {}},
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "required": ["spec"],
                        "properties": {
                            "spec": {
                                "type": "object",
                                "required": ["size"],
                                "properties": {
                                    "size": {"type": "integer", "minimum": 1},
                                    "color": {"type": "string", "enum": ["red", "blue"], "default": "red"},
                                    "parts": {
                                        "type": "array",
                                        "x-kubernetes-list-type": "map",
                                        "x-kubernetes-list-map-keys": ["name"],
                                        "items": {
                                            "type": "object",
                                            "required": ["name"],
                                            "properties": {
                                                "name": {"type": "string"},
                                                "count": {"type": "integer"},
                                            },
                                        },
                                    },
                                },
                            },
                            "status": {"type": "object", "properties": {"ready": {"type": "boolean"}}},
                        },
                    }
                },
            }
        ],
    },
}


async def test_a_stored_crd_adds_its_kind_and_enforces_its_schema(server, official):
    from kubernetes.client import ApiException, ApiextensionsV1Api, CustomObjectsApi

    await ask(ApiextensionsV1Api(official).create_custom_resource_definition, CRD)
    custom = CustomObjectsApi(official)
    where = ("example.com", "v1", "default", "widgets")
    body = {"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w"}}
    with pytest.raises(ApiException) as raised:
        await ask(
            custom.create_namespaced_custom_object,
            *where,
            body | {"spec": {"size": 0, "color": "green", "x": 1}},
        )
    assert raised.value.status == 422
    assert "spec.size: Invalid value: 0: should be greater than or equal to 1" in raised.value.body
    assert "spec.color: Unsupported value" in raised.value.body
    made = await ask(custom.create_namespaced_custom_object, *where, body | {"spec": {"size": 1, "x": 1}})
    assert made["spec"] == {"size": 1, "color": "red"}
    assert made["metadata"]["generation"] == 1
    status = {**made, "status": {"ready": True}, "spec": {"size": 7}}
    made = await ask(custom.replace_namespaced_custom_object_status, *where, "w", status)
    assert (made["spec"]["size"], made["status"], made["metadata"]["generation"]) == (1, {"ready": True}, 1)
    made = await ask(
        custom.patch_namespaced_custom_object, *where, "w", {"spec": {"size": 2}, "status": {"ready": False}}
    )
    assert (made["spec"]["size"], made["status"], made["metadata"]["generation"]) == (2, {"ready": True}, 2)


async def test_rbac_enforces_the_stored_roles(official):
    from kubernetes import client

    server = await ApiServer(rbac=True).start()
    account = "system:serviceaccount:nodeagent:agent"
    official.configuration.host = server.url
    official.configuration.api_key = {"BearerToken": f"Bearer {server.token(account)}"}
    official.configuration.api_key["authorization"] = official.configuration.api_key["BearerToken"]
    core = client.CoreV1Api(official)
    server.put(node("gpu-0"))
    with pytest.raises(client.ApiException) as raised:
        await ask(core.read_node, "gpu-0")
    assert json.loads(raised.value.body)["message"] == (
        f'nodes "gpu-0" is forbidden: User "{account}" cannot get resource "nodes" in API group "" at the cluster scope'
    )
    rbac = {"apiVersion": "rbac.authorization.k8s.io/v1"}
    rules = [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"], "resourceNames": ["gpu-0"]}]
    server.put({**rbac, "kind": "ClusterRole", "metadata": {"name": "r"}, "rules": rules})
    subject = {"kind": "ServiceAccount", "namespace": "nodeagent", "name": "agent"}
    binding = {"roleRef": {"kind": "ClusterRole", "name": "r"}, "subjects": [subject]}
    server.put({**rbac, "kind": "ClusterRoleBinding", "metadata": {"name": "b"}, **binding})
    assert (await ask(core.read_node, "gpu-0")).metadata.name == "gpu-0"
    review = client.V1SelfSubjectAccessReview(
        spec=client.V1SelfSubjectAccessReviewSpec(
            resource_attributes=client.V1ResourceAttributes(verb="list", resource="nodes")
        )
    )
    answer = await ask(client.AuthorizationV1Api(official).create_self_subject_access_review, review)
    assert answer.status.allowed is False
    with pytest.raises(client.ApiException) as raised:
        await ask(core.read_node, "gpu-1")
    assert raised.value.status == 403
    await server.stop()


async def test_objects_owned_by_a_node_are_deleted_with_it(server):
    uid = server.put(node("gpu-0"))["metadata"]["uid"]
    owner = {"apiVersion": "v1", "kind": "Node", "name": "gpu-0", "uid": uid}
    meta = {"name": "gpu-0", "namespace": "nodeagent", "ownerReferences": [owner]}
    server.put({"apiVersion": "nodeagent.io/v1alpha1", "kind": "NodeLinks", "metadata": meta})
    server.remove("nodes", "gpu-0")
    assert server.objects("nodelinks") == []


async def test_a_hundred_thousand_objects_are_stored_and_listed(server):
    server.recording = False
    for i in range(100_000):
        server._store.write(
            "nodeagent.io",
            "nodelinks",
            f"nodeagent/gpu-{i:06}",
            {
                "apiVersion": "nodeagent.io/v1alpha1",
                "kind": "NodeLinks",
                "metadata": {"name": f"gpu-{i:06}", "namespace": "nodeagent"},
            },
        )
    from nodeagent.kube.access import Access
    from nodeagent.kube.client import ApiClient
    from nodeagent.kube.resource import NODELINKS

    client = ApiClient(Access(server.url, token=server.token()))
    names = []
    await client.list_each(
        NODELINKS.typed(dict), lambda obj: names.append(obj["metadata"]["name"]), names.clear
    )
    assert len(names) == 100_000
    assert names == sorted(names)
    await client.close()


async def test_tls_and_client_certificates(tmp_path, official):
    from kubernetes.client import CoreV1Api

    certificates = Certificates(tmp_path)
    server = await ApiServer(tls=certificates).start()
    server.put(node("gpu-0"))
    certificate, key = certificates.client("admin", "system:masters")

    def ask():
        context = ssl.create_default_context(cafile=certificates.ca)
        context.load_cert_chain(certificate, key)
        with urllib.request.urlopen(
            f"{server.url}/api/v1/nodes/gpu-0", context=context, timeout=10
        ) as answer:
            return json.load(answer)

    assert (await asyncio.to_thread(ask))["metadata"]["name"] == "gpu-0"
    assert server.requests[-1].user == "admin"
    from kubernetes import client

    configuration = client.Configuration()
    configuration.host, configuration.ssl_ca_cert = server.url, str(certificates.ca)
    configuration.api_key = {
        "authorization": f"Bearer {server.token()}",
        "BearerToken": f"Bearer {server.token()}",
    }
    api = client.ApiClient(configuration)
    assert (await asyncio.to_thread(CoreV1Api(api).read_node, "gpu-0")).metadata.name == "gpu-0"
    api.close()
    await server.stop()


@pytest.mark.parametrize("turns", range(6))
async def test_a_connection_that_arrives_at_the_end_is_closed(turns: int) -> None:
    server = await ApiServer().start()
    with socket.create_connection(("127.0.0.1", server.port)) as client, suppress(ConnectionResetError):
        for _ in range(turns):
            await asyncio.sleep(0)
        await server.stop()
        client.settimeout(10)
        assert await asyncio.to_thread(client.recv, 1) == b""


@pytest.mark.parametrize("turns", [4, 8, 16])
async def test_a_connection_whose_handshake_outlasts_the_server_is_closed(tmp_path: Path, turns: int) -> None:
    certificates = Certificates(tmp_path)
    server = await ApiServer(tls=certificates).start()
    context = ssl.create_default_context(cafile=certificates.ca)
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        client.settimeout(10)
        for _ in range(turns):
            await asyncio.sleep(0)
        await server.stop()

        def ask() -> bytes:
            with suppress(OSError), context.wrap_socket(client, server_hostname="127.0.0.1") as tls:
                tls.sendall(b"GET /version HTTP/1.1\r\n\r\n")
                return tls.recv(100)
            return b""

        assert await asyncio.to_thread(ask) == b""
