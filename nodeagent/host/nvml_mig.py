"""Read, make and remove the MIG devices of a GPU by NVML.

A MIG device is a compute instance in a GPU instance. Both may be made and destroyed at any time, without a reset of the
GPU: a device that is gone between two calls is left out, and the next reading has the truth.

A device is made at one place of the GPU's memory, with one compute instance that has all of its GPU instance. Making
and removing continue where an earlier attempt has stopped.
"""

from __future__ import annotations

import ctypes
import math
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from nodeagent.facts.model import MigDevice, MigProfile, MigSlot
from nodeagent.host.gpu_driver import MigRefused

_NAMED = re.compile(r" MIG (\S+)$")
_PROFILE_NAMED = re.compile(r"(?:MIG )?(\d+g\.\S+)")
_INSTANCES_MAX = 16
"""GPU instances of one profile, or compute instances in one GPU instance; a GPU has at most eight."""
_PLACES_MAX = 24
"""Slices of memory, and places of one profile. A GPU has eight; a counter set of Kubernetes has room for 32 counters,
those of ``_COUNTS`` among them."""
_COUNTS = {
    "multiprocessors": "multiprocessorCount",
    "copy-engines": "copyEngineCount",
    "decoders": "decoderCount",
    "encoders": "encoderCount",
    "jpeg-engines": "jpegCount",
    "ofa-engines": "ofaCount",
}
"""The shares of a GPU that an instance takes, and NVML's names of them in the information about a profile."""
_SHARED_COUNTS = {
    "multiprocessors": "multiprocessorCount",
    "copy-engines": "sharedCopyEngineCount",
    "decoders": "sharedDecoderCount",
    "encoders": "sharedEncoderCount",
    "jpeg-engines": "sharedJpegCount",
    "ofa-engines": "sharedOfaCount",
}
"""The same of a MIG device, by NVML's names in its attributes: compute instances of one GPU instance share engines."""
_EIGHTHS = 8
"""A GPU has eight slices of memory (NVIDIA, MIG user guide, section "Partitioning")."""


def mig_devices(lib: Any, gpu: Any) -> Iterator[MigDevice]:
    """Yield the MIG devices of a GPU in MIG mode. Raises ``lib.NVMLError``. The indexes may have gaps."""
    total_mib = int(lib.nvmlDeviceGetMemoryInfo(gpu).total) >> 20
    for index in range(lib.nvmlDeviceGetMaxMigDeviceCount(gpu)):
        try:
            device = _read(lib, lib.nvmlDeviceGetMigDeviceHandleByIndex(gpu, index), total_mib)
        except lib.NVMLError as error:
            if error.value not in (lib.NVML_ERROR_NOT_FOUND, lib.NVML_ERROR_INVALID_ARGUMENT):
                raise
            continue
        yield device


def _read(lib: Any, handle: Any, total_mib: int) -> MigDevice:
    attributes = lib.nvmlDeviceGetAttributes_v2(handle)
    named = _NAMED.search(str(lib.nvmlDeviceGetName(handle)))
    memory_mib = int(attributes.memorySizeMB)
    slices = int(attributes.gpuInstanceSliceCount), int(attributes.computeInstanceSliceCount)
    return MigDevice(
        uuid=str(lib.nvmlDeviceGetUUID(handle)),
        profile=named[1] if named else profile(*slices, memory_mib, total_mib),
        memory_mib=memory_mib,
        gpu_instance=int(lib.nvmlDeviceGetGpuInstanceId(handle)),
        compute_instance=int(lib.nvmlDeviceGetComputeInstanceId(handle)),
        takes=tuple(
            (name, number)
            for name, field in _SHARED_COUNTS.items()
            if (number := int(getattr(attributes, field)))
        ),
    )


def profile(slices: int, compute_slices: int, memory_mib: int, total_mib: int) -> str:
    """Return the name of a profile, for drivers that do not name MIG devices.

    The memory counts in eighths of the GPU, rounded up; the size of the GPU is rounded up to GiB.

    >>> [profile(1, 1, 9856, 81559), profile(3, 3, 40192, 81559), profile(7, 7, 80384, 81559)]
    ['1g.10gb', '3g.40gb', '7g.80gb']
    >>> [profile(1, 1, 4864, 40536), profile(3, 1, 19968, 40536)]
    ['1g.5gb', '1c.3g.20gb']
    """
    eighths = math.ceil(_EIGHTHS * memory_mib / total_mib)
    size = round(eighths * math.ceil(total_mib / 1024) / _EIGHTHS)
    part = "" if compute_slices == slices else f"{compute_slices}c."
    return f"{part}{slices}g.{size}gb"


