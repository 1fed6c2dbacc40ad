"""Lists and watches: selectors, pages of one moment, events in the order of versions, bookmarks and 410."""

from __future__ import annotations

import asyncio
import base64
import json
import re
from bisect import bisect_right
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from nodeagent_lab.sim.apiserver.http import HttpRequest
from nodeagent_lab.sim.apiserver.resource_types import ApiKind
from nodeagent_lab.sim.apiserver.responses import ApiRefusedError
from nodeagent_lab.sim.apiserver.store import Store, StoreChange, StoreWatcher, encode

Json = dict[str, Any]
Selector = Callable[[bytes], bool]

_SET = re.compile(r"^\s*(?P<key>[^\s!=,()]+)\s+(?P<op>in|notin)\s*\((?P<values>[^)]*)\)\s*$")
_EQUAL = re.compile(r"^\s*(?P<key>[^\s!=,()]+)\s*(?P<op>==|=|!=)\s*(?P<value>[^\s,()]*)\s*$")
_PRESENT = re.compile(r"^\s*(?P<no>!?)\s*(?P<key>[^\s!=,()]+)\s*$")


class _Labels(msgspec.Struct):
    labels: dict[str, str] | None = None


class _Labeled(msgspec.Struct):
    metadata: _Labels


_labels = msgspec.json.Decoder(_Labeled)


def selector(labels: str, fields: str) -> Selector | None:
    """Return a function that decides whether an encoded object is selected; ``None`` selects all."""
    tests = [_label(term) for term in _terms(labels)]
    wanted = [_field(term) for term in _terms(fields)]
    if not tests and not wanted:
        return None

    def choose(body: bytes) -> bool:
        if tests:
            has = _labels.decode(body).metadata.labels or {}
            if not all(test(has) for test in tests):
                return False
        return not wanted or all(test(msgspec.json.decode(body)) for test in wanted)

    return choose


def _terms(selector: str) -> list[str]:
    return [term for term in re.split(r",(?![^(]*\))", selector) if term.strip()]


def _label(term: str) -> Callable[[dict[str, str]], bool]:
    if match := _SET.match(term):
        key, values = match["key"], {value.strip() for value in match["values"].split(",")}
        if match["op"] == "in":
            return lambda has: has.get(key) in values
        return lambda has: has.get(key) not in values
    if match := _EQUAL.match(term):
        key, value = match["key"], match["value"]
        if match["op"] == "!=":
            return lambda has: has.get(key) != value
        return lambda has: has.get(key) == value
    if match := _PRESENT.match(term):
        key, present = match["key"], not match["no"]
        return lambda has: (key in has) is present
    raise ApiRefusedError(400, f"unable to parse requirement: {term!r}")


def _field(term: str) -> Callable[[Json], bool]:
    match = _EQUAL.match(term)
    if match is None:
        raise ApiRefusedError(400, f"invalid field selector: {term!r}")
    path, value, differs = match["key"].split("."), match["value"], match["op"] == "!="

    def test(obj: Json) -> bool:
        field_value: Any = obj
        for step in path:
            field_value = field_value.get(step) if isinstance(field_value, dict) else None
        return ((field_value if isinstance(field_value, str) else "") == value) is not differs

    return test


_TOO_OLD = (
    "The provided continue parameter is too old to display a consistent list result. You can start a new list "
    "without the continue parameter."
)


class _Meta(msgspec.Struct):
    metadata: msgspec.Raw


_meta = msgspec.json.Decoder(_Meta)


@dataclass(frozen=True, slots=True)
class ObjectView:
    """The form in which objects are sent: complete, or as PartialObjectMetadata."""

    kind: ApiKind
    partial: bool

    def body(self, body: bytes) -> bytes:
        if not self.partial:
            return body
        head = b'{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":'
        return head + bytes(_meta.decode(body).metadata) + b"}"

    def item(self, body: bytes) -> bytes:
        """The object as an item of a list; built-in kinds are listed without apiVersion and kind."""
        if self.partial or self.kind.custom:
            return self.body(body)
        return b'{"metadata":' + body.split(b'"metadata":', 1)[1]

    def list_head(self) -> Json:
        if self.partial:
            return {"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1"}
        return {"kind": f"{self.kind.kind}List", "apiVersion": self.kind.api_version}


def requested_view(kind: ApiKind, accept: str) -> ObjectView:
    """The view that the Accept header requests. 406 for one that the server lacks (tables, protobuf)."""
    for range_ in accept.split(",") if accept else ["*/*"]:
        media, *parameters = [part.strip() for part in range_.split(";")]
        if media not in ("application/json", "*/*", "application/*"):
            continue
        form = dict(parameter.partition("=")[::2] for parameter in parameters).get("as", "")
        if form in ("PartialObjectMetadata", "PartialObjectMetadataList"):
            return ObjectView(kind, partial=True)
        if not form:
            return ObjectView(kind, partial=False)
    raise ApiRefusedError(406, "only the following media types are accepted: application/json")


def list_body(store: Store, view: ObjectView, namespace: str | None, request: HttpRequest) -> bytes:
    """The body of a list, or of one page of it."""
    kind = view.kind
    choose = selector(request.query_value("labelSelector"), request.query_value("fieldSelector"))
    limit, token = int(request.query_value("limit", "0") or 0), request.query_value("continue")
    if token:
        version, after = _decode_token(token)
        items = store.recall(kind.group, kind.plural, namespace, version)
        if items is None:
            fresh = _encode_token(store.version, after)
            raise ApiRefusedError(410, _TOO_OLD, token=fresh)
        start = bisect_right(items[0], after)
    else:
        _check_version(store, request)
        items, version, start = store.items(kind.group, kind.plural, namespace), store.version, 0
    page, next_ = _page(items, start, limit, choose)
    meta: Json = {"resourceVersion": str(version)}
    if next_ is not None:
        store.remember(kind.group, kind.plural, namespace, items) if not token else None
        meta["continue"] = _encode_token(version, items[0][next_ - 1])
        if choose is None:
            meta["remainingItemCount"] = len(items[0]) - next_
    head = encode({**view.list_head(), "metadata": meta})
    return head[:-1] + b',"items":[' + b",".join(map(view.item, page)) + b"]}"


