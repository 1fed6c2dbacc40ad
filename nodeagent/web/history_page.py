"""The page ``/ui/history.json``: the newest changes of a daemon, for its page in the browser and for the verb."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from functools import partial

import msgspec

from nodeagent.base.bounded_calls import in_thread
from nodeagent.base.change_log import Change, ChangeLog, changes_since
from nodeagent.web.live_document import JSON_TYPE
from nodeagent.web.server import Page
from nodeagent.web.ui_pages import PageQuestion

_LIMIT, LIMIT_MAX = 1_000, 10_000


class HistoryDocument(msgspec.Struct, frozen=True):
    """``time`` is when it was made, ``since`` the time from which on it has the newest ``limit`` changes. ``complete``:
    nothing since then is left out. Times are Unix times. ``node`` is empty in the document of a controller."""

    time: float
    source: str
    node: str
    since: float
    complete: bool
    changes: list[Change]


def history_page(changes: ChangeLog, source: str, node: str = "") -> PageQuestion:
    """Answer the parameters ``since`` (Unix time), ``name`` and ``limit``."""

    async def answer(parameters: Mapping[str, str]) -> Page:
        try:
            since, limit = float(parameters.get("since", "0")), int(parameters.get("limit", _LIMIT))
        except ValueError:
            since, limit = math.nan, 0
        if math.isnan(since) or not 0 < limit <= LIMIT_MAX:
            return Page(400, f"since is a Unix time, limit a number up to {LIMIT_MAX}\n".encode())
        every = tuple(
            changes.changes
        )  # a thread searches: in the longest log this takes a quarter of a second
        found = await in_thread(partial(changes_since, every, since, parameters.get("name", ""), limit))
        kept = changes.changes and changes.changes[0].at < since
        document = HistoryDocument(time.time(), source, node, since, bool(kept) and len(found) < limit, found)
        return Page(200, msgspec.json.encode(document), JSON_TYPE)

    return answer
