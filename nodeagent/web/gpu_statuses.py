"""The page ``/gpus``: each GPU with its memory, load and health, and the pods that hold or use it. Pure.

``nodeagent gpus`` prints it. Values that are not known are ``None``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from nodeagent.facts.gpu_usage import NamedProcess
from nodeagent.facts.model import ContainerLimit, Gpu, Snapshot
from nodeagent.health.gpu_settings import GpuSettings
from nodeagent.measurements.sample import Sample
from nodeagent.metrics.scrape_input import DeviceCount
from nodeagent.sharing.gpu_accounts import GpuAccount, PodAccount

_REASON = "gpu_clock_reason/"
_MEASURED = ("utilization", "celsius", "power_watts", "power_limit_watts", "sm_hertz", "memory_hertz")
"""The fields that have the name of their measurement."""


class MigStatus(msgspec.Struct, frozen=True):
    """One MIG device. ``holder`` is the pod that holds it, as ``namespace/name``; ``None`` if no pod does."""

    uuid: str
    profile: str
    memory_bytes: int
    holder: str | None = None


class GpuStatus(msgspec.Struct, frozen=True):
    """One GPU. ``slices`` are all its devices of ``resource`` (one, if it is offered whole), ``free`` those that no pod
    holds, and ``largest`` the largest request that it can serve: both are 0 on an unhealthy GPU. A GPU in MIG mode has
    ``mig`` in place of them. ``clock_reasons``: why the clocks are not higher, by NVML's names; none at full speed.
    The ECC errors are those since the driver was loaded. ``old_seconds``: the age of all measured values, if the GPU
    is not measured any more."""

    index: int
    uuid: str
    memory_bytes: int
    state: str
    reasons: tuple[str, ...] = ()
    resource: str | None = None
    slices: int | None = None
    slice_bytes: int | None = None
    free: int | None = None
    largest: int | None = None
    granted_bytes: int | None = None
    used_bytes: int | None = None
    utilization: float | None = None
    celsius: float | None = None
    model: str = ""
    power_watts: float | None = None
    power_limit_watts: float | None = None
    sm_hertz: float | None = None
    memory_hertz: float | None = None
    clock_reasons: tuple[str, ...] | None = None
    ecc_correctable: int | None = None
    ecc_uncorrectable: int | None = None
    old_seconds: float | None = None
    limits: tuple[ContainerLimit, ...] = ()
    pods: tuple[PodAccount, ...] = ()
    outside: tuple[NamedProcess, ...] = ()
    mig: tuple[MigStatus, ...] = ()


class GpuStatuses(msgspec.Struct, frozen=True):
    """All GPUs of the node, by index. ``obstacle``: why the use by pods is not known, if it is not. ``silent``: why the
    GPUs are those of the last answer, or none. A pod exceeds its share with more than ``tolerance_bytes`` beyond it.
    ``driver`` is the driver's version."""

    gpus: tuple[GpuStatus, ...]
    obstacle: str | None = None
    silent: str | None = None
    tolerance_bytes: int = 0
    driver: str | None = None


def gpu_statuses(
    snapshot: Snapshot,
    counts: Iterable[DeviceCount],
    samples: Iterable[Sample],
    accounts: Iterable[GpuAccount],
    obstacle: str | None,
    *,
    settings: GpuSettings,
    now: float,
) -> GpuStatuses:
    """Put together what the agent has of each GPU. ``now``: by the clock of the samples."""
    count_of = {count.parent: count for count in counts}
    sample_of = {sample.device: sample for sample in samples}
    account_of = {account.uuid: account for account in accounts}
    held = _held(snapshot)
    known = snapshot.holdings is not None
    lines = []
    for gpu in snapshot.gpus:
        count = None if gpu.mig else count_of.get(gpu.uuid)
        sample = sample_of.get(gpu.uuid)
        measured: Mapping[str, float] = {} if sample is None else sample.values
        age = None if sample is None else now - sample.at
        account = account_of.get(gpu.uuid, GpuAccount(gpu.uuid, ()))
        lines.append(
            GpuStatus(
                **_vitals(measured),
                index=gpu.index,
                uuid=gpu.uuid,
                memory_bytes=gpu.memory_mib << 20,
                state=gpu.health.state.value,
                reasons=tuple(reason.key for reason in gpu.health.reasons),
                resource=count.resource if count else None,
                slices=count.devices if count else None,
                slice_bytes=count.each_bytes if count else None,
                free=_free(count, held.get((count.resource, gpu.uuid), 0)) if count and known else None,
                largest=count.free if count else None,
                granted_bytes=sum(pod.granted_bytes for pod in account.pods) if known else None,
                model=gpu.name,
                limits=tuple(limit for limit in snapshot.gpu_limits if limit.uuid == gpu.uuid),
                old_seconds=age if age is not None and (gpu.lost or age > settings.health.gap_s) else None,
                pods=account.pods,
                outside=account.outside,
                mig=tuple(_mig_statuses(gpu, snapshot)),
            )
        )
    silent = (entry.reason for entry in snapshot.stale_sources if entry.source == "gpus")
    tolerance_bytes = settings.accounting.tolerance_mib << 20
    return GpuStatuses(tuple(lines), obstacle, next(silent, None), tolerance_bytes, snapshot.gpu_driver)


def _vitals(measured: Mapping[str, float]) -> dict[str, Any]:
    """The fields of a status that are measured."""
    used = measured.get("gpu_memory_used_bytes")
    errors = {f"ecc_{kind}": _ecc_errors(measured, kind) for kind in ("correctable", "uncorrectable")}
    return {
        "used_bytes": None if used is None else int(used),
        "clock_reasons": _clock_reasons(measured),
        **errors,
        **{name: measured.get(f"gpu_{name}") for name in _MEASURED},
    }


def _clock_reasons(measured: Mapping[str, float]) -> tuple[str, ...] | None:
    reasons = {
        head: value for name, value in measured.items() if (head := name.removeprefix(_REASON)) != name
    }
    return tuple(reason for reason, holds in reasons.items() if holds) if reasons else None


def _ecc_errors(measured: Mapping[str, float], kind: str) -> int | None:
    names = (f"gpu_ecc_{kind}_{place}" for place in ("sram", "dram"))
    counts = [int(measured[name]) for name in names if name in measured]
    return sum(counts) if counts else None


def _mig_statuses(gpu: Gpu, snapshot: Snapshot) -> Iterator[MigStatus]:
    holders = {
        id_: f"{holding.namespace}/{holding.pod}"
        for holding in snapshot.holdings or ()
        for id_ in holding.device_ids
    }
    for device in gpu.mig_devices:
        holder = holders.get(device.uuid)
        yield MigStatus(device.uuid, device.profile, device.memory_mib << 20, holder)


def _free(count: DeviceCount, held: int) -> int:
    """The devices that a pod can still get: none of a GPU that is withdrawn."""
    return count.devices - held if count.allocatable else 0


def _held(snapshot: Snapshot) -> dict[tuple[str, str], int]:
    """The held devices by resource and GPU."""
    held: dict[tuple[str, str], int] = {}
    for holding in snapshot.holdings or ():
        for id_ in holding.device_ids:
            key = (holding.resource, id_.partition("::")[0])
            held[key] = held.get(key, 0) + 1
    return held
