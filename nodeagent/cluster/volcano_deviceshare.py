"""The node's half of Volcano's plugin deviceshare: register the GPUs, follow the placed pods, report, release the lock.

State is a level: each round compares the Node and the pods of this node with what they should be, and patches what
differs. So an agent that was restarted between an allocation and its report continues where it ended.

* The Node lists the GPUs (``REGISTER``). Schedulers up to 1.12 ask by ``HANDSHAKE``, and get an answer.
* A pod whose containers all hold GPUs by podresources gets ``bind-phase: success``, a pod that has ended before gets
  ``failed``, and so does one that asks for memory alone. Volcano counts a pod by its annotations until it is gone.
* The node lock is released when its pod is reported, or when no pod waits and it has been seen for ``LOCK_GRACE_S``: a
  scheduler that ended in between leaves it behind, and would bind no pod to this node for five minutes. Its time has
  whole seconds, and the scheduler locks before it annotates. So a lock is no text here: a report releases the lock that
  stood during it, and never the next one, of the same second.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress

import msgspec

from nodeagent.cluster import volcano_annotations as notes
from nodeagent.cluster.deliveries import Delivery
from nodeagent.cluster.retry import ApiRetry
from nodeagent.cluster.volcano_annotations import VgpuPod
from nodeagent.inventory import Inventory
from nodeagent.kinds.gpu_access import selected
from nodeagent.kinds.gpu_memory import GpuMemory
from nodeagent.kinds.volcano_vgpus import NUMBER
from nodeagent.kube.client import ApiClient
from nodeagent.kube.failure import ApiError
from nodeagent.kube.reflector import Reflector
from nodeagent.kube.resource import NODES, PODS, Partial
from nodeagent.model import Snapshot, VgpuShare, VgpuWaiting
from nodeagent.supervise import beside, either, keep

log = logging.getLogger(__name__)

ROUND_S = 5.0
"""Between rounds without a change: locks and choices age."""
LOCK_GRACE_S = 15.0
"""The scheduler takes the lock before it writes the pod's annotations and binds it."""


class SchedulerLock(msgspec.Struct):
    """A lock that Volcano has set on this Node. Two of one second have the same text.

    ``reported`` is whether its pod has been reported.
    """

    text: str
    seen_at: float
    reported: bool = False


