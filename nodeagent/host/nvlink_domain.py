"""Read the NVLink domain of a GPU by NVML: the UUID of the NVSwitch fabric, and the ID of its partition (clique).

NVML has a version of the call for each generation of drivers: the third from r570, the second from r550, the first from
r535. A domain exists only if the registration with the fabric is completed without an error, and the UUID is not zero:
GPUs of an HGX H100 may report a completed registration with a zero UUID, and two of these machines are no domain.
"""

from __future__ import annotations

import ctypes
import uuid
from typing import Any


def read_nvlink_domain(lib: Any, handle: Any) -> str | None:
    """The domain of a GPU as ``<cluster UUID>.<clique ID>``, empty if it is in none, or ``None`` while this is not
    known: the registration has not started or is in progress, or the call fails."""
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
            return None
        return _domain(lib, info)
    return ""


def _domain(lib: Any, info: Any) -> str | None:
    state = int(info.state) & 0xFF  # one byte in nvml.h, a word in the binding
    if state == lib.NVML_GPU_FABRIC_STATE_NOT_SUPPORTED:
        return ""
    if state != lib.NVML_GPU_FABRIC_STATE_COMPLETED:
        return None
    cluster = uuid.UUID(bytes=bytes(info.clusterUuid))
    if info.status != lib.NVML_SUCCESS or not cluster.int:
        return ""
    return f"{cluster}.{int(info.cliqueId)}"
