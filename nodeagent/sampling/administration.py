"""The reader of changes by an administrator: it follows the kernel's notices in the event loop.

A driver drops the carrier to apply a change; the rules on lost carriers need to know about the change.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence

from nodeagent.base.supervise import either
from nodeagent.host.clock import boottime
from nodeagent.host.fd import wait_readable
from nodeagent.host.netlink.change_notices import SETTINGS, ChangeNotices
from nodeagent.measurements.reader_status import ReaderStatus
from nodeagent.measurements.sample import Sample, Source
from nodeagent.sampling.reader import READ_ERRORS, PfNetdevs

_READ_GAP_S = 0.2
"""The shortest time between two readings: every start of a pod makes notices about its own netdevs."""


class AdministrationReader:
    """Counts the changes of each PF since the agent started. ``publish`` gets the samples, ``failed`` the error and
    duration."""

    def __init__(
        self,
        pf_netdevs: PfNetdevs,
        status: Callable[[], ReaderStatus],
        publish: Callable[[Sequence[Sample]], None],
        failed: Callable[[Source, Exception, float], None],
    ) -> None:
        self.overruns = 0
        self._pf_netdevs = pf_netdevs
        self._status = status
        self._publish = publish
        self._failed = failed
        self._counts: dict[str, Counter[str]] = {}

    async def follow(self, start: asyncio.Event) -> None:
        """Publish a sample of each PF, and again after each change. If the notices cannot be read, end after one
        report."""
        await start.wait()
        try:
            with ChangeNotices() as notices:
                self._status().succeeded(boottime(), 0.0)
                self._publish_new()
                while True:
                    await _wait(notices)
                    self._publish_new()
                    self._take(notices)
                    await asyncio.sleep(_READ_GAP_S)
        except READ_ERRORS as error:
            self._failed(Source.ADMINISTRATION, error, 0.0)

    def _publish_new(self) -> None:
        """Publish zeros for each new PF: a counter needs a first value."""
        new = [device for device in self._pf_netdevs.ifindex if device not in self._counts]
        self._counts |= {device: Counter() for device in new}
        if new:
            self._publish([self._sample(device) for device in new])

    def _take(self, notices: ChangeNotices) -> None:
        devices = self._pf_netdevs.devices()
        changed = set()
        for notice in notices.read(frozenset(devices)):
            device = devices[notice.ifindex]
            self._counts[device][notice.setting] += 1
            changed.add(device)
        self.overruns = notices.overruns
        if changed:
            self._publish([self._sample(device) for device in sorted(changed)])

    def _sample(self, device: str) -> Sample:
        counts = self._counts[device]
        values = {f"administration/{setting}": float(counts[setting]) for setting in SETTINGS}
        return Sample(boottime(), device, Source.ADMINISTRATION, values)


async def _wait(notices: ChangeNotices) -> None:
    """Wait for a notice on either socket."""
    sockets = [opened for opened in (notices.netdevs, notices.ethtool) if opened is not None]
    await either(*(wait_readable(opened.fileno()) for opened in sockets))
