"""An event loop whose time passes only while all tasks wait: hours take milliseconds, always with the same result.

A test takes the fixture ``virtual_time`` (``pytestmark = pytest.mark.usefixtures("virtual_time")`` for a whole file);
``run`` is for a test that is no coroutine.

* The loop jumps to its next timer when nothing is ready. ``time.monotonic``, the time since boot and the wall clock
  follow it, but not a clock that is the default of a parameter: it was read when its module was imported.
* The time stands still while a thread of nodeagent works: a bounded call, a call of the executor, the reader of a
  watch. A thread that waits for bytes of a server in the same loop does not work, and its timeout is virtual too.
* Other processes, and the threads of libraries, are not waited for: a test that needs one keeps the real time. So do
  the tests of ``kubelet``, ``agent`` and the service in ``dra``: gRPC answers from threads of its own. The loop does
  not see them, and would jump over the answer to the deadline of its call. A test that tries it fails.
* A test in which nothing can happen any more fails at once, and so does one whose thread works without end.
"""

from __future__ import annotations

import asyncio
import select
import selectors
import socket
import ssl
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import partial, partialmethod
from typing import Any, NoReturn

import grpc.aio
import pytest

from nodeagent.base import bounded_calls
from nodeagent.kube.watch_stream import WatchStream

STEP_S = 1e-6
"""The shortest jump."""
TURN_S = 1e-9
"""A turn of the loop takes time, as it does in real time: a wait that rounding makes too short for the clock to advance
would otherwise be over and over again at the same moment."""
STILL_S = 20.0
"""Real seconds: no work of a thread takes as long."""
LOOK_S = 0.05
"""Real seconds from one look at the threads to the next; each thread also wakes the loop."""

_here = threading.local()


_real_monotonic, _real_wall, _real_gettime = time.monotonic, time.time, time.clock_gettime


@pytest.fixture
def virtual_time() -> None:
    """Run the coroutines of this test in a ``VirtualLoop``."""


def pytest_asyncio_loop_factories(item: pytest.Item) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    names = getattr(item, "fixturenames", ())
    return {"loop": VirtualLoop if virtual_time.__name__ in names else asyncio.SelectorEventLoop}


def run(work: Coroutine[Any, Any, Any]) -> Any:
    """As ``asyncio.run``."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work)


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._virtual = _Selector()
        super().__init__(self._virtual)
        # Also while the loop does not run: a thread that a fixture has started continues before the test begins.
        self._replaced = ExitStack()
        self._replaced.enter_context(_clocks_follow(self))
        self._replaced.enter_context(_threads_counted(self))

    def time(self) -> float:
        return self._virtual.now

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> asyncio.Future[Any]:
        work = self.work_begins()
        future = super().run_in_executor(executor, partial(work.do, func, *args))
        work.future = future
        return future

    def work_begins(self) -> _Work:
        """Count the work of a thread until it ends."""
        work = _Work(self)
        self._virtual.works.append(work)
        return work

    def await_condition(self, condition: Callable[[], object]) -> asyncio.Future[Any]:
        """The result of the condition once it is true. It is looked at in each turn of the loop."""
        future = self.create_future()
        self._virtual.conditions.append((condition, future))
        return future

    def close(self) -> None:
        super().close()
        for work in self._virtual.works:
            work.resume()
        self._replaced.close()


class _Work:
    """The work of one thread. It is over when its thread has ended it in the loop and the caller's future is done."""

    def __init__(self, loop: VirtualLoop) -> None:
        self.future: asyncio.Future[Any] | None = None
        self._loop = loop
        self._over = False
        self._resume = threading.Event()
        self._awaited: tuple[int, float] | None = None
        """The socket whose bytes the thread waits for, and until when."""
        self._expired = False

    @property
    def over(self) -> bool:
        return self._over and (self.future is None or self.future.done())

    def do(self, work: Callable[..., Any], *arguments: Any) -> Any:
        _here.work = self
        try:
            return work(*arguments)
        finally:
            _here.work = None
            self._tell(self._end)

    def _end(self) -> None:
        self._over = True

    def _tell(self, what: Callable[[], object]) -> None:
        with suppress(RuntimeError):  # the loop ended meanwhile
            self._loop.call_soon_threadsafe(what)

    def await_bytes(self, sock: socket.socket) -> None:
        """Called in the thread. Return when a read of the socket does not block. Raises ``TimeoutError``."""
        limit = sock.gettimeout()
        if limit == 0 or (isinstance(sock, ssl.SSLSocket) and sock.pending()) or _readable(sock.fileno()):
            return
        self._expired = False
        self._resume.clear()
        self._awaited = sock.fileno(), self._loop.time() + (float("inf") if limit is None else limit)
        self._tell(_nothing)
        if not self._loop.is_closed():
            self._resume.wait()
        if self._expired:
            raise TimeoutError("timed out")

    def resume(self) -> None:
        self._awaited = None
        self._resume.set()

    def waits_until(self, now: float) -> float | None:
        """Called in the loop. Until when the thread waits for bytes; ``None``: it works."""
        if (awaited := self._awaited) is None:
            return None
        number, until = awaited
        if not _readable(number):
            if until > now:
                return until
            self._expired = True
        self.resume()
        return None


