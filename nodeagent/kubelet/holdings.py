"""Which container holds which device, as the kubelet's podresources API tells it.

The agent keeps no ledger of its own: there is no Deallocate call and the checkpoint is the kubelet's. This
is asked at start, after each allocation and now and then. A kubelet that has just started may answer with
an *empty* list though pods hold devices, so an empty answer is believed only when it stands.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from nodeagent.kube.podresources_client import PodResources, PodResourcesError
from nodeagent.model import Holding

__all__ = ["EMPTY_STANDS_S", "INTERVAL_S", "PodResourcesError", "offered", "once", "watch"]

log = logging.getLogger(__name__)

INTERVAL_S = 30.0
NOTED_S = 0.5
"""The kubelet notes an allocation once we have answered for all the resources of its container."""
EMPTY_STANDS_S = 15.0
"""The empty list was seen 0.3 s after a kubelet's restart; its pods are restored within seconds."""


async def once(socket: Path) -> tuple[Holding, ...]:
    """One question, empty answers included. Raises ``PodResourcesError``."""
    client = PodResources(socket)
    try:
        return await client.list()
    finally:
        await client.close()


async def offered(socket: Path) -> dict[str, tuple[str, ...]]:
    """The device IDs by resource that the kubelet counts now. Raises ``PodResourcesError``."""
    client = PodResources(socket)
    try:
        return await client.offered()
    finally:
        await client.close()


async def watch(
    socket: Path,
    state: Callable[[tuple[Holding, ...]], object],
    silence: Callable[[str], object],
    asked: asyncio.Event,
    *,
    interval_s: float = INTERVAL_S,
    empty_stands_s: float = EMPTY_STANDS_S,
) -> None:
    """State the holdings for ever; ``asked`` wants them now. A kubelet that is away silences the source."""
    client = PodResources(socket)
    known: tuple[Holding, ...] | None = None
    empty_since: float | None = None
    silent = False
    try:
        while True:
            try:
                holdings = await client.list()
            except PodResourcesError as error:
                if not silent:
                    log.warning("It is not known which pod holds what. reason=%r", str(error))
                silent = True
                silence(str(error))
            else:
                if silent:
                    log.info("The kubelet tells again which pod holds what.")
                silent = False
                now = time.monotonic()
                if holdings or known == ():
                    empty_since = None
                elif empty_since is None:
                    empty_since = now
                if empty_since is None or now - empty_since >= empty_stands_s:
                    known, empty_since = holdings, None
                    state(holdings)
            pause = interval_s if empty_since is None else min(interval_s, empty_stands_s / 3)
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await asked.wait()
                    await asyncio.sleep(NOTED_S)
            asked.clear()
    finally:
        await client.close()
