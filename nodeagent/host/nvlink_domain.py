"""Read the registration of a GPU with its NVLink fabric by NVML, the NVLink domain of it, and what its links lead to.

A domain is the UUID of the NVSwitch fabric, and the ID of its partition (clique).

NVML has a version of the call for each generation of drivers: the third from r570, the second from r550, the first from
r535. A domain exists only if the registration with the fabric is completed without an error, and the UUID is not zero:
GPUs of an HGX H100 may report a completed registration with a zero UUID, and two of these machines are no domain.
"""

from __future__ import annotations

import ctypes
import uuid
from collections.abc import Callable
from typing import Any, NamedTuple


class Membership(NamedTuple):
    """``domain``: ``<cluster UUID>.<clique ID>``, empty if the GPU is in none, or ``None`` while this is not known: the
    registration has not started or is in progress, or the call fails. ``pending``: whether the registration has yet to
    be completed; ``None`` if this is not known, or the GPU has no fabric."""

    domain: str | None
    pending: bool | None


def read_membership(lib: Any, handle: Any) -> Membership:
    """Raises nothing: a failed call is an unknown membership."""
    try:
        info = fabric_info(lib, handle)
    except lib.NVMLError:
        return Membership(None, None)
    if info is None or (state := fabric_state(info)) == lib.NVML_GPU_FABRIC_STATE_NOT_SUPPORTED:
        return Membership("", None)
    if state != lib.NVML_GPU_FABRIC_STATE_COMPLETED:
        return Membership(None, is_pending(lib, state))
    cluster = uuid.UUID(bytes=bytes(info.clusterUuid))
    if info.status != lib.NVML_SUCCESS or not cluster.int:
        return Membership("", False)
    return Membership(f"{cluster}.{int(info.cliqueId)}", False)


def fabric_info(lib: Any, handle: Any) -> Any:
    """The driver's newest structure; ``None`` if neither the driver nor the GPU has one. Raises ``lib.NVMLError``."""
    other_version = {
        lib.NVML_ERROR_NOT_SUPPORTED,
        lib.NVML_ERROR_FUNCTION_NOT_FOUND,
        lib.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
        lib.NVML_ERROR_INVALID_ARGUMENT,
    }
    for call, struct in (
        ("nvmlDeviceGetGpuFabricInfoV", "c_nvmlGpuFabricInfo_v3_t"),
        ("nvmlDeviceGetGpuFabricInfoV", "c_nvmlGpuFabricInfo_v2_t"),
        ("nvmlDeviceGetGpuFabricInfo", "c_nvmlGpuFabricInfo_t"),
    ):
        if not hasattr(lib, call) or not hasattr(lib, struct):  # a binding of another age
            continue
        info = getattr(lib, struct)()
        try:
            getattr(lib, call)(handle, ctypes.byref(info))
        except lib.NVMLError as error:
            if error.value in other_version:
                continue
            raise
        return info
    return None


def fabric_state(info: Any) -> int:
    return int(info.state) & 0xFF  # one byte in nvml.h, a word in the binding


def is_pending(lib: Any, state: int) -> bool | None:
    """``None``: a state that nvml.h does not have."""
    if state in (lib.NVML_GPU_FABRIC_STATE_NOT_STARTED, lib.NVML_GPU_FABRIC_STATE_IN_PROGRESS):
        return True
    return False if state == lib.NVML_GPU_FABRIC_STATE_COMPLETED else None


_LINKS = 36  # NVML_NVLINK_MAX_LINKS
_NOWHERE = "0000:00:00.0"
"""The address of a switch that this machine cannot see."""


def read_nvlink_ends(lib: Any, handle: Any, address: Callable[[Any], str]) -> tuple[str, ...] | None:
    """The PCI addresses of what the NVLinks of a GPU lead to, NVSwitches or other GPUs. ``None``: a call has failed.
    ``address`` converts NVML's form of one. A link that is not there or not in use has no end."""
    if not hasattr(lib, "nvmlDeviceGetNvLinkRemotePciInfo"):  # a binding of another age
        return ()
    none = {
        lib.NVML_ERROR_NOT_SUPPORTED,
        lib.NVML_ERROR_INVALID_ARGUMENT,
        lib.NVML_ERROR_FUNCTION_NOT_FOUND,
        lib.NVML_ERROR_NOT_FOUND,
    }
    ends = set()
    for link in range(_LINKS):
        try:
            ends.add(address(lib.nvmlDeviceGetNvLinkRemotePciInfo(handle, link).busId))
        except lib.NVMLError as error:
            if error.value not in none:
                return None
        except ValueError:  # no address
            continue
    return tuple(sorted(ends - {_NOWHERE}))
