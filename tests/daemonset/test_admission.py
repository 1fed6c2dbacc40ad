"""Admission policies: an agent writes about its own node only; valid and forged requests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.daemonset.test_schemas import REPORT
from tests.support.admission import NODE, UID, Request, refusals
from tests.support.manifests import Manifest, built, of_kind

pytestmark = pytest.mark.needs("kubectl", "cel")

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
    return built("overlays/node-conditions")


def test_an_agent_writes_its_own_report(everything: list[Manifest]) -> None:
    assert refusals(everything, write(report())) == []
    assert refusals(everything, write(report(ownerReferences=[OWNER]))) == []
    assert refusals(everything, write(report(), "UPDATE", report())) == []
    assert refusals(everything, replace(write(report(), "DELETE", report()), object=None)) == []


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
    "a finalizer": (write(report(finalizers=["x.io/stay"])), "no finalizers"),
}


@pytest.mark.parametrize("case", FORGED)
def test_a_forged_report_is_refused_by_name(case: str, everything: list[Manifest]) -> None:
    request, message = FORGED[case]
    assert any(message in one for one in refusals(everything, request))


def test_the_policies_apply_to_agents_only(everything: list[Manifest]) -> None:
    for user in ("kubernetes-admin", "system:serviceaccount:other:nodeagent"):
        assert refusals(everything, replace(write(report("dgx-002")), user=user, extra={})) == []


# Events


def event(**of: Any) -> Request:
    obj = {
        "metadata": {"name": "dgx-001.17"},
        "involvedObject": {"kind": "Node", "name": "dgx-001"},
        "source": {"component": "nodeagent", "host": "dgx-001"},
        **of,
    }
    return Request("CREATE", ":events", "dgx-001.17", AGENT, TOKEN, obj, None, "default")


def test_an_agent_creates_events_about_its_node_and_about_pods(everything: list[Manifest]) -> None:
    assert refusals(everything, event()) == []
    assert refusals(everything, event(source={}, reportingInstance="dgx-001")) == []
    pod = event(involvedObject={"kind": "Pod", "name": "trainer", "namespace": "ml"})
    assert refusals(everything, pod) == []
    assert refusals(everything, replace(pod, operation="UPDATE", old=pod.object)) == []


@pytest.mark.parametrize(
    "change",
    [
        {"involvedObject": {"kind": "Node", "name": "dgx-002"}},
        {"involvedObject": {"kind": "Secret", "name": "dgx-001"}},
        {"source": {"component": "nodeagent", "host": "dgx-002"}},
        {"source": {}},
    ],
)
def test_an_event_with_the_component_of_another_is_refused(
    change: dict[str, Any], everything: list[Manifest]
) -> None:
    assert refusals(everything, event(**change))


def test_an_event_of_another_component_cannot_be_changed(everything: list[Manifest]) -> None:
    old = event(source={"component": "kubelet", "host": "dgx-002"}).object
    assert refusals(everything, replace(event(), operation="UPDATE", old=old))


# Nodes


def node(change: Callable[[dict[str, Any]], object] = lambda _node: None) -> dict[str, Any]:
    made: dict[str, Any] = {
        "metadata": {"name": "dgx-001", "labels": {"zone": "a"}, "annotations": {"note": "1"}},
        "spec": {"taints": [{"key": "maintenance", "effect": "NoSchedule"}]},
        "status": {
            "conditions": [{"type": "Ready", "status": "True"}],
            "capacity": {"cpu": "8"},
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


OWN_TAINT = {"key": "nodeagent.io/links-down", "effect": "NoSchedule"}
MARK = {"key": "nodeagent.io/links-below-minimum", "effect": "NoSchedule"}
OWN_CONDITION = {"type": "nodeagent.io/FabricLinks", "status": "False"}


def test_an_agent_sets_its_condition_its_taint_and_its_label(everything: list[Manifest]) -> None:
    def condition(made: dict[str, Any]) -> None:
        made["status"]["conditions"].append({"type": "nodeagent.io/LinkHealthy", "status": "False"})

    assert refusals(everything, patch(AGENT, condition, "nodes/status")) == []
    assert refusals(everything, patch(AGENT, lambda made: made["spec"]["taints"].append(OWN_TAINT))) == []
    label = patch(AGENT, lambda made: made["metadata"]["labels"].update({"nodeagent.io/link-degraded": "2"}))
    assert refusals(everything, label) == []
    assert refusals(everything, replace(label, object=label.old, old=label.object)) == []


WRONG_FOR_ALL: dict[str, Callable[[dict[str, Any]], object]] = {
    "another's label": lambda made: made["metadata"]["labels"].update(zone="b"),
    "a new label": lambda made: made["metadata"]["labels"].update({"node-role.kubernetes.io/x": ""}),
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
}
WRONG_FOR_AGENTS: dict[str, Callable[[dict[str, Any]], object]] = {
    "a tree label": lambda made: made["metadata"]["labels"].update({"topology.nodeagent.io/tier-1": "x"}),
}


@pytest.mark.parametrize("case", [*WRONG_FOR_ALL, *WRONG_FOR_AGENTS])
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


@pytest.mark.parametrize("case", WRONG_FOR_ALL)
def test_the_controller_changes_nothing_else_of_a_node(case: str, everything: list[Manifest]) -> None:
    assert refusals(everything, patch(CONTROLLER, WRONG_FOR_ALL[case]))


def test_the_controller_neither_creates_nor_deletes_nodes(everything: list[Manifest]) -> None:
    request = patch(CONTROLLER, lambda _made: None)
    assert refusals(everything, replace(request, operation="DELETE", object=None))
    assert refusals(everything, replace(request, operation="CREATE", old=None))


# The policies themselves


def test_every_policy_is_bound_and_names_existing_accounts(everything: list[Manifest]) -> None:
    accounts = {
        f"system:serviceaccount:{one['metadata']['namespace']}:{one['metadata']['name']}"
        for one in of_kind(everything, "ServiceAccount")
    }
    bound = {one["spec"]["policyName"] for one in of_kind(everything, "ValidatingAdmissionPolicyBinding")}
    for policy in of_kind(everything, "ValidatingAdmissionPolicy"):
        assert policy["metadata"]["name"] in bound
        (condition,) = policy["spec"]["matchConditions"]
        assert any(f'== "{account}"' in condition["expression"] for account in accounts)


@pytest.mark.parametrize(
    "policy",
    ["nodeagent-reports", "nodeagent-events", "nodeagent-node-conditions", "nodeagent-controller-nodes"],
)
def test_each_validation_refuses_a_forged_request_that_the_others_allow(policy: str) -> None:
    """Each validation is needed: without it, one of the forged requests passes."""
    manifests = built("overlays/node-conditions")
    (spec,) = (
        one["spec"]
        for one in of_kind(manifests, "ValidatingAdmissionPolicy")
        if one["metadata"]["name"] == policy
    )
    forged = [request for request, _ in FORGED.values()]
    forged += [
        event(involvedObject={"kind": "Secret", "name": "x"}),
        event(source={}),
        replace(event(), operation="UPDATE", old=event(source={}).object),
        replace(event(involvedObject={"kind": "Pod"}, source={"host": ""}), extra={}),
    ]
    forged += [patch(user, change) for user in (AGENT, CONTROLLER) for change in WRONG_FOR_ALL.values()]
    forged += [replace(patch(user, lambda _made: None), name="x", operation=how)
               for user in (AGENT, CONTROLLER) for how in ("UPDATE", "DELETE")]  # fmt: skip
    for left_out in list(spec["validations"]):
        rest = [one for one in spec["validations"] if one is not left_out]
        weaker = [
            one | {"spec": spec | {"validations": rest}} if one["metadata"]["name"] == policy
            and one["kind"] == "ValidatingAdmissionPolicy" else one
            for one in manifests
        ]  # fmt: skip
        assert any(refusals(manifests, one) and not refusals(weaker, one) for one in forged), left_out


def test_the_policies_use_only_functions_of_the_oldest_supported_version(everything: list[Manifest]) -> None:
    for policy in of_kind(everything, "ValidatingAdmissionPolicy"):
        for word in ("optional.", ".?", "[?", "cel.bind", "format.", "sets.", ".join("):
            assert word not in str(policy["spec"])
