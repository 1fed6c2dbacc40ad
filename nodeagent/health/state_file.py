"""The state file: the damping penalties and active faults that survive a restart of the agent.

* Its times are CLOCK_BOOTTIME, so a file of another boot is not used: a reboot clears all faults.
* A device is its PCI address and an identity that stays the same while it is plugged in (the permanent MAC address of
  a NIC, the UUID of a GPU). A record of another card in the same slot is not used.
* Writes are at least ``RESTART_GAP_S`` apart: a flapping fault must not wear the disk.

Each section (``nic``, ``gpu``) holds one record per device, as msgspec reads and writes it::

    state_file = StateFile.open(folder)
    records = state_file.load("gpu", GpuRecord)   # {DeviceIdentity("0000:1b:00.0", "GPU-…"): GpuRecord(…)}
    state_file.store("gpu", records)
    await state_file.run()                        # write changes until cancelled, and then once more
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from nodeagent.base.stored_file import StoredFile, StoredForm

log = logging.getLogger(__name__)

RESTART_GAP_S = 5.0
_WRITE_S = 5.0
"""Nobody waits for this file: a slow disk has more time than with the files that the kubelet's devices wait for."""
_VERSION = 1

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


HEALTH_FORM = StoredForm(
    name="health.json",
    type=_File,
    content="health records",
    loss="active faults and penalties are lost",
    version=_VERSION,
    of_boot=True,
    encode=msgspec.json.encode,
)


class StateFile:
    """The records, read once at the start. Belongs to one event loop."""

    def __init__(self, file: StoredFile[_File] | None = None) -> None:
        """Without ``file`` nothing is written: for a single look and for a replay."""
        self.file = file or StoredFile(None, HEALTH_FORM)
        self._sections: dict[str, dict[DeviceIdentity, bytes]] = {}
        self._changed = asyncio.Event()

    @classmethod
    def open(cls, folder: Path) -> StateFile:
        """Read the state file in this folder, which need not exist. Blocks: call it at the start only."""
        state_file = cls(StoredFile(folder, HEALTH_FORM))
        if (content := state_file.file.read()) is not None:
            for entry in content.entries:
                device = DeviceIdentity(entry.pci_address, entry.identity)
                state_file._sections.setdefault(entry.room, {})[device] = bytes(entry.value)
        return state_file

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

    async def run(self) -> None:
        """Write changes until cancelled, and then the last ones."""
        try:
            while True:
                await self._changed.wait()
                self._changed.clear()
                await self.file.save(self.content(), _WRITE_S)
                await asyncio.sleep(RESTART_GAP_S)
        finally:
            # The tasks that are cancelled together with this one store their last records.
            await asyncio.sleep(0)
            await self.file.save(self.content(), _WRITE_S)  # an unchanged file costs nothing

    def content(self) -> _File:
        """Return what is written."""
        entries = [
            _Entry(section, *device, msgspec.Raw(record))
            for section, records in sorted(self._sections.items())
            for device, record in sorted(
                records.items(), key=lambda entry: (entry[0].pci_address, entry[0].identity or "")
            )
        ]
        return _File(_VERSION, self.file.boot or "", entries)
