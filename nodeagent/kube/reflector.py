"""A copy of what the API server has of one resource, kept by list and watch for as long as ``run`` runs.

The law of this file:

* A list is the truth and a watch keeps it up to date. Whatever ends a watch (its time, the connection, 410)
  leads to another watch where the version still serves, and to a list where it does not.
* Silence is not absence: while nobody answers, ``objects`` stands as it was and ``trouble`` says why.
* Starting again waits, longer each time and at random, so that no herd arrives with the server.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable
from contextlib import aclosing
from typing import Any, Generic, TypeVar

from nodeagent.backoff import JITTER, Backoff
from nodeagent.kube.client import Client
from nodeagent.kube.failure import ApiError
from nodeagent.kube.resource import Resource, metadata

log = logging.getLogger(__name__)

U = TypeVar("U")

Changed = Callable[[str, Any, Any], None]
"""Told the key, what was and what is; ``None`` is absence."""

BACKOFF_FIRST_S = 1.0
BACKOFF_MAX_S = 60.0
SHORT_S = 1.0
"""A watch that ended sooner counts as a failure, or a server that ends each at once would be asked in a loop."""


class Reflector(Generic[U]):
    """``objects`` are by name, or by ``namespace/name`` where all namespaces are watched.

    ``take`` makes of each decoded object what is kept (interned, thinned out). ``changed`` is called after
    ``objects`` has been brought up to date, for each object that differs (``==``), in the event loop.
    ``synced`` is set after the first whole list.
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
        first_s: float = BACKOFF_FIRST_S,
        max_s: float = BACKOFF_MAX_S,
    ) -> None:
        self.objects: dict[str, U] = {}
        self.synced = asyncio.Event()
        self.restarts: Counter[str] = Counter()
        """Lists by cause: ``start``, ``gone``, ``error``, ``doubt``."""
        self.watches = 0
        """Watches begun."""
        self.trouble: str | None = None
        """Why the copy is getting old at present; ``None`` while all is well."""
        self.resource = resource
        self._client = client
        self._namespace = namespace
        self._labels = labels
        self._take = take if take is not None else _same
        self._changed = changed if changed is not None else _ignore
        self._first_s = first_s
        self._max_s = max_s
        self._heard: float | None = None
        self._version = ""
        self._failed = ""
        self._doubted = asyncio.Event()

    @property
    def age_s(self) -> float | None:
        """Seconds since the server was last heard on this (a bookmark comes each minute); ``None`` before the
        first list."""
        return None if self._heard is None else time.monotonic() - self._heard

    async def run(self) -> None:
        """Keep the copy until cancelled. An ``ApiError`` is said once, counted and tried again with back-off."""
        backoff = Backoff(self._first_s, self._max_s, jitter=JITTER)
        cause = "start"
        while True:
            began = time.monotonic()
            if self._doubted.is_set():
                cause = "doubt"
            try:
                if not self._version:
                    self.restarts[cause] += 1
                    await self._list()
                    self._well("list")
                await self._watch_on()
                self._well("watch")
                failed, wait = time.monotonic() - began < SHORT_S, None
            except ApiError as error:
                failed, wait = True, error.retry_after_s
                if error.gone:
                    self._version, cause = "", "gone"
                elif error.status is not None and error.status < 500 and error.status != 429:
                    self._version, cause = (
                        "",
                        "error",
                    )  # what the server would not have, it need not have again
                if not error.gone:
                    self._ill(error)
            if failed and time.monotonic() - began < self._max_s:
                await asyncio.sleep(max(wait or 0.0, backoff.next_s()))
            else:
                backoff.reset()

    async def _list(self) -> None:
        found: dict[str, U] = {}

        def take(obj: Any) -> None:
            found[self._key(obj)] = self._take(obj)

        version = await self._client.list_each(
            self.resource, take, found.clear, namespace=self._namespace, labels=self._labels
        )
        self._heard = time.monotonic()
        before, self.objects, self._version = self.objects, found, version
        for key in before.keys() - found.keys():
            self._changed(key, before[key], None)
        for key, now in found.items():
            if (was := before.get(key)) != now:
                self._changed(key, was, now)
        self.synced.set()

    def doubt(self) -> None:
        """Somebody knows better: the watch that is open is ended, and everything is listed again."""
        self._doubted.set()

    async def _watch_on(self) -> None:
        """Watch until it ends, or until the copy is doubted."""
        self._doubted.clear()
        watching = asyncio.ensure_future(self._watch())
        doubted = asyncio.ensure_future(self._doubted.wait())
        try:
            await asyncio.wait({watching, doubted}, return_when=asyncio.FIRST_COMPLETED)
            if watching.done():
                watching.result()
            else:
                self._version = ""
        finally:
            doubted.cancel()
            watching.cancel()
            await asyncio.gather(watching, doubted, return_exceptions=True)

    async def _watch(self) -> None:
        self.watches += 1
        events = self._client.watch(
            self.resource, resource_version=self._version, namespace=self._namespace, labels=self._labels
        )
        async with aclosing(events):
            async for event in events:
                self._heard = time.monotonic()
                self._well("watch")
                if event.resource_version:
                    self._version = event.resource_version
                if event.object is None:
                    continue
                key = self._key(event.object)
                was = self.objects.get(key)
                if event.type == "DELETED":
                    self.objects.pop(key, None)
                    now = None
                else:
                    now = self.objects[key] = self._take(event.object)
                if was != now:
                    self._changed(key, was, now)

    def _key(self, obj: Any) -> str:
        meta = metadata(obj)
        if self._namespace is None and meta.namespace:
            return f"{meta.namespace}/{meta.name}"
        return meta.name

    def _well(self, verb: str) -> None:
        """``verb`` has succeeded, which says nothing of the other."""
        if self.trouble is None or self._failed not in (verb, "list"):
            return
        log.info("The API server tells again of %s.", self.resource.plural)
        self.trouble = None

    def _ill(self, error: ApiError) -> None:
        if self.trouble is None:
            log.warning("What is known of %s is getting old. reason=%r", self.resource.plural, str(error))
        self.trouble, self._failed = str(error), error.verb


def _same(obj: Any) -> Any:
    return obj


def _ignore(_key: str, _was: Any, _now: Any) -> None:
    pass
