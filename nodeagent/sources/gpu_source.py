"""The GPUs of this node: listens to the driver, judges what it says and states whole facts.

Each session with the driver is a thread (``sources/nvml_session.py``). One that does not come back in time is
abandoned: the source falls silent and says in which call, the rest of the agent lives on, the process may
still end, and with growing pauses another session is tried. One thread at a time speaks; of the abandoned
``STUCK_MAX`` at most are kept, then the next waits for one to return. One that hung in the vitals silences
nobody: the next sessions do without them for ``VITALS_REST_S``, and for as long as it hangs.

What a session hears outlives it, in the ledger (``sources/gpu_health_service.py``).
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from nodeagent.backoff import Backoff
from nodeagent.host.gpu_driver import DriverError, GpuEvent
from nodeagent.host.sysfs import Tree
from nodeagent.sources.gpu_health_service import Ledger
from nodeagent.sources.nvml_session import Driver, End, Measured, Session

log = logging.getLogger(__name__)

BACKOFF_FIRST_S = 0.1
BACKOFF_MAX_S = 60.0
STEADY_S = 30.0
"""A session that lived this long starts over with the first pause."""
STUCK_MAX = 4
VITALS_REST_S = 600.0
"""After vitals in which the driver hung."""

_abandoned: set[threading.Thread] = set()


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds: the longest call, readings, vitals, and looks for a driver that is absent."""

    timeout_s: float = 10.0
    interval_s: float = 5.0
    vitals_s: float = 15.0
    absent_s: float = 30.0


async def watch(
    driver: Callable[[], Driver],
    tree: Tree,
    ledger: Ledger,
    silence: Callable[[str], object],
    *,
    pace: Pace | None = None,
    hints: asyncio.Event | None = None,
) -> None:
    """Listen for ever. ``driver`` makes a fresh driver for each session; ``ledger`` hears what it says, ``silence``
    why there is no answer. A hint asks for a reading now: within ``WAIT_S`` of a running session, at once of one
    that is being waited for."""
    watcher = _Watcher(driver, tree, ledger, silence, pace or Pace())
    hinting = asyncio.create_task(watcher.hear(hints)) if hints is not None else None
    try:
        await watcher.run()
    finally:
        if hinting is not None:
            hinting.cancel()


class _Watcher:
    """The sessions, one after the other, and what to make of their ends."""

    def __init__(
        self,
        driver: Callable[[], Driver],
        tree: Tree,
        ledger: Ledger,
        silence: Callable[[str], object],
        pace: Pace,
    ) -> None:
        self.driver, self.tree, self.ledger, self.silence, self.pace = driver, tree, ledger, silence, pace
        self.vitals_from = 0.0
        self.hung: Session | None = None
        self.session: Session | None = None
        self.hinted = asyncio.Event()

    async def hear(self, hints: asyncio.Event) -> None:
        while True:
            await hints.wait()
            hints.clear()
            self.hinted.set()
            if self.session is not None:
                self.session.read_now.set()

    async def run(self) -> None:
        backoff = Backoff(BACKOFF_FIRST_S, BACKOFF_MAX_S)
        while True:
            if stuck_threads() >= STUCK_MAX:
                await self._pause(BACKOFF_MAX_S)
                continue
            began = time.monotonic()
            self.session = Session(
                self.driver(),
                self.tree,
                self.pace.interval_s,
                self.pace.vitals_s,
                self.vitals_from,
                self.hung,
            )
            self.session.start()
            try:
                end = await self._follow(self.session)
            finally:
                self.session.over.set()
            if end.error is None:
                raise RuntimeError(
                    "the thread that talks to the GPU driver died; its traceback is in the log"
                )
            if time.monotonic() - began > STEADY_S:
                backoff.reset()
            if end.error.absent:
                self.ledger.find_absent(str(end.error), self.pace.absent_s)
                await self._pause(self.pace.absent_s)
                backoff.reset()
                continue
            if end.call in ("wait", "vitals"):
                again = f"Listening to the GPU driver failed; its GPUs are read again. {end.error}"
                self.ledger.say(end.call, again)
                await self._pause(min(backoff.next_s(), self.pace.interval_s))
            else:
                self.ledger.fall_silent(str(end.error))
                self.silence(str(end.error))
                await self._pause(backoff.next_s())

    async def _follow(self, session: Session) -> End:
        """Hear a session out, or give it up."""
        while True:
            call, since, extra_s = session.call
            left_s = since + extra_s + self.pace.timeout_s - time.monotonic()
            if left_s <= 0 and session.inbox.empty():
                _abandoned.add(session)
                why = f"the GPU driver has not answered within {self.pace.timeout_s:g} s (in {call})"
                if call == "vitals":
                    self.vitals_from, self.hung = time.monotonic() + VITALS_REST_S, session
                    why += f"; no vitals are read for {VITALS_REST_S:g} s, nor before it has"
                return End(call if call == "vitals" else "hang", DriverError(why))
            try:
                async with asyncio.timeout(max(0.0, left_s)):
                    news = await session.inbox.get()
            except TimeoutError:
                continue
            if isinstance(news, End):
                return news
            if isinstance(news, GpuEvent):
                self.ledger.hear_event(news)
            elif isinstance(news, Measured):
                self.ledger.hear_vitals(news)
            else:
                self.hinted.clear()
                self.ledger.hear_reading(news)

    async def _pause(self, seconds: float) -> None:
        """A hint ends it, one that came during the session included."""
        try:
            async with asyncio.timeout(seconds):
                await self.hinted.wait()
        except TimeoutError:
            return
        self.hinted.clear()


def stuck_threads() -> int:
    """Threads that hang in the driver at present; ``nodeagent_gpu_driver_stuck_threads``."""
    _abandoned.intersection_update([thread for thread in _abandoned if thread.is_alive()])
    return len(_abandoned)
