"""The GPUs of this node: listens to the driver, judges what it says and states whole facts.

A call into the driver may hang for ever in the kernel, and no thread can be ended from outside. So each
session with the driver lives in its own daemon thread, which posts what it hears to the event loop. One
that does not come back in time is abandoned: the source falls silent and says in which call, the rest of
the agent lives on, the process may still end, and with growing pauses another session is tried. One thread
at a time speaks; of the abandoned ``STUCK_MAX`` at most are kept, then the next waits for one to return.

What a session hears outlives it: latches are kept here, so that a new session condemns and forgets nobody.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from nodeagent.health.gpu import Latch, Rules, judge, severity, unknown, verdict
from nodeagent.host.driver import DriverError, GpuEvent, GpuReading
from nodeagent.host.sysfs import SysfsError, Tree
from nodeagent.model import Gpu
from nodeagent.pcie import path_of

log = logging.getLogger(__name__)

WAIT_S = 1.0
"""The longest single wait in the driver: within it a hint is heard and a session ends on request."""
SPACING_S = 0.1
"""Readings are at least this far apart, so that a storm of events does not become a storm of readings."""
BACKOFF_FIRST_S = 0.1
BACKOFF_MAX_S = 60.0
STEADY_S = 30.0
"""A session that lived this long starts over with the first pause."""
STUCK_MAX = 4

xids: Counter[tuple[str, int]] = Counter()
"""XIDs by GPU and number since the process began, ignored ones too; ``nodeagent_gpu_xids_total``."""

_abandoned: set[threading.Thread] = set()

Place = tuple[int | None, tuple[str, ...]]
"""NUMA node and PCI path."""
NOWHERE: Place = (None, ())


class Driver(Protocol):
    """``host.nvml.Nvml`` or ``host.recorded.Recorded``; every call blocks and may raise ``DriverError``."""

    def open(self) -> None: ...
    def close(self) -> None: ...
    def version(self) -> str | None: ...
    def gpus(self) -> tuple[GpuReading, ...]: ...
    def wait(self, timeout_s: float) -> tuple[GpuEvent, ...]: ...


async def watch(
    driver: Callable[[], Driver],
    tree: Tree,
    state: Callable[[tuple[Gpu, ...]], object],
    silence: Callable[[str], object],
    *,
    rules: Rules | None = None,
    timeout_s: float = 10.0,
    interval_s: float = 5.0,
    absent_s: float = 30.0,
    hints: asyncio.Event | None = None,
) -> None:
    """Listen for ever. ``driver`` makes a fresh driver for each session; ``state`` hears all GPUs at every
    reading and event, ``silence`` why there is no answer. A hint asks for a reading now: within ``WAIT_S``
    of a running session, at once of one that is being waited for."""
    watcher = _Watcher(
        driver=driver,
        tree=tree,
        state=state,
        silence=silence,
        rules=rules or Rules(),
        timeout_s=timeout_s,
        interval_s=interval_s,
        absent_s=absent_s,
    )
    hinting = asyncio.create_task(watcher.hear(hints)) if hints is not None else None
    try:
        await watcher.run()
    finally:
        if hinting is not None:
            hinting.cancel()


@dataclass(frozen=True, slots=True)
class _Reading:
    version: str | None
    readings: tuple[GpuReading, ...]
    places: dict[str, Place]


@dataclass(frozen=True, slots=True)
class _End:
    """A session's last word: in which call it failed, and how. No error: its thread died of a defect."""

    call: str
    error: DriverError | None


