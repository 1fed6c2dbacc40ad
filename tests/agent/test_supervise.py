"""Supervision: a part fails alone, is counted and started again; Fatal and cancellation pass."""

from __future__ import annotations

import asyncio

import pytest

from nodeagent import supervise
from nodeagent.supervise import Fatal, keep


async def test_work_that_fails_or_ends_is_started_again_and_counted() -> None:
    runs = 0
    third = asyncio.Event()
    reasons: list[str] = []

    async def work() -> None:
        nonlocal runs
        runs += 1
        if runs == 1:
            raise ValueError("broken")
        if runs == 2:
            return
        third.set()
        await asyncio.Event().wait()

    before = supervise.restarts["flaky"]
    task = asyncio.create_task(keep("flaky", work, failed=reasons.append, first_s=0.001))
    await asyncio.wait_for(third.wait(), 5)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert supervise.restarts["flaky"] - before == 2
    assert reasons == ["ValueError: broken", "it ended"]


async def test_fatal_passes() -> None:
    async def work() -> None:
        raise Fatal("cannot listen on :9808")

    with pytest.raises(Fatal, match=":9808"):
        await keep("web", work)


async def test_fatal_passes_out_of_groups() -> None:
    async def listen() -> None:
        raise Fatal("cannot listen on :9808")

    async def work() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.Event().wait())
            async with asyncio.TaskGroup() as inner:
                inner.create_task(listen())

    async with asyncio.timeout(5):
        with pytest.raises(Fatal, match=":9808"):
            await keep("web", work)
