"""A GPU driver with GPUs in MIG mode, behind the functions of ``pynvml``: it makes and destroys instances by the rules
of an H100, and refuses what the hardware refuses.

The profiles are those that ``nvidia-smi mig -lgip`` prints for an H100 80GB. The places are those of an A100, which has
the same numbers of instances; no list of an H100 was met.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pynvml

from nodeagent.facts.model import Gpu, MigSlot
from nodeagent.host.gpu_driver import DriverError
from nodeagent.host.nvml_mig import mig_places
from nodeagent.host.sysfs import Tree


class Profile(NamedTuple):
    """NVML's kind and number, name, slices, MiB, (SM, copy, decoder, JPEG, OFA), first memory slices, their number."""

    kind: int
    number: int
    name: str
    slices: int
    mib: int
    engines: tuple[int, int, int, int, int]
    starts: tuple[int, ...]
    size: int


H100 = (
    Profile(0, 19, "1g.10gb", 1, 9984, (16, 1, 1, 1, 0), (0, 1, 2, 3, 4, 5, 6), 1),
    Profile(7, 20, "1g.10gb+me", 1, 9984, (16, 1, 1, 1, 1), (0, 1, 2, 3, 4, 5, 6), 1),
    Profile(9, 15, "1g.20gb", 1, 20096, (26, 1, 1, 1, 0), (0, 2, 4, 6), 2),
    Profile(1, 14, "2g.20gb", 2, 20096, (32, 2, 2, 2, 0), (0, 2, 4), 2),
    Profile(2, 9, "3g.40gb", 3, 40448, (60, 3, 3, 3, 0), (0, 4), 4),
    Profile(3, 5, "4g.40gb", 4, 40448, (64, 4, 4, 4, 0), (0,), 4),
    Profile(4, 0, "7g.80gb", 7, 81152, (132, 8, 7, 7, 1), (0,), 8),
)
TOTAL = (132, 8, 7, 7, 1)


def caps(folder: Path, gpus: int) -> Tree:
    """A machine whose kernel lists the device nodes of MIG instances."""
    listed = folder / "proc/driver/nvidia-caps/mig-minors"
    listed.parent.mkdir(parents=True)
    names = [
        name
        for gpu in range(gpus)
        for gi in range(400)
        for name in (f"gpu{gpu}/gi{gi}/access", f"gpu{gpu}/gi{gi}/ci0/access")
    ]
    listed.write_text("".join(f"{name} {number}\n" for number, name in enumerate(names, 3)))
    (folder / "proc/devices").write_text("Character devices:\n  1 mem\n236 nvidia-caps\n\nBlock devices:\n")
    return Tree(folder)


class Crash(BaseException):
    """The agent dies in the middle of a call."""


class Instance:
    """A GPU instance; ``computes`` are the addresses of its compute instances."""

    def __init__(self, slot: MigSlot, number: int) -> None:
        self.slot, self.number = slot, number
        self.computes: list[int] = []


