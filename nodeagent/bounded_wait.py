"""Wait for a call that may block, before the event loop runs. Without asyncio, so that the start of the agent decides
how asyncio is imported."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import TypeVar, cast

T = TypeVar("T")


class Unanswered(TimeoutError):  # noqa: N818 - it says what happened
    """A call did not return in time. ``step`` is what it did last, such as the path of a file; it may be empty."""

    def __init__(self, source: str, step: str, limit_s: float) -> None:
        self.source, self.step = source, step
        where = f" (in {step})" if step else ""
        super().__init__(errno.ETIMEDOUT, f"{source}: no answer within {limit_s:g} s{where}")

    def __str__(self) -> str:
        return str(self.strerror)


def within(source: str, limit_s: float, work: Callable[[], T]) -> T:
    """Call ``work`` in a daemon thread and wait for it, without an event loop: for the start of a process. Raises its
    errors, and ``Unanswered``."""
    results: SimpleQueue[tuple[T | None, BaseException | None]] = SimpleQueue()

    def make() -> None:
        try:
            results.put((work(), None))
        except BaseException as error:  # noqa: BLE001 - the caller gets it
            results.put((None, error))

    threading.Thread(target=make, name=source, daemon=True).start()
    try:
        result, error = results.get(timeout=limit_s)
    except Empty:
        raise Unanswered(source, "", limit_s) from None
    if error is not None:
        raise error
    return cast("T", result)
