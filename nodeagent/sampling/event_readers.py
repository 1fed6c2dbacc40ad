"""Readers that the kernel wakes: they follow the kernel's log and its notices of changes in the event loop.

``follow`` yields samples, and the duration of the reading if the state of the reader shows it. It raises one of
``READ_ERRORS`` if the kernel cannot be followed.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import suppress

from nodeagent.base.supervise import either
from nodeagent.facts.model import Function
from nodeagent.host.clock import boottime
from nodeagent.host.fd import wait_readable
from nodeagent.host.gpu_driver import DriverMessage
from nodeagent.host.kmsg import PATTERNS, FirmwareEvent, KernelLog
from nodeagent.host.netlink.change_notices import SETTINGS, ChangeNotices
from nodeagent.measurements.sample import Sample, Source
from nodeagent.sampling.reader import PfNetdevs

log = logging.getLogger(__name__)

Reading = tuple[list[Sample], float | None]

_LOG_GAP_S, _REPEAT_S = 1.0, 60.0
"""The shortest time between two readings, and the time after which unchanged counts are stated again."""
_NOTICE_GAP_S = 0.2
"""The shortest time between two readings: every start of a pod makes notices about its own netdevs."""


class KernelLogReader:
    """Counts matching lines since boot. ``take_messages`` gets the new ones about NVLinks: how old those are that were
    in the log before, nobody can tell (its clock drifts). Why a GPU cannot be reached is told of the old ones too."""

    source = Source.KERNEL

    def __init__(
        self,
        functions: Callable[[], tuple[Function, ...]],
        take_messages: Callable[[Sequence[DriverMessage]], object] = lambda _messages: None,
    ) -> None:
        self.overruns = 0
        self._functions = functions
        self._take_messages = take_messages

    async def follow(self) -> AsyncIterator[Reading]:
        """Read the log from its oldest line, then each new line."""
        counts: Counter[FirmwareEvent] = Counter()
        new, duration_s, stated_at = 0, 0.0, -_REPEAT_S
        caught_up = False
        with KernelLog() as kernel:
            while True:
                began = time.perf_counter()
                events, more = kernel.read()
                duration_s += time.perf_counter() - began
                self.overruns = kernel.overruns
                counts.update(events)
                new += events.total()
                messages = [one for one in kernel.messages if caught_up or one.words]
                if messages:
                    self._take_messages(messages)
                if caught_up and kernel.left_out:
                    log.warning(
                        "A GPU or NVSwitch floods the kernel log; lines are left out. lines=%d",
                        kernel.left_out,
                    )
                caught_up = caught_up or not more
                if more:
                    await asyncio.sleep(0)
                    continue
                stated = new or boottime() - stated_at >= _REPEAT_S
                yield self._samples(counts, kernel.low_power) if stated else [], duration_s
                stated_at = boottime() if stated else stated_at
                new, duration_s = 0, 0.0
                # A log that is written all the time must not keep the loop from its other work.
                await asyncio.sleep(_LOG_GAP_S)
                with suppress(TimeoutError):
                    async with asyncio.timeout(_REPEAT_S):
                        await wait_readable(kernel.fileno())

    def _samples(self, counts: Counter[FirmwareEvent], low_power: Mapping[str, bool]) -> list[Sample]:
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
        for address, is_low in low_power.items():
            if address in values:
                values[address]["slot_power_low"] = float(is_low)
        return [Sample(now, device, Source.KERNEL, pf_values) for device, pf_values in values.items()]


class AdministrationReader:
    """Counts the changes of each PF since the agent started."""

    source = Source.ADMINISTRATION

    def __init__(self, pf_netdevs: PfNetdevs) -> None:
        self.overruns = 0
        self._pf_netdevs = pf_netdevs
        self._counts: dict[str, Counter[str]] = {}

    async def follow(self) -> AsyncIterator[Reading]:
        """State zeros for each new PF, because a counter needs a first value, and its counts after each change."""
        with ChangeNotices() as notices:
            sockets = [opened for opened in (notices.netdevs, notices.ethtool) if opened is not None]
            yield self._new(), 0.0
            while True:
                await either(*(wait_readable(opened.fileno()) for opened in sockets))
                yield self._new(), None
                yield self._changed(notices), None
                await asyncio.sleep(_NOTICE_GAP_S)

    def _new(self) -> list[Sample]:
        new = [device for device in self._pf_netdevs.ifindex if device not in self._counts]
        self._counts |= {device: Counter() for device in new}
        return self._samples(new)

    def _changed(self, notices: ChangeNotices) -> list[Sample]:
        devices = self._pf_netdevs.devices()
        changed = set()
        for notice in notices.read(frozenset(devices)):
            device = devices[notice.ifindex]
            self._counts[device][notice.setting] += 1
            changed.add(device)
        self.overruns = notices.overruns
        return self._samples(sorted(changed))

    def _samples(self, devices: Iterable[str]) -> list[Sample]:
        return [
            Sample(
                boottime(),
                device,
                Source.ADMINISTRATION,
                {f"administration/{setting}": float(self._counts[device][setting]) for setting in SETTINGS},
            )
            for device in devices
        ]
