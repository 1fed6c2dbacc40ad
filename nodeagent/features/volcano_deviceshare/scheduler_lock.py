"""The lock that Volcano sets on the Node between its choice of GPUs and their allocation. Pure.

It is an annotation with a time of whole seconds (pkg/scheduler/plugins/util/nodelock of volcano). The scheduler sets it
before it binds a pod, binds no other pod to the Node until it is gone, and never removes it within five minutes. So a
report on a pod releases the lock that stood since before that pod was bound, once:

* Two locks of one second have the same text, so a lock is what was seen without a gap, and no text.
* A pod is reported again while the watch does not show the first report. The second one releases nothing.
* The watches of pods and of the Node have no common order: the lock of a reported pod may be seen later.
* After a release without an answer it is unknown which lock stands. The same release is sent again, for the same
  version of the Node. If that one is gone, the lock waits like one whose pod never came.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime

LOCK_GRACE_S = 60.0
"""A lock without a pod is kept for as long: the scheduler may still prepare the volumes of its pod."""


class SchedulerLock:
    """``seen``: a lock was seen since the start, so the scheduler locks Nodes."""

    def __init__(self) -> None:
        self.seen = False
        self._text: str | None = None
        self._since = 0.0
        self._reported = False
        """The pod of this lock is reported."""
        self._uids: set[str] = set()
        """The pods that were reported."""
        self.unanswered = ""
        """The version of the Node of a release without an answer."""
        self._early = 0.0
        """When the last pod was bound that was reported while no lock was seen. It counts until a release succeeds."""

    def observe(self, text: str | None, now: float) -> None:
        """Take the annotation of a Node; ``None``: it has none."""
        if text == self._text:
            return
        self._text, self._since, self._reported, self.unanswered = text, now, False, ""
        if text is not None:
            self.seen = True
            self._reported = self._early > 0 and (lock_time(text) or 0.0) <= self._early

    def pod_reported(self, uid: str, bound_at: float) -> None:
        """The result of a pod, bound at ``bound_at`` by the scheduler's clock, is written, or nobody waits for it."""
        if uid in self._uids:
            return
        self._uids.add(uid)
        if self._text is None:
            self._early = max(self._early, bound_at)
        elif (lock_time(self._text) or 0.0) <= bound_at:
            self._reported = True

    def forget(self, alive: Collection[str]) -> None:
        """Drop the pods that are gone."""
        self._uids.intersection_update(alive)

    def released(self) -> None:
        """The API server has removed the lock: what is seen from now on is another one."""
        self._text, self._early, self.unanswered = None, 0.0, ""

    def not_released(self, version: str, *, answered: bool) -> None:
        """The removal from this version of the Node failed; ``answered``: the API server has refused it."""
        if answered and self.unanswered:
            self._reported = False
        self.unanswered = "" if answered else version

    def is_free(self, now: float, *, waited_for: bool) -> bool:
        """Whether to remove it. ``waited_for``: a pod that the scheduler placed here waits for its devices."""
        if self._text is None or waited_for:
            return False
        return self._reported or now - self._since > LOCK_GRACE_S


def lock_time(text: str) -> float | None:
    """Return the time of a node lock in seconds since 1970; ``None`` if it is no time."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return None
    return at.timestamp() if at.tzinfo is not None else None
