"""Fetch the page ``/gpus`` of the agent on this machine, or read the machine for a moment."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path

import msgspec

from nodeagent.agent_config import Config
from nodeagent.base.bounded_calls import in_thread
from nodeagent.commands.agent_query import AgentQueryError, ask_for
from nodeagent.commands.running_sources import RunningSources, known_kinds
from nodeagent.offering.offer import Offer
from nodeagent.sharing.gpu_accounting import GpuAccounting
from nodeagent.web.gpu_statuses import GpuStatuses, gpu_statuses
from nodeagent.web.pages import device_counts

AGAIN_S = 1.0
_LINES = msgspec.json.Decoder(GpuStatuses)


def fetch(config: Config, root: Path) -> tuple[GpuStatuses | None, str]:
    """Return the answer of the agent that serves this root, and its place; or ``None``, and why none answers.

    Raises ``AgentQueryError``.
    """
    return ask_for(_LINES, "/gpus", config, root)


async def views(
    config: Config, root: Path, explain: Callable[[str | None, str], object]
) -> AsyncIterator[GpuStatuses]:
    """Yield the GPUs once a second: from the agent, or from the machine if no agent answers.

    ``explain`` takes the place of the agent, or ``None`` and why none answers, once.
    """
    lines, source = await in_thread(partial(fetch, config, root))
    explain(None if lines is None else source, source)
    while lines is not None:
        yield lines
        await asyncio.sleep(AGAIN_S)
        lines, source = await in_thread(partial(fetch, config, root))
        if lines is None:
            raise AgentQueryError("the agent has ended")
    async for own in _own(config, root):
        yield own


async def _own(config: Config, root: Path) -> AsyncIterator[GpuStatuses]:
    sources = RunningSources(config, root)
    accounting = GpuAccounting(config.gpu, lambda: sources.inventory.snapshot, lambda: {})
    sources.gpu_publisher.publish_usage_to(accounting.take_usage)
    async with sources:
        offer = Offer(config)
        while True:
            snapshot = sources.inventory.snapshot
            counts = device_counts(known_kinds(offer, snapshot), snapshot)
            samples = sources.gpu_publisher.samples()
            yield gpu_statuses(snapshot, counts, samples, accounting.accounts(), accounting.obstacle)
            await asyncio.sleep(AGAIN_S)
