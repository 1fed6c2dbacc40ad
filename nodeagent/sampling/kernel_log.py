"""The reader of the kernel log: it follows the log in the event loop, because the log's socket wakes it."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress

from nodeagent.facts.model import Function
from nodeagent.host.clock import boottime
from nodeagent.host.fd import wait_readable
from nodeagent.host.kmsg import PATTERNS, FirmwareEvent, KernelLog
from nodeagent.measurements.reader_status import ReaderStatus
from nodeagent.measurements.sample import Sample, Source
from nodeagent.sampling.reader import READ_ERRORS

_READ_GAP_S, _REPEAT_S = 1.0, 60.0
"""The shortest time between two readings, and the time after which unchanged counts are stated again."""


class KernelLogReader:
    """Counts matching lines since boot. ``publish`` gets the samples, ``failed`` the error and duration."""

    def __init__(
        self,
        functions: Callable[[], tuple[Function, ...]],
        status: Callable[[], ReaderStatus],
        publish: Callable[[Sequence[Sample]], None],
        failed: Callable[[Source, Exception, float], None],
    ) -> None:
        self.overruns = 0
        self._functions = functions
        self._status = status
        self._publish = publish
        self._failed = failed

    async def follow(self, start: asyncio.Event) -> None:
        """Read the log from its oldest line, then each new line. If the log cannot be read, end after one report."""
        await start.wait()
        status = self._status()
        counts: Counter[FirmwareEvent] = Counter()
        new, duration_s, published_at = 0, 0.0, -_REPEAT_S
        try:
            with KernelLog() as kernel:
                while True:
                    began = time.perf_counter()
                    events, more = kernel.read()
                    duration_s += time.perf_counter() - began
                    self.overruns = kernel.overruns
                    counts.update(events)
                    new += events.total()
                    if more:
                        await asyncio.sleep(0)
                        continue
                    status.succeeded(boottime(), duration_s)
                    if new or boottime() - published_at >= _REPEAT_S:
                        self._publish(self._samples(counts))
                        published_at = boottime()
                    new, duration_s = 0, 0.0
                    # A log that is written all the time must not keep the loop from its other work.
                    await asyncio.sleep(_READ_GAP_S)
                    with suppress(TimeoutError):
                        async with asyncio.timeout(_REPEAT_S):
                            await wait_readable(kernel.fileno())
        except READ_ERRORS as error:
            self._failed(Source.KERNEL, error, duration_s)

    def _samples(self, counts: Counter[FirmwareEvent]) -> list[Sample]:
        """One per PF, with the lines of its VFs: PF and VFs share one firmware."""
        functions = self._functions()
        pf_of = {function.pci_address: function.parent or function.pci_address for function in functions}
        now = boottime()
        values: dict[str, dict[str, float]] = {
            function.pci_address: {f"kernel_events/{pattern}": 0 for pattern in PATTERNS}
            for function in functions
            if function.parent is None
        }
        for event, count in counts.items():
            pf_values = values.get(pf_of.get(event.pci_address, ""))
            if pf_values is not None:
                pf_values[f"kernel_events/{event.pattern}"] += count
        return [Sample(now, device, Source.KERNEL, pf_values) for device, pf_values in values.items()]
