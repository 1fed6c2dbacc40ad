"""The API server, asked by one small client: what is decoded is what is used, and every call ends."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from nodeagent.kube.access import Access
from nodeagent.kube.failure import ApiError
from nodeagent.kube.resource import Json, Resource

__all__ = ["ApiError", "Client", "Event", "Listing"]

T = TypeVar("T")

TIMEOUT_S = 15.0
PAGE = 500


@dataclass(frozen=True, slots=True)
class Listing(Generic[T]):
    """All objects of a list, and the version at which to watch on."""

    items: list[T]
    resource_version: str


@dataclass(frozen=True, slots=True)
class Event(Generic[T]):
    """``type`` is ``ADDED``, ``MODIFIED``, ``DELETED`` or ``BOOKMARK``; a bookmark has no object."""

    type: str
    object: T | None
    resource_version: str


class Client:
    """One API server. Belongs to one event loop; ``close`` ends its threads.

    Every call has a deadline (``timeout_s``, waits that the server asks for included) and raises
    ``ApiError``. ``guard`` is called just before anything is written, and may raise to forbid it: a leader
    whose lease has run out.
    """

    def __init__(
        self,
        access: Access,
        *,
        manager: str = "nodeagent",
        timeout_s: float = TIMEOUT_S,
        guard: Callable[[], None] | None = None,
    ) -> None:
        raise NotImplementedError

    async def close(self) -> None:
        raise NotImplementedError

    async def get(self, resource: Resource[T], name: str, *, namespace: str | None = None) -> T:
        raise NotImplementedError

    async def list(
        self,
        resource: Resource[T],
        *,
        namespace: str | None = None,
        labels: str = "",
        fields: str = "",
        limit: int = PAGE,
    ) -> Listing[T]:
        """Everything, page by page. ``namespace`` ``None`` is all namespaces. ``labels`` and ``fields`` are
        selectors. A continue token that expires starts the list again."""
        raise NotImplementedError

    def watch(
        self,
        resource: Resource[T],
        *,
        resource_version: str,
        namespace: str | None = None,
        labels: str = "",
        fields: str = "",
    ) -> AsyncIterator[Event[T]]:
        """What changes after ``resource_version``, until the server ends the watch (5 to 10 minutes).
        Raises ``ApiError``, with ``gone`` where the version is too old. Closing the iterator ends its
        thread. Most want ``nodeagent.kube.reflect``."""
        raise NotImplementedError

    async def apply(self, resource: Resource[T], obj: Any, *, subresource: str = "", force: bool = True) -> T:
        """Server-side apply of ``obj``, a dict or a struct with ``metadata.name``; ``apiVersion`` and ``kind``
        are added. Without ``force`` a field that another manager owns is a conflict."""
        raise NotImplementedError

    async def patch(
        self,
        resource: Resource[T],
        name: str,
        body: Json,
        *,
        namespace: str | None = None,
        subresource: str = "",
    ) -> T:
        """JSON merge patch. ``metadata.resourceVersion`` in the body makes it conditional (409)."""
        raise NotImplementedError

    async def create(self, resource: Resource[T], obj: Any, *, namespace: str | None = None) -> T:
        raise NotImplementedError

    async def delete(
        self,
        resource: Resource[Any],
        name: str,
        *,
        namespace: str | None = None,
        uid: str | None = None,
        resource_version: str | None = None,
    ) -> None:
        """With ``uid`` or ``resource_version`` only that very object (409 otherwise)."""
        raise NotImplementedError

    async def evict(self, name: str, *, namespace: str) -> None:
        """Ask for a pod's eviction; a disruption budget refuses with 429, which is not tried again."""
        raise NotImplementedError
