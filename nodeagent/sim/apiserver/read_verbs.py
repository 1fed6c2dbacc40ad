"""Lists and watches: pages of one moment, events in the order of their versions, bookmarks, and 410."""

from __future__ import annotations

import asyncio
import base64
import json
from bisect import bisect_right
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

import msgspec

from nodeagent.sim.apiserver.http import Asked
from nodeagent.sim.apiserver.resource_types import Kind
from nodeagent.sim.apiserver.responses import RefusedError
from nodeagent.sim.apiserver.selectors import Chosen, chosen
from nodeagent.sim.apiserver.store import Change, Store, Watcher, encode

Json = dict[str, Any]

_TOO_OLD = (
    "The provided continue parameter is too old to display a consistent list result. You can start a new list "
    "without the continue parameter."
)


class _Meta(msgspec.Struct):
    metadata: msgspec.Raw


_meta = msgspec.json.Decoder(_Meta)


@dataclass(frozen=True, slots=True)
class View:
    """How objects are shown: whole, or as PartialObjectMetadata."""

    kind: Kind
    partial: bool

    def body(self, body: bytes) -> bytes:
        if not self.partial:
            return body
        head = b'{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":'
        return head + bytes(_meta.decode(body).metadata) + b"}"

    def item(self, body: bytes) -> bytes:
        """As an item of a list: of built-in kinds without apiVersion and kind, as the real one does."""
        if self.partial or self.kind.custom:
            return self.body(body)
        return b'{"metadata":' + body.split(b'"metadata":', 1)[1]

    def list_head(self) -> Json:
        if self.partial:
            return {"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1"}
        return {"kind": f"{self.kind.kind}List", "apiVersion": self.kind.api_version}


def view(kind: Kind, accept: str) -> View:
    """What the Accept header asks for. 406 for what cannot be given (tables, protobuf)."""
    for wish in accept.split(",") if accept else ["*/*"]:
        media, *parameters = [part.strip() for part in wish.split(";")]
        if media not in ("application/json", "*/*", "application/*"):
            continue
        what = dict(one.partition("=")[::2] for one in parameters).get("as", "")
        if what in ("PartialObjectMetadata", "PartialObjectMetadataList"):
            return View(kind, partial=True)
        if not what:
            return View(kind, partial=False)
    raise RefusedError(406, "only the following media types are accepted: application/json")


def listed(store: Store, seen: View, namespace: str | None, asked: Asked) -> bytes:
    """The body of a list, or of one page of it."""
    kind = seen.kind
    choose = chosen(asked.one("labelSelector"), asked.one("fieldSelector"))
    limit, token = int(asked.one("limit", "0") or 0), asked.one("continue")
    if token:
        version, after = _opened(token)
        items = store.recall(kind.group, kind.plural, namespace, version)
        if items is None:
            fresh = _sealed(store.version, after)
            raise RefusedError(410, _TOO_OLD, token=fresh)
        start = bisect_right(items[0], after)
    else:
        _known(store, asked)
        items, version, start = store.items(kind.group, kind.plural, namespace), store.version, 0
    page, next_ = _page(items, start, limit, choose)
    meta: Json = {"resourceVersion": str(version)}
    if next_ is not None:
        store.remember(kind.group, kind.plural, namespace, items) if not token else None
        meta["continue"] = _sealed(version, items[0][next_ - 1])
        if choose is None:
            meta["remainingItemCount"] = len(items[0]) - next_
    head = encode({**seen.list_head(), "metadata": meta})
    return head[:-1] + b',"items":[' + b",".join(map(seen.item, page)) + b"]}"


def _page(
    items: tuple[list[str], list[bytes]], start: int, limit: int, choose: Chosen | None
) -> tuple[list[bytes], int | None]:
    """What is on the page, and where the next one begins."""
    keys, bodies = items
    if choose is None:
        end = start + limit if limit else len(keys)
        return bodies[start:end], end if end < len(keys) else None
    found: list[bytes] = []
    for i in range(start, len(keys)):
        if limit and len(found) == limit:
            return found, i
        if choose(bodies[i]):
            found.append(bodies[i])
    return found, None


