"""A thread for calls that may never come back: in a pool one of those would take the place of all others."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue


class Worker:
    """One thread, started with its first call, that ends with ``close`` or with the process.

    One call at a time is made; whoever waits for one that hangs is told nothing until it comes back.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def run(self, work: Callable[[], None]) -> asyncio.Future[None]:
        """Done when ``work`` is. Where that raises its traceback is in the log, and the future raises too."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()

        def settle(good: bool) -> None:
            if future.done():
                return
            if good:
                future.set_result(None)
            else:
                future.set_exception(
                    RuntimeError(f"the thread {self.name} died; its traceback is in the log")
                )

        def call() -> None:
            good = False
            try:
                work()
                good = True
            finally:
                if not good:
                    self._thread = None  # it is about to end, and would hear no further call
                with suppress(RuntimeError):  # the loop has ended meanwhile
                    loop.call_soon_threadsafe(settle, good)

        if self._thread is None:
            self._calls = SimpleQueue()  # who was told to end has the old one
            self._thread = threading.Thread(target=_work, args=(self._calls,), name=self.name, daemon=True)
            self._thread.start()
        self._calls.put(call)
        return future

    def close(self) -> None:
        """Let the thread end when it has done what it does."""
        if self._thread is not None:
            self._calls.put(None)
            self._thread = None


def _work(calls: SimpleQueue[Callable[[], None] | None]) -> None:
    while (call := calls.get()) is not None:
        call()
