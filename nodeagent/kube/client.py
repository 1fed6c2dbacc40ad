"""A small client of the API server: it decodes only the fields that are used, and every call ends.

Rules:

* What a server sends is bounded (``answer_bounds``). A page of a list that is too large is requested in smaller parts.
* The verbs are Kubernetes' own. Each call has one deadline, which includes the waits that the server requests
  (``Retry-After`` with 429 and 5xx). It returns a decoded object or raises an ``ApiError``.
* A few threads do the blocking work, one for each watch; the event loop only waits. A caller that stops waiting ends
  the call: its socket is shut down.
* A call is repeated only if the server refuses it with a time to wait, and each time later (``backoff``). Callers work
  by level and call again anyway.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

import msgspec

from nodeagent import __version__
from nodeagent.base.backoff import JITTER, Backoff
from nodeagent.base.bounded_calls import in_thread
from nodeagent.kube import answer_bounds
from nodeagent.kube.access import Access
from nodeagent.kube.api_request import OBJECT_MAX, ApiRequest
from nodeagent.kube.failure import ApiError
from nodeagent.kube.resource import PODS, Json, Resource, WatchEvent
from nodeagent.kube.transport import CONNECTIONS, ApiCall, Transport
from nodeagent.kube.watch_stream import WatchStream

__all__ = ["ApiClient", "ApiError", "Listing"]

T = TypeVar("T")
U = TypeVar("U")

_TIMEOUT_S = 15.0
PAGE_OBJECTS = 500
THREADS = 4
RESTARTS_MAX = 2
"""After so many expired continue tokens, the list is requested in one piece, if it is small enough."""
SMALLER = 8
"""A page that is too large is requested again with this part of its objects."""
WATCH_S = (300, 600)
"""The time after which the server ends a watch: random, so that the watches of many nodes do not end together."""
GRACE_S = 30.0
"""How much longer than the server the client keeps a watch."""
NO_DATA_S = 150.0
"""The server sends a bookmark each minute; a watch without data for so long is broken."""
API_RETRY_FIRST_S, _RETRY_MAX_S = 1.0, 60.0
"""Between the attempts of one call that the server refuses for the moment, whatever wait it asks for."""

_PARTIAL = "application/json;as=PartialObjectMetadata{};g=meta.k8s.io;v=v1,application/json"


@dataclass(frozen=True, slots=True)
class Listing(Generic[T]):
    """All objects of a list, and the version from which to watch."""

    items: list[T]
    resource_version: str


class _ListMeta(msgspec.Struct, rename="camel"):
    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class _Page(msgspec.Struct, Generic[T]):
    metadata: _ListMeta
    items: list[T] | None = None


class ApiClient:
    """A client of one API server. Belongs to one event loop; ``close`` ends its threads.

    Every call has a deadline (``timeout_s``, including requested waits) and raises ``ApiError``. ``guard`` is called
    just before each write; it returns the seconds that the write may take, or raises to forbid it, as a lease that
    has expired does. ``manager`` is the field manager of writes.
    """

    def __init__(
        self,
        access: Access,
        *,
        manager: str = "nodeagent",
        timeout_s: float = _TIMEOUT_S,
        guard: Callable[[], float] | None = None,
        no_data_s: float = NO_DATA_S,
        threads: int = THREADS,
    ) -> None:
        self.access = access
        self._no_data_s = no_data_s
        self.manager = manager
        self._timeout_s = timeout_s
        self._guard = guard
        self._threads = asyncio.Semaphore(threads)
        self._connections = max(CONNECTIONS, threads)
        self._transport: Transport | None = None
        self._decoders: dict[Any, msgspec.json.Decoder[Any]] = {}
        self._watches: set[WatchStream[Any]] = set()

    async def close(self) -> None:
        """End all calls and watches, and their threads."""
        watches = list(self._watches)
        for stream in watches:
            stream.abort()
        for stream in watches:
            await stream.ended.wait()
        if self._transport is not None:
            self._transport.close()

    async def get(
        self, resource: Resource[T], name: str, *, namespace: str | None = None, subresource: str = ""
    ) -> T:
        request = self._request("get", "GET", resource, namespace, name, subresource)
        return self._decode(request, await self._send(request), resource.struct)

    async def list(
        self,
        resource: Resource[T],
        *,
        namespace: str | None = None,
        labels: str = "",
        fields: str = "",
        cached: bool = False,
    ) -> Listing[T]:
        """All objects, page by page. ``namespace`` ``None`` is all namespaces. ``labels`` and ``fields`` are
        selectors. An expired continue token starts the list again. ``cached``: from the API server's memory, in one
        page and perhaps some seconds old, without a read of etcd (``resourceVersion=0``)."""
        items: list[T] = []
        take, restart = items.append, items.clear
        version = await self.list_each(
            resource, take, restart, namespace=namespace, labels=labels, fields=fields, cached=cached
        )
        return Listing(items, version)

    async def list_each(
        self,
        resource: Resource[T],
        take: Callable[[T], object],
        restart: Callable[[], object],
        *,
        namespace: str | None = None,
        labels: str = "",
        fields: str = "",
        cached: bool = False,
    ) -> str:
        """List without keeping the objects: at most one page of them exists at a time.

        ``take`` receives each object. ``restart`` is called when the list starts again: drop what was taken. Returns
        the version from which to watch. ``cached``: see ``list``.
        """
        restarts, token, count, limit = 0, "", 0, PAGE_OBJECTS
        for _ in range(answer_bounds.PAGES_MAX):
            query = _selected(labels, fields)
            query |= {"limit": str(limit)} if limit else {}
            query |= {"continue": token} if token else {"resourceVersion": "0"} if cached else {}
            request = self._request("list", "GET", resource, namespace, query=query)
            try:
                body = await self._send(request)
                page = self._decode(request, body, _Page[resource.struct])  # type: ignore[name-defined]
            except ApiError as error:
                if error.reason == "TooLarge" and limit != 1:
                    limit = max(1, (limit or PAGE_OBJECTS) // SMALLER)
                    continue
                if not (error.gone and token):
                    raise
                restarts, token, count = restarts + 1, "", 0
                limit = 0 if restarts == RESTARTS_MAX + 1 else limit
                restart()
                continue
            count += len(page.items or ())
            if count > answer_bounds.OBJECTS_MAX:
                raise answer_bounds.too_large(request, f"more than {answer_bounds.OBJECTS_MAX} objects")
            for item in page.items or ():
                take(item)
            token = page.metadata.continue_
            if not token:
                return page.metadata.resource_version
            del page, body
        raise answer_bounds.too_large(request, f"more than {answer_bounds.PAGES_MAX} pages")

    async def watch(
        self,
        resource: Resource[T],
        *,
        resource_version: str,
        namespace: str | None = None,
        labels: str = "",
        fields: str = "",
    ) -> AsyncGenerator[WatchEvent[T], None]:
        """Yield the changes after ``resource_version`` until the server ends the watch (5 to 10 minutes).

        Raises ``ApiError``, with ``gone`` if the version has expired. Close the iterator to end its thread
        (``contextlib.aclosing``). ``kube.reflector`` keeps a copy with it.
        """
        seconds = random.randint(*WATCH_S)  # noqa: S311 - no secret
        query = _selected(labels, fields) | {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": resource_version,
            "timeoutSeconds": str(seconds),
        }
        request = self._request("watch", "GET", resource, namespace, query=query)
        call = self._call(request, seconds + GRACE_S)
        stream = WatchStream(self._opened(), call, self._decoder(resource.struct), self._no_data_s)
        self._watches.add(stream)
        # A server that sends a byte now and then, and no event, never meets a limit of the socket.
        deadline = asyncio.get_running_loop().call_later(call.left_s, stream.abort)
        stream.start()
        try:
            while (event := await stream.next()) is not None:
                yield event
        finally:
            deadline.cancel()
            stream.abort()
            self._watches.discard(stream)

    async def apply(
        self,
        resource: Resource[T],
        obj: Any,
        *,
        subresource: str = "",
        force: bool = True,
        manager: str | None = None,
    ) -> T:
        """Server-side apply of ``obj``, a dict or a struct with ``metadata.name``; ``apiVersion`` and ``kind``
        are added. Without ``force``, a field of another manager is a conflict."""
        body = _with_kind(resource, obj)
        meta = body["metadata"]
        query = {"fieldManager": manager or self.manager, "force": "true" if force else "false"}
        request = self._request(
            "patch", "PATCH", resource, meta.get("namespace"), meta["name"], subresource, query, body
        )
        request = msgspec.structs.replace(request, content_type="application/apply-patch+yaml")
        return self._decode(request, await self._send(request), resource.struct)

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
        query = {"fieldManager": self.manager}
        request = self._request("patch", "PATCH", resource, namespace, name, subresource, query, body)
        request = msgspec.structs.replace(request, content_type="application/merge-patch+json")
        return self._decode(request, await self._send(request), resource.struct)

    async def create(self, resource: Resource[T], obj: Any, *, namespace: str | None = None) -> T:
        """Create ``obj``; 409 (``AlreadyExists``) if it exists. The object may contain its namespace."""
        body = _with_kind(resource, obj)
        namespace = namespace or body["metadata"].get("namespace")
        query = {"fieldManager": self.manager}
        request = self._request("create", "POST", resource, namespace, query=query, body=body)
        return self._decode(request, await self._send(request), resource.struct)

    async def delete(
        self,
        resource: Resource[Any],
        name: str,
        *,
        namespace: str | None = None,
        uid: str | None = None,
        resource_version: str | None = None,
    ) -> None:
        """Delete the object; with ``uid`` or ``resource_version`` only if it has these (else 409)."""
        required = {"uid": uid, "resourceVersion": resource_version}
        preconditions = {key: value for key, value in required.items() if value is not None}
        body = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
        request = self._request(
            "delete", "DELETE", resource, namespace, name, body=body | {"preconditions": preconditions}
        )
        await self._send(request)

    async def evict(self, name: str, *, namespace: str, uid: str) -> None:
        """Evict the pod of this UID. Another one of its name is refused with 409, a Pending one after ten seconds. A
        disruption budget refuses with 429; it is asked before the UID is compared. The request is sent once."""
        body: Json = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": namespace},
            "deleteOptions": {"preconditions": {"uid": uid}},
        }
        request = self._request("create", "POST", PODS, namespace, name, "eviction", body=body)
        await self._send(request, repeat=False)

    # --- requests ------------------------------------------------------------------------------------------

    def _request(
        self,
        verb: str,
        method: str,
        resource: Resource[Any],
        namespace: str | None,
        name: str | None = None,
        subresource: str = "",
        query: dict[str, str] | None = None,
        body: Json | None = None,
    ) -> ApiRequest:
        accept = "application/json"
        if resource.metadata_only:
            accept = _PARTIAL.format("List" if verb == "list" else "")
        return ApiRequest(
            verb,
            method,
            resource.path(namespace, name, subresource),
            f"{resource.plural}/{subresource}" if subresource else resource.plural,
            resource.group,
            namespace,
            query or {},
            None if body is None else msgspec.json.encode(body),
            answer_bounds.LIST_MAX if verb == "list" else OBJECT_MAX,
            accept=accept,
        )

    def _opened(self) -> Transport:
        if self._transport is None:
            self._transport = Transport(self.access, f"nodeagent/{__version__}", self._connections)
        return self._transport

    def _call(self, request: ApiRequest, seconds: float) -> ApiCall:
        return ApiCall(request, time.monotonic() + seconds)

    async def _send(self, request: ApiRequest, *, repeat: bool = True) -> bytearray:
        """Send the request, and again after a ``Retry-After`` if time is left. Return the answer's body."""
        until = time.monotonic() + self._timeout_s
        backoff = Backoff(API_RETRY_FIRST_S, _RETRY_MAX_S, jitter=JITTER)
        while True:
            try:
                return await self._once(request, until - time.monotonic())
            except ApiError as error:
                asked = error.status == 429 or (
                    (error.status or 0) >= 500 and error.retry_after_s is not None
                )
                wait_s = backoff.next_s(error.retry_after_s)
                if not (repeat and asked) or time.monotonic() + wait_s >= until:
                    raise
            await asyncio.sleep(wait_s)

    async def _once(self, request: ApiRequest, seconds: float) -> bytearray:
        call = self._call(request, seconds)
        guard = None if request.method == "GET" else self._guard
        working: asyncio.Future[bytearray] | None = None
        try:
            async with asyncio.timeout(max(seconds, 0)):
                await self._threads.acquire()
                working = in_thread(partial(self._opened().send, call, guard))
                working.add_done_callback(lambda _: self._threads.release())
                return await asyncio.shield(working)
        except TimeoutError:
            call.abort()
            message = f"no answer of {self.access.server} within {self._timeout_s:g} s"
            raise ApiError(request.verb, request.path, None, "Timeout", message) from None
        finally:
            if working is not None and not working.done():
                call.abort()
                working.add_done_callback(lambda done: done.cancelled() or done.exception())

    def _decoder(self, type_: Any) -> msgspec.json.Decoder[Any]:
        decoder = self._decoders.get(type_)
        if decoder is None:
            decoder = self._decoders[type_] = msgspec.json.Decoder(type_)
        return decoder

    def _decode(self, request: ApiRequest, body: bytearray, type_: type[U]) -> U:
        decoded: U = answer_bounds.decode_answer(request, body, self._decoder(type_))
        return decoded


def _selected(labels: str, fields: str) -> dict[str, str]:
    query = {"labelSelector": labels, "fieldSelector": fields}
    return {key: value for key, value in query.items() if value}


def _with_kind(resource: Resource[Any], obj: Any) -> Json:
    """The object to send, with ``apiVersion`` and ``kind``."""
    body = obj if isinstance(obj, dict) else msgspec.to_builtins(obj)
    return {"apiVersion": resource.api_version, "kind": resource.kind, **body}
