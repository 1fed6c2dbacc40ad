"""The node's half of Volcano's plugin deviceshare: register the GPUs, follow the placed pods, report, release the lock.

State is a level: each round compares the Node and the pods of this node with what they should be, and patches what
differs. So an agent that was restarted between an allocation and its report continues where it ended.

* The Node lists the GPUs (``REGISTER``). Schedulers up to 1.12 ask by ``HANDSHAKE``, and get an answer.
* A pod whose containers all hold GPUs by podresources gets ``bind-phase: success``, a pod that has ended before gets
  ``failed``, and so does one that asks for memory alone. Volcano counts a pod by its annotations until it is gone.
* A pod whose report is refused waits alone, and the others are reported.
* The node lock is released when its pod is reported, or when no pod waits and it has been seen for ``LOCK_GRACE_S``: a
  scheduler that ended in between, or took its choice back, leaves it behind, and would bind no pod to this node for
  five minutes (``scheduler_lock``).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from nodeagent.base.backoff import JITTER, Backoff
from nodeagent.base.supervise import beside, either, keep
from nodeagent.cluster.deliveries import Delivery
from nodeagent.cluster.retry import ApiRetry
from nodeagent.facts.inventory import Inventory
from nodeagent.facts.model import Snapshot, VgpuShare, VgpuWaiting
from nodeagent.features.volcano_deviceshare import volcano_annotations as notes
from nodeagent.features.volcano_deviceshare.scheduler_lock import SchedulerLock
from nodeagent.features.volcano_deviceshare.volcano_annotations import VgpuPod
from nodeagent.kinds.gpu_access import selected
from nodeagent.kinds.gpu_memory import GpuMemory
from nodeagent.kinds.volcano_vgpus import NUMBER
from nodeagent.kube.client import ApiClient
from nodeagent.kube.failure import ApiError
from nodeagent.kube.reflector import Reflector
from nodeagent.kube.resource import NODES, PODS, Partial

log = logging.getLogger(__name__)

ROUND_S = 5.0
"""Between rounds without a change: locks and choices age."""
REFUSED_FIRST_S, REFUSED_MAX_S = 5.0, 300.0
"""Between the reports on a pod that the API server refuses."""


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
        self._lock = SchedulerLock()
        self._refused: dict[str, tuple[Backoff, float]] = {}
        """The wait of each pod whose report was refused, and when it is tried again; by UID."""
        self._earlier: frozenset[str] | None = None
        """The pods of the first list that may have GPUs by an earlier agent; by UID."""
        self._pods: Reflector[VgpuPod] = Reflector(
            client,
            PODS.typed(VgpuPod),
            fields=f"spec.nodeName={node}",
            changed=self._pod_changed,
            listed=self._pods_listed,
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
                if not self._retry.wait_s(time.monotonic()):
                    try:
                        await self._write(snapshot)
                        if not self._refused:
                            self._retry.succeeded()
                    except ApiError as error:
                        if error.reason != "Conflict" and not error.missing:
                            self._retry.failed(error, time.monotonic())
                news = self._inventory.changed(snapshot.revision), self._changed.wait()
                # Until the lock is released, the scheduler binds no pod to this node.
                await either(*news, timeout_s=self._retry.wait_s(time.monotonic()) or ROUND_S)

    def _pod_changed(self, _key: str, before: VgpuPod | None, now: VgpuPod | None) -> None:
        # The answer to a report may be lost, and a pod may go before its devices.
        if before is not None and self._is_placed(before) and (now is None or not self._is_placed(now)):
            self._lock.pod_reported(before.metadata.uid, notes.bound_at(before) or 0)
        self._publish()  # at once: the kubelet may ask already
        self._changed.set()

    def _pods_listed(self) -> None:
        if self._earlier is None:
            pods = self._pods.objects.values()
            self._earlier = frozenset(pod.metadata.uid for pod in pods if pod.may_hold)

    def _node_changed(self, _key: str, _before: Partial | None, now: Partial | None) -> None:
        text = None if now is None else (now.metadata.annotations or {}).get(notes.NODE_LOCK)
        self._lock.observe(text, self._clock())
        self._changed.set()

    def _publish(self) -> None:
        """Publish the containers that wait, in the order in which they were bound, and the shares of all pods."""
        memory, snapshot = self._settings(), self._inventory.snapshot
        if memory is None:
            return
        sizes = {gpu.uuid: memory.count(gpu) for gpu in selected(snapshot, memory.gpus) if memory.count(gpu)}
        waiting: list[VgpuWaiting] = []
        shares: list[VgpuShare] = []
        known = snapshot.holdings is not None or self._nothing_held()
        for pod in sorted(self._pods.objects.values(), key=_order):
            held = self._held(pod, snapshot)
            shares += notes.vgpu_shares(pod, self._node, sizes, frozenset().union(*held.values()))
            if known:  # before, a pod that has its GPUs would seem to wait
                containers = (
                    *notes.waiting_of(pod, self._node, sizes, self._clock()),
                    *notes.unplaced_of(pod, self._node),
                )
                waiting += [it for it in containers if it.container not in held]
        alive = self._alive()
        granted = frozenset(key for key in snapshot.vgpu_granted if key[0] in alive)
        self._inventory.publish(
            "volcano",
            vgpu_waiting=tuple(waiting),
            vgpu_shares=tuple(shares),
            vgpu_granted=granted,
            vgpu_locked=self._lock.seen,
        )

    def _alive(self) -> set[str]:
        return {pod.metadata.uid for pod in self._pods.objects.values()}

    def _nothing_held(self) -> bool:
        """Whether only this process can have given GPUs to pods. A kubelet without pods lists holdings late
        (``kubelet/holdings.py``)."""
        return self._earlier is not None and not self._earlier & self._alive()

    async def _write(self, snapshot: Snapshot) -> None:
        alive = self._alive()
        self._lock.forget(alive)
        self._refused = {uid: it for uid, it in self._refused.items() if uid in alive}
        for pod in sorted(self._pods.objects.values(), key=_order):
            if (phase := self._phase(pod, snapshot)) is not None:
                await self._report(pod, phase)
        node = self._nodes.objects.get(self._node)
        if node is not None and (changes := self._node_changes(node, snapshot)):
            version, releases = node.metadata.resource_version or "", notes.NODE_LOCK in changes
            if releases:
                version = self._lock.unanswered or version
            meta = {"annotations": changes, "resourceVersion": version}
            try:
                await self._client.patch(NODES, self._node, {"metadata": meta})
            except ApiError as error:
                if releases:
                    self._lock.not_released(version, answered=error.status is not None and error.status < 500)
                raise
            if releases:
                self._lock.released()

    def _phase(self, pod: VgpuPod, snapshot: Snapshot) -> str | None:
        """Return the phase that is to be reported; ``None`` if there is none, or if it is not known yet."""
        if not self._is_placed(pod) or not pod.asking:
            return None
        held, counted = self._held(pod, snapshot), pod.counted
        if counted and all(it.name in held for it in counted):
            return notes.SUCCESS
        return notes.FAILED if pod.ended or not counted else None

    def _held(self, pod: VgpuPod, snapshot: Snapshot) -> dict[str, frozenset[str]]:
        """The containers of a pod that hold places, each with their GPUs.

        The holdings have no UID, and may be of an earlier pod of the name for half a minute. So only a container to
        which this process gave GPUs holds them, or one of a pod that may have them from an earlier agent.
        """
        meta = pod.metadata
        return {
            it.container: frozenset(id_.partition("::")[0] for id_ in it.device_ids)
            for it in snapshot.holdings or ()
            if (it.namespace, it.pod, it.resource) == (meta.namespace, meta.name, NUMBER)
            and (meta.uid in (self._earlier or ()) or (meta.uid, it.container) in snapshot.vgpu_granted)
        }

    async def _report(self, pod: VgpuPod, phase: str) -> None:
        meta = pod.metadata
        now = time.monotonic()
        backoff, at = self._refused.get(
            meta.uid, (Backoff(REFUSED_FIRST_S, REFUSED_MAX_S, jitter=JITTER), now)
        )
        if now < at:
            return
        changes = {notes.BIND_PHASE: phase, notes.PLACED_AT: notes.DONE_AT}
        body = {"metadata": {"annotations": changes, "uid": meta.uid}}
        try:
            await self._client.patch(PODS, meta.name, body, namespace=meta.namespace)
        except ApiError as error:
            if not error.refused:
                raise
            if not (error.missing or error.conflict):  # the watch will show it
                self._refused[meta.uid] = backoff, now + backoff.next_s(error.retry_after_s)
                self._retry.rejected(error)
                log.info("A result is refused. pod=%s/%s reason=%r", meta.namespace, meta.name, str(error))
            return
        self._refused.pop(meta.uid, None)
        self._lock.pod_reported(meta.uid, notes.bound_at(pod) or 0)
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
        now = self._clock()
        waits = any(
            self._is_placed(pod)
            and not pod.admitted
            and now - notes.LOCK_S < (notes.bound_at(pod) or 0) <= now + notes.AHEAD_S
            for pod in self._pods.objects.values()
        )
        if notes.NODE_LOCK in has and self._lock.is_free(now, waited_for=waits):
            changes[notes.NODE_LOCK] = None
        return changes

    def _is_placed(self, pod: VgpuPod) -> bool:
        """Whether the scheduler gave the pod GPUs of this node, and no result is reported yet."""
        has = pod.annotations
        return has.get(notes.PLACED_ON) == self._node and has.get(notes.BIND_PHASE) == notes.ALLOCATING


def _order(pod: VgpuPod) -> tuple[float, str, str]:
    return notes.bound_at(pod) or 0.0, pod.metadata.namespace, pod.metadata.name
