"""Read GPUs by NVML. Only this module imports ``pynvml``, and only in ``open``.

* One thread opens, reads, waits and closes. NVML may be called from several threads, but its shutdown while another
  thread waits in it is undefined.
* An error about one GPU is that GPU's ``fault``. An error about the driver is a ``DriverError``. An error of the
  wait concerns neither: the caller closes, opens and reads again, and no GPU becomes faulty.
* A value that an older driver does not support (``FUNCTION_NOT_FOUND``, ``NOT_SUPPORTED``) is ``None``, not a fault.

``nvmlDeviceGetMemoryInfo`` is used in its first version: ``total`` is the same in both, and every driver has it.
"""

from __future__ import annotations

import ctypes
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, ClassVar, TypeVar

from nodeagent.facts.model import MigDevice
from nodeagent.host.gpu_driver import DriverError, GpuEvent, GpuReading, GpuVitals
from nodeagent.host.nvlink_domain import Membership, read_membership, read_nvlink_ends
from nodeagent.host.nvml_limits import MemoryLimits
from nodeagent.host.nvml_mig import mig_devices, mig_places
from nodeagent.host.nvml_vitals import VitalsReader

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
"""By ``nvmlDeviceGpuRecoveryAction_t``, 0 first (drivers from r565; the last three are newer)."""

MIG_REMEDY = "; on a GPU in MIG mode the agent needs components/mig"
_NOT_AVAILABLE = 2**32 - 1  # NVML_VALUE_NOT_AVAILABLE in an unsigned value
_EXCLUDED_MAX = 64
_EVENTS_MAX = 64
"""Events of one wait. Further ones come with the next wait, so that a storm cannot block the caller."""


