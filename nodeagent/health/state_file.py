"""The state file: the damping penalties and active faults that survive a restart of the agent.

* The file is replaced as a whole: written to a temporary name, synced and renamed, and the folder synced.
* Its times are CLOCK_BOOTTIME, so a file of another boot is not used: a reboot clears all faults.
* A device is its PCI address and an identity that stays the same while it is plugged in (the permanent MAC address of
  a NIC, the UUID of a GPU). A record of another card in the same slot is not used.
* A file that is broken, of another kind or of another boot is ignored with one log line. A file that cannot be
  written is logged once, and everything else continues.
* Writes are at least ``GAP_S`` apart: a flapping fault must not wear the disk.

Each section (``nic``, ``gpu``) holds one record per device, as msgspec reads and writes it::

    state_file = StateFile.open(folder)
    records = state_file.load("gpu", GpuRecord)   # {DeviceIdentity("0000:1b:00.0", "GPU-…"): GpuRecord(…)}
    state_file.store("gpu", records)
    await state_file.run()                        # write changes until cancelled, and then once more
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from nodeagent.base.bounded_calls import BoundedCalls, Unanswered, within
from nodeagent.base.regular_file import read_regular
from nodeagent.host.file_writing import replace_file
from nodeagent.host.unwritable_memory import UnwritableMemory

log = logging.getLogger(__name__)

NAME = "health.json"
GAP_S = 5.0
READ_S, WRITE_S = 2.0, 5.0
"""A local file takes a millisecond. A disk that hangs must not keep the devices from the kubelet."""
SIZE_MAX = 4 * 1024 * 1024
"""Far more than the records of eight GPUs and NICs; a larger file is not read."""
_VERSION = 1
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

T = TypeVar("T")


class DeviceIdentity(NamedTuple):
    """A device. An ``identity`` of ``None`` is unknown and matches any."""

    pci_address: str
    identity: str | None = None

    def matches(self, other: DeviceIdentity) -> bool:
        same = None in (self.identity, other.identity) or self.identity == other.identity
        return same and self.pci_address == other.pci_address


class _Entry(msgspec.Struct, frozen=True):
    room: str
    pci_address: str
    identity: str | None
    value: msgspec.Raw


class _File(msgspec.Struct, frozen=True):
    version: int
    boot_id: str
    entries: list[_Entry]


class StateFile:
    """The records, read once at the start. Belongs to one event loop."""

    def __init__(self, path: Path | None, boot_id: str | None) -> None:
        self._path = path
        self._boot_id = boot_id
        self._sections: dict[str, dict[DeviceIdentity, bytes]] = {}
        self._changed = asyncio.Event()
        self._unwritable: str | None = None
        """Why the last write failed."""
        self._writing = threading.Lock()
        self._written = b""

    @classmethod
    def open(cls, folder: Path) -> StateFile:
        """Read the state file in this folder, which need not exist. Blocks: call it at the start only."""
        state_file = cls(folder / NAME, boot_id())
        state_file._read()
        return state_file

    @classmethod
    def none(cls) -> StateFile:
        """Return a state file that is empty and never written, for a single look and for a replay."""
        return cls(None, None)

    def load(self, section: str, type_: type[T]) -> dict[DeviceIdentity, T]:
        """Return the records of a section. A record that is not of this type is ignored with a log line."""
        records = {}
        for device, value in self._sections.get(section, {}).items():
            try:
                records[device] = msgspec.json.decode(value, type=type_)
            except (msgspec.MsgspecError, ValueError, RecursionError) as error:
                log.warning(
                    "A record of the state file is invalid and ignored. room=%s device=%s reason=%r",
                    section,
                    device.pci_address,
                    str(error),
                )
        return records

    def store(self, section: str, records: Mapping[DeviceIdentity, Any]) -> None:
        """Replace the records of a section. Equal records cause no write."""
        encoded = {device: msgspec.json.encode(record) for device, record in records.items()}
        if encoded != self._sections.get(section, {}):
            self._sections[section] = encoded
            self._changed.set()

    def fault(self) -> UnwritableMemory | None:
        """Return why the last write failed, if it did."""
        if self._path is None or self._unwritable is None:
            return None
        return UnwritableMemory(str(self._path), self._unwritable, "active faults and penalties are lost")

    async def run(self) -> None:
        """Write changes until cancelled, and then the last ones."""
        writes = BoundedCalls("state file", WRITE_S)
        try:
            while True:
                await self._changed.wait()
                self._changed.clear()
                with suppress(Unanswered):  # the log has it
                    await writes.run(self._write, self._text())
                await asyncio.sleep(GAP_S)
        finally:
            # The tasks that are cancelled together with this one store their last records.
            await asyncio.sleep(0)
            with suppress(Unanswered):
                await writes.run(self._write, self._text())  # an unchanged file costs nothing

    def _text(self) -> bytes:
        entries = [
            _Entry(section, *device, msgspec.Raw(record))
            for section, records in sorted(self._sections.items())
            for device, record in sorted(
                records.items(), key=lambda entry: (entry[0].pci_address, entry[0].identity or "")
            )
        ]
        return msgspec.json.encode(_File(_VERSION, self._boot_id or "", entries))

    def _write(self, text: bytes) -> None:
        if self._path is None or self._boot_id is None:
            return
        with self._writing:  # the last write may run beside one in a thread
            if text == self._written:
                return
            try:
                replace_file(self._path, text, durable=True)
            except OSError as error:
                if self._unwritable is None:
                    log.warning(
                        "The state file cannot be written, so a restart of the agent loses faults; mount a "
                        "writable folder there or set health.stateDirectory. file=%s reason=%r",
                        self._path,
                        error.strerror,
                    )
                self._unwritable = error.strerror or str(error)
            else:
                self._written, self._unwritable = text, None

    def _read(self) -> None:
        if self._path is None or self._boot_id is None:
            return
        try:
            text = within("state file", READ_S, partial(read_regular, self._path, SIZE_MAX))
            content = msgspec.json.decode(text, type=_File)
            if content.version != _VERSION:
                raise ValueError(f"it is of version {content.version}, this agent reads {_VERSION}")
        except FileNotFoundError:
            return
        except (OSError, ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
            log.warning(
                "The state file cannot be read and is ignored. file=%s reason=%r", self._path, str(error)
            )
            return
        if content.boot_id != self._boot_id:
            log.info("The state file is of an earlier boot and ignored. file=%s", self._path)
            return
        for entry in content.entries:
            device = DeviceIdentity(entry.pci_address, entry.identity)
            self._sections.setdefault(entry.room, {})[device] = bytes(entry.value)
        self._written = text


def boot_id() -> str | None:
    """Return the boot ID of the kernel whose clock is read, never that of a captured or simulated machine."""
    try:
        return _BOOT_ID.read_text().strip() or None
    except OSError:
        return None
