"""Admission policies: what the token of an agent or the controller can write in the hands of an attacker, for every
verb that its role grants.

An agent writes about its own node, in its own name and within bounds; the controller writes labels, marks and Events of
its own. Everything else is refused, in both forms of an Event and in every field of a Node. Each validation is taken
out once: a forged request must pass then.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from ipaddress import ip_address
from typing import Any

import pytest

from nodeagent.cluster.node_marks import OWN_MARKS, STARTING_TAINT
from nodeagent.commands.feature_table import WITH_CONTROLLER
from nodeagent.fabric.hypernode import OURS, OWNER_LABEL, SOURCE_LABEL
from nodeagent.fabric.maintenance import MAINTENANCE_LABEL
from nodeagent.fabric.rail_partners import of_a_host
from nodeagent.kube.failure import ApiError
from tests.daemonset.test_dra_manifests import WRONG_CLAIMS, WRONG_SLICES
from tests.daemonset.test_schemas import REPORT
from tests.support.admission import NODE, UID, Request, refusals
from tests.support.cel_types import type_errors
from tests.support.findings import one_item
from tests.support.kubernetes_schemas import NEWEST, OLDEST
from tests.support.manifests import ROOT, Manifest, built, combined, named, of_kind
from tests.support.nfd import nfd_definition

pytestmark = pytest.mark.needs("kubectl", "cel_expr_python")

AGENT = "system:serviceaccount:nodeagent:nodeagent"
CONTROLLER = "system:serviceaccount:nodeagent:nodeagent-controller"
TOKEN = {NODE: ["dgx-001"], UID: ["6a1f"]}
OWNER = {"apiVersion": "v1", "kind": "Node", "name": "dgx-001", "uid": "6a1f"}


def report(node: str = "dgx-001", **meta: Any) -> dict[str, Any]:
    return {**REPORT, "nodeName": node, "metadata": {"name": node, "namespace": "nodeagent", **meta}}


def write(obj: dict[str, Any], operation: str = "CREATE", old: dict[str, Any] | None = None) -> Request:
    name = obj["metadata"]["name"]
    return Request(operation, "nodeagent.io:nodelinks", name, AGENT, TOKEN, obj, old, "nodeagent")


@pytest.fixture(scope="module")
def everything() -> list[Manifest]:
    return combined("node-conditions", base=WITH_CONTROLLER)


def test_an_agent_writes_its_own_report(everything: list[Manifest]) -> None:
    assert refusals(everything, write(report())) == []
    assert refusals(everything, write(report(ownerReferences=[OWNER]))) == []
    assert refusals(everything, write(report(), "UPDATE", report())) == []
    assert (
        refusals(
            everything, write({**report(), "gpus": [FAILED_GPU, NAMELESS_GPU, FAILED_GPU | {"index": 4}]})
        )
        == []
    )
    assert refusals(everything, replace(write(report(), "DELETE", report()), object=None)) == []


FAILED_GPU = {"index": 3, "pciAddress": "0000:5e:00.0", "state": "unhealthy"}
NAMELESS_GPU = {"pciAddress": "0000:5e:00.0", "state": "unhealthy"}
WORK = {MAINTENANCE_LABEL: '[{"until":"2026-12-01T00:00:00Z"}]'}
FORGED: dict[str, tuple[Request, str]] = {
    "another's report": (
        write(report("dgx-002")),
        "the agent of node dgx-001 may write the NodeLinks of that name",
    ),
    "another's name inside": (
        write({**report(), "nodeName": "dgx-002"}),
        "nodeName must be dgx-001",
    ),
    "another's report deleted": (
        replace(write(report("dgx-002"), "DELETE", report("dgx-002")), object=None),
        "the agent of node dgx-001",
    ),
    "a token without a node": (replace(write(report()), extra={}), "the token contains no node"),
    "a token of other facts": (replace(write(report()), extra={"a": ["b"]}), "the token contains no node"),
    "an empty name": (replace(write(report("")), extra={NODE: [""]}), "the token contains no node"),
    "another owner": (
        write(report(ownerReferences=[OWNER, OWNER | {"kind": "Pod"}])),
        "the only owner may be the Node dgx-001",
    ),
    "another node as owner": (write(report(ownerReferences=[OWNER | {"name": "dgx-002"}])), "the only owner"),
    "an owner of another life": (write(report(ownerReferences=[OWNER | {"uid": "0000"}])), "the only owner"),
    "two owners": (write(report(ownerReferences=[OWNER, OWNER])), "the only owner"),
    "an owner of another group": (
        write(report(ownerReferences=[OWNER | {"apiVersion": "x.io/v1"}])),
        "the only owner",
    ),
    "a finalizer": (write(report(finalizers=["x.io/stay"])), "no finalizers"),
    "labels without end": (write(report(labels={f"x.io/{n}": "" for n in range(17)})), "16 labels"),
    "annotations without end": (write(report(annotations={f"x.io/{n}": "" for n in range(17)})), "16 labels"),
    "an endless annotation": (write(report(annotations={"x": "a" * 1024})), "1024 characters"),
    "an annotation that grows": (
        write(report(annotations={"x": "a" * 2000}), "UPDATE", report(annotations={"x": "a" * 1500})),
        "1024 characters",
    ),
    "planned work of its own": (write(report(annotations=WORK)), "planned work"),
    "one GPU twice": (
        write({**report(), "gpus": [FAILED_GPU, FAILED_GPU | {"state": "degraded"}]}),
        "64 GPUs, each once",
    ),
    "one GPU twice by its address": (
        write({**report(), "gpus": [NAMELESS_GPU, NAMELESS_GPU]}),
        "64 GPUs, each once",
    ),
    "a GPU without a name": (write({**report(), "gpus": [{"state": "unhealthy"}]}), "64 GPUs, each once"),
    "more GPUs than a node has": (
        write({**report(), "gpus": [FAILED_GPU | {"index": n} for n in range(65)]}),
        "64 GPUs, each once",
    ),
    "planned work prolonged": (
        write(report(annotations=WORK), "UPDATE", report(annotations={MAINTENANCE_LABEL: "[]"})),
        "planned work",
    ),
    "planned work ended": (write(report(), "UPDATE", report(annotations=WORK)), "planned work"),
    "one more label each time": (
        write(
            report(labels={str(n): "" for n in range(21)}),
            "UPDATE",
            report(labels={str(n): "" for n in range(20)}),
        ),
        "16 labels",
    ),
}


def test_labels_and_annotations_of_people_and_webhooks_do_not_block_the_report(
    everything: list[Manifest],
) -> None:
    """`kubectl apply` by hand writes an annotation of the size of the object; webhooks label every object."""
    work = report(annotations={MAINTENANCE_LABEL: "a" * 9000})
    assert refusals(everything, write(work, "UPDATE", work)) == []
    long = report(annotations={"kubectl.kubernetes.io/last-applied-configuration": "a" * 9000})
    assert refusals(everything, write(long | {"links": []}, "UPDATE", long)) == []
    many = report(labels={str(n): "" for n in range(30)})
    assert refusals(everything, write(many | {"links": []}, "UPDATE", many)) == []
    assert refusals(everything, write(report(labels={"team": "gpu"}, annotations={"seen": "a" * 500}))) == []


@one_item("case", FORGED)
def test_a_forged_report_is_refused_by_name(case: str, everything: list[Manifest]) -> None:
    request, message = FORGED[case]
    assert any(message in one for one in refusals(everything, request))


def test_the_policies_apply_to_agents_only(everything: list[Manifest]) -> None:
    for user in ("kubernetes-admin", "system:serviceaccount:other:nodeagent"):
        assert refusals(everything, replace(write(report("dgx-002")), user=user, extra={})) == []


# Events


CORE_EVENT: dict[str, Any] = {
    "metadata": {"name": "dgx-001.17", "namespace": "default"},
    "involvedObject": {"kind": "Node", "apiVersion": "v1", "name": "dgx-001", "uid": "dgx-001"},
    "type": "Warning",
    "reason": "LinkCarrierDown",
    "message": "nic0: no carrier",
    "count": 1,
    "source": {"component": "nodeagent", "host": "dgx-001"},
    "reportingComponent": "nodeagent",
    "reportingInstance": "dgx-001",
}
_NEW_NAMES = {
    "involvedObject": "regarding",
    "message": "note",
    "source": "deprecatedSource",
    "reportingComponent": "reportingController",
    "count": "deprecatedCount",
}


def event(user: str = AGENT, **of: Any) -> Request:
    """Create an Event of the core group; ``None`` leaves a field out."""
    obj = {name: value for name, value in {**CORE_EVENT, **of}.items() if value is not None}
    extra = TOKEN if user == AGENT else {}
    return Request("CREATE", ":events", "dgx-001.17", user, extra, obj, None, "default")


def changed(request: Request, **before: Any) -> Request:
    """The same as a change of an Event that had these fields before."""
    return replace(request, operation="UPDATE", old=event(request.user, **before).object)


def as_new_form(request: Request) -> Request:
    """The same request to events.k8s.io, where the fields have other names."""

    def renamed(obj: dict[str, Any] | None) -> dict[str, Any] | None:
        return None if obj is None else {_NEW_NAMES.get(name, name): value for name, value in obj.items()}

    return replace(
        request, resource="events.k8s.io:events", object=renamed(request.object), old=renamed(request.old)
    )


def test_an_agent_creates_events_about_its_node_and_about_pods(everything: list[Manifest]) -> None:
    pod = event(involvedObject={"kind": "Pod", "name": "trainer", "namespace": "ml"})
    for request in (event(), event(source=None), pod, changed(pod), changed(event(count=2))):
        assert refusals(everything, request) == []
        assert refusals(everything, as_new_form(request)) == []


KUBELET = {"component": "kubelet", "host": "dgx-001"}
WRONG_EVENTS: dict[str, Request] = {
    "another node": event(involvedObject={"kind": "Node", "name": "dgx-002"}),
    "another kind": event(involvedObject={"kind": "Secret", "name": "dgx-001"}),
    "no target": event(involvedObject={}),
    "the host of another": event(source={"component": "nodeagent", "host": "dgx-002"}),
    "the instance of another": event(reportingInstance="dgx-002"),
    "no instance": event(reportingInstance=None),
    "as the kubelet": event(source=KUBELET, reportingComponent="kubelet"),
    "as the kubelet, by the source": event(source=KUBELET),
    "as the kubelet, by the reporter": event(reportingComponent="kubelet"),
    "without a reporter": event(reportingComponent=""),
    "the kubelet's Event of this node": changed(event(), source=KUBELET, reportingComponent="kubelet"),
    "the kubelet's Event before 1.27": changed(
        event(), source=KUBELET, reportingComponent="", reportingInstance=""
    ),
    "the kubelet's Event kept as it is": changed(
        event(source=KUBELET, reportingComponent="kubelet"), source=KUBELET, reportingComponent="kubelet"
    ),
    "an agent's Event of another node": changed(
        event(), source={"component": "nodeagent", "host": "dgx-002"}, reportingInstance="dgx-002"
    ),
    "an Event about another node": changed(event(), involvedObject={"kind": "Node", "name": "dgx-002"}),
    "a related object": event(related={"kind": "Secret", "name": "x"}),
    "an owner": event(metadata={"name": "x", "ownerReferences": [OWNER]}),
    "a finalizer": event(metadata={"name": "x", "finalizers": ["x.io/stay"]}),
    "labels without end": event(metadata={"name": "x", "labels": {str(n): "" for n in range(17)}}),
    "an endless annotation": event(metadata={"name": "x", "annotations": {"x": "a" * 1024}}),
    "a message without end": event(message="a" * 1025),
    "a reason without end": event(reason="a" * 129),
    "an action without end": event(action="a" * 129),
    "a type without end": event(type="a" * 1000),
    "a path without end": event(involvedObject={"kind": "Pod", "name": "x", "fieldPath": "a" * 254}),
    "a UID without end": event(involvedObject={"kind": "Pod", "name": "x", "uid": "a" * 254}),
}


@one_item("case", WRONG_EVENTS)
def test_an_event_in_the_name_of_another_is_refused_in_both_forms(
    case: str, everything: list[Manifest]
) -> None:
    assert refusals(everything, WRONG_EVENTS[case])
    assert refusals(everything, as_new_form(WRONG_EVENTS[case]))


def test_an_event_needs_a_token_of_a_node(everything: list[Manifest]) -> None:
    assert refusals(everything, replace(event(), extra={}))
    assert refusals(everything, replace(event(reportingInstance="", source=None), extra={NODE: [""]}))


BY_CONTROLLER = {
    "source": {"component": "nodeagent-controller"},
    "reportingComponent": "nodeagent-controller",
    "reportingInstance": "nodeagent-controller-0",
    "involvedObject": {"kind": "HyperNode", "name": "by-hand", "apiVersion": "topology.volcano.sh/v1alpha1"},
}
WRONG_BY_CONTROLLER: dict[str, Request] = {
    "as the kubelet": event(CONTROLLER, **BY_CONTROLLER | {"source": KUBELET}),
    "as an agent": event(CONTROLLER, **BY_CONTROLLER | {"reportingComponent": "nodeagent"}),
    "the kubelet's Event": changed(event(CONTROLLER, **BY_CONTROLLER), source=KUBELET),
    "a message without end": event(CONTROLLER, **BY_CONTROLLER | {"message": "a" * 1025}),
    "a path without end": event(
        CONTROLLER, **BY_CONTROLLER | {"involvedObject": {"kind": "Node", "fieldPath": "a" * 254}}
    ),
}


def test_the_controller_creates_events_in_its_own_name(everything: list[Manifest]) -> None:
    assert refusals(everything, event(CONTROLLER, **BY_CONTROLLER)) == []
    assert refusals(everything, as_new_form(event(CONTROLLER, **BY_CONTROLLER))) == []
    for request in WRONG_BY_CONTROLLER.values():
        assert refusals(everything, request)
        assert refusals(everything, as_new_form(request))


# Evictions


def eviction(**of: Any) -> Request:
    obj = {
        "metadata": {"name": "trainer", "namespace": of.get("namespace", "ml")},
        "deleteOptions": {"preconditions": {"uid": "1"}},
    }
    request = Request("CREATE", ":pods/eviction", "trainer", AGENT, TOKEN, obj, None, "ml")
    return replace(request, **of)


BY_NAME: dict[str, Request] = {
    "by name alone": eviction(object={"metadata": {"name": "x"}}),
    "without preconditions": eviction(object={"metadata": {"name": "x"}, "deleteOptions": {}}),
    "without a UID": eviction(object={"metadata": {"name": "x"}, "deleteOptions": {"preconditions": {}}}),
    "with an empty UID": eviction(
        object={"metadata": {"name": "x"}, "deleteOptions": {"preconditions": {"uid": ""}}}
    ),
}
WRONG_EVICTIONS: dict[str, Request] = {
    **BY_NAME,
    "a pod of the system": eviction(namespace="kube-system"),
    "a pod of nodeagent": eviction(namespace="nodeagent"),
    "a token without a node": eviction(extra={}),
    "killed at once": eviction(
        object={"metadata": {"name": "x"}, "deleteOptions": {"gracePeriodSeconds": 0}}
    ),
    "killed at once, with its UID": eviction(
        object={
            "metadata": {"name": "x"},
            "deleteOptions": {"preconditions": {"uid": "1"}, "gracePeriodSeconds": 0},
        }
    ),
    "of a version": eviction(
        object={
            "metadata": {"name": "x"},
            "deleteOptions": {"preconditions": {"uid": "1", "resourceVersion": "1"}},
        }
    ),
}


def test_a_pod_that_no_agent_may_evict_does_not_stop_the_other_evictions() -> None:
    """A policy refuses one pod, with 422 (Invalid) or with 403 (Forbidden). A missing right concerns all pods."""
    policy = named(built("components/evictions"), "ValidatingAdmissionPolicy", "nodeagent-evictions")
    (rule,) = (one for one in policy["spec"]["validations"] if "variables.kept" in one["expression"])
    assert rule["reason"] == "Invalid"
    assert ApiError("create", "/api/v1/pods", 422, "Invalid", "").refused
    denied = "ValidatingAdmissionPolicy 'nodeagent-evictions' with binding 'nodeagent-evictions' denied request: no"
    assert ApiError("create", "/api/v1/pods", 403, "Forbidden", f'pods "x" is forbidden: {denied}').refused
    right = 'pods "x" is forbidden: User "y" cannot create resource "pods/eviction" in API group ""'
    assert not ApiError("create", "/api/v1/pods", 403, "Forbidden", right).refused


def test_an_agent_evicts_no_pod_of_the_system_and_kills_none() -> None:
    manifests = built("components/evictions")
    assert refusals(manifests, eviction()) == []
    for request in WRONG_EVICTIONS.values():
        assert refusals(manifests, request)


def test_an_eviction_by_name_is_refused_with_the_remedy_and_not_as_a_missing_right() -> None:
    """Agents before 0.2.0 send one. They tell the message in the Event EvictionRefused, and go on."""
    manifests = built("components/evictions")
    for case, request in BY_NAME.items():
        (message,) = refusals(manifests, request)
        assert "an eviction must have the UID of the pod" in message, case
        assert "roll out the new image" in message, case
    policy = named(manifests, "ValidatingAdmissionPolicy", "nodeagent-evictions")
    (rule,) = (one for one in policy["spec"]["validations"] if "must have the UID" in one.get("message", ""))
    assert rule["reason"] == "Invalid"
    assert ApiError("create", "/api/v1/pods", 422, "Invalid", rule["message"]).refused


@pytest.mark.parametrize(
    ("agent", "policy", "passes"),
    [("old", "old", True), ("old", "new", False), ("new", "old", True), ("new", "new", True)],
)
def test_evictions_while_agent_and_policy_are_of_two_versions(agent: str, policy: str, passes: bool) -> None:
    """Before 0.2.0 an agent named the UID for over-use alone, and the policy demanded none."""
    manifests = built("components/evictions")
    if policy == "old":
        spec = named(manifests, "ValidatingAdmissionPolicy", "nodeagent-evictions")["spec"]
        spec["validations"] = [
            rule for rule in spec["validations"] if "must have the UID" not in rule.get("message", "")
        ]
        assert len(spec["validations"]) == 3
    request = eviction() if agent == "new" else BY_NAME["by name alone"]
    assert (refusals(manifests, request) == []) is passes


# Nodes


def node(change: Callable[[dict[str, Any]], object] = lambda _node: None) -> dict[str, Any]:
    made: dict[str, Any] = {
        "metadata": {"name": "dgx-001", "labels": {"zone": "a"}, "annotations": {"note": "1"}},
        "spec": {"taints": [{"key": "maintenance", "effect": "NoSchedule"}]},
        "status": {
            "conditions": [{"type": "Ready", "status": "True"}],
            "capacity": {"cpu": "8", "nvidia-dgx-h100/nic0": "8"},
            "allocatable": {"cpu": "8"},
            "addresses": [{"type": "InternalIP", "address": "192.0.2.9"}],
        },
    }
    change(made)
    return made


def patch(
    user: str, change: Callable[[dict[str, Any]], object], part: str = "nodes", name: str = "dgx-001"
) -> Request:
    return Request("UPDATE", f":{part}", name, user, TOKEN if user == AGENT else {}, node(change), node())


OWN_TAINT, DEVICE_TAINT = (
    {"key": f"nodeagent.io/{name}", "effect": "NoSchedule"} for name in ("links-down", "device-failed")
)
MARK = {"key": "nodeagent.io/links-below-minimum", "effect": "NoSchedule"}


def condition(type_: str, **of: Any) -> dict[str, Any]:
    return {"type": type_, "status": "False", "reason": "LinksDown", "message": "1 of 8 links is down", **of}


LINK, GPU, FABRIC = (f"nodeagent.io/{name}" for name in ("LinkHealthy", "GpuHealthy", "FabricLinks"))
OWN_CONDITION = condition(FABRIC)


@pytest.mark.parametrize(
    ("policy", "writer"),
    [("nodeagent-node-conditions", "agent"), ("nodeagent-controller-nodes", "controller")],
)
def test_the_policies_name_the_marks_of_the_code(
    policy: str, writer: str, everything: list[Manifest]
) -> None:
    spec = named(everything, "ValidatingAdmissionPolicy", policy)["spec"]
    variables = {one["name"]: one["expression"] for one in spec["variables"]}
    own: dict[str, set[str]] = {kind: set() for kind in ("condition", "label", "taint")}
    for mark in OWN_MARKS:
        if mark.writer == writer:
            own[mark.kind].add(mark.key)
    assert set(json.loads(variables["ownConditions"])) == own["condition"]
    if writer == "agent":
        assert set(json.loads(variables["ownLabels"])) == own["label"]
        assert set(json.loads(variables["ownTaints"])) == own["taint"]
        messages = " ".join(one.get("message", "") for one in spec["validations"])
        names = {key.partition("/")[2] for keys in own.values() for key in keys}
        assert {name for name in names if name not in messages} == set(), "name it in the message"
    else:
        validations = str(spec["validations"])
        assert [key for key in own["taint"] if f'== "{key}"' not in validations] == []
        assert all(key.startswith("topology.nodeagent.io/") for key in own["label"])


def test_an_agent_sets_its_conditions_its_taints_and_its_labels(everything: list[Manifest]) -> None:
    def conditions(made: dict[str, Any]) -> None:
        made["status"]["conditions"] += [condition(LINK), condition(GPU)]

    marked = patch(AGENT, conditions, "nodes/status")
    assert refusals(everything, marked) == []
    assert refusals(everything, replace(marked, object=marked.old, old=marked.object)) == []
    tainted = patch(AGENT, lambda made: made["spec"]["taints"].extend([OWN_TAINT, DEVICE_TAINT]))
    assert refusals(everything, tainted) == []
    assert refusals(everything, replace(tainted, object=tainted.old, old=tainted.object)) == []
    for key in [one.key for one in OWN_MARKS if (one.writer, one.kind) == ("agent", "label")]:
        label = patch(AGENT, lambda made, key=key: made["metadata"]["labels"].update({key: "2"}))
        assert refusals(everything, label) == []
        assert refusals(everything, replace(label, object=label.old, old=label.object)) == []


WRONG_FOR_ALL: dict[str, Callable[[dict[str, Any]], object]] = {
    "another's label": lambda made: made["metadata"]["labels"].update(zone="b"),
    "a new label": lambda made: made["metadata"]["labels"].update({"node-role.kubernetes.io/x": ""}),
    "a label like the agent's": lambda made: made["metadata"]["labels"].update({"nodeagent.io/gpu-mem": "8"}),
    "a label gone": lambda made: made["metadata"].pop("labels"),
    "another's taint": lambda made: made["spec"].update(taints=[]),
    "a taint": lambda made: made["spec"]["taints"].append({"key": "x", "effect": "NoSchedule"}),
    "a taint that evicts": lambda made: made["spec"]["taints"].append(OWN_TAINT | {"effect": "NoExecute"}),
    "a cordon": lambda made: made["spec"].update(unschedulable=True),
    "its provider": lambda made: made["spec"].update(providerID="aws:///i-0"),
    "its pods' network": lambda made: made["spec"].update(podCIDRs=["192.0.2.0/24"]),
    "its pods' first network": lambda made: made["spec"].update(podCIDR="192.0.2.0/24"),
    # With an owner that does not exist the garbage collector deletes the Node.
    "an owner": lambda made: made["metadata"].update(ownerReferences=[OWNER | {"uid": "0000"}]),
    "a finalizer": lambda made: made["metadata"].update(finalizers=["x.io/stay"]),
    "an annotation": lambda made: made["metadata"]["annotations"].update(note="2"),
    "annotations gone": lambda made: made["metadata"].pop("annotations"),
    "planned work": lambda made: made["metadata"]["annotations"].update(WORK),
    "its pool": lambda made: made["metadata"]["labels"].update({"nodeagent.io/pool": "other"}),
    "its agent": lambda made: made["metadata"]["labels"].update({"nodeagent.io/agent": "false"}),
    "readiness": lambda made: made["status"].update(conditions=[{"type": "Ready", "status": "False"}]),
    "capacity": lambda made: made["status"]["capacity"].update({"nvidia-dgx-h100/nic0": "99"}),
    "allocatable": lambda made: made["status"].pop("allocatable"),
    "an address": lambda made: made["status"].update(addresses=[]),
    "the kubelet's port": lambda made: made["status"].update(
        daemonEndpoints={"kubeletEndpoint": {"Port": 1}}
    ),
    "a volume": lambda made: made["status"].update(volumesAttached=[{"name": "x", "devicePath": ""}]),
    "volumes in use": lambda made: made["status"].update(volumesInUse=["x"]),
    "images": lambda made: made["status"].update(images=[{"names": ["x"], "sizeBytes": 1}]),
    "its kernel": lambda made: made["status"].update(nodeInfo={"kernelVersion": "x"}),
    "its features": lambda made: made["status"].update(features={"supplementalGroupsPolicy": True}),
    "a field of a later version": lambda made: made["status"].update(trusted=True),
    "a field of the spec of a later version": lambda made: made["spec"].update(trusted=True),
    "readiness twice": lambda made: made["status"]["conditions"].append(
        {"type": "Ready", "status": "Unknown"}
    ),
    "an unknown mark": lambda made: made["status"]["conditions"].append(condition("nodeagent.io/Other")),
    "an unknown taint": lambda made: made["spec"]["taints"].append(OWN_TAINT | {"key": "nodeagent.io/other"}),
}


def many(mark: dict[str, Any]) -> list[dict[str, Any]]:
    return [mark | {"value": str(n)} for n in range(100)]


WRONG_FOR_AGENTS: dict[str, Callable[[dict[str, Any]], object]] = {
    "its taint a hundred times": lambda made: made["spec"]["taints"].extend(many(OWN_TAINT)),
    "its other taint twice": lambda made: made["spec"]["taints"].extend(many(DEVICE_TAINT)[:2]),
    "its other taint to evict": lambda made: made["spec"]["taints"].append(
        DEVICE_TAINT | {"effect": "NoExecute"}
    ),
    "a list of GPUs without end": lambda made: made["metadata"]["annotations"].update(
        {"volcano.sh/node-vgpu-register": "a" * 200_000}
    ),
    "an answer without end": lambda made: made["metadata"]["annotations"].update(
        {"volcano.sh/node-vgpu-handshake": "a" * 1025}
    ),
    "a tree label": lambda made: made["metadata"]["labels"].update({"topology.nodeagent.io/tier-1": "x"}),
    "the controller's taint": lambda made: made["spec"]["taints"].append(MARK),
    "the controller's condition": lambda made: made["status"]["conditions"].append(condition(FABRIC)),
    "its condition twice": lambda made: made["status"]["conditions"].extend([condition(LINK)] * 3),
    "a message without end": lambda made: made["status"]["conditions"].append(
        condition(LINK, message="a" * 1025)
    ),
}
WRONG_FOR_THE_CONTROLLER: dict[str, Callable[[dict[str, Any]], object]] = {
    "its taint a hundred times": lambda made: made["spec"]["taints"].extend(many(MARK)),
    "a hundred labels of the tree": lambda made: made["metadata"]["labels"].update(
        {f"topology.nodeagent.io/tier-{n}": "x" for n in range(100)}
    ),
    "the agent's label": lambda made: made["metadata"]["labels"].update({"nodeagent.io/link-degraded": "1"}),
    "the agent's other label": lambda made: made["metadata"]["labels"].update(
        {"nodeagent.io/gpu-mem-largest": "1"}
    ),
    "the agent's taint": lambda made: made["spec"]["taints"].append(OWN_TAINT),
    "the agent's condition": lambda made: made["status"]["conditions"].append(condition(LINK)),
    "a message without end": lambda made: made["status"]["conditions"].append(
        condition(FABRIC, message="a" * 1025)
    ),
}

WRONG_FOR_OPERATORS: dict[str, Callable[[dict[str, Any]], object]] = {
    **{name: change for name, change in WRONG_FOR_ALL.items() if name != "planned work"},
    "planned work without end": lambda made: made["metadata"]["annotations"].update(
        {MAINTENANCE_LABEL: "a" * 65_537}
    ),
    "another's annotation beside it": lambda made: made["metadata"]["annotations"].update(WORK, note="2"),
    "its deletion": lambda made: made["metadata"].update(deletionTimestamp="2026-01-01T00:00:00Z"),
    "a label of the agent": lambda made: made["metadata"]["labels"].update(
        {"nodeagent.io/link-degraded": "1"}
    ),
}
OPERATE = ("create", "nodeagent.io", "maintenance")


def operated(change: Callable[[dict[str, Any]], object]) -> Request:
    """By a person with the role nodeagent-operate."""
    return replace(patch("ann", change), may=frozenset((OPERATE,)))


def test_who_operates_begins_and_ends_planned_work(everything: list[Manifest]) -> None:
    begun = operated(lambda made: made["metadata"]["annotations"].update(WORK))
    assert refusals(everything, begun) == []
    assert refusals(everything, replace(begun, object=begun.old, old=begun.object)) == []
    first = node(lambda made: made["metadata"].pop("annotations"))
    assert refusals(everything, replace(begun, old=first, object=node_with_work(first))) == []
    assert refusals(everything, replace(begun, old=node_with_work(first), object=first)) == []
    of_report = replace(
        begun, resource="nodeagent.io:nodelinks", old=report(), object=report(annotations=WORK)
    )
    assert refusals(everything, of_report) == []
    versioned = report(
        annotations=WORK, resourceVersion="2", generation=2, managedFields=[{"manager": "kubectl"}]
    )
    assert refusals(everything, replace(of_report, object=versioned)) == []


def node_with_work(made: dict[str, Any]) -> dict[str, Any]:
    return made | {"metadata": made["metadata"] | {"annotations": WORK}}


@one_item("case", WRONG_FOR_OPERATORS)
def test_who_operates_changes_nothing_else_of_a_node(case: str, everything: list[Manifest]) -> None:
    assert refusals(everything, operated(WRONG_FOR_OPERATORS[case]))


@pytest.mark.parametrize(
    "changed",
    [
        report() | {"links": []},
        report() | {"nodeName": "dgx-002"},
        report() | {"more": 1},
        {key: value for key, value in report().items() if key != "links"},
        report(labels={"a": "b"}),
        report(annotations={"a": "b"}),
    ],
)
def test_who_operates_forges_no_report(changed: dict[str, Any], everything: list[Manifest]) -> None:
    forged = Request(
        "UPDATE", "nodeagent.io:nodelinks", "dgx-001", "ann", {}, changed, report(), "nodeagent", frozenset((OPERATE,))
    )  # fmt: skip
    assert refusals(everything, forged)


def test_the_limits_of_who_operates_are_nobody_elses(everything: list[Manifest]) -> None:
    """Those of administrators, who may do all, and of programs with a right to patch Nodes."""
    cordon = operated(lambda made: made["spec"].update(unschedulable=True))
    assert refusals(everything, cordon)
    assert refusals(everything, replace(cordon, may=frozenset())) == []
    assert refusals(everything, replace(cordon, may=frozenset((OPERATE, ("update", "", "nodes"))))) == []


@one_item("case", [*WRONG_FOR_ALL, *WRONG_FOR_AGENTS])
def test_an_agent_changes_nothing_else_of_its_node(case: str, everything: list[Manifest]) -> None:
    assert refusals(everything, patch(AGENT, (WRONG_FOR_ALL | WRONG_FOR_AGENTS)[case]))


def test_an_agent_changes_no_other_node(everything: list[Manifest]) -> None:
    own = patch(AGENT, lambda made: made["spec"]["taints"].append(OWN_TAINT))
    assert refusals(everything, replace(own, name="dgx-002"))
    assert refusals(everything, replace(own, extra={}))
    assert refusals(everything, replace(own, operation="DELETE", object=None))


def test_the_controller_writes_the_labels_of_the_tree(everything: list[Manifest]) -> None:
    def place(made: dict[str, Any]) -> None:
        made["metadata"]["labels"].update({"topology.nodeagent.io/tier-1": "su01"})

    assert refusals(everything, patch(CONTROLLER, place)) == []
    assert refusals(everything, replace(patch(CONTROLLER, place), object=node(), old=node(place))) == []
    same = patch(CONTROLLER, lambda made: made["metadata"]["labels"].update(zone="a"))
    assert refusals(everything, same) == []


def test_the_controller_marks_nodes_with_too_few_links(everything: list[Manifest]) -> None:
    taint = patch(CONTROLLER, lambda made: made["spec"]["taints"].append(MARK))
    mark = patch(CONTROLLER, lambda made: made["status"]["conditions"].append(OWN_CONDITION), "nodes/status")
    for request in (taint, mark):
        assert refusals(everything, request) == []
        assert refusals(everything, replace(request, object=request.old, old=request.object)) == []


@one_item("case", [*WRONG_FOR_ALL, *WRONG_FOR_THE_CONTROLLER])
def test_the_controller_changes_nothing_else_of_a_node(case: str, everything: list[Manifest]) -> None:
    assert refusals(everything, patch(CONTROLLER, (WRONG_FOR_ALL | WRONG_FOR_THE_CONTROLLER)[case]))


def test_the_controller_removes_the_start_up_taint_and_never_sets_it(everything: list[Manifest]) -> None:
    for effect in ("NoSchedule", "NoExecute"):
        taint = {"key": STARTING_TAINT, "effect": effect}
        setting = patch(CONTROLLER, lambda made, taint=taint: made["spec"]["taints"].append(taint))
        removing = replace(setting, object=setting.old, old=setting.object)
        assert refusals(everything, setting)
        assert refusals(everything, removing) == []
        assert refusals(everything, replace(removing, user=AGENT))


def test_marks_that_are_too_many_already_do_not_block_other_changes(everything: list[Manifest]) -> None:
    """Another client may have added them."""

    def full(made: dict[str, Any]) -> None:
        made["spec"]["taints"] += [*many(OWN_TAINT), *many(DEVICE_TAINT), *many(MARK)]
        made["metadata"]["labels"].update({f"topology.nodeagent.io/tier-{n}": "x" for n in range(100)})
        made["metadata"]["annotations"].update({"volcano.sh/node-vgpu-register": "a" * 200_000})

    def labeled(made: dict[str, Any], key: str) -> None:
        full(made)
        made["metadata"]["labels"][key] = "2"

    for user, key in ((AGENT, "nodeagent.io/link-degraded"), (CONTROLLER, "topology.nodeagent.io/tier-1")):
        request = replace(patch(user, lambda made, key=key: labeled(made, key)), old=node(full))
        assert refusals(everything, request) == []


def test_an_agent_does_not_remove_the_marks_of_the_controller(everything: list[Manifest]) -> None:
    taint = patch(AGENT, lambda made: made["spec"]["taints"].append(MARK))
    mark = patch(AGENT, lambda made: made["status"]["conditions"].append(OWN_CONDITION), "nodes/status")
    for request in (taint, mark):
        assert refusals(everything, replace(request, object=request.old, old=request.object))


def test_an_agent_marks_a_node_that_has_marks_of_the_controller(everything: list[Manifest]) -> None:
    def marked(made: dict[str, Any]) -> None:
        made["spec"]["taints"].append(MARK)
        made["status"]["conditions"].append(OWN_CONDITION)

    def marked_by_both(made: dict[str, Any]) -> None:
        marked(made)
        made["spec"]["taints"].append(OWN_TAINT)
        made["status"]["conditions"].append(condition(LINK))

    request = replace(patch(AGENT, marked_by_both), old=node(marked))
    assert refusals(everything, request) == []


def test_the_controller_neither_creates_nor_deletes_nodes(everything: list[Manifest]) -> None:
    request = patch(CONTROLLER, lambda _made: None)
    assert refusals(everything, replace(request, operation="DELETE", object=None))
    assert refusals(everything, replace(request, operation="CREATE", old=None))


# HyperNodes


def hypernode(
    operation: str, source: str | None = "nodeagent", before: str | None = "nodeagent", **notes: str
) -> Request:
    def made(value: str | None, **more: Any) -> dict[str, Any]:
        labels = {} if value is None else {"labels": {SOURCE_LABEL: value}}
        return {"metadata": {"name": "su-1", **labels, **more}, "spec": {"tier": 1}}

    return Request(
        operation,
        "topology.volcano.sh:hypernodes",
        "su-1",
        CONTROLLER,
        {},
        None if operation == "DELETE" else made(source, annotations=notes),
        None if operation == "CREATE" else made(before),
    )


WRONG_HYPERNODES: dict[str, Request] = {
    "another's, deleted": hypernode("DELETE", before="ufm"),
    "one by hand, deleted": hypernode("DELETE", before=None),
    "another's, changed": hypernode("UPDATE", "ufm", "ufm"),
    "another's, taken over": hypernode("UPDATE", "nodeagent", "ufm"),
    "one by hand, taken over": hypernode("UPDATE", "nodeagent", None),
    "its own, given away": hypernode("UPDATE", "ufm"),
    "made in another's name": hypernode("CREATE", "ufm"),
    "made without a name": hypernode("CREATE", None),
    "an endless annotation": hypernode("UPDATE", x="a" * 200_000),
    "annotations without end": hypernode("CREATE", **{f"x{n}": "" for n in range(17)}),
    "another's condition": replace(
        hypernode("UPDATE", "ufm", "ufm"), resource="topology.volcano.sh:hypernodes/status"
    ),
}


def test_the_controller_changes_no_hypernode_of_another_owner(everything: list[Manifest]) -> None:
    for operation in ("CREATE", "UPDATE", "DELETE"):
        assert refusals(everything, hypernode(operation, switches="a" * 60_000)) == []
    for case, request in WRONG_HYPERNODES.items():
        assert refusals(everything, request), case


# Objects for other programs

NAME = "nodeagent-slurm-topology"


def kept(
    resource: str, content: dict[str, Any], operation: str = "UPDATE", name: str = NAME,
    owner: str | None = OURS, before: str | None = OURS, **meta: Any,
) -> Request:  # fmt: skip
    def made(whose: str | None, **more: Any) -> dict[str, Any]:
        labels = {} if whose is None else {"labels": {OWNER_LABEL: whose}}
        return {"metadata": {"name": name, **labels, **more}, **content}

    new = None if operation == "DELETE" else made(owner, **meta)
    old = None if operation == "CREATE" else made(before)
    return Request(operation, resource, name, CONTROLLER, {}, new, old, "slurm")


def config_map(
    *args: Any, files: tuple[str, ...] = ("topology.conf",), more: dict[str, Any] | None = None, **of: Any
) -> Request:
    return kept(":configmaps", {"data": dict.fromkeys(files, "x")} | (more or {}), *args, **of)


WRONG_CONFIG_MAPS: dict[str, Request] = {
    "another name": config_map("CREATE", name="slurm-config"),
    "deleted": config_map("DELETE"),
    "one that people made": config_map(before=None),
    "one of Helm": config_map(before="Helm"),
    "given away": config_map(owner="Helm"),
    "made without an owner": config_map("CREATE", owner=None),
    "slurm.conf": config_map(files=("topology.conf", "slurm.conf")),
    "a script": config_map("CREATE", files=("job_submit.lua",)),
    "bytes": config_map(more={"binaryData": {"slurm.conf": "eA=="}}),
    "for good": config_map(more={"immutable": True}),
    "an owner": config_map(ownerReferences=[OWNER]),
    "a finalizer": config_map("CREATE", finalizers=["x.io/stay"]),
}


def node_group(
    *args: Any, feature: str = "system.name", more: dict[str, Any] | None = None, **of: Any
) -> Request:
    terms = {"nodename": {"op": "In", "value": ["gpu-0"]}}
    rule = {"name": "a", "matchFeatures": [{"feature": feature, "matchExpressions": terms}], **(more or {})}
    return kept("nfd.k8s-sigs.io:nodefeaturegroups", {"spec": {"featureGroupRules": [rule]}}, *args, **of)


WRONG_NODE_GROUPS: dict[str, Request] = {
    "another's, deleted": node_group("DELETE", before="topograph"),
    "one by hand, deleted": node_group("DELETE", before=None),
    "another's, taken over": node_group(before="topograph"),
    "its own, given away": node_group(owner="topograph"),
    "made without an owner": node_group("CREATE", owner=None),
    "by another feature": node_group("CREATE", feature="kernel.version"),
    "with variables": node_group(more={"vars": {"x": "y"}}),
    "with a template": node_group(more={"varsTemplate": "{{ . }}"}),
    "an owner": node_group(ownerReferences=[OWNER]),
    "a finalizer": node_group("CREATE", finalizers=["x.io/stay"]),
}


def test_the_controller_writes_nothing_else_for_other_programs(every_policy: list[Manifest]) -> None:
    for operation in ("CREATE", "UPDATE"):
        assert refusals(every_policy, config_map(operation)) == []
        assert refusals(every_policy, config_map(operation, files=("topology.yaml",))) == []
    for operation in ("CREATE", "UPDATE", "DELETE"):
        assert refusals(every_policy, node_group(operation)) == []
    for case, request in (WRONG_CONFIG_MAPS | WRONG_NODE_GROUPS).items():
        assert refusals(every_policy, request), case


# Partners of rails

NODE_OWNER = OWNER | {"name": "gpu-0"}


def partners(
    operation: str = "CREATE", user: str = CONTROLLER, probe: dict[str, Any] | None = None,
    answer: dict[str, Any] | None = None, **meta: Any,
) -> Request:  # fmt: skip
    one = {"node": "gpu-1", "nic": "nic0", "address": "10.0.0.2"}
    rail = {"rail": "nic0", "probe": [one | (probe or {})], "answer": [one | (answer or {})]}
    new = {"metadata": {"name": "gpu-0", "ownerReferences": [NODE_OWNER], **meta}, "spec": {"rails": [rail]}}
    old = None if operation == "CREATE" else new | {"spec": {}}
    return Request(operation, "nodeagent.io:railpartners", "gpu-0", user, {}, new, old)


WRONG_PARTNERS: dict[str, Request] = {
    "by an agent": partners(user=AGENT),
    "by a person": partners("UPDATE", user="root@example.com"),
    "another owner": partners(ownerReferences=[NODE_OWNER | {"name": "gpu-1"}]),
    "two owners": partners(ownerReferences=[NODE_OWNER, NODE_OWNER | {"kind": "Pod"}]),
    "no owner": partners(ownerReferences=[]),
    "a finalizer": partners("UPDATE", finalizers=["x.io/stay"]),
    "itself": partners(probe={"node": "gpu-0"}),
    "a name": partners(probe={"address": "victim.example.com"}),
    "multicast": partners(probe={"address": "239.0.0.1"}),
    "multicast of IPv6": partners(answer={"address": "ff02::1"}),
    "every host": partners(probe={"address": "255.255.255.255"}),
    "loopback": partners("UPDATE", answer={"address": "127.0.0.1"}),
    "loopback of IPv6": partners(probe={"address": "::1"}),
    "an octet above 255": partners(probe={"address": "300.1.1.1"}),
    "labels without end": partners(labels={f"x.io/{n}": "" for n in range(17)}),
    "an endless annotation": partners(annotations={"x": "a" * 1024}),
}


def test_only_the_controller_writes_partners_and_only_hosts(every_policy: list[Manifest]) -> None:
    for operation in ("CREATE", "UPDATE"):
        for address in ("10.0.0.2", "192.0.2.1", "fe80::1", "2001:db8::ff00:42:8329"):
            assert refusals(every_policy, partners(operation, probe={"address": address})) == []
    for case, request in WRONG_PARTNERS.items():
        assert refusals(every_policy, request), case


# Other spellings of the loopback of IPv6 and of addresses of IPv4, and what is no address in its usual form.
NO_HOSTS = [
    *("0::1", "::0001", "0000::1", "0:0:0:0:0:0:0:1", "0::", "0:0::0", "::127.0.0.1", "64:ff9b::7f00:1", "100::1"),
    *("::ffff:127.0.0.1", "::FFFF:7f00:1", "0:0:0:0:0:ffff:7f00:1", "fe80::127.0.0.1", "fe80::1%lo", "FF02::1"),
    *("010.0.0.1", "10.0.0.010", "10.0.0.256", "127.1", "0x7f.0.0.1", "2130706433", "a:b", "10.0.0.1\n127.0.0.1"),
]  # fmt: skip


def test_no_spelling_of_an_address_passes_that_no_host_has(every_policy: list[Manifest]) -> None:
    for address in NO_HOSTS:
        assert refusals(every_policy, partners(probe={"address": address})), address
        assert refusals(every_policy, partners(answer={"address": address})), address


def test_the_policy_and_the_controller_agree_on_the_address_of_a_host(every_policy: list[Manifest]) -> None:
    """Otherwise a node would get no list."""
    addresses = [ip_address(f"{first:x}::5") for first in (*range(0, 65536, 509), *range(0xFB00, 65536, 32))]
    addresses += [ip_address(f"{first}.{second}.0.9") for first in range(256) for second in (0, 99, 255)]
    for address in addresses:
        refused = refusals(every_policy, partners(probe={"address": str(address)}))
        assert bool(refused) is not of_a_host(address), address


# The policies themselves


def test_every_policy_is_bound_and_names_existing_accounts(every_policy: list[Manifest]) -> None:
    accounts = {
        f"system:serviceaccount:{one['metadata']['namespace']}:{one['metadata']['name']}"
        for one in of_kind(every_policy, "ServiceAccount")
    }
    bound = {one["spec"]["policyName"] for one in of_kind(every_policy, "ValidatingAdmissionPolicyBinding")}
    for policy in of_kind(every_policy, "ValidatingAdmissionPolicy"):
        assert policy["metadata"]["name"] in bound
        if policy["metadata"]["name"] == "nodeagent-operate":  # of people, whom no account names
            continue
        (condition,) = policy["spec"]["matchConditions"]
        assert any(f'== "{account}"' in condition["expression"] for account in accounts)


POLICIES = {
    "nodeagent-reports": [request for request, _ in FORGED.values()],
    "nodeagent-events": [
        *WRONG_EVENTS.values(),
        replace(event(reportingInstance="", source=None, involvedObject={"kind": "Pod"}), extra={NODE: [""]}),
    ],
    "nodeagent-controller-events": list(WRONG_BY_CONTROLLER.values()),
    "nodeagent-controller-hypernodes": list(WRONG_HYPERNODES.values()),
    "nodeagent-controller-slurm": list(WRONG_CONFIG_MAPS.values()),
    "nodeagent-controller-node-feature-groups": list(WRONG_NODE_GROUPS.values()),
    "nodeagent-controller-rails": list(WRONG_PARTNERS.values()),
    "nodeagent-evictions": list(WRONG_EVICTIONS.values()),
    "nodeagent-slices": list(WRONG_SLICES.values()),
    "nodeagent-claims": list(WRONG_CLAIMS.values()),
    "nodeagent-node-conditions": [
        *(patch(AGENT, change) for change in (WRONG_FOR_ALL | WRONG_FOR_AGENTS).values()),
        replace(patch(AGENT, lambda _made: None), name="x"),
    ],
    "nodeagent-controller-nodes": [
        *(patch(CONTROLLER, change) for change in WRONG_FOR_ALL.values()),
        replace(patch(CONTROLLER, lambda _made: None), operation="DELETE"),
    ],
    "nodeagent-operate": [operated(change) for change in WRONG_FOR_OPERATORS.values()],
}


@pytest.fixture(scope="module")
def every_policy(everything: list[Manifest]) -> list[Manifest]:
    folders = ("evictions", "dra", "slurm", "node-feature-groups", "rails")
    more = [one for folder in folders for one in built(f"components/{folder}")]
    names = (
        "nodeagent-evictions",
        "nodeagent-slices",
        "nodeagent-claims",
        "nodeagent-controller-slurm",
        "nodeagent-controller-node-feature-groups",
        "nodeagent-controller-rails",
    )
    return [
        *everything,
        *(one for one in more if one["metadata"]["name"] in names and "Admission" in one["kind"]),
        *(one for one in more if one["metadata"]["name"] == "railpartners.nodeagent.io"),
    ]


@pytest.mark.parametrize("policy", POLICIES)
def test_each_validation_refuses_a_forged_request_that_the_others_allow(
    policy: str, every_policy: list[Manifest]
) -> None:
    """Each validation is needed: without it, one of the forged requests passes."""
    assert {one["metadata"]["name"] for one in of_kind(every_policy, "ValidatingAdmissionPolicy")} == set(
        POLICIES
    )
    spec = named(every_policy, "ValidatingAdmissionPolicy", policy)["spec"]
    for left_out in list(spec["validations"]):
        rest = [one for one in spec["validations"] if one is not left_out]
        weaker = [
            one | {"spec": spec | {"validations": rest}} if one["metadata"]["name"] == policy
            and one["kind"] == "ValidatingAdmissionPolicy" else one
            for one in every_policy
        ]  # fmt: skip
        assert any(refusals(every_policy, one) and not refusals(weaker, one) for one in POLICIES[policy]), (
            left_out
        )


@pytest.mark.parametrize("version", [OLDEST, "1.36", NEWEST])
def test_the_api_server_finds_no_wrong_type_in_a_policy(version: str, every_policy: list[Manifest]) -> None:
    """As far as a CEL library goes: ``tests.support.cel_types`` lists what the check cannot see."""
    crds = [*of_kind(every_policy, "CustomResourceDefinition"), nfd_definition()]
    for policy in of_kind(every_policy, "ValidatingAdmissionPolicy"):
        assert type_errors(policy, crds, version) == []


WRONG_TYPES = {
    "a map of quantities": (
        "nodes",
        "object.status.capacity == oldObject.status.capacity",
        "undefined field",
    ),
    "the other form of an Event": ("events", 'object.involvedObject.kind == "Pod"', "undefined field"),
    "a field that does not exist": ("nodes", 'object.spec.nodeName == ""', "undefined field"),
    "a number for a text": ("nodes", "object.metadata.name == 1", "no matching overload"),
    "a text for a truth": ("nodes", "object.metadata.name", "not a BOOL"),
}


@pytest.mark.parametrize("case", WRONG_TYPES)
def test_the_check_of_types_finds_what_the_api_server_warned_of(
    case: str, every_policy: list[Manifest]
) -> None:
    resource, expression, error = WRONG_TYPES[case]
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "resources": [resource]}
    spec = {"matchConstraints": {"resourceRules": [rule]}, "validations": [{"expression": expression}]}
    found = type_errors({"metadata": {"name": "x"}, "spec": spec}, [], "1.36")
    assert found
    assert all(error in one for one in found)


def test_the_page_on_security_names_every_policy_and_no_other(every_policy: list[Manifest]) -> None:
    table = [line for line in (ROOT / "docs" / "security.md").read_text().splitlines() if line[:1] == "|"]
    assert set(re.findall(r"`(nodeagent-[a-z-]+)`", "\n".join(table))) == set(POLICIES)


def test_expressions_and_messages_have_no_line_breaks(every_policy: list[Manifest]) -> None:
    """The API server refuses a policy whose message has one, or whose expression has one without a message."""
    for policy in of_kind(every_policy, "ValidatingAdmissionPolicy"):
        spec = policy["spec"]
        for part in (*spec["matchConditions"], *spec.get("variables", ()), *spec["validations"]):
            assert not any("\n" in text for text in part.values()), part


def test_the_policies_use_only_functions_of_the_oldest_supported_version(
    every_policy: list[Manifest],
) -> None:
    for policy in of_kind(every_policy, "ValidatingAdmissionPolicy"):
        for word in ("optional.", ".?", "[?", "cel.bind", "format.", "sets.", ".join("):
            assert word not in str(policy["spec"])
