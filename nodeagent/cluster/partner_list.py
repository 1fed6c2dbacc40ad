"""Follow the RailPartners object of this node.

It is read by ``get``, at random within ``FIRST_S`` of the start and then every ``RAIL_READ_S``: changes are rare, and
100,000 nodes that watch would cost more than the news is worth. What cannot be read stays as it was. While there is no
object it is looked for after a minute, two, four and so on: the controller makes it after the first report.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from nodeagent.base.backoff import JITTER, Backoff, jittered
from nodeagent.cluster.deliveries import Delivery
from nodeagent.cluster.retry import ApiRetry
from nodeagent.fabric.nodelinks import ReportError
from nodeagent.fabric.rail_partners import RailPartners, rail_partners_of
from nodeagent.kube.access import NodeClaim
from nodeagent.kube.client import ApiClient, ApiError
from nodeagent.kube.resource import RAIL_PARTNERS

log = logging.getLogger(__name__)

FIRST_S, RAIL_READ_S = 60.0, 600.0


async def follow_partners(
    client: ApiClient,
    node: str,
    take: Callable[[RailPartners | None], Awaitable[object]],
    delivery: Delivery | None,
    owner: NodeClaim | None = None,
) -> None:
    """Give each object that was read to ``take``, ``None`` if there is none. Runs until cancelled. ``owner`` is the
    Node as the token names it: what a former Node of this name had goes with that one, and counts for nothing."""
    retry = ApiRetry("The list of partners cannot be read; the last one stays in force", delivery)
    none = Backoff(FIRST_S, RAIL_READ_S, jitter=JITTER)
    await asyncio.sleep(jittered(FIRST_S, 0.0, 1.0))
    while True:
        wait_s = jittered(RAIL_READ_S)
        try:
            found = await _read(client, node, owner)
        except ReportError as error:
            log.warning("The list of partners is refused, and the last one stays. reason=%r", str(error))
        except ApiError as error:
            wait_s = retry.failed(error, time.monotonic())
        else:
            await take(found)
            retry.succeeded()
            if found is None:
                wait_s = none.next_s()
            else:
                none.reset()
        await asyncio.sleep(wait_s)


async def _read(client: ApiClient, node: str, owner: NodeClaim | None) -> RailPartners | None:
    """The object of this node; ``None`` if there is none. Raises ``ApiError`` and ``ReportError``."""
    try:
        document = await client.get(RAIL_PARTNERS, node)
    except ApiError as error:
        if error.missing:
            return None
        raise
    found = rail_partners_of(document)
    references = document.get("metadata", {}).get("ownerReferences") or ()
    owners = {one.get("uid") for one in references if one.get("kind") == "Node"}
    return None if owner is not None and owners - {owner.uid} else found