def mig_places(
    lib: Any, gpu: Any, uuid: str
) -> tuple[tuple[MigProfile, ...] | None, tuple[MigSlot, ...] | None]:
    """Return the profiles of a GPU in MIG mode, and its GPU instances. Both are ``None`` if the driver does not show
    them: the rights to list MIG devices do not suffice."""
    profiles: dict[int, MigProfile] = {}
    instances: list[MigSlot] = []
    try:
        total_mib = int(lib.nvmlDeviceGetMemoryInfo(gpu).total) >> 20
        for kind in range(lib.NVML_GPU_INSTANCE_PROFILE_COUNT):
            if (info := _profile_info(lib, gpu, kind)) is None or info.id in profiles:
                continue
            profiles[info.id] = _profile(lib, gpu, uuid, info, total_mib)
            instances += [slot for _, slot in _instances(lib, gpu, uuid, info.id)]
    except lib.NVMLError:
        return None, None
    return tuple(profiles.values()), tuple(instances)


def check_free(lib: Any, gpu: Any, slot: MigSlot) -> None:
    """Raise ``MigRefused`` if the GPU instance of a slot is there: another program has made it."""
    if _instance(lib, gpu, slot) is not None:
        raise MigRefused("another program has made a GPU instance in its place", remains=False)


def make_mig_device(lib: Any, gpu: Any, slot: MigSlot, *, fresh: bool) -> MigDevice:
    """Make the MIG device of a slot, or return the one that is there. ``fresh``: no earlier attempt can have made it,
    so one that is there is another's. Raises ``MigRefused``."""
    try:
        if fresh:
            check_free(lib, gpu, slot)
        instance = _instance(lib, gpu, slot)
        if instance is None:
            place = lib.c_nvmlGpuInstancePlacement_t(slot.start, slot.size)
            instance = lib.nvmlDeviceCreateGpuInstanceWithPlacement(gpu, slot.profile, ctypes.byref(place))
        computes = _compute_instances(lib, instance)
        compute = computes[0] if computes else _make_compute_instance(lib, instance)
        info = lib.nvmlComputeInstanceGetInfo(compute)
        return MigDevice(
            str(lib.nvmlDeviceGetUUID(info.device)),
            profile="",
            memory_mib=0,
            gpu_instance=int(lib.nvmlGpuInstanceGetInfo(instance).id),
            compute_instance=int(info.id),
        )
    except lib.NVMLError as error:
        raise _refused(lib, error, remains=_may_remain(lib, gpu, slot)) from error


def remove_mig_device(lib: Any, gpu: Any, slot: MigSlot) -> None:
    """Remove the compute instances and the GPU instance of a slot, those that are there. Raises ``MigRefused``."""
    try:
        instance = _instance(lib, gpu, slot)
        if instance is not None:
            for compute in _compute_instances(lib, instance):
                lib.nvmlComputeInstanceDestroy(compute)
            lib.nvmlGpuInstanceDestroy(instance)
    except lib.NVMLError as error:
        raise _refused(lib, error, remains=True) from error


def _profile(lib: Any, gpu: Any, uuid: str, info: Any, total_mib: int) -> MigProfile:
    name = info.name.decode(errors="replace") if isinstance(info.name, bytes) else str(info.name)
    named, slices, memory_mib = _PROFILE_NAMED.fullmatch(name), int(info.sliceCount), int(info.memorySizeMB)
    takes = ((counter, int(getattr(info, field))) for counter, field in _COUNTS.items())
    count = ctypes.c_uint()
    lib.nvmlDeviceGetGpuInstancePossiblePlacements(gpu, info.id, None, ctypes.byref(count))
    count.value = min(count.value, _PLACES_MAX)
    places = (lib.c_nvmlGpuInstancePlacement_t * count.value)()
    lib.nvmlDeviceGetGpuInstancePossiblePlacements(gpu, info.id, places, ctypes.byref(count))
    return MigProfile(
        named[1] if named else profile(slices, slices, memory_mib, total_mib),
        memory_mib,
        tuple((counter, number) for counter, number in takes if number),
        tuple(
            MigSlot(uuid, info.id, place.start, place.size)
            for place in places[: count.value]
            if 0 < place.start + place.size <= _PLACES_MAX
        ),
    )


