"""The GPUs in trouble of a report: those alone, with no value that changes by itself. Pure.

One that a person keeps from pods is in none. While no GPU is known, the last ones stand.
"""

from __future__ import annotations

import re

import msgspec

from nodeagent.base.plain_text import one_line
from nodeagent.fabric.nodelinks import (
    GPU_PODS_MAX,
    GPU_REASONS_MAX,
    GPU_TROUBLES,
    GPUS_MAX,
    NodeLinks,
    ReportedGpu,
)
from nodeagent.facts.device_pods import pods_by_device
from nodeagent.facts.model import Health, Holding, Snapshot, State

DETAIL_MAX = 256
_AT_INDEX = re.compile(r"index (\d{1,4})")
"""The place of a GPU of which NVML gives no address."""


def gpus_unknown(snapshot: Snapshot) -> bool:
    """Whether the source of the GPUs has failed and no GPU is known."""
    return not snapshot.gpus and any(entry.source == "gpus" for entry in snapshot.stale_sources)


def gpus_in_trouble(
    snapshot: Snapshot, before: NodeLinks | None, stamp: str, *, patient: bool, with_pods: bool
) -> tuple[ReportedGpu, ...]:
    """The GPUs in trouble, by index, then those without one.

    Of a GPU that no resource can offer the failed ones alone: a driver that is absent may be meant so. After a start
    the last report stands for each GPU that is not known yet.
    """
    last = {} if before is None else {gpu.place: gpu for gpu in before.gpus}
    none_known = not snapshot.gpus and not snapshot.unusable_gpus
    if before is not None and (gpus_unknown(snapshot) or (patient and none_known)):
        return before.gpus
    pods = pods_by_device(snapshot) if with_pods else {}
    found: dict[object, ReportedGpu] = {}
    for gpu in snapshot.gpus:
        made = _gpu(gpu.index, gpu.pci_address, gpu.health, pods.get(gpu.uuid, ()))
        if patient and gpu.health.state is State.UNKNOWN:
            found.update({place: one for place, one in last.items() if place == made.place})
        elif made.state in GPU_TROUBLES:
            found[made.place] = _dated_gpu(made, last.get(made.place), stamp, with_pods, snapshot.holdings)
    for lost in snapshot.unusable_gpus:
        if lost.health.state is State.UNHEALTHY:
            index = _AT_INDEX.fullmatch(lost.place)
            made = _gpu(int(index[1]) if index else None, None if index else lost.place, lost.health)
            found.setdefault(made.place, _dated_gpu(made, last.get(made.place), stamp))
    return tuple(found.values())[:GPUS_MAX]


def _gpu(index: int | None, address: str | None, health: Health, pods: tuple[str, ...] = ()) -> ReportedGpu:
    reasons = [reason for reason in health.reasons if not reason.warning][:GPU_REASONS_MAX]
    return ReportedGpu(
        index=index,
        pci_address=address,
        state=health.state.value,
        reasons=tuple(reason.key for reason in reasons),
        reason_details=tuple(one_line(reason.detail, DETAIL_MAX) for reason in reasons),
        pods=pods[:GPU_PODS_MAX],
    )


def _dated_gpu(
    gpu: ReportedGpu,
    last: ReportedGpu | None,
    stamp: str,
    with_pods: bool = False,
    holdings: tuple[Holding, ...] | None = (),
) -> ReportedGpu:
    """The GPU with the time since when it is in this state; its last pods while it is not known what pods hold."""
    if last is None:
        return msgspec.structs.replace(gpu, since=stamp)
    since = last.since if last.state == gpu.state and last.since is not None else stamp
    return msgspec.structs.replace(
        gpu, since=since, pods=last.pods if with_pods and holdings is None else gpu.pods
    )
