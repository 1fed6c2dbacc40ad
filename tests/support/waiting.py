"""Wait in a test until something is true, with a bound, and fail with its text if it does not come."""

from __future__ import annotations

import asyncio
import inspect
import os
import select
import time
from collections.abc import Callable
from typing import TypeVar

from tests.support.virtual_time import VirtualLoop

T = TypeVar("T")

LIMIT_S = 40.0
"""Below the time limit of a test, so that a test whose condition never comes fails with this message."""
VIRTUAL_LIMIT_S = 600.0
PAUSE_S = 0.002


async def until(
    condition: Callable[[], T],
    what: str = "",
    *,
    pause_s: float = PAUSE_S,
    limit_s: float | None = None,
) -> T:
    """Return the first true result, which must stay true: a state that passes may come and go between two looks.

    ``pause_s=0`` looks in each turn of the event loop. In virtual time each turn is looked at in any case.
    """
    loop = asyncio.get_running_loop()
    virtual = isinstance(loop, VirtualLoop)
    limit_s = limit_s or (VIRTUAL_LIMIT_S if virtual else LIMIT_S)
    try:
        async with asyncio.timeout(limit_s):
            if isinstance(loop, VirtualLoop):
                return await loop.await_condition(condition)
            while not (result := condition()):
                await asyncio.sleep(pause_s)
            return result
    except TimeoutError:
        text = what or " ".join(inspect.getsource(condition).split())
        raise AssertionError(f"not within {limit_s:g} s: {text}") from None


def await_bytes(descriptor: int, limit_s: float = LIMIT_S) -> None:
    """Return when a read of the descriptor does not block: bytes, the end or an error."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    if not poll.poll(limit_s * 1000):
        raise AssertionError(f"no byte within {limit_s:g} s")


class Lines:
    """The lines of a pipe, which nobody else reads. Each read has a bound, also where a writer stops within a line."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._bytes = b""

    def next(self, limit_s: float = LIMIT_S) -> str:
        """The next line with its end; at the end of the pipe what is left."""
        until = time.monotonic() + limit_s
        while b"\n" not in self._bytes:
            await_bytes(self._descriptor, max(0.0, until - time.monotonic()))
            if not (part := os.read(self._descriptor, 65536)):
                break
            self._bytes += part
        line, end, self._bytes = self._bytes.partition(b"\n")
        return (line + end).decode()

    def until(self, found: Callable[[str], object], limit_s: float = LIMIT_S) -> str:
        """The next line for which ``found`` is true; the lines before it are dropped."""
        until = time.monotonic() + limit_s
        while not found(line := self.next(max(0.0, until - time.monotonic()))):
            assert line, "the pipe ended"
        return line