class _Session(threading.Thread):
    """One thread, one driver, from open to close."""

    def __init__(self, driver: Driver, tree: Tree, interval_s: float) -> None:
        super().__init__(name="gpu-driver", daemon=True)
        self.driver, self.tree, self.interval_s = driver, tree, interval_s
        self.places: dict[str, Place] = {}
        self.loop = asyncio.get_running_loop()
        self.inbox: asyncio.Queue[_Reading | GpuEvent | _End] = asyncio.Queue()
        self.read_now = threading.Event()
        self.over = threading.Event()
        self.call: tuple[str, float, float] = ("open", time.monotonic(), 0.0)
        """What it does, since when, and how long that may take beyond an ordinary call."""

    def run(self) -> None:
        call, failure = "", None
        try:
            self._listen()
        except DriverError as error:
            call, failure = self.call[0], error
        finally:
            self._close()
            self._post(_End(call, failure))

    def _listen(self) -> None:
        self._enter("open")
        self.driver.open()
        version = self.driver.version()
        due = 0.0
        while not self.over.is_set():
            now = time.monotonic()
            if now >= due or self.read_now.is_set():
                self.read_now.clear()
                self._enter("list")
                readings = self.driver.gpus()
                self._post(_Reading(version, readings, self._places(readings)))
                read_at = time.monotonic()
                due = read_at + self.interval_s
                if self.over.is_set():  # given up while it hung
                    return
            timeout_s = max(0.0, min(WAIT_S, due - time.monotonic()))
            self._enter("wait", timeout_s)
            events = self.driver.wait(timeout_s)
            if events:
                self._post(*events)
                due = min(due, max(time.monotonic(), read_at + SPACING_S))

    def _close(self) -> None:
        self._enter("close")
        try:
            self.driver.close()
        except DriverError as error:
            log.info("The GPU driver did not close cleanly. error=%r", str(error))

    def _enter(self, call: str, extra_s: float = 0.0) -> None:
        self.call = (call, time.monotonic(), extra_s)

    def _post(self, *news: _Reading | GpuEvent | _End) -> None:
        try:
            self.loop.call_soon_threadsafe(self._deliver, news)
        except RuntimeError:  # the loop has ended, and the process is about to
            self.over.set()

    def _deliver(self, news: tuple[_Reading | GpuEvent | _End, ...]) -> None:
        for one in news:
            self.inbox.put_nowait(one)

    def _places(self, readings: tuple[GpuReading, ...]) -> dict[str, Place]:
        """Looked up once in a session: a GPU that is there does not move."""
        for reading in readings:
            address = reading.pci_address
            if address is not None and self.places.get(address, NOWHERE) == NOWHERE:
                self.places[address] = place(self.tree, address)
        return dict(self.places)


