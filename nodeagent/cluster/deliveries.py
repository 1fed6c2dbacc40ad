"""The state of what the agent writes, for each part of the agent: for ``/readyz``, metrics and Events.

A part is ``nodelinks``, ``events``, ``marks``, ``evictions``, ``slices``, ``claims`` or ``volcano``, which write to the
API server, ``nvsentinel``, or ``gpu-labels``, which writes a file for Node Feature Discovery. No failure here makes the
agent unready: devices come first. But claims get a device only through a slice: ``published`` has the pools of those
that can.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable

from nodeagent.kube.failure import ApiError
from nodeagent.metrics.scrape_input import ClusterWrites

LEFT_OUT_SHOWN = 10
SLICES = "slices"


class Delivery:
    """The writes of one part. ``reason``: why they fail at present. ``left_out``: the parts that the server refused."""

    def __init__(self, part: str, changed: asyncio.Event, server: str) -> None:
        self.part, self.server = part, server
        self.reason: str | None = None
        self.refused = False
        """The server answers, and refuses the request for good."""
        self.left_out: tuple[str, ...] = ()
        self.remark: str | None = None
        """A sentence about the part that is no failed write, for ``/readyz``."""
        self.results: Counter[str] = Counter()
        """Writes by result: ``ok``, ``refused``, ``failed``, or ``conflict`` where another client was faster."""
        self.removed = 0
        """Our objects that another client has deleted."""
        self.published: frozenset[str] = frozenset()
        """The pools of devices whose slices the server has had in full, and of which it has refused no write since."""
        self._changed = changed

    def failed(self, error: ApiError) -> None:
        self.missed(str(error), refused=error.refused or error.status == 403)

    def missed(self, reason: str, *, refused: bool) -> None:
        """A write has failed; ``refused``: the server has answered."""
        self.reason, self.refused = reason, refused
        self.results["refused" if refused else "failed"] += 1
        self._changed.set()

    def unmet(self, reason: str) -> None:
        """Nothing is written because the server lacks something."""
        self.refused, self.reason = True, reason
        self._changed.set()

    def succeeded(self, left_out: Iterable[str] = ()) -> None:
        self.results["ok"] += 1
        self.reason, self.refused, self.left_out = None, False, tuple(left_out)
        self._changed.set()

    def ended(self) -> None:
        """There is nothing to write any more."""
        self.reason, self.refused, self.left_out = None, False, ()
        self._changed.set()

    @property
    def writes(self) -> ClusterWrites:
        return ClusterWrites(self.part, dict(self.results), self.reason, self.left_out, self.removed)


class Deliveries:
    """All parts of one agent. ``changed`` is set after each write; the reader clears it."""

    def __init__(self) -> None:
        self.changed = asyncio.Event()
        self._parts: dict[str, Delivery] = {}

    def of(self, part: str, server: str = "the API server") -> Delivery:
        return self._parts.setdefault(part, Delivery(part, self.changed, server))

    def writes(self) -> tuple[ClusterWrites, ...]:
        return tuple(delivery.writes for delivery in self._parts.values())

    def remarks(self) -> tuple[str, ...]:
        """A line for each part whose writes fail or are incomplete, and for each remark."""
        lines = []
        for delivery in self._parts.values():
            if delivery.reason is not None:
                verb = "is refused by" if delivery.refused else "does not reach"
                lines.append(f"cluster {delivery.part}: {verb} {delivery.server}: {delivery.reason}")
            elif delivery.left_out and delivery.part == SLICES:
                lines.append(
                    f"cluster {SLICES}: the API server drops {', '.join(delivery.left_out)}: enable its feature gates"
                )
            elif delivery.left_out:
                lines.append(f"cluster {delivery.part}: {incomplete(delivery.left_out)}")
            if delivery.remark is not None:
                lines.append(f"cluster {delivery.part}: {delivery.remark}")
        return tuple(lines)


def incomplete(left_out: tuple[str, ...]) -> str:
    """The sentence about parts of the report that the API server refused."""
    names = ", ".join(left_out[:LEFT_OUT_SHOWN])
    more = f" and {len(left_out) - LEFT_OUT_SHOWN} more" if len(left_out) > LEFT_OUT_SHOWN else ""
    return (
        f"the API server refused {names}{more}; the rest is published. Is its definition of NodeLinks older than "
        "the agent? Apply nodelinks.yaml"
    )