def _page(
    items: tuple[list[str], list[bytes]], start: int, limit: int, choose: Selector | None
) -> tuple[list[bytes], int | None]:
    """The objects of the page, and the start of the next page."""
    keys, bodies = items
    if choose is None:
        end = start + limit if limit else len(keys)
        return bodies[start:end], end if end < len(keys) else None
    page: list[bytes] = []
    for i in range(start, len(keys)):
        if limit and len(page) == limit:
            return page, i
        if choose(bodies[i]):
            page.append(bodies[i])
    return page, None


def _check_version(store: Store, request: HttpRequest) -> None:
    """Refuse a list at a version that does not exist yet."""
    wanted = request.query_value("resourceVersion")
    if wanted and not wanted.isdigit():
        raise ApiRefusedError(
            400, f'Invalid value: "{wanted}": strconv.ParseUint: invalid syntax', reason="Invalid"
        )
    if wanted and int(wanted) > store.version:
        raise ApiRefusedError(
            504, f"Too large resource version: {wanted}, current: {store.version}", retry_after_s=1
        )


def _encode_token(version: int, after: str) -> str:
    token = {"v": "meta.k8s.io/v1", "rv": version, "start": f"{after}\0"}
    return base64.urlsafe_b64encode(json.dumps(token).encode()).decode().rstrip("=")


def _decode_token(token: str) -> tuple[int, str]:
    try:
        content = json.loads(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)))
        return int(content["rv"]), content["start"].rstrip("\0")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ApiRefusedError(400, f"continue key is not valid: {error}") from error


def _event(type_: str, body: bytes) -> bytes:
    return b'{"type":"' + type_.encode() + b'","object":' + body + b"}\n"


def _gone(version: int, since: int) -> bytes:
    refused = ApiRefusedError(410, f"too old resource version: {version} ({since})")
    return _event("ERROR", encode(refused.status()))


async def watch_events(
    store: Store,
    view: ObjectView,
    namespace: str | None,
    name: str | None,
    request: HttpRequest,
    *,
    bookmark_s: float,
) -> AsyncGenerator[bytes, None]:
    """Yield the events of a watch until its timeout, or until the server ends it."""
    kind = view.kind
    table = store.table(kind.group, kind.plural)
    choose = selector(request.query_value("labelSelector"), request.query_value("fieldSelector"))
    wanted = request.query_value("resourceVersion")
    bookmarks = request.query_value("allowWatchBookmarks").lower() in ("true", "1")
    initial = request.query_value("sendInitialEvents").lower() in ("true", "1")
    seconds = float(request.query_value("timeoutSeconds", "0") or 0) or 1800.0
    version = store.version
    watcher = StoreWatcher()

    def selected(key: str) -> bool:
        return (namespace is None or key.startswith(f"{namespace}/")) and (
            name is None or key.rpartition("/")[2] == name
        )

    if initial or wanted in ("", "0"):
        keys, bodies = store.items(kind.group, kind.plural, None)
        first = [
            _event("ADDED", view.body(body))
            for key, body in zip(keys, bodies, strict=True)
            if selected(key) and (choose is None or choose(body))
        ]
        if initial:
            first.append(_event("BOOKMARK", _bookmark(view, version, ended=True)))
    elif int(wanted) < table.since:
        yield _gone(int(wanted), table.since)
        return
    else:
        first = [
            event
            for change in table.after(int(wanted))
            if selected(change.key) and (event := _event_for(change, view, choose))
        ]
    table.watchers.add(watcher)
    try:
        if first:
            yield b"".join(first)
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        while (left := until - loop.time()) > 0:
            try:
                async with asyncio.timeout(
                    min(bookmark_s, left)
                ):  # left before the yield, because it cancels the task
                    change = await watcher.queue.get()
            except TimeoutError:
                if bookmarks:
                    yield _event("BOOKMARK", _bookmark(view, store.version))
                continue
            if change is None:
                return
            if selected(change.key) and (event := _event_for(change, view, choose)):
                yield event
    finally:
        table.watchers.discard(watcher)


def _event_for(change: StoreChange, view: ObjectView, choose: Selector | None) -> bytes | None:
    """The event for a watcher with a selector: an object that no longer matches is ``DELETED``."""
    type_ = change.type
    if choose is not None:
        was = change.before is not None and choose(change.before)
        now = type_ != "DELETED" and choose(change.body)
        if not was and not now:
            return None
        type_ = "MODIFIED" if was and now else "ADDED" if now else "DELETED"
    return _event(type_, view.body(change.body))


def _bookmark(view: ObjectView, version: int, *, ended: bool = False) -> bytes:
    meta: Json = {"resourceVersion": str(version), "creationTimestamp": None}
    if ended:
        meta["annotations"] = {"k8s.io/initial-events-end": "true"}
    kind = "PartialObjectMetadata" if view.partial else view.kind.kind
    api_version = "meta.k8s.io/v1" if view.partial else view.kind.api_version
    return encode({"kind": kind, "apiVersion": api_version, "metadata": meta})
