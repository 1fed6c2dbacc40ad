"""Evict pods, for one of two causes: off by default, slow, and within disruption budgets.

Rules:

* A pod is evicted after its device has failed without interruption for the configured time (``failed_device_causes``).
  A device whose state is unknown has not failed, and neither has a GPU whose driver was upgraded underneath: its pods
  continue to run.
* Where ``enforcement`` is ``evict``, a pod is evicted after it has used more GPU memory than its share for the
  configured time (``over_use_causes``). A pod without a share is not: its DaemonSet would only make it again.
* With ``cluster.evict.taint`` the Node has its taint before a pod with a failed device is evicted: a scheduler that
  replaces nodes does not choose this one again (``EvictionTaint``). Each eviction looks for it, because a person may
  have removed it. If it is not stored within ``TAINT_S``, the pod goes nevertheless: it cannot work where it is.
* At most one pod in ten seconds. An eviction that a disruption budget or a policy refuses is requested again later,
  each time after a longer wait, and so is one whose pod does not end. It delays no other; a missing right delays all.
* An eviction, and a refusal, is an Event on the pod and on the Node.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from nodeagent.base.backoff import JITTER, Backoff, RateLimit
from nodeagent.base.supervise import either
from nodeagent.cluster.affected_devices import Offered, affected_pods, failed_devices, has_failed
from nodeagent.cluster.deliveries import Delivery
from nodeagent.cluster.event_writer import EventTarget, Notice, NoticeBoard
from nodeagent.cluster.node_marks import DEVICE_TAINT, NodeMarks
from nodeagent.cluster.retry import ApiRetry
from nodeagent.facts.inventory import Inventory
from nodeagent.facts.model import Snapshot
from nodeagent.kube.client import ApiClient, ApiError
from nodeagent.sharing.over_use import OverUse

log = logging.getLogger(__name__)

PER_S = 0.1
"""Of all causes together."""
AGAIN_S = 300.0
"""Until the eviction of a pod that does not end is requested again."""
BUDGET_S = 30.0
"""Until the eviction is requested again for the first time after a disruption budget refused it."""
TAINT_S = 60.0
"""How long the first eviction waits for the taint of the Node. Marks are written once in ten seconds."""
IDLE_S = 3600.0
GIB = 1 << 30

PodName = tuple[str, str]
"""Namespace and name."""


class EvictionCause(NamedTuple):
    """The cause of an eviction: the device that it is about, and a clause for messages. ``since``: when it began, by
    the monotonic clock; ``None``: when it is first seen. ``uid``: of the pod, if it is known; no other pod of
    its name is evicted. ``more`` are the causes of the pod's other devices."""

    about: str
    why: str
    since: float | None = None
    uid: str = ""
    more: tuple[EvictionCause, ...] = ()


Causes = Mapping[PodName, EvictionCause]


def failed_device_causes(snapshot: Snapshot, offered: Offered, after_s: float) -> Causes:
    """The pods that hold a failed device."""
    return _by_pod(
        (
            (pod.namespace, pod.pod),
            EvictionCause(pod.device.key, f"{pod.device.title} has failed for {after_s:g} s"),
        )
        for pod in affected_pods(snapshot, offered)
        if has_failed(pod.device.health)
    )


def over_use_causes(over_uses: Iterable[OverUse], evicting: Collection[str], after_s: float) -> Causes:
    """The pods that exceed their share of one of the GPUs ``evicting``, by UUID."""
    return _by_pod(
        (
            (over.namespace, over.pod),
            EvictionCause(
                over.uuid,
                f"it has used {over.used_bytes / GIB:.1f} GiB of {over.uuid} for {after_s:g} s, and its share is "
                f"{over.granted_bytes / GIB:.1f} GiB",
                over.since,
                over.uid,
            ),
        )
        for over in over_uses
        if over.namespace and over.uid and over.granted_bytes and over.uuid in evicting
    )


def _by_pod(found: Iterable[tuple[PodName, EvictionCause]]) -> Causes:
    causes: dict[PodName, EvictionCause] = {}
    for pod, cause in found:
        first = causes.setdefault(pod, cause)
        if first is not cause:
            causes[pod] = first._replace(more=(*first.more, cause))
    return causes


