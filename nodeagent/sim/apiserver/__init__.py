"""A stand-in API server: HTTP and HTTPS, small and real, for the tests, the benchmarks and the demo."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["ApiServer", "Seen"]

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Seen:
    """A request as the server saw it; ``verb`` is RBAC's, ``resource`` the plural with its subresource
    (``nodes/status``), ``status`` what was answered."""

    verb: str
    group: str
    resource: str
    namespace: str | None
    name: str | None
    user: str
    status: int


class ApiServer:
    """Start it in an event loop; ask it over HTTP, or read and write its store at once, as a test does.

    Nodes, Pods, Events, Leases, RBAC and CRDs are known, HyperNodes and NodeLinks are installed.
    """

    def __init__(self, *, tls: bool = False, rbac: bool = False) -> None:
        self.requests: list[Seen] = []
        raise NotImplementedError

    async def start(self, port: int = 0) -> ApiServer:
        raise NotImplementedError

    async def stop(self) -> None:
        raise NotImplementedError

    @property
    def url(self) -> str:
        raise NotImplementedError

    def token(self, user: str = "admin", groups: tuple[str, ...] = ("system:masters",)) -> str:
        """A bearer token; ``system:serviceaccount:<namespace>:<name>`` is a service account's."""
        raise NotImplementedError

    def objects(self, plural: str, namespace: str | None = None) -> list[Json]:
        """What is stored now, sorted by namespace and name; ``plural`` as ``nodes``."""
        raise NotImplementedError

    def put(self, obj: Json) -> Json:
        """Create or replace an object past all checks; its ``apiVersion`` and ``kind`` say where."""
        raise NotImplementedError

    def remove(self, plural: str, name: str, namespace: str | None = None) -> None:
        raise NotImplementedError

    def fail(
        self,
        how: str = "500",
        *,
        verb: str | None = None,
        resource: str | None = None,
        name: str | None = None,
        times: int | None = 1,
        retry_after_s: int | None = None,
    ) -> None:
        """The next ``times`` requests that match (``None``: all from now on) go wrong: ``how`` is a status
        ("500", "429", "403", …), ``hang`` (no answer), ``half`` (half a body), ``close`` (nothing),
        ``deny`` (an admission webhook refuses) or ``webhook`` (it cannot be reached)."""
        raise NotImplementedError

    def heal(self) -> None:
        """Forget all faults."""
        raise NotImplementedError

    def expire(self) -> None:
        """Compact: older resource versions and continue tokens are gone (410)."""
        raise NotImplementedError
