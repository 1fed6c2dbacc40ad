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
from nodeagent.kube.client import ApiClient, ApiError
from nodeagent.kube.resource import RAIL_PARTNERS

log = logging.getLogger(__name__)

FIRST_S, RAIL_READ_S = 60.0, 600.0


async def follow_partners(
    client: ApiClient,
    node: str,
    take: Callable[[RailPartners | None], Awaitable[object]],
    delivery: Delivery | None,
) -> None:
    """Give each object that was read to ``take``, ``None`` if there is none. Runs until cancelled."""
    retry = ApiRetry("The list of partners cannot be read; the last one stays in force", delivery)
    none = Backoff(FIRST_S, RAIL_READ_S, jitter=JITTER)
    await asyncio.sleep(jittered(FIRST_S, 0.0, 1.0))
    while True:
        wait_s = jittered(RAIL_READ_S)
        try:
            await take(rail_partners_of(await client.get(RAIL_PARTNERS, node)))
        except ReportError as error:
            log.warning("The list of partners is refused, and the last one stays. reason=%r", str(error))
        except ApiError as error:
            if error.missing:
                await take(None)
                retry.succeeded()
                wait_s = none.next_s()
            else:
                wait_s = retry.failed(error, time.monotonic())
        else:
            retry.succeeded(())
            none.reset()
        await asyncio.sleep(wait_s)
