"""Whether a device has failed under the pods that hold it, and since when. Pure."""

from __future__ import annotations

from nodeagent.facts.model import Health, State
from nodeagent.health.rules.gpu_rules import MISMATCH

FAILED = (State.DOWN, State.UNHEALTHY)
_USABLE_BY_RUNNING_PODS = frozenset({MISMATCH.key})
"""Reasons that keep new pods away, while the pods that hold the device continue to use it."""


def has_failed(health: Health) -> bool:
    """Whether a pod that holds the device cannot use it any more."""
    faults = {reason.key for reason in health.reasons if not reason.warning}
    return health.state in FAILED and not (faults and faults <= _USABLE_BY_RUNNING_PODS)


def failed_since(before: float | None, health: Health, now: float) -> float | None:
    """Return since when a device has failed and is kept from pods; ``before`` is the last answer.

    An unknown state neither begins nor ends a failure.
    """
    if health.state is State.UNKNOWN:
        return before
    if health.allocatable or not has_failed(health):
        return None
    return now if before is None else before
