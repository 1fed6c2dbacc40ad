"""The annotations of Volcano's plugin deviceshare on Nodes and pods. Pure.

The formats are those of volcano, pkg/scheduler/api/devices/nvidia/vgpu (``decodeNodeDevices``, ``encodePodDevices``):

* Node: ``<uuid>,<places>,<memory>,<type>,<healthy>,<mode>:`` for each GPU, one after the other.
* Pod: ``<uuid>,<type>,<memory>,<cores>:`` for each GPU of a container, and ``;`` between the containers that ask for
  one.

Every author of a pod can write its annotations. So a choice counts only if it agrees with the limits of the pod's
containers; ``kinds.volcano_vgpus`` compares it with the memory that is left.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import UTC, datetime

import msgspec

from nodeagent.base.plain_text import one_line
from nodeagent.base.quantities import whole_quantity
from nodeagent.facts.model import Gpu, VgpuGrant, VgpuShare, VgpuWaiting
from nodeagent.kinds.gpu_memory import GpuMemory
from nodeagent.kinds.volcano_vgpus import CORES, CORES_OF_A_GPU, MEMORY, NUMBER, places

REGISTER, HANDSHAKE, NODE_LOCK = (
    "volcano.sh/node-vgpu-register",
    "volcano.sh/node-vgpu-handshake",
    "hamivgpu",
)
PLACED_ON, PLACED_AT = "volcano.sh/vgpu-node", "volcano.sh/vgpu-time"
CHOSEN = "volcano.sh/vgpu-ids-new"
"""As ``TO_ALLOCATE``; the scheduler counts by it."""
TO_ALLOCATE = "volcano.sh/devices-to-allocate"
BIND_PHASE, BIND_TIME = "volcano.sh/bind-phase", "volcano.sh/bind-time"
ALLOCATING, SUCCESS, FAILED = "allocating", "success", "failed"
DONE_AT = str(2**64 - 1)
"""``vgpu-time`` of a pod whose devices are allocated: the largest number, so that it is never the oldest."""
PERCENTAGE = "volcano.sh/vgpu-memory-percentage"
NO_PERCENTAGE = 101
"""The scheduler's value for a container without ``PERCENTAGE``."""
LOCK_S = 300
"""Seconds after which Volcano takes a node lock for forgotten (pkg/scheduler/plugins/util/nodelock)."""
AHEAD_S = 60
"""Seconds by which the scheduler's clock may be ahead."""
_TEXT_MAX = 64 << 10
_DEVICE = re.compile(r"([^,:;]{1,96}),(NVIDIA[^,:;]{0,96}),([0-9]{1,9}),([0-9]{1,3})")
_MODE = "hami-core"
"""The scheduler's word for GPUs that are shared without MIG."""


class VgpuLimits(msgspec.Struct):
    """The limits of one container, as quantities."""

    limits: dict[str, str | int] | None = None


class VgpuContainer(msgspec.Struct):
    name: str
    resources: VgpuLimits = msgspec.field(default_factory=VgpuLimits)


class VgpuPodSpec(msgspec.Struct, rename="camel"):
    node_name: str = ""
    containers: list[VgpuContainer] = msgspec.field(default_factory=list)
    init_containers: list[VgpuContainer] = msgspec.field(default_factory=list)


class VgpuPodStatus(msgspec.Struct):
    phase: str = ""


class VgpuPodMeta(msgspec.Struct, rename="camel"):
    name: str
    namespace: str = ""
    uid: str = ""
    resource_version: str | None = None
    deletion_timestamp: str | None = None
    annotations: dict[str, str] | None = None


