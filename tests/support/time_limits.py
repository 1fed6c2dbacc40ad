"""Give every test a time limit, and print where a test hangs.

pytest-timeout counts the time, set-up and tear-down included, and reads the limit: ``PYTEST_TIMEOUT`` (0: none), a
mark ``timeout(seconds)`` on a test that is long by nature, ``--timeout``. The mark ``slow`` brings a limit of its own.
This module replaces what happens then.

A test that has failed has its whole limit again for its fixtures, but 10 s after a hang.

At the limit the test fails: a signal raises ``LimitReached`` in the main thread, again each second, because a task of
asyncio may take one for its own. Hypothesis repeats no example for it. The stack of each thread and the line of each
task are written to the real stderr, since a worker of pytest-xdist loses other text.

A test that is blocked in C, which no signal interrupts, ends with its process: a thread kills the children, which would
keep the pipes open, and then the process. pytest-xdist reports the test as failed and continues in a new worker.
"""

from __future__ import annotations

import asyncio
import gc
import io
import os
import signal
import sys
import threading
import traceback
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest
from _pytest.outcomes import OutcomeException

LIMIT_S = 60
"""Longer than any deadline inside a test, so that the more precise deadline ends first."""
SLOW_S = 180
"""For a test with the mark ``slow``: it takes some 20 s on two quiet cores, and more on busy ones."""
AGAIN_S = 1.0
TEARDOWN_S = 10.0
"""After the limit, for the fixtures of the test."""
UNINTERRUPTED_S = 20
"""A test that ignores the signal for this long ends with its process."""
FRAMES = 20
UNSWITCHED_S = 3600.0
"""For this long no other thread can ask for the interpreter."""

_RUNNING: list[bool] = []
"""Not empty while a fixture or a test runs."""

os.environ.setdefault("PYTEST_TIMEOUT", str(LIMIT_S))


class LimitReached(OutcomeException):
    """Not an ``Exception``: neither Hypothesis nor a test catches it. pytest knows its base, and ends the other
    fixtures of the test too."""


class Limit:
    """The limit of one test. pytest-timeout ends it with the test, and as soon as a phase of it has failed."""

    def __init__(self, item: Any, limit_s: float) -> None:
        self.item = item
        self.limit_s = limit_s
        self.reached = False
        self.begin(limit_s)

    def begin(self, after_s: float) -> None:
        self.last = threading.Timer(after_s + UNINTERRUPTED_S, self.end_process)
        self.last.name, self.last.daemon = f"limit of {self.item.nodeid}", True
        self.before: Any = signal.signal(signal.SIGALRM, self.fail)
        signal.setitimer(signal.ITIMER_REAL, after_s, AGAIN_S)
        self.last.start()
        self.counts = True
        self.item.cancel_timeout = self.cancel

    def begin_again(self, after_s: float) -> None:
        self.cancel()
        self.begin(after_s)

    def cancel(self) -> None:
        self.counts = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, self.before)
        self.last.cancel()

    def fail(self, *_: object) -> None:
        text = f"not done after {self.limit_s:g} s"
        if not self.reached:
            self.reached = True
            stacks = self.show()
            if (capture := self.capture()) is None:
                os.write(2, stacks)
            else:
                with capture.global_and_fixture_disabled():
                    os.write(2, stacks)
        if _RUNNING:
            raise LimitReached(text)

    def end_process(self) -> None:
        if (capture := self.capture()) is not None:
            capture.suspend_global_capture(in_=True)
        with suppress(Exception):
            os.write(2, self.show())
        children = _children(os.getpid())
        # The death of a child wakes the test that waits for it, which must not pass before the end of the process.
        sys.setswitchinterval(UNSWITCHED_S)
        for child in children:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        os._exit(1)

    def capture(self) -> Any:
        return self.item.config.pluginmanager.getplugin("capturemanager")

    def show(self) -> bytes:
        """One text for one write, so that the texts of two workers do not mix."""
        return f"\n+++ {self.item.nodeid} was not done after {self.limit_s:g} s +++\n{_stacks()}".encode()


@pytest.hookimpl(optionalhook=True)
def pytest_timeout_set_timer(item: Any, settings: Any) -> bool:
    item.limit = Limit(item, settings.timeout)
    return True


def pytest_collection_modifyitems(items: list[Any]) -> None:
    for item in items:
        if item.get_closest_marker("slow") is not None and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(SLOW_S))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: Any) -> Generator[None, Any, Any]:
    return (yield from _running(item))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: Any) -> Generator[None, Any, Any]:
    return (yield from _running(item))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: Any) -> Generator[None, Any, Any]:
    if (limit := _limit(item)) is not None and (limit.reached or not limit.counts):
        limit.begin_again(TEARDOWN_S if limit.reached else limit.limit_s)
    return (yield from _running(item))


def _limit(item: Any) -> Limit | None:
    return getattr(item, "limit", None)


def _running(item: Any) -> Generator[None, Any, Any]:
    """Outside of these phases an exception would end the whole run. The report of a hang has time of its own."""
    _RUNNING.append(True)
    try:
        return (yield)
    except LimitReached as error:
        raise error.with_traceback(with_lines(error.__traceback__)) from error.__cause__
    finally:
        _RUNNING.clear()
        if (limit := _limit(item)) is not None and limit.reached:
            limit.begin_again(UNINTERRUPTED_S)


def with_lines(frames: TracebackType | None) -> TracebackType | None:
    """Leave out a frame whose instruction has no line, as a signal may find it: pytest's report would end the run."""
    if frames is None:
        return None
    below = with_lines(frames.tb_next)
    line: int | None = frames.tb_lineno
    return below if line is None else TracebackType(below, frames.tb_frame, frames.tb_lasti, line)


def _stacks() -> str:
    """The innermost frames of each thread, and the line of each task."""
    text = io.StringIO()
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for number, frame in sys._current_frames().items():
        if not isinstance(threading.current_thread(), threading.Timer) or number != threading.get_ident():
            text.write(f"Thread {names.get(number, number)}:\n")
            text.writelines(traceback.format_stack(frame)[-FRAMES:])
    for loop in [found for found in gc.get_objects() if isinstance(found, asyncio.AbstractEventLoop)]:
        for task in asyncio.all_tasks(loop):
            task.print_stack(file=text)
    return text.getvalue()


def _children(parent: int) -> list[int]:
    """The processes below this one, the nearest first."""
    found: list[int] = []
    for path in Path(f"/proc/{parent}/task").glob("*/children"):
        with suppress(OSError):
            found += [int(word) for word in path.read_text().split()]
    return found + [deeper for child in found for deeper in _children(child)]