class MigDriver:
    """The ``lib`` of ``host.nvml_mig``. ``in_use`` are slots whose compute instance a process uses. The call named
    ``dies_at`` ends the agent, before it does anything or, with ``dies_after``, after it; ``failing`` maps calls to
    errors."""

    def __init__(self, *uuids: str) -> None:
        self.uuids = uuids
        self.instances: dict[int, Instance] = {}
        self.in_use: set[MigSlot] = set()
        self.dies_at: str | None = None
        self.dies_after = False
        self.failing: dict[str, int] = {}
        self._numbers = count(1)

    def __getattr__(self, name: str) -> Any:
        return getattr(pynvml, name)  # constants, structures and errors

    @contextmanager
    def opened(self, uuid: str) -> Iterator[tuple[Any, Any]]:
        try:
            self.enter("open")
            yield self, uuid
        except pynvml.NVMLError as error:
            raise DriverError(str(error)) from error

    def enter(self, call: str) -> None:
        if call == self.dies_at and not self.dies_after:
            raise Crash
        if call in self.failing:
            raise pynvml.NVMLError(self.failing[call])

    def leave(self, call: str) -> None:
        if call == self.dies_at:
            raise Crash

    @property
    def slots(self) -> set[MigSlot]:
        return {instance.slot for instance in self.instances.values()}

    def facts(self, gpu: Gpu) -> Gpu:
        """The GPU in MIG mode, as the driver shows it now."""
        profiles, instances = mig_places(self, gpu.uuid, gpu.uuid)
        assert profiles is not None
        return msgspec.structs.replace(gpu, mig=True, mig_profiles=profiles, mig_instances=instances)

    def by_hand(self, slot: MigSlot) -> bool:
        """Another program makes an instance, if there is room."""
        try:
            place = pynvml.c_nvmlGpuInstancePlacement_t(slot.start, slot.size)
            self._place(slot.gpu, slot.profile, place)
        except pynvml.NVMLError:
            return False
        return True

    def reset(self) -> None:
        self.instances.clear()

    # --- NVML -----------------------------------------------------------------------------------------

    def nvmlDeviceGetMinorNumber(self, gpu: str) -> int:  # noqa: N802
        return self.uuids.index(gpu)

    def nvmlDeviceGetMemoryInfo(self, gpu: str) -> Any:  # noqa: N802
        return type("Memory", (), {"total": 81559 << 20})

    def nvmlDeviceGetGpuInstanceProfileInfo(self, gpu: str, kind: int) -> Any:  # noqa: N802
        for profile in H100:
            if profile.kind == kind:
                info = pynvml.c_nvmlGpuInstanceProfileInfo_v2_t()
                info.id, info.sliceCount, info.memorySizeMB = profile.number, profile.slices, profile.mib
                info.name = f"MIG {profile.name}".encode()
                info.multiprocessorCount, info.copyEngineCount, info.decoderCount = profile.engines[:3]
                info.jpegCount, info.ofaCount = profile.engines[3:]
                return info
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    def nvmlDeviceGetGpuInstancePossiblePlacements(  # noqa: N802
        self, gpu: str, number: int, places: Any, counter: Any
    ) -> None:
        del gpu
        profile = next(it for it in H100 if it.number == number)
        counter._obj.value = len(profile.starts)
        for index, start in enumerate(profile.starts if places is not None else ()):
            places[index].start, places[index].size = start, profile.size

    def nvmlDeviceGetGpuInstances(self, gpu: str, number: int, handles: Any, counter: Any) -> None:  # noqa: N802
        self.enter("list")
        found = [at for at, it in self.instances.items() if it.slot.gpu == gpu and it.slot.profile == number]
        _fill(handles, counter, found, pynvml.c_nvmlGpuInstance_t)

    def nvmlGpuInstanceGetInfo(self, handle: Any) -> Any:  # noqa: N802
        instance = self.instances[_address(handle)]
        info = pynvml.c_nvmlGpuInstanceInfo_t()
        info.id, info.profileId = instance.number, instance.slot.profile
        info.placement.start, info.placement.size = instance.slot.start, instance.slot.size
        return info

    def nvmlDeviceCreateGpuInstanceWithPlacement(self, gpu: str, number: int, place: Any) -> Any:  # noqa: N802
        self.enter("create gi")
        at = self._place(gpu, number, place._obj)
        self.leave("create gi")
        return ctypes.cast(at, pynvml.c_nvmlGpuInstance_t)

    def _place(self, gpu: str, number: int, place: Any) -> int:
        profile = next(it for it in H100 if it.number == number)
        slot = MigSlot(gpu, number, place.start, place.size)
        if place.start not in profile.starts or place.size != profile.size:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        there = [it.slot for it in self.instances.values() if it.slot.gpu == gpu]
        used = [next(p.engines for p in H100 if p.number == it.profile) for it in there]
        full = any(sum(them) > of for *them, of in zip(*used, profile.engines, TOTAL, strict=True))
        if full or any(slot.overlaps(other) for other in there):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES)
        number = next(self._numbers)
        self.instances[number * 16] = Instance(slot, number)
        return number * 16

    def nvmlGpuInstanceDestroy(self, handle: Any) -> None:  # noqa: N802
        self.enter("destroy gi")
        if self.instances[_address(handle)].computes:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_IN_USE)
        del self.instances[_address(handle)]
        self.leave("destroy gi")

    def nvmlGpuInstanceGetComputeInstanceProfileInfo(self, handle: Any, kind: int, engine: int) -> Any:  # noqa: N802
        assert engine == pynvml.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED
        slot = self.instances[_address(handle)].slot
        own = next(it.slices for it in H100 if it.number == slot.profile)
        slices = {0: 1, 1: 2, 2: 3, 3: 4, 4: 7}.get(kind, 99)
        if slices > own:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        info = pynvml.c_nvmlComputeInstanceProfileInfo_v2_t()
        info.id, info.sliceCount = kind, slices
        return info

    def nvmlGpuInstanceCreateComputeInstance(self, handle: Any, number: int) -> Any:  # noqa: N802
        self.enter("create ci")
        instance = self.instances[_address(handle)]
        slices = {0: 1, 1: 2, 2: 3, 3: 4, 4: 7}[number]
        assert slices == next(it.slices for it in H100 if it.number == instance.slot.profile), (
            "the whole of it"
        )
        if instance.computes:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES)
        instance.computes.append(_address(handle) + 1 + number)
        self.leave("create ci")
        return ctypes.cast(instance.computes[0], pynvml.c_nvmlComputeInstance_t)

    def nvmlGpuInstanceGetComputeInstances(  # noqa: N802
        self, handle: Any, number: int, handles: Any, counter: Any
    ) -> None:
        computes = self.instances[_address(handle)].computes
        found = [it for it in computes if it % 16 - 1 == number]
        _fill(handles, counter, found, pynvml.c_nvmlComputeInstance_t)

    def nvmlComputeInstanceGetInfo(self, handle: Any) -> Any:  # noqa: N802
        address = _address(handle)
        return type("Info", (), {"id": 0, "device": f"MIG-{address // 16}"})

    def nvmlDeviceGetUUID(self, device: str) -> str:  # noqa: N802
        return device

    def nvmlComputeInstanceDestroy(self, handle: Any) -> None:  # noqa: N802
        self.enter("destroy ci")
        instance = self.instances[_address(handle) // 16 * 16]
        if instance.slot in self.in_use:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_IN_USE)
        instance.computes.remove(_address(handle))
        self.leave("destroy ci")


def _address(handle: Any) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value or 0


def _fill(handles: Any, counter: Any, found: list[int], kind: Any) -> None:
    assert len(found) <= counter._obj.value
    for index, address in enumerate(found):
        handles[index] = ctypes.cast(address, kind)
    counter._obj.value = len(found)
