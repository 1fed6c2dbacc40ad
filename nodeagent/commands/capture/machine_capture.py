"""Record a machine, so that ``--root`` shows it elsewhere.

* There is no list of files: a capture holds everything that a scan of this version reads, lists or follows, and a
  few files about its origin (``_ORIGIN``). A file of which only the name matters (a device node, a library) is empty.
* A listed folder below ``/sys`` has all its folders and links, because a listing is a result too: for example the
  empty ``net`` of a VF whose netdev is in a pod. Links are relative and stay inside the capture.
* ``/.nodeagent/unreadable`` names each file that could not be read, with its errno. ``Tree`` fails there in the same
  way.
* A capture always has ``gpus.json``. Without it, a replay would query the GPU driver of the machine that replays.
* ``samples.json`` has the values at the time of the capture, ``nic_settings.json`` what the kernel says about NICs over
  netlink (``nodeagent diff``).
* The capture is written beside its target and renamed, so a failed capture leaves nothing.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import shutil
import socket
import stat
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from nodeagent import __version__, discovery
from nodeagent.agent_config import Config
from nodeagent.base.bounded_calls import Unanswered
from nodeagent.commands.capture.scrambler import Scrambler
from nodeagent.facts.model import Function
from nodeagent.features.peer_values.host_values import NIC_SETTINGS_PATH, read_host
from nodeagent.host import recorded_gpus
from nodeagent.host.gpu_driver import DriverError, GpuReading, GpuVitals
from nodeagent.host.sysfs import NET, UNREADABLE_PATHS, SysfsError, SysfsScan, Tree
from nodeagent.measurements.sample import Sample
from nodeagent.sampling.recorded_samples import SAMPLES_PATH as SAMPLES
from nodeagent.sampling.sampler import Sampler
from nodeagent.sampling.sampling_settings import SamplesSettings
from nodeagent.sources import host_paths, nvml_session, pci_source
from nodeagent.sources.bounded_scan import scan_now
from nodeagent.sources.ib_ports import read_ib_ports
from nodeagent.sources.pci_source import PciFacts

T = TypeVar("T")

_MARKER = "/.nodeagent/machine.yaml"
_ORIGIN = (
    "/sys/class/dmi/id/sys_vendor",
    "/sys/class/dmi/id/product_name",
    "/proc/sys/kernel/osrelease",
    "/proc/sys/kernel/random/boot_id",
)
_DRIVER_S, _SAMPLES_S = 30.0, 30.0
"""After this time, a driver or a reader that hangs is left out."""
_SERIALS = frozenset(("module_serial", "gpu_serial"))


class CaptureError(Exception):
    """The capture or the recording failed, and nothing of it is left."""


def capture(root: Path, directory: Path, *, scramble: bool) -> str:
    """Record the machine under ``root`` in ``directory``, which is new or empty. Returns a summary.

    Raises ``CaptureError``, or ``SysfsError`` if there is no machine.
    """
    _check_target(directory)
    tree = RecordingTree(root)
    facts = _bounded(tree, pci_source.scan, tree)
    _bounded(tree, host_paths.find, tree, Config().cdi.directory)
    readings, why = _capture_gpus(tree)
    _bounded(tree, _read_more, tree, facts, readings)
    tree.files[SAMPLES] = _samples(tree, facts.functions)
    tree.files[_MARKER] = _marker(tree, scrambled=scramble).encode()
    if tree.unreadable:
        lines = (f"{errno.errorcode[code]} {path}\n" for path, code in sorted(tree.unreadable.items()))
        tree.files[UNREADABLE_PATHS] = "".join(lines).encode("utf-8", "surrogateescape")
    _write(_scrambled(tree) if scramble else tree, directory)
    vfs = sum(function.parent is not None for function in facts.functions)
    counts = (
        f"{len(readings)} GPUs, {len(facts.functions) - vfs} PFs and {vfs} VFs in {len(tree.files)} files"
    )
    summary = [f"{directory}: {counts}{', scrambled' if scramble else ''}"]
    if why is not None:
        summary.append(f"The GPU driver did not answer, and the capture records that: {why}")
    if tree.unreadable:
        summary.append(f"{len(tree.unreadable)} files could not be read, and the capture records that.")
    return "\n".join([*summary, f"To show it: nodeagent scan --root {directory}"])


# --- reading ----------------------------------------------------------------------------------------------


def _capture_gpus(tree: RecordingTree) -> tuple[tuple[GpuReading, ...], str | None]:
    """Record ``gpus.json``. Returns the GPUs, and why the driver did not answer. A driver that hangs is given up."""
    answers: list[tuple[str | None, tuple[GpuReading, ...], frozenset[str]]] = []
    measured: list[tuple[GpuVitals, ...]] = []
    errors: list[DriverError] = []

    def read() -> None:
        driver = discovery.driver(tree, Config().gpu)
        try:
            driver.open()
            answers.append((driver.version(), driver.gpus(), driver.excluded()))
            measured.append(tuple(driver.vitals()))
            driver.close()
        except DriverError as error:
            errors.append(error)

    thread = threading.Thread(target=read, name="gpu-driver", daemon=True)
    thread.start()
    thread.join(_DRIVER_S)
    version, readings, excluded = answers[0] if answers else (None, (), frozenset())
    why = None if answers else f"the GPU driver has not answered within {_DRIVER_S:g} s"
    if errors and not answers:
        why = None if errors[0].absent else str(errors[0])
    if tree.data(recorded_gpus.PATH) is None:
        vitals = tuple(
            msgspec.structs.replace(
                gpu, texts={name: text for name, text in gpu.texts.items() if name not in _SERIALS}
            )
            for gpu in (measured[0] if measured else ())
        )
        recording = json.loads(recorded_gpus.record(readings, version, vitals=vitals))
        recording["excluded"] = sorted(excluded)
        recording["failure"] = {"call": "init", "error": why} if why else None
        tree.files[recorded_gpus.PATH] = (json.dumps(recording, indent=2) + "\n").encode()
    return readings, why


def _bounded(tree: RecordingTree, work: Callable[..., T], *arguments: Any) -> T:
    """Read a part of the machine. A file that does not answer is recorded as one that cannot be read."""
    try:
        return scan_now("capture", tree, work, *arguments)
    except Unanswered as error:
        raise CaptureError(f"{error}; nothing was captured") from None


def _read_more(tree: RecordingTree, facts: PciFacts, readings: tuple[GpuReading, ...]) -> None:
    """Read what other parts read besides the scan: GPU positions, files of ``nodeagent vfs``, device nodes, InfiniBand
    ports, and what `nodeagent diff` compares."""
    functions = facts.functions
    read_ib_ports(tree, functions, facts.links)
    for reading in readings:
        if reading.pci_address is not None:
            nvml_session.place_of_gpu(tree, reading.pci_address)
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
    host = read_host(tree, tuple(one for one in functions if one.parent is None))
    if not tree.recorded:
        tree.files[NIC_SETTINGS_PATH] = msgspec.json.encode(host.nics, order="sorted") + b"\n"


def _samples(tree: Tree, functions: tuple[Function, ...]) -> bytes:
    """``samples.json``: one sample per device and reader, without serial numbers.

    A thread with its own event loop, because the caller may run in one. After ``_SAMPLES_S`` it returns the samples
    that are there.
    """
    taken: list[Sample] = []

    async def sample() -> None:
        sampler = Sampler(tree, lambda: functions, taken.extend, SamplesSettings(kernel_log=False))
        await sampler.once()
        sampler.close()

    thread = threading.Thread(target=lambda: asyncio.run(sample()), name="samples", daemon=True)
    thread.start()
    thread.join(_SAMPLES_S)
    encoded = msgspec.json.encode([_without_serials(sample) for sample in tuple(taken)])
    return msgspec.json.format(encoded, indent=1) + b"\n"


def _without_serials(sample: Sample) -> Sample:
    if _SERIALS.isdisjoint(sample.texts):
        return sample
    texts = {name: text for name, text in sample.texts.items() if name not in _SERIALS}
    return msgspec.structs.replace(sample, texts=texts)


# --- writing ----------------------------------------------------------------------------------------------


def _marker(tree: Tree, *, scrambled: bool) -> str:
    """The origin of the capture, as YAML. Its values are JSON, which YAML includes."""
    facts = {
        "nodeagent": __version__,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "kernel": tree.text("/proc/sys/kernel/osrelease"),
        "source": str(tree.root),
        "scrambled": scrambled,
    }
    return "kind: captured\n" + "".join(f"{name}: {json.dumps(value)}\n" for name, value in facts.items())


def _check_target(directory: Path) -> None:
    try:
        if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
            raise CaptureError(
                f"{directory} exists and is not an empty folder; name an empty or a new folder"
            )
    except OSError as error:
        raise CaptureError(f"{directory} cannot be read: {error.strerror}") from error


def _scrambled(tree: RecordingTree) -> Recorded:
    """The same files, folders and links with other identifiers."""
    scrambler = Scrambler(_host_names(tree))
    files = {path: scrambler.file(path, _text(content)) for path, content in sorted(tree.files.items())}
    names = {path: scrambler.text(path) for path in sorted({*files, *tree.folders, *tree.links})}
    targets = {path: scrambler.text(target) for path, target in sorted(tree.links.items())}

    def name(path: str) -> str:
        return scrambler.finish(names[path])

    return Recorded(
        {
            name(path): scrambler.finish(text).encode("utf-8", "surrogateescape")
            for path, text in files.items()
        },
        {name(path): scrambler.finish(target) for path, target in targets.items()},
        {name(folder) for folder in tree.folders},
    )


def _host_names(tree: RecordingTree) -> tuple[str, ...]:
    """The names of this host and of the recorded machine, the longest first, without those that are part of a path:
    a host called ``net`` keeps its name."""
    found = {socket.gethostname()}
    for path in ("/proc/sys/kernel/hostname", "/etc/hostname"):
        with suppress(SysfsError):
            found.add((Tree(tree.root).text(path) or "").strip())
    found |= {name.partition(".")[0] for name in found}
    parts = {part for path in (*tree.files, *tree.folders, *tree.links) for part in path.split("/")}
    names = (name for name in found - parts - {"localhost"} if len(name) > 2)
    return tuple(sorted(names, key=len, reverse=True))


def _text(content: bytes) -> str:
    return content.decode("utf-8", "surrogateescape")


def _write(tree: Recorded | RecordingTree, directory: Path) -> None:
    place = directory.absolute()
    try:
        part = tempfile.mkdtemp(prefix=f".{place.name}.", dir=place.parent)
    except OSError as error:
        raise CaptureError(f"{directory} cannot be made: {error.strerror}: {place.parent}") from error
    try:
        _write_files(tree, part)
        os.rename(part, place)  # noqa: PTH104 - it replaces an empty folder
    except OSError as error:
        raise CaptureError(
            f"{directory} cannot be written: {error.strerror}; nothing is left of it"
        ) from error
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _write_files(tree: Recorded | RecordingTree, part: str) -> None:
    os.chmod(part, 0o700)  # noqa: PTH101 - the umask may have removed the owner's rights
    made = {part}

    def make(folder: str) -> None:
        if folder not in made:
            make(os.path.dirname(folder))
            os.mkdir(folder)  # noqa: PTH102
            os.chmod(folder, 0o700)  # noqa: PTH101
            made.add(folder)

    def place(path: str) -> str:
        make(os.path.dirname(part + path))
        return part + path

    for folder in sorted(tree.folders):
        make(part + folder.rstrip("/"))
    for path, content in sorted(tree.files.items()):
        descriptor = os.open(place(path), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(descriptor, 0o600)
            file.write(content)
    for path, target in sorted(tree.links.items()):
        os.symlink(target, place(path))  # noqa: PTH211


class Recorded(NamedTuple):
    """The content of a capture, by path of the machine: contents of files, targets of links, folders."""

    files: dict[str, bytes]
    links: dict[str, str]
    folders: set[str]


class RecordingTree(Tree):
    """Record each file, folder and link that a scan reads, so that the capture holds exactly these.

    Paths are resolved. Paths below ``/proc`` are not, because links there point to the process that reads them.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.files: dict[str, bytes] = {}
        self.links: dict[str, str] = {}
        self.folders: set[str] = set()
        self.unreadable: dict[str, int] = {}
        super().__init__(root)  # it reads files too

    def data(self, path: str) -> bytes | None:
        place = self._recorded_path(path)
        try:
            content = super().data(path)
        except SysfsError as error:
            self._record_error(place, error)
            raise
        if content is not None:
            self.files[place] = content
        return content

    def names(self, path: str) -> tuple[str, ...]:
        place = self._recorded_path(path)
        try:
            names = super().names(path)
        except SysfsError as error:
            self._record_error(place, error)
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
        self._record_existence(path)
        return super().exists(path)

    def link(self, path: str) -> str | None:
        name = super().link(path)
        if name is not None:
            folder, _, last = path.rpartition("/")
            self._readlink(f"{self._recorded_path(folder)}/{last}")
        return name

    def real(self, path: str) -> str | None:
        self._record_existence(path)
        return super().real(path)

    def _record_existence(self, path: str) -> None:
        place = self._recorded_path(path)
        try:
            mode = os.lstat(self._prefix + place).st_mode
        except OSError:
            return
        if stat.S_ISDIR(mode):
            self.folders.add(place)
        else:
            self.files.setdefault(place, b"")

    def _recorded_path(self, path: str) -> str:
        return path if path.startswith("/proc/") else self._resolve(path)

    def _resolve(self, path: str) -> str:
        return self._walk(path)  # this records every link of the path

    def _readlink(self, here: str) -> str:
        target = super()._readlink(here)
        if not here.startswith("/proc/"):
            self.links[here] = (
                os.path.relpath(target, os.path.dirname(here)) if target.startswith("/") else target
            )
        return target

    def _record_error(self, place: str, error: SysfsError) -> None:
        cause = error.__cause__
        self.unreadable[place] = (cause.errno if isinstance(cause, OSError) else None) or errno.EIO
        self._record_existence(place)