@dataclass(slots=True)
class EvictionQueue:
    """Since when each pod has a cause, and when to evict the pod. Each of its devices has a time of its own; the cause
    is the device that has the longest."""

    after_s: float
    since: dict[PodName, float] = field(default_factory=dict)
    causes: dict[PodName, EvictionCause] = field(default_factory=dict)
    began: dict[tuple[PodName, str], float] = field(default_factory=dict)
    not_before: dict[PodName, float] = field(default_factory=dict)

    def observe(self, causes: Causes, now: float) -> None:
        again = {
            pod for pod, cause in causes.items() if pod in self.causes and self.causes[pod].uid != cause.uid
        }
        began: dict[tuple[PodName, str], float] = {}
        self.causes, self.since = {}, {}
        for pod, first in causes.items():
            for cause in (first, *first.more):
                since = now if cause.since is None else cause.since
                device = (pod, cause.about)
                began[device] = since if pod in again else self.began.get(device, since)
                if pod not in self.since or began[device] < self.since[pod]:
                    self.causes[pod], self.since[pod] = cause, began[device]
        self.began = began
        self.not_before = {
            pod: at for pod, at in self.not_before.items() if pod in causes and pod not in again
        }

    def due(self, now: float) -> tuple[list[PodName], float]:
        """The pods to evict, the longest waiting first, and the seconds until the next one is due."""
        evict_at = {
            pod: max(since + self.after_s, self.not_before.get(pod, since))
            for pod, since in self.since.items()
        }
        later = [at - now for at in evict_at.values() if at > now]
        due = sorted((pod for pod, at in evict_at.items() if at <= now), key=evict_at.__getitem__)
        return due, min(later, default=IDLE_S)


class EvictionTaint:
    """The taint that evictions ask for and the marks of the Node write. They remove it when pods can get each device
    again that it was asked for.

    It is asked for when a device has failed under a pod for as long as the pod may keep it, also if the pod has ended
    meanwhile: Kueue would make it again on this Node.
    """

    def __init__(self) -> None:
        self.asked: frozenset[str] = frozenset()
        """The devices that ask for it."""
        self.is_stored = False
        self.revision = 0
        self._since: dict[str, float] = {}
        self._inherited = False
        """An earlier agent has set the taint. For which device is not known: it stands for each one that has failed."""
        self._changed = asyncio.Event()

    def observe(self, held: Collection[str], failed: Collection[str], now: float, after_s: float) -> float:
        """``held`` are the failed devices of pods, ``failed`` all that pods cannot get. Return the seconds until one
        more device asks for the taint."""
        kept = {device: since for device, since in self._since.items() if device in held or device in failed}
        self._since = dict.fromkeys(held, now) | kept
        due = {device: since + after_s for device, since in self._since.items()}
        asked = frozenset(device for device, at in due.items() if at <= now)
        if asked != self.asked:
            self.asked = asked
            self._wake()
        return min((at - now for at in due.values() if at > now), default=IDLE_S)

    def is_wanted(self, failed: Collection[str]) -> bool:
        """Whether the Node should have the taint."""
        return bool(self.asked) or (self._inherited and bool(failed))

    def inherit(self, *, stored: bool) -> None:
        """Take the taint of an earlier agent."""
        self._inherited = stored
        self.store(stored)

    def store(self, stored: bool) -> None:
        """The API server has the taint, or has it no more."""
        self._inherited = self._inherited and stored
        if stored != self.is_stored:
            self.is_stored = stored
            self._wake()

    async def changed(self, revision: int) -> None:
        """Return when ``revision`` is no longer the present one."""
        while self.revision == revision:
            await self._changed.wait()

    def _wake(self) -> None:
        self.revision += 1
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


