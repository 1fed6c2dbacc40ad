"""Each write of agent and controller meets each of our admission policies.

The writes are recorded from the parts of the agent and the controller at work, as the API server passes them to a
policy: whole objects before and after, an Eviction as an Eviction. A right to write that no recorded request uses, and
a call in the code that writes something else, fail here, so that no writer is forgotten.
"""

from __future__ import annotations

import ast
import asyncio
from collections.abc import Awaitable, Callable, Iterator
from importlib import import_module
from pathlib import Path

import pytest

from nodeagent.cluster.node_marks import GPU_CONDITION, OWN_MARKS
from nodeagent.features import startup_taint
from nodeagent.features.other_programs import kept_objects
from nodeagent.features.rail_probing import rail_keeper
from nodeagent.kube.access import NodeClaim
from nodeagent.kube.resource import PODS, Resource
from nodeagent_lab.sim.apiserver import ApiServer
from tests.cluster import test_claim_statuses as claim_stage
from tests.cluster.test_slice_publisher import OWNER as STAGE_OWNER
from tests.daemonset import test_volcano_deviceshare as deviceshare
from tests.daemonset.test_dra_manifests import change_slices, publishing_to
from tests.daemonset.test_rbac import (
    AGENT,
    CONTROLLER,
    Grant,
    agent_at_work,
    allowed,
    cluster,
    controller_at_work,
    marks_at_work,
    node_feature_groups_at_work,
    rails_at_work,
    slurm_at_work,
    startup_taint_at_work,
)
from tests.support.admission import Request, refusals
from tests.support.dra_node import NODE as CLAIM_NODE
from tests.support.manifests import INSTALLATIONS, ROOT, Manifest, built, key

pytestmark = pytest.mark.needs("kubectl", "cel_expr_python")

OPERATIONS = {"create": "CREATE", "patch": "UPDATE", "delete": "DELETE"}
WRITE_VERBS = {*OPERATIONS, "update", "deletecollection"}
GPU_0 = NodeClaim("gpu-0", "u-0")


async def agent(server: ApiServer) -> None:
    await agent_at_work(server, marks=True)


async def slices(server: ApiServer) -> None:
    async with publishing_to(server) as (stage, _):
        await change_slices(stage)


async def claims(server: ApiServer) -> None:
    stage = claim_stage.Stage(server, AGENT)
    stage.prepare("a")
    async with claim_stage.writing(server, stage):
        await server.until(lambda: stage.health("a") == "True")


WORK: tuple[tuple[Callable[[ApiServer], Awaitable[None]], NodeClaim], ...] = (
    (agent, GPU_0),
    (slices, STAGE_OWNER),
    (claims, NodeClaim(CLAIM_NODE, "u-n1")),
    (deviceshare.work, GPU_0),
    (controller_at_work, GPU_0),
    (marks_at_work, GPU_0),
    (startup_taint_at_work, GPU_0),
    (slurm_at_work, GPU_0),
    (node_feature_groups_at_work, GPU_0),
    (rails_at_work, GPU_0),
)


def everything() -> list[Manifest]:
    """The objects of all overlays, with each policy and each right."""
    return list({str(key(one)): one for overlay in INSTALLATIONS for one in built(overlay)}.values())


async def recorded(manifests: list[Manifest]) -> tuple[list[Request], list[str]]:
    """All writes, and the work that did not come to its end: most of it waits where a write is refused."""
    admitted: list[Request] = []
    unfinished = []
    for work, claim in WORK:
        try:
            async with asyncio.timeout(60), cluster(manifests, admitted, claim) as server:
                await work(server)
        except TimeoutError:
            unfinished.append(work.__name__)
    return admitted, unfinished


def written(requests: list[Request]) -> set[tuple[str, str, str]]:
    """User, operation and resource of each request."""
    return {(one.user, one.operation, one.resource) for one in requests}


