"""A copy of all objects of one resource, kept up to date by list and watch while ``run`` runs.

Rules:

* A list is the truth and a watch keeps it current. When a watch ends (its time, the connection, 410), another watch
  follows if the version is still valid, else a list.
* Without an answer ``objects`` stays as it was, and ``trouble`` gives the reason.
* Retries wait longer each time and at random, so that not all nodes return together with the server.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable
from contextlib import aclosing
from typing import Any, Generic, TypeVar

from nodeagent.base.backoff import JITTER, Backoff
from nodeagent.kube.answer_bounds import OBJECTS_MAX
from nodeagent.kube.client import ApiClient
from nodeagent.kube.failure import ApiError
from nodeagent.kube.resource import Resource, metadata

log = logging.getLogger(__name__)

U = TypeVar("U")

Changed = Callable[[str, Any, Any], None]
"""Receives the key, the object before and the object now; ``None``: it does not exist."""

_BACKOFF_FIRST_S = 1.0
_BACKOFF_MAX_S = 60.0
SHORT_S = 1.0
"""A watch that ends sooner counts as a failure; else a server that ends each watch at once would cause a busy loop."""
WATCH_QUIET_S = 10.0
"""The same for a watch without an event. Real servers end a watch after minutes, proxies end an idle one after tens of
seconds."""


class Reflector(Generic[U]):
    """``objects`` are by name, or by ``namespace/name`` where all namespaces are watched.

    ``take`` turns each decoded object into the value to keep (smaller, interned). ``changed`` is called in the event
    loop for each object that differs (``==``), after ``objects`` is up to date. ``synced`` is set after the first
    complete list. ``listed`` is called after each list.

    With ``optional`` the cluster may lack the definition of the resource: then there are no objects, ``lacking`` is
    true and ``synced`` is set. ``optional`` is called when the definition has appeared.
    """

    def __init__(
        self,
        client: ApiClient,
        resource: Resource[Any],
        *,
        namespace: str | None = None,
        labels: str = "",
        fields: str = "",
        take: Callable[[Any], U] | None = None,
        changed: Changed | None = None,
        optional: Callable[[], None] | None = None,
        listed: Callable[[], None] | None = None,
        first_s: float = _BACKOFF_FIRST_S,
        max_s: float = _BACKOFF_MAX_S,
    ) -> None:
        self.objects: dict[str, U] = {}
        self.synced = asyncio.Event()
        self.restarts: Counter[str] = Counter()
        """Lists by cause: ``start``, ``gone``, ``error``, ``doubt``."""
        self.watches = 0
        """Watches started."""
        self.lacking = False
        self.trouble: str | None = None
        """Why the copy is not kept up to date at present; ``None``: it is."""
        self.resource = resource
        self._client = client
        self._namespace = namespace
        self._labels, self._fields = labels, fields
        self._take = take if take is not None else _same
        self._changed = changed if changed is not None else _ignore
        self._optional = optional
        self._listed = listed
        self.list_version = ""
        """The version of the latest complete list: ``objects`` has every write up to it."""
        self._first_s = first_s
        self._max_s = max_s
        self._answered_at: float | None = None
        self._version = ""
        self._failed_verb = ""
        self._doubted = asyncio.Event()

    @property
    def age_s(self) -> float | None:
        """Seconds since the last list, event or bookmark (one each minute); ``None`` before the first list."""
        return None if self._answered_at is None else time.monotonic() - self._answered_at

    async def run(self) -> None:
        """Keep the copy until cancelled. The first ``ApiError`` is logged, and each is retried with back-off."""
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
                    self._succeeded("list")
                before = self._answered_at
                await self._watch_or_doubt()
                self._succeeded("watch")
                quiet = self._answered_at == before and not self._doubted.is_set()
                failed, wait = time.monotonic() - began < (WATCH_QUIET_S if quiet else SHORT_S), None
            except ApiError as error:
                failed, wait = True, error.retry_after_s
                if error.gone:
                    self._version, cause = "", "gone"
                elif error.status is not None and error.status < 500 and error.status != 429:
                    # The server refuses this version: do not send it again.
                    self._version, cause = "", "error"
                if error.missing and error.verb == "list" and self._optional is not None:
                    self._lack(error)
                elif not error.gone:
                    self._failed(error)
            if failed and time.monotonic() - began < self._max_s:
                await asyncio.sleep(backoff.next_s(wait))
            else:
                backoff.reset()

    async def _list(self) -> None:
        listed: dict[str, U] = {}

        def take(obj: Any) -> None:
            listed[self._key(obj)] = self._take(obj)

        version = await self._client.list_each(
            self.resource,
            take,
            listed.clear,
            namespace=self._namespace,
            labels=self._labels,
            fields=self._fields,
        )
        self._answered_at = time.monotonic()
        before, self.objects, self._version = self.objects, listed, version
        self.list_version = version
        for key in before.keys() - listed.keys():
            self._changed(key, before[key], None)
        for key, now in listed.items():
            if (was := before.get(key)) != now:
                self._changed(key, was, now)
        self.synced.set()
        if self._listed is not None:
            self._listed()
        if self.lacking and self._optional is not None:
            self.lacking = False
            self._optional()

    def doubt(self) -> None:
        """End the open watch and list again: the caller has seen that the copy is outdated."""
        self._doubted.set()

    async def _watch_or_doubt(self) -> None:
        """Watch until the watch ends or ``doubt`` is called."""
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
            self.resource,
            resource_version=self._version,
            namespace=self._namespace,
            labels=self._labels,
            fields=self._fields,
        )
        async with aclosing(events):
            async for event in events:
                self._answered_at = time.monotonic()
                self._succeeded("watch")
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
                    if len(self.objects) > OBJECTS_MAX:
                        message = f"the watch has more than {OBJECTS_MAX} objects"
                        raise ApiError("watch", self.resource.path(self._namespace), 200, "TooLarge", message)
                if was != now:
                    self._changed(key, was, now)

    def _key(self, obj: Any) -> str:
        meta = metadata(obj)
        if self._namespace is None and meta.namespace:
            return f"{meta.namespace}/{meta.name}"
        return meta.name

    def _succeeded(self, verb: str) -> None:
        """End the trouble if ``verb`` had failed, or the list before it."""
        if self.trouble is None or self._failed_verb not in (verb, "list"):
            return
        log.info("Watch re-established. resource=%s", self.resource.plural)
        self.trouble = None

    def _lack(self, error: ApiError) -> None:
        """Continue without objects. The list is repeated until it succeeds."""
        if not self.lacking:
            log.warning(
                "The cluster has no definition of this resource; what needs it waits for it. resource=%s",
                f"{self.resource.plural}.{self.resource.group}",
            )
        self.lacking = True
        self.trouble, self._failed_verb = "the cluster has no definition of this resource", error.verb
        self.synced.set()

    def _failed(self, error: ApiError) -> None:
        if self.trouble is None:
            log.warning("Watch is stale. resource=%s reason=%r", self.resource.plural, str(error))
        self.trouble, self._failed_verb = str(error), error.verb


def _same(obj: Any) -> Any:
    return obj


def _ignore(_key: str, _before: Any, _now: Any) -> None:
    pass
