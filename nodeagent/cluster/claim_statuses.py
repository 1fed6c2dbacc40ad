"""The status of the devices of prepared claims in the API server (``status.devices``, KEP-4817).

Rules:

* The server's own field manager merges the entries by device, so those of other drivers are not touched. It removes
  ours when the claim is deallocated.
* A claim is read once before its first write: an earlier agent may have written the same.
* No pod waits for a write. A change of the health is written after a random part of a minute, and only if it still
  stands: a switch that restarts changes the health of one rail on all nodes at once.
* The UID is part of each write, so a claim that was made again is not touched.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping

from nodeagent.base.backoff import RateLimit, jittered
from nodeagent.base.rfc3339 import rfc3339
from nodeagent.base.supervise import either
from nodeagent.cluster.deliveries import Deliveries, Delivery
from nodeagent.cluster.retry import ApiRetry
from nodeagent.dra import DRIVER
from nodeagent.dra.claim_status import device_statuses, own_entries, same, with_times
from nodeagent.dra.offered import DraOffer
from nodeagent.dra.prepared_claim import PreparedClaim
from nodeagent.facts.inventory import Inventory
from nodeagent.kube.client import ApiClient, ApiError
from nodeagent.kube.resource import RESOURCE_CLAIMS, Json, metadata

log = logging.getLogger(__name__)

BURST, PER_S = 10, 0.5
"""Of the claims of one node."""
SPREAD_S = (2.0, 30.0)
LOOK_S = 60.0
"""How often the facts are compared without any change."""
DROPPED = "does not keep status.devices: its feature gate DRAResourceClaimDeviceStatus is off"

_Key = tuple[str, str]
"""The UID of a claim, and its allocation."""


class ClaimStatusWriter:
    """``records`` are the claims that are prepared now, by UID."""

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
        self._refused: dict[_Key, list[Json]] = {}
        """Entries that the server has refused: they are not sent again before they change."""
        self._due: dict[_Key, float] = {}
        """When a change of written entries is written."""

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
        wait_s = LOOK_S
        for key, record in records.items():
            entries = device_statuses(record, devices, functions)
            if self._settled(key, entries):
                self._due.pop(key, None)
                continue
            now = self._now()
            if key in self._stored:
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
                self._refused[key] = entries
                if error.refused:
                    self._retry.rejected(error)
        return wait_s

    def _settled(self, key: _Key, entries: list[Json]) -> bool:
        """Whether the server has these entries, or has refused them."""
        known = (mapping[key] for mapping in (self._stored, self._refused) if key in mapping)
        return not entries or any(same(entries, stored) for stored in known)

    async def _write(self, key: _Key, record: PreparedClaim, entries: list[Json]) -> None:
        """Read the claim, or write its entries. Raises ``ApiError``."""
        self._rate.take(self._now())
        if key not in self._stored:
            claim = await self._client.get(RESOURCE_CLAIMS, record.name, namespace=record.namespace)
            if metadata(claim).uid != record.uid:
                self._refused[key] = entries
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
        else:  # it would differ for ever
            self._refused[key] = entries
            self._delivery.unmet(DROPPED)


def _lacks_right(error: ApiError) -> bool:
    """Whether the server misses the right for our driver: it answers 422, as for a wrong field (registry/resource,
    AuthorizedForDeviceStatus)."""
    return any("resourceclaims/driver" in cause.message for cause in error.causes)
