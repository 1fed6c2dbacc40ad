"""Nodes whose agent is gone, against the stand-in API server: a trouble, a series, a change, and nothing written."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from nodeagent.base.change_log import CONTROLLER_MAX, ChangeLog
from nodeagent.base.rfc3339 import rfc3339
from nodeagent.controller import Controller
from nodeagent.fabric import Planner
from nodeagent.fabric.agent_pods import GONE_AFTER_S, AgentPod, SeenAgent, SeenAgents, seen_agent
from nodeagent.fabric.away_nodes import NO_AGENT, AwayNode
from nodeagent.fabric.troubles import troubles
from nodeagent.features.silent_agents import AGENT_LOOK_S, SilentAgents
from nodeagent_lab.sim.apiserver import ApiServer
from tests.controller.test_controller import cluster, page, running
from tests.features.test_startup_taint import AGENT
from tests.support import fabrics
from tests.support.waiting import until

pytestmark = pytest.mark.usefixtures("virtual_time")

NODES = [f"node-{unit}{number}" for unit in range(2) for number in range(4)]
RUNS: dict[str, Any] = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
CRASHES: dict[str, Any] = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 5m0s"}}


def agent_pod(node: str, phase: str = "Running", state: dict[str, Any] | None = None) -> dict[str, Any]:
    statuses = [{"name": "sidecar", "state": CRASHES}, {"name": "nodeagent", "state": state or RUNS}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"nodeagent-{node}", "namespace": "nodeagent", "labels": AGENT},
        "spec": {"nodeName": node, "containers": [{"name": "nodeagent"}]},
        "status": {"phase": phase, "containerStatuses": statuses, "hostIP": "10.0.0.1"},
    }


def read(pod: dict[str, Any]) -> SeenAgent:
    return seen_agent(msgspec.json.decode(msgspec.json.encode(pod), type=AgentPod))


@pytest.mark.parametrize(
    ("pod", "stopped"),
    [
        (agent_pod("n"), ""),
        (agent_pod("n", state=CRASHES), "CrashLoopBackOff"),
        (agent_pod("n", state={"terminated": {"exitCode": 1}}), "it has ended"),
        (agent_pod("n", "Pending", {"waiting": {"reason": "ImagePull\nBackOff"}}), "ImagePull\\nBackOff"),
        (agent_pod("n", "Failed"), "Failed"),
        ({"metadata": {"name": "p"}, "spec": {"nodeName": "n"}}, "Pending"),
        ({"metadata": {"name": "p"}, "spec": {"nodeName": "n"}, "status": {"phase": "Running"}}, ""),
    ],
)
def test_a_pod_says_whether_its_agent_runs(pod: dict[str, Any], stopped: str) -> None:
    assert read(pod) == SeenAgent("n", stopped)


def stopped_pod(node: str, made: float, ready: float, restarts: int) -> dict[str, Any]:
    pod = agent_pod(node, state=CRASHES)
    pod["metadata"]["creationTimestamp"] = rfc3339(made)
    pod["status"]["conditions"] = [
        {"type": "PodScheduled", "status": "True", "lastTransitionTime": rfc3339(made)},
        {"type": "Ready", "status": "False", "lastTransitionTime": rfc3339(ready)},
    ]
    pod["status"]["containerStatuses"][-1]["restartCount"] = restarts
    return pod


def missing(reported: str, *pods: dict[str, Any], now: float = 9000.0) -> dict[str, AwayNode]:
    seen = SeenAgents()
    for pod in pods:
        seen.add(msgspec.convert(pod, AgentPod))
    return seen.missing(reported.split(), now)


def test_one_look_knows_since_when_unless_the_agent_starts_again_and_again() -> None:
    away = missing("a b", agent_pod("a"), stopped_pod("b", 1000.0, 5000.0, 0))
    assert away == {"b": AwayNode(NO_AGENT, 5000.0, "its agent does not run: CrashLoopBackOff")}
    assert missing("a b", agent_pod("a"), stopped_pod("b", 1000.0, 8999.0, 7))["b"].since is None


def test_one_look_takes_a_young_pod_for_one_of_a_rollout() -> None:
    pods = agent_pod("a"), stopped_pod("b", 1000.0, 1000.0, 0)
    assert missing("a b", *pods, now=1000.0 + GONE_AFTER_S - 1) == {}
    assert missing("a b", *pods, now=1000.0 + GONE_AFTER_S).keys() == {"b"}


def test_one_look_says_nothing_where_no_agent_runs_at_all_or_another_pod_runs_there() -> None:
    assert missing("a b") == {}
    old = stopped_pod("b", 1000.0, 5000.0, 0)
    assert missing("b", old) == {}
    new = agent_pod("b")
    new["metadata"]["name"] = "nodeagent-b2"
    assert missing("b c", old, new, agent_pod("x")) == {"c": AwayNode(NO_AGENT, None, "no agent runs there")}


# --- what a look finds ------------------------------------------------------------------------------------


class Looking:
    """The feature with pods and reports of the test. ``at`` looks at a second."""

    def __init__(self, nodes: int = 8) -> None:
        self.planner, self.stirred = Planner(), 0
        self.cables = fabrics.rails(2, nodes // 2, 2)
        for node, row in self.cables.items():
            self.planner.report(node, fabrics.links(node, row))
        self.changes = ChangeLog(CONTROLLER_MAX)
        mirror = SimpleNamespace(changes=self.changes, stir=self.stir)
        core: Any = SimpleNamespace(reader=None, namespace="nodeagent", planner=self.planner, mirror=mirror)
        self.agents = SilentAgents(core)
        self.pods = self.agents.pods.objects
        for node in self.cables:
            self.pods[f"pod-{node}"] = SeenAgent(node, "")

    def stir(self) -> None:
        self.stirred += 1

    def at(self, *seconds: float) -> dict[str, AwayNode]:
        for second in seconds:
            self.agents.look(second)
        return self.planner.inputs.no_agent


def test_a_node_without_its_agent_counts_after_five_minutes_and_until_the_agent_stays() -> None:
    made = Looking()
    first = next(iter(made.cables))
    assert made.at(0.0) == {}
    pod = made.pods.pop(f"pod-{first}")
    assert made.at(15.0, GONE_AFTER_S + 14) == {}
    assert made.stirred == 0
    assert made.at(GONE_AFTER_S + 15) == {first: AwayNode(NO_AGENT, 15.0, "no agent runs there")}
    assert made.at(GONE_AFTER_S + 30).keys() == {first}
    assert made.stirred == 1
    made.pods[f"pod-{first}"] = pod
    assert made.at(GONE_AFTER_S + 45).keys() == {first}
    assert made.at(GONE_AFTER_S + 60) == {}
    assert [(one.what, one.where, one.before, one.after) for one in made.changes.changes] == [
        ("agent", first, "runs", "gone"),
        ("agent", first, "gone", "runs"),
    ]


def test_an_agent_that_starts_again_and_again_is_not_back_between_two_crashes() -> None:
    made = Looking()
    first = next(iter(made.cables))
    made.at(0.0)
    for look in range(1, 40):
        made.pods[f"pod-{first}"] = SeenAgent(first, "" if look % 3 == 0 else "CrashLoopBackOff")
        made.at(look * AGENT_LOOK_S)
    (one,) = made.planner.inputs.no_agent.values()
    assert (one.since, one.detail) == (AGENT_LOOK_S, "its agent does not run: CrashLoopBackOff")


def test_a_rollout_is_no_trouble() -> None:
    made = Looking()
    now = 0.0
    for node in made.cables:
        pod = made.pods.pop(f"pod-{node}")
        assert made.at(now, now + 60) == {}
        made.pods[f"pod-{node}"] = pod
        assert made.at(now + 75, now + 90) == {}
        now += 105


def test_a_cluster_without_any_such_pod_says_nothing() -> None:
    made = Looking()
    made.at(0.0)
    made.pods.clear()
    assert made.at(15.0, 1000.0, 2000.0) == {}


def test_a_node_without_a_report_has_nothing_that_could_be_old() -> None:
    made = Looking()
    first = next(iter(made.cables))
    del made.pods[f"pod-{first}"]
    made.at(0.0, 400.0)
    made.planner.report(first, None)
    assert made.at(415.0) == {}


def test_a_refused_report_counts_too() -> None:
    made = Looking()
    first = next(iter(made.cables))
    del made.pods[f"pod-{first}"]
    made.planner.refuse(first, "is broken")
    assert made.at(0.0, 400.0).keys() == {first}


def test_the_agents_of_a_leaf_group_that_went_at_once_are_one_trouble_and_the_node_itself_counts_more() -> (
    None
):
    made = Looking(64)
    rack = [node for node in made.cables if node.startswith("su001")]
    made.planner.plan(0.0)
    made.at(0.0)
    for node in rack:
        del made.pods[f"pod-{node}"]
    made.at(15.0, 400.0)
    (one,) = troubles(made.planner.prepare(1.0)())
    assert (one.what, one.nodes) == ("32 agents went away at once", tuple(rack))
    assert one.details == ("su001-n[000-031]", "no agent runs there", "their links are as last reported")
    assert "component=agent" in one.remedy
    made.planner.inputs.take_away(rack[0], AwayNode("unreachable", 20.0, "its kubelet does not answer"))
    found = {one.what for one in troubles(made.planner.prepare(1.0)())}
    assert found == {"31 agents went away at once", "unreachable"}


# --- at the API server ------------------------------------------------------------------------------------


def series(controller: Controller) -> list[str]:
    return [line for line in page(controller) if line.startswith("nodeagent_node_away")]


def writes(server: ApiServer) -> list[str]:
    read_only = ("list", "watch", "get")
    return [
        seen.resource for seen in server.requests if seen.verb not in read_only and seen.resource != "leases"
    ]


async def test_an_agent_that_is_gone_is_on_the_map_in_the_series_and_in_the_history() -> None:
    async with cluster() as server, running(server) as controller:
        for node in NODES:
            server.put(agent_pod(node))
        await until(lambda: len(server.objects("hypernodes")) == 2)
        await until(lambda: controller.progress.outcome and not controller.progress.outcome.relabel)
        before = writes(server)
        server.remove("pods", "nodeagent-node-00", "nodeagent")
        known = controller.planner.inputs.no_agent
        await asyncio.sleep(GONE_AFTER_S - 2 * AGENT_LOOK_S)
        assert known == {}
        await asyncio.sleep(5 * AGENT_LOOK_S)
        assert [*known] == ["node-00"]
        view = json.loads(await controller.pages._document())
        (one,) = view["troubles"]
        assert (one["where"], one["what"]) == ("node-00", "no agent")
        assert "spec.nodeName=node-00" in one["remedy"]
        assert view["away"]["node-00"]["detail"] == "no agent runs there"
        (line,) = series(controller)
        assert 'node="node-00",why="no_agent"' in line
        server.put(agent_pod("node-00"))
        await asyncio.sleep(3 * AGENT_LOOK_S)
        assert known == {}
        assert series(controller) == []
        told = [(one.where, one.after) for one in controller.changes.changes if one.what == "agent"]
        assert told == [("node-00", "gone"), ("node-00", "runs")]
        assert writes(server) == before
