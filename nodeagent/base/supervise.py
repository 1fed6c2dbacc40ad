"""Keep named tasks alive: each part fails alone, is logged, and is started again with back-off.

The only place that catches ``Exception``. ``Fatal`` and cancellation pass. ``Fatal`` means that the process cannot do
its job; its message is for the operator. Cancellation means that the process should end.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from typing import Any

from nodeagent.base.backoff import Backoff

log = logging.getLogger(__name__)

_BACKOFF_FIRST_S = 0.5
_BACKOFF_MAX_S = 30.0
_STEADY_S = 60.0
"""A task that ran this long before it failed starts over with the first back-off."""

restarts: Counter[str] = Counter()
"""Restarts by task name since the process began; the metric ``nodeagent_task_restarts_total``."""


class Fatal(Exception):  # noqa: N818 - the usual word; it is not always an error
    """The process cannot continue; the message names the cause and the remedy."""


def first_cause(error: Exception, *preferred: type[Exception]) -> Exception:
    """Return the first error inside a group that is ``Fatal`` or of a preferred type, or else the first of all. A task
    group wraps the errors of its tasks, in as many layers as there are groups."""
    flat: list[Exception] = []
    stack = [error]
    while stack:
        error = stack.pop()
        if isinstance(error, ExceptionGroup):
            stack.extend(reversed(error.exceptions))
        else:
            flat.append(error)
    return next((cause for cause in flat if isinstance(cause, (Fatal, *preferred))), flat[0])


def ending_signals(*unless_ignored: signal.Signals) -> list[signal.Signals]:
    """Return SIGTERM, and the other signals unless the parent process set them to be ignored.

    A shell starts a background job with SIGINT ignored, and ``nohup`` starts a program with SIGHUP ignored: Ctrl-C and
    the end of the terminal are then for other processes.
    """
    ends = (number for number in unless_ignored if signal.getsignal(number) is not signal.SIG_IGN)
    return [signal.SIGTERM, *ends]


async def keep(
    name: str,
    work: Callable[[], Awaitable[object]],
    *,
    failed: Callable[[str], object] | None = None,
    first_s: float = _BACKOFF_FIRST_S,
    max_s: float = _BACKOFF_MAX_S,
) -> None:
    """Run ``work`` until cancelled. ``failed`` takes the reason of each failure.

    Work that returns is started again too: it should run without end.
    """
    backoff = Backoff(first_s, max_s)
    while True:
        began = time.monotonic()
        failure: Exception | None
        try:
            await work()
            reason, failure = "it ended", None
        except Exception as error:  # noqa: BLE001 - the purpose of the supervisor
            if isinstance(fatal := first_cause(error), Fatal):
                raise fatal from None
            reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            failure = error
        if time.monotonic() - began > _STEADY_S:
            backoff.reset()
        restarts[name] += 1
        wait_s = backoff.next_s()
        log.error(
            "A part of the agent failed and will be started again. task=%s reason=%r again_in_s=%.1f",
            name,
            reason,
            wait_s,
            exc_info=failure if log.isEnabledFor(logging.DEBUG) else None,
        )
        if failed is not None:
            failed(reason)
        await asyncio.sleep(wait_s)


@asynccontextmanager
async def beside(
    work: Coroutine[Any, Any, object], ready: Coroutine[Any, Any, object], timeout_s: float | None = None
) -> AsyncIterator[asyncio.Task[object]]:
    """Run ``work`` as a task while the body runs, and cancel it at the end.

    The body starts when ``ready`` returns, or after ``timeout_s``. Raises the error of ``work`` if it fails before.
    """
    working, waiting = asyncio.ensure_future(work), asyncio.ensure_future(ready)
    try:
        await asyncio.wait((working, waiting), timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            await working
        yield working
    finally:
        await end_tasks((working, waiting))


async def either(*waits: Coroutine[Any, Any, object], timeout_s: float | None = None) -> None:
    """Return when one of the coroutines is done, or after ``timeout_s``, and the others have ended. Raises the error of
    the first one."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            if task.done():
                task.result()
    finally:
        await end_tasks(tasks)


async def end_tasks(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel the tasks and return when all have ended.

    A cancellation of the caller does not end this early: it is raised after the last task has ended. The tasks are
    cancelled again each second, because ``asyncio.wait_for``, which libraries use, may swallow a cancellation on Python
    3.11.
    """
    pending, cancelled = set(tasks), False
    while pending:
        for task in pending:
            task.cancel()
        try:
            _, pending = await asyncio.wait(pending, timeout=1.0)
        except asyncio.CancelledError:
            cancelled, pending = True, {task for task in pending if not task.done()}
    if cancelled:
        raise asyncio.CancelledError
