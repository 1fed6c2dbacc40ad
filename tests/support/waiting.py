"""Wait in a test until something is true, with a bound."""

from __future__ import annotations

import asyncio
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