class _Selector(selectors.DefaultSelector):  # type: ignore[misc, valid-type]
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.works: list[_Work] = []
        self.conditions: list[tuple[Callable[[], object], asyncio.Future[Any]]] = []

    def select(self, timeout: float | None = None) -> Any:
        still_s = 0.0
        self.now += TURN_S
        while True:
            # Threads first: what one of them gave to the loop before it waits is ready below.
            works, until = self._look()
            ready = super().select(0)
            if self._any_true() or ready or (timeout is not None and timeout <= 0):
                return ready
            if not works and timeout is not None:
                until = min(until, self.now + max(timeout, STEP_S))
            if not works and until < float("inf"):
                self.now = until
                return ready
            if still_s >= STILL_S:
                raise RuntimeError(
                    "a thread works without end" if works else "nothing can happen any more: all tasks wait"
                )
            before = _real_monotonic()
            if ready := super().select(LOOK_S):
                return ready
            still_s += _real_monotonic() - before

    def _look(self) -> tuple[bool, float]:
        """Whether a thread works, and when the first of those that wait stops to wait."""
        self.works = [work for work in self.works if not work.over]
        waits = [work.waits_until(self.now) for work in self.works]
        return None in waits, min((until for until in waits if until is not None), default=float("inf"))

    def _any_true(self) -> bool:
        pending, met = [], False
        for condition, future in self.conditions:
            if future.done():
                continue
            try:
                result = condition()
            except Exception as error:  # noqa: BLE001 - the test gets it
                future.set_exception(error)
            else:
                if not result:
                    pending.append((condition, future))
                    continue
                future.set_result(result)
            met = True
        self.conditions = pending
        return met


def _readable(number: int) -> bool:
    """Whether a read does not block; so it is with a socket that is closed."""
    poll = select.poll()
    try:
        poll.register(number, select.POLLIN)
    except ValueError:
        return True
    return bool(poll.poll(0))


def _nothing() -> None:
    pass


def _no_grpc(*_arguments: object, **_options: object) -> NoReturn:
    raise RuntimeError("virtual time does not see the threads of gRPC: this test needs real time")


@contextmanager
def _clocks_follow(loop: VirtualLoop) -> Iterator[None]:
    """Every thread has the loop's time until the loop is closed. The wall clock begins at the true time."""
    began = _real_wall() - loop.time()

    def gettime(clock: int) -> float:
        return loop.time() if clock == time.CLOCK_BOOTTIME else _real_gettime(clock)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "monotonic", loop.time)
        patch.setattr(time, "time", lambda: began + loop.time())
        patch.setattr(time, "clock_gettime", gettime)
        yield


@contextmanager
def _threads_counted(loop: VirtualLoop) -> Iterator[None]:
    begin, start = bounded_calls._begin, WatchStream.start

    def counted_begin(source: str, work: Callable[[], Any]) -> bounded_calls._Call:
        counted = loop.work_begins()
        call = begin(source, partial(counted.do, work))
        counted.future = call.future
        return call

    def counted_start(stream: WatchStream[Any]) -> None:
        thread = stream._thread
        thread.run = partial(loop.work_begins().do, thread.run)  # type: ignore[method-assign]
        start(stream)

    def awaited(read: Callable[..., Any], sock: socket.socket, *arguments: Any) -> Any:
        work: _Work | None = getattr(_here, "work", None)
        if work is not None:
            work.await_bytes(sock)
        return read(sock, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bounded_calls, "_begin", counted_begin)
        patch.setattr(WatchStream, "start", counted_start)
        for name in ("server", "insecure_channel", "secure_channel"):
            patch.setattr(grpc.aio, name, _no_grpc)
        for kind in (socket.socket, ssl.SSLSocket):
            patch.setattr(kind, "recv_into", partialmethod(partial(awaited, kind.recv_into)))
        yield
