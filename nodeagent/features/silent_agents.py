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

from nodeagent.base.change_log import Change
from nodeagent.fabric.agent_pods import AGENT_PODS, GONE_AFTER_S, AgentPod, SeenAgent, gone_agent, seen_agent
from nodeagent.fabric.away_nodes import AwayNode
from nodeagent.kube.reflector import Reflector
from nodeagent.kube.resource import PODS
from nodeagent.topology.parts import ControllerCore, ControllerPart

AGENT_LOOK_S = 15.0


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
            node: inputs.no_agent.get(node) or gone_agent(since, self._why.get(node, ""))
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


def start_agent_watch(core: ControllerCore, *, wanted: bool) -> ControllerPart:
    """The feature of the controller."""
    if not wanted:
        return ControllerPart()
    agents = SilentAgents(core)
    return ControllerPart({"silent agents": agents.lead}, mirrors={"agents": agents.pods})
