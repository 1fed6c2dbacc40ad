"""The GPUs of this node: listens to the driver, judges what it says and states whole facts.

Each session with the driver is a thread (``sources/session.py``). One that does not come back in time is
abandoned: the source falls silent and says in which call, the rest of the agent lives on, the process may
still end, and with growing pauses another session is tried. One thread at a time speaks; of the abandoned
``STUCK_MAX`` at most are kept, then the next waits for one to return. One that hung in the vitals silences
nobody, and the next sessions do without them for ``VITALS_REST_S``.

What a session hears outlives it: latches are kept here, so that a new session condemns and forgets nobody,
and in the memory (``sources/memory.py``), so that a new process does not either.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

from nodeagent.health.gpu import Latch, Rules, judge, severity, unknown, verdict
from nodeagent.health.memory import lasting, same, sound
from nodeagent.health.samples import Sample, Source, known
from nodeagent.host.driver import DriverError, GpuEvent, GpuReading, GpuVitals
from nodeagent.host.sysfs import Tree
from nodeagent.model import Gpu
from nodeagent.sources.memory import Memory, Who
from nodeagent.sources.session import NOWHERE, Driver, End, Measured, Place, Reading, Session, boottime

log = logging.getLogger(__name__)

BACKOFF_FIRST_S = 0.1
BACKOFF_MAX_S = 60.0
STEADY_S = 30.0
"""A session that lived this long starts over with the first pause."""
STUCK_MAX = 4
VITALS_REST_S = 600.0
"""After vitals in which the driver hung."""

ROOM = "gpu"
"""Where the memory keeps what is ours."""

xids: Counter[tuple[str, int]] = Counter()
"""XIDs by GPU and number since the process began, ignored ones too; ``nodeagent_gpu_xids_total``."""

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
    state: Callable[[tuple[Gpu, ...]], object],
    silence: Callable[[str], object],
    *,
    rules: Rules | None = None,
    pace: Pace | None = None,
    hints: asyncio.Event | None = None,
    samples: Callable[[tuple[Sample, ...]], object] | None = None,
    memory: Memory | None = None,
) -> None:
    """Listen for ever. ``driver`` makes a fresh driver for each session; ``state`` hears all GPUs at every
    reading and event, ``silence`` why there is no answer, ``samples`` what was measured on each GPU. A hint
    asks for a reading now: within ``WAIT_S`` of a running session, at once of one that is being waited for."""
    watcher = _Watcher(
        driver, tree, _Ledger(state, rules or Rules(), samples, memory), silence, pace or Pace()
    )
    hinting = asyncio.create_task(watcher.hear(hints)) if hints is not None else None
    try:
        await watcher.run()
    finally:
        if hinting is not None:
            hinting.cancel()


class _Ledger:
    """What stands: the latches, and what is said of them."""

    def __init__(
        self,
        state: Callable[[tuple[Gpu, ...]], object],
        rules: Rules,
        samples: Callable[[tuple[Sample, ...]], object] | None,
        memory: Memory | None,
    ) -> None:
        self.state, self.rules, self.samples, self.memory = state, rules, samples, memory
        self.latches: tuple[Latch, ...] = ()
        self.kept: dict[str, Latch] = {}
        self.places: dict[str, Place] = {}
        self.said: dict[str, str] = {}
        self.version: str | None = None
        self._recall()

    def hear_event(self, event: GpuEvent) -> None:
        if event.unavailable:
            log.warning("The driver has given a GPU up as unavailable. uuid=%s", event.uuid)
            self._judge(events=(event,))
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

    def hear_reading(self, news: Reading) -> None:
        for address, place in news.places.items():
            if place != NOWHERE or address not in self.places:  # one that fell off the bus has left sysfs
                self.places[address] = place
        self.version = news.version
        answers = f"The GPU driver answers. version={news.version} gpus={len(news.readings)}"
        self.say("driver", answers, logging.INFO)
        self._judge(readings=news.readings)
        told = {latch.reading.index for latch in self.latches}
        for reading in news.readings:
            if reading.index not in told:
                self.say(
                    f"gpu {reading.index}",
                    f"A GPU cannot be told and is not offered. index={reading.index} why={reading.fault!r}",
                )

    def hear_vitals(self, news: Measured) -> None:
        if news.why is not None:
            self.say("vitals", f"The vitals of the GPUs cannot be read; they are judged without. {news.why}")
            return
        self.said.pop("vitals", None)
        for one in news.vitals:
            strange = sorted({*one.absurd, *(name for name in one.values if known(name) is None)})
            if strange:
                self.say(
                    f"{one.uuid} absurd",
                    f"A GPU tells what cannot be; it is left out. uuid={one.uuid} vitals={strange!r}",
                )
        if self.samples is not None and news.vitals:
            self.samples(tuple(self._sample(news.at, one) for one in news.vitals))
        self._judge(vitals=news.vitals)

    def _sample(self, at: float, vitals: GpuVitals) -> Sample:
        values = {name: value for name, value in vitals.values.items() if known(name) is not None}
        values |= {f"gpu_xids/{xid}": n for (uuid, xid), n in xids.items() if uuid == vitals.uuid}
        if vitals.processes is not None:
            values["gpu_processes"] = len(vitals.processes)
        action = next((one.reading.recovery_action for one in self.latches if one.uuid == vitals.uuid), None)
        also = {"gpu_driver": self.version, "gpu_recovery_action": action}
        texts = vitals.texts | {name: text for name, text in also.items() if text is not None}
        return Sample(at, vitals.uuid, Source.GPU, values, texts)

    def find_absent(self, why: str, again_s: float) -> None:
        absent = f"There is no GPU driver; it is looked for every {again_s:g} s. {why}"
        self.say("driver", absent, logging.INFO)
        self._judge(readings=())

    def fall_silent(self, why: str) -> None:
        self.say("driver", f"The GPU driver is silent; what was known of its GPUs stands. {why}")
        if self.latches:
            self.state(tuple(replace(gpu, health=unknown(gpu.health, why)) for gpu in self._gpus()))

    def _judge(
        self,
        *,
        events: tuple[GpuEvent, ...] = (),
        readings: tuple[GpuReading, ...] | None = None,
        vitals: tuple[GpuVitals, ...] = (),
    ) -> None:
        self.latches = judge(
            self.latches, boottime(), self.rules, events=events, readings=readings, vitals=vitals
        )
        self._remember()
        gpus = self._gpus()
        for gpu in gpus:
            reasons = ",".join(reason.key for reason in gpu.health.reasons)
            self.say(
                gpu.uuid,
                f"A GPU is {gpu.health.state}. uuid={gpu.uuid} allocatable={gpu.health.allocatable} "
                f"reasons={reasons or 'none'}",
                logging.WARNING if gpu.health.reasons else logging.INFO,
            )
        self.state(gpus)

    def _recall(self) -> None:
        if self.memory is None:
            return
        now = boottime()
        latches = self.memory.recall(ROOM, Latch).values()
        believed = {latch.uuid: latch for latch in latches if sound(latch, now)}
        self.latches = tuple(sorted(believed.values(), key=lambda latch: (latch.reading.index, latch.uuid)))
        self.kept = believed
        if believed:
            log.info("What stood against GPUs before the restart is remembered. gpus=%d", len(believed))

    def _remember(self) -> None:
        """Those that are the same but for the time of reading are not written again."""
        if self.memory is None:
            return
        before, self.kept = self.kept, {}
        for latch in self.latches:
            old = before.get(latch.uuid)
            self.kept[latch.uuid] = old if old is not None and same(old, latch) else lasting(latch)
        self.memory.keep(
            ROOM, {Who(one.reading.pci_address or "", one.uuid): one for one in self.kept.values()}
        )

    def _gpus(self) -> tuple[Gpu, ...]:
        """Those of which enough is known to hand them out; the others have been logged."""
        gpus: list[Gpu] = []
        for latch in self.latches:
            reading = latch.reading
            if reading.pci_address is None or reading.memory_mib is None:
                why = reading.fault or "the driver does not say its memory or PCI address"
                self.say(f"{latch.uuid} facts", f"A GPU is not offered. uuid={latch.uuid} why={why!r}")
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

    def say(self, what: str, sentence: str, level: int = logging.WARNING) -> None:
        """Log a sentence when it is another than the last about the same thing."""
        if self.said.get(what) != sentence:
            self.said[what] = sentence
            log.log(level, "%s", sentence)


class _Watcher:
    """The sessions, one after the other, and what to make of their ends."""

    def __init__(
        self,
        driver: Callable[[], Driver],
        tree: Tree,
        ledger: _Ledger,
        silence: Callable[[str], object],
        pace: Pace,
    ) -> None:
        self.driver, self.tree, self.ledger, self.silence, self.pace = driver, tree, ledger, silence, pace
        self.vitals_from = 0.0
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
        backoff_s = BACKOFF_FIRST_S
        while True:
            if stuck_threads() >= STUCK_MAX:
                await self._pause(BACKOFF_MAX_S)
                continue
            began = time.monotonic()
            self.session = Session(
                self.driver(), self.tree, self.pace.interval_s, self.pace.vitals_s, self.vitals_from
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
                backoff_s = BACKOFF_FIRST_S
            if end.error.absent:
                self.ledger.find_absent(str(end.error), self.pace.absent_s)
                await self._pause(self.pace.absent_s)
                backoff_s = BACKOFF_FIRST_S
                continue
            if end.call in ("wait", "vitals"):
                again = f"Listening to the GPU driver failed; its GPUs are read again. {end.error}"
                self.ledger.say(end.call, again)
                await self._pause(min(backoff_s, self.pace.interval_s))
            else:
                self.ledger.fall_silent(str(end.error))
                self.silence(str(end.error))
                await self._pause(backoff_s)
            backoff_s = min(2 * backoff_s, BACKOFF_MAX_S)

    async def _follow(self, session: Session) -> End:
        """Hear a session out, or give it up."""
        while True:
            call, since, extra_s = session.call
            left_s = since + extra_s + self.pace.timeout_s - time.monotonic()
            if left_s <= 0 and session.inbox.empty():
                _abandoned.add(session)
                why = f"the GPU driver has not answered within {self.pace.timeout_s:g} s (in {call})"
                if call == "vitals":
                    self.vitals_from = time.monotonic() + VITALS_REST_S
                    why += f"; no vitals are read for {VITALS_REST_S:g} s"
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
