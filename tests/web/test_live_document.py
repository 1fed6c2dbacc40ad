"""Events for the viewers of a live document: each new document once, and a sign of life while nothing changes."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from nodeagent.web.live_document import HEARTBEAT_S, LiveDocument

pytestmark = pytest.mark.usefixtures("virtual_time")


async def test_a_viewer_hears_of_each_new_document_once_and_a_sign_of_life_only_when_nothing_changes() -> (
    None
):
    loop = asyncio.get_running_loop()
    changes: asyncio.Queue[None] = asyncio.Queue()

    async def make() -> bytes:
        return b'{"a":1}'

    told: list[tuple[str, float]] = []
    live = LiveDocument(make, changes.get)
    stream = live.events().stream
    assert stream is not None
    async with aclosing(stream):
        async for event in stream:
            told.append((event.split()[1].decode(), loop.time()))
            if len(told) == 2:
                changes.put_nowait(None)
            if len(told) == 5:
                break
    names, times = zip(*told, strict=True)
    assert names == ("alive", "document", "document", "alive", "alive")
    assert times[4] - times[3] == pytest.approx(HEARTBEAT_S, abs=0.1)
