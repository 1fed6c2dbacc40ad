"""The controller's Events: each obstacle to the tree that a person must remove.

The target is the HyperNode of another owner, or the Lease where no object is concerned. The controller may only
create Events, so each occurrence is an Event of its own.
"""

from __future__ import annotations

import logging
import time

from nodeagent.cluster.event_writer import EventTarget, EventWriter, Notice
from nodeagent.fabric.outcome import PlanOutcome, obstacles
from nodeagent.kube.client import ApiClient

log = logging.getLogger(__name__)

COMPONENT = "nodeagent-controller"


class FabricEvents:
    """``instance`` is this replica; ``lease`` in ``namespace`` is the Lease that the replicas share."""

    def __init__(self, client: ApiClient, namespace: str, instance: str, lease: str) -> None:
        self.writer = EventWriter(client, COMPONENT, instance, aggregate=False, recovery=False)
        self._lease = EventTarget("Lease", namespace, lease, "coordination.k8s.io/v1")
        self._obstacles: dict[str, str] = {}

    async def write(self, outcome: PlanOutcome) -> float | None:
        """Write an Event for each new obstacle. Return the seconds until the rest may be written, if any."""
        current = obstacles(outcome)
        for key, text in current.items():
            if self._obstacles.get(key) != text:
                log.warning("The tree is not written as reported. %s", text)
        for key in self._obstacles.keys() - current.keys():
            log.info("An obstacle to the tree is gone. what=%s", key)
        self._obstacles = current
        standing = [self._notice(key, text) for key, text in current.items()]
        self.writer.ledger.observe(standing, time.monotonic(), time.time())
        return await self.writer.deliver()

    def _notice(self, key: str, text: str) -> Notice:
        kind, _, name = key.partition("/")
        if kind == "overlap":
            target = EventTarget("HyperNode", "", name, "topology.volcano.sh/v1alpha1")
            return Notice(target, text, "ForeignHyperNode", text)
        return Notice(self._lease, text, "BreakerOpen", text)
