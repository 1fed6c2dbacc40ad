"""The newest transitions of facts, each with its time. Pure.

* The number of changes and the length of each text are bounded: a link that flaps for a day takes the place of older
  changes, not memory.
* Times are those of the wall clock when the change was seen.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import islice

import msgspec

from nodeagent.base.plain_text import one_line

AGENT_MAX, CONTROLLER_MAX = 1_000, 100_000
TEXT_MAX, TEXTS_MAX = 240, 8
_SHOWN_MAX = 100


class Change(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """``at``: Unix time. ``what`` is the kind of the thing (``nic``, ``gpu``, ``link``, ``neighbor``, ``source``,
    ``driver``, ``agent``), ``where`` its first name. ``before`` and ``after`` are the facts in words, ``details`` the
    sentences of the reasons. ``names`` are other names by which one may ask, such as the switch. ``node`` is empty in
    an agent."""

    at: float
    what: str
    where: str
    before: str
    after: str
    details: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    node: str = ""

    def is_about(self, name: str) -> bool:
        """``name`` is in small letters."""
        if name in (self.node.lower(), self.where.lower()):
            return True
        return any(name == it.lower() for it in self.names) or name == f"{self.node}/{self.where}".lower()


class ChangeLog:
    """The newest changes, in the order of their times. Belongs to one event loop."""

    def __init__(self, size_max: int) -> None:
        self.changes: deque[Change] = deque(maxlen=size_max)
        self.total = 0
        """Changes since the start, those that had to go too."""

    def add(self, changes: Iterable[Change]) -> None:
        for change in changes:
            self.total += 1
            self.changes.append(_bounded(change))

    def put_before(self, older: Iterable[Change]) -> None:
        """Take changes of an earlier process, as far as there is room."""
        every = sorted((*map(_bounded, older), *self.changes), key=lambda change: change.at)
        self.changes.clear()
        self.changes.extend(every)

    def newest(self) -> tuple[Change, ...]:
        """The changes that pages show, the oldest first."""
        return tuple(islice(reversed(self.changes), _SHOWN_MAX))[::-1]


def changes_since(every: Sequence[Change], at: float, name: str = "", limit: int = AGENT_MAX) -> list[Change]:
    """The newest ``limit`` changes since ``at`` about the thing called ``name``, the oldest first."""
    name = name.lower()
    found: list[Change] = []
    for change in reversed(every):
        if len(found) >= limit:
            break
        if change.at >= at and (
            not name or change.is_about(name)
        ):  # a clock that is set back makes earlier ones later
            found.append(change)
    return found[::-1]


def _bounded(change: Change) -> Change:
    """The change with bounded texts, which are shared with those of other changes."""
    what, where, before, after, node = map(
        _text, (change.what, change.where, change.before, change.after, change.node)
    )
    details, names = (tuple(map(_text, some[:TEXTS_MAX])) for some in (change.details, change.names))
    return Change(change.at, what, where, before, after, details, names, node)


def _text(text: str) -> str:
    return sys.intern(text if len(text) <= TEXT_MAX else one_line(text, TEXT_MAX))
