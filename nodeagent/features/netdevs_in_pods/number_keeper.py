"""Keep what the controller says of this node's rails in the file that the plan is made of."""

from __future__ import annotations

import logging
from pathlib import Path

from nodeagent.attach.given_numbers import write_given_numbers
from nodeagent.base.bounded_calls import BoundedCalls
from nodeagent.cluster.deliveries import Delivery
from nodeagent.cluster.partner_list import follow_partners
from nodeagent.fabric.rail_partners import RailPartners
from nodeagent.kube.client import ApiClient

log = logging.getLogger(__name__)

_WRITE_S = 5.0


async def keep_numbers(folder: Path, client: ApiClient, node: str, delivery: Delivery | None) -> None:
    """Follow the object of this node until cancelled. ``folder`` is the state directory. Without an object the last one
    stands: running pods have addresses by it."""
    calls = BoundedCalls("numbers of the rails", _WRITE_S)

    async def take(partners: RailPartners | None) -> None:
        if partners is not None:
            try:
                await calls.run(write_given_numbers, folder, node, partners.spec)
            except OSError as error:
                log.warning("The numbers of this node cannot be kept. reason=%r", str(error))

    await follow_partners(client, node, take, delivery)
