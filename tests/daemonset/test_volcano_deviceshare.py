"""The rights of Volcano's deviceshare: sufficient and minimal, limited to the own Node, and no forged choice."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import yaml

from nodeagent.features.volcano_deviceshare import volcano_annotations as notes
from nodeagent.kube.access import Access
from nodeagent.kube.client import ApiClient
from nodeagent_lab.sim.apiserver import ApiServer
from tests.daemonset.test_rbac import AGENT, allowed, cluster, granted, grants
from tests.features.volcano_deviceshare.test_volcano_deviceshare import Stage
from tests.support.admission import NODE, UID, Request, refusals
from tests.support.cel_types import type_errors
from tests.support.findings import one_item
from tests.support.kubernetes_schemas import NEWEST, OLDEST
from tests.support.manifests import DAEMONSET, Manifest, built, of_kind

pytestmark = pytest.mark.needs("kubectl", "cel_expr_python")

OPTIONAL = ("choice.yaml", "scheduler-name.yaml")
SCHEDULER = "system:serviceaccount:volcano-system:volcano-scheduler"
TOKEN = {NODE: ["gpu-0"], UID: ["u-0"]}


@pytest.fixture(scope="module")
def everything() -> list[Manifest]:
    """The overlay, and the policies that it leaves to the administrator."""
    optional = [
        (DAEMONSET / "components/volcano-deviceshare/objects" / name).read_text() for name in OPTIONAL
    ]
    return [
        *built("components/volcano-deviceshare"),
        *(it for one in optional for it in yaml.safe_load_all(one)),
    ]


def test_the_overlay_checks_no_other_device_plugin() -> None:
    """Volcano's own one reports on the pods of other nodes, and erases the choice that it has allocated."""
    overlay = built("components/volcano-deviceshare")
    plugin = "system:serviceaccount:kube-system:volcano-device-plugin"
    report = note(**{notes.BIND_PHASE: "success", notes.PLACED_AT: notes.DONE_AT, notes.TO_ALLOCATE: ""})
    assert refusals(overlay, update(plugin, report)) == []
    assert refusals(overlay, update(AGENT, report))
    policies = of_kind(overlay, "ValidatingAdmissionPolicy")
    for policy in (one for one in policies if one["metadata"]["name"] != "nodeagent-operate"):  # of people
        (condition,) = policy["spec"]["matchConditions"]
        assert condition["expression"] == f'request.userInfo.username == "{AGENT}"'


def pod(node: str = "gpu-0", **annotations: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "a",
            "namespace": "ml",
            "labels": {"app": "a"},
            "annotations": {"note": "1"} | annotations,
        },
        "spec": {"nodeName": node, "containers": [{"name": "main", "image": "x"}]},
    }


def update(
    user: str, change: Callable[[dict[str, Any]], object], old: dict[str, Any] | None = None
) -> Request:
    before = old or pod(**{notes.BIND_PHASE: "allocating", notes.TO_ALLOCATE: "x"})
    after = copy.deepcopy(before)
    change(after)
    extra = TOKEN if user == AGENT else {}
    return Request("UPDATE", ":pods", "a", user, extra, after, before, "ml")


def note(**changes: str) -> Callable[[dict[str, Any]], object]:
    return lambda made: made["metadata"]["annotations"].update(changes)


REPORT = note(**{notes.BIND_PHASE: "success", notes.PLACED_AT: notes.DONE_AT})
WRONG: dict[str, Request] = {
    "a pod of another node": update(AGENT, REPORT, pod("gpu-1", **{notes.BIND_PHASE: "allocating"})),
    "a token without a node": Request(
        "UPDATE", ":pods", "a", AGENT, {NODE: [""]}, pod("", **{notes.BIND_PHASE: "failed"}), pod(""), "ml"
    ),
    "the choice": update(AGENT, note(**{notes.TO_ALLOCATE: "y"})),
    "another annotation": update(AGENT, note(x="y")),
    "an annotation gone": update(AGENT, lambda made: made["metadata"]["annotations"].pop("note")),
    "a time without end": update(AGENT, note(**{notes.PLACED_AT: "1" * 65})),
    "a phase of its own": update(AGENT, note(**{notes.BIND_PHASE: "x"})),
    "a label": update(AGENT, lambda made: made["metadata"]["labels"].update(app="b")),
    "an owner": update(AGENT, lambda made: made["metadata"].update(ownerReferences=[{"uid": "1"}])),
    "a finalizer": update(AGENT, lambda made: made["metadata"].update(finalizers=["x/y"])),
    "an image": update(AGENT, lambda made: made["spec"]["containers"][0].update(image="y")),
}


