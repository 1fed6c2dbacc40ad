"""A thread for calls that may hang. In a shared pool, a hanging call would block the place of others."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue


class WorkerThread:
    """One thread. It starts with the first call and ends with ``close`` or with the process.

    It makes one call at a time. If a call hangs, the futures of later calls stay open until it returns.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def run(self, work: Callable[[], None]) -> asyncio.Future[None]:
        """The future ends with ``work``. If that raises, the log has the traceback and the future raises too."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()

        def settle(succeeded: bool) -> None:
            if future.done():
                return
            if succeeded:
                future.set_result(None)
            else:
                future.set_exception(
                    RuntimeError(f"the thread {self.name} died; its traceback is in the log")
                )

        def call() -> None:
            succeeded = False
            try:
                work()
                succeeded = True
            finally:
                if not succeeded:
                    self._thread = None  # the exception ends the thread, so the next call needs a new one
                with suppress(RuntimeError):  # the loop ended meanwhile
                    loop.call_soon_threadsafe(settle, succeeded)

        if self._thread is None:
            self._calls = SimpleQueue()  # a closed thread keeps the old queue
            self._thread = threading.Thread(target=_work, args=(self._calls,), name=self.name, daemon=True)
            self._thread.start()
        self._calls.put(call)
        return future

    def close(self) -> None:
        """End the thread after its current call."""
        if self._thread is not None:
            self._calls.put(None)
            self._thread = None


def _work(calls: SimpleQueue[Callable[[], None] | None]) -> None:
    while (call := calls.get()) is not None:
        call()
