"""What must survive a restart of the agent: damping penalties and latched faults, in one small file.

The law of this file:

* It is written whole or not at all: to a temporary name, synced, renamed, and the folder synced.
* Times in it are CLOCK_BOOTTIME, so what another boot wrote means nothing and is not read: a reboot clears.
* A device is its PCI address and an identity that does not change while it is plugged in (a NIC's permanent
  MAC address, a GPU's UUID). What is remembered of another card in the same slot is not recalled.
* A file that is broken, foreign or of another boot is left out with one log line. One that cannot be written is
  told of once, and everything else goes on.
* Writes are at least ``GAP_S`` apart: a fault that comes and goes wears out no disk.

Each room (``nic``, ``gpu``) keeps a value of its own kind for each device, as msgspec reads and writes it::

    memory = Memory.open(folder)
    latches = memory.recall("gpu", Latches)      # {Who("0000:1b:00.0", "GPU-…"): Latches(…)}
    memory.keep("gpu", {Who("0000:1b:00.0", "GPU-…"): Latches(…)})
    await memory.run()                           # writes what changed, until cancelled, and then once more
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from nodeagent.host.file_writing import replace_file

log = logging.getLogger(__name__)

NAME = "health.json"
GAP_S = 5.0
SIZE_MAX = 4 * 1024 * 1024
"""Nobody's eight GPUs and NICs come near; a file beyond it is not ours."""
_VERSION = 1
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

T = TypeVar("T")


class Who(NamedTuple):
    """A device. ``identity`` is ``None`` where it could not be told, which fits any."""

    pci_address: str
    identity: str | None = None

    def is_(self, other: Who) -> bool:
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


class Memory:
    """What rooms remember, read once at the start. Belongs to one event loop."""

    def __init__(self, path: Path | None, boot_id: str | None) -> None:
        self._path = path
        self._boot_id = boot_id
        self._kept: dict[str, dict[Who, bytes]] = {}
        self._changed = asyncio.Event()
        self._complained = False
        self._writing = threading.Lock()
        self._written = b""

    @classmethod
    def open(cls, folder: Path) -> Memory:
        """The memory in this folder, which need not exist. Reads a file: at the start only."""
        memory = cls(folder / NAME, boot_id())
        memory._load()
        return memory

    @classmethod
    def none(cls) -> Memory:
        """One that writes nothing, for a look and for a replay."""
        return cls(None, None)

    def recall(self, room: str, type_: type[T]) -> dict[Who, T]:
        """What the room kept. An entry that is not of this type is left out with a log line."""
        recalled = {}
        for who, value in self._kept.get(room, {}).items():
            try:
                recalled[who] = msgspec.json.decode(value, type=type_)
            except (msgspec.MsgspecError, ValueError, RecursionError) as error:
                log.warning(
                    "What was remembered of a device is not understood and left out. room=%s device=%s reason=%r",
                    room,
                    who.pci_address,
                    str(error),
                )
        return recalled

    def keep(self, room: str, values: Mapping[Who, Any]) -> None:
        """Remember exactly these for the room; an equal answer writes nothing."""
        kept = {who: msgspec.json.encode(value) for who, value in values.items()}
        if kept != self._kept.get(room, {}):
            self._kept[room] = kept
            self._changed.set()

    async def run(self) -> None:
        """Write what changed, until cancelled; then write once more what has not been written."""
        try:
            while True:
                await self._changed.wait()
                self._changed.clear()
                await asyncio.to_thread(self._write, self._text())
                await asyncio.sleep(GAP_S)
        finally:
            self._write(self._text())  # the thread may not have begun; what is written already costs nothing

    def _text(self) -> bytes:
        entries = [
            _Entry(room, *who, msgspec.Raw(value))
            for room, values in sorted(self._kept.items())
            for who, value in sorted(
                values.items(), key=lambda one: (one[0].pci_address, one[0].identity or "")
            )
        ]
        return msgspec.json.encode(_File(_VERSION, self._boot_id or "", entries))

    def _write(self, text: bytes) -> None:
        if self._path is None or self._boot_id is None:
            return
        with self._writing:  # the last write may meet one that is under way in its thread
            if text == self._written:
                return
            try:
                replace_file(self._path, text, durable=True)
            except OSError as error:
                if not self._complained:
                    log.warning(
                        "What is remembered of faults cannot be written and will be forgotten at a restart; mount "
                        "a writable folder there or set health.stateDirectory. file=%s reason=%r",
                        self._path,
                        error.strerror,
                    )
                self._complained = True
            else:
                self._written, self._complained = text, False

    def _load(self) -> None:
        if self._path is None or self._boot_id is None:
            return
        try:
            with self._path.open("rb") as file:
                text = file.read(SIZE_MAX + 1)
            if len(text) > SIZE_MAX:
                raise ValueError(f"it is larger than {SIZE_MAX} bytes")
            found = msgspec.json.decode(text, type=_File)
            if found.version != _VERSION:
                raise ValueError(f"it is of version {found.version}, this agent reads {_VERSION}")
        except FileNotFoundError:
            return
        except (OSError, ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
            log.warning(
                "What an earlier agent remembered of faults cannot be read and is left out. file=%s reason=%r",
                self._path,
                str(error),
            )
            return
        if found.boot_id != self._boot_id:
            log.info("What was remembered of faults is of an earlier boot and forgotten. file=%s", self._path)
            return
        for entry in found.entries:
            who = Who(entry.pci_address, entry.identity)
            self._kept.setdefault(entry.room, {})[who] = bytes(entry.value)
        self._written = text


def boot_id() -> str | None:
    """Of the kernel whose clock is read: never that of a captured or simulated machine."""
    try:
        return _BOOT_ID.read_text().strip() or None
    except OSError:
        return None
