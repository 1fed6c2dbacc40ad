"""The status of the devices of prepared claims in the API server (``status.devices``, KEP-4817).

Rules:

* The server's own field manager merges the entries by device, so those of other drivers are not touched. It removes
  ours when the claim is deallocated.
* A claim is read once before its first write: an earlier agent may have written the same.
* No pod waits for a write. A change of the health is written after a random part of a minute, and only if it still
  stands: a switch that restarts changes the health of one rail on all nodes at once.
* The UID is part of each write, so a claim that was made again is not touched.
* After a conflict the claim is read and written again soon. What the server refuses is sent again seldom, or when it
  has changed: a webhook may refuse for a while.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from nodeagent.base.backoff import RateLimit, jittered, next_wait_s
from nodeagent.base.rfc3339 import rfc3339
from nodeagent.base.supervise import either
from nodeagent.cluster.deliveries import Deliveries, Delivery
from nodeagent.cluster.retry import ApiRetry
from nodeagent.dra import DRIVER
from nodeagent.dra.claim_status import device_statuses, own_entries, same, with_times
from nodeagent.dra.offered import DraOffer
from nodeagent.dra.prepared_claim import PreparedClaim
from nodeagent.facts.inventory import Inventory
from nodeagent.facts.model import PodNetdev
from nodeagent.kube.client import ApiClient, ApiError
from nodeagent.kube.resource import RESOURCE_CLAIMS, Json, metadata

log = logging.getLogger(__name__)

BURST, PER_S = 10, 0.5
"""Of the claims of one node."""
SPREAD_S = (2.0, 30.0)
_CONFLICT_S, _REFUSED_S = (2.0, 120.0), (60.0, 3600.0)
"""The first and the longest wait before refused entries are sent again."""
STATUS_LOOK_S = 60.0
"""How often the facts are compared without any change."""
DROPPED = "does not keep status.devices: its feature gate DRAResourceClaimDeviceStatus is off"

_Key = tuple[str, str]
"""The UID of a claim, and its allocation."""


class _Refusal(NamedTuple):
    """Entries that the server has refused. They are not sent again before ``until``, which is ``wait_s`` later."""

    entries: list[Json]
    until: float
    wait_s: float = 0.0


class ClaimStatusWriter:
    """``records`` are the claims that are prepared now and have their files, by UID."""

    def __init__(
        self,
        client: ApiClient,
        inventory: Inventory,
        offer: DraOffer,
        records: Callable[[], Mapping[str, PreparedClaim]],
        *,
        delivery: Delivery | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client, self._inventory, self._offer, self._records = client, inventory, offer, records
        self._delivery = delivery or Deliveries().of("claims")
        self._retry = ApiRetry("The status of claims does not reach the API server", self._delivery)
        self._rate = RateLimit(BURST, PER_S)
        self._now = now
        self._stored: dict[_Key, list[Json]] = {}
        """Our entries in the API server, as far as they are known."""
        self._refused: dict[_Key, _Refusal] = {}
        self._due: dict[_Key, float] = {}
        """When a change of written entries is written, or refused ones are sent again."""

    async def run(self) -> None:
        """Write until cancelled."""
        while True:
            await asyncio.sleep(self._retry.wait_s(self._now()))
            seen, offered = self._inventory.snapshot.revision, self._offer.revision
            wait_s = await self._write_due()
            await either(self._inventory.changed(seen), self._offer.changed(offered), timeout_s=wait_s)

    async def _write_due(self) -> float:
        """Write what differs and may be written. Return the seconds until there is more to do."""
        records = {(record.uid, record.allocation): record for record in self._records().values()}
        for key in (self._stored.keys() | self._refused.keys() | self._due.keys()) - records.keys():
            self._stored.pop(key, None)
            self._refused.pop(key, None)
            self._due.pop(key, None)
        devices = {device.name: device for device in self._offer.current.known()}
        functions = {function.pci_address: function for function in self._inventory.snapshot.functions}
        netdevs = self._pod_netdevs()
        wait_s = STATUS_LOOK_S
        for key, record in records.items():
            entries = device_statuses(record, devices, functions, netdevs)
            now, refusal = self._now(), self._refused.get(key)
            settled = same(entries, self._stored.get(key, ()))
            if settled or (refusal is not None and not same(entries, refusal.entries)):
                self._due.pop(key, None)
                self._refused.pop(key, None)
                refusal = None
            if settled:
                continue
            if refusal is not None:
                self._due[key] = refusal.until
            elif key in self._stored:
                self._due.setdefault(key, now + jittered(1.0, *SPREAD_S))
            left_s = max(self._due.get(key, now) - now, self._rate.wait_s(now))
            if left_s > 0:
                wait_s = min(wait_s, left_s)
                continue
            try:
                await self._write(key, record, entries)
            except ApiError as error:
                passing = error.missing or error.conflict or error.refused
                if not passing or _lacks_right(error):
                    return self._retry.failed(error, self._now())
                if error.conflict:
                    self._stored.pop(key, None)
                wait_s = min(wait_s, self._hold(key, entries, _CONFLICT_S if error.conflict else _REFUSED_S))
                if error.refused:
                    self._retry.rejected(error)
        return wait_s

    def _pod_netdevs(self) -> dict[str, PodNetdev] | None:
        """The netdevs in pods by PCI address; ``None`` before `nodeagent attach` was asked for once."""
        if not self._inventory.has_published("attach"):
            return None
        return {netdev.device: netdev for netdev in self._inventory.snapshot.pod_netdevs}

    def _hold(self, key: _Key, entries: list[Json], waits: tuple[float, float]) -> float:
        """Do not send refused entries before a wait has passed, which grows from the first to the second. Return it."""
        last = self._refused.get(key)
        wait_s = max(waits[0], next_wait_s(0.0 if last is None else last.wait_s, *waits))
        held_s = jittered(wait_s)
        self._refused[key] = _Refusal(entries, self._now() + held_s, wait_s)
        return held_s

    async def _write(self, key: _Key, record: PreparedClaim, entries: list[Json]) -> None:
        """Read the claim, or write its entries. Raises ``ApiError``."""
        self._rate.take(self._now())
        if key not in self._stored:
            claim = await self._client.get(RESOURCE_CLAIMS, record.name, namespace=record.namespace)
            if metadata(claim).uid != record.uid:
                self._refused[key] = _Refusal(entries, math.inf)
                return
            self._stored[key] = own_entries(claim)
            if same(entries, self._stored[key]):
                return
        wanted = with_times(entries, self._stored[key], rfc3339(time.time()))
        body = {
            "metadata": {"name": record.name, "namespace": record.namespace, "uid": record.uid},
            "status": {"devices": wanted},
        }
        answer = await self._client.apply(RESOURCE_CLAIMS, body, subresource="status", manager=DRIVER)
        self._due.pop(key, None)
        self._stored[key] = own_entries(answer)
        if same(entries, self._stored[key]):
            self._retry.succeeded()
        else:
            self._hold(key, entries, _REFUSED_S)
            self._delivery.unmet(DROPPED)


def _lacks_right(error: ApiError) -> bool:
    """Whether the server misses the right for our driver: it answers 422, as for a wrong field (registry/resource,
    AuthorizedForDeviceStatus)."""
    return any("resourceclaims/driver" in cause.message for cause in error.causes)
