"""The GPU driver of a captured or simulated machine, from ``/.nodeagent/gpus.json`` under its root.

It has the interface of ``host/nvml.py``. The file may be replaced at any time, which ends a wait. Events that are in
the file when it is opened are not returned; ``sequence`` only grows. ``failure`` makes the driver fail like a real
one: in ``init``, ``list``, ``vitals`` or ``wait``. For any content of the file only ``DriverError`` is raised.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import time
from pathlib import Path
from typing import Literal

import msgspec

from nodeagent.base.regular_file import read_regular
from nodeagent.host.gpu_driver import DriverError, GpuEvent, GpuProcess, GpuReading, GpuVitals
from nodeagent.host.nvml_vitals import plausible_vitals
from nodeagent.host.sysfs import GPUS

PATH = GPUS

_IN_CLOSE_WRITE, _IN_MOVED_TO, _IN_DELETE = 0x08, 0x80, 0x200
_IN_NONBLOCK_CLOEXEC = os.O_NONBLOCK | os.O_CLOEXEC


class _Process(msgspec.Struct, frozen=True):
    pid: int
    memory_bytes: int | None = None
    utilization: float | None = None


class _Gpu(GpuReading, frozen=True):
    """A ``GpuReading`` and the ``GpuVitals`` of the same GPU."""

    values: dict[str, float] = msgspec.field(default_factory=dict)
    texts: dict[str, str] = msgspec.field(default_factory=dict)
    processes: tuple[_Process, ...] | None = None


class _Event(msgspec.Struct, frozen=True):
    sequence: int
    uuid: str | None
    xid: int | None
    unavailable: bool = False


class _Failure(msgspec.Struct, frozen=True):
    call: Literal["init", "list", "vitals", "wait"]
    error: str


class _Recording(msgspec.Struct, frozen=True):
    driver_version: str | None = None
    cuda_version: str | None = None
    failure: _Failure | None = None
    gpus: tuple[_Gpu, ...] = ()
    excluded: frozenset[str] = frozenset()
    """PCI addresses."""
    events: tuple[_Event, ...] = ()

    def fail(self, call: str) -> None:
        if self.failure is not None and self.failure.call == call:
            raise DriverError(self.failure.error)

    def newest(self) -> int:
        return max((event.sequence for event in self.events), default=0)


class RecordedGpuDriver:
    """The driver of the machine under ``root``."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self._path = Path(root) / PATH.lstrip("/")
        self._watch: int | None = None
        self._sequence = 0
        """The sequence number of the last returned event."""
        self._read = False
        """Whether the file was read since it is watched."""
        self._loaded: tuple[bytes, _Recording] | None = None

    def open(self) -> None:
        recording = self._load()
        recording.fail("init")
        self.close()
        self._watch, self._read = _watch(self._path.parent), False
        self._sequence = recording.newest()

    def close(self) -> None:
        watch, self._watch = self._watch, None
        if watch is not None:
            os.close(watch)

    def version(self) -> str | None:
        return self._load().driver_version

    def gpus(self) -> tuple[GpuReading, ...]:
        recording = self._load()
        recording.fail("list")
        return tuple(
            GpuReading(*(getattr(gpu, field) for field in GpuReading.__struct_fields__))
            for gpu in sorted(recording.gpus, key=lambda gpu: gpu.index)
        )

    def excluded(self) -> frozenset[str]:
        return self._load().excluded

    def vitals(self) -> tuple[GpuVitals, ...]:
        recording = self._load()
        recording.fail("vitals")
        return tuple(
            plausible_vitals(
                gpu.uuid,
                gpu.values,
                gpu.texts,
                None
                if gpu.processes is None
                else tuple(
                    GpuProcess(process.pid, process.memory_bytes, process.utilization)
                    for process in gpu.processes
                ),
            )
            for gpu in sorted(recording.gpus, key=lambda gpu: gpu.index)
            if gpu.uuid is not None and not gpu.lost
        )

    def any_lost(self) -> bool:
        """A replaced file ends a wait, so there is nothing to look for."""
        return False

    def has_events(self) -> bool:
        """A replaced file ends a wait."""
        return True

    def wait(self, timeout_s: float) -> tuple[GpuEvent, ...]:
        """A file replaced without a new event gives one event without an XID: the GPUs should be read again."""
        if self._watch is None:
            raise DriverError(f"{PATH} is not open")
        until = time.monotonic() + timeout_s
        changed = False
        while True:
            if changed or not self._read:
                events = self._events()
                self._read = True
                if events:
                    return events
            if changed:
                return (GpuEvent(None, None),)
            left = until - time.monotonic()
            if not select.select([self._watch], [], [], max(0.0, left))[0]:
                return ()
            changed = self._drain()

    def _events(self) -> tuple[GpuEvent, ...]:
        recording = self._load()
        recording.fail("wait")
        new = sorted(
            (event for event in recording.events if event.sequence > self._sequence),
            key=lambda event: event.sequence,
        )
        self._sequence = max(self._sequence, recording.newest())
        return tuple(GpuEvent(event.uuid, event.xid, event.unavailable) for event in new)

    def _drain(self) -> bool:
        """Empty the inotify queue; true if one of its records concerns the recording."""
        assert self._watch is not None
        name = self._path.name.encode()
        try:
            # A search for the name needs no parsing of records; a longer name that contains it costs one reading.
            return name in os.read(self._watch, 65536)
        except BlockingIOError:
            return False

    def _load(self) -> _Recording:
        try:
            raw = read_regular(self._path)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise DriverError(
                f"{PATH} does not exist; this machine has no recorded GPUs", absent=True
            ) from error
        except OSError as error:
            raise DriverError(f"{PATH} cannot be read: {error.strerror or error}") from error
        if self._loaded is not None and self._loaded[0] == raw:
            return self._loaded[1]
        try:
            self._loaded = raw, msgspec.json.decode(raw, type=_Recording)
            return self._loaded[1]
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise DriverError(f"{PATH} is not a recording of GPUs: {error}") from error


def record(
    readings: tuple[GpuReading, ...],
    version: str | None,
    cuda_version: str | None = None,
    vitals: tuple[GpuVitals, ...] = (),
) -> str:
    """The text of a recording: ``RecordedGpuDriver`` reads the same values from it, without the processes."""
    names = [field.name for field in msgspec.structs.fields(GpuReading)]
    measured = {gpu.uuid: {"values": gpu.values, "texts": gpu.texts} for gpu in vitals}
    gpus = [
        {name: getattr(reading, name) for name in names} | measured.get(reading.uuid or "", {})
        for reading in readings
    ]
    content = {
        "driver_version": version,
        "cuda_version": cuda_version,
        "failure": None,
        "gpus": gpus,
        "events": [],
    }
    return json.dumps(msgspec.to_builtins(content), indent=2) + "\n"


def _watch(folder: Path) -> int:
    """inotify for a blocking thread: a descriptor that becomes readable when a file in the folder is replaced."""
    libc = ctypes.CDLL(None, use_errno=True)
    watch = libc.inotify_init1(_IN_NONBLOCK_CLOEXEC)
    if watch < 0:
        raise DriverError(f"inotify: {os.strerror(ctypes.get_errno())}; raise fs.inotify.max_user_instances")
    mask = ctypes.c_uint32(_IN_CLOSE_WRITE | _IN_MOVED_TO | _IN_DELETE)
    if libc.inotify_add_watch(watch, os.fsencode(folder), mask) < 0:
        error = ctypes.get_errno()
        os.close(watch)
        raise DriverError(f"inotify on {folder}: {os.strerror(error)}; raise fs.inotify.max_user_watches")
    return int(watch)
