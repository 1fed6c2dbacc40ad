"""Evict the pods that hold a failed device: off by default, slow, and within disruption budgets.

Rules:

* A pod is evicted after its device has failed without interruption for the configured time. A device whose state
  is unknown has not failed.
* At most one pod in ten seconds. An eviction that a disruption budget refuses is requested again later, and so is
  one whose pod does not end.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field

from nodeagent.backoff import RateLimit
from nodeagent.cluster.affected_devices import FAILED, AffectedPod, Offered, affected_pods
from nodeagent.cluster.retry import ApiRetry, refused
from nodeagent.inventory import Inventory
from nodeagent.kube.client import ApiClient, ApiError
from nodeagent.model import Snapshot

log = logging.getLogger(__name__)

PER_S = 0.1
AGAIN_S = 300.0
"""Until the eviction of a pod that does not end is requested again."""
BUDGET_S = 30.0
"""Until the eviction is requested again when a disruption budget refuses it without a time of its own."""
IDLE_S = 3600.0

PodName = tuple[str, str]
"""Namespace and name."""


@dataclass(slots=True)
class EvictionQueue:
    """Since when each pod's device has failed, and when to evict the pod."""

    after_s: float
    since: dict[PodName, float] = field(default_factory=dict)
    not_before: dict[PodName, float] = field(default_factory=dict)

    def observe(self, affected: Iterable[AffectedPod], now: float) -> None:
        pods = {(pod.namespace, pod.pod) for pod in affected if pod.device.health.state in FAILED}
        self.since = {pod: self.since.get(pod, now) for pod in pods}
        self.not_before = {pod: at for pod, at in self.not_before.items() if pod in pods}

    def due(self, now: float) -> tuple[list[PodName], float]:
        """The pods to evict, the longest waiting first, and the seconds until the next one is due."""
        evict_at = {
            pod: max(since + self.after_s, self.not_before.get(pod, since))
            for pod, since in self.since.items()
        }
        later = [at - now for at in evict_at.values() if at > now]
        due = sorted((pod for pod, at in evict_at.items() if at <= now), key=evict_at.__getitem__)
        return due, min(later, default=IDLE_S)


class Evictions:
    """``offered`` returns the devices that each resource has now."""

    def __init__(
        self, client: ApiClient, inventory: Inventory, offered: Callable[[Snapshot], Offered], after_s: float
    ) -> None:
        self.queue = EvictionQueue(after_s)
        self._client, self._inventory, self._offered = client, inventory, offered
        self._rate = RateLimit(1, PER_S)
        self._retry = ApiRetry("A pod with a failed device cannot be evicted")

    async def run(self) -> None:
        """Evict until cancelled."""
        while True:
            snapshot = self._inventory.snapshot
            self.queue.observe(affected_pods(snapshot, self._offered(snapshot)), time.monotonic())
            wait = await self._evict()
            with suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._inventory.changed(snapshot.revision)

    async def _evict(self) -> float:
        """Evict the next pod that is due. Return the seconds until there is more to do."""
        now = time.monotonic()
        if (wait := max(self._retry.wait_s(now), self._rate.wait_s(now))) > 0:
            return wait
        pods, wait = self.queue.due(now)
        for namespace, name in pods[:1]:
            self._rate.take(now)
            try:
                await self._client.evict(name, namespace=namespace)
            except ApiError as error:
                if error.status == 429:
                    wait = BUDGET_S if error.retry_after_s is None else error.retry_after_s
                    self.queue.not_before[namespace, name] = now + wait
                elif error.missing or refused(error):
                    self.queue.not_before[namespace, name] = now + AGAIN_S
                else:
                    return self._retry.failed(error, now)
                log.info(
                    "A pod with a failed device is not evicted now. pod=%s/%s reason=%r",
                    namespace,
                    name,
                    str(error),
                )
            else:
                self._retry.succeeded()
                self.queue.not_before[namespace, name] = now + AGAIN_S
                log.warning("A pod was evicted because its device failed. pod=%s/%s", namespace, name)
            return self._rate.wait_s(now)
        return wait
