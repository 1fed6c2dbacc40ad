"""Schemas accept the manifests: those of the oldest and newest Kubernetes version and of third-party definitions."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from nodeagent.cluster.node_report import body
from nodeagent.kube.access import NodeClaim
from tests.cluster.test_node_report import neighbor, report_of, snapshot
from tests.support.findings import one_item
from tests.support.kubernetes_schemas import NEWEST, OLDEST, complaints, from_crd, small_schemas, structural
from tests.support.manifests import INSTALLATIONS, built, of_kind

pytestmark = pytest.mark.needs("kubectl", "kubernetes_validate")


@pytest.fixture(scope="module")
def accepted() -> set[str]:
    """Objects that a version accepts: most of them are the same in each installation."""
    return set()


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
@one_item("installation", INSTALLATIONS)
def test_the_schemas_accept_every_installation(installation: str, version: str, accepted: set[str]) -> None:
    manifests = built(installation)
    assert len(manifests) > 10
    for one in manifests:
        text = f"{version} {json.dumps(one, sort_keys=True)}"
        if text not in accepted:
            assert complaints(one, version) == [], one["metadata"]["name"]
            accepted.add(text)


@pytest.mark.parametrize(
    "break_it",
    [
        lambda spec: spec["template"]["spec"].update(hostnetwork=True),
        lambda spec: spec["template"]["spec"]["containers"][0].pop("name"),
        lambda spec: spec["template"]["spec"]["containers"][0]["resources"]["limits"].update(memory="256 MB"),
        lambda spec: spec.update(updateStrategy="RollingUpdate"),
    ],
)
def test_the_check_finds_errors(break_it: Any) -> None:
    from tests.support.kubernetes_schemas import _copy

    (one,) = of_kind(built(), "DaemonSet")
    one = _copy(one)
    break_it(one["spec"])
    assert complaints(one, NEWEST)


def test_the_small_schemas_refuse_unknown_fields() -> None:
    topology = next(one for one in built("components/kueue") if one["kind"] == "Topology")
    assert not complaints(topology, NEWEST)
    assert complaints(topology | {"spec": {"levels": []}}, NEWEST)
    assert complaints(topology | {"spec": topology["spec"] | {"level": 1}}, NEWEST)
    assert ("kueue.x-k8s.io/v1beta2", "Topology") in small_schemas()


# Our own definition

LINK = {
    "name": "nic0",
    "netdev": "enp24s0np0",
    "pciAddress": "0000:18:00.0",
    "mac": "b8:3f:d2:00:00:01",
    "fabric": "compute",
    "rail": 0,
    "speedMbps": 400000,
    "state": "healthy",
    "reasons": [],
    "lastTransitionTime": "2026-11-21T12:00:00Z",
    "neighbor": {
        "chassisID": {"subtype": "mac", "value": "1c:34:da:00:00:01"},
        "portID": {"subtype": "ifname", "value": "swp1"},
        "systemName": "su01-leaf-r0",
        "portDescription": "rail 0",
        "managementAddresses": ["192.0.2.1"],
        "stale": False,
        "contested": True,
        "contenders": [
            {
                "chassisID": {"subtype": "mac", "value": "02:00:00:00:00:01"},
                "portID": {"subtype": "ifname", "value": "p0"},
                "systemName": "other",
                "managementAddresses": ["192.0.2.9"],
            }
        ],
    },
}
GPU = {
    "index": 3,
    "pciAddress": "0000:5e:00.0",
    "state": "unhealthy",
    "reasons": ["xid_79"],
    "reasonDetails": ["XID 79: the GPU has fallen off the bus."],
    "since": "2026-11-21T12:00:00Z",
    "pods": ["ml/train-0"],
}
REPORT = {
    "apiVersion": "nodeagent.io/v1alpha1",
    "kind": "NodeLinks",
    "metadata": {"name": "dgx-001", "namespace": "nodeagent"},
    "nodeName": "dgx-001",
    "summary": {"links": "1/1", "switches": 1, "health": "healthy"},
    "gpus": [GPU],
    "links": [LINK],
}


def crd() -> dict[str, Any]:
    (one,) = of_kind(built(), "CustomResourceDefinition")
    return one


def faults(report: dict[str, Any]) -> list[str]:
    return [error.message for error in jsonschema.Draft202012Validator(from_crd(crd())).iter_errors(report)]


def test_the_definition_is_structural_and_bounded() -> None:
    for version in crd()["spec"]["versions"]:
        assert not list(structural(version["schema"]["openAPIV3Schema"]))


def test_a_report_passes_and_loses_no_field() -> None:
    assert not faults(REPORT)
    assert not faults({**REPORT, "links": [{"name": "nic0"}]})
    assert not faults({key: value for key, value in REPORT.items() if key not in ("links", "summary")})


def test_the_report_of_a_real_agent_passes() -> None:
    made = report_of(snapshot(*map(neighbor, range(8))))
    written = json.loads(json.dumps(body(made, NodeClaim("gpu-0", "u-0"))))
    assert not faults({"apiVersion": "nodeagent.io/v1alpha1", "kind": "NodeLinks", **written})


@pytest.mark.parametrize(
    "change",
    [
        {"nodeName": ""},
        {"links": [LINK | {"state": "fine"}]},
        {"links": [LINK | {"rail": -1}]},
        {"links": [LINK | {"pciAddress": "18:00.0"}]},
        {"links": [LINK | {"neighbor": {"systemName": "leaf"}}]},
        {"links": [{"state": "healthy"}]},
        {"links": [LINK] * 1025},
        {"gpus": [GPU] * 65},
        {"gpus": [GPU | {"state": "healthy"}]},
        {"gpus": [GPU | {"reasons": ["xid_79"] * 9}]},
        {"gpus": [GPU | {"reasonDetails": ["x" * 257]}]},
        {"gpus": [GPU | {"pods": ["ml/train"] * 17}]},
        {"gpus": [GPU | {"seen": "2026-11-21T12:00:00Z"}]},
        {"links": [LINK | {"neighbor": LINK["neighbor"] | {"systemName": "x" * 1025}}]},
        {"heartbeat": "2026-11-21T12:00:00Z"},
    ],
)
def test_an_invalid_report_is_refused(change: dict[str, Any]) -> None:
    assert faults(REPORT | change)


def test_the_printed_columns_exist_in_the_schema() -> None:
    (version,) = crd()["spec"]["versions"]
    columns = {one["name"]: one["jsonPath"] for one in version["additionalPrinterColumns"]}
    assert list(columns) == ["Links Up", "Switches", "Health", "Systems", "Age"]
    for path in columns.values():
        value: Any = REPORT | {"metadata": {"creationTimestamp": "2026-11-21T12:00:00Z"}}
        for part in path.strip(".").split("."):
            name = part.removesuffix("[*]")
            assert name in value, path
            value = value[name][0] if part.endswith("[*]") else value[name]
