"""Give every test a time limit, and print where a test hangs.

pytest-timeout counts the time, set-up and tear-down included, and reads the limit: ``PYTEST_TIMEOUT`` (0: none), a
mark ``timeout(seconds)`` on a test that is long by nature, ``--timeout``. This module replaces what happens then.
Neither method of pytest-timeout serves here: its exception may end in a task of asyncio, or in an example that
Hypothesis then repeats without a limit; the text of its thread is lost in a worker of pytest-xdist. So a thread writes
the name of the test, the stack of each thread and the line of each task to the real stderr. It then kills the children
of this process, which would keep its pipes open, and ends the process. pytest-xdist reports the test as failed and
continues in a new worker.
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
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

LIMIT_S = 360
"""Longer than any deadline inside a test, so that the more precise deadline ends first."""
FRAMES = 20
UNSWITCHED_S = 3600.0
"""For this long no other thread can ask for the interpreter."""

os.environ.setdefault("PYTEST_TIMEOUT", str(LIMIT_S))


@pytest.hookimpl(optionalhook=True)
def pytest_timeout_set_timer(item: Any, settings: Any) -> bool:
    timer = threading.Timer(settings.timeout, _end, (item, settings.timeout))
    timer.name, timer.daemon = f"limit of {item.nodeid}", True
    item.cancel_timeout = timer.cancel  # pytest-timeout calls it when the test is done
    timer.start()
    return True


def _end(item: Any, limit_s: float) -> None:
    if (capture := item.config.pluginmanager.getplugin("capturemanager")) is not None:
        capture.suspend_global_capture(in_=True)
    with suppress(Exception):
        # One write, so that the texts of two workers do not mix.
        os.write(2, f"\n+++ {item.nodeid} was not done after {limit_s:g} s +++\n{_stacks()}".encode())
    children = _children(os.getpid())
    # The death of a child wakes the test that waits for it, which must not pass before the end of the process.
    sys.setswitchinterval(UNSWITCHED_S)
    for child in children:
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
    os._exit(1)


def _stacks() -> str:
    """The innermost frames of each thread, and the line of each task."""
    text = io.StringIO()
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for number, frame in sys._current_frames().items():
        if number != threading.get_ident():
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
