"""Every example is applied to an API server that has the definitions of the other projects.

The definitions are the small schemas of ``tests/schemas/``, which name their sources and hold the fields that the
examples use. The server refuses an unknown field (``--validate=strict`` of kubectl), a value of another type and a word
that is not in an enum. The stored object has everything that the file has.
"""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from typing import Any

import pytest

from nodeagent_lab.sim.apiserver import ApiServer
from tests.daemonset.test_examples import EXAMPLES, manifests
from tests.support.kubernetes_schemas import small_schemas
from tests.support.manifests import Manifest, parsed

CLUSTER_SCOPED = {
    "Namespace", "ClusterRole", "ClusterRoleBinding",
    "AdmissionCheck", "ClusterOverridePolicy", "ClusterPropagationPolicy", "ClusterQueue", "Cohort",
    "FlowSchema", "PriorityClass", "PriorityLevelConfiguration", "ProvisioningRequestConfig", "Queue", "ResourceFlavor",
    "Topology", "WorkloadPriorityClass",
}  # fmt: skip
"""By the definitions of their owners; a namespaced policy for a cluster-scoped Queue would select nothing."""


def open_api(schema: dict[str, Any]) -> dict[str, Any]:
    """A small schema as a definition has it. Pods and free maps are checked elsewhere, by the schemas of Kubernetes."""
    if "x-pod" in schema or "x-quantities" in schema:
        return {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    if isinstance(schema.get("type"), list):
        return {"x-kubernetes-int-or-string": True}
    found = {
        key: schema[key]
        for key in ("type", "enum", "pattern", "required", "minItems", "maxItems")
        if key in schema
    }
    if "properties" in schema:
        found |= {
            "type": "object",
            "properties": {name: open_api(one) for name, one in schema["properties"].items()},
        }
    elif schema.get("type") == "object" or "additionalProperties" in schema:
        found["type"] = "object"
        extra = schema.get("additionalProperties")
        found |= {"additionalProperties": open_api(extra)} if isinstance(extra, dict) else {
            "x-kubernetes-preserve-unknown-fields": True
        }  # fmt: skip
    if "items" in schema:
        found |= {"type": "array", "items": open_api(schema["items"])}
    return found


def definition(api_version: str, kind: str) -> Manifest:
    """The definition of a kind. One of Kubernetes that the server lacks accepts every field."""
    group, _, version = api_version.rpartition("/")
    plural = f"{kind.lower()}s"
    small = small_schemas().get((api_version, kind))
    schema: dict[str, Any] = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    if small is not None:
        own = small["properties"].keys() - {"apiVersion", "kind", "metadata"}
        schema = {"type": "object", "properties": {name: open_api(small["properties"][name]) for name in own}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {
            "group": group,
            "scope": "Cluster" if kind in CLUSTER_SCOPED else "Namespaced",
            "names": {"plural": plural, "singular": kind.lower(), "kind": kind, "listKind": f"{kind}List"},
            "versions": [
                {"name": version, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
            ],
        },
    }


async def apply(server: ApiServer, one: Manifest) -> tuple[int, str]:
    """Apply as ``kubectl apply --server-side --validate=strict`` does. Return the status and the message."""
    names = definition(one["apiVersion"], one["kind"])["spec"]["names"]
    root = "/apis/" if "/" in one["apiVersion"] else "/api/"
    namespace = (
        "" if one["kind"] in CLUSTER_SCOPED else f"/namespaces/{one['metadata'].get('namespace', 'default')}"
    )
    path = f"{root}{one['apiVersion']}{namespace}/{names['plural']}/{one['metadata']['name']}"
    request = urllib.request.Request(
        f"{server.url}{path}?fieldManager=kubectl&force=true&fieldValidation=Strict",
        data=json.dumps(one).encode(),
        method="PATCH",
        headers={
            "Authorization": f"Bearer {server.token('admin')}",
            "Content-Type": "application/apply-patch+yaml",
        },
    )

    def send() -> tuple[int, str]:
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    return await asyncio.to_thread(send)


@pytest.fixture
async def server():
    """A server with every definition and namespace of the examples."""
    server = await ApiServer().start()
    for key in sorted({(one["apiVersion"], one["kind"]) for _, one in manifests()}):
        try:
            server.put({"apiVersion": key[0], "kind": key[1], "metadata": {"name": "probe"}})
        except LookupError:
            server.put(definition(*key))
    for name in {one["metadata"].get("namespace", "default") for _, one in manifests()}:
        server.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    yield server
    await server.stop()


def contains(stored: Any, wanted: Any) -> bool:
    if isinstance(wanted, dict):
        return isinstance(stored, dict) and all(contains(stored.get(key), one) for key, one in wanted.items())
    if isinstance(wanted, list):
        return isinstance(stored, list) and len(stored) == len(wanted) and all(map(contains, stored, wanted))
    return bool(stored == wanted)


async def test_the_server_accepts_every_example_and_keeps_all_of_it(server: ApiServer) -> None:
    for path, one in manifests():
        status, answer = await apply(server, one)
        assert status in (200, 201), f"{path.relative_to(EXAMPLES)}: {answer}"
        assert contains(json.loads(answer), one), (
            f"{path.relative_to(EXAMPLES)}: {one['kind']} has lost a field"
        )


@pytest.mark.parametrize(
    ("file", "kind", "change", "field"),
    [
        (
            "volcano-global/hyperjob.yaml",
            "HyperJob",
            ("highestTierAllowed", "highestTierName"),
            "highestTierName",
        ),
        ("volcano/jobs.yaml", "Job", ("highestTierName", "highestTier"), "highestTier"),
        ("kueue/queues.yaml", "ClusterQueue", ("cohortName", "cohort"), "cohort"),
        (
            "kueue/provisioning.yaml",
            "ProvisioningRequestConfig",
            ("managedResources", "resources"),
            "resources",
        ),
        ("mpi-operator/mpijob.yaml", "MPIJob", ("slotsPerWorker", "slots"), "slots"),
    ],
)
async def test_the_server_refuses_a_field_that_the_other_project_does_not_have(
    server: ApiServer, file: str, kind: str, change: tuple[str, str], field: str
) -> None:
    """Such as a tier by name in a HyperJob, or the cohort of Kueue's API v1beta1."""
    text = (EXAMPLES / file).read_text()
    assert change[0] in text
    wrong = next(one for one in parsed(text.replace(*change)) if one["kind"] == kind)
    status, answer = await apply(server, wrong)
    assert status in (400, 422), answer  # 400 of a real server, which decodes strictly before it validates
    assert field in answer
