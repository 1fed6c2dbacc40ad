"""The GPUs as NVML tells them; the only importer of ``pynvml``, and only once ``open`` is called.

The law of this file:

* One thread opens, reads, waits and closes. NVML may be called from several threads, but shutting it down
  under a thread that waits in it is undefined, so there is never a second one.
* An error about one GPU is that GPU's ``fault``. An error about the driver is a ``DriverError``. An error
  from the wait is about neither: the caller closes, opens again and reads; nobody is condemned for it.
* What an older driver does not know (``FUNCTION_NOT_FOUND``, ``NOT_SUPPORTED``) is ``None``, not a fault.

``nvmlDeviceGetMemoryInfo`` is asked in its first version on purpose: ``total`` is the same in both, and
every driver has it.
"""

from __future__ import annotations

import ctypes
import logging
import time
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, TypeVar

from nodeagent.host.gpu_driver import DriverError, GpuEvent, GpuReading, GpuVitals
from nodeagent.host.nvml_vitals import Vitals

log = logging.getLogger(__name__)

T = TypeVar("T")

RECOVERY_ACTIONS = (
    "none",
    "gpu_reset",
    "node_reboot",
    "drain_p2p",
    "drain_and_reset",
    "recover_imex_domain",
    "bus_reset",
    "system_reboot",
)
"""By ``nvmlDeviceGpuRecoveryAction_t``, 0 first (drivers from r565; the last three are younger)."""

_EVENTS_MAX = 64
"""Events taken in one wait; more come with the next, so that a storm cannot keep the caller here."""