def right_of(user: str, grant: Grant) -> tuple[str, str, str]:
    """The request that needs the right. A verb that nothing sends fails here."""
    verb, group, resource = grant
    return user, OPERATIONS[verb], f"{group}:{resource}"


def calls_that_write() -> Iterator[tuple[str, str, str]]:
    """Place, operation and resource of each call of the client that writes; ``apply`` creates or updates."""
    for path in sorted((ROOT / "nodeagent").rglob("*.py")):
        place = path.relative_to(ROOT)
        if place.parts[1] not in ("commands", "doctor"):  # verbs with the rights of a person
            for call in ast.walk(ast.parse(path.read_text())):
                if isinstance(call, ast.Call) and _is_write(call):
                    yield from ((f"{place}:{call.lineno}", *one) for one in _sent(place, call))


def _is_write(call: ast.Call) -> bool:
    sender = call.func.value if isinstance(call.func, ast.Attribute) else None
    named = getattr(sender, "attr", getattr(sender, "id", ""))
    return named in ("_client", "client") and call.func.attr in (*OPERATIONS, "apply", "evict")  # type: ignore[attr-defined]


def _sent(place: Path, call: ast.Call) -> Iterator[tuple[str, str]]:
    verb = call.func.attr  # type: ignore[attr-defined]
    if verb == "evict":
        yield "CREATE", f"{PODS.group}:pods/eviction"
        return
    module = import_module(".".join(place.with_suffix("").parts))
    named = ast.unparse(call.args[0])
    if named == "self._resource":  # each of those that the module lists for this verb
        yield from ((OPERATIONS[verb], f"{one.group}:{one.plural}") for one in module.WRITTEN[verb])
        return
    resource: Resource[object] = getattr(module, named)
    sub = [ast.literal_eval(it.value) for it in call.keywords if it.arg == "subresource"]
    name = f"{resource.group}:{'/'.join((resource.plural, *sub))}"
    if verb == "apply":
        yield "UPDATE", name
        if not sub:
            yield "CREATE", name
    else:
        yield OPERATIONS[verb], name


async def test_every_policy_admits_what_its_own_side_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(startup_taint, "SETTLE_S", 0.01)
    monkeypatch.setattr(kept_objects, "KEPT_PAUSE_S", 0.01)
    monkeypatch.setattr(rail_keeper, "JUDGE_S", 0.05)
    manifests = everything()
    requests, unfinished = await recorded(manifests)
    assert [(one, why) for one in requests if (why := refusals(manifests, one))] == []
    assert unfinished == []
    seen = written(requests)
    for user in (AGENT, CONTROLLER):
        rights = {right_of(user, grant) for grant in allowed(manifests, user) if grant[0] in WRITE_VERBS}
        assert {one for one in seen if one[0] == user} == rights, "each right to write is used, and no other"
    operations = {one[1:] for one in seen}
    unseen = [call for call in calls_that_write() if call[1:] not in operations]
    assert unseen == [], "make this writer work in WORK"

    marks = {
        mark
        for one in requests
        if one.resource in (":nodes", ":nodes/status")
        for node in (one.old, one.object)
        if node is not None
        for mark in _marks(node)
    }
    assert "volcano.sh/node-vgpu-register" in marks
    assert {mark.key for mark in OWN_MARKS} - {GPU_CONDITION} - marks == set(), (
        "make this mark written in WORK, one of the agent in `agent_at_work` of tests/daemonset/test_rbac.py"
    )
    evictions = [one.object for one in requests if one.resource == ":pods/eviction"]
    uids = {(one or {})["deleteOptions"]["preconditions"]["uid"] for one in evictions}
    assert uids == {"u-trainer", "u-greedy"}, "for a failed device and for over-use"


def _marks(node: Manifest) -> Iterator[str]:
    yield from (one["type"] for one in node.get("status", {}).get("conditions") or ())
    yield from (one["key"] for one in node.get("spec", {}).get("taints") or ())
    yield from node["metadata"].get("labels") or ()
    yield from node["metadata"].get("annotations") or ()
