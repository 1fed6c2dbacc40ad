"""The devices that pods hold, read from the kubelet's podresources API.

The agent keeps no record of allocations: the kubelet makes no Deallocate call, and its checkpoint is private. It reads
the holdings at start, after each allocation and every 30 s. An empty answer and a failure are repeated after a second:
VFs (``kubelet/rail_memory.py``) and ResourceSlices may wait for the holdings.

A kubelet that has just started may answer with an *empty* list although pods hold devices. So an empty answer is
published only after ``EMPTY_STANDS_S``, or after ``OWN_STANDS_S`` if it lists the agent's own pod: then the kubelet has
its pods from the API server.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from nodeagent.base.backoff import Backoff
from nodeagent.facts.model import ClaimUser, Holding
from nodeagent.kube.podresources_client import PodResources, PodResourcesError

__all__ = ["EMPTY_STANDS_S", "PodResourcesError", "offered", "once", "settled", "watch_holdings"]

log = logging.getLogger(__name__)

_INTERVAL_S = 30.0
_RETRY_S = 1.0
_RETRY_MAX_S = 5.0
"""After failures the wait grows to this: the kubelet may be back at any moment, and asking it costs little."""
NOTED_S = 0.5
"""The kubelet lists an allocation after it has the answers for all resources of the container."""
SETTLED_RETRY_S = 0.5
"""Between two looks of a command that waits for a kubelet which may be restarting."""
EMPTY_STANDS_S = 15.0
"""An empty list was observed 0.3 s after a kubelet's restart; its pods are restored within seconds."""
OWN_STANDS_S = 3.0
"""The kubelet takes over its pods one after the other, oldest first, some milliseconds each (HandlePodAdditions)."""


async def once(socket: Path) -> tuple[Holding, ...]:
    """Read the holdings once; an empty answer is returned too. Raises ``PodResourcesError``."""
    return await PodResources(socket).list()


async def settled(socket: Path, wait_s: float) -> tuple[Holding, ...]:
    """Read the holdings of a kubelet that may be restarting: it does not answer, or lists no pod at all.

    After ``wait_s`` an answer without pods is returned. Raises ``PodResourcesError``.
    """
    client = PodResources(socket)
    deadline = time.monotonic() + wait_s
    while True:
        left_s = deadline - time.monotonic()
        try:
            if not socket.is_socket():
                raise PodResourcesError(f"{socket} is no socket; the kubelet makes it when it starts")
            holdings = await client.list()
            if client.pods_listed or left_s <= 0:
                return holdings
        except PodResourcesError:
            if left_s <= 0:
                raise
        await asyncio.sleep(min(SETTLED_RETRY_S, max(0.0, left_s)))


async def offered(socket: Path) -> dict[str, tuple[str, ...]]:
    """Return the device IDs by resource that the kubelet counts now. Raises ``PodResourcesError``."""
    return await PodResources(socket).offered()


async def watch_holdings(
    socket: Path,
    publish: Callable[[tuple[Holding, ...], tuple[ClaimUser, ...]], object],
    mark_stale: Callable[[str], object],
    read_now: asyncio.Event,
    *,
    interval_s: float = _INTERVAL_S,
    own_pod: tuple[str, str] | None = None,
    empty_stands_s: float = EMPTY_STANDS_S,
    own_stands_s: float = OWN_STANDS_S,
) -> None:
    """Publish the holdings until cancelled; ``read_now`` triggers a reading.

    Without an answer from the kubelet they are marked as old. ``own_pod`` is the namespace and name of the agent's pod.
    """
    client = PodResources(socket)
    known: tuple[Holding, ...] | None = None
    empty_since: float | None = None
    own_since: float | None = None
    failing = False
    backoff = Backoff(min(_RETRY_S, interval_s), min(_RETRY_MAX_S, interval_s))
    while True:
        try:
            holdings = await client.list()
        except PodResourcesError as error:
            if not failing:
                log.warning("The holdings of pods cannot be read. reason=%r", str(error))
            failing = True
            mark_stale(str(error))
            own_since = None
            pause = backoff.next_s()
        else:
            backoff.reset()
            if failing:
                log.info("The holdings of pods are read again.")
            failing = False
            now = time.monotonic()
            if holdings or known == ():
                empty_since = own_since = None
            else:
                empty_since = now if empty_since is None else empty_since
                own_since = (
                    (now if own_since is None else own_since) if own_pod in client.pods_listed else None
                )
            if (
                empty_since is None
                or now - empty_since >= empty_stands_s
                or (own_since is not None and now - own_since >= own_stands_s)
            ):
                known, empty_since, own_since = holdings, None, None
                publish(holdings, client.claim_users)
            again_s = min(interval_s, _RETRY_S, empty_stands_s / 3, own_stands_s / 3)
            pause = interval_s if empty_since is None else again_s
        with suppress(TimeoutError):
            async with asyncio.timeout(pause):
                await read_now.wait()
                await asyncio.sleep(NOTED_S)
        read_now.clear()
