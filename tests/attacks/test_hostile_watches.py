"""A watch that ends at once, that never ends, or whose objects contain texts of many commas.

There are three servers. One lists a Node and then ends each watch cleanly after a second without an event. One sends
an empty line or an interim answer (100 Continue) now and then, long after the watch should have ended. One sends a Node
whose annotation is as large as Kubernetes permits and consists of commas.

Requests must become rarer. Each watch must end at its deadline, and the trouble must name it. No text of an object may
count as values.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager
from itertools import pairwise

import pytest

from nodeagent.kube.access import Access
from nodeagent.kube.client import ApiClient, ApiError
from nodeagent.kube.reflector import Reflector
from nodeagent.kube.resource import NODES
from nodeagent_lab.sim.apiserver import ApiServer
from tests.support import hostile_server as hostile
from tests.support.waiting import until

ANNOTATIONS_MAX = 256 * 1024
"""The limit of the API server for all annotations of an object."""
LIST = b'{"metadata":{"resourceVersion":"7"},"items":[{"metadata":{"name":"a"}}]}'
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@asynccontextmanager
async def reflecting(client: ApiClient, **times: float) -> AsyncIterator[Reflector[object]]:
    reflector: Reflector[object] = Reflector(client, NODES.partial, **times)
    running = asyncio.ensure_future(reflector.run())
    try:
        yield reflector
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await client.close()


@pytest.mark.slow
async def test_a_watch_that_ends_without_an_event_is_requested_more_rarely_each_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The watches last longer than the first wait, and much less than a real one."""
    monkeypatch.setattr("nodeagent.kube.reflector.SHORT_S", 0.01)
    monkeypatch.setattr("nodeagent.kube.reflector.WATCH_QUIET_S", 60.0)
    asked: list[float] = []

    def answer(line: str) -> Iterator[bytes]:
        if "watch=true" not in line:
            yield from hostile._whole(LIST)
            return
        asked.append(time.monotonic())
        yield CHUNKED
        time.sleep(0.02)
        yield b"0\r\n\r\n"

    async with hostile.hostile_server() as server:
        await server.set_answer(answer)
        async with reflecting(ApiClient(Access(server.url)), first_s=0.01, max_s=10.0):
            await server.until(lambda: len(asked) >= 9)
    pauses = [later - earlier for earlier, later in pairwise(asked)]
    assert max(pauses[-2:]) > 0.5, pauses


@pytest.mark.parametrize("part", [b"1\r\n\n\r\n", b"HTTP/1.1 100 Continue\r\n\r\n"])
async def test_a_watch_ends_at_its_deadline_whatever_the_server_sends(
    part: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nodeagent.kube.client.WATCH_S", (0, 0))
    monkeypatch.setattr("nodeagent.kube.client.GRACE_S", 0.5)

    def answer(_: str) -> Iterator[bytes]:
        if part.startswith(b"1"):
            yield CHUNKED
        while True:
            time.sleep(0.02)
            yield part

    async with hostile.hostile_server() as server:
        await server.set_answer(answer)
        client = ApiClient(Access(server.url))
        async with asyncio.timeout(20), aclosing(client.watch(NODES.partial, resource_version="1")) as events:
            with pytest.raises(ApiError, match=r"watch /api/v1/nodes: Timeout: no answer of http.* in time"):
                await anext(events)
        await client.close()


async def test_the_commas_of_a_text_are_not_values() -> None:
    """A kubelet may annotate its own Node: it must not cost the controller its copy of all others."""
    server = await ApiServer().start()
    text = ',[{,,,,"' * (ANNOTATIONS_MAX // 8)
    node = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": "a", "annotations": {"example.com/a": text}},
    }
    assert len(json.dumps(node)) < hostile.MIB
    try:
        async with reflecting(ApiClient(Access(server.url, token=server.token())), first_s=0.01) as nodes:
            await nodes.synced.wait()
            await server.until(lambda: server.watching["nodes"])
            server.put(node)
            await until(lambda: "a" in nodes.objects)
            assert nodes.restarts == {"start": 1}, nodes.trouble
    finally:
        await server.stop()
