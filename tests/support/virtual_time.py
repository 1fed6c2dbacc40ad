"""An event loop whose time passes only while all tasks wait: hours take milliseconds, always with the same result."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from nodeagent import bounded_calls


class _Selector(selectors.SelectSelector):
    waited = 0.0

    def select(self, timeout=None):
        ready = super().select(0)
        if not ready and timeout:
            self.waited += max(timeout, 1e-6)  # like real time, it always advances
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._virtual = _Selector()
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.waited


def run(work: Coroutine[Any, Any, Any]) -> Any:
    """As ``asyncio.run``. Bounded calls are made in the loop: virtual hours would pass while a thread works."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner, pytest.MonkeyPatch.context() as patch:
        patch.setattr(bounded_calls, "_begin", _call_now)
        return runner.run(work)


def _call_now(source: str, work: Callable[[], Any]) -> bounded_calls._Call:
    call = bounded_calls._Call(source, work)
    call.loop.call_soon(call.make())
    return call
