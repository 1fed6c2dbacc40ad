"""End a daemon at a signal: in order if that is possible, and within a second in any case.

The end in order cancels the tasks, and each leaves its part of the machine in a good state. A call that hangs in the
kernel (a disk, a driver, a full pipe of the log) would delay it without limit. So a thread of its own waits for the
signal, which is blocked in all other threads: it works even while the main thread hangs.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Iterable
from contextlib import suppress

from nodeagent.base.bounded_calls import hanging_calls

log = logging.getLogger(__name__)

ORDERLY_S = 0.85
"""From the signal to the end in any case."""
LOG_S = 0.1
"""For the thread that writes the log."""


def end_at(signals: Iterable[signal.Signals]) -> None:
    """Cancel the present task at the first of these signals. End the process soon after, with exit code 0, if it has
    not ended by itself. For the main thread, before other threads start."""
    task = asyncio.current_task()
    assert task is not None
    numbers = frozenset(signals)
    signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    threading.Thread(target=_await_signal, args=(numbers, task), name="signals", daemon=True).start()


def _await_signal(numbers: frozenset[signal.Signals], task: asyncio.Task[object]) -> None:
    signal.sigwait(numbers)
    with suppress(RuntimeError):  # the loop has ended, and the process is about to
        task.get_loop().call_soon_threadsafe(task.cancel)
    time.sleep(ORDERLY_S)
    _log_obstacles()
    time.sleep(LOG_S)
    os._exit(0)


def _log_obstacles() -> None:
    calls = "; ".join(f"{call.source} in {call.step or 'a call'}" for call in hanging_calls())
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None and not frame.f_globals.get("__name__", "").startswith("nodeagent."):
        frame = frame.f_back
    place = f"{frame.f_globals['__name__']}:{frame.f_lineno}" if frame is not None else "none"
    log.warning(
        "Stopped, although a part of the process hangs. calls=%r main_thread=%s", calls or "none", place
    )
