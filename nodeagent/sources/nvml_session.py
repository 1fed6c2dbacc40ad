"""One session with the GPU driver: a thread that opens it, reads, waits and closes.

A call into the driver may hang in the kernel without end, and no thread can be ended from outside. So each session is
a daemon thread of its own. It posts its results to the event loop, and ``call`` shows the present call and its start.
The source abandons a session that hangs; later results of it are dropped.

GPUs are read and published before they are measured: a measurement is many calls and may be slow.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Iterable
from typing import Protocol

import msgspec

from nodeagent.facts.affinity import path_of
from nodeagent.host.clock import boottime
from nodeagent.host.gpu_driver import DriverError, GpuEvent, GpuReading, GpuVitals
from nodeagent.host.plausible_gpus import plausible_gpus
from nodeagent.host.sysfs import SysfsError, Tree
from nodeagent.sources.driver_versions import find_mismatch
from nodeagent.sources.gpu_users import GpuUsers
from nodeagent.sources.mig_nodes import with_nodes

log = logging.getLogger(__name__)

WAIT_S = 3.0
"""The longest single wait in the driver: a hint and the end of the session take at most this long. After each wait
the driver is asked whether a GPU is lost, because not each loss has an event."""
POD_LOGS = "/var/log/pods"
SPACING_S = 0.1
"""Readings are at least this far apart, so that a storm of events does not become a storm of readings."""
AFTER_FAULT_S = 0.05
"""An event that names a fault is enough for the kubelet: the reading that confirms it comes later, because its thread
would take the interpreter from the message."""
VITALS_SPACING_S = 1.0
"""The same for measurements, which are some hundred values for each GPU."""

Place = tuple[int | None, tuple[str, ...]]
"""NUMA node and PCI path."""
NOWHERE: Place = (None, ())


class Driver(Protocol):
    """``host.nvml.Nvml`` or ``host.recorded_gpus.RecordedGpuDriver``. Each call blocks, and may raise
    ``DriverError``."""

    def open(self) -> None: ...
    def close(self) -> None: ...
    def version(self) -> str | None: ...
    def gpus(self) -> tuple[GpuReading, ...]: ...
    def any_lost(self) -> bool: ...
    def excluded(self) -> frozenset[str]: ...
    def vitals(self) -> Iterable[GpuVitals]: ...
    def wait(self, timeout_s: float) -> tuple[GpuEvent, ...]: ...
    def has_events(self) -> bool: ...


class DriverReading(msgspec.Struct, frozen=True):
    """The driver's list of all GPUs, and where they are in the machine."""

    version: str | None
    readings: tuple[GpuReading, ...]
    places: dict[str, Place]
    mismatch: str | None = None
    """A sentence if library and kernel module have different versions on the disk and in the kernel."""
    excluded: frozenset[str] = frozenset()
    """The PCI addresses of the GPUs that a setting of the driver leaves out."""


class DriverVitals(msgspec.Struct, frozen=True):
    """The measured values of the GPUs, and their time in seconds since boot; or ``why`` there are none."""

    at: float
    vitals: tuple[GpuVitals, ...]
    why: str | None = None
    seconds: float | None = None
    """The duration of the measurement."""
    users_unknown: str | None = None
    """Why the pods of processes cannot be found, if processes were requested."""


class SessionEnd(msgspec.Struct, frozen=True):
    """The end of a session: the failed call and its error. Without an error the thread died of a defect."""

    call: str
    error: DriverError | None


SessionResult = DriverReading | DriverVitals | GpuEvent | SessionEnd


