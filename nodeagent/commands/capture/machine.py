"""A machine recorded, to be looked at elsewhere with ``--root``: a capture is a scan through a tree that remembers.

The law of this file:

* There is no list of files. What the scan of this version reads, lists or follows is in the capture, and
  nothing else but a few words on where it comes from (``_ORIGIN``). Contents are what was read, and a device
  node or a library, of which only the name is asked, is an empty plain file.
* Of a folder under ``/sys`` that was listed every folder and link stands there, for a listing is an answer
  too: the empty ``net`` of a VF whose netdev a pod has. Links are relative and stay inside.
* What could not be read is kept as that: ``/.nodeagent/unreadable`` names it with its errno, and ``Tree``
  fails there in the same way.
* A capture always holds ``gpus.json``: without, whoever replays it would ask his own driver.
* It holds what was measured at that moment, in ``samples.json``.
* It is whole or not there: written beside its place and renamed.

Scrambling replaces what names one piece of hardware: the last 24 bits of MAC addresses and of what is made
from them (EUI-64, GUIDs, ``enx...`` names), and UUIDs (GPUs', the boot's). Equal stays equal within a capture,
and the maker stays known. Serial numbers are not read at all. IP addresses are, and stay.
"""

from __future__ import annotations

import errno
import json
import os
import re
import secrets
import shutil
import stat
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from hashlib import blake2b
from pathlib import Path

from nodeagent import __version__, discovery
from nodeagent.agent_config import Config
from nodeagent.commands.capture import snapshot
from nodeagent.host import recorded_gpus
from nodeagent.host.gpu_driver import DriverError, GpuReading, GpuVitals
from nodeagent.host.sysfs import NET, UNREADABLE, SysfsError, SysfsScan, Tree
from nodeagent.model import Function
from nodeagent.sampling.recorded_samples import PATH as SAMPLES
from nodeagent.sources import host_paths, nvml_session, pci_source

MARKER = "/.nodeagent/machine.yaml"
_ORIGIN = (
    "/sys/class/dmi/id/sys_vendor",
    "/sys/class/dmi/id/product_name",
    "/proc/sys/kernel/osrelease",
    "/proc/sys/kernel/random/boot_id",
)
_DRIVER_S = 30.0


class CaptureError(Exception):
    """The capture could not be made; nothing of it is left."""


def capture(root: Path, directory: Path, *, scramble: bool) -> str:
    """Record the machine under ``root`` in ``directory``, which is empty or not there yet.

    Answers a summary for a person. Raises ``CaptureError``, and ``SysfsError`` where there is no machine.
    """
    _check(directory)
    tree = Remembering(root)
    facts = pci_source.scan(tree)
    host_paths.look(tree, Config().cdi.directory)
    readings, why = _gpus(tree)
    _also(tree, facts.functions, readings)
    tree.files[SAMPLES] = snapshot.samples(tree, facts.functions)
    tree.files[MARKER] = _marker(tree, scrambled=scramble).encode()
    if tree.unreadable:
        lines = (f"{errno.errorcode[code]} {path}\n" for path, code in sorted(tree.unreadable.items()))
        tree.files[UNREADABLE] = "".join(lines).encode("utf-8", "surrogateescape")
    _write(tree, directory, Scrambler().text if scramble else str)
    vfs = sum(function.parent is not None for function in facts.functions)
    counts = (
        f"{len(readings)} GPUs, {len(facts.functions) - vfs} PFs and {vfs} VFs in {len(tree.files)} files"
    )
    summary = [f"{directory}: {counts}{', scrambled' if scramble else ''}"]
    if why is not None:
        summary.append(f"The GPUs could not be asked, and that is recorded: {why}")
    if tree.unreadable:
        summary.append(f"Of the files {len(tree.unreadable)} could not be read, and that is recorded.")
    return "\n".join([*summary, f"Look at it with: nodeagent scan --root {directory}"])