@one_item("case", WRONG)
def test_an_agent_may_only_report_on_the_pods_of_its_node(case: str, everything: list[Manifest]) -> None:
    assert refusals(everything, WRONG[case])


def test_a_report_passes_and_the_scheduler_alone_writes_the_choice(everything: list[Manifest]) -> None:
    assert refusals(everything, update(AGENT, REPORT)) == []
    choice = note(**{notes.TO_ALLOCATE: "y", notes.BIND_TIME: "1"})
    assert refusals(everything, update(SCHEDULER, choice)) == []
    assert refusals(everything, update("alice", choice))
    assert refusals(everything, update("alice", note(x="y"))) == []
    gone = update("alice", lambda made: made["metadata"]["annotations"].pop(notes.TO_ALLOCATE))
    assert refusals(everything, gone)
    for written, passes in (({notes.CHOSEN: "x"}, False), ({"volcano.sh/vgpu-mode": "hami-core"}, True)):
        made = Request("CREATE", ":pods", "a", "alice", {}, pod(**written), None, "ml")
        assert (refusals(everything, made) == []) is passes


@pytest.mark.parametrize("resource", [":pods/binding", ":bindings"])
def test_the_choice_of_a_binding_is_the_schedulers_alone(resource: str, everything: list[Manifest]) -> None:
    """Volcano from ed72c7c8 on sends it with the Binding; other schedulers send none."""

    def binding(user: str, **annotations: str) -> Request:
        meta = {"name": "a", "namespace": "ml"} | ({"annotations": annotations} if annotations else {})
        made = {"apiVersion": "v1", "kind": "Binding", "metadata": meta, "target": {"name": "gpu-0"}}
        return Request("CREATE", resource, "a", user, {}, made, None, "ml")

    choice = {notes.PLACED_ON: "gpu-0", notes.TO_ALLOCATE: "x", notes.BIND_PHASE: "allocating"}
    assert refusals(everything, binding(SCHEDULER, **choice)) == []
    assert refusals(everything, binding("system:kube-scheduler")) == []
    assert refusals(everything, binding("system:kube-scheduler", note="1")) == []
    for key, value in choice.items():
        assert refusals(everything, binding("alice", **{key: value}))


def test_the_choice_is_kept_by_an_update_of_the_status_and_reported_by_volcanos_own_plugin(
    everything: list[Manifest],
) -> None:
    """``podStatusStrategy`` keeps the spec and the owners of a pod, and no annotation."""
    request = replace(update("alice", note(**{notes.TO_ALLOCATE: "y"})), resource=":pods/status")
    assert refusals(everything, request)
    kubelet = replace(
        update("system:node:gpu-0", lambda made: made.update(status={"phase": "Running"})),
        resource=":pods/status",
    )
    assert refusals(everything, kubelet) == []
    report = note(**{notes.BIND_PHASE: "success", notes.PLACED_AT: notes.DONE_AT, notes.TO_ALLOCATE: ""})
    assert (
        refusals(everything, update("system:serviceaccount:kube-system:volcano-device-plugin", report)) == []
    )


NUMBER, MEMORY = "volcano.sh/vgpu-number", "volcano.sh/vgpu-memory"


def asking(scheduler: str | None, where: str = "containers", **limits: str) -> Request:
    made = pod("")
    del made["spec"]["nodeName"]
    if scheduler is not None:
        made["spec"]["schedulerName"] = scheduler
    container = {"name": "x", "image": "x", "resources": {"limits": limits} if limits else {}}
    made["spec"][where] = [*made["spec"].get(where, ()), container]
    return Request("CREATE", ":pods", "a", "alice", {}, made, None, "ml")