class Nvml:
    """Uses ``libnvidia-ml.so.1``, found by the loader, through ``nvidia-ml-py``."""

    _without_events: ClassVar[set[str]] = set()
    """GPUs, and "the driver", that are logged to report no events: once, not at each opening."""

    _lock: ClassVar[threading.Lock] = threading.Lock()
    _users: ClassVar[set[int]] = set()
    """The objects whose thread may be in the library: one that hangs there never leaves."""

    def __init__(self, *, processes: bool = False, profiling: bool = False) -> None:
        """``processes``: the vitals include the compute processes of each GPU; ``profiling``: what its units do."""
        self._with = {"processes": processes, "profiling": profiling}
        self._lib: Any = None
        self._events: Any = None
        self._vitals: VitalsReader | None = None
        self._handles: dict[str, Any] = {}
        """By UUID, for the GPUs that answered the last reading."""
        self._nvlink_ends: dict[str, tuple[str, ...]] = {}
        self._uuids: dict[int, str] = {}
        """By device handle: a lost GPU raises its XID and then does not return its UUID."""

    def open(self, *, events: bool = True) -> None:
        """Load and initialize NVML. Raises ``DriverError``, with ``absent`` if there is no driver. Without ``events``
        no wait is possible."""
        try:
            import pynvml  # noqa: PLC0415 - nodes without GPUs do not need it
        except ImportError as error:
            raise DriverError(
                "the Python binding nvidia-ml-py is not installed: pip install nvidia-ml-py", absent=True
            ) from error
        lib: Any = pynvml
        with self._lock:
            self._users.add(id(self))
        try:
            lib.nvmlInit()
        except lib.NVMLError as error:
            failure = _driver_error(lib, "nvmlInit", error)
            self._leave_library(lib, unload=failure.mismatch)
            raise failure from error
        self._lib = lib
        self._vitals = VitalsReader(lib, **self._with)
        if not events:
            return
        try:
            self._events = lib.nvmlEventSetCreate()
        except lib.NVMLError as error:
            if error.value not in _unsupported(lib):
                self.close()
                raise _driver_error(lib, "nvmlEventSetCreate", error) from error
            self._log_no_events("the driver", str(error))

    def close(self) -> None:
        """Free everything that ``open`` took; does nothing if not open. Errors of the driver are only logged."""
        lib, self._lib = self._lib, None
        events, self._events = self._events, None
        self._uuids.clear()
        self._handles.clear()
        vitals, self._vitals = self._vitals, None
        if lib is None:
            return
        if vitals is not None:
            vitals.close()
        for name, free in (
            ("nvmlEventSetFree", lambda: events is None or lib.nvmlEventSetFree(events)),
            ("nvmlShutdown", lib.nvmlShutdown),
        ):
            try:
                free()
            except lib.NVMLError as error:
                log.info("GPU driver did not close cleanly. call=%s error=%r", name, str(error))
        self._leave_library(lib)

    def _leave_library(self, lib: Any, *, unload: bool = False) -> None:
        with self._lock:
            self._users.discard(id(self))
            if unload and not self._users:
                _unload(lib)

    def version(self) -> str | None:
        """The driver's version, ``580.95.05``; ``None`` if it is unknown."""
        lib = self._opened()
        try:
            version: str = lib.nvmlSystemGetDriverVersion()
        except (lib.NVMLError, UnicodeDecodeError):
            return None
        return version

    def gpus(self) -> tuple[GpuReading, ...]:
        """All GPUs of the driver, by index. GPUs that answer are registered for events."""
        lib = self._opened()
        try:
            count = lib.nvmlDeviceGetCount()
        except lib.NVMLError as error:
            raise _driver_error(lib, "nvmlDeviceGetCount", error) from error
        self._handles.clear()
        return tuple(self._read(lib, index) for index in range(count))

    def excluded(self) -> frozenset[str]:
        """The PCI addresses of the GPUs that ``NVreg_ExcludedGpus`` leaves out; empty if the driver does
        not know them."""
        lib = self._opened()
        try:
            count = lib.nvmlGetExcludedDeviceCount()
            infos = [
                lib.nvmlGetExcludedDeviceInfoByIndex(index) for index in range(min(count, _EXCLUDED_MAX))
            ]
            return frozenset(_kernel_address(info.pci.busId) for info in infos)
        except (lib.NVMLError, ValueError):
            return frozenset()

    def vitals(self) -> Iterator[GpuVitals]:
        """The measured values of each GPU that answered the last ``gpus``, one after the other."""
        self._opened()
        assert self._vitals is not None
        for uuid, handle in self._handles.items():
            yield self._vitals.read(handle, uuid)

    def memory_limits(self) -> MemoryLimits:
        """The limits of GPU memory by cgroup, until ``close``."""
        return MemoryLimits(self._opened())

    def any_lost(self) -> bool:
        """Whether a GPU that answered the last ``gpus`` is lost: one call for each, up to the first that is.

        The amount of memory in use is asked from the kernel each time; names and numbers may come from the library.
        """
        lib = self._opened()
        for handle in self._handles.values():
            gpu = _GpuCalls(lib)
            gpu.call("nvmlDeviceGetMemoryInfo", partial(lib.nvmlDeviceGetMemoryInfo, handle))
            if gpu.lost:
                return True
        return False

    def has_events(self) -> bool:
        """Whether each GPU that answered the last ``gpus`` is registered for events."""
        return self._events is not None and self._handles.keys() <= set(self._uuids.values())

    def wait(self, timeout_s: float) -> tuple[GpuEvent, ...]:
        """Block until an event or the timeout; the result is empty on timeout."""
        lib = self._opened()
        if self._events is None or not self._uuids:
            time.sleep(timeout_s)  # no events are possible; NVML does not define a wait on an empty set
            return ()
        events: list[GpuEvent] = []
        timeout_ms = max(0, round(timeout_s * 1000))
        while len(events) < _EVENTS_MAX:
            try:
                data = lib.nvmlEventSetWait_v2(self._events, 0 if events else timeout_ms)
            except lib.NVMLError as error:
                if events or error.value == lib.NVML_ERROR_TIMEOUT:
                    break
                if error.value == lib.NVML_ERROR_FUNCTION_NOT_FOUND:
                    self._log_no_events("the driver", f"nvmlEventSetWait_v2: {error}")
                    self._free_events(lib)
                    return ()
                raise _driver_error(lib, "nvmlEventSetWait_v2", error) from error
            events.append(self._event(lib, data))
        return tuple(events)

    def _opened(self) -> Any:
        if self._lib is None:
            raise DriverError("NVML is not open")
        return self._lib

    def _free_events(self, lib: Any) -> None:
        events, self._events = self._events, None
        try:
            lib.nvmlEventSetFree(events)
        except lib.NVMLError as error:
            log.info("GPU driver did not free its events. error=%r", str(error))

    def _read(self, lib: Any, index: int) -> GpuReading:
        gpu = _GpuCalls(lib)
        handle = gpu.call("nvmlDeviceGetHandleByIndex", lambda: lib.nvmlDeviceGetHandleByIndex(index))
        if handle is None:
            return GpuReading(
                index,
                lost=gpu.lost,
                fault=gpu.fault,
                recovery_action=gpu.action,
                mig_profiles=None,
                mig_instances=None,
            )
        uuid = gpu.call("nvmlDeviceGetUUID", lambda: str(lib.nvmlDeviceGetUUID(handle)))
        mig = gpu.call("nvmlDeviceGetMigMode", lambda: lib.nvmlDeviceGetMigMode(handle)[0] == 1) or False
        gpu.mig = mig
        migs: tuple[MigDevice, ...] | None = ()
        if mig:
            migs = gpu.call("nvmlDeviceGetMigDeviceHandleByIndex", lambda: tuple(mig_devices(lib, handle)))
        places = mig_places(lib, handle, uuid) if mig and uuid is not None else ((), ())
        action = gpu.call("nvmlDeviceGetFieldValues", lambda: _recovery_action(lib, handle))
        fabric = Membership(None, None) if gpu.lost else read_membership(lib, handle)
        reading = GpuReading(
            index=index,
            uuid=uuid,
            minor=gpu.call("nvmlDeviceGetMinorNumber", lambda: int(lib.nvmlDeviceGetMinorNumber(handle))),
            name=gpu.call("nvmlDeviceGetName", lambda: _name(lib, handle)),
            pci_address=gpu.call("nvmlDeviceGetPciInfo", lambda: _pci_address(lib, handle)),
            memory_mib=gpu.call(
                "nvmlDeviceGetMemoryInfo", lambda: int(lib.nvmlDeviceGetMemoryInfo(handle).total) >> 20
            ),
            mig=mig,
            recovery_action=gpu.action or action,
            lost=gpu.lost,
            fault=gpu.fault,
            nvlink_domain=fabric.domain,
            mig_devices=migs,
            fabric_pending=fabric.pending,
            nvlink_ends=self._nvlinks(lib, handle, uuid, wait=gpu.lost or fabric.pending is True),
            mig_profiles=None if gpu.lost else places[0],
            mig_instances=None if gpu.lost else places[1],
        )
        if uuid is not None and not gpu.lost:
            self._handles[uuid] = handle
            self._listen(lib, handle, uuid)
        return reading

    def _nvlinks(self, lib: Any, handle: Any, uuid: str | None, *, wait: bool) -> tuple[str, ...] | None:
        """The ends of the NVLinks of a GPU, which are wires: they are read once, since each is a call of the driver.
        With ``wait`` the driver does not know them yet."""
        if uuid is None or uuid in self._nvlink_ends or wait:
            return None if uuid is None else self._nvlink_ends.get(uuid)
        ends = read_nvlink_ends(lib, handle, _kernel_address)
        if ends is not None:
            self._nvlink_ends[uuid] = ends
        return ends

    def _listen(self, lib: Any, handle: Any, uuid: str) -> None:
        """Register a GPU for events, once. A GPU without events is polled like all others, and logged once."""
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
            | lib.nvmlEventMigConfigChange
        )
        try:
            mask = wanted & lib.nvmlDeviceGetSupportedEventTypes(handle)
            if mask:
                lib.nvmlDeviceRegisterEvents(handle, mask, self._events)
                self._uuids[_address(handle)] = uuid
                self._without_events.discard(uuid)
                return
            reason = "it supports none of them"
        except lib.NVMLError as error:
            reason = str(error)
        self._log_no_events(uuid, reason)

    def _log_no_events(self, source: str, reason: str) -> None:
        if source not in self._without_events:
            self._without_events.add(source)
            log.warning("GPU events are not available; the agent polls. of=%r why=%r", source, reason)

    def _event(self, lib: Any, data: Any) -> GpuEvent:
        uuid = self._uuids.get(_address(data.device))
        if data.eventType != lib.nvmlEventTypeXidCriticalError:
            return GpuEvent(uuid, None, unavailable=data.eventType == lib.nvmlEventTypeGpuUnavailableError)
        if uuid is None:
            log.warning("GPU driver reports an XID without a GPU. xid=%d", data.eventData)
        return GpuEvent(uuid, int(data.eventData))


