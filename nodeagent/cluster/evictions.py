"""Evict pods, for one of two causes: off by default, slow, and within disruption budgets.

Rules:

* A pod is evicted after its device has failed without interruption for the configured time (``failed_device_causes``),
  which counts from the begin of the failure, under an earlier agent too. A device whose state is unknown has not
  failed, and neither has a GPU whose driver was upgraded underneath: its pods continue to run.
* Each eviction names the UID of the pod that held the device (``held_pods``), because controllers use names again. A
  pod that is gone ends its cause, whoever has its name.
* Where ``enforcement`` is ``evict``, a pod is evicted after it has used more GPU memory than its share for the
  configured time (``over_use_causes``). A pod without a share is not: its DaemonSet would only make it again.
* With ``cluster.evict.taint`` the Node has its taint before a pod with a failed device is evicted: a scheduler that
  replaces nodes does not choose this one again (``EvictionTaint``). Each eviction looks for it, because a person may
  have removed it. If it is not stored within ``TAINT_S``, the pod goes nevertheless: it cannot work where it is.
* At most one turn in ten seconds: the pods that one failed device has, which belong to one job most often, or one pod
  that exceeds its share. An eviction that a disruption budget or a policy refuses is requested again later, each time
  after a longer wait. It delays no other; a missing right delays all.
* An eviction, and a refusal, is an Event on the pod and on the Node.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from nodeagent.base.backoff import JITTER, Backoff, RateLimit
from nodeagent.base.supervise import either
from nodeagent.cluster.affected_devices import Offered, affected_pods, failed_devices
from nodeagent.cluster.deliveries import Delivery
from nodeagent.cluster.event_writer import EventTarget, Notice, NoticeBoard
from nodeagent.cluster.held_pods import HeldDevice, HeldPods, read_pod
from nodeagent.cluster.node_marks import DEVICE_TAINT, NodeMarks
from nodeagent.cluster.retry import ApiRetry
from nodeagent.facts.inventory import Inventory
from nodeagent.facts.model import Snapshot
from nodeagent.health.device_failure import has_failed
from nodeagent.kube.client import ApiClient, ApiError
from nodeagent.sharing.over_use import OverUse

log = logging.getLogger(__name__)

PER_S = 0.1
"""The turns of all causes together."""
AGAIN_S = 300.0
"""Until a pod that was asked to end is looked at again."""
BUDGET_S = 30.0
"""Until the eviction is requested again for the first time after a disruption budget refused it."""
TAINT_S = 60.0
"""How long the first eviction waits for the taint of the Node. Marks are written once in ten seconds."""
IDLE_S = 3600.0
GIB = 1 << 30

PodName = tuple[str, str]
"""Namespace and name."""


class EvictionCause(NamedTuple):
    """The cause of an eviction: the device that it is about, and ``fact`` and ``more_facts`` for messages. ``since``:
    when it began, by the monotonic clock; ``None``: when it is first seen. ``uid`` is that of the pod; until it is
    known, no pod is evicted. ``ids`` are the IDs of the devices that the pod holds. Pods with the same ``turn`` are
    evicted together. ``more`` are the causes of the pod's other devices."""

    about: str
    fact: str
    since: float | None = None
    uid: str = ""
    more_facts: str = ""
    ids: tuple[str, ...] = ()
    turn: str = ""
    more: tuple[EvictionCause, ...] = ()

    def why(self, seconds: float) -> str:
        """The cause after so many seconds, as a clause."""
        return f"{self.fact} for {seconds:.0f} s{self.more_facts}"


Causes = Mapping[PodName, EvictionCause]


def failed_device_causes(
    snapshot: Snapshot, offered: Offered, failed_s: Callable[[Collection[str]], float | None], now: float
) -> Causes:
    """The pods that hold a failed device of a device plugin; those with one of a claim go by a taint of the device
    (``health.noExecute``). ``failed_s`` returns for how long one of these devices has failed, by PCI
    address or UUID; ``now`` is the monotonic clock."""
    return _by_pod(
        (
            (pod.namespace, pod.pod),
            EvictionCause(
                pod.device.key,
                f"{pod.device.title} has failed",
                None if (seconds := failed_s((pod.device.key, *pod.device_ids))) is None else now - seconds,
                ids=pod.device_ids,
                turn=pod.device.key,
            ),
        )
        for pod in affected_pods(snapshot, offered)
        if has_failed(pod.device.health) and not pod.claim
    )


