"""The files that containers need, and which of them cannot be written at present.

A VF needs a device-info file at each allocation; a device of the agent's own CDI specs needs its spec on the disk.
While such a file cannot be written, each pod with the device fails on a node that looks healthy. So the offer leaves
out the resource until the file can be written. A file that is on the disk and needs no change is no obstacle.

The folders are tried every ``CHECK_S``, after each failed allocation, and every ``RETRY_S`` while one fails. A thread
writes; if the file system does not answer within ``WRITE_S``, this counts as a failure until the thread returns.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping

from nodeagent.bounded_calls import BoundedCalls, Unanswered
from nodeagent.kinds import DEVICE_INFO_FILES, DeviceKind
from nodeagent.kubelet.cdi_files import CdiSpecFiles, needed_by
from nodeagent.kubelet.device_info import DeviceInfoFiles
from nodeagent.kubelet.withheld import UnwritableFile
from nodeagent.model import Allocation, DeviceInfo, Snapshot

log = logging.getLogger(__name__)

CDI_SPECS = "cdi"

CHECK_S = 10.0
RETRY_S = 1.0
WRITE_S = 1.0
"""A local file is written in a millisecond; a disk that takes longer hangs."""

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
}


class OfferFiles:
    """The device-info files and CDI specs that must be on the disk before an allocation is answered.

    Belongs to one event loop; ``write`` runs in a thread.
    """

    def __init__(self, device_info: DeviceInfoFiles, cdi_specs: CdiSpecFiles) -> None:
        self.device_info = device_info
        self.cdi_specs = cdi_specs
        self.failed = asyncio.Event()
        """Set when a file of an allocation could not be written."""
        self._unwritten: dict[str, tuple[DeviceInfo, ...]] = {}
        """The device-info files of a failed allocation, by resource: tried again until they are written."""
        self._failures: dict[str, UnwritableFile] = {}
        """By what needs the file: a CDI kind, ``DEVICE_INFO_FILES``, or one resource."""
        self._calls = {
            what: BoundedCalls(source, WRITE_S, self.failed.set)
            for what, source in ((CDI_SPECS, "CDI specs"), (DEVICE_INFO_FILES, "device-info files"))
        }
        self._next_at = -1.0

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

    # --- an allocation --------------------------------------------------------------------------------

    def due(self, allocation: Allocation) -> bool:
        return bool(allocation.device_info or needed_by(allocation))

    def write(self, allocation: Allocation) -> None:
        """Write the files. Blocks; raises ``OSError`` with the name of the file that cannot be written."""
        self.device_info.write(allocation.device_info)
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
        if not self.cdi_specs.looked:
            await self._attempt(CDI_SPECS, self._look)
        kinds = tuple(kinds)
        self.cdi_specs.update(kinds, snapshot)
        if not (
            self.failed.is_set() or self.pause_s == 0 or (self.cdi_specs.differs() and not self._failures)
        ):
            return
        self.failed.clear()
        needed = frozenset[str]().union(*(kind.needed_files(snapshot) for kind in kinds))
        unwritten = dict(self._unwritten)
        found = await self._attempt(CDI_SPECS, self.cdi_specs.flush)
        if DEVICE_INFO_FILES in needed:
            found = {
                **found,
                **await self._attempt(DEVICE_INFO_FILES, lambda: self._try_device_info(unwritten)),
            }
        for resource, files in unwritten.items():
            tried = DEVICE_INFO_FILES not in found and resource not in found
            if tried and self._unwritten.get(resource) == files:
                del self._unwritten[resource]
        self._take({need: _described(error) for need, error in found.items()})
        self._next_at = time.monotonic() + (RETRY_S if found else CHECK_S)

    def _look(self) -> Mapping[str, OSError]:
        self.cdi_specs.look()
        return {}

    def _try_device_info(self, unwritten: Mapping[str, tuple[DeviceInfo, ...]]) -> Mapping[str, OSError]:
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

    async def _attempt(self, what: str, work: Callable[[], Mapping[str, OSError]]) -> Mapping[str, OSError]:
        """Run ``work`` in a thread. While it does not answer, its files count as unwritable."""
        try:
            return await self._calls[what].run(work)
        except Unanswered:
            return self._silent(what)

    def _silent(self, what: str) -> Mapping[str, OSError]:
        if what == DEVICE_INFO_FILES:
            return {what: _timed_out(self.device_info.folder)}
        return {name: _timed_out(path) for name, path in self.cdi_specs.paths().items()}

    def _take(self, failures: dict[str, UnwritableFile]) -> None:
        before, self._failures = self.unwritable, failures
        for failure in self.unwritable:
            if failure not in before:
                log.error(
                    "The resources that need a file are withheld: it cannot be written. reason=%r",
                    str(failure),
                )
        for failure in before:
            if failure.path not in {now.path for now in self.unwritable}:
                log.info("The file can be written again. file=%s", failure.path)


def _timed_out(path: object) -> OSError:
    return OSError(errno.ETIMEDOUT, "the file system does not answer", str(path))


def _described(error: OSError) -> UnwritableFile:
    number = error.errno or 0
    remedy = _REMEDIES.get(number, "make it writable")
    return UnwritableFile(
        str(error.filename), errno.errorcode.get(number, "EIO"), error.strerror or os.strerror(number), remedy
    )
