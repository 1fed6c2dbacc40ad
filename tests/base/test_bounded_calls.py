"""Calls run in threads with a limit: a call that hangs is abandoned, named and counted, and holds up no other."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
import time

import pytest

from nodeagent.base import bounded_calls
from nodeagent.base.bounded_calls import BoundedCalls, Unanswered, enter, hanging_calls
from tests.support.waiting import until


async def test_results_and_errors_reach_the_caller() -> None:
    calls = BoundedCalls("disk", 10)
    assert await calls.run(lambda: threading.current_thread().daemon)
    assert await calls.run(int, "12") == 12
    with pytest.raises(ValueError, match="invalid literal"):
        await calls.run(int, "x")
    assert not calls.hanging


async def test_a_call_that_hangs_is_abandoned_and_the_next_one_fails_at_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    gate = threading.Event()
    returned = asyncio.Event()
    calls = BoundedCalls("disk", 0.5, returned.set)

    def work() -> None:
        enter("/sys/first")
        enter("/sys/second")
        gate.wait(30)

    for _ in range(2):
        with pytest.raises(Unanswered, match=r"^disk: no answer within 0.5 s \(in /sys/second\)$") as error:
            await calls.run(work)
        assert (error.value.step, error.value.strerror) == ("/sys/second", str(error.value))
    assert calls.hanging
    (call,) = (call for call in hanging_calls() if call.source == "disk")
    assert call.step == "/sys/second"
    assert call.seconds > 0.5
    with pytest.raises(Unanswered):
        await BoundedCalls("disk", 10).run(lambda: 1)
    assert await BoundedCalls("disk", 10, alone=False).run(lambda: 1) == 1
    assert await BoundedCalls("other", 10).run(lambda: 1) == 1
    gate.set()
    await asyncio.wait_for(returned.wait(), 30)
    assert not calls.hanging
    assert await calls.run(lambda: 2) == 2
    assert [record.message.partition(" source")[0] for record in caplog.records] == [
        "A call does not answer; its thread is abandoned.",
        "An abandoned call has returned.",
    ]


async def test_each_step_has_the_whole_time() -> None:
    def work() -> int:
        for step in range(12):
            enter(str(step))
            time.sleep(0.1)
        return 12

    assert await BoundedCalls("disk", 1.0).run(work) == 12


async def test_calls_of_one_source_are_made_one_after_the_other() -> None:
    calls, running, most = BoundedCalls("disk", 30), 0, 0

    def work() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        time.sleep(0.01)
        running -= 1

    await asyncio.gather(*(calls.run(work) for _ in range(10)))
    assert most == 1


async def test_a_cancelled_caller_leaves_the_call_and_the_next_one_waits_for_it() -> None:
    gate, calls, order = threading.Event(), BoundedCalls("disk", 30), list[str]()
    started = threading.Event()

    def first() -> None:
        started.set()
        gate.wait(30)
        order.append("first")

    task = asyncio.create_task(calls.run(first))
    await until(started.is_set)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    following = asyncio.create_task(calls.run(order.append, "second"))
    await asyncio.sleep(0.01)
    gate.set()
    await following
    assert order == ["first", "second"]


async def test_an_error_that_no_caller_reads_any_more_is_not_logged() -> None:
    """At the end of the agent its callers are cancelled; then its folders may vanish."""
    complaints: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: complaints.append(context))
    may_end, calls = threading.Event(), BoundedCalls("disk", 60.0)

    def fail() -> None:
        may_end.wait(20)
        raise FileNotFoundError("the folder is gone")

    caller = asyncio.ensure_future(calls.run(fail))
    await until(lambda: calls._call)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    may_end.set()
    await until(lambda: calls._call is not None and calls._call.future.done())
    del caller
    calls._call = None
    gc.collect()
    assert complaints == []


async def test_a_free_thread_serves_the_next_call_and_ends_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_calls, "IDLE_S", 0.05)
    calls = BoundedCalls("disk", 10)
    threads = {await calls.run(threading.current_thread) for _ in range(20)}
    assert len(threads) == 1
    (thread,) = threads
    await until(lambda: not thread.is_alive())
    assert await calls.run(lambda: 3) == 3


def test_a_process_ends_while_a_call_hangs() -> None:
    text = """
import asyncio, time
from nodeagent.base.bounded_calls import BoundedCalls, Unanswered

async def main():
    try:
        await BoundedCalls("disk", 0.05).run(time.sleep, 600)
    except Unanswered:
        print("abandoned")

asyncio.run(main())
"""
    done = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "abandoned\n"
