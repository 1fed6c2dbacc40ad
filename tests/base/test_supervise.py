"""Supervision: a part fails alone, is counted and started again; Fatal and cancellation pass."""

from __future__ import annotations

import asyncio

import pytest

from nodeagent.base import supervise
from nodeagent.base.supervise import Fatal, end_tasks, keep


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


async def test_tasks_end_before_a_cancellation_of_their_owner_takes_effect():
    """The lease cancels the leader's work again each few seconds; its tasks must have ended all the same."""
    release, steps = asyncio.Event(), []

    async def slow_to_end():
        try:
            await asyncio.Event().wait()
        finally:
            while not release.is_set():
                try:
                    await release.wait()
                except asyncio.CancelledError:
                    steps.append("cancelled again")
            steps.append("ended")

    async def owner():
        task = asyncio.create_task(slow_to_end())
        try:
            await asyncio.Event().wait()
        finally:
            await end_tasks([task])
            steps.append("not reached after a second cancellation")

    owning = asyncio.create_task(owner())
    for _ in range(3):
        await asyncio.sleep(0)
        owning.cancel()
        await asyncio.sleep(0)
    assert not owning.done()
    release.set()
    await asyncio.wait({owning})
    assert owning.cancelled()
    assert steps[-1] == "ended"