class Remembering(Tree):
    """A tree that remembers whatever it was asked. Paths are real ones of the machine; those of ``/proc`` are as
    asked, for the kernel's own links there lead to the process that asks."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.files: dict[str, bytes] = {}
        self.links: dict[str, str] = {}
        self.folders: set[str] = set()
        self.unreadable: dict[str, int] = {}
        super().__init__(root)  # which reads already

    def data(self, path: str) -> bytes | None:
        place = self._place(path)
        try:
            content = super().data(path)
        except SysfsError as error:
            self._broken(place, error)
            raise
        if content is not None:
            self.files[place] = content
        return content

    def names(self, path: str) -> tuple[str, ...]:
        place = self._place(path)
        try:
            names = super().names(path)
        except SysfsError as error:
            self._broken(place, error)
            raise
        if Path(self._prefix + place).is_dir():
            self.folders.add(place)
        for name in names if place.startswith("/sys/") else ():
            below = Path(self._prefix + place, name)
            if below.is_symlink():
                self._readlink(f"{place}/{name}")
            elif below.is_dir():
                self.folders.add(f"{place}/{name}")
        return names

    def exists(self, path: str) -> bool:
        self._touch(path)
        return super().exists(path)

    def link(self, path: str) -> str | None:
        name = super().link(path)
        if name is not None:
            folder, _, last = path.rpartition("/")
            self._readlink(f"{self._place(folder)}/{last}")
        return name

    def real(self, path: str) -> str | None:
        self._touch(path)
        return super().real(path)

    def _touch(self, path: str) -> None:
        place = self._place(path)
        try:
            mode = os.lstat(self._prefix + place).st_mode
        except OSError:
            return
        if stat.S_ISDIR(mode):
            self.folders.add(place)
        else:
            self.files.setdefault(place, b"")

    def _place(self, path: str) -> str:
        return path if path.startswith("/proc/") else self._resolve(path)

    def _resolve(self, path: str) -> str:
        return self._walk(path)  # every link on the way is to be remembered

    def _readlink(self, here: str) -> str:
        target = super()._readlink(here)
        if not here.startswith("/proc/"):
            self.links[here] = (
                os.path.relpath(target, os.path.dirname(here)) if target.startswith("/") else target
            )
        return target

    def _broken(self, place: str, error: SysfsError) -> None:
        cause = error.__cause__
        self.unreadable[place] = (cause.errno if isinstance(cause, OSError) else None) or errno.EIO
        self._touch(place)


@dataclass(slots=True)
class Scrambler:
    """Consistent within one capture, and not to be undone: the key is forgotten with it."""

    _key: bytes = field(default_factory=lambda: secrets.token_bytes(32))
    _given: dict[tuple[str, str], str] = field(default_factory=dict)
    _taken: set[tuple[str, str]] = field(default_factory=set)

    def text(self, text: str) -> str:
        text = _MAC.sub(self._mac, text)
        text = _GUID.sub(self._guid, text)
        text = _EUI64.sub(self._eui64, text)
        text = _ENX.sub(lambda match: "enx" + match[1] + self._nic(match[1], match[2]), text)
        return _UUID.sub(lambda match: self._uuid(match[0]), text)

    def _mac(self, match: re.Match[str]) -> str:
        """Six octets, or the 20 of InfiniBand that end in a GUID."""
        octets = match[0].split(":")
        if len(octets) < 6 or set(octets) <= {"00", "ff"}:
            return match[0]
        maker = octets[:3] if len(octets) == 6 else octets[-8:-5]
        changed = self._nic("".join(maker), "".join(octets[-3:]))
        return ":".join([*octets[:-3], changed[:2], changed[2:4], changed[4:]])

    def _guid(self, match: re.Match[str]) -> str:
        digits = match[0].replace(":", "")
        digits = digits[:10] + self._nic(digits[:6], digits[10:])
        return ":".join(digits[i : i + 4] for i in range(0, 16, 4))

    def _eui64(self, match: re.Match[str]) -> str:
        """The interface identifier of an IPv6 address has the second bit of the MAC turned (RFC 4291)."""
        maker = f"{int(match[2], 16) ^ 0x020000:06x}"
        return f"{match[1]}{match[2]}fffe{self._nic(maker, match[3])}"

    def _nic(self, maker: str, digits: str) -> str:
        return self._unlike((maker.lower(), digits.lower()), 3)

    def _uuid(self, uuid: str) -> str:
        digits = self._unlike(("uuid", uuid.lower()), 16)
        return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))

    def _unlike(self, what: tuple[str, str], size: int) -> str:
        """Another number, and no two the same of one maker."""
        if what not in self._given:
            space, text = what
            for attempt in range(1 << 16):
                drawn = blake2b(
                    f"{space} {text} {attempt}".encode(), digest_size=size, key=self._key
                ).hexdigest()
                if (space, drawn) not in self._taken:
                    break
            self._taken.add((space, drawn))
            self._given[what] = drawn
        return self._given[what]


_HEX2 = "[0-9a-fA-F]{2}"
_MAC = re.compile(rf"(?<![0-9a-fA-F:]){_HEX2}(?::{_HEX2})+(?![0-9a-fA-F:.])")
_GUID = re.compile(r"(?<![0-9a-fA-F:])[0-9a-fA-F]{4}(?::[0-9a-fA-F]{4}){3}(?![0-9a-fA-F:])")
_EUI64 = re.compile(r"(?<![0-9a-f])([0-9a-f]{16})([0-9a-f]{6})fffe([0-9a-f]{6})(?![0-9a-f])")
_ENX = re.compile(r"\benx([0-9a-f]{6})([0-9a-f]{6})(?![0-9a-f])")
_UUID = re.compile(r"(?<![0-9a-fA-F])[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}(?![0-9a-fA-F])")


# --- what is asked --------------------------------------------------------------------------------------


def _gpus(tree: Remembering) -> tuple[tuple[GpuReading, ...], str | None]:
    """The GPUs, now in the recording, and why there are no more. The driver may hang; this does not."""
    told: list[tuple[str | None, tuple[GpuReading, ...]]] = []
    measured: list[tuple[GpuVitals, ...]] = []
    failed: list[DriverError] = []

    def ask() -> None:
        driver = discovery.driver(tree, Config().gpu)
        try:
            driver.open()
            told.append((driver.version(), driver.gpus()))
            measured.append(tuple(driver.vitals()))
            driver.close()
        except DriverError as error:
            failed.append(error)

    thread = threading.Thread(target=ask, name="gpu-driver", daemon=True)
    thread.start()
    thread.join(_DRIVER_S)
    version, readings = told[0] if told else (None, ())
    why = None if told else f"the GPU driver has not answered within {_DRIVER_S:g} s"
    if failed and not told:
        why = None if failed[0].absent else str(failed[0])
    if tree.data(recorded_gpus.PATH) is None:
        vitals = tuple(
            replace(one, texts={name: text for name, text in one.texts.items() if name != "gpu_serial"})
            for one in (measured[0] if measured else ())
        )
        recording = json.loads(recorded_gpus.record(readings, version, vitals=vitals))
        recording["failure"] = {"call": "init", "error": why} if why else None
        tree.files[recorded_gpus.PATH] = (json.dumps(recording, indent=2) + "\n").encode()
    return readings, why


def _also(tree: Remembering, functions: tuple[Function, ...], readings: tuple[GpuReading, ...]) -> None:
    """What is read beside the scan: where the GPUs are, by ``nodeagent vfs``, and whose nodes are handed out."""
    for reading in readings:
        if reading.pci_address is not None:
            nvml_session.place(tree, reading.pci_address)
        tree.exists(f"/dev/nvidia{reading.minor}")
    sysfs = SysfsScan(tree)
    for function in functions:
        sysfs.names(f"/sys/bus/pci/devices/{function.pci_address}/net")
        sysfs.read(tree.text, f"/sys/bus/pci/devices/{function.pci_address}/sriov_drivers_autoprobe")
        if function.netdev is not None:
            sysfs.names(f"{NET}/{function.netdev}")
            sysfs.netdev(tree.text, function.netdev, "flags")
        rdma = function.rdma
        nodes = (function.vdpa, *((rdma.uverbs, rdma.umad, rdma.issm) if rdma else ()))
        for path in (*nodes, function.vfio_group and f"/dev/vfio/{function.vfio_group}"):
            if path is not None:
                tree.exists(path)
    for path in _ORIGIN:
        sysfs.read(tree.text, path)


# --- what is written ------------------------------------------------------------------------------------


def _marker(tree: Tree, *, scrambled: bool) -> str:
    """YAML, for its values are written as JSON."""
    facts = {
        "nodeagent": __version__,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "kernel": tree.text("/proc/sys/kernel/osrelease"),
        "source": str(tree.root),
        "scrambled": scrambled,
    }
    return "kind: captured\n" + "".join(f"{name}: {json.dumps(value)}\n" for name, value in facts.items())


def _check(directory: Path) -> None:
    try:
        if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
            raise CaptureError(
                f"{directory} is there and not an empty folder; name one that is empty or absent"
            )
    except OSError as error:
        raise CaptureError(f"{directory} cannot be looked at: {error.strerror}") from error


def _write(tree: Remembering, directory: Path, scramble: Callable[[str], str]) -> None:
    place = directory.absolute()
    try:
        part = tempfile.mkdtemp(prefix=f".{place.name}.", dir=place.parent)
    except OSError as error:
        raise CaptureError(f"{directory} cannot be made: {error.strerror}: {place.parent}") from error
    try:
        _lay(tree, part, scramble)
        os.chmod(part, 0o755)  # noqa: S103, PTH101 - as any folder; mkdtemp's are for one user
        os.rename(part, place)  # noqa: PTH104 - over an empty folder too
    except OSError as error:
        raise CaptureError(
            f"{directory} cannot be written: {error.strerror}; nothing is left there"
        ) from error
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _lay(tree: Remembering, part: str, scramble: Callable[[str], str]) -> None:
    def place(path: str) -> Path:
        at = Path(part + scramble(path))
        at.parent.mkdir(parents=True, exist_ok=True)
        return at

    for folder in sorted(tree.folders):
        place(folder).mkdir(exist_ok=True)
    for path, content in sorted(tree.files.items()):
        text = scramble(content.decode("utf-8", "surrogateescape"))
        place(path).write_bytes(text.encode("utf-8", "surrogateescape"))
    for path, target in sorted(tree.links.items()):
        place(path).symlink_to(scramble(target))
