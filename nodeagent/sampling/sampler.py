"""Everything that is measured on NICs, each source at its own rate.

The law of this file:

* Sources are read in threads. One that hangs is named once and waited for, and the others go on; one that fails
  is named once, counted, and tried again at its next time.
* The links are read soon after a hint, and again until the kernel's linkwatch cannot have anything left to
  announce. What changed on them is told on; counters alone wait for their time. Soon is not at once: a hint wakes
  the PCI source too, by which the kubelet is told, and one interpreter runs one of the two.
* Flaps are counted by the kernel, never here.
* Counters go to whoever was given as ``state``, and never into the snapshot.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from nodeagent.host import recorded_gpus
from nodeagent.host.fd import wait_readable
from nodeagent.host.kmsg import PATTERNS, Event, KernelLog
from nodeagent.host.sysfs import Tree
from nodeagent.measurements.sample import Sample, Source
from nodeagent.model import Function
from nodeagent.sampling.adapter_counters import (
    DevlinkReader,
    DriverReader,
    ModuleReader,
    PcieReader,
    RdmaReader,
)
from nodeagent.sampling.collectors import Collector
from nodeagent.sampling.latest_samples import Latest
from nodeagent.sampling.port_counters import LinkReader, VfReader, ethtool_readers
from nodeagent.sampling.reader import TROUBLES, LeftOut, Ports, Reader, boottime
from nodeagent.sampling.recorded_samples import ReplicaReader
from nodeagent.sampling.sampling_settings import SamplesSettings
from nodeagent.sampling.worker_thread import Worker
from nodeagent.sources.scan_hints import ScanHint

__all__ = ["Collector", "Sampler", "watch"]

log = logging.getLogger(__name__)

SWEEP_EVERY_S, SWEEP_FOR_S = 0.05, 1.2
"""linkwatch holds a second announcement back for up to one second; the dump shows what it will say."""
BEHIND_S = 0.03
"""After a hint. A look at the links of 13 PFs, and telling the kubelet of what was seen, takes 5 ms."""
_OTHER_GAP_S = 0.2
_KERNEL_GAP_S, _KERNEL_AGAIN_S = 1.0, 60.0
"""The least time between two looks at the kernel's log, and after which old news are told again."""
_STATE = ("admin_up", "carrier", "oper_up", "carrier_up", "carrier_down")


@dataclass(frozen=True, slots=True)
class _Outcome:
    reader: Reader
    samples: tuple[Sample, ...]
    duration_s: float
    error: str | None


