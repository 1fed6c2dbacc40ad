"""Keep what the controller says of this node's rails in the file that the plan is made of."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from nodeagent.attach.given_numbers import drop_given_numbers, write_given_numbers
from nodeagent.base.bounded_calls import BoundedCalls
from nodeagent.cluster.deliveries import Delivery
from nodeagent.cluster.partner_list import follow_partners
from nodeagent.fabric.rail_partners import RailPartners
from nodeagent.kube.access import NodeClaim
from nodeagent.kube.client import ApiClient

log = logging.getLogger(__name__)

_WRITE_S = 5.0


async def keep_numbers(
    folder: Path, client: ApiClient, node: str, delivery: Delivery | None, owner: NodeClaim | None
) -> None:
    """Follow the object of this node until cancelled. ``folder`` is the state directory, ``owner`` the Node as the
    token names it. Without an object the last one of this Node stands: running pods have addresses by it."""
    calls, uid = BoundedCalls("numbers of the rails", _WRITE_S), "" if owner is None else owner.uid

    async def kept(*arguments: Any) -> bool | None:
        try:
            return await calls.run(*arguments)
        except OSError as error:
            log.warning("The numbers of this node cannot be kept. reason=%r", str(error))
        return None

    async def take(partners: RailPartners | None) -> None:
        if partners is not None:
            await kept(write_given_numbers, folder, node, partners.spec, uid)

    if uid and await kept(drop_given_numbers, folder, uid):
        log.warning("The Node was made again, and its numbers of before are not used. node=%r", node)
    await follow_partners(client, node, take, delivery, owner)
