"""Read the API server's log of requests: what a user has written since a moment.

This module does not know what should have been written; the demo compares.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from nodeagent.sim.apiserver import ApiServer, RequestRecord

WRITES = ("create", "update", "patch", "delete")
SHOWN = 3


@dataclass(frozen=True, slots=True)
class UserWrites:
    """The successful writes in their order, and the ``refused`` ones."""

    done: tuple[RequestRecord, ...]
    refused: tuple[RequestRecord, ...]

    def names(self, verb: str, resource: str) -> list[str]:
        return [
            request.name or ""
            for request in self.done
            if (request.verb, request.resource) == (verb, resource)
        ]

    @property
    def kinds(self) -> dict[tuple[str, str], int]:
        """The number of writes by verb and resource."""
        counts: dict[tuple[str, str], int] = {}
        for request in self.done:
            key = request.verb, request.resource
            counts[key] = counts.get(key, 0) + 1
        return counts

    def lines(self) -> list[str]:
        """One line for each verb and resource: the count, and the names if they are few."""
        lines = []
        for (verb, resource), count in self.kinds.items():
            names = sorted(set(self.names(verb, resource)) - {""})
            few = f": {', '.join(names)}" if 0 < len(names) <= SHOWN else ""
            lines.append(f"{count} {verb} {resource}{few}")
        lines += [
            f"refused with {request.status}: {request.verb} {request.resource} {request.name}"
            for request in self.refused
        ]
        return lines or ["nothing"]


class RequestLog:
    def __init__(self, server: ApiServer) -> None:
        self._server = server
        self._mark = 0

    def mark(self) -> None:
        """Start a step: ``written`` returns the requests from now on."""
        self._mark = len(self._server.requests)

    def written(self, user: str) -> UserWrites:
        """The writes of this user since the mark, except those of Leases."""
        writes = [
            request for request in self._since() if request.user == user and request.resource != "leases"
        ]
        return UserWrites(
            tuple(request for request in writes if 200 <= request.status < 300),
            tuple(request for request in writes if not 200 <= request.status < 300),
        )

    def _since(self) -> Iterable[RequestRecord]:
        requests: Sequence[RequestRecord] = self._server.requests
        return (request for request in requests[self._mark :] if request.verb in WRITES)
