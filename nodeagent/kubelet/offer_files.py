"""The files that containers need, and which of them cannot be written at present.

A VF needs a device-info file at each allocation; a device of the agent's own CDI specs needs its spec on the disk, and
a container that is told its pairs mounts a script, which stays for its restarts.
While such a file cannot be written, each pod with the device fails on a node that looks healthy. So the offer leaves
out the resource until the file can be written. A file that is on the disk and needs no change is no obstacle.

The folders are tried every ``FILES_CHECK_S``, after each failed allocation, and every ``FILES_RETRY_S`` while one
fails. A thread writes. At the start, what needs a file is withheld after ``_START_S`` without an answer: nothing of it
is offered yet. Later the offer continues after ``MOMENT_S``. A file system without an answer for ``HANGS_S`` counts as
a failure until the thread returns. A machine under load is slow, and pods need its devices.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

from nodeagent.attach.attach_stamps import AttachStamps
from nodeagent.base.bounded_calls import BoundedCalls, Unanswered
from nodeagent.base.file_writing import replace_changed_file
from nodeagent.facts.allocation import Allocation, DeviceInfo
from nodeagent.facts.model import Holding, Snapshot
from nodeagent.kinds import DEVICE_INFO_FILES, TELL_FILE, DeviceKind
from nodeagent.kinds.tell_script import script
from nodeagent.kubelet.cdi_files import CdiSpecFiles, needed_by
from nodeagent.kubelet.device_info import DeviceInfoFiles
from nodeagent.kubelet.withheld import UnwritableFile

log = logging.getLogger(__name__)

CDI_SPECS = "cdi"

FILES_CHECK_S = 10.0
FILES_RETRY_S = 1.0
MOMENT_S = 0.1
"""A local file is written in a millisecond; news for the kubelet waits no longer."""
_START_S = 1.0
HANGS_S = 5.0
SWEEP_S = 5.0
"""For the files of an earlier agent."""

_REMEDIES = {
    errno.ENOSPC: "free space or inodes there",
    errno.EDQUOT: "raise the quota there",
    errno.EROFS: "mount it read-write",
    errno.EACCES: "let the agent write there",
    errno.EPERM: "let the agent write there",
    errno.EEXIST: "remove the file in the place of its folder",
    errno.ENOTDIR: "remove the file in the place of its folder",
    errno.EISDIR: "remove the folder in its place",
    errno.ENOTEMPTY: "remove the folder in its place",
    errno.ETIMEDOUT: "its mount does not answer: mount it again",
    errno.EINPROGRESS: "wait; if this lasts, its mount does not answer",
}


class OfferFiles:
    """The device-info files and CDI specs that must be on the disk before an allocation is answered.

    Belongs to one event loop; ``write`` runs in a thread.
    """

    def __init__(
        self,
        device_info: DeviceInfoFiles,
        cdi_specs: CdiSpecFiles,
        stamps: AttachStamps | None = None,
        tell_script: Path | None = None,
    ) -> None:
        """``stamps`` are for VFs that `nodeagent attach` moves into pods, ``tell_script`` is the place of the script of
        ``kinds.tell_script``."""
        self._stamps = stamps
        self.device_info = device_info
        self.cdi_specs = cdi_specs
        self.failed = asyncio.Event()
        """Set when a file of an allocation could not be written."""
        self._unwritten: dict[str, tuple[DeviceInfo, ...]] = {}
        """The device-info files of a failed allocation, by resource: tried again until they are written."""
        self._failures: dict[str, UnwritableFile] = {}
        """By what needs the file: a CDI kind, ``DEVICE_INFO_FILES``, ``TELL_FILE``, or one resource."""
        self._folders = {
            what: _WrittenFolder(BoundedCalls(source, HANGS_S, self.failed.set))
            for what, source in (
                (CDI_SPECS, "CDI specs"),
                (DEVICE_INFO_FILES, "device-info files"),
                (TELL_FILE, "script of pairs"),
            )
        }
        self._tell_script = tell_script
        self._next_at = -1.0
        self._swept = False

    @property
    def unwritable(self) -> tuple[UnwritableFile, ...]:
        return tuple(dict.fromkeys(failure for _, failure in sorted(self._failures.items())))

    def obstacle(self, kind: DeviceKind, snapshot: Snapshot) -> UnwritableFile | None:
        """Return the file that keeps this kind from being offered, if there is one."""
        if not self._failures:
            return None
        needed = (*sorted(kind.needed_files(snapshot)), kind.resource)
        return next((self._failures[need] for need in needed if need in self._failures), None)

    @property
    def pause_s(self) -> float:
        """The time until the folders are tried again."""
        return max(0.0, self._next_at - time.monotonic())

    async def remove_stale(self, prefix: str, holdings: Iterable[Holding] | None) -> None:
        """Remove, once, the device-info files of an earlier agent whose names begin with ``prefix``.

        Those of held devices stay. ``holdings`` is ``None`` while it is not known what pods hold.
        """
        if holdings is None or self._swept:
            return
        self._swept = True
        held = (
            f"{holding.resource.replace('/', '-')}-{id_}-device.json"
            for holding in holdings
            for id_ in holding.device_ids
        )
        sweep = BoundedCalls("stale device-info files", SWEEP_S)
        try:
            removed = await sweep.run(self.device_info.remove_stale, prefix, tuple(held))
        except OSError as error:  # the files harm no pod; the log has a call without an answer
            if not isinstance(error, Unanswered):
                log.warning("Device-info files of an earlier agent stay. reason=%r", str(error))
            return
        for name in removed:
            log.info("A device-info file of an earlier agent was removed. file=%s", name)

    # --- an allocation --------------------------------------------------------------------------------

    def stamped(self, allocation: Allocation) -> Allocation:
        """The allocation as it is written and answered."""
        return allocation if self._stamps is None else self._stamps.stamped(allocation)

    def due(self, allocation: Allocation) -> bool:
        return bool(allocation.device_info or needed_by(allocation))

    def write(self, allocation: Allocation) -> None:
        """Write the files. Blocks; raises ``OSError`` with the name of the file that cannot be written."""
        self.device_info.write(allocation.device_info)
        if self._stamps is not None:
            self._stamps.write(allocation)
        if needed := needed_by(allocation):
            failures = self.cdi_specs.flush()
            for name in sorted(needed & failures.keys()):
                raise failures[name]

    def take_failure(self, resource: str, allocation: Allocation) -> None:
        """Take note that the files of an allocation could not be written."""
        if allocation.device_info:
            self._unwritten[resource] = allocation.device_info
        self.failed.set()

    # --- the offer ------------------------------------------------------------------------------------

    async def prepare(self, kinds: Iterable[DeviceKind], snapshot: Snapshot) -> None:
        """Write the CDI specs of these kinds, and try the folders that they need, if it is time."""
        specs, kinds = self._folders[CDI_SPECS], tuple(kinds)
        if not self.cdi_specs.looked:
            await specs.attempt(self._look, _START_S)
        self.cdi_specs.update(kinds, snapshot)
        differs = self.cdi_specs.differs()
        if not (self.failed.is_set() or self.pause_s == 0 or (differs and not self._failures)):
            return
        self.failed.clear()
        self._next_at = -1.0  # a caller that is cancelled before the end leaves it to the next one
        found = dict[str, OSError]()
        if self.cdi_specs.looked:
            found |= await specs.attempt(self._write_specs, _START_S if differs else MOMENT_S)
        late = _timed_out if specs.tried and not self.cdi_specs.looked else _not_yet
        found = {**late(self.cdi_specs.unwritten()), **found}
        if any(DEVICE_INFO_FILES in kind.needed_files(snapshot) for kind in kinds):
            folder = self._folders[DEVICE_INFO_FILES]
            found |= await folder.attempt(self._try_device_info, MOMENT_S if folder.tried else _START_S)
            if not folder.tried:
                found |= _not_yet({DEVICE_INFO_FILES: self.device_info.folder})
        programs = {name for kind in kinds for name in kind.tells}
        if programs and self._tell_script is not None:
            folder, path = self._folders[TELL_FILE], self._tell_script
            attempt = partial(self._write_script, path, script(programs))
            found |= await folder.attempt(attempt, MOMENT_S if folder.tried else _START_S)
            if not folder.tried:
                found |= _not_yet({TELL_FILE: path})
        self._take({need: described(error) for need, error in found.items()})
        waits = found or any(folder.busy for folder in self._folders.values())
        self._next_at = time.monotonic() + (FILES_RETRY_S if waits else FILES_CHECK_S)

    async def _look(self) -> Mapping[str, OSError]:
        with suppress(Unanswered):
            await self._folders[CDI_SPECS].calls.run(self.cdi_specs.look)
        return {}

    async def _write_specs(self) -> Mapping[str, OSError]:
        try:
            return await self._folders[CDI_SPECS].calls.run(self.cdi_specs.flush)
        except Unanswered:
            return _timed_out(self.cdi_specs.paths())

    async def _try_device_info(self) -> Mapping[str, OSError]:
        unwritten = dict(self._unwritten)
        try:
            found = await self._folders[DEVICE_INFO_FILES].calls.run(self._write_device_info, unwritten)
        except Unanswered:
            return _timed_out({DEVICE_INFO_FILES: self.device_info.folder})
        for resource, files in unwritten.items():
            written = DEVICE_INFO_FILES not in found and resource not in found
            if written and self._unwritten.get(resource) == files:
                del self._unwritten[resource]
        return found

    async def _write_script(self, path: Path, text: str) -> Mapping[str, OSError]:
        try:
            await self._folders[TELL_FILE].calls.run(_put_script, path, text.encode())
        except Unanswered:
            return _timed_out({TELL_FILE: path})
        except OSError as error:
            return {TELL_FILE: error}
        return {}

    def _write_device_info(self, unwritten: Mapping[str, tuple[DeviceInfo, ...]]) -> Mapping[str, OSError]:
        try:
            self.device_info.try_writing()
        except OSError as error:
            return {DEVICE_INFO_FILES: error}
        failures = {}
        for resource, files in unwritten.items():
            try:
                self.device_info.write(files)
            except OSError as error:
                failures[resource] = error
        return failures

    def _take(self, failures: dict[str, UnwritableFile]) -> None:
        before, self._failures = self.unwritable, failures
        for failure in self.unwritable:
            if failure not in before:
                slow = failure.error == errno.errorcode[errno.EINPROGRESS]
                log.log(
                    logging.INFO if slow else logging.ERROR,
                    "The resources that need a file are withheld: it cannot be written. reason=%r",
                    str(failure),
                )
        for failure in before:
            if failure.path not in {now.path for now in self.unwritable}:
                log.info("The file can be written again. file=%s", failure.path)


class _WrittenFolder:
    """A folder of files, and the present attempt to write there."""

    def __init__(self, calls: BoundedCalls) -> None:
        self.calls = calls
        self.tried = False
        """An attempt has ended."""
        self._found: Mapping[str, OSError] = {}
        self._attempt: asyncio.Future[Mapping[str, OSError]] | None = None

    @property
    def busy(self) -> bool:
        return self._attempt is not None

    async def attempt(
        self, attempt: Callable[[], Awaitable[Mapping[str, OSError]]], wait_s: float
    ) -> Mapping[str, OSError]:
        """Return what the attempt found; if it takes longer than ``wait_s``, what the one before it found."""
        if self._attempt is None:
            self._attempt = asyncio.ensure_future(attempt())
        await asyncio.wait((self._attempt,), timeout=wait_s)
        if self._attempt.done():
            ended, self._attempt = self._attempt, None
            self._found, self.tried = ended.result(), True
        return self._found


def _put_script(path: Path, content: bytes) -> None:
    replace_changed_file(path, content, mode=0o644)


def _timed_out(paths: Mapping[str, Path]) -> dict[str, OSError]:
    reason = "the file system does not answer"
    return {need: OSError(errno.ETIMEDOUT, reason, str(path)) for need, path in paths.items()}


def _not_yet(paths: Mapping[str, Path]) -> dict[str, OSError]:
    """For a disk that is slow at the start, which is not a fault of the machine yet."""
    reason = "the file system has not answered yet"
    return {need: OSError(errno.EINPROGRESS, reason, str(path)) for need, path in paths.items()}


def described(error: OSError) -> UnwritableFile:
    """The file of the error, what is wrong with it, and what to do."""
    number = error.errno or 0
    remedy = _REMEDIES.get(number, "make it writable")
    return UnwritableFile(
        str(error.filename), errno.errorcode.get(number, "EIO"), error.strerror or os.strerror(number), remedy
    )