class Nvml:
    """``libnvidia-ml.so.1`` as the loader finds it, through ``nvidia-ml-py``."""

    _deaf: ClassVar[set[str]] = set()
    """What has been said to report no events, so that each is logged once and not at each opening."""

    def __init__(self, *, processes: bool = False) -> None:
        """``processes``: the vitals are to name those that compute on each GPU."""
        self._with_processes = processes
        self._lib: Any = None
        self._events: Any = None
        self._vitals: Vitals | None = None
        self._handles: dict[str, Any] = {}
        """By UUID, of the GPUs that answered the last reading."""
        self._uuids: dict[int, str] = {}
        """By device handle: a lost GPU raises its XID and then no longer tells its UUID."""

    def open(self) -> None:
        """Load and initialize. Raises ``DriverError``, ``absent`` where there is no driver."""
        try:
            import pynvml  # noqa: PLC0415 - nodes without GPUs never pay for it
        except ImportError as error:
            raise DriverError(
                "the Python binding nvidia-ml-py is not installed; install nodeagent[gpu]", absent=True
            ) from error
        lib: Any = pynvml
        try:
            lib.nvmlInit()
        except lib.NVMLError as error:
            raise self._driver_error(lib, "nvmlInit", error) from error
        self._lib = lib
        self._vitals = Vitals(lib, processes=self._with_processes)
        try:
            self._events = lib.nvmlEventSetCreate()
        except lib.NVMLError as error:
            if error.value not in _unsupported(lib):
                self.close()
                raise self._driver_error(lib, "nvmlEventSetCreate", error) from error
            self._say_deaf("the driver", str(error))

    def close(self) -> None:
        """Free what ``open`` took. Harmless when nothing is open; a driver that refuses is only logged."""
        lib, self._lib = self._lib, None
        events, self._events = self._events, None
        self._uuids.clear()
        self._handles.clear()
        self._vitals = None
        if lib is None:
            return
        for name, free in (
            ("nvmlEventSetFree", lambda: events is None or lib.nvmlEventSetFree(events)),
            ("nvmlShutdown", lib.nvmlShutdown),
        ):
            try:
                free()
            except lib.NVMLError as error:
                log.info("The driver did not close cleanly. call=%s error=%r", name, str(error))

    def version(self) -> str | None:
        """The driver's version, ``580.95.05``; ``None`` where it does not say."""
        lib = self._opened()
        try:
            version: str = lib.nvmlSystemGetDriverVersion()
        except (lib.NVMLError, UnicodeDecodeError):
            return None
        return version

    def gpus(self) -> tuple[GpuReading, ...]:
        """Every GPU that the driver counts, by index; those that answer are registered for events."""
        lib = self._opened()
        try:
            count = lib.nvmlDeviceGetCount()
        except lib.NVMLError as error:
            raise self._driver_error(lib, "nvmlDeviceGetCount", error) from error
        self._handles.clear()
        return tuple(self._read(lib, index) for index in range(count))

    def vitals(self) -> Iterator[GpuVitals]:
        """What is measured on each GPU that answered the last ``gpus``, one after the other."""
        self._opened()
        assert self._vitals is not None
        for uuid, handle in self._handles.items():
            yield self._vitals.read(handle, uuid)

    def wait(self, timeout_s: float) -> tuple[GpuEvent, ...]:
        """Block until something happens or the time is over (then empty)."""
        lib = self._opened()
        if self._events is None or not self._uuids:
            time.sleep(timeout_s)  # nothing can be heard; what NVML does with an empty set is not said
            return ()
        heard: list[GpuEvent] = []
        timeout_ms = max(0, round(timeout_s * 1000))
        while len(heard) < _EVENTS_MAX:
            try:
                data = lib.nvmlEventSetWait_v2(self._events, 0 if heard else timeout_ms)
            except lib.NVMLError as error:
                if heard or error.value == lib.NVML_ERROR_TIMEOUT:
                    break
                if error.value == lib.NVML_ERROR_FUNCTION_NOT_FOUND:
                    self._say_deaf("the driver", f"nvmlEventSetWait_v2: {error}")
                    self._free_events(lib)
                    return ()
                raise self._driver_error(lib, "nvmlEventSetWait_v2", error) from error
            heard.append(self._event(lib, data))
        return tuple(heard)

    def _opened(self) -> Any:
        if self._lib is None:
            raise DriverError("NVML is not open")
        return self._lib

    def _free_events(self, lib: Any) -> None:
        events, self._events = self._events, None
        try:
            lib.nvmlEventSetFree(events)
        except lib.NVMLError as error:
            log.info("The driver did not free its events. error=%r", str(error))

    def _driver_error(self, lib: Any, call: str, error: Any) -> DriverError:
        absent = error.value in (lib.NVML_ERROR_LIBRARY_NOT_FOUND, lib.NVML_ERROR_DRIVER_NOT_LOADED)
        remedy = ""
        if error.value == lib.NVML_ERROR_LIB_RM_VERSION_MISMATCH:
            remedy = "; library and kernel module differ: finish the driver's upgrade, then restart the agent"
        return DriverError(f"{call}: {error}{remedy}", absent=absent)

    def _read(self, lib: Any, index: int) -> GpuReading:
        gpu = _Questions(lib)
        handle = gpu.ask("nvmlDeviceGetHandleByIndex", lambda: lib.nvmlDeviceGetHandleByIndex(index))
        if handle is None:
            return GpuReading(index, lost=gpu.lost, fault=gpu.fault, recovery_action=gpu.action)
        uuid = gpu.ask("nvmlDeviceGetUUID", lambda: str(lib.nvmlDeviceGetUUID(handle)))
        action = gpu.ask("nvmlDeviceGetFieldValues", lambda: _recovery_action(lib, handle))
        reading = GpuReading(
            index=index,
            uuid=uuid,
            minor=gpu.ask("nvmlDeviceGetMinorNumber", lambda: int(lib.nvmlDeviceGetMinorNumber(handle))),
            name=gpu.ask("nvmlDeviceGetName", lambda: str(lib.nvmlDeviceGetName(handle))),
            pci_address=gpu.ask("nvmlDeviceGetPciInfo", lambda: _pci_address(lib, handle)),
            memory_mib=gpu.ask(
                "nvmlDeviceGetMemoryInfo", lambda: int(lib.nvmlDeviceGetMemoryInfo(handle).total) >> 20
            ),
            mig=gpu.ask("nvmlDeviceGetMigMode", lambda: lib.nvmlDeviceGetMigMode(handle)[0] == 1) or False,
            recovery_action=gpu.action or action,
            lost=gpu.lost,
            fault=gpu.fault,
        )
        if uuid is not None and not gpu.lost:
            self._handles[uuid] = handle
            self._listen(lib, handle, uuid)
        return reading

    def _listen(self, lib: Any, handle: Any, uuid: str) -> None:
        """Register one GPU, once. One that has no events is polled as all are, and said so once."""
        if self._events is None or _address(handle) in self._uuids:
            return
        wanted = (
            lib.nvmlEventTypeXidCriticalError
            | lib.nvmlEventTypeDoubleBitEccError
            | lib.nvmlEventTypeSingleBitEccErrorStorm
            | lib.nvmlEventTypeDramRetirementEvent
            | lib.nvmlEventTypeDramRetirementFailure
            | lib.nvmlEventTypeNonFatalPoisonError
            | lib.nvmlEventTypeFatalPoisonError
            | lib.nvmlEventTypeGpuUnavailableError
            | lib.nvmlEventTypeGpuRecoveryAction
        )
        try:
            mask = wanted & lib.nvmlDeviceGetSupportedEventTypes(handle)
            if mask:
                lib.nvmlDeviceRegisterEvents(handle, mask, self._events)
                self._uuids[_address(handle)] = uuid
                self._deaf.discard(uuid)
                return
            why = "it supports none of them"
        except lib.NVMLError as error:
            why = str(error)
        self._say_deaf(uuid, why)

    def _say_deaf(self, what: str, why: str) -> None:
        if what not in self._deaf:
            self._deaf.add(what)
            log.warning("No events are to be had here; GPUs are polled. of=%r why=%r", what, why)

    def _event(self, lib: Any, data: Any) -> GpuEvent:
        uuid = self._uuids.get(_address(data.device))
        if data.eventType != lib.nvmlEventTypeXidCriticalError:
            return GpuEvent(uuid, None, unavailable=data.eventType == lib.nvmlEventTypeGpuUnavailableError)
        if uuid is None:
            log.warning("The driver reports an XID of a GPU that it does not name. xid=%d", data.eventData)
        return GpuEvent(uuid, int(data.eventData))


