"""Make calls that may block in threads that the process does not wait for, each with a time limit.

A read of a driver's file, a write to a disk or a call into a library may hang in the kernel without end, and no thread
can be ended from outside.

* The caller waits for a limited time. Then the thread is abandoned, and the log has one line with the call.
* Each ``BoundedCalls`` makes one call at a time. While an abandoned call hangs, the next one fails at once: no second
  thread hangs in the same place.
* Work of several steps names its present step with ``enter``. Each step has the whole time.
* Threads are daemon threads. One that is free serves the next call, and ends after ``IDLE_S``.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, TypeVar, cast
from weakref import WeakKeyDictionary

log = logging.getLogger(__name__)

T = TypeVar("T")

IDLE_S = 30.0
_LOOK_AGAIN_S = 0.2
"""A process that was stopped finds every limit exceeded: a call gets this time to continue before it is abandoned."""


class Unanswered(TimeoutError):  # noqa: N818 - it says what happened
    """A call did not return in time. ``step`` is what it did last, such as the path of a file; it may be empty."""

    def __init__(self, source: str, step: str, limit_s: float) -> None:
        self.source, self.step = source, step
        where = f" (in {step})" if step else ""
        super().__init__(errno.ETIMEDOUT, f"{source}: no answer within {limit_s:g} s{where}")

    def __str__(self) -> str:
        return str(self.strerror)


class HangingCall(NamedTuple):
    """A call that was abandoned and hangs: what makes it, its last step, and for how long it has been in that."""

    source: str
    step: str
    seconds: float


def hanging_calls() -> tuple[HangingCall, ...]:
    now = time.monotonic()
    calls = (HangingCall(call.source, call.step, now - call.since) for call in tuple(_hanging))
    return tuple(sorted(calls))  # of one source the oldest is the last


def enter(step: str) -> None:
    """Name the step that the work of this thread begins now."""
    call: _Call | None = getattr(_present, "call", None)
    if call is not None:
        call.step, call.since = step, time.monotonic()


class BoundedCalls:
    """The calls of one source. Belongs to one event loop at a time."""

    def __init__(
        self,
        source: str,
        limit_s: float,
        returned: Callable[[], object] = lambda: None,
        *,
        alone: bool = True,
    ) -> None:
        """``returned`` is called when an abandoned call has returned after all. Unless ``alone``, calls are made
        although a call of another object of this source hangs."""
        self.source, self.limit_s = source, limit_s
        self.returned = returned
        self._alone = alone
        self._call: _Call | None = None

    async def run(self, work: Callable[..., T], *arguments: Any) -> T:
        """Call ``work`` in a thread and return its result. Raises its errors, and ``Unanswered``.

        A caller that is cancelled leaves the call to its thread.
        """
        if self._call is None and self._alone:
            self._call = self._hanging_elsewhere()
        while (earlier := self._call) is not None and not earlier.over:
            await self._wait(earlier)
        call = self._call = _begin(self.source, partial(work, *arguments))
        await self._wait(call)
        result: T = call.future.result()
        return result

    @property
    def hanging(self) -> bool:
        """Whether an abandoned call has not returned."""
        return self._call is not None and self._call in _hanging

    def _hanging_elsewhere(self) -> _Call | None:
        """The call of an object that a restarted task no longer has."""
        loop = asyncio.get_running_loop()
        return next(
            (call for call in tuple(_hanging) if (call.source, call.loop) == (self.source, loop)), None
        )

    async def _wait(self, call: _Call) -> None:
        """Return when the call has ended. Raises ``Unanswered``."""
        while not call.future.done():
            if call in _hanging:
                raise Unanswered(self.source, call.step, self.limit_s)
            since = call.since
            left_s = since + self.limit_s - time.monotonic()
            await asyncio.wait((call.future,), timeout=max(left_s, _LOOK_AGAIN_S))
            if left_s <= 0 and not call.over and call.since == since:
                self._abandon(call)

    def _abandon(self, call: _Call) -> None:
        _hanging.add(call)
        call.future.add_done_callback(partial(self._came_back, call))
        log.warning(
            "A call does not answer; its thread is abandoned. source=%s step=%r after_s=%g",
            self.source,
            call.step,
            self.limit_s,
        )

    def _came_back(self, call: _Call, future: asyncio.Future[Any]) -> None:
        if not future.cancelled():
            log.info("An abandoned call has returned. source=%s step=%r", self.source, call.step)
            self.returned()


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


def in_thread(work: Callable[[], T]) -> asyncio.Future[T]:
    """Call ``work`` in a daemon thread without a limit. For work that does not touch files or drivers, or whose caller
    watches the time."""
    return _begin("", work).future


class _Call:
    """One call: its thread sets ``step`` and ``since``, and the result."""

    def __init__(self, source: str, work: Callable[[], Any]) -> None:
        self.source, self.step, self.since = source, "", time.monotonic()
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Any] = self.loop.create_future()
        self.over = False
        self._work = work

    def make(self) -> Callable[[], None]:
        """Do the work. Return what passes its result to the event loop."""
        _present.call = self
        settle: Callable[[], None]
        try:
            settle = partial(self._settle, self._work(), None)
        except BaseException as error:  # noqa: BLE001 - the caller gets it
            settle = partial(self._settle, None, error)
        _present.call = None
        self.over = True
        _hanging.discard(self)
        return settle

    def _settle(self, result: Any, error: BaseException | None) -> None:
        if self.future.done():
            return
        if error is None:
            self.future.set_result(result)
        else:
            self.future.set_exception(error)
            self.future.exception()  # its caller may be cancelled: then nobody reads it, and asyncio would log that


class _CallThread(threading.Thread):
    def __init__(self, free: list[_CallThread]) -> None:
        super().__init__(name="bounded-call", daemon=True)
        self.calls: SimpleQueue[_Call] = SimpleQueue()
        self._free = free

    def run(self) -> None:
        while True:
            try:
                call = self.calls.get(timeout=IDLE_S)
            except Empty:
                with _free_lock:
                    if self not in self._free:  # it was just taken for a call
                        continue
                    self._free.remove(self)
                return
            settle = call.make()
            loop = call.loop
            del call
            with _free_lock:
                self._free.append(self)
            with suppress(RuntimeError):  # the loop ended meanwhile
                loop.call_soon_threadsafe(settle)
            del settle, loop


def _begin(source: str, work: Callable[[], Any]) -> _Call:
    call = _Call(source, work)
    _free_thread(call.loop).calls.put(call)
    return call


def _free_thread(loop: asyncio.AbstractEventLoop) -> _CallThread:
    with _free_lock:
        free = _free_threads.setdefault(loop, [])
        if free:
            return free.pop()
    thread = _CallThread(free)
    thread.start()
    return thread


_present = threading.local()
_hanging: set[_Call] = set()
_free_lock = threading.Lock()
_free_threads: WeakKeyDictionary[asyncio.AbstractEventLoop, list[_CallThread]] = WeakKeyDictionary()
"""By event loop, because a thread belongs to the network namespace of the thread that started it."""
