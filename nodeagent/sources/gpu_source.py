"""The source of GPU facts: run sessions with the driver and pass their results on.

Each session with the driver is a thread (``nvml_session.py``). A session that does not answer in time is abandoned:
the source is marked as failed with the name of the call, and after growing pauses another session starts. The rest of
the agent continues, and the process can still end. There is one active session at a time. At most ``STUCK_MAX``
abandoned threads may hang; then the next session waits until one returns. A session that hung in a measurement does
not mark the source as failed: the next sessions measure nothing for ``VITALS_REST_S``, and for as long as it hangs.

``GpuPublisher`` keeps the results over all sessions.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable

import msgspec

from nodeagent.base.backoff import Backoff
from nodeagent.base.supervise import end_tasks
from nodeagent.host.gpu_driver import DriverError, GpuEvent
from nodeagent.host.sysfs import Tree
from nodeagent.sources.gpu_publisher import GpuPublisher
from nodeagent.sources.nvml_session import POD_LOGS, Driver, DriverVitals, Session, SessionEnd

log = logging.getLogger(__name__)

BACKOFF_FIRST_S = 0.1
BACKOFF_MAX_S = 60.0
_STEADY_S = 30.0
"""After a session of this length the pauses start again with the first."""
STUCK_MAX = 4
VITALS_REST_S = 600.0
"""After a measurement in which the driver hung."""

_abandoned: set[threading.Thread] = set()


class Pace(msgspec.Struct, frozen=True):
    """Seconds: the longest call, and the intervals of readings (without and with events of the driver), measurements,
    and looks for an absent driver."""

    timeout_s: float = 10.0
    interval_s: float = 5.0
    with_events_s: float = 15.0
    vitals_s: float = 15.0
    absent_s: float = 30.0


async def watch_gpus(
    driver: Callable[[], Driver],
    tree: Tree,
    publisher: GpuPublisher,
    mark_stale: Callable[[str], object],
    *,
    pace: Pace | None = None,
    hints: asyncio.Event | None = None,
    pod_logs: str = POD_LOGS,
    driver_root: str | None = None,
) -> None:
    """Run sessions until cancelled. ``driver`` makes a new driver for each session. ``mark_stale`` takes the reason
    when the driver does not answer. A hint requests a reading: a running session reads within ``WAIT_S``, and a pause
    between sessions ends at once. ``pod_logs`` is the kubelet's folder of logs, and
    ``driver_root`` is ``gpu.driverRoot``."""
    sessions = _Sessions(driver, tree, publisher, mark_stale, pace or Pace(), pod_logs, driver_root)
    hinting = asyncio.create_task(sessions.follow_hints(hints)) if hints is not None else None
    try:
        await sessions.run()
    finally:
        if hinting is not None:
            await end_tasks((hinting,))


class _Sessions:
    """The sessions, one after the other."""

    def __init__(
        self,
        driver: Callable[[], Driver],
        tree: Tree,
        publisher: GpuPublisher,
        mark_stale: Callable[[str], object],
        pace: Pace,
        pod_logs: str,
        driver_root: str | None,
    ) -> None:
        self.pod_logs, self.driver_root = pod_logs, driver_root
        self.driver, self.tree, self.publisher, self.mark_stale, self.pace = (
            driver,
            tree,
            publisher,
            mark_stale,
            pace,
        )
        self.vitals_from = 0.0
        self.hung: Session | None = None
        self.session: Session | None = None
        self.hinted = asyncio.Event()

    async def follow_hints(self, hints: asyncio.Event) -> None:
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
                self.pace.with_events_s,
                self.pace.vitals_s,
                self.vitals_from,
                self.hung,
                self.pod_logs,
                self.driver_root,
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
            if time.monotonic() - began > _STEADY_S:
                backoff.reset()
            if end.error.absent:
                self.publisher.take_absence(str(end.error), self.pace.absent_s)
                await self._pause(self.pace.absent_s)
                backoff.reset()
                continue
            if end.error.mismatch:
                self.publisher.take_mismatch(str(end.error))
                await self._pause(backoff.next_s())
            elif end.call in ("wait", "vitals"):
                again = f"A call of the GPU driver failed; its GPUs are read again. {end.error}"
                self.publisher.log_change(end.call, again)
                await self._pause(min(backoff.next_s(), self.pace.interval_s))
            else:
                self.publisher.take_driver_failure(str(end.error))
                self.mark_stale(str(end.error))
                await self._pause(backoff.next_s())

    async def _follow(self, session: Session) -> SessionEnd:
        """Pass on the results of a session until it ends or is abandoned."""
        while True:
            call, since, extra_s = session.call
            left_s = since + extra_s + self.pace.timeout_s - time.monotonic()
            if left_s <= 0 and session.inbox.empty():
                _abandoned.add(session)
                why = f"the GPU driver has not answered within {self.pace.timeout_s:g} s (in {call})"
                if call == "vitals":
                    self.vitals_from, self.hung = time.monotonic() + VITALS_REST_S, session
                    why += f"; nothing is measured for {VITALS_REST_S:g} s, nor before it answers"
                return SessionEnd(call if call == "vitals" else "hang", DriverError(why))
            try:
                async with asyncio.timeout(max(0.0, left_s)):
                    result = await session.inbox.get()
            except TimeoutError:
                continue
            if isinstance(result, SessionEnd):
                return result
            if isinstance(result, GpuEvent):
                self.publisher.take_event(result)
            elif isinstance(result, DriverVitals):
                self.publisher.take_vitals(result)
            else:
                self.hinted.clear()
                self.publisher.take_reading(result)

    async def _pause(self, seconds: float) -> None:
        """Pause, until a hint at most; a hint during the session counts."""
        try:
            async with asyncio.timeout(seconds):
                await self.hinted.wait()
        except TimeoutError:
            return
        self.hinted.clear()


def stuck_threads() -> int:
    """The number of threads that hang in the driver now; ``nodeagent_gpu_driver_stuck_threads``."""
    _abandoned.intersection_update([thread for thread in _abandoned if thread.is_alive()])
    return len(_abandoned)