class Sampler:
    """Samples the PFs that ``functions`` answers. Belongs to one event loop and to the network namespace of it.

    ``state`` gets what each reading found; ``latest`` holds the newest of all, ``sources`` how each source does.
    """

    def __init__(
        self,
        tree: Tree,
        functions: Callable[[], tuple[Function, ...]],
        state: Callable[[Sequence[Sample]], None],
        rates: SamplesSettings | None = None,
    ) -> None:
        self.latest = Latest()
        self.sources: dict[Source, Collector] = {}
        self._tree = tree
        self._functions = functions
        self._state = state
        self._rates = rates or SamplesSettings()
        self._hints: tuple[ScanHint, ...] = ()
        self._rung = asyncio.Event()
        self._other = asyncio.Event()  # a link is another than it was: what of its speed, what of its FEC?
        self._replica = ReplicaReader(tree) if tree.exists(recorded_gpus.PATH) else None
        self._ports = Ports()
        self._readers: list[Reader] = []
        self._workers: dict[Source, Worker] = {}
        self._busy: set[Reader] = set()
        self._closed = False
        self._kernel_overruns = 0
        self._link = self._first()
        self._rounds = self._later()

    def _first(self) -> Reader:
        return self._add(self._replica or LinkReader(self._ports))

    def _later(self) -> list[tuple[float, tuple[Reader, ...]]]:
        """What is read beside the links: how often, and which readers one after the other."""
        rates, live = self._rates, self._replica is None
        wanted: list[tuple[float | None, tuple[Reader, ...]]] = [
            (rates.pcie_seconds, (PcieReader(self._tree),)),
            (rates.rdma_seconds, (RdmaReader(self._tree, live=live),)),
        ]
        if live:
            wanted += [
                (rates.link_seconds, ethtool_readers(self._ports)),
                (rates.driver_seconds, (DriverReader(self._ports),)),
                (rates.devlink_seconds, (DevlinkReader(),)),
                (rates.vf_seconds, (VfReader(self._ports),)),
                (rates.module_seconds, (ModuleReader(self._ports),)),
            ]
        return [(every, tuple(map(self._add, readers))) for every, readers in wanted if every is not None]

    def _add(self, reader: Reader) -> Reader:
        self._readers.append(reader)
        self.sources[reader.source] = Collector(reader.source)
        return reader

    # What is asked

    def samples(self) -> tuple[Sample, ...]:
        """The newest of each device and source."""
        return tuple(sample for device in self.latest.devices() for sample in self.latest.samples(device))

    def collectors(self) -> tuple[Collector, ...]:
        return tuple(self.sources.values())

    def overruns(self) -> dict[str, int]:
        """How often the kernel had to drop messages, by what they were about."""
        found: Counter[str] = Counter({"kernel_log": self._kernel_overruns})
        for hint in self._hints:
            found["events"] += getattr(hint, "resyncs", 0)
        families = {
            Source.MODES: "ethtool",
            Source.MODULE: "eeprom",
            Source.LINK: "links",
            Source.VF: "vfs",
            Source.DEVLINK: "devlink",
            Source.RDMA: "rdma",
        }
        for reader in self._readers:
            if reader.source in families:
                found[families[reader.source]] += reader.overruns
        return dict(found)

    def left_out(self) -> tuple[LeftOut, ...]:
        """The ports that each source leaves out just now."""
        return tuple(reader.left_out for reader in self._readers)

    # The life

    async def watch(self, hints: Iterable[ScanHint] = ()) -> None:
        """Sample until cancelled. Raises what the hints raise; the readers are closed then."""
        self._hints = tuple(hints)
        try:
            async with asyncio.TaskGroup() as group:
                for hint in self._hints:
                    group.create_task(self._listen(hint))
                first = asyncio.Event()
                group.create_task(self._follow_links(first))
                for every, readers in self._rounds:
                    woken = self._other if readers[0].source is Source.MODES else None
                    group.create_task(self._repeat(every, readers, first, woken))
                if self._rates.kernel_log and self._replica is None:
                    group.create_task(self._follow_kernel(first))
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        finally:
            self.close()

    def close(self) -> None:
        """Give back what is open; what a thread is reading just now it gives back when it has done."""
        self._closed = True
        for worker in self._workers.values():
            worker.close()
        for reader in self._readers:
            if reader not in self._busy:
                reader.close()

    async def once(self) -> None:
        """One reading of every source, the links first; the kernel's log has no such thing. ``close`` after it."""
        await self._round((self._link,))
        await asyncio.gather(*(self._round(readers) for _, readers in self._rounds))

    async def _listen(self, hint: ScanHint) -> None:
        while True:
            await hint.wait()
            self._rung.set()

    async def _follow_links(self, first: asyncio.Event) -> None:
        now = asyncio.get_running_loop().time
        every = self._rates.link_seconds or float("inf")
        full_at = sweep_until = now()
        while True:
            full = now() >= full_at
            # Whoever replaces the file of a replica means all that is in it.
            everything = full or self._replica is not None
            await self._round((self._link,), told=_all if everything else self._changed)
            first.set()
            looked_at = now()
            if full:
                full_at = looked_at + every
            next_at = min(full_at, looked_at + SWEEP_EVERY_S) if looked_at < sweep_until else full_at
            try:
                async with asyncio.timeout_at(next_at if next_at != float("inf") else None):
                    await self._rung.wait()
            except TimeoutError:
                continue
            await asyncio.sleep(BEHIND_S)
            self._rung.clear()
            sweep_until = now() + (0.0 if self._replica else SWEEP_FOR_S)

    async def _repeat(
        self, every: float, readers: tuple[Reader, ...], first: asyncio.Event, woken: asyncio.Event | None
    ) -> None:
        await first.wait()  # who has which netdev
        now = asyncio.get_running_loop().time
        while True:
            began = now()
            if woken is not None:
                woken.clear()
            await self._round(readers)
            if woken is None:
                await asyncio.sleep(max(0.0, began + every - now()))
                continue
            await asyncio.sleep(_OTHER_GAP_S)
            with suppress(TimeoutError):
                async with asyncio.timeout_at(began + every):
                    await woken.wait()

    async def _round(
        self,
        readers: tuple[Reader, ...],
        told: Callable[[Sample], bool] | None = None,
    ) -> None:
        pfs = tuple(one for one in self._functions() if one.parent is None)
        loop = asyncio.get_running_loop()
        current: list[Reader] = []

        def work() -> None:
            for reader in readers:
                current.append(reader)
                outcome = _read(reader, pfs)
                with suppress(RuntimeError):  # the loop has ended meanwhile
                    loop.call_soon_threadsafe(self._heard, outcome, told or _all)
            self._busy.difference_update(readers)
            for reader in readers if self._closed else ():
                reader.close()

        self._closed = False
        self._busy.update(readers)
        first = readers[0].source
        worker = self._workers.setdefault(first, Worker(f"sample-{first}"))
        working = worker.run(work)
        while not working.done():
            await asyncio.wait((working,), timeout=self._rates.hang_seconds)
            if not working.done():
                self._hangs((current or readers)[-1].source)
        working.result()

    def _hangs(self, source: Source) -> None:
        if self.sources[source].hanging:
            return
        reason = f"it has not answered for {self._rates.hang_seconds:g} s"
        self.sources[source].hanging = True
        self.sources[source].failed(reason)
        log.warning("A source of samples hangs. source=%s reason=%r", source, reason)

    def _failed(self, source: Source, reason: str, duration_s: float) -> None:
        if self.sources[source].failed(reason, duration_s):
            log.warning("A source of samples failed. source=%s reason=%r", source, reason)

    def _heard(self, outcome: _Outcome, told: Callable[[Sample], bool]) -> None:
        reader = outcome.reader
        collector = self.sources[reader.source]
        collector.hanging = False
        collector.ports_left_out = reader.left_out.count
        if outcome.error is not None:
            self._failed(reader.source, outcome.error, outcome.duration_s)
            return
        if collector.succeeded(boottime(), outcome.duration_s):
            log.info("A source of samples speaks again. source=%s", reader.source)
        samples: Sequence[Sample] = (
            outcome.samples if told is _all else [one for one in outcome.samples if told(one)]
        )
        if self._replica is not None:
            samples = self._of_replica(reader, samples, outcome.duration_s)
        if reader is self._link:
            if any(map(self._changed, samples)):
                self._other.set()
            self.latest.keep(one.pci_address for one in self._functions())
        self._tell(samples)

    def _of_replica(self, reader: Reader, samples: Sequence[Sample], duration_s: float) -> Sequence[Sample]:
        """The file speaks for many sources; what sysfs says of those beside it does not count."""
        assert self._replica is not None
        if reader is not self._replica:
            return [one for one in samples if (one.device, one.source) not in self._replica.told]
        for source in {sample.source for sample in samples} - {reader.source}:
            self.sources.setdefault(source, Collector(source)).succeeded(boottime(), duration_s)
        return samples

    def _tell(self, samples: Sequence[Sample]) -> None:
        if samples:
            self._state(self.latest.take(samples, self._spoken))

    def _spoken(self, source: Source) -> bool:
        collector = self.sources.get(source)
        return collector is None or collector.attempts > 0

    def _changed(self, sample: Sample) -> bool:
        """Whether the link's state is another one; its counters change all the time."""
        before = self.latest.sample(sample.device, sample.source)
        return before is None or any(before.values.get(name) != sample.values.get(name) for name in _STATE)

    async def _follow_kernel(self, first: asyncio.Event) -> None:
        """The log from its beginning, and whatever comes. Where it cannot be read that is said once."""
        await first.wait()
        collector = self.sources.setdefault(Source.KERNEL, Collector(Source.KERNEL))
        counted: Counter[Event] = Counter()
        news, duration_s, told_at = 0, 0.0, -_KERNEL_AGAIN_S
        try:
            with KernelLog() as kernel:
                while True:
                    began = time.perf_counter()
                    found, more = kernel.read()
                    duration_s += time.perf_counter() - began
                    self._kernel_overruns = kernel.overruns
                    counted.update(found)
                    news += found.total()
                    if more:
                        await asyncio.sleep(0)
                        continue
                    collector.succeeded(boottime(), duration_s)
                    if news or boottime() - told_at >= _KERNEL_AGAIN_S:
                        self._tell(self._kernel_samples(counted))
                        told_at = boottime()
                    news, duration_s = 0, 0.0
                    # A log that is written all the time must not keep the loop from its other work.
                    await asyncio.sleep(_KERNEL_GAP_S)
                    with suppress(TimeoutError):
                        async with asyncio.timeout(_KERNEL_AGAIN_S):
                            await wait_readable(kernel.fileno())
        except TROUBLES as error:
            self._failed(Source.KERNEL, str(error), duration_s)

    def _kernel_samples(self, counted: Counter[Event]) -> list[Sample]:
        """Of every PF, those of its VFs added: what the firmware of one does it does to all."""
        functions = self._functions()
        owner = {one.pci_address: one.parent or one.pci_address for one in functions}
        now = boottime()
        values: dict[str, dict[str, float]] = {
            one.pci_address: {f"kernel_events/{pattern}": 0 for pattern in PATTERNS}
            for one in functions
            if one.parent is None
        }
        for event, count in counted.items():
            mine = values.get(owner.get(event.pci_address, ""))
            if mine is not None:
                mine[f"kernel_events/{event.pattern}"] += count
        return [Sample(now, device, Source.KERNEL, found) for device, found in values.items()]


async def watch(
    tree: Tree,
    functions: Callable[[], tuple[Function, ...]],
    state: Callable[[Sequence[Sample]], None],
    rates: SamplesSettings | None = None,
    hints: Iterable[ScanHint] = (),
) -> None:
    """For who wants nothing but samples."""
    await Sampler(tree, functions, state, rates).watch(hints)


def _all(_: Sample) -> bool:
    return True


def _read(reader: Reader, pfs: tuple[Function, ...]) -> _Outcome:
    began = time.perf_counter()
    try:
        samples, error = tuple(reader.read(pfs)), None
    except TROUBLES as trouble:
        samples, error = (), str(trouble) or type(trouble).__name__
        reader.close()
    return _Outcome(reader, samples, time.perf_counter() - began, error)
