"""The sampler: runs each reader of the NICs at its own rate.

* Readers run in threads. If one hangs, the log reports it once and the others continue. If one fails, the log
  reports it once, the error is counted, and the reader runs again at its next time.
* While all links are healthy, speed, FEC and pauses are read less often than states and counters.
* The links are read soon after a hint, and repeatedly for ``SWEEP_FOR_S``, because the kernel may delay a second
  change. Changed links are published immediately; counters alone wait for their time. "Soon" is a short delay: the
  same hint wakes the PCI source, which reports to the kubelet first, and one interpreter runs only one of the two.
* The kernel counts flaps; this module does not.
* ``publish`` gets the samples. They are never in the snapshot.

Several readers may know one counter. Then one of them states it and the others leave it out, so that the counter does
not jump between two values. The preferred reader wins as soon as it has stated the counter.

A driver drops the carrier to apply a change; the rules on lost carriers need to know about the change.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

import msgspec

from nodeagent.base.bounded_calls import in_thread
from nodeagent.facts.model import Function, State
from nodeagent.host.clock import boottime
from nodeagent.host.gpu_driver import DriverMessage
from nodeagent.host.sysfs import Tree
from nodeagent.measurements.reader_status import ReaderStatus
from nodeagent.measurements.sample import Sample, Source
from nodeagent.sampling.adapter_readers import DevlinkReader, DriverReader, PcieReader, RdmaReader
from nodeagent.sampling.event_readers import AdministrationReader, KernelLogReader
from nodeagent.sampling.link_readers import LinkReader, VfReader, ethtool_readers, standard_reader
from nodeagent.sampling.reader import FORBIDDEN_ERRORS, READ_ERRORS, PfNetdevs, SampleReader
from nodeagent.sampling.recorded_samples import RecordedSamplesReader
from nodeagent.sampling.sampling_settings import SamplesSettings
from nodeagent.sampling.transceiver_reader import TransceiverReader
from nodeagent.sources.scan_hints import ScanHint

log = logging.getLogger(__name__)

SWEEP_EVERY_S, SWEEP_FOR_S = 0.05, 1.2
"""linkwatch delays a second announcement by up to one second; the dump shows the change before."""
AFTER_HINT_S = 0.03
"""Delay after a hint. Scanning the links of 13 PFs and reporting to the kubelet takes 5 ms."""
_SPEED_GAP_S = 0.2
"""The shortest time between two readings of speed, FEC and pauses while links change."""
_STATE = ("admin_up", "carrier", "oper_up", "carrier_up", "carrier_down")
"""Values of a link that are published as soon as they change."""
_OVERRUN_NAMES = {
    Source.MODES: "ethtool",
    Source.STANDARD: "standard",
    Source.MODULE: "eeprom",
    Source.LINK: "links",
    Source.VF: "vfs",
    Source.DEVLINK: "devlink",
    Source.RDMA: "rdma",
}


class Sampler:
    """Samples the PFs among ``functions()``. Belongs to one event loop and its network namespace.

    ``publish`` gets the samples of each reading; ``latest`` holds the newest, ``statuses`` the state of each reader.
    ``take_messages`` gets new lines of the kernel log about NVLinks.
    """

    def __init__(
        self,
        tree: Tree,
        functions: Callable[[], tuple[Function, ...]],
        publish: Callable[[Sequence[Sample]], None],
        rates: SamplesSettings | None = None,
        *,
        take_messages: Callable[[Sequence[DriverMessage]], object] = lambda _messages: None,
    ) -> None:
        self.latest = LatestSamples()
        self.statuses: dict[Source, ReaderStatus] = {}
        self._tree = tree
        self._functions = functions
        self._publish = publish
        self._rates = rates or SamplesSettings()
        self._hints: tuple[ScanHint, ...] = ()
        self._hinted = asyncio.Event()
        self._link_changed = asyncio.Event()  # its speed and FEC may have changed too
        self._recorded = RecordedSamplesReader(tree) if tree.recorded else None
        self._pf_netdevs = PfNetdevs()
        self._readers: list[SampleReader] = []
        self._busy: set[SampleReader] = set()
        self._closed = False
        self._kernel_log = KernelLogReader(functions, take_messages)
        self._administration = AdministrationReader(self._pf_netdevs)
        self._link = self._add(self._recorded or LinkReader(self._pf_netdevs))
        self._rounds = self._other_rounds()

    def _other_rounds(self) -> list[tuple[float, tuple[SampleReader, ...]]]:
        """The readers beside that of the links: how often, and which of them one after another in one thread."""
        rates, live = self._rates, self._recorded is None
        rounds: list[tuple[float | None, tuple[SampleReader, ...]]] = [
            (rates.pcie_seconds, (PcieReader(self._tree),)),
            (rates.rdma_seconds, (RdmaReader(self._tree, live=live),)),
        ]
        if live:
            rounds += [
                (rates.ethtool_seconds, ethtool_readers(self._pf_netdevs)),
                (rates.driver_seconds, (standard_reader(self._pf_netdevs), DriverReader(self._pf_netdevs))),
                (rates.devlink_seconds, (DevlinkReader(),)),
                (rates.vf_seconds, (VfReader(self._pf_netdevs),)),
                (rates.module_seconds, (TransceiverReader(self._tree, self._pf_netdevs),)),
            ]
        return [(every, tuple(map(self._add, readers))) for every, readers in rounds if every is not None]

    def _add(self, reader: SampleReader) -> SampleReader:
        self._readers.append(reader)
        self.statuses[reader.source] = ReaderStatus(reader.source)
        return reader

    # --- results ------------------------------------------------------------------------------------------

    def samples(self) -> tuple[Sample, ...]:
        return self.latest.all()

    def reader_statuses(self) -> tuple[ReaderStatus, ...]:
        return tuple(self.statuses.values())

    def overruns(self) -> dict[str, int]:
        """How often the kernel dropped messages, by their topic."""
        counts: Counter[str] = Counter({"kernel_log": self._kernel_log.overruns})
        counts["events"] += self._administration.overruns
        for hint in self._hints:
            counts["events"] += getattr(hint, "resyncs", 0)
        for reader in self._readers:
            if reader.source in _OVERRUN_NAMES:
                counts[_OVERRUN_NAMES[reader.source]] += reader.overruns
        return dict(counts)

    # --- running ------------------------------------------------------------------------------------------

    async def watch(self, hints: Iterable[ScanHint] = ()) -> None:
        """Sample until cancelled, then close the readers. Raises the errors of the hints."""
        self._hints = tuple(hints)
        try:
            async with asyncio.TaskGroup() as group:
                for hint in self._hints:
                    group.create_task(self._listen(hint))
                first = asyncio.Event()
                group.create_task(self._follow_links(first))
                for every, readers in self._rounds:
                    if readers[0].source is Source.MODES:
                        group.create_task(self._follow_modes(every, readers, first))
                    else:
                        group.create_task(self._repeat(every, readers, first))
                if self._rates.kernel_log and self._recorded is None:
                    group.create_task(self._follow(self._kernel_log, first))
                if self._recorded is None:
                    group.create_task(self._follow(self._administration, first))
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        finally:
            self.close()

    def close(self) -> None:
        """Close the readers. A reader that is reading now closes in its thread afterwards."""
        self._closed = True
        for reader in self._readers:
            if reader not in self._busy:
                reader.close()

    async def once(self) -> None:
        """Run each reader once, the links first; not the kernel log. ``close`` afterwards."""
        await self._round((self._link,))
        await asyncio.gather(*(self._round(readers) for _, readers in self._rounds))

    async def _listen(self, hint: ScanHint) -> None:
        while True:
            await hint.wait()
            self._hinted.set()

    async def _follow_links(self, first: asyncio.Event) -> None:
        now = asyncio.get_running_loop().time
        every = self._rates.link_seconds or float("inf")
        full_at = sweep_until = now()
        while True:
            full = now() >= full_at
            # A replaced recording is read in full, because any of its values may be new.
            everything = full or self._recorded is not None
            await self._round((self._link,), wanted=_all if everything else self._changed)
            first.set()
            read_at = now()
            if full:
                full_at = read_at + every
            next_at = min(full_at, read_at + SWEEP_EVERY_S) if read_at < sweep_until else full_at
            try:
                async with asyncio.timeout_at(next_at if next_at != float("inf") else None):
                    await self._hinted.wait()
            except TimeoutError:
                continue
            await asyncio.sleep(AFTER_HINT_S)
            self._hinted.clear()
            sweep_until = now() + (0.0 if self._recorded else SWEEP_FOR_S)

    async def _repeat(self, every: float, readers: tuple[SampleReader, ...], first: asyncio.Event) -> None:
        """Read at ``every``. ``first``: the netdev of each PF is known."""
        await first.wait()
        now = asyncio.get_running_loop().time
        while True:
            began = now()
            await self._round(readers)
            await asyncio.sleep(max(0.0, began + every - now()))

    async def _follow_modes(
        self, every: float, readers: tuple[SampleReader, ...], first: asyncio.Event
    ) -> None:
        """Read at ``every``, soon after a link has changed, and as often as the links while one is faulty."""
        await first.wait()
        now = asyncio.get_running_loop().time
        while True:
            began = now()
            self._link_changed.clear()
            await self._round(readers)
            await asyncio.sleep(_SPEED_GAP_S)
            at = began + (min(every, self._rates.link_seconds or every) if self._faulty() else every)
            with suppress(TimeoutError):
                async with asyncio.timeout_at(at):
                    await self._link_changed.wait()

    async def _follow(self, reader: KernelLogReader | AdministrationReader, first: asyncio.Event) -> None:
        """Take the samples of a reader that the kernel wakes. If it cannot be followed, end after one report."""
        await first.wait()
        status = self.statuses.setdefault(reader.source, ReaderStatus(reader.source))
        try:
            async for samples, duration_s in reader.follow():
                if duration_s is not None:
                    status.succeeded(boottime(), duration_s)
                self._take(samples)
        except READ_ERRORS as error:
            self._failed(reader.source, error, 0.0)

    def _faulty(self) -> bool:
        good = (State.HEALTHY, State.UNUSED)
        return any(pf.health.state not in good for pf in self._functions() if pf.parent is None)

    async def _round(
        self, readers: tuple[SampleReader, ...], wanted: Callable[[Sample], bool] | None = None
    ) -> None:
        """Run these readers in one thread, and wait for them however long they take."""
        pfs = tuple(function for function in self._functions() if function.parent is None)
        loop = asyncio.get_running_loop()
        current: list[SampleReader] = []

        def work() -> None:
            for reader in readers:
                current.append(reader)
                began = time.perf_counter()
                samples, error = _read(reader, pfs)
                duration_s = time.perf_counter() - began
                with suppress(RuntimeError):  # the loop ended meanwhile
                    loop.call_soon_threadsafe(
                        self._finished, reader, samples, error, duration_s, wanted or _all
                    )
            self._busy.difference_update(readers)
            for reader in readers if self._closed else ():
                reader.close()

        self._closed = False
        self._busy.update(readers)
        working = in_thread(work)
        while not working.done():
            await asyncio.wait((working,), timeout=self._rates.hang_seconds)
            if not working.done():
                self._hangs((current or readers)[-1].source)
        working.result()

    # --- one reading --------------------------------------------------------------------------------------

    def _finished(
        self,
        reader: SampleReader,
        samples: Sequence[Sample],
        error: Exception | None,
        duration_s: float,
        wanted: Callable[[Sample], bool],
    ) -> None:
        status = self.statuses[reader.source]
        status.hanging = False
        status.skipped = reader.skipped.count
        if error is not None:
            self._failed(reader.source, error, duration_s)
            return
        if status.succeeded(boottime(), duration_s):
            log.info("Metrics collector recovered. source=%s", reader.source)
        if wanted is not _all:
            samples = [sample for sample in samples if wanted(sample)]
        if self._recorded is not None:
            samples = self._with_recorded(self._recorded, reader, samples, duration_s)
        if reader is self._link:
            if any(map(self._changed, samples)):
                self._link_changed.set()
            self.latest.keep(function.pci_address for function in self._functions())
        self._take(samples)

    def _with_recorded(
        self,
        recorded: RecordedSamplesReader,
        reader: SampleReader,
        samples: Sequence[Sample],
        duration_s: float,
    ) -> Sequence[Sample]:
        """The samples without those that the recording has too. The recording is a success of all its sources."""
        if reader is not recorded:
            return [sample for sample in samples if (sample.device, sample.source) not in recorded.in_file]
        for source in {sample.source for sample in samples} - {reader.source}:
            self.statuses.setdefault(source, ReaderStatus(source)).succeeded(boottime(), duration_s)
        return samples

    def _take(self, samples: Sequence[Sample]) -> None:
        if samples:
            self._publish(self.latest.take(samples, self._attempted))

    def _attempted(self, source: Source) -> bool:
        status = self.statuses.get(source)
        return status is None or status.attempts > 0

    def _changed(self, sample: Sample) -> bool:
        """Whether the state of the link changed; its counters change all the time."""
        before = self.latest.sample(sample.device, sample.source)
        if before is None:
            return True
        old, new = before.values, sample.values
        return [old.get(name) for name in _STATE] != [new.get(name) for name in _STATE]

    def _hangs(self, source: Source) -> None:
        status = self.statuses[source]
        if status.hanging:
            return
        reason = f"the reader has not answered for {self._rates.hang_seconds:g} s"
        status.hanging = True
        status.failed(reason)
        log.warning("Metrics collector hangs. source=%s reason=%r", source, reason)

    def _failed(self, source: Source, error: Exception, duration_s: float) -> None:
        reason = str(error) or type(error).__name__
        if not self.statuses[source].failed(reason, duration_s):
            return
        if isinstance(error, FORBIDDEN_ERRORS):
            log.info(
                "A metrics collector lacks a right; the others continue. source=%s reason=%r", source, reason
            )
        else:
            log.warning("Metrics collector failed. source=%s reason=%r", source, reason)


def _all(_: Sample) -> bool:
    return True


def _read(reader: SampleReader, pfs: tuple[Function, ...]) -> tuple[Sequence[Sample], Exception | None]:
    """The samples, or the error of a failure."""
    try:
        return reader.read(pfs), None
    except READ_ERRORS as error:
        reader.close()
        return (), error


PREFERRED: dict[str, tuple[Source, ...]] = {
    "crc_errors": (Source.STANDARD, Source.DRIVER, Source.LINK),
    "fec_corrected_bits": (Source.FEC, Source.DRIVER),
    "symbol_errors": (Source.DRIVER, Source.STANDARD),
    "phy_rx_bytes": (Source.DRIVER, Source.STANDARD),
    "phy_tx_bytes": (Source.DRIVER, Source.STANDARD),
}
"""By name: the readers that know the counter, the best first. The kernel's name comes before those of the drivers,
except where its meaning is narrower: SymbolErrorDuringCarrier counts a frame once, however many of its symbols are
wrong (mlx5 has both), and OctetsReceivedOK leaves out what belongs to no good frame."""

_BETTER = {
    source: tuple(
        (name, readers[: readers.index(source)])
        for name, readers in PREFERRED.items()
        if source in readers[1:]
    )
    for source in {reader for readers in PREFERRED.values() for reader in readers[1:]}
}
"""By reader: the names for which other readers are preferred, with these readers."""


def _without_duplicates(
    sample: Sample, device_samples: dict[Source, Sample], attempted: Callable[[Source], bool]
) -> Sample:
    values = sample.values
    for name, readers in _BETTER.get(sample.source, ()):
        if name in values and any(
            not attempted(reader) or (reader in device_samples and name in device_samples[reader].values)
            for reader in readers
        ):
            values = {key: value for key, value in values.items() if key != name}
    return sample if values is sample.values else msgspec.structs.replace(sample, values=values)


class LatestSamples:
    """Belongs to one thread. Times are CLOCK_BOOTTIME, as in the samples."""

    def __init__(self) -> None:
        self._samples: dict[str, dict[Source, Sample]] = {}

    def take(self, samples: Sequence[Sample], attempted: Callable[[Source], bool]) -> tuple[Sample, ...]:
        """Keep the samples and return them without duplicate counters.

        ``attempted``: whether a reader has finished a reading, or never runs. Until the preferred reader has, no
        other reader states its counters.
        """
        for sample in samples:
            self._samples.setdefault(sample.device, {})[sample.source] = sample
        taken = []
        for sample in samples:
            device_samples = self._samples[sample.device]
            kept = _without_duplicates(sample, device_samples, attempted)
            device_samples[sample.source] = kept
            taken.append(kept)
        return tuple(taken)

    def keep(self, devices: Iterable[str]) -> None:
        """Forget all other devices."""
        kept = set(devices)
        for device in [device for device in self._samples if device not in kept]:
            del self._samples[device]

    def all(self) -> tuple[Sample, ...]:
        """The newest of each device and reader, by device."""
        return tuple(
            sample for _device, samples in sorted(self._samples.items()) for sample in samples.values()
        )

    def sample(self, device: str, source: Source) -> Sample | None:
        return self._samples.get(device, {}).get(source)
