"""A thread for one call: one that never comes back must not take another's place in a pool."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress


def in_thread(work: Callable[[], None], name: str) -> asyncio.Future[None]:
    """Done when ``work`` is. Where that raises its traceback is in the log, and the future raises too."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()

    def settle(good: bool) -> None:
        if future.done():
            return
        if good:
            future.set_result(None)
        else:
            future.set_exception(RuntimeError(f"the thread {name} died; its traceback is in the log"))

    def run() -> None:
        good = False
        try:
            work()
            good = True
        finally:
            with suppress(RuntimeError):  # the loop has ended meanwhile
                loop.call_soon_threadsafe(settle, good)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future
