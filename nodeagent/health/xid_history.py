"""The XIDs of one GPU: when each came, and what the kernel log says about the last one. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from nodeagent.health.gpu_settings import GpuSettings
from nodeagent.health.rules.xids import APPLICATION, REPEATED, Severity, severity
from nodeagent.host.gpu_driver import DriverMessage

INCIDENT_S = 300.0
"""An XID that comes again within this time belongs to the same fault, which makes dozens of lines."""
LINE_S = 10.0
"""The kernel log and NVML report one error at most so far apart; the log is read every second."""
_NUMBERS_MAX = 64


class XidHistory:
    def __init__(self, times: Mapping[int, tuple[float, ...]] | None = None) -> None:
        self.times: dict[int, tuple[float, ...]] = dict(times or {})
        """The beginnings of the last faults by XID, the oldest first."""
        self._lines: dict[int, tuple[DriverMessage, float]] = {}

    def add(self, xid: int, now: float, settings: GpuSettings) -> None:
        """Count an event, if its XID tells something when it comes again."""
        counts = severity(xid, settings) in (Severity.FATAL, Severity.WATCH) or xid in REPEATED
        times = self.times.get(xid, ())
        if not counts or xid in settings.ignore_xids or (times and now - times[-1] < INCIDENT_S):
            return
        if xid in self.times or len(self.times) < _NUMBERS_MAX:
            self.times[xid] = (*times, now)[-settings.xid_repeats :]

    def forgive(self, xid: int) -> None:
        """Another GPU reports this XID: if applications cause it, it is not a fault of this GPU."""
        if xid in APPLICATION:
            self.times.pop(xid, None)

    def repeated(self, now: float, settings: GpuSettings) -> tuple[int, ...]:
        """Return the XIDs that came too often within the window."""
        return tuple(
            xid
            for xid, times in sorted(self.times.items())
            if len(times) >= settings.xid_repeats and now - times[0] <= settings.xid_repeat_seconds
        )

    def take_line(self, message: DriverMessage, now: float) -> None:
        self._lines[message.number] = message, now

    def line(self, xid: int | None, at: float) -> DriverMessage | None:
        """Return what the kernel log says about the error that NVML has reported at this time."""
        if xid is None or xid not in self._lines:
            return None
        message, read_at = self._lines[xid]
        return message if abs(read_at - at) <= LINE_S else None