def _known(store: Store, asked: Asked) -> None:
    """A list at a version that is not there yet would be a list of the future."""
    wanted = asked.one("resourceVersion")
    if wanted and not wanted.isdigit():
        raise RefusedError(
            400, f'Invalid value: "{wanted}": strconv.ParseUint: invalid syntax', reason="Invalid"
        )
    if wanted and int(wanted) > store.version:
        raise RefusedError(
            504, f"Too large resource version: {wanted}, current: {store.version}", retry_after_s=1
        )


def _sealed(version: int, after: str) -> str:
    said = {"v": "meta.k8s.io/v1", "rv": version, "start": f"{after}\0"}
    return base64.urlsafe_b64encode(json.dumps(said).encode()).decode().rstrip("=")


def _opened(token: str) -> tuple[int, str]:
    try:
        said = json.loads(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)))
        return int(said["rv"]), said["start"].rstrip("\0")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RefusedError(400, f"continue key is not valid: {error}") from error


def _event(type_: str, body: bytes) -> bytes:
    return b'{"type":"' + type_.encode() + b'","object":' + body + b"}\n"


def _gone(version: int, since: int) -> bytes:
    refused = RefusedError(410, f"too old resource version: {version} ({since})")
    return _event("ERROR", encode(refused.status()))


async def watched(
    store: Store,
    seen: View,
    namespace: str | None,
    name: str | None,
    asked: Asked,
    *,
    bookmark_s: float,
) -> AsyncGenerator[bytes, None]:
    """The events of a watch until its time is over or the server ends it."""
    kind = seen.kind
    table = store.table(kind.group, kind.plural)
    choose = chosen(asked.one("labelSelector"), asked.one("fieldSelector"))
    wanted = asked.one("resourceVersion")
    marks = asked.one("allowWatchBookmarks").lower() in ("true", "1")
    initial = asked.one("sendInitialEvents").lower() in ("true", "1")
    seconds = float(asked.one("timeoutSeconds", "0") or 0) or 1800.0
    version = store.version
    watcher = Watcher()

    def mine(key: str) -> bool:
        return (namespace is None or key.startswith(f"{namespace}/")) and (
            name is None or key.rpartition("/")[2] == name
        )

    if initial or wanted in ("", "0"):
        keys, bodies = store.items(kind.group, kind.plural, None)
        begun = [
            _event("ADDED", seen.body(body))
            for key, body in zip(keys, bodies, strict=True)
            if mine(key) and (choose is None or choose(body))
        ]
        if initial:
            begun.append(_event("BOOKMARK", _bookmark(seen, version, ended=True)))
    elif int(wanted) < table.since:
        yield _gone(int(wanted), table.since)
        return
    else:
        begun = [
            one
            for change in table.after(int(wanted))
            if mine(change.key) and (one := _shown(change, seen, choose))
        ]
    table.watchers.add(watcher)
    try:
        if begun:
            yield b"".join(begun)
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        while (left := until - loop.time()) > 0:
            try:
                async with asyncio.timeout(
                    min(bookmark_s, left)
                ):  # closed before the yield: it cancels the task
                    change = await watcher.queue.get()
            except TimeoutError:
                if marks:
                    yield _event("BOOKMARK", _bookmark(seen, store.version))
                continue
            if change is None:
                return
            if mine(change.key) and (one := _shown(change, seen, choose)):
                yield one
    finally:
        table.watchers.discard(watcher)


def _shown(change: Change, seen: View, choose: Chosen | None) -> bytes | None:
    """The change as a watcher with a selector sees it: what no longer matches is deleted to it."""
    type_ = change.type
    if choose is not None:
        was = change.before is not None and choose(change.before)
        now = type_ != "DELETED" and choose(change.body)
        if not was and not now:
            return None
        type_ = "MODIFIED" if was and now else "ADDED" if now else "DELETED"
    return _event(type_, seen.body(change.body))


def _bookmark(seen: View, version: int, *, ended: bool = False) -> bytes:
    meta: Json = {"resourceVersion": str(version), "creationTimestamp": None}
    if ended:
        meta["annotations"] = {"k8s.io/initial-events-end": "true"}
    kind = "PartialObjectMetadata" if seen.partial else seen.kind.kind
    api_version = "meta.k8s.io/v1" if seen.partial else seen.kind.api_version
    return encode({"kind": kind, "apiVersion": api_version, "metadata": meta})