def set_compute_mode(uuid: str, exclusive: bool) -> None:
    """Set the compute mode of a GPU to EXCLUSIVE_PROCESS, or back to DEFAULT. Raises ``DriverError``."""
    with opened_gpu(uuid) as (lib, handle):
        mode = lib.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS if exclusive else lib.NVML_COMPUTEMODE_DEFAULT
        lib.nvmlDeviceSetComputeMode(handle, mode)


@contextmanager
def opened_gpu(uuid: str) -> Iterator[tuple[Any, Any]]:
    """Open NVML for calls about one GPU: the library and the handle. Raises ``DriverError``, with ``absent`` also if
    the GPU is gone."""
    nvml = Nvml()
    nvml.open(events=False)
    lib = nvml._opened()
    try:
        yield lib, lib.nvmlDeviceGetHandleByUUID(uuid)
    except lib.NVMLError as error:
        failure = _driver_error(lib, f"GPU {uuid}", error)
        failure.absent |= error.value in (lib.NVML_ERROR_NOT_FOUND, lib.NVML_ERROR_GPU_IS_LOST)
        raise failure from error
    finally:
        nvml.close()


class _GpuCalls:
    """Calls about one GPU: the first error becomes its fault; an error about the driver is raised."""

    def __init__(self, lib: Any) -> None:
        self.lib = lib
        self.lost = False
        self.mig = False
        self.action: str | None = None
        self.fault: str | None = None

    def call(self, name: str, function: Callable[[], T]) -> T | None:
        lib = self.lib
        if self.lost:
            return None  # each further call would wait for its own timeout
        try:
            return function()
        except lib.NVMLError as error:
            if error.value in (
                lib.NVML_ERROR_UNINITIALIZED,
                lib.NVML_ERROR_DRIVER_NOT_LOADED,
                lib.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
            ):
                raise _driver_error(lib, name, error) from error
            if error.value in _unsupported(lib):
                return None
            self.lost = error.value == lib.NVML_ERROR_GPU_IS_LOST
            if error.value == lib.NVML_ERROR_RESET_REQUIRED:
                self.action = "gpu_reset"
            remedy = MIG_REMEDY if self.mig and error.value == lib.NVML_ERROR_NO_PERMISSION else ""
            self.fault = self.fault or f"{name}: {error}{remedy}"
        except ValueError as error:  # includes UnicodeDecodeError: an invalid text
            self.fault = self.fault or f"{name}: {error}"
        return None


