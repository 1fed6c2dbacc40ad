"""Planned work: the annotation of a Node with its links under maintenance. Pure.

* `nodeagent maintain` writes it. Alerts are silent, and no loss of the carrier counts as a flap; a fault stays visible.
* An entry whose time is over counts as nothing. The next write of the verb removes it.
* An entry that cannot be read is left out, and named once; the others of the Node count.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from itertools import islice
from typing import Annotated

import msgspec

from nodeagent.base.plain_text import one_line
from nodeagent.base.rfc3339 import rfc3339
from nodeagent.fabric.nodelinks import Wire

MAINTENANCE_LABEL = "nodeagent.io/maintenance"
MAINTENANCE_ENTRIES_MAX, SERIES_MAX = 64, 20_000
MAINTENANCE_NAME_MAX, TEXT_MAX = 64, 200
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Maintenance(Wire, frozen=True, kw_only=True):
    """Work on one link, or on the whole node if ``link`` is empty. ``switch``: the work is on the switch behind it.
    ``netdev`` and ``pci_address`` are those of the link, as metrics name it."""

    until: Annotated[datetime, msgspec.Meta(tz=True)]
    since: Annotated[datetime, msgspec.Meta(tz=True)] = _EPOCH
    link: str = ""
    netdev: str = ""
    pci_address: str = ""
    switch: str = ""
    author: str = ""
    reason: str = ""

    @property
    def begin(self) -> float:
        """Unix time."""
        return (self.since - _EPOCH).total_seconds()

    @property
    def end(self) -> float:
        """Unix time."""
        return (self.until - _EPOCH).total_seconds()

    @property
    def sentence(self) -> str:
        what = f"maintenance of {self.switch}" if self.switch else "maintenance"
        by, why = f" by {self.author}" if self.author else "", f": {self.reason}" if self.reason else ""
        return f"{what} until {rfc3339(self.end)}{by}{why}"


Maintained = Mapping[str, tuple[Maintenance, ...]]
"""The entries by Node."""
_ENTRY = msgspec.json.Decoder(Maintenance)
_ENTRIES = msgspec.json.Decoder(list[msgspec.Raw])


def read_maintenance(text: str | None) -> tuple[tuple[Maintenance, ...], str]:
    """The entries of an annotation, and what is wrong with those that are left out; empty: nothing."""
    found: list[Maintenance] = []
    try:
        raw = _ENTRIES.decode(text or "[]")
    except (msgspec.MsgspecError, RecursionError) as error:
        return (), one_line(str(error), TEXT_MAX)
    fault = (
        f"it has more than {MAINTENANCE_ENTRIES_MAX} entries" if len(raw) > MAINTENANCE_ENTRIES_MAX else ""
    )
    for number, entry in enumerate(raw[:MAINTENANCE_ENTRIES_MAX], 1):
        try:
            found.append(_bounded(_ENTRY.decode(entry)))
        except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError) as error:
            fault = fault or one_line(f"entry {number}: {error}", TEXT_MAX)
    return tuple(found), fault


def _bounded(entry: Maintenance) -> Maintenance:
    """The entry with text that is printable and short. Raises ``ValueError`` for a time that no clock shows in UTC."""
    names = ("link", "netdev", "pci_address", "switch", "author")
    texts = {name: one_line(getattr(entry, name), MAINTENANCE_NAME_MAX) for name in names}
    rfc3339(entry.begin), rfc3339(entry.end)
    return msgspec.structs.replace(entry, **texts, reason=one_line(entry.reason, TEXT_MAX))


def write_maintenance(entries: Iterable[Maintenance]) -> str | None:
    """The annotation with these entries; ``None`` without any."""
    return msgspec.json.encode(tuple(entries)).decode() if entries else None


class MaintenanceBook:
    """The entries of all Nodes. ``faults`` has what is wrong with each annotation, by Node; empty: nothing."""

    def __init__(self) -> None:
        self.of_node: dict[str, tuple[Maintenance, ...]] = {}
        self.faults: dict[str, str] = {}
        self._texts: dict[str, str] = {}

    def take(self, node: str, text: str | None) -> bool:
        """Take the annotation of a Node, ``None`` without one. Return whether it is another one than before."""
        if text == self._texts.get(node):
            return False
        for known in (self.of_node, self.faults, self._texts):
            known.pop(node, None)
        if text is not None:
            self._texts[node] = text
            self.of_node[node], self.faults[node] = read_maintenance(text)
        return True


def under_maintenance(maintained: Maintained, node: str, link: str, now: float) -> Maintenance | None:
    """The entry that covers this link, or the node if ``link`` is empty, at this Unix time."""
    for entry in maintained.get(node, ()):
        if entry.end > now and (not entry.link or (link and link in (entry.link, entry.netdev))):
            return entry
    return None


def ends(maintained: Maintained, now: float) -> dict[tuple[str, str, str, str], float]:
    """When the work on each link ends, by Node, link, netdev and PCI address: for metrics, at most ``SERIES_MAX``."""
    found: dict[tuple[str, str, str, str], float] = {}
    for node, entry in islice(standing(maintained, now), SERIES_MAX):
        key = node, entry.link, entry.netdev or entry.link, entry.pci_address
        found[key] = max(entry.end, found.get(key, 0.0))
    return found


def standing(maintained: Maintained, now: float) -> Iterator[tuple[str, Maintenance]]:
    """Each entry whose time is not over, with its Node, in the order of the Nodes."""
    for node in sorted(maintained):
        yield from ((node, entry) for entry in maintained[node] if entry.end > now)
