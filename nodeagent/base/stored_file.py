"""The files that keep a value over restarts of the agent: their forms, and how each of them is read and written.

The content of a file belongs to its user, which declares a ``StoredForm``: the name of the file, the type, and what
is lost without it. Everything else is the same for all of them:

* Only a regular file of at most ``STORED_SIZE_MAX`` bytes is read; a FIFO or a device in its place is refused, not
  waited for.
* A file of another version is not read, and a file of another boot is not used where the form is of one boot.
* A file that cannot be read is one warning that names the loss. ``unreadable`` has the reason, because a damaged file
  is not the first start of a fresh node.
* A write replaces the file in one step, in a daemon thread that the process does not wait for. A disk that hangs
  delays the caller by a limited time. A write that fails is logged once, until one succeeds.
* A file that was deleted under a running agent is written again: its memory is still good.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from nodeagent.base.bounded_calls import in_thread, within
from nodeagent.base.file_writing import remove_abandoned, replace_file
from nodeagent.base.regular_file import read_regular
from nodeagent.base.unwritable_memory import UnwritableMemory

log = logging.getLogger(__name__)

T = TypeVar("T")

STORED_SIZE_MAX = 4 * 1024 * 1024
"""Far more than the devices of one node need."""
_READ_S = 2.0
_WRITE_S = 1.0
"""A local file is written in a millisecond; a disk that hangs must not delay bad news for the kubelet."""
RESTORE_S = 60.0
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> str | None:
    """Return the boot ID of the kernel whose clock is read, never that of a captured or simulated machine."""
    try:
        return _BOOT_ID.read_text().strip() or None
    except OSError:
        return None


def _sorted_line(value: object) -> bytes:
    return msgspec.json.encode(value, order="sorted") + b"\n"


class StoredForm(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """The form of one file. ``name`` is its path below the state folder.

    ``content`` names the value in the logs (``slice sizes``), ``loss`` is what the agent does not notice without it.
    ``remedy`` ends the log line about a file that cannot be written.
    A ``type`` with a field ``version`` has the version of this agent there. ``of_boot``: the value is valid in one
    boot, which its field ``boot_id`` names.
    """

    name: str
    type: type[T]
    content: str
    loss: str
    version: int | None = None
    of_boot: bool = False
    remedy: str = "mount a writable folder there or set health.stateDirectory"
    encode: Callable[[T], bytes] = _sorted_line

    def decode(self, text: bytes | str) -> T:
        """Return the value in a file. Raises ``ValueError`` or ``RecursionError``, and ``OtherVersionError``."""
        value = msgspec.json.decode(text, type=self.type)
        version = getattr(value, "version", self.version)
        if version != self.version:
            raise OtherVersionError(version, self.version)
        return value


class OtherVersionError(ValueError):
    """The file was written by an agent of another version."""

    def __init__(self, version: int | None, ours: int | None) -> None:
        super().__init__(f"it is of version {version}, this agent reads {ours}")
        self.version = version


class StoredFile(Generic[T]):
    """One file. ``save`` and ``changed`` belong to one event loop.

    Without a folder, and for a form of one boot where the kernel does not report its boot ID, nothing is read or
    written.
    """

    def __init__(self, folder: Path | None, form: StoredForm[T], boot: str | None = None) -> None:
        """``boot`` is the ID of the boot, for a form of one boot; ``None``: the present one."""
        self.form = form
        self.boot = (boot or boot_id()) if form.of_boot else None
        usable = folder is not None and (self.boot is not None or not form.of_boot)
        self.path = folder / form.name if folder is not None and usable else None
        self.unreadable: str | None = None
        """Why the file cannot be read; ``None`` if it was read or written, or does not exist."""
        self.unwritable: str | None = None
        """Why the last write failed."""
        self._written = b""
        self._call: asyncio.Future[Any] | None = None
        """The last reading or writing in a thread."""

    def read(self) -> T | None:
        """Return the value of an earlier agent; ``None`` if there is none that can be used. Blocks."""
        self.unreadable = None
        if self.path is None:
            return None
        try:
            text = within(self.path.name, _READ_S, partial(read_regular, self.path, STORED_SIZE_MAX))
            value = self.form.decode(text)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
            self.unreadable = getattr(error, "strerror", None) or str(error)
            version = f" version={error.version}" if isinstance(error, OtherVersionError) else ""
            log.warning(
                "The %s of an earlier agent cannot be read; %s. file=%s%s reason=%r",
                self.form.content,
                self.form.loss,
                self.path,
                version,
                self.unreadable,
            )
            return None
        if getattr(value, "boot_id", self.boot) != self.boot:
            log.info("The %s of an earlier boot are ignored. file=%s", self.form.content, self.path)
            return None
        self._written = text
        return value

    async def save(self, value: T, limit_s: float = _WRITE_S) -> bool:
        """Write the value unless the file has it. Return whether it is on the disk now, after ``limit_s`` at most."""
        text = self.form.encode(value)
        if self.path is None or text == self._written:
            return True
        if self._hangs() and (self.unwritable is not None or not await self._ended(limit_s)):
            return False
        call = self._call = in_thread(partial(_replace, self.path, text))
        call.add_done_callback(partial(self._settle, text))
        return await self._ended(limit_s) and self._written == text

    def write(self, value: T) -> None:
        """Write the value now. Blocks; raises ``OSError``."""
        if self.path is not None:
            replace_file(self.path, self.form.encode(value), durable=True)

    async def changed(self) -> T | None:
        """Return the value if another program has replaced the file since it was read or written here. A broken file
        is noted in ``unreadable``."""
        if self.path is None or self._hangs():
            return None
        written = self._written
        call = in_thread(partial(read_regular, self.path, STORED_SIZE_MAX))
        call.add_done_callback(asyncio.Future.exception)  # an error that comes late has no reader
        self._call = call
        await asyncio.wait((call,), timeout=_WRITE_S)
        if not call.done() or self._written != written:
            return None
        if call.exception() is not None:
            self.unreadable = None if isinstance(call.exception(), FileNotFoundError) else self.unreadable
            return None
        found = call.result()
        if not found or found == written:
            self.unreadable = None if found else self.unreadable
            return None
        try:
            value = self.form.decode(found)
        except (ValueError, RecursionError) as error:
            self.unreadable = str(error)  # the last value stays in force
            return None
        self._written, self.unreadable = found, None
        return value

    async def restore(self) -> None:
        """Write the file again if it was deleted."""
        if self.path is None or not self._written or self._hangs():
            return
        call = self._call = in_thread(partial(_restore, self.path, self._written))
        call.add_done_callback(partial(self._settle_restored, self._written))
        await self._ended(_WRITE_S)

    def fault(self) -> UnwritableMemory | None:
        """Return why the last write failed or the file cannot be read, if that is so."""
        path, loss = str(self.path), self.form.loss
        if self.unwritable is not None:
            return UnwritableMemory(path, self.unwritable, loss)
        if self.unreadable is not None:
            return UnwritableMemory(path, self.unreadable, loss, broken=True, known=bool(self._written))
        return None

    def _hangs(self) -> bool:
        return self._call is not None and not self._call.done()

    async def _ended(self, limit_s: float) -> bool:
        """Wait for the last call. Return whether it has ended."""
        assert self._call is not None
        await asyncio.wait((self._call,), timeout=limit_s)
        if self._hangs():
            self._complain(f"the disk did not answer within {limit_s:g} s")
        return not self._hangs()

    def _settle(self, text: bytes, call: asyncio.Future[Any]) -> None:
        error = call.exception()
        if error is None:
            self._written, self.unwritable, self.unreadable = text, None, None
        else:
            self._complain(getattr(error, "strerror", None) or str(error))

    def _settle_restored(self, text: bytes, call: asyncio.Future[bool]) -> None:
        """A file that is still there says nothing about the last write."""
        if call.exception() is not None or call.result():
            self._settle(text, call)

    def _complain(self, reason: str) -> None:
        if self.unwritable is None:
            log.warning(
                "The %s cannot be written, so after a restart %s; %s. file=%s reason=%r",
                self.form.content,
                self.form.loss,
                self.form.remedy,
                self.path,
                reason,
            )
        self.unwritable = reason


def _replace(path: Path, text: bytes) -> None:
    remove_abandoned(path.parent, path.name)
    replace_file(path, text, durable=True)


def _restore(path: Path, text: bytes) -> bool:
    """Return whether the file was written."""
    remove_abandoned(path.parent, path.name)
    if path.exists():
        return False
    replace_file(path, text, durable=True)
    log.warning("A stored file was deleted, and is written again. file=%s", path)
    return True


async def keep_files(files: Iterable[StoredFile[Any]]) -> None:
    """Restore the files every ``RESTORE_S``, until cancelled."""
    while True:
        await asyncio.sleep(RESTORE_S)
        for file in files:
            await file.restore()


def unwritable(files: Iterable[StoredFile[Any]]) -> tuple[UnwritableMemory, ...]:
    """Return the files whose last write failed, or that cannot be read."""
    return tuple(fault for file in files if (fault := file.fault()) is not None)
