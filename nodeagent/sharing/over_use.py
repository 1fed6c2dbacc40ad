"""Pods that use more GPU memory than they were granted, after a grace time. Pure.

Rules:

* A pod exceeds its share while it uses more than its grant and the tolerance. The tolerance is for the CUDA contexts of
  its processes, which no program asks for.
* It is reported after ``grace_s`` without interruption, until it is within its share again.
* Only the time between two measurements that are at most ``gap_s`` apart counts. An unknown use neither begins nor
  ends anything.
* Over a restart of the agent the time goes on where it was (``BegunOverUse``): what the earlier agent has measured
  counts, and the time without an agent does not. After ``RESTART_S`` without one it starts again.
* The numbers of a report are those of its beginning: live numbers would change its text at each measurement.
* A pod that is made again has the same name and another UID: its time starts again.
* Memory of processes outside of pods is reported by the same rule, with a share of 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from nodeagent.sharing.gpu_accounts import GpuAccount

RESTART_S = 300.0
"""Longest time without an agent over which a pod counts as beyond its share: an update takes up to a minute."""

Key = tuple[str, str, str]
"""Namespace and name of a pod, both empty for the processes outside of pods, and the UUID of the GPU."""


class OverUse(msgspec.Struct, frozen=True):
    """One pod on one GPU, in bytes. ``since``: when it began to exceed, by the clock of ``observe``.

    ``processes`` names those outside of pods. ``uid`` is that of the pod, empty where it is not known.
    """

    namespace: str
    pod: str
    uuid: str
    granted_bytes: int
    used_bytes: int
    since: float
    processes: str = ""
    uid: str = ""

    @property
    def key(self) -> Key:
        return self.namespace, self.pod, self.uuid


class BegunOverUse(msgspec.Struct, frozen=True):
    """A pod that uses more than its share of one GPU, for ``since_s`` until the last measurement, at ``seen`` by the
    clock of ``observe``."""

    namespace: str
    pod: str
    uuid: str
    uid: str
    since_s: float
    seen: float

    @property
    def key(self) -> Key:
        return self.namespace, self.pod, self.uuid


def exceeds(used_bytes: int, granted_bytes: int, tolerance_bytes: int) -> bool:
    """Whether a pod uses more than its share and the tolerance."""
    return used_bytes > granted_bytes + tolerance_bytes


class OverUses:
    """Which pods exceed their share. Times are seconds of a clock that never goes back. ``earlier`` are the pods that
    did so for an earlier agent."""

    def __init__(
        self, tolerance_bytes: int, grace_s: float, gap_s: float, earlier: Iterable[BegunOverUse] = ()
    ) -> None:
        self.active: dict[Key, OverUse] = {}
        self._tolerance, self._grace_s, self._gap_s = tolerance_bytes, grace_s, gap_s
        self._since: dict[Key, float] = {}
        self._seen_at: dict[Key, float] = {}
        self._uids: dict[Key, str] = {}
        self._earlier = {one.key: one for one in earlier}

    @property
    def begun(self) -> tuple[BegunOverUse, ...]:
        """The pods beyond their share whose UID is known, by name, for a later agent."""
        now = (
            BegunOverUse(*key, self._uids[key], self._seen_at[key] - since, self._seen_at[key])
            for key, since in self._since.items()
            if self._uids[key]
        )
        return tuple(sorted((*now, *self._earlier.values()), key=lambda one: one.key))

    def observe(self, accounts: Iterable[GpuAccount], now: float) -> bool:
        """Take a measurement. Return whether ``active`` has changed."""
        before = dict(self.active)
        current: set[Key] = set()
        for use, known in _uses(accounts, now):
            current.add(use.key)
            if known:
                self._judge(use, now)
        # A pod that is no longer listed has ended: it neither holds nor uses the GPU.
        for key in [key for key in (*self._since, *self.active, *self._earlier) if key not in current]:
            self._end(key)
        return self.active != before

    def _judge(self, use: OverUse, now: float) -> None:
        key = use.key
        if not exceeds(use.used_bytes, use.granted_bytes, self._tolerance):
            self._end(key)
            return
        if self._uids.get(key, use.uid) != use.uid:
            self._end(key)  # another pod of the same name
        self._uids[key] = use.uid
        if now - self._seen_at.get(key, now) > self._gap_s:
            self._since.pop(key, None)
        since = self._since.setdefault(key, now - self._measured_s(use, now))
        self._seen_at[key] = now
        if key not in self.active and now - since >= self._grace_s:
            self.active[key] = msgspec.structs.replace(use, since=since)

    def _measured_s(self, use: OverUse, now: float) -> float:
        """For how long an earlier agent has seen this pod beyond its share."""
        earlier = self._earlier.pop(use.key, None)
        if earlier is None or earlier.uid != use.uid or now - earlier.seen > RESTART_S:
            return 0.0
        return earlier.since_s

    def _end(self, key: Key) -> None:
        self._earlier.pop(key, None)
        self._since.pop(key, None)
        self._seen_at.pop(key, None)
        self._uids.pop(key, None)
        self.active.pop(key, None)


def _uses(accounts: Iterable[GpuAccount], now: float) -> Iterator[tuple[OverUse, bool]]:
    """Yield each user of each GPU, and whether its use is known."""
    for account in accounts:
        for pod in account.pods:
            sizes = (pod.granted_bytes, pod.used_bytes or 0)
            use = OverUse(pod.namespace, pod.pod, account.uuid, *sizes, now, uid=pod.uid)
            yield use, pod.used_bytes is not None
        if account.outside:
            names = ", ".join(f"{process.name or '?'} ({process.pid})" for process in account.outside[:3])
            more = f" and {len(account.outside) - 3} more" if len(account.outside) > 3 else ""
            used = sum(process.memory_bytes for process in account.outside)
            yield OverUse("", "", account.uuid, 0, used, now, names + more), True
