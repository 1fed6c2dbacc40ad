"""Nodes whose agent is gone: their reports stand, and nothing newer comes.

* The pods of the DaemonSet are watched, in their own namespace. The report has no heartbeat on purpose, a Lease for
  each agent would be a thousand writes a second at 10,000 nodes, and a Node says nothing of its pods.
* A node with a report, and without a running agent for ``GONE_AFTER_S``, counts as away. An agent that starts again and
  again is back only when it runs at two looks.
* A cluster without any such pod says nothing: their labels may be others, or the right may be missing.
* Of a pod its node and one word are kept. Neither the tree nor being ready depends on it, and nothing is written.
"""

from __future__ import annotations

import asyncio
import time
from typing import NamedTuple

from nodeagent.base.change_log import Change
from nodeagent.base.plain_text import one_line
from nodeagent.fabric.away_nodes import NO_AGENT, AwayNode
from nodeagent.fabric.nodelinks import Wire
from nodeagent.kube.reflector import Reflector
from nodeagent.kube.resource import PODS, Meta
from nodeagent.topology.parts import AGENT_PODS, ControllerCore, ControllerPart

GONE_AFTER_S = 300.0
"""A rollout replaces a pod within a minute; the alert NodeAgentDown waits as long."""
AGENT_LOOK_S = 15.0
_CONTAINER = "nodeagent"
_WORD_MAX = 63


class ContainerWaits(Wire, frozen=True, kw_only=True):
    reason: str | None = None


class ContainerState(Wire, frozen=True, kw_only=True):
    waiting: ContainerWaits | None = None
    terminated: ContainerWaits | None = None


class ContainerStatus(Wire, frozen=True, kw_only=True):
    name: str = ""
    state: ContainerState = ContainerState()


class AgentPodSpec(Wire, frozen=True, kw_only=True):
    node_name: str = ""


class AgentPodStatus(Wire, frozen=True, kw_only=True):
    phase: str = ""
    container_statuses: tuple[ContainerStatus, ...] | None = None


class AgentPod(Wire, frozen=True, kw_only=True):
    """The part of a pod that is decoded."""

    metadata: Meta
    spec: AgentPodSpec = AgentPodSpec()
    status: AgentPodStatus = AgentPodStatus()


class SeenAgent(NamedTuple):
    """``stopped``: why its program does not run; empty while it does."""

    node: str
    stopped: str


def seen_agent(pod: AgentPod) -> SeenAgent:
    """The part of a pod that is kept."""
    stopped = "" if pod.status.phase == "Running" else pod.status.phase or "Pending"
    for status in pod.status.container_statuses or ():
        if status.name == _CONTAINER and (state := status.state.waiting or status.state.terminated):
            stopped = state.reason or "it has ended"
    return SeenAgent(pod.spec.node_name, one_line(stopped, _WORD_MAX, ascii_only=True))


class SilentAgents:
    """Keeps ``Inputs.no_agent`` while this replica leads."""

    def __init__(self, core: ControllerCore) -> None:
        self.pods: Reflector[SeenAgent] = Reflector(
            core.reader, PODS.typed(AgentPod), namespace=core.namespace, labels=AGENT_PODS, take=seen_agent
        )
        self._core = core
        self._since: dict[str, float] = {}
        """Since when each node has no running agent: Unix time."""
        self._why: dict[str, str] = {}
        """Why the program of each of them did not run when it was last seen so."""
        self._back: set[str] = set()
        """Those of them whose agent ran at the last look."""

    async def lead(self) -> None:
        """Look until cancelled, then forget."""
        known = self._core.planner.inputs.no_agent
        try:
            while True:
                await asyncio.sleep(AGENT_LOOK_S)
                if self.pods.synced.is_set():
                    self.look(time.time())
        finally:
            known.clear()
            self._since.clear()
            self._why.clear()
            self._back.clear()

    def look(self, now: float) -> None:
        """Compare the pods with the reports. ``now``: Unix time."""
        inputs, pods = self._core.planner.inputs, self.pods.objects.values()
        running = {pod.node for pod in pods if not pod.stopped}
        reported = (inputs.reports.keys() | inputs.refused.keys()) if running else set()
        back, self._back = self._back & running, self._since.keys() & running
        for node in [node for node in self._since if node in back or node not in reported]:
            del self._since[node]
            self._why.pop(node, None)
        for node in reported - running:
            self._since.setdefault(node, now)
        self._why.update((pod.node, pod.stopped) for pod in pods if pod.stopped and pod.node in self._since)
        gone = {
            node: inputs.no_agent.get(node) or _gone(since, self._why.get(node, ""))
            for node, since in self._since.items()
            if now - since >= GONE_AFTER_S
        }
        if gone != inputs.no_agent:
            self._tell(inputs.no_agent, gone, now)
            inputs.no_agent.clear()
            inputs.no_agent.update(gone)
            self._core.mirror.stir()

    def _tell(self, before: dict[str, AwayNode], after: dict[str, AwayNode], now: float) -> None:
        self._core.mirror.changes.add(
            Change(now, "agent", node, "gone" if node in before else "runs", "gone" if node in after else "runs",
                   (after[node].detail,) if node in after else (), node=node)
            for node in sorted(before.keys() ^ after.keys())
        )  # fmt: skip


def _gone(since: float, stopped: str) -> AwayNode:
    detail = f"its agent does not run: {stopped}" if stopped else "no agent runs there"
    return AwayNode(NO_AGENT, since, detail)


def start_agent_watch(core: ControllerCore, *, wanted: bool) -> ControllerPart:
    """The feature of the controller."""
    if not wanted:
        return ControllerPart()
    agents = SilentAgents(core)
    return ControllerPart({"silent agents": agents.lead}, mirrors={"agents": agents.pods})
