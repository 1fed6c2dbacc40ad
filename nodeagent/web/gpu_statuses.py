"""The page ``/gpus``: each GPU with its memory, load and health, and the pods that hold or use it. Pure.

``nodeagent gpus`` prints it. Values that are not known are ``None``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from nodeagent.facts.gpu_usage import OutsideProcess
from nodeagent.facts.model import Gpu, Snapshot
from nodeagent.health.gpu_settings import GpuSettings
from nodeagent.measurements.sample import Sample
from nodeagent.metrics.scrape_input import DeviceCount
from nodeagent.sharing.gpu_accounts import GpuAccount, PodAccount


class MigStatus(msgspec.Struct, frozen=True):
    """One MIG device. ``holder`` is the pod that holds it, as ``namespace/name``; ``None`` if no pod does."""

    uuid: str
    profile: str
    memory_bytes: int
    holder: str | None = None


class GpuStatus(msgspec.Struct, frozen=True):
    """One GPU. ``slices`` are all its devices of ``resource`` (one, if it is offered whole), ``free`` those that no pod
    holds, and ``largest`` the largest request that it can serve: both are 0 on an unhealthy GPU. A GPU in MIG mode has
    ``mig`` in place of them. ``old_seconds``: the age of ``used_bytes``, ``utilization`` and ``celsius``, if the GPU is
    not measured any more."""

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
    old_seconds: float | None = None
    pods: tuple[PodAccount, ...] = ()
    outside: tuple[OutsideProcess, ...] = ()
    mig: tuple[MigStatus, ...] = ()


class GpuStatuses(msgspec.Struct, frozen=True):
    """All GPUs of the node, by index. ``obstacle``: why the use by pods is not known, if it is not. ``silent``: why the
    GPUs are those of the last answer, or none. A pod exceeds its share with more than ``tolerance_bytes`` beyond it."""

    gpus: tuple[GpuStatus, ...]
    obstacle: str | None = None
    silent: str | None = None
    tolerance_bytes: int = 0


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
        used = measured.get("gpu_memory_used_bytes")
        lines.append(
            GpuStatus(
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
                used_bytes=None if used is None else int(used),
                utilization=measured.get("gpu_utilization"),
                celsius=measured.get("gpu_celsius"),
                old_seconds=age if age is not None and (gpu.lost or age > settings.health.gap_s) else None,
                pods=account.pods,
                outside=account.outside,
                mig=tuple(_mig_statuses(gpu, snapshot)),
            )
        )
    silent = (entry.reason for entry in snapshot.stale_sources if entry.source == "gpus")
    tolerance_bytes = settings.accounting.tolerance_mib << 20
    return GpuStatuses(tuple(lines), obstacle, next(silent, None), tolerance_bytes)


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