class _Watcher:
    """The loop's half: what stands, and the sessions one after the other."""

    def __init__(
        self,
        *,
        driver: Callable[[], Driver],
        tree: Tree,
        state: Callable[[tuple[Gpu, ...]], object],
        silence: Callable[[str], object],
        rules: Rules,
        timeout_s: float,
        interval_s: float,
        absent_s: float,
    ) -> None:
        self.driver, self.tree, self.state, self.silence = driver, tree, state, silence
        self.rules, self.timeout_s, self.interval_s, self.absent_s = rules, timeout_s, interval_s, absent_s
        self.latches: tuple[Latch, ...] = ()
        self.places: dict[str, Place] = {}
        self.session: _Session | None = None
        self.hinted = asyncio.Event()
        self.said: dict[str, str] = {}

    async def hear(self, hints: asyncio.Event) -> None:
        while True:
            await hints.wait()
            hints.clear()
            self.hinted.set()
            if self.session is not None:
                self.session.read_now.set()

    async def run(self) -> None:
        backoff_s = BACKOFF_FIRST_S
        while True:
            if stuck_threads() >= STUCK_MAX:
                await self._pause(BACKOFF_MAX_S)
                continue
            began = time.monotonic()
            self.session = _Session(self.driver(), self.tree, self.interval_s)
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
                backoff_s = BACKOFF_FIRST_S
            if end.error.absent:
                self._judge_absent(str(end.error))
                await self._pause(self.absent_s)
                backoff_s = BACKOFF_FIRST_S
                continue
            if end.call == "wait":
                self._say("wait", f"Listening to the GPU driver failed; its GPUs are read again. {end.error}")
                await self._pause(min(backoff_s, self.interval_s))
            else:
                self._fall_silent(str(end.error))
                await self._pause(backoff_s)
            backoff_s = min(2 * backoff_s, BACKOFF_MAX_S)

    async def _follow(self, session: _Session) -> _End:
        """Hear a session out, or give it up."""
        while True:
            call, since, extra_s = session.call
            left_s = since + extra_s + self.timeout_s - time.monotonic()
            if left_s <= 0 and session.inbox.empty():
                _abandoned.add(session)
                why = f"the GPU driver has not answered within {self.timeout_s:g} s (in {call})"
                return _End("hang", DriverError(why))
            try:
                async with asyncio.timeout(max(0.0, left_s)):
                    news = await session.inbox.get()
            except TimeoutError:
                continue
            if isinstance(news, _End):
                return news
            if isinstance(news, GpuEvent):
                self._hear_event(news)
            else:
                self._hear_reading(news)

    async def _pause(self, seconds: float) -> None:
        """A hint ends it, one that came during the session included."""
        try:
            async with asyncio.timeout(seconds):
                await self.hinted.wait()
        except TimeoutError:
            return
        self.hinted.clear()

    def _hear_event(self, event: GpuEvent) -> None:
        if event.xid is None:
            return
        xids[event.uuid or "", event.xid] += 1
        log.warning(
            "A GPU reports an XID. uuid=%s xid=%d severity=%s",
            event.uuid,
            event.xid,
            severity(event.xid, self.rules),
        )
        self._judge(events=(event,))

    def _hear_reading(self, news: _Reading) -> None:
        for address, place in news.places.items():
            if place != NOWHERE or address not in self.places:  # one that fell off the bus has left sysfs
                self.places[address] = place
        self.hinted.clear()
        answers = f"The GPU driver answers. version={news.version} gpus={len(news.readings)}"
        self._say("driver", answers, logging.INFO)
        self._judge(readings=news.readings)
        known = {latch.reading.index for latch in self.latches}
        for reading in news.readings:
            if reading.index not in known:
                self._say(
                    f"gpu {reading.index}",
                    f"A GPU cannot be told and is not offered. index={reading.index} why={reading.fault!r}",
                )

    def _judge_absent(self, why: str) -> None:
        absent = f"There is no GPU driver; it is looked for every {self.absent_s:g} s. {why}"
        self._say("driver", absent, logging.INFO)
        self._judge(readings=())

    def _fall_silent(self, why: str) -> None:
        self._say("driver", f"The GPU driver is silent; what was known of its GPUs stands. {why}")
        if self.latches:
            self.state(tuple(replace(gpu, health=unknown(gpu.health, why)) for gpu in self._gpus()))
        self.silence(why)

    def _judge(
        self, *, events: tuple[GpuEvent, ...] = (), readings: tuple[GpuReading, ...] | None = None
    ) -> None:
        self.latches = judge(self.latches, time.monotonic(), self.rules, events=events, readings=readings)
        gpus = self._gpus()
        for gpu in gpus:
            reasons = ",".join(reason.key for reason in gpu.health.reasons)
            self._say(
                gpu.uuid,
                f"A GPU is {gpu.health.state}. uuid={gpu.uuid} allocatable={gpu.health.allocatable} "
                f"reasons={reasons or 'none'}",
                logging.WARNING if gpu.health.reasons else logging.INFO,
            )
        self.state(gpus)

    def _gpus(self) -> tuple[Gpu, ...]:
        """Those of which enough is known to hand them out; the others have been logged."""
        gpus: list[Gpu] = []
        for latch in self.latches:
            reading = latch.reading
            if reading.pci_address is None or reading.memory_mib is None:
                why = reading.fault or "the driver does not say its memory or PCI address"
                self._say(f"{latch.uuid} facts", f"A GPU is not offered. uuid={latch.uuid} why={why!r}")
                continue
            numa_node, pci_path = self.places.get(reading.pci_address, NOWHERE)
            gpus.append(
                Gpu(
                    uuid=latch.uuid,
                    index=reading.index,
                    minor=reading.minor,
                    name=reading.name or "",
                    pci_address=reading.pci_address,
                    memory_mib=reading.memory_mib,
                    numa_node=numa_node,
                    pci_path=pci_path,
                    health=verdict(latch, self.rules),
                )
            )
        return tuple(gpus)

    def _say(self, what: str, sentence: str, level: int = logging.WARNING) -> None:
        """Log a sentence when it is another than the last about the same thing."""
        if self.said.get(what) != sentence:
            self.said[what] = sentence
            log.log(level, "%s", sentence)


def stuck_threads() -> int:
    """Threads that hang in the driver at present; ``nodeagent_gpu_driver_stuck_threads``."""
    _abandoned.intersection_update([thread for thread in _abandoned if thread.is_alive()])
    return len(_abandoned)


def place(tree: Tree, pci_address: str) -> Place:
    """Where sysfs has the function of a GPU; nowhere is logged and no error."""
    folder = f"/sys/bus/pci/devices/{pci_address}"
    try:
        numa_node = tree.integer(f"{folder}/numa_node")
        real = tree.real(folder)
    except SysfsError as error:
        log.warning("Where a GPU sits cannot be read. pci_address=%s error=%r", pci_address, str(error))
        return NOWHERE
    return None if numa_node is None or numa_node < 0 else numa_node, path_of(real) if real else ()