def _driver_error(lib: Any, call: str, error: Any) -> DriverError:
    absent = error.value in (lib.NVML_ERROR_LIBRARY_NOT_FOUND, lib.NVML_ERROR_DRIVER_NOT_LOADED)
    mismatch = error.value == lib.NVML_ERROR_LIB_RM_VERSION_MISMATCH
    remedy = "; library and kernel module differ: finish the driver's upgrade (reboot, or reload the module)"
    return DriverError(f"{call}: {error}{remedy if mismatch else ''}", absent=absent, mismatch=mismatch)


def _unload(lib: Any) -> None:
    """Close the loaded library, so that the next ``nvmlInit`` loads the file that is on the disk then.

    Only after a version mismatch, while no other thread is in the library: its code is unmapped.
    """
    loaded, lib.nvmlLib = lib.nvmlLib, None
    lib._nvmlGetFunctionPointer_cache.clear()
    if loaded is not None:
        ctypes.CDLL(None).dlclose(ctypes.c_void_p(loaded._handle))


def _unsupported(lib: Any) -> tuple[int, int]:
    return (lib.NVML_ERROR_NOT_SUPPORTED, lib.NVML_ERROR_FUNCTION_NOT_FOUND)


def _address(handle: Any) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value or 0


def _name(lib: Any, handle: Any) -> str:
    """The name is for people: bytes that are no text are escaped and are not a fault of the GPU."""
    try:
        return str(lib.nvmlDeviceGetName(handle))
    except UnicodeDecodeError as error:
        return error.object.decode("utf-8", "backslashreplace")


def _pci_address(lib: Any, handle: Any) -> str:
    return _kernel_address(lib.nvmlDeviceGetPciInfo(handle).busId)


def _kernel_address(bus_id: bytes | str) -> str:
    """Convert NVML's ``00000000:1B:00.0`` to the kernel's ``0000:1b:00.0``."""
    text = bus_id.decode() if isinstance(bus_id, bytes) else str(bus_id)
    domain, _, rest = text.partition(":")
    return f"{int(domain, 16):04x}:{rest.lower()}"


def _recovery_action(lib: Any, handle: Any) -> str | None:
    """A field that the driver does not support is an error in its own value, not in the call."""
    (value,) = lib.nvmlDeviceGetFieldValues(handle, [lib.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION])
    if value.nvmlReturn != lib.NVML_SUCCESS:
        return None
    action = int(value.value.uiVal)  # an enumeration: the low word, for any width of its type
    if action == _NOT_AVAILABLE:
        return None
    return RECOVERY_ACTIONS[action] if action < len(RECOVERY_ACTIONS) else f"action_{action}"
