"""The sections of a configuration that the objects of a running daemon keep: what its parts can still read."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections import deque
from collections.abc import Iterator
from types import ModuleType

from nodeagent.config.setting import Settings


def sections(value: object) -> Iterator[Settings]:
    """A configuration and each section in it, entries of lists too."""
    if isinstance(value, Settings):
        yield value
        for name in value.__struct_fields__:
            yield from sections(getattr(value, name))
    elif isinstance(value, tuple):
        for one in value:
            yield from sections(one)


def kept_beside(in_force: tuple[Settings, ...], *roots: object) -> list[str]:
    """The sections of the kinds of ``in_force`` that are equal to no part of it, each with the way from its keeper.

    Looked at is all that is reached from ``roots``, the event loop and its tasks, but for the task that asks.
    """
    own = [one for config in in_force for one in sections(config)]
    kinds = {type(one) for one in own}
    return [way for one, way in _reached(roots) if type(one) in kinds and one not in own]


def _reached(roots: tuple[object, ...]) -> Iterator[tuple[Settings, str]]:
    asking = asyncio.current_task()
    assert asking is not None
    seen = {id(one.__dict__) for one in list(sys.modules.values())}
    seen |= {id(asking), id(asking.get_coro())}
    ways: dict[int, tuple[object, int]] = {}
    """Each object, which lives until the end of the search, and the object that it was reached from."""
    first = (*roots, *asyncio.all_tasks(), asyncio.get_running_loop())
    news: deque[tuple[object, int]] = deque((one, 0) for one in first)
    while news:
        one, before = news.popleft()
        if id(one) in seen or isinstance(one, ModuleType | type):
            continue
        seen.add(id(one))
        ways[id(one)] = one, before
        if isinstance(one, Settings):
            yield one, " < ".join(_way(id(one), ways))
        news += ((other, id(one)) for other in gc.get_referents(one))


def _way(key: int, ways: dict[int, tuple[object, int]]) -> Iterator[str]:
    while key:
        one, key = ways[key]
        yield getattr(one, "__qualname__", type(one).__qualname__)