def _profile_info(lib: Any, gpu: Any, kind: int) -> Any:
    """Return what the driver knows of a profile; ``None`` if this GPU does not have it."""
    try:
        return lib.nvmlDeviceGetGpuInstanceProfileInfo(gpu, kind)
    except lib.NVMLError as error:
        if error.value in (lib.NVML_ERROR_NOT_SUPPORTED, lib.NVML_ERROR_INVALID_ARGUMENT):
            return None
        raise


def _instances(lib: Any, gpu: Any, uuid: str, number: int) -> Iterator[tuple[Any, MigSlot]]:
    """Yield the GPU instances of one profile; none if MIG mode is off."""
    handles, count = (lib.c_nvmlGpuInstance_t * _INSTANCES_MAX)(), ctypes.c_uint(_INSTANCES_MAX)
    try:
        lib.nvmlDeviceGetGpuInstances(gpu, number, handles, ctypes.byref(count))
    except lib.NVMLError as error:
        if error.value == lib.NVML_ERROR_NOT_SUPPORTED:
            return
        raise
    for handle in handles[: count.value]:
        try:
            place = lib.nvmlGpuInstanceGetInfo(handle).placement
        except lib.NVMLError as error:
            if error.value not in (lib.NVML_ERROR_NOT_FOUND, lib.NVML_ERROR_INVALID_ARGUMENT):
                raise
            continue  # it was destroyed since
        yield handle, MigSlot(uuid, number, place.start, place.size)


def _instance(lib: Any, gpu: Any, slot: MigSlot) -> Any:
    """Return the GPU instance of a slot; ``None`` if it is not there."""
    found = (handle for handle, it in _instances(lib, gpu, slot.gpu, slot.profile) if it == slot)
    return next(found, None)


def _may_remain(lib: Any, gpu: Any, slot: MigSlot) -> bool:
    try:
        return _instance(lib, gpu, slot) is not None
    except lib.NVMLError:
        return True


def _compute_profiles(lib: Any, instance: Any) -> Iterator[Any]:
    for kind in range(lib.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
        try:
            yield lib.nvmlGpuInstanceGetComputeInstanceProfileInfo(
                instance, kind, lib.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED
            )
        except lib.NVMLError as error:
            if error.value not in (lib.NVML_ERROR_NOT_SUPPORTED, lib.NVML_ERROR_INVALID_ARGUMENT):
                raise


def _compute_instances(lib: Any, instance: Any) -> list[Any]:
    found: list[Any] = []
    for number in dict.fromkeys(info.id for info in _compute_profiles(lib, instance)):
        handles, count = (lib.c_nvmlComputeInstance_t * _INSTANCES_MAX)(), ctypes.c_uint(_INSTANCES_MAX)
        lib.nvmlGpuInstanceGetComputeInstances(instance, number, handles, ctypes.byref(count))
        found += handles[: count.value]
    return found


def _make_compute_instance(lib: Any, instance: Any) -> Any:
    """Make the largest one. Without it the GPU instance is of no use, and is removed."""
    try:
        largest = max(_compute_profiles(lib, instance), key=lambda info: info.sliceCount, default=None)
        if largest is None:
            raise lib.NVMLError(lib.NVML_ERROR_NOT_SUPPORTED)
        return lib.nvmlGpuInstanceCreateComputeInstance(instance, largest.id)
    except lib.NVMLError:
        with suppress(lib.NVMLError):
            lib.nvmlGpuInstanceDestroy(instance)
        raise


def _refused(lib: Any, error: Any, *, remains: bool) -> MigRefused:
    remedies = {
        lib.NVML_ERROR_NO_PERMISSION: "; the agent needs components/mig-claims",
        lib.NVML_ERROR_INSUFFICIENT_RESOURCES: "; another GPU instance is in its place",
    }
    text = f"the GPU driver refuses: {error}{remedies.get(error.value, '')}"
    return MigRefused(text, remains=remains, in_use=error.value == lib.NVML_ERROR_IN_USE)
