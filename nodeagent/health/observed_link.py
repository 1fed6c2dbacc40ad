"""The state of one link as facts and samples show it: carrier, admin up, and the levels whose change is news. Pure.

A fact from sysfs has priority over a sample of the same thing: sysfs is read at once after every event. A sample
replaces a missing fact (in a replay) and an older fact (when a scan hangs).
"""

from __future__ import annotations

from typing import NamedTuple

from nodeagent.facts.model import Function
from nodeagent.health.history import History
from nodeagent.health.structural import Fault
from nodeagent.measurements.sample import Source

_OLDER_S = 2.0
"""Facts that are older than a sample by more than this were not read after the event that the sample shows."""
_LEVELS = ("admin_up", "carrier", "rdma_port_active", "speed_mbps")
LINK_SOURCES = frozenset({Source.LINK, Source.MODES, Source.RDMA})
"""The sources of these levels."""


class ObservedLink(NamedTuple):
    """The state of a link. It changes with the facts, with a level, and, while a level is 0, with each sample of the
    link."""

    up: tuple[bool | None, bool | None]
    """Whether the link has carrier, and whether it is admin up."""
    levels: tuple[float | bool | None, ...]
    """The values whose change is news of the link."""
    version: int
    """The version of the levels."""
    off_at: float | None
    """The time of the sample of the link, while a level is 0."""


class LinkObserver:
    """Keeps the state of a link until a part of it changes: most samples change nothing."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._facts_at = 0.0
        self._infiniband = False
        self._faults: frozenset[str] = frozenset()
        self._known: ObservedLink | None = None

    def take_facts(self, function: Function, faults: frozenset[str], now: float) -> None:
        """Facts at the time of their publication, new or not. ``faults`` are the keys of the structural faults."""
        self._facts_at, self._infiniband, self._faults = now, function.link_type == "infiniband", faults
        self._known = None

    @property
    def link(self) -> ObservedLink:
        """The same object as before if nothing has changed."""
        known, history = self._known, self._history
        if (
            known is not None
            and known.version == history.version
            and (known.off_at is None or known.off_at == history.last_at(Source.LINK))
        ):
            return known
        self._known = self.read()
        return self._known

    def read(self) -> ObservedLink:
        """Read the state from the facts and levels."""
        history, up = self._history, self._read_up()
        levels = tuple([history.level(name) for name in _LEVELS])
        is_off = 0 in (history.level("admin_up"), history.level("carrier"))
        off_at = history.last_at(Source.LINK) if is_off else None
        return ObservedLink(up, (*up, *levels), history.version, off_at)

    def has(self, *faults: Fault) -> bool:
        """Whether the facts have one of these structural faults."""
        return bool(self._faults and not self._faults.isdisjoint(faults))  # usually there is none

    def sampled(self, name: str) -> bool | None:
        """Whether the level is not 0; ``None``: unknown."""
        value = self._history.level(name)
        return None if value is None else value != 0

    def _read_up(self) -> tuple[bool | None, bool | None]:
        if self.has(Fault.DEVICE_MISSING, Fault.DRIVER_UNBOUND):
            return None, None
        read = self.sampled if self.has(Fault.LINK_UNSEEN) else self._not_overruled
        admin_up = False if self.has(Fault.ADMIN_DOWN) else read("admin_up")
        if admin_up is False:
            return None, admin_up
        return False if self.has(Fault.CARRIER_DOWN) else read("carrier"), admin_up

    def _not_overruled(self, name: str) -> bool:
        """Whether no sample after the last scan has the value 0. IPoIB may be down while its port works."""
        is_off = self._history.level(name) == 0 and not self._infiniband
        at = self._history.at(Source.LINK) if is_off else None
        return at is None or at <= self._facts_at + _OLDER_S
