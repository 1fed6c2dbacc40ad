"""``/metrics``: the latest view of the node as a page. A scrape reads memory, and never causes a read."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable

from nodeagent.metrics.exposition import PLAIN, Exposition, negotiate
from nodeagent.metrics.scrape_input import View
from nodeagent.web.server import Page


class Metrics:
    """``look`` gives what is known now. One page is rendered at a time, in pieces; who comes meanwhile waits."""

    def __init__(self, look: Callable[[], View], series_max: int) -> None:
        self._look = look
        self._exposition = Exposition(series_max)
        self._turn = asyncio.Lock()

    def page(self, accept: str) -> Page:
        content_type = negotiate(accept)
        return Page(200, b"", content_type, self._pieces(content_type != PLAIN))

    async def _pieces(self, openmetrics: bool) -> AsyncIterator[bytes]:
        async with self._turn:
            now = time.clock_gettime(time.CLOCK_BOOTTIME)
            for piece in self._exposition.pieces(self._look(), openmetrics, now):
                yield piece.encode()
                await asyncio.sleep(0)