class _Questions:
    """Calls about one GPU: the first error is its fault, an error about the driver passes."""

    def __init__(self, lib: Any) -> None:
        self.lib = lib
        self.lost = False
        self.action: str | None = None
        self.fault: str | None = None

    def ask(self, call: str, question: Callable[[], T]) -> T | None:
        lib = self.lib
        if self.lost:
            return None  # each further call would only cost its own time-out
        try:
            return question()
        except lib.NVMLError as error:
            if error.value in (
                lib.NVML_ERROR_UNINITIALIZED,
                lib.NVML_ERROR_DRIVER_NOT_LOADED,
                lib.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
            ):
                raise DriverError(
                    f"{call}: {error}", absent=error.value == lib.NVML_ERROR_DRIVER_NOT_LOADED
                ) from error
            if error.value in _unsupported(lib):
                return None
            self.lost = error.value == lib.NVML_ERROR_GPU_IS_LOST
            if error.value == lib.NVML_ERROR_RESET_REQUIRED:
                self.action = "gpu_reset"
            self.fault = self.fault or f"{call}: {error}"
        except ValueError as error:  # UnicodeDecodeError is one: a text that is none
            self.fault = self.fault or f"{call}: {error}"
        return None


def _unsupported(lib: Any) -> tuple[int, int]:
    return (lib.NVML_ERROR_NOT_SUPPORTED, lib.NVML_ERROR_FUNCTION_NOT_FOUND)


def _address(handle: Any) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value or 0


def _pci_address(lib: Any, handle: Any) -> str:
    """NVML writes ``00000000:1B:00.0``, the kernel ``0000:1b:00.0``."""
    bus_id = lib.nvmlDeviceGetPciInfo(handle).busId
    text = bus_id.decode() if isinstance(bus_id, bytes) else str(bus_id)
    domain, _, rest = text.partition(":")
    return f"{int(domain, 16):04x}:{rest.lower()}"


def _recovery_action(lib: Any, handle: Any) -> str | None:
    """A field that the driver does not know fails in its own value, not in the call."""
    (value,) = lib.nvmlDeviceGetFieldValues(handle, [lib.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION])
    if value.nvmlReturn != lib.NVML_SUCCESS:
        return None
    action = int(value.value.uiVal)  # an enumeration: the low word, whatever width its type names
    return RECOVERY_ACTIONS[action] if action < len(RECOVERY_ACTIONS) else f"action_{action}"