class VgpuPod(msgspec.Struct):
    """The fields of a pod that are read."""

    metadata: VgpuPodMeta
    spec: VgpuPodSpec
    status: VgpuPodStatus = msgspec.field(default_factory=VgpuPodStatus)

    @property
    def annotations(self) -> Mapping[str, str]:
        return self.metadata.annotations or {}

    @property
    def ended(self) -> bool:
        return self.status.phase in ("Succeeded", "Failed") or self.metadata.deletion_timestamp is not None

    @property
    def admitted(self) -> bool:
        """Whether the kubelet has admitted the pod or refused it, so that it asks for no device any more."""
        return self.ended or self.status.phase == "Running"

    @property
    def may_hold(self) -> bool:
        """Whether the kubelet may have given GPUs to it, and has not taken them back."""
        containers = (*self.spec.init_containers, *self.spec.containers)
        return self.status.phase not in ("Succeeded", "Failed") and any(
            NUMBER in (one.resources.limits or {}) for one in containers
        )

    @property
    def asking(self) -> list[VgpuContainer]:
        """The containers that ask for a GPU, as ``resourcereqs`` of the scheduler finds them."""
        return [one for one in self.spec.containers if {NUMBER, MEMORY} & (one.resources.limits or {}).keys()]

    @property
    def counted(self) -> list[VgpuContainer]:
        """Those for which the kubelet asks: it counts ``NUMBER``, and nothing else makes it allocate a GPU."""
        return [one for one in self.asking if NUMBER in (one.resources.limits or {})]


def register(memory: GpuMemory, gpus: Iterable[Gpu]) -> str:
    """Return the annotation of a Node. The scheduler does not read the health, so an Unhealthy GPU has no places."""
    parts = []
    for gpu in gpus:
        if count := memory.count(gpu):
            healthy = gpu.health.allocatable
            model = re.sub(r"[^A-Za-z0-9 ._-]", "-", gpu.name)
            word = "true" if healthy else "false"
            free = places(memory, gpu) if healthy else 0
            parts.append(f"{gpu.uuid},{free},{count},NVIDIA-{model},{word},{_MODE}:")
    return "".join(parts)


def decode_grants(text: str) -> tuple[tuple[VgpuGrant, ...], ...] | None:
    """Return the GPUs of each container; ``None`` if the text has another form."""
    if len(text) > _TEXT_MAX:
        return None
    containers = []
    for part in text.split(";"):
        grants = []
        for device in part.split(":"):
            if device:
                match = _DEVICE.fullmatch(device)
                if match is None:
                    return None
                grants.append(VgpuGrant(match[1], int(match[3]), int(match[4])))
        containers.append(tuple(grants))
    return tuple(containers)


def waiting_of(pod: VgpuPod, node: str, sizes: Mapping[str, int], now: float) -> Iterator[VgpuWaiting]:
    """Yield the containers of a pod that the scheduler has placed here and that have no devices yet.

    ``sizes`` are the slices of each GPU; ``now`` is seconds since 1970. A choice that is refused has a ``fault``.
    """
    notes = pod.annotations
    if notes.get(BIND_PHASE) != ALLOCATING or pod.admitted:
        return
    choice = decode_grants(notes.get(TO_ALLOCATE, ""))
    at = _seconds(notes.get(BIND_TIME))
    fault = ""
    if notes.get(PLACED_ON) != node or pod.spec.node_name != node:
        fault = f"{PLACED_ON} names another node"
    elif at is None or _seconds(notes.get(PLACED_AT)) is None:
        fault = f"{BIND_TIME} or {PLACED_AT} is no time"
    elif not now - LOCK_S <= at <= now + AHEAD_S:
        fault = f"{BIND_TIME} is not of the last {LOCK_S} s"
    elif choice is None or len(choice) != len(pod.asking):
        fault = f"{TO_ALLOCATE} has another form than the containers of the pod"
    for index, container in enumerate(pod.asking):
        if container not in pod.counted:
            continue
        grants = choice[index] if choice is not None and index < len(choice) else ()
        limits = container.resources.limits or {}
        yield VgpuWaiting(
            pod.metadata.namespace,
            pod.metadata.name,
            container.name,
            pod.metadata.uid,
            _amount(limits, NUMBER, 1),
            grants,
            fault or _fault(limits, grants, sizes),
        )


def unplaced_of(pod: VgpuPod, node: str) -> Iterator[VgpuWaiting]:
    """Yield the containers of a pod of this node that ask for GPUs without a choice by the scheduler.

    The scheduler leaves out init containers, and the kubelet asks for them.
    """
    meta = pod.metadata
    if pod.annotations.get(BIND_PHASE) == ALLOCATING or pod.admitted or pod.spec.node_name != node:
        return
    for container in (*pod.spec.init_containers, *pod.spec.containers):
        limits = container.resources.limits or {}
        if count := _amount(limits, NUMBER, 0):
            yield VgpuWaiting(meta.namespace, meta.name, container.name, meta.uid, count, (), placed=False)