class Evictions:
    """``causes`` returns the pods to evict after ``after_s``; it is called at each snapshot, and each time that
    ``changed`` returns. ``part`` names the notices. ``budget_s`` is the first wait after a refusal. ``taint`` is stored
    before the first eviction; ``None``: no taint."""

    def __init__(
        self,
        client: ApiClient,
        inventory: Inventory,
        causes: Callable[[Snapshot], Causes],
        after_s: float,
        *,
        node: str,
        part: str = "evictions",
        changed: Callable[[], Coroutine[Any, Any, object]] | None = None,
        rate: RateLimit | None = None,
        board: NoticeBoard | None = None,
        delivery: Delivery | None = None,
        budget_s: float = BUDGET_S,
        taint: EvictionTaint | None = None,
    ) -> None:
        self.queue = EvictionQueue(after_s)
        self._client, self._inventory, self._causes = client, inventory, causes
        self._part, self._changed = part, changed
        self._taint, self._asked_at = taint, float("-inf")
        self._node, self._board, self._budget_s = node, board or NoticeBoard(), budget_s
        self._rate = rate or RateLimit(1, PER_S)
        self._retry = ApiRetry("A pod cannot be evicted", delivery)
        self._refusals: dict[PodName, Backoff] = {}
        self._notices: dict[PodName, tuple[Notice, Notice]] = {}

    async def run(self) -> None:
        """Evict until cancelled."""
        while True:
            snapshot = self._inventory.snapshot
            seen = self._taint.revision if self._taint is not None else 0
            self.queue.observe(self._causes(snapshot), time.monotonic())
            self._forget_recovered()
            wait = min(self._ask_for_taint(snapshot), await self._evict())
            others: list[Coroutine[Any, Any, object]] = [self._inventory.changed(snapshot.revision)]
            if self._changed is not None:
                others.append(self._changed())
            if self._taint is not None:
                others.append(self._taint.changed(seen))
            await either(*others, timeout_s=wait)

    async def _evict(self) -> float:
        """Evict the next pod that is due. Return the seconds until there is more to do."""
        now = time.monotonic()
        if (wait := max(self._retry.wait_s(now), self._rate.wait_s(now), self._untainted_s(now))) > 0:
            return wait
        pods, wait = self.queue.due(now)
        for pod in pods[:1]:
            self._rate.take(now)
            namespace, name = pod
            is_tainted = await self._is_tainted()
            try:
                await self._client.evict(name, namespace=namespace, uid=self.queue.causes[pod].uid)
            except ApiError as error:
                if not (error.refused or over_budget(error)):
                    return self._retry.failed(error, now)
                self._refused(pod, error, now)
            else:
                self._evicted(pod, now, is_tainted=is_tainted)
            return self._rate.wait_s(now)
        return wait

    def _ask_for_taint(self, snapshot: Snapshot) -> float:
        """Ask for the taint of the Node if it is time. Return the seconds until it may be."""
        if self._taint is None:
            return IDLE_S
        now, had_asked = time.monotonic(), bool(self._taint.asked)
        held = {device for _, device in self.queue.began}
        wait = self._taint.observe(held, failed_devices(snapshot), now, self.queue.after_s)
        if self._taint.asked and not had_asked:
            self._asked_at = now
        return wait

    def _untainted_s(self, now: float) -> float:
        """The seconds until pods are evicted without the taint of the Node that was asked for."""
        if self._taint is None or self._taint.is_stored or not self._taint.asked:
            return 0.0
        return max(0.0, self._asked_at + TAINT_S - now)

    async def _is_tainted(self) -> bool:
        """Whether the Node has the taint, if it should. It is set where a person has removed it, or where the API
        server was away until now."""
        if self._taint is None:
            return True
        if not self._taint.asked:
            return self._taint.is_stored
        try:
            await NodeMarks(self._client).set_taint(self._node, DEVICE_TAINT, on=True)
        except ApiError:
            return False
        self._taint.store(True)
        return True

    def _evicted(self, pod: PodName, now: float, *, is_tainted: bool) -> None:
        self._retry.succeeded()
        self._refusals.pop(pod, None)
        self.queue.not_before[pod] = now + AGAIN_S
        log.warning("A pod was evicted. pod=%s/%s reason=%r", *pod, self.queue.causes[pod].why)
        without = "" if is_tainted else f" without the taint {DEVICE_TAINT.key} of the Node"
        self._post(pod, "PodEvicted", f"was evicted{without}", warning=False)

    def _refused(self, pod: PodName, error: ApiError, now: float) -> None:
        self._retry.rejected(error)
        backoff = self._refusals.setdefault(pod, Backoff(self._budget_s, AGAIN_S, jitter=JITTER))
        self.queue.not_before[pod] = now + backoff.next_s(error.retry_after_s)
        log.info(
            "A pod is not evicted now. pod=%s/%s reason=%r", *pod, str(error)
        )  # fmt: skip
        if not error.missing:
            who = "a disruption budget" if over_budget(error) else "the API server"
            self._post(pod, "EvictionRefused", f"is not evicted, because {who} refuses it ({error.message})")

    def _post(self, pod: PodName, reason: str, outcome: str, *, warning: bool = True) -> None:
        """Post the notice on the pod and on the Node."""
        namespace, name = pod
        about, why, *_ = self.queue.causes[pod]
        on_pod, on_node = EventTarget("Pod", namespace, name), EventTarget("Node", "", self._node)
        self._notices[pod] = (
            Notice(on_pod, about, reason, f"The pod {outcome}: {why}", warning, recovers=False),
            Notice(
                on_node,
                f"{namespace}/{name}",
                reason,
                f"Pod {namespace}/{name} {outcome}: {why}",
                warning,
                recovers=False,
            ),
        )
        self._forget_recovered()

    def _forget_recovered(self) -> None:
        """Keep only what concerns pods that still have a cause."""
        waiting = self.queue.since
        self._refusals = {pod: backoff for pod, backoff in self._refusals.items() if pod in waiting}
        self._notices = {pod: notices for pod, notices in self._notices.items() if pod in waiting}
        self._board.post(self._part, *(notice for notices in self._notices.values() for notice in notices))


def over_budget(error: ApiError) -> bool:
    """Whether a disruption budget refuses the eviction (429), or there are several (500); a busy server answers these
    too."""
    return error.status is not None and re.search("disruption ?budget", error.message, re.I) is not None
