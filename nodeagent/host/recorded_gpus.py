"""The GPUs of a captured or simulated machine, from ``/.nodeagent/gpus.json`` under its root.

The same driver as ``host/nvml.py`` and as live as one: the file may be replaced at any moment, and a wait
ends as soon as it is. Events that stand in the file when it is opened are history and are not told again;
``sequence`` only grows. ``failure`` makes the driver fail as a real one does: in ``init``, ``list``,
``vitals`` or ``wait``. Whatever the file holds, only ``DriverError`` leaves here.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import time
from dataclasses import fields
from pathlib import Path
from typing import Literal

import msgspec

from nodeagent.host.gpu_driver import DriverError, GpuEvent, GpuProcess, GpuReading, GpuVitals
from nodeagent.host.nvml_vitals import plausible

PATH = "/.nodeagent/gpus.json"
"""Where the recording lies in the machine's root."""

_IN_CLOSE_WRITE, _IN_MOVED_TO, _IN_DELETE = 0x08, 0x80, 0x200
_IN_NONBLOCK_CLOEXEC = os.O_NONBLOCK | os.O_CLOEXEC


class _Process(msgspec.Struct, frozen=True):
    pid: int
    memory_bytes: int | None = None


class _Gpu(msgspec.Struct, frozen=True):
    """The fields of a ``GpuReading``, then those of its ``GpuVitals``."""

    index: int
    uuid: str | None = None
    minor: int | None = None
    name: str | None = None
    pci_address: str | None = None
    memory_mib: int | None = None
    mig: bool = False
    lost: bool = False
    recovery_action: str | None = None
    fault: str | None = None
    values: dict[str, float] = {}
    texts: dict[str, str] = {}
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
    events: tuple[_Event, ...] = ()

    def fail(self, call: str) -> None:
        if self.failure is not None and self.failure.call == call:
            raise DriverError(self.failure.error)

    def newest(self) -> int:
        return max((event.sequence for event in self.events), default=0)


class Recorded:
    """The driver of the machine that lies under ``root``."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self._path = Path(root) / PATH.lstrip("/")
        self._watch: int | None = None
        self._told = 0
        self._looked = False
        """At the file since it is watched."""
        self._loaded: tuple[bytes, _Recording] | None = None

    def open(self) -> None:
        recording = self._load()
        recording.fail("init")
        self.close()
        self._watch, self._looked = _watch(self._path.parent), False
        self._told = recording.newest()

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
            GpuReading(
                index=gpu.index,
                uuid=gpu.uuid,
                minor=gpu.minor,
                name=gpu.name,
                pci_address=gpu.pci_address,
                memory_mib=gpu.memory_mib,
                mig=gpu.mig,
                recovery_action=gpu.recovery_action,
                lost=gpu.lost,
                fault=gpu.fault,
            )
            for gpu in sorted(recording.gpus, key=lambda gpu: gpu.index)
        )

    def vitals(self) -> tuple[GpuVitals, ...]:
        recording = self._load()
        recording.fail("vitals")
        return tuple(
            plausible(
                gpu.uuid,
                gpu.values,
                gpu.texts,
                None
                if gpu.processes is None
                else tuple(GpuProcess(one.pid, one.memory_bytes) for one in gpu.processes),
            )
            for gpu in sorted(recording.gpus, key=lambda gpu: gpu.index)
            if gpu.uuid is not None and not gpu.lost
        )

    def wait(self, timeout_s: float) -> tuple[GpuEvent, ...]:
        """A file replaced without a new event gives one event without an XID: read again."""
        if self._watch is None:
            raise DriverError(f"{PATH} is not open")
        until = time.monotonic() + timeout_s
        changed = False
        while True:
            if changed or not self._looked:
                events = self._events()
                self._looked = True
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
        news = sorted(
            (event for event in recording.events if event.sequence > self._told),
            key=lambda event: event.sequence,
        )
        self._told = max(self._told, recording.newest())
        return tuple(GpuEvent(event.uuid, event.xid, event.unavailable) for event in news)

    def _drain(self) -> bool:
        """Empty the inotify queue; true where one of its records is about our file."""
        assert self._watch is not None
        name = self._path.name.encode()
        try:
            # A record is cut at 16 bytes and its padded name; looking for the name needs no parsing,
            # and a name that merely contains ours costs one reading in vain.
            return name in os.read(self._watch, 65536)
        except BlockingIOError:
            return False

    def _load(self) -> _Recording:
        try:
            raw = self._path.read_bytes()
        except (FileNotFoundError, NotADirectoryError) as error:
            raise DriverError(
                f"{PATH} is not there; this machine has no recorded GPUs", absent=True
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
    """The text of a recording: what ``Recorded`` then reads is what was read here, without the processes."""
    names = [field.name for field in fields(GpuReading)]
    measured = {one.uuid: {"values": one.values, "texts": one.texts} for one in vitals}
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
    return json.dumps(content, indent=2) + "\n"


def _watch(folder: Path) -> int:
    """A blocking thread's inotify: the descriptor that becomes readable when a file here is replaced."""
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
