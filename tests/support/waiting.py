<<<<<<< HEAD
"""Wait for a condition that has no event, and fail with its text if it does not come."""
=======
"""Wait in a test until something is true, with a bound."""
>>>>>>> wait1

from __future__ import annotations

import asyncio
<<<<<<< HEAD
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
=======
from collections.abc import Callable
from typing import TypeVar

import pytest

from tests.support.virtual_time import VirtualLoop

T = TypeVar("T")

LIMIT_S = 60.0
LOOK_S = 0.01


async def until(good: Callable[[], T], what: str = "a condition", limit_s: float = LIMIT_S) -> T:
    """Return the first true result. In virtual time it is looked at in each turn of the loop; in real time a state
    that passes is missed: await a level that stays."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(limit_s):
            if isinstance(loop, VirtualLoop):
                return await loop.await_condition(good)
            while not (result := good()):
                await asyncio.sleep(LOOK_S)
            return result
    except TimeoutError:
        pytest.fail(f"timed out waiting for {what}")
>>>>>>> wait1
