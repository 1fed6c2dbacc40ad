"""Readiness beyond the resources of device plugins, for ``/readyz``: pools of claims, and GPUs that are not offered."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

from nodeagent.cluster.deliveries import Delivery
from nodeagent.dra.devices import MIG, NIC
from nodeagent.dra.mig_counters import foreign
from nodeagent.dra.offered import DraOffer, PoolStatus
from nodeagent.facts.model import Snapshot
from nodeagent.health.rules.gpu_rules import MISMATCH

if TYPE_CHECKING:
    from nodeagent.dra.driver import DraDriver


def pool_statuses(offer: DraOffer, driver: DraDriver | None, slices: Delivery) -> Iterator[PoolStatus]:
    """Yield each pool of the kinds with mode dra. Claims can have its devices when the kubelet has registered the
    driver and the slices are on the API server."""
    current = offer.current
    for pool, devices in current.pools.items():
        if devices is None:
            yield PoolStatus(pool, 0, 0, _unknown(pool, offer.snapshot))
            continue
        blocked = (current.obstacles[it.name] for it in devices if it.name in current.obstacles)
        obstacle = _refusal(pool, driver, slices) or next(blocked, None)
        yield PoolStatus(pool, len(devices), sum(it.health.allocatable for it in devices), obstacle)


def _unknown(pool: str, snapshot: Snapshot) -> str:
    sources = {"pci" if pool == NIC else "gpus", "pods"}
    reasons = (entry.reason for entry in snapshot.stale_sources if entry.source in sources)
    return next(reasons, "its devices, or what pods hold, are not known yet")


def _refusal(pool: str, driver: DraDriver | None, slices: Delivery) -> str | None:
    if driver is None:
        return "not registered: the driver has not started yet"
    if (reason := driver.unregistered) is not None:
        return f"not registered: {reason}"
    if not driver.has_api_server:
        return "not published: the agent has no API server: set cluster.access, and the name of this Node"
    if driver.pool_name(pool) not in slices.published:
        return f"not published: {slices.reason or 'its ResourceSlices are not on the API server yet'}"
    return None


def gpu_remarks(snapshot: Snapshot) -> Iterator[str]:
    """Yield a sentence about each GPU that is lost, or that no resource can offer, for ``/readyz``."""
    for gpu in snapshot.gpus:
        reason = gpu.health.reasons[0] if gpu.health.reasons else None
        if reason is not None and (gpu.lost or reason.key == MISMATCH.key):
            yield f"GPU {gpu.index} ({gpu.uuid}): {reason.key}: {reason.detail}"
    for uuid, obstacle in snapshot.mps_obstacles:
        if obstacle:
            yield f"GPU {uuid} cannot be shared: {obstacle}"
    for unusable in snapshot.unusable_gpus:
        reason = unusable.health.reasons[0]
        yield f"GPU at {unusable.place} is not offered: {reason.key}: {reason.detail}"


def mig_remarks(snapshot: Snapshot, offer: DraOffer) -> Iterator[str]:
    """Yield a sentence about each GPU instance in the way of claims."""
    for gpu in snapshot.gpus if MIG in offer.current.pools else ():
        for slot in foreign(gpu, offer.mig_slots):
            last = slot.start + slot.size - 1
            yield (
                f"GPU {gpu.index} ({gpu.uuid}): the GPU instance in its memory slices {slot.start} to {last} is of no "
                "claim, and no claim gets this place before it is removed (nvidia-smi mig -lgi)"
            )


def blind_remarks(offered: Collection[object], *, pod_resources: bool) -> Iterator[str]:
    """Yield a sentence if device plugins offer something, and nobody looks whether the kubelet counts it."""
    if offered and not pod_resources:
        yield (
            "kubelet.podResources is off: another device plugin that takes a resource name of this agent is not "
            "noticed, and when it has gone the resource stays at 0 allocatable until the agent starts again; set "
            "kubelet.podResources: true"
        )