class VolcanoDeviceshare:
    """``settings`` returns the entry that Volcano places, ``None`` while none is offered."""

    def __init__(
        self,
        client: ApiClient,
        inventory: Inventory,
        node: str,
        settings: Callable[[], GpuMemory | None],
        *,
        delivery: Delivery | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._client, self._inventory, self._node = client, inventory, node
        self._settings, self._clock = settings, clock
        self._retry = ApiRetry("Volcano's annotations cannot be written", delivery)
        self._changed = asyncio.Event()
        self._lock: SchedulerLock | None = None
        self._locked = False
        self._pods: Reflector[VgpuPod] = Reflector(
            client, PODS.typed(VgpuPod), fields=f"spec.nodeName={node}", changed=self._pod_changed
        )
        self._nodes: Reflector[Partial] = Reflector(
            client, NODES.partial, fields=f"metadata.name={node}", changed=self._node_changed
        )

    async def run(self) -> None:
        """Run until cancelled."""
        async with (
            beside(keep("volcano pods", self._pods.run), self._pods.synced.wait()),
            beside(keep("volcano node", self._nodes.run), self._nodes.synced.wait()),
        ):
            while True:
                self._changed.clear()
                snapshot = self._inventory.snapshot
                self._publish()
                wait_s = self._retry.wait_s(time.monotonic())
                if not wait_s:
                    try:
                        await self._write(snapshot)
                        self._retry.succeeded()
                    except ApiError as error:
                        if error.reason != "Conflict" and not error.missing:
                            self._retry.failed(error, time.monotonic())
                with suppress(TimeoutError):
                    async with asyncio.timeout(max(wait_s, ROUND_S)):
                        await either(self._inventory.changed(snapshot.revision), self._changed.wait())

    def _pod_changed(self, _key: str, _before: VgpuPod | None, _now: VgpuPod | None) -> None:
        self._publish()  # at once: the kubelet may ask already
        self._changed.set()

    def _node_changed(self, _key: str, _before: Partial | None, now: Partial | None) -> None:
        text = None if now is None else (now.metadata.annotations or {}).get(notes.NODE_LOCK)
        if text is None:
            self._lock = None
        elif self._lock is None or self._lock.text != text:
            self._lock, self._locked = SchedulerLock(text, self._clock()), True
        self._changed.set()

    def _publish(self) -> None:
        """Publish the containers that wait, in the order in which they were bound, and the shares of all pods."""
        memory, snapshot = self._settings(), self._inventory.snapshot
        if memory is None:
            return
        sizes = {gpu.uuid: memory.count(gpu) for gpu in selected(snapshot, memory.gpus) if memory.count(gpu)}
        holders = _holders(snapshot)
        waiting: list[VgpuWaiting] = []
        shares: list[VgpuShare] = []
        for pod in sorted(self._pods.objects.values(), key=_order):
            shares += notes.shares_of(pod, self._node, sizes, _gpus_of(pod, snapshot))
            if snapshot.holdings is not None:  # before, a pod that has its GPUs would seem to wait
                containers = (
                    *notes.waiting_of(pod, self._node, sizes, self._clock()),
                    *notes.unplaced_of(pod, self._node),
                )
                waiting += [it for it in containers if (it.namespace, it.pod, it.container) not in holders]
        alive = {pod.metadata.uid for pod in self._pods.objects.values()}
        granted = frozenset(key for key in snapshot.vgpu_granted if key[0] in alive)
        self._inventory.publish(
            "volcano",
            vgpu_waiting=tuple(waiting),
            vgpu_shares=tuple(shares),
            vgpu_granted=granted,
            vgpu_locked=self._locked,
        )

    async def _write(self, snapshot: Snapshot) -> None:
        for pod in sorted(self._pods.objects.values(), key=_order):
            if (phase := self._phase(pod, snapshot)) is not None:
                await self._report(pod, phase)
        node = self._nodes.objects.get(self._node)
        if node is not None and (changes := self._node_changes(node, snapshot)):
            meta = {"annotations": changes, "resourceVersion": node.metadata.resource_version}
            await self._client.patch(NODES, self._node, {"metadata": meta})
            if notes.NODE_LOCK in changes:
                self._lock = None  # what is seen from now on is another one

    def _phase(self, pod: VgpuPod, snapshot: Snapshot) -> str | None:
        """Return the phase that is to be reported; ``None`` if there is none, or if it is not known yet."""
        if pod.annotations.get(notes.BIND_PHASE) != notes.ALLOCATING or not pod.asking:
            return None
        if pod.annotations.get(notes.PLACED_ON) != self._node:
            return None
        holders = _holders(snapshot)
        meta = pod.metadata
        counted = pod.counted
        if counted and all((meta.namespace, meta.name, it.name) in holders for it in counted):
            return notes.SUCCESS
        return notes.FAILED if pod.ended or not counted else None

    async def _report(self, pod: VgpuPod, phase: str) -> None:
        meta = pod.metadata
        changes = {notes.BIND_PHASE: phase, notes.PLACED_AT: notes.DONE_AT}
        body = {"metadata": {"annotations": changes, "uid": meta.uid}}
        await self._client.patch(PODS, meta.name, body, namespace=meta.namespace)
        lock = self._lock
        if lock is not None and (notes.lock_time(lock.text) or 0) <= (notes.bound_at(pod) or 0):
            lock.reported = True
        log.info("Volcano has the result of a pod. pod=%s/%s phase=%s", meta.namespace, meta.name, phase)

    def _node_changes(self, node: Partial, snapshot: Snapshot) -> dict[str, str | None]:
        has, memory = node.metadata.annotations or {}, self._settings()
        changes: dict[str, str | None] = {}
        if memory is not None:
            wanted = notes.register(memory, selected(snapshot, memory.gpus))
            if wanted and has.get(notes.REGISTER) != wanted:
                changes[notes.REGISTER] = wanted
            if not has.get(notes.HANDSHAKE, "").startswith("Reported"):
                changes[notes.HANDSHAKE] = notes.handshake(self._clock())
        if notes.NODE_LOCK in has and self._lock is not None and self._is_free(self._lock):
            changes[notes.NODE_LOCK] = None
        return changes

    def _is_free(self, lock: SchedulerLock) -> bool:
        """Whether no pod needs this lock any more."""
        now = self._clock()
        waits = any(
            pod.annotations.get(notes.PLACED_ON) == self._node
            and pod.annotations.get(notes.BIND_PHASE) == notes.ALLOCATING
            and not pod.admitted
            and now - notes.LOCK_S < (notes.bound_at(pod) or 0) <= now + notes.AHEAD_S
            for pod in self._pods.objects.values()
        )
        return not waits and (lock.reported or now - lock.seen_at > LOCK_GRACE_S)


def _holders(snapshot: Snapshot) -> frozenset[tuple[str, str, str]]:
    """The containers that hold places, by namespace, pod and name."""
    return frozenset(
        (holding.namespace, holding.pod, holding.container)
        for holding in snapshot.holdings or ()
        if holding.resource == NUMBER
    )


def _order(pod: VgpuPod) -> tuple[float, str, str]:
    return notes.bound_at(pod) or 0.0, pod.metadata.namespace, pod.metadata.name


def _gpus_of(pod: VgpuPod, snapshot: Snapshot) -> frozenset[str]:
    """The GPUs on which a pod holds places."""
    meta = pod.metadata
    return frozenset(
        id_.partition("::")[0]
        for it in snapshot.holdings or ()
        if (it.namespace, it.pod, it.resource) == (meta.namespace, meta.name, NUMBER)
        for id_ in it.device_ids
    )
