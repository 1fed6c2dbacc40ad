"""The labels of Nodes: several writes in flight under one rate limit, and what ends a round."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from nodeagent.kube.client import ApiError
from nodeagent.kube.lease import NotLeading
from nodeagent.topology.node_labels import IN_FLIGHT, LABELS_PER_SECOND, NodeLabeler
from nodeagent.topology.write_log import WriteLog

pytestmark = pytest.mark.usefixtures("virtual_time")

Answer = Callable[[str], ApiError | None]


class SlowServer:
    """Takes ``latency_s`` for each patch. ``names`` are the Nodes in the order of their writes."""

    def __init__(self, latency_s: float, answer: Answer = lambda _: None) -> None:
        self._latency_s, self._answer = latency_s, answer
        self.in_flight = self.most = 0
        self.names: list[str] = []
        self.times: list[float] = []

    async def patch(self, _resource: object, name: str, _body: dict[str, Any]) -> None:
        self.names.append(name)
        self.times.append(asyncio.get_running_loop().time())
        self.in_flight += 1
        self.most = max(self.most, self.in_flight)
        await asyncio.sleep(self._latency_s)
        self.in_flight -= 1
        if (error := self._answer(name)) is not None:
            raise error


def relabel(nodes: int) -> dict[str, dict[str, str | None]]:
    return {f"gpu-{node:06}": {"topology.nodeagent.io/tier-1": "unit"} for node in range(nodes)}


def refusal(status: int | None, retry_after_s: float | None = None) -> ApiError:
    return ApiError("patch", "/api/v1/nodes/x", status, "Refused", "no", retry_after_s=retry_after_s)


def labeler(server: SlowServer) -> NodeLabeler:
    return NodeLabeler(server, WriteLog())  # type: ignore[arg-type]


async def test_nodes_are_labelled_at_a_pace_of_three_minutes_for_a_hundred_thousand() -> None:
    """With 15 ms for each answer, in several rounds."""
    server, todo = SlowServer(0.015), relabel(2000)
    labels = labeler(server)
    start = asyncio.get_running_loop().time()
    while todo:
        await labels.label(todo, 0.5)
        for name in todo.keys() & set(server.names):
            del todo[name]
    assert asyncio.get_running_loop().time() - start <= 180 * 2000 / 100_000
    assert len(server.names) == len(set(server.names)) == labels.writes["ok"] == 2000
    assert server.most <= IN_FLIGHT


async def test_a_fast_server_gets_no_more_than_the_rate() -> None:
    server = SlowServer(0.0)
    await labeler(server).label(relabel(4000), 60.0)
    assert server.times[-1] - server.times[0] >= 0.9 * 4000 / LABELS_PER_SECOND


async def test_a_round_ends_in_time_and_the_next_one_continues_there() -> None:
    server = SlowServer(0.5)
    labels = labeler(server)
    todo = relabel(100)
    result = await labels.label(todo, 0.75)
    assert (result.failed, result.left_out) == (False, 100 - len(server.names))
    assert len(server.names) < 100
    await labels.label(todo, 60.0)
    assert server.names[: len(todo)] == sorted(todo)


@pytest.mark.parametrize("error", [refusal(429, 7.0), refusal(None)], ids=["asks to wait", "no answer"])
async def test_a_server_that_is_busy_or_silent_ends_the_round(error: ApiError) -> None:
    server = SlowServer(0.01, lambda _: error)
    result = await labeler(server).label(relabel(500), 60.0)
    assert result.failed
    assert result.retry_after_s == (error.retry_after_s or 0.0)
    assert len(server.names) <= 2 * IN_FLIGHT
    assert result.left_out == 500 - len(server.names)


async def test_the_end_of_the_leadership_is_raised_by_its_own_type() -> None:
    """The controller knows ``NotLeading``, and no group of exceptions."""
    server = SlowServer(0.01)

    async def lost(*_: object) -> None:
        raise NotLeading("another replica leads")

    server.patch = lost  # type: ignore[method-assign]
    with pytest.raises(NotLeading):
        await labeler(server).label(relabel(40), 10.0)


async def test_a_refused_node_does_not_hold_up_the_others() -> None:
    server = SlowServer(0.01, lambda name: refusal(422) if name.endswith("50") else None)
    labels = labeler(server)
    result = await labels.label(relabel(400), 60.0)
    assert (result.failed, result.left_out) == (True, 0)
    assert labels.writes == {"ok": 396, "failed": 4}
