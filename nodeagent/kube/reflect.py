"""A copy of what the API server has of one resource, kept by list and watch for as long as ``run`` runs."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from nodeagent.kube.client import Client
from nodeagent.kube.resource import Resource

U = TypeVar("U")

Changed = Callable[[str, Any, Any], None]
"""Told the key, what was and what is; ``None`` is absence."""


class Reflector(Generic[U]):
    """``objects`` are by name, or by ``namespace/name`` where all namespaces are watched.

    ``take`` makes of each decoded object what is kept (interned, thinned out). ``changed`` is called after
    ``objects`` has been brought up to date, for each object that differs (``==``), in the event loop.
    ``synced`` is set after the first whole list. Between lists that fail, ``objects`` stands as it was:
    silence is not absence.
    """

    def __init__(
        self,
        client: Client,
        resource: Resource[Any],
        *,
        namespace: str | None = None,
        labels: str = "",
        take: Callable[[Any], U] | None = None,
        changed: Changed | None = None,
    ) -> None:
        self.objects: dict[str, U] = {}
        self.synced = asyncio.Event()
        self.restarts: Counter[str] = Counter()
        """Lists by cause: ``start``, ``gone``, ``error``."""
        self.trouble: str | None = None
        """Why the copy is getting old at present; ``None`` while all is well."""
        raise NotImplementedError

    @property
    def age_s(self) -> float | None:
        """Seconds since the server was last heard on this; ``None`` before the first list."""
        raise NotImplementedError

    async def run(self) -> None:
        """Keep the copy until cancelled. An ``ApiError`` is said once, counted and tried again with back-off."""
        raise NotImplementedError
