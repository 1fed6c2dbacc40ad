"""The pods of the agents: on which nodes with a report none runs, so that the report is old. Pure.

A report has no heartbeat, and a Node says nothing of its pods, so these are the only evidence. Of a pod its node, one
word and a time are kept.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from nodeagent.base.plain_text import one_line
from nodeagent.fabric.away_nodes import NO_AGENT, AwayNode, ReadyCondition
from nodeagent.fabric.jobs import PodMetadata, PodPlace
from nodeagent.fabric.link_faults import unix
from nodeagent.fabric.nodelinks import Wire

AGENT_LABELS = {"app.kubernetes.io/name": "nodeagent", "app.kubernetes.io/component": "agent"}
AGENT_PODS = ",".join(f"{key}={value}" for key, value in AGENT_LABELS.items())
"""The label selector of the pods of agents."""
GONE_AFTER_S = 300.0
"""A rollout replaces a pod within a minute; the alert NodeAgentDown waits as long."""
_CONTAINER = "nodeagent"
_WORD_MAX = 63


class ContainerWaits(Wire, frozen=True, kw_only=True):
    reason: str | None = None


class ContainerState(Wire, frozen=True, kw_only=True):
    waiting: ContainerWaits | None = None
    terminated: ContainerWaits | None = None


class ContainerStatus(Wire, frozen=True, kw_only=True):
    name: str = ""
    restart_count: int = 0
    state: ContainerState = ContainerState()


class AgentPodStatus(Wire, frozen=True, kw_only=True):
    phase: str = ""
    conditions: tuple[ReadyCondition, ...] | None = None
    container_statuses: tuple[ContainerStatus, ...] | None = None


class AgentPod(Wire, frozen=True, kw_only=True):
    """The part of a pod that is decoded."""

    metadata: PodMetadata
    spec: PodPlace = PodPlace()
    status: AgentPodStatus = AgentPodStatus()


class SeenAgent(msgspec.Struct, frozen=True):
    """``stopped``: why its program does not run; empty while it does. Unix times: ``made``, of the pod, and ``since``,
    from when it does not run; ``None`` if that is not known, as of one that starts again and again."""

    node: str
    stopped: str
    made: float | None = None
    since: float | None = None


def seen_agent(pod: AgentPod) -> SeenAgent:
    """The part of a pod that is kept."""
    stopped = "" if pod.status.phase == "Running" else pod.status.phase or "Pending"
    restarts = 0
    for status in pod.status.container_statuses or ():
        if status.name == _CONTAINER and (state := status.state.waiting or status.state.terminated):
            stopped, restarts = state.reason or "it has ended", status.restart_count
    ready = next((one for one in pod.status.conditions or () if one.type == "Ready"), None)
    since = None if ready is None or restarts or not stopped else unix(ready.last_transition_time)
    word = one_line(stopped, _WORD_MAX, ascii_only=True)
    return SeenAgent(pod.spec.node_name or "", word, unix(pod.metadata.creation_timestamp), since)


def gone_agent(since: float | None, stopped: str) -> AwayNode:
    """A node without a running agent ``since`` this Unix time; ``stopped``: why the program of its pod does not run."""
    detail = f"its agent does not run: {stopped}" if stopped else "no agent runs there"
    return AwayNode(NO_AGENT, since, detail)


class SeenAgents:
    """The pods of one look. ``spaces`` are the namespaces of the reports, and so those of the agents."""

    def __init__(self) -> None:
        self.spaces: set[str] = set()
        self._pods: dict[str, SeenAgent] = {}

    def add(self, pod: AgentPod) -> None:
        """A later one of a name replaces an earlier one."""
        self._pods[f"{pod.metadata.namespace or ''}/{pod.metadata.name}"] = seen_agent(pod)

    def missing(self, reported: Iterable[str], now: float) -> dict[str, AwayNode]:
        """Of the ``reported`` nodes those without a running agent at this Unix time. A pod that is younger than
        ``GONE_AFTER_S`` may be about to run. Where no agent runs nothing is said: their labels may be others."""
        running: set[str] = set()
        stopped: dict[str, SeenAgent] = {}
        for pod in self._pods.values():
            if not pod.stopped or (pod.made is not None and now - pod.made < GONE_AFTER_S):
                running.add(pod.node)
            else:
                stopped[pod.node] = pod
        none = SeenAgent("", "")
        away = {node: stopped.get(node, none) for node in reported if node not in running} if running else {}
        return {node: gone_agent(pod.since, pod.stopped) for node, pod in away.items()}