def vgpu_shares(
    pod: VgpuPod, node: str, sizes: Mapping[str, int], held: Collection[str]
) -> Iterator[VgpuShare]:
    """Yield the slices of each GPU that the scheduler gave the containers of a pod of this node.

    ``held`` are the GPUs on which it holds places. One that the scheduler did not choose counts with the pod's limits.
    """
    if pod.ended:
        return
    sums: dict[tuple[str, str], int] = {}
    if pod.annotations.get(PLACED_ON) == node:
        choice, asking = decode_grants(pod.annotations.get(CHOSEN, "")) or (), pod.asking
        for index, grants in enumerate(choice):
            name = asking[index].name if len(asking) == len(choice) else ""
            for grant in grants:
                sums[grant.uuid, name] = sums.get((grant.uuid, name), 0) + grant.slices
    for uuid in set(held) - {uuid for uuid, _ in sums}:
        size = sizes.get(uuid, 0)
        asked = sum(_due(one.resources.limits or {}, size) for one in pod.counted)
        sums[uuid, ""] = min(asked or size, size)
    for (uuid, name), slices in sorted(sums.items()):
        yield VgpuShare(pod.metadata.namespace, pod.metadata.name, uuid, slices, name)


def handshake(now: float) -> str:
    """Return the answer to a scheduler that still asks (up to Volcano 1.12): ``Reported_2026.11.23 08:15:00``."""
    return f"Reported_{datetime.fromtimestamp(now, UTC):%Y.%m.%d %H:%M:%S}"


def bound_at(pod: VgpuPod) -> float | None:
    """Return when the scheduler bound a pod, in seconds since 1970."""
    return _seconds(pod.annotations.get(BIND_TIME))


def _fault(limits: Mapping[str, str | int], grants: tuple[VgpuGrant, ...], sizes: Mapping[str, int]) -> str:
    """Return how the choice differs from the limits of the container, or the empty text."""
    amounts = {name: whole_quantity(limits.get(name, 0)) for name in (NUMBER, MEMORY, PERCENTAGE, CORES)}
    if odd := next((name for name, amount in amounts.items() if amount is None), None):
        return f"the limit {odd}: {one_line(str(limits[odd]), 64)} is no whole number"
    if len(grants) != _amount(limits, NUMBER, 1):
        return f"{TO_ALLOCATE} has {len(grants)} GPUs"
    if len({grant.uuid for grant in grants}) != len(grants):
        return f"{TO_ALLOCATE} has one GPU twice"
    cores = _amount(limits, CORES, 0)
    for grant in grants:
        if grant.uuid not in sizes:
            return f"{grant.uuid} is no GPU of {MEMORY} here"
        due = _due(limits, sizes[grant.uuid])
        if grant.slices != due or not 0 < grant.slices <= sizes[grant.uuid]:
            return f"{TO_ALLOCATE} has {grant.slices} of {MEMORY} and the container asks for {due}"
        if grant.cores != cores or cores > CORES_OF_A_GPU:
            return f"{TO_ALLOCATE} has {grant.cores} of {CORES} and the container asks for {cores}"
    return ""


def _due(limits: Mapping[str, str | int], size: int) -> int:
    """Return the slices of a GPU of ``size`` for a container: a percentage of each GPU counts before an amount.

    ``ExtractResourceRequest`` and ``checkNodeGPUSharingPredicateAndScore`` of Volcano 1.14 and newer.
    """
    percent, memory = _amount(limits, PERCENTAGE, NO_PERCENTAGE), _amount(limits, MEMORY, 0)
    if percent == NO_PERCENTAGE:
        if memory:
            return memory
        percent = 100
    return size * percent // 100


def _seconds(text: str | None) -> int | None:
    return int(text) if text is not None and re.fullmatch(r"[0-9]{1,12}", text) else None


def _amount(limits: Mapping[str, str | int], name: str, absent: int) -> int:
    """Return a limit; 0 for one that is no whole number."""
    return whole_quantity(limits.get(name, absent)) or 0
