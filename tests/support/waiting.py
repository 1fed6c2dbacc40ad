"""Wait for a condition that has no event, and fail with its text if it does not come."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable

LIMIT_S = 40.0
"""Below the time limit of a test, so that a test whose condition never comes fails with this message."""


async def until(condition: Callable[[], object], pause_s: float = 0.002, limit_s: float = LIMIT_S) -> None:
    """Return once ``condition`` holds. It must hold on: a state that passes may come and go between two looks.

    ``pause_s=0`` looks in each turn of the event loop.
    """
    try:
        async with asyncio.timeout(limit_s):
            while not condition():
                await asyncio.sleep(pause_s)
    except TimeoutError:
        text = " ".join(inspect.getsource(condition).split())
        raise AssertionError(f"not within {limit_s:g} s: {text}") from None
