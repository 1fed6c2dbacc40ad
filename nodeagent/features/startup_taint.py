"""Remove the start-up taint of new Nodes: ``nodeagent.io/starting``.

A node group creates its Nodes with this taint, and Cluster Autoscaler ignores it (``--startup-taint``). So no pod comes
before the devices, and no further node is created for it.

* The taint is removed after the agent's pod on the Node has been Ready for ``SETTLE_S``. The kubelet then has the
  devices, and the Node shows them.
* The agents' pods are watched. A new leader reads all Nodes once: only those with the taint matter among the pods that
  are Ready already. Later each pod that becomes Ready costs one read of its Node.
* The taint is only removed, never set: an agent that fails later is a matter of health.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import NamedTuple

import msgspec

from nodeagent.base.supervise import beside, either, keep
from nodeagent.cluster.node_marks import STARTING_TAINT, STORED_NODES, NodeMarks, NodeWrites, StoredNode
from nodeagent.cluster.retry import RETRY_FIRST_S
from nodeagent.fabric.agent_pods import AGENT_PODS
from nodeagent.kube.client import ApiClient, ApiError
from nodeagent.kube.lease import NotLeading
from nodeagent.kube.reflector import Reflector
from nodeagent.kube.resource import PODS, Meta
from nodeagent.topology.parts import ControllerCore, ControllerPart

log = logging.getLogger(__name__)

SETTLE_S = 15.0
"""The kubelet writes its Node every 10 s (nodeStatusUpdateFrequency), the devices with it."""
_PER_SECOND = 10.0
_AGAIN_S = 30.0
"""Until the next attempt after a failure."""


class _Condition(msgspec.Struct):
    type: str = ""
    status: str = ""


class _PodSpec(msgspec.Struct, rename={"node_name": "nodeName"}):
    node_name: str = ""


class _PodStatus(msgspec.Struct):
    conditions: list[_Condition] | None = None


class _AgentPod(msgspec.Struct):
    metadata: Meta
    spec: _PodSpec = msgspec.field(default_factory=_PodSpec)
    status: _PodStatus = msgspec.field(default_factory=_PodStatus)


class _Seen(NamedTuple):
    """The facts of a pod that the copy keeps."""

    uid: str | None
    node: str
    ready: bool


class StartupTaints:
    """Removes the taint while ``run`` runs. ``writes`` counts by result: ``ok``, ``gone`` or ``failed``."""

    def __init__(
        self,
        client: ApiClient,
        namespace: str,
        *,
        again_s: float = _AGAIN_S,
        per_second: float = _PER_SECOND,
    ) -> None:
        self._client, self._namespace = client, namespace
        self._node_marks = NodeMarks(client)
        self._nodes = NodeWrites("The start-up taint of a node cannot be removed", per_second)
        self._again_s = again_s
        self._due: dict[str, float] = {}
        """By Node: when to remove its taint."""
        self._changed = asyncio.Event()
        self.writes: Counter[str] = Counter()

    @property
    def waiting(self) -> set[str]:
        """The Nodes whose taint is to be removed."""
        return set(self._due)

    async def run(self) -> None:
        """Run until cancelled, or until this replica leads no more."""
        self._due.clear()
        pods = Reflector(
            self._client,
            PODS.typed(_AgentPod),
            namespace=self._namespace,
            labels=AGENT_PODS,
            take=_seen,
            changed=self._pod_changed,
        )
        async with beside(keep("agent pods", pods.run), pods.synced.wait()):
            early = dict(self._due)
            tainted = await self._tainted()
            for name in early.keys() - tainted:
                self._due.pop(name, None)
            while True:
                await self._wait()
                now = asyncio.get_running_loop().time()
                for name in sorted(name for name, at in self._due.items() if at <= now):
                    await self._remove(name)
                    await self._nodes.pause()

    def _pod_changed(self, _: str, before: _Seen | None, now: _Seen | None) -> None:
        if now is None or not now.ready:
            if before is not None:
                self._due.pop(before.node, None)
            return
        if now.node and before != now:
            self._due[now.node] = asyncio.get_running_loop().time() + SETTLE_S
            self._changed.set()

    async def _wait(self) -> None:
        """Return when a Node is due."""
        loop = asyncio.get_running_loop()
        while not self._due or (next_at := min(self._due.values())) > loop.time():
            self._changed.clear()
            await either(self._changed.wait(), timeout_s=next_at - loop.time() if self._due else None)

    async def _tainted(self) -> set[str]:
        """The Nodes that have the taint."""
        found: set[str] = set()

        def take(node: StoredNode) -> None:
            if any(taint.get("key") == STARTING_TAINT for taint in node.spec.taints or ()):
                found.add(node.metadata.name)

        while True:
            try:
                await self._client.list_each(STORED_NODES, take, found.clear)
                return found
            except ApiError as error:
                self._nodes.failures.failed(error, node="*")
                await asyncio.sleep(max(RETRY_FIRST_S, self._again_s, error.retry_after_s or 0.0))

    async def _remove(self, name: str) -> None:
        removed = False

        async def remove() -> None:
            nonlocal removed
            removed = await self._node_marks.remove_taint(name, STARTING_TAINT)

        try:
            result, error = await self._nodes.send(name, remove())
        except NotLeading:
            await asyncio.Event().wait()  # until this task is cancelled
            return
        if result != "ok" or removed:
            self.writes[result] += 1
        if removed:
            log.info("The agent of a new node is Ready; its start-up taint is removed. node=%s", name)
        if error is None:
            self._due.pop(name, None)
        else:
            wait_s = max(self._again_s, error.retry_after_s or 0.0)
            self._due[name] = asyncio.get_running_loop().time() + wait_s


def start_taints(core: ControllerCore, *, wanted: bool) -> ControllerPart:
    """The feature of the controller."""
    if not wanted:
        return ControllerPart()
    taints = StartupTaints(core.writer, core.namespace)
    return ControllerPart(
        {"startup taints": taints.run},
        writes=lambda: (
            (("patch", "node-startup-taint", result), count)
            for result, count in sorted(taints.writes.items())
        ),
    )


def _seen(pod: _AgentPod) -> _Seen:
    ready = any((one.type, one.status) == ("Ready", "True") for one in pod.status.conditions or ())
    return _Seen(pod.metadata.uid, pod.spec.node_name, ready)
