"""Scan a tree whose files may hang: a file that does not answer is left out, and the other devices stay visible.

A driver may hang in one attribute of one device. The thread that reads it is abandoned, the file is refused as a broken
one (``Tree.hanging``), and the scan starts again. When the file answers, it is read again. Too many hanging files, or a
call that is not the reading of a file, end the scan with ``Unanswered``. Two scans of one tree may meet the same file.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from nodeagent.base.bounded_calls import BoundedCalls, Unanswered, within
from nodeagent.host.sysfs import Tree

T = TypeVar("T")

_READ_S = 2.0
"""For one file. A scan of all files takes some ten milliseconds."""
_READ_AGAIN_S = 0.5
"""For one file while another hangs, which may be of the same device."""
HANGING_MAX = 32
"""Files, and threads that hang in them."""


def scan_now(source: str, tree: Tree, work: Callable[..., T], *arguments: Any) -> T:
    """Scan for a verb. In a thread, because the caller may run an event loop. Raises the errors of ``work``, and
    ``Unanswered``."""
    scan = BoundedScan(source, tree).run(work, *arguments)
    # The scan itself leaves out what hangs; the limit here is longer than all of its limits together.
    return within(source, 2 * _READ_S * HANGING_MAX, lambda: asyncio.run(scan))


class BoundedScan:
    """The scans of one source. ``answered`` is called when a file that was left out can be read again."""

    def __init__(self, source: str, tree: Tree, answered: Callable[[], object] = lambda: None) -> None:
        self._source, self._tree, self._answered = source, tree, answered
        self._calls = BoundedCalls(source, _READ_S)
        self._left_out: set[str] = set()

    async def run(self, work: Callable[..., T], *arguments: Any) -> T:
        """Return the result of ``work``, which reads the tree. Raises its errors, and ``Unanswered``."""
        while True:
            try:
                return await self._calls.run(work, *arguments)
            except Unanswered as error:
                path = error.step
                if not path or path in self._left_out or len(self._left_out) >= HANGING_MAX:
                    raise
                self._left_out.add(path)
                self._tree.hanging.add(path)
                self._calls.returned = partial(self._read_again, path)
                self._calls = BoundedCalls(self._source, _READ_AGAIN_S, alone=False)

    def _read_again(self, path: str) -> None:
        self._left_out.discard(path)
        self._tree.hanging.discard(path)
        self._answered()
