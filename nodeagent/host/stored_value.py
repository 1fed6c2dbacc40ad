"""A JSON file that keeps a value over restarts of the agent and over reboots.

* Only a regular file of at most ``SIZE_MAX`` bytes is read; a FIFO or a device in its place is refused, not waited for.
* A file that cannot be read is one warning that names the loss. ``unreadable`` has the reason, because a damaged file
  is not the first start of a fresh node.
* A write replaces the file in one step, in a daemon thread that the process does not wait for. A disk that hangs
  delays the caller by ``WRITE_S`` at most. A write that fails is logged once, until one succeeds.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from nodeagent.base.bounded_calls import in_thread, within
from nodeagent.base.regular_file import read_regular
from nodeagent.host.file_writing import replace_file
from nodeagent.host.unwritable_memory import UnwritableMemory

log = logging.getLogger(__name__)

T = TypeVar("T")

SIZE_MAX = 4 * 1024 * 1024
"""Far more than the devices of one node need."""
WRITE_S = 1.0
"""A local file is written in a millisecond; a disk that hangs must not delay bad news for the kubelet."""


class StoredValue(Generic[T]):
    """One value of a type that msgspec can read. ``save`` belongs to one event loop.

    ``content`` names the value in the logs (``slice sizes``). ``loss`` is what the agent does not notice without it.
    """

    def __init__(self, path: Path, type_: type[T], *, content: str, loss: str) -> None:
        self.path = path
        self.unreadable: str | None = None
        """Why the file of an earlier agent cannot be read; ``None`` if it was read or does not exist."""
        self.unwritable: str | None = None
        """Why the last write failed."""
        self._type = type_
        self._content, self._loss = content, loss
        self._written = b""
        self._busy = False
        """A thread reads or writes the file now."""

    def read(self) -> T | None:
        """Return the value of an earlier agent; ``None`` if there is none that can be read. Blocks."""
        self.unreadable = None
        try:
            text = within(self.path.name, WRITE_S, partial(read_regular, self.path, SIZE_MAX))
            value = msgspec.json.decode(text, type=self._type)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
            self.unreadable = getattr(error, "strerror", None) or str(error)
            log.warning(
                "The %s of an earlier agent cannot be read; %s. file=%s reason=%r",
                self._content,
                self._loss,
                self.path,
                self.unreadable,
            )
            return None
        self._written = text
        return value

    async def save(self, value: T) -> bool:
        """Write the value unless the file has it. Return whether it is on the disk now."""
        text = _encoded(value)
        if text == self._written:
            return True
        if self._busy:
            return False  # an earlier call hangs

        def write() -> Callable[[], None]:
            try:
                replace_file(self.path, text, durable=True)
            except OSError as error:
                return partial(self._complain, error.strerror or str(error))
            return partial(self._settle, text)

        if not await self._in_thread(write):
            self._complain(f"the disk did not answer within {WRITE_S:g} s")
        return self._written == text

    def fault(self) -> UnwritableMemory | None:
        """Return why the last write failed, if it did."""
        reason = self.unwritable
        return None if reason is None else UnwritableMemory(str(self.path), reason, self._loss)

    def write(self, value: T) -> None:
        """Write the value now. Blocks; raises ``OSError``."""
        replace_file(self.path, _encoded(value), durable=True)

    async def changed(self) -> T | None:
        """Return the value if another program has replaced the file since it was read or written here."""
        written, found = self._written, b""

        def read() -> Callable[[], None]:
            nonlocal found
            with suppress(OSError):
                found = read_regular(self.path, SIZE_MAX)
            return lambda: None

        if self._busy or not await self._in_thread(read):
            return None
        if not found or found == written or self._written != written:
            return None
        try:
            value = msgspec.json.decode(found, type=self._type)
        except (ValueError, RecursionError):
            return None  # the next change replaces it
        self._written = found
        return value

    async def _in_thread(self, work: Callable[[], Callable[[], None]]) -> bool:
        """Run ``work`` in a thread and its result here. Return whether that took less than ``WRITE_S``."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        self._busy = True

        def finish(result: Callable[[], None]) -> None:
            self._busy = False
            result()
            if not done.done():
                done.set_result(None)

        def run() -> None:
            result = work()
            with suppress(RuntimeError):  # the loop ended meanwhile
                loop.call_soon_threadsafe(finish, result)

        in_thread(run)
        try:
            async with asyncio.timeout(WRITE_S):
                await done
        except TimeoutError:
            return False
        return True

    def _settle(self, text: bytes) -> None:
        self._written, self.unwritable = text, None

    def _complain(self, reason: str) -> None:
        if self.unwritable is None:
            log.warning(
                "The %s cannot be written, so after a restart %s; mount a writable folder there or set "
                "health.stateDirectory. file=%s reason=%r",
                self._content,
                self._loss,
                self.path,
                reason,
            )
        self.unwritable = reason


def _encoded(value: object) -> bytes:
    return msgspec.json.encode(value, order="sorted") + b"\n"
