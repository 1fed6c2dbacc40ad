"""Wait in a test until something is true, with a bound, and fail with its text if it does not come."""

from __future__ import annotations

import asyncio
import inspect
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
