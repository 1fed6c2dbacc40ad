"""Evicting the pods that hold a failed device: off unless asked for, slow, and within disruption budgets.

The law of this file:

* A pod goes after its device has failed without a break for as long as is configured. A device that is unknown
  has not failed.
* One pod in ten seconds. A budget that refuses is asked again later; a pod that was asked to go is given time.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field

from nodeagent.cluster.affected_devices import FAILED, Hit, Offered, hits
from nodeagent.cluster.retry import Bucket, Trouble, refused
from nodeagent.inventory import Inventory
from nodeagent.kube.client import ApiError, Client
from nodeagent.model import Snapshot

log = logging.getLogger(__name__)

PER_S = 0.1
AGAIN_S = 300.0
"""A pod that does not end is asked again."""
BUDGET_S = 30.0
"""A disruption budget that refuses is asked again, unless it says when."""
IDLE_S = 3600.0

Pod = tuple[str, str]


@dataclass(slots=True)
class Waiting:
    """Since when each pod's device has failed, and when it is asked to go."""

    after_s: float
    since: dict[Pod, float] = field(default_factory=dict)
    not_before: dict[Pod, float] = field(default_factory=dict)

    def observe(self, hit: Iterable[Hit], now: float) -> None:
        pods = {(one.namespace, one.pod) for one in hit if one.subject.health.state in FAILED}
        self.since = {pod: self.since.get(pod, now) for pod in pods}
        self.not_before = {pod: at for pod, at in self.not_before.items() if pod in pods}

    def due(self, now: float) -> tuple[list[Pod], float]:
        """Who is to go, the longest waiting first; and how long until the next one is."""
        at = {
            pod: max(since + self.after_s, self.not_before.get(pod, since))
            for pod, since in self.since.items()
        }
        later = [when - now for when in at.values() if when > now]
        return sorted((pod for pod, when in at.items() if when <= now), key=at.__getitem__), min(
            later, default=IDLE_S
        )


class Evictions:
    def __init__(
        self, client: Client, inventory: Inventory, offered: Callable[[Snapshot], Offered], after_s: float
    ) -> None:
        self.waiting = Waiting(after_s)
        self._client, self._inventory, self._offered = client, inventory, offered
        self._bucket = Bucket(1, PER_S)
        self._trouble = Trouble("A pod with a failed device cannot be evicted")

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            snapshot = self._inventory.snapshot
            self.waiting.observe(hits(snapshot, self._offered(snapshot)), time.monotonic())
            wait = await self._evict()
            with suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._inventory.changed(snapshot.revision)

    async def _evict(self) -> float:
        now = time.monotonic()
        if (wait := max(self._trouble.wait(now), self._bucket.wait(now))) > 0:
            return wait
        pods, wait = self.waiting.due(now)
        for namespace, name in pods[:1]:
            self._bucket.take(now)
            try:
                await self._client.evict(name, namespace=namespace)
            except ApiError as error:
                if error.status == 429:
                    wait = BUDGET_S if error.retry_after_s is None else error.retry_after_s
                    self.waiting.not_before[namespace, name] = now + wait
                elif error.missing or refused(error):
                    self.waiting.not_before[namespace, name] = now + AGAIN_S
                else:
                    return self._trouble.has(error, now)
                log.info(
                    "A pod with a failed device stays for now. pod=%s/%s reason=%r",
                    namespace,
                    name,
                    str(error),
                )
            else:
                self._trouble.over()
                self.waiting.not_before[namespace, name] = now + AGAIN_S
                log.warning("A pod was evicted, for its device has failed. pod=%s/%s", namespace, name)
            return self._bucket.wait(now)
        return wait
