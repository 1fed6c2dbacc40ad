"""``/metrics``: the latest values of the node as a page. A scrape reads memory and never causes a reading."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable

from nodeagent.host.clock import boottime
from nodeagent.measurements.table import OTHER_LIMITS
from nodeagent.metrics.computed_family import ComputedFamily
from nodeagent.metrics.exposition import Exposition
from nodeagent.metrics.scrape_input import ScrapeInput
from nodeagent.metrics.text_format import PLAIN_TYPE, negotiate
from nodeagent.web.server import Page
from nodeagent.web.web_settings import WebSettings


class MetricsPage:
    """Renders one page at a time, in pieces; other requests wait. ``collect`` returns the values to show, and
    ``further`` are the families of features."""

    def __init__(
        self,
        collect: Callable[[], ScrapeInput],
        settings: WebSettings,
        further: Iterable[ComputedFamily[ScrapeInput]] = (),
    ) -> None:
        left_out = OTHER_LIMITS if settings.optics_limits == "alerts" else frozenset()
        self._collect = collect
        self._exposition = Exposition(settings.series_max, left_out, further)
        self._rendering = asyncio.Lock()

    def page(self, accept: str) -> Page:
        content_type = negotiate(accept)
        return Page(200, b"", content_type, self._pieces(content_type != PLAIN_TYPE))

    async def _pieces(self, openmetrics: bool) -> AsyncIterator[bytes]:
        async with self._rendering:
            now = boottime()
            for piece in self._exposition.pieces(self._collect(), openmetrics, now):
                yield piece.encode()
                await asyncio.sleep(0)
