"""The API server's log of requests, asked what was written since a moment and by whom.

Nothing here knows what should have been written: the shows say what they claim, and are stopped by what is so.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from nodeagent.sim.apiserver import ApiServer, Seen

WRITES = ("create", "update", "patch", "delete")
SHOWN = 3


@dataclass(frozen=True, slots=True)
class Written:
    """Writes that succeeded, in their order; ``refused`` are those that did not."""

    done: tuple[Seen, ...]
    refused: tuple[Seen, ...]

    def names(self, verb: str, resource: str) -> list[str]:
        return [one.name or "" for one in self.done if (one.verb, one.resource) == (verb, resource)]

    @property
    def kinds(self) -> dict[tuple[str, str], int]:
        """How many, by verb and resource."""
        counts: dict[tuple[str, str], int] = {}
        for one in self.done:
            counts[one.verb, one.resource] = counts.get((one.verb, one.resource), 0) + 1
        return counts

    def lines(self) -> list[str]:
        """One for each verb and resource: how many, and which where they are few."""
        told = []
        for (verb, resource), count in self.kinds.items():
            names = sorted(set(self.names(verb, resource)) - {""})
            few = f": {', '.join(names)}" if 0 < len(names) <= SHOWN else ""
            told.append(f"{count} {verb} {resource}{few}")
        told += [f"refused with {one.status}: {one.verb} {one.resource} {one.name}" for one in self.refused]
        return told or ["nothing"]


class Ledger:
    def __init__(self, server: ApiServer) -> None:
        self._server = server
        self._mark = 0

    def mark(self) -> None:
        """From here on is what an act is asked about."""
        self._mark = len(self._server.requests)

    def written(self, user: str) -> Written:
        """What this user has written since the mark; a Lease is no news."""
        ours = [one for one in self._since() if one.user == user and one.resource != "leases"]
        return Written(
            tuple(one for one in ours if 200 <= one.status < 300),
            tuple(one for one in ours if not 200 <= one.status < 300),
        )

    def _since(self) -> Iterable[Seen]:
        requests: Sequence[Seen] = self._server.requests
        return (one for one in requests[self._mark :] if one.verb in WRITES)