def over_use_causes(over_uses: Iterable[OverUse], evicting: Collection[str]) -> Causes:
    """The pods that exceed their share of one of the GPUs ``evicting``, by UUID."""
    return _by_pod(
        (
            (over.namespace, over.pod),
            EvictionCause(
                over.uuid,
                f"it has used {over.used_bytes / GIB:.1f} GiB of {over.uuid}",
                over.since,
                over.uid,
                f", and its share is {over.granted_bytes / GIB:.1f} GiB",
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
        before = self.causes
        others = {
            pod
            for pod in before.keys() & causes
            if before[pod].uid not in ("", *(one.uid for one in (causes[pod], *causes[pod].more)))
        }
        """The pods whose names others have now."""
        began: dict[tuple[PodName, str], float] = {}
        self.causes, self.since = {}, {}
        for pod, first in causes.items():
            for cause in (first, *first.more):
                device = (pod, cause.about)
                seen = now if pod in others else self.began.get(device, now)
                began[device] = seen if cause.since is None else cause.since
                if pod not in self.since or began[device] < self.since[pod]:
                    self.causes[pod], self.since[pod] = cause, began[device]
        self.began = began
        self.not_before = {
            pod: at for pod, at in self.not_before.items() if pod in causes and pod not in others
        }

    def due(self, now: float) -> tuple[list[PodName], float]:
        """The pods to evict whose UIDs are known, the longest waiting first, and the seconds until the next one is
        due."""
        evict_at = {
            pod: max(since + self.after_s, self.not_before.get(pod, since))
            for pod, since in self.since.items()
            if self.causes[pod].uid
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

    def observe(
        self, held: Mapping[str, float], failed: Collection[str], now: float, after_s: float
    ) -> float:
        """``held`` are the failed devices of pods, each with the time since when, ``failed`` all that pods cannot get.
        Return the seconds until one more device asks for the taint."""
        kept = {device: since for device, since in self._since.items() if device in held or device in failed}
        self._since = {**held, **kept}
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
    ``changed`` returns. ``pods`` finds the UIDs that it leaves out; ``None``: it leaves none out. ``part`` names the
    notices. ``budget_s`` is the first wait after a refusal. ``taint`` is stored before the first eviction; ``None``: no
    taint."""

    def __init__(
        self,
        client: ApiClient,
        inventory: Inventory,
        causes: Callable[[Snapshot], Causes],
        after_s: float,
        *,
        node: str,
        pods: HeldPods | None = None,
        part: str = "evictions",
        changed: Callable[[], Coroutine[Any, Any, object]] | None = None,
        rate: RateLimit | None = None,
        board: NoticeBoard | None = None,
        delivery: Delivery | None = None,
        budget_s: float = BUDGET_S,
        taint: EvictionTaint | None = None,
    ) -> None:
        self.queue = EvictionQueue(after_s)
        self._client, self._inventory, self._causes, self._pods = client, inventory, causes, pods
        self._changed = changed
        self._taint, self._asked_at = taint, float("-inf")
        self._node, self._budget_s = node, budget_s
        self._tell = partial((board or NoticeBoard()).post, part)
        self._rate = rate or RateLimit(1, PER_S)
        self._retry = ApiRetry("A pod cannot be evicted", delivery)
        self._refusals: dict[tuple[PodName, str], Backoff] = {}
        self._notices: dict[tuple[PodName, str], tuple[Notice, Notice]] = {}

    async def run(self) -> None:
        """Evict until cancelled."""
        while True:
            snapshot = self._inventory.snapshot
            seen = self._taint.revision if self._taint is not None else 0
            causes, identified_s = await self._identified(self._causes(snapshot))
            self.queue.observe(causes, time.monotonic())
            self._forget_recovered()
            wait = min(identified_s, self._ask_for_taint(snapshot), await self._evict())
            others: list[Coroutine[Any, Any, object]] = [self._inventory.changed(snapshot.revision)]
            if self._changed is not None:
                others.append(self._changed())
            if self._taint is not None:
                others.append(self._taint.changed(seen))
            await either(*others, timeout_s=wait)

    async def _identified(self, causes: Causes) -> tuple[Causes, float]:
        """Return the causes with the UIDs that are known, and the seconds until there may be more."""
        if self._pods is None:
            return causes, IDLE_S
        held = {
            HeldDevice(*pod, cause.about): cause.ids
            for pod, first in causes.items()
            for cause in (first, *first.more)
        }
        self._pods.keep(held)
        if (wait := self._retry.wait_s(time.monotonic())) == 0:
            try:
                wait = await self._pods.identify(held)
            except ApiError as error:
                wait = self._retry.failed(error, time.monotonic())
        uids = self._pods.uids

        def named(pod: PodName, cause: EvictionCause) -> EvictionCause:
            return cause._replace(
                uid=uids.get(HeldDevice(*pod, cause.about), ""),
                more=tuple(named(pod, one) for one in cause.more),
            )

        return {pod: named(pod, cause) for pod, cause in causes.items()}, wait

    async def _evict(self) -> float:
        """Evict the pods whose turn it is. Return the seconds until there is more to do."""
        now = time.monotonic()
        if (wait := max(self._retry.wait_s(now), self._rate.wait_s(now), self._untainted_s(now))) > 0:
            return wait
        turn, is_tainted = "", False
        for pod in self.queue.due(now)[0]:
            cause, (namespace, name) = self.queue.causes[pod], pod
            own_turn = cause.turn or cause.uid
            if turn not in ("", own_turn):
                continue
            try:
                if not await self._runs(pod, cause):
                    continue
                if not turn:
                    turn = own_turn
                    self._rate.take(time.monotonic())
                    is_tainted = await self._is_tainted()
                await self._client.evict(name, namespace=namespace, uid=cause.uid)
            except ApiError as error:
                now = time.monotonic()
                if not (error.refused or over_budget(error)):
                    return self._retry.failed(error, now)
                if error.missing or names_another_pod(error):
                    self._has_ended(pod, cause)
                else:
                    self._refused(pod, error, now)
            else:
                self._evicted(pod, time.monotonic(), is_tainted=is_tainted)
        now = time.monotonic()
        return self._rate.wait_s(now) if turn else self.queue.due(now)[1]

    async def _runs(self, pod: PodName, cause: EvictionCause) -> bool:
        """Whether the pod of this cause is there and nobody has asked it to end. The API server compares the UID of
        an eviction after it has taken a disruption of the budget of the other pod, and of a Pending pod after ten
        seconds. Raises ``ApiError``."""
        try:
            found = await read_pod(self._client, *pod)
        except ApiError as error:
            if error.status != 403:
                raise
            return True  # an eviction needs no right to read: the server compares the UID
        if found is None or found.uid != cause.uid or found.has_ended:
            self._has_ended(pod, cause)
            return False
        if found.ends:
            self.queue.not_before[pod] = time.monotonic() + AGAIN_S
        return not found.ends

    def _has_ended(self, pod: PodName, cause: EvictionCause) -> None:
        log.info("A pod has ended before its eviction. pod=%s/%s uid=%s", *pod, cause.uid)
        self.queue.not_before[pod] = time.monotonic() + self._budget_s
        if self._pods is not None:
            self._pods.forget(HeldDevice(*pod, cause.about))

    def _ask_for_taint(self, snapshot: Snapshot) -> float:
        """Ask for the taint of the Node if it is time. Return the seconds until it may be."""
        if self._taint is None:
            return IDLE_S
        now, had_asked = time.monotonic(), bool(self._taint.asked)
        held: dict[str, float] = {}
        for (_, device), since in self.queue.began.items():
            held[device] = min(since, held.get(device, since))
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
        uid = self.queue.causes[pod].uid
        self._refusals.pop((pod, uid), None)
        self.queue.not_before[pod] = now + AGAIN_S
        log.warning("A pod was evicted. pod=%s/%s uid=%s reason=%r", *pod, uid, self._why(pod, now))
        without = "" if is_tainted else f" without the taint {DEVICE_TAINT.key} of the Node"
        self._post(pod, now, "PodEvicted", f"was evicted{without}", warning=False)

    def _refused(self, pod: PodName, error: ApiError, now: float) -> None:
        self._retry.rejected(error)
        key = pod, self.queue.causes[pod].uid
        backoff = self._refusals.setdefault(key, Backoff(self._budget_s, AGAIN_S, jitter=JITTER))
        self.queue.not_before[pod] = now + backoff.next_s(error.retry_after_s)
        log.info("A pod is not evicted now. pod=%s/%s uid=%s reason=%r", *pod, key[1], str(error))
        who = "a disruption budget" if over_budget(error) else "the API server"
        self._post(pod, now, "EvictionRefused", f"is not evicted, because {who} refuses it ({error.message})")

    def _why(self, pod: PodName, now: float) -> str:
        return self.queue.causes[pod].why(now - self.queue.since[pod])

    def _post(self, pod: PodName, now: float, reason: str, outcome: str, *, warning: bool = True) -> None:
        """Post the notice on the pod and on the Node."""
        cause, name, why = self.queue.causes[pod], "/".join(pod), self._why(pod, now)
        on_pod, on_node = EventTarget("Pod", *pod, uid=cause.uid), EventTarget("Node", "", self._node)
        self._notices[pod, cause.uid] = (
            Notice(on_pod, cause.about, reason, f"The pod {outcome}: {why}", warning, recovers=False),
            Notice(
                on_node,
                f"{name} {cause.uid}",
                reason,
                f"Pod {name} {outcome}: {why}",
                warning,
                recovers=False,
            ),
        )
        self._forget_recovered()

    def _forget_recovered(self) -> None:
        """Keep only what concerns pods that still have a cause."""
        waiting = {(pod, cause.uid) for pod, cause in self.queue.causes.items()}
        self._refusals = {key: backoff for key, backoff in self._refusals.items() if key in waiting}
        self._notices = {key: notices for key, notices in self._notices.items() if key in waiting}
        self._tell(*(notice for notices in self._notices.values() for notice in notices))


def over_budget(error: ApiError) -> bool:
    """Whether a disruption budget refuses the eviction (429), or there are several (500); a busy server answers these
    too."""
    return error.status is not None and re.search("disruption ?budget", error.message, re.I) is not None


def names_another_pod(error: ApiError) -> bool:
    """Whether the pod with the UID of the eviction is gone, and another one has its name."""
    return error.conflict and "UID in" in error.message and "precondition" in error.message