class Session(threading.Thread):
    """One thread, one driver, from open to close."""

    def __init__(
        self,
        driver: Driver,
        tree: Tree,
        interval_s: float,
        with_events_s: float,
        vitals_s: float,
        vitals_from: float,
        hung: threading.Thread | None = None,
        pod_logs: str = POD_LOGS,
        driver_root: str | None = None,
    ) -> None:
        """Read every ``interval_s``, or ``with_events_s`` while all GPUs are sound and send events. Measure from
        ``vitals_from`` of the monotonic clock on, and only when ``hung`` no longer hangs in that. ``pod_logs``: see
        ``GpuUsers``. ``driver_root`` is ``gpu.driverRoot``."""
        super().__init__(name="gpu-driver", daemon=True)
        self.driver, self.tree = driver, tree
        self.interval_s, self.with_events_s = interval_s, with_events_s
        self.vitals_s, self.vitals_from = vitals_s, vitals_from
        self.hung = hung
        self.users = GpuUsers(tree, pod_logs)
        self.driver_root = driver_root
        self.places: dict[str, Place] = {}
        self.loop = asyncio.get_running_loop()
        self.inbox: asyncio.Queue[SessionResult] = asyncio.Queue()
        self.read_now = threading.Event()
        self.over = threading.Event()
        self.call: tuple[str, float, float] = ("open", time.monotonic(), 0.0)
        """The present call, its start, and the time that it may take beyond an ordinary call."""

    def run(self) -> None:
        call, failure = "", None
        try:
            self._listen()
        except DriverError as error:
            call, failure = self.call[0], error
        finally:
            self._close()
            self._post(SessionEnd(call, failure))

    def _listen(self) -> None:
        self._enter("open")
        self.driver.open()
        version = self.driver.version()
        due, vitals_due = 0.0, self.vitals_from
        vitals_at: float | None = None
        while not self.over.is_set():
            now = time.monotonic()
            if now >= due or self.read_now.is_set():
                self.read_now.clear()
                self._enter("list")
                readings = with_nodes(self.tree, plausible_gpus(self.driver.gpus()))
                mismatch, excluded = find_mismatch(self.tree, self.driver_root), self.driver.excluded()
                self._post(DriverReading(version, readings, self._places(readings), mismatch, excluded))
                read_at = time.monotonic()
                due = read_at + self._interval_s(readings)
                if self.over.is_set():  # abandoned while it hung
                    return
            if time.monotonic() >= vitals_due:
                if self.hung is None or not self.hung.is_alive():
                    self._measure()
                    vitals_at = time.monotonic()
                    if self.over.is_set():
                        return
                vitals_due = time.monotonic() + self.vitals_s
            timeout_s = max(0.0, min(WAIT_S, min(due, vitals_due) - time.monotonic()))
            self._enter("wait", timeout_s)
            events = self.driver.wait(timeout_s)
            if not events and time.monotonic() < due:
                self._enter("presence")
                if self.driver.any_lost():
                    due = 0.0
            if events:
                self._post(*events)
                is_fault = all(event.unavailable or event.xid is not None for event in events)
                soon = time.monotonic() + AFTER_FAULT_S if is_fault else 0.0
                due = min(due, max(read_at + SPACING_S, soon))
                if vitals_at is not None:
                    vitals_due = min(vitals_due, max(vitals_at + VITALS_SPACING_S, soon))

    def _interval_s(self, readings: tuple[GpuReading, ...]) -> float:
        sound = bool(readings) and not any(reading.lost or reading.fault for reading in readings)
        return self.with_events_s if sound and self.driver.has_events() else self.interval_s

    def _measure(self) -> None:
        """A failure here does not end the session: the next reading shows a driver that is gone."""
        self._enter("vitals")
        try:
            at, measured = boottime(), []
            obstacle = self.users.begin()
            for vitals in self.driver.vitals():
                measured.append(self._attribute(vitals, obstacle))
                self._enter("vitals")  # each GPU has its own time
            result = DriverVitals(at, tuple(measured), seconds=boottime() - at, users_unknown=obstacle)
        except DriverError as error:
            result = DriverVitals(boottime(), (), str(error))
        self._post(result)

    def _attribute(self, vitals: GpuVitals, obstacle: str | None) -> GpuVitals:
        """Add the memory by container and the usage by pod, if the driver reports processes."""
        if vitals.processes is None:
            return vitals
        used = self.users.by_container(vitals.processes)
        values = {f"gpu_container_memory_bytes/{container}": size for container, size in used.items()}
        values["gpu_processes"] = len(vitals.processes)
        if obstacle is None:
            values["gpu_processes_stuck"] = self.users.stuck(vitals.processes)
        usage = self.users.usage(vitals.processes) if obstacle is None else None
        return msgspec.structs.replace(vitals, values=vitals.values | values, usage=usage)

    def _close(self) -> None:
        self._enter("close")
        try:
            self.driver.close()
        except DriverError as error:
            log.info("The GPU driver did not close cleanly. error=%r", str(error))

    def _enter(self, call: str, extra_s: float = 0.0) -> None:
        self.call = (call, time.monotonic(), extra_s)

    def _post(self, *results: SessionResult) -> None:
        try:
            self.loop.call_soon_threadsafe(self._deliver, results)
        except RuntimeError:  # the loop has ended, and the process is about to
            self.over.set()

    def _deliver(self, results: tuple[SessionResult, ...]) -> None:
        for result in results:
            self.inbox.put_nowait(result)

    def _places(self, readings: tuple[GpuReading, ...]) -> dict[str, Place]:
        """Look up each place once in a session: a GPU does not move."""
        for reading in readings:
            address = reading.pci_address
            if address is not None and self.places.get(address, NOWHERE) == NOWHERE:
                self.places[address] = place_of_gpu(self.tree, address)
        return dict(self.places)


def place_of_gpu(tree: Tree, pci_address: str) -> Place:
    """Return the place of a GPU by sysfs. ``NOWHERE`` is logged and not an error."""
    folder = f"/sys/bus/pci/devices/{pci_address}"
    try:
        numa_node = tree.integer(f"{folder}/numa_node")
        real = tree.real(folder)
    except SysfsError as error:
        log.warning("The PCI place of a GPU cannot be read. pci_address=%s error=%r", pci_address, str(error))
        return NOWHERE
    return None if numa_node is None or numa_node < 0 else numa_node, path_of(real) if real else ()