@pytest.mark.parametrize("where", ["containers", "initContainers"])
@pytest.mark.parametrize(
    "limits", [{NUMBER: "1"}, {MEMORY: "8k"}, {"volcano.sh/vgpu-cores": "1Ki", "cpu": "1500m"}]
)
def test_a_pod_that_asks_for_volcanos_gpus_names_volcano_as_scheduler(
    where: str, limits: dict[str, str], everything: list[Manifest]
) -> None:
    assert refusals(everything, asking("volcano", where, **limits)) == []
    for other in ("default-scheduler", "kube-batch", "volcano2", "", None):
        assert refusals(everything, asking(other, where, **limits)) == [
            "a pod with limits of volcano.sh/vgpu-… needs schedulerName: volcano"
        ]


def test_a_pod_that_asks_for_no_gpu_of_volcano_may_have_any_scheduler(everything: list[Manifest]) -> None:
    for limits in ({}, {"cpu": "1"}, {NUMBER: "0"}, {"nvidia.com/gpu": "1"}, {"volcano.sh/vgpu": "1"}):
        assert refusals(everything, asking("default-scheduler", **limits)) == []
    bare = asking("default-scheduler")
    assert bare.object is not None
    for container in bare.object["spec"]["containers"]:
        container.pop("resources", None)
    assert refusals(everything, bare) == []


def test_a_pod_that_exists_is_not_checked_for_its_scheduler(everything: list[Manifest]) -> None:
    made = asking("default-scheduler", **{NUMBER: "1"}).object
    assert made is not None
    assert refusals(everything, update("alice", lambda it: it["metadata"].update(finalizers=[]), made)) == []
    debug = update("alice", lambda it: it["spec"].update(ephemeralContainers=[{"name": "d"}]), made)
    assert refusals(everything, replace(debug, resource=":pods/ephemeralcontainers")) == []


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_the_api_server_finds_no_wrong_type_in_the_policies(version: str, everything: list[Manifest]) -> None:
    crds = of_kind(everything, "CustomResourceDefinition")
    policies = of_kind(everything, "ValidatingAdmissionPolicy")
    assert {f"nodeagent-volcano-{name}" for name in ("pods", "choice", "scheduler-name")} <= {
        it["metadata"]["name"] for it in policies
    }
    assert [error for policy in policies for error in type_errors(policy, crds, version)] == []


async def work(server: ApiServer) -> None:
    """A pod is placed, gets its devices, is reported, and the lock is released."""
    client = ApiClient(Access(server.url, token=server.token(AGENT)))
    stage = Stage(server, client)
    task = asyncio.ensure_future(stage.share.run())
    try:
        await stage.registered()
        stage.pod("a", {"number": 1, "memory": 8})
        stage.scheduler.bind("a", "gpu-0")
        await stage.waiting("a")
        stage.admit("a", "c0")
        await stage.until(lambda: stage.notes("pods", "a")[notes.BIND_PHASE] == "success")
        await stage.until(lambda: notes.NODE_LOCK not in stage.notes("nodes", "gpu-0"))
    finally:
        task.cancel()
        await asyncio.wait((task,))
        await client.close()


async def test_the_agent_needs_exactly_these_rights_and_each_of_its_writes_passes(
    everything: list[Manifest],
) -> None:
    admitted: list[Request] = []
    async with asyncio.timeout(60), cluster(everything, admitted) as server:
        await work(server)
        assert not [seen for seen in server.requests if seen.status == 403]
        asked = {granted(seen) for seen in server.requests}
    role = [
        one for one in grants(everything, AGENT) if one[0]["metadata"]["name"].endswith("volcano-deviceshare")
    ]
    assert sorted(asked) == sorted(right for _, _, right in role)
    assert set(asked) <= set(allowed(everything, AGENT))
    assert {one.resource for one in admitted} >= {":nodes", ":pods"}


@pytest.mark.parametrize("policy", ["nodeagent-volcano-pods", "nodeagent-volcano-choice"])
def test_each_validation_is_needed(policy: str, everything: list[Manifest]) -> None:
    requests = [*WRONG.values(), update("alice", note(**{notes.TO_ALLOCATE: "y"}))]
    for one in everything:
        if (one["kind"], one["metadata"]["name"]) == ("ValidatingAdmissionPolicy", policy):
            for left_out in one["spec"]["validations"]:
                rest = [it for it in one["spec"]["validations"] if it is not left_out]
                weaker = [
                    it if it is not one else one | {"spec": one["spec"] | {"validations": rest}}
                    for it in everything
                ]
                assert any(refusals(everything, it) and not refusals(weaker, it) for it in requests), left_out
