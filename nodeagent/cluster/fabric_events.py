"""What the controller tells people by Events: one for each thing that a person must decide.

An Event that cannot be written is a loss that nothing rests on: it is logged, the metric and the log line stay.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime

from nodeagent.fabric.outcome import Outcome, obstacles
from nodeagent.kube.client import ApiError, Client
from nodeagent.kube.resource import EVENTS

log = logging.getLogger(__name__)

MESSAGE_MAX = 1024
"""What the API server takes (ValidateEvent)."""

API_VERSIONS = {"HyperNode": "topology.volcano.sh/v1alpha1", "Lease": "coordination.k8s.io/v1"}


class FabricEvents:
    """``instance`` is the replica that speaks, ``lease`` what is spoken of where it is about no object."""

    def __init__(self, client: Client, namespace: str, instance: str, lease: str) -> None:
        self._client, self._namespace, self._instance, self._lease = client, namespace, instance, lease
        self._said: dict[str, str] = {}

    async def tell(self, outcome: Outcome) -> None:
        """Say once what a person must decide: objects of others in our way, and a breaker that holds."""
        said = obstacles(outcome)
        for key, text in said.items():
            if self._said.get(key) != text:
                log.warning("The tree is not written as reported. %s", text)
                kind, _, name = key.partition("/")
                if kind == "overlap":
                    await self.say("HyperNode", name, "ForeignHyperNode", text)
                else:
                    await self.say("Lease", self._lease, "BreakerOpen", text)
        for key in self._said.keys() - said.keys():
            log.info("What stood in the way of the tree is gone. what=%s", key)
        self._said = said

    async def say(self, kind: str, name: str, reason: str, message: str) -> None:
        """A Warning about an object. One without a namespace is told of in ``default``, as the kubelet does."""
        now = datetime.now(UTC)
        namespace = self._namespace if kind == "Lease" else "default"
        regarding = {"apiVersion": API_VERSIONS[kind], "kind": kind, "name": name}
        if kind == "Lease":
            regarding["namespace"] = namespace
        stamp = now.strftime("%Y-%m-%dT%H:%M:%SZ")
        event = {
            "metadata": {"name": f"{name[:200]}.{int(now.timestamp() * 1e6):x}", "namespace": namespace},
            "involvedObject": regarding,
            "reason": reason,
            "message": message if len(message) <= MESSAGE_MAX else message[: MESSAGE_MAX - 1] + "…",
            "type": "Warning",
            "source": {"component": "nodeagent-controller"},
            "reportingComponent": "nodeagent-controller",
            "reportingInstance": self._instance,
            "firstTimestamp": stamp,
            "lastTimestamp": stamp,
            "count": 1,
        }
        try:
            await self._client.create(EVENTS, event, namespace=namespace)
        except ApiError as error:
            log.info("An Event is not told. reason=%r", str(error))
