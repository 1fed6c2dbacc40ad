"""Limits of GPU memory by cgroup: ``nvmlDeviceSetMemoryLimits_v1`` and ``nvmlDeviceGetMemoryLimits_v1`` (driver 615).

The functions are called through ``ctypes`` on the library that ``nvidia-ml-py`` has loaded, because older bindings lack
them. The layouts are those of nvml.h.

The soft limit is always 0. A soft limit is a reservation: the driver adds it to all cgroups above, and a cgroup that
goes with its container does not take it back (NVIDIA, MPS documentation, section "Ancestor reservation propagation").
"""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

from nodeagent.host.gpu_driver import LimitRefused

UNLIMITED = 2**64 - 1
"""``NVML_DEVICE_MEMORY_LIMIT_MAX``."""


class _SetLimits(ctypes.Structure):
    _fields_ = (
        ("name_space", ctypes.c_char_p),
        ("soft", ctypes.c_ulonglong),
        ("hard", ctypes.c_ulonglong),
    )


class _GetLimits(ctypes.Structure):
    _fields_ = (
        ("name_space", ctypes.c_char_p),
        ("soft", ctypes.c_ulonglong),
        ("hard", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )


class CgroupLimit(NamedTuple):
    """The limits of one cgroup on one GPU, in bytes. ``UNLIMITED`` is no hard limit."""

    soft: int
    hard: int


NO_LIMIT = CgroupLimit(0, UNLIMITED)
CHARGED = ": a limit below the memory that the cgroup is charged is refused; the container must free memory or restart"


class MemoryLimits:
    """``lib`` is the opened binding. Belongs to the thread that opened it; each call blocks."""

    def __init__(self, lib: Any) -> None:
        self._lib = lib

    def read(self, uuid: str, cgroup: str) -> CgroupLimit | None:
        """Return the limits that hold for a cgroup; an ancestor may have set them. ``None``: nobody has set one. The
        driver answers this with NOT_FOUND, with a soft limit of 0 and the highest hard limit, and with NOT_SUPPORTED
        where the kernel has no controller ``dmem``. Raises ``LimitRefused``."""
        limits, lib = _GetLimits(name_space=cgroup.encode()), self._lib
        unset = (lib.NVML_ERROR_NOT_FOUND, lib.NVML_ERROR_NOT_SUPPORTED)
        found = self._call("nvmlDeviceGetMemoryLimits_v1", uuid, limits, also=unset)
        shown = CgroupLimit(limits.soft, limits.hard)
        return None if found != lib.NVML_SUCCESS or shown == NO_LIMIT else shown

    def write(self, uuid: str, cgroup: str, hard: int) -> None:
        """Set the hard limit of a cgroup, and no reservation. Raises ``LimitRefused``."""
        self._call(
            "nvmlDeviceSetMemoryLimits_v1", uuid, _SetLimits(name_space=cgroup.encode(), soft=0, hard=hard)
        )

    def _call(self, name: str, uuid: str, limits: ctypes.Structure, also: tuple[int, ...] = ()) -> int:
        """Return the answer: success, or one of ``also``. Raises ``LimitRefused`` for each other one."""
        lib = self._lib
        try:
            function = getattr(lib.nvmlLib, name)
        except AttributeError:
            raise LimitRefused(f"{name}: the driver's library does not have it") from None
        try:
            device = lib.nvmlDeviceGetHandleByUUID(uuid)
        except lib.NVMLError as error:
            raise LimitRefused(f"nvmlDeviceGetHandleByUUID: {error}") from error
        result: int = function(device, ctypes.byref(limits))
        if result not in (lib.NVML_SUCCESS, *also):
            # memacct.c answers NV_ERR_INVALID_LIMIT; nvml.h does not say which of its errors that is.
            charged = result in (lib.NVML_ERROR_INVALID_ARGUMENT, lib.NVML_ERROR_UNKNOWN)
            why = CHARGED if charged and isinstance(limits, _SetLimits) else ""
            no_cgroup = result in (lib.NVML_ERROR_NOT_FOUND, lib.NVML_ERROR_OPERATING_SYSTEM)
            raise LimitRefused(f"{name}: {lib.NVMLError(result)}{why}", no_cgroup=no_cgroup)
        return result
