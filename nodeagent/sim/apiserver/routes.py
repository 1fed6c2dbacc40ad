"""From a request that is allowed to its answer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from nodeagent.sim.apiserver import authorization
from nodeagent.sim.apiserver.api_discovery import described
from nodeagent.sim.apiserver.http import Answer, Asked
from nodeagent.sim.apiserver.read_verbs import listed, view, watched
from nodeagent.sim.apiserver.request_target import REVIEWS, SELF_REVIEWS, Target
from nodeagent.sim.apiserver.resource_types import Kind
from nodeagent.sim.apiserver.responses import RefusedError
from nodeagent.sim.apiserver.store import Store, encode, key_of
from nodeagent.sim.apiserver.write_verbs import Verbs, Write

Json = dict[str, Any]

APPLY = ("application/apply-patch+yaml", "application/apply-patch+json")


class Routes:
    def __init__(
        self, store: Store, verbs: Verbs, kinds: Mapping[tuple[str, str, str], Kind], bookmark_s: float
    ) -> None:
        self._store = store
        self._verbs = verbs
        self._kinds = kinds
        self._bookmark_s = bookmark_s

    def answer(self, asked: Asked, about: Target, user: authorization.User) -> Answer:
        if about.plural in REVIEWS:
            return Answer(201, encode(self._review(_json(asked), user, about.plural)))
        if about.kind is None:
            return self._plain(asked)
        accept = asked.headers.get("accept", "")
        seen = view(about.kind, accept)
        if about.verb == "list":
            return Answer(200, listed(self._store, seen, about.namespace, asked))
        if about.verb == "watch":
            return Answer(
                200,
                stream=watched(
                    self._store, seen, about.namespace, about.name, asked, bookmark_s=self._bookmark_s
                ),
            )
        if about.subresource == "eviction":
            return self._evict(asked, about)
        if about.subresource not in ("", "status") or (about.subresource and not about.kind.status):
            raise RefusedError(404, "the server could not find the requested resource")
        code, obj = self._one(asked, about)
        return Answer(code, seen.body(encode(obj)))

    def _one(self, asked: Asked, about: Target) -> tuple[int, Json]:
        kind = about.kind
        assert kind is not None
        agent = asked.headers.get("user-agent", "unknown").partition("/")[0]
        write = Write(
            kind,
            about.namespace,
            about.name,
            about.subresource,
            asked.one("fieldManager") or agent,
            asked.one("fieldValidation") == "Strict",
            asked.one("dryRun") == "All",
        )
        if about.verb == "get":
            return 200, self._verbs.get(kind, about.namespace, about.name or "")
        if about.verb == "create":
            return 201, self._verbs.create(write, _json(asked))
        if about.verb == "update":
            return 200, self._verbs.update(write, _json(asked))
        if about.verb == "patch":
            content_type = asked.headers.get("content-type", "").partition(";")[0]
            if content_type not in APPLY:
                return 200, self._verbs.patch(write, content_type, asked.body)
            force = asked.one("force").lower() in ("true", "1")
            key = key_of(about.namespace, about.name or "")
            there = self._store.get(kind.group, kind.plural, key) is not None
            return (200 if there else 201), self._verbs.apply(write, asked.body, force=force)
        if about.verb == "delete":
            return 200, self._verbs.delete(write, _json(asked) if asked.body else {})
        return self._delete_all(asked, write)

    def _delete_all(self, asked: Asked, write: Write) -> tuple[int, Json]:
        seen = view(write.kind, "")
        found = json.loads(listed(self._store, seen, write.namespace, asked))
        for obj in found["items"]:
            meta = obj["metadata"]
            self._verbs.delete(Write(write.kind, meta.get("namespace"), meta["name"], "", write.manager), {})
        return 200, found

    def _evict(self, asked: Asked, about: Target) -> Answer:
        if about.verb != "create" or about.kind is None or about.kind.plural != "pods":
            raise RefusedError(405, "the server does not allow this method on the requested resource")
        eviction = _json(asked)
        write = Write(about.kind, about.namespace, about.name, "", "eviction")
        self._verbs.delete(write, eviction.get("deleteOptions") or {})
        done = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}
        return Answer(201, encode(done))

    def _plain(self, asked: Asked) -> Answer:
        if asked.path in ("/healthz", "/readyz", "/livez"):
            return Answer(200, b"ok", "text/plain")
        if (found := described(asked.path, self._kinds.values())) is None:
            raise RefusedError(404, "the server could not find the requested resource")
        return Answer(200, encode(found))

    def _review(self, review: Json, user: authorization.User, plural: str) -> Json:
        spec = review.get("spec") or {}
        if plural != SELF_REVIEWS:
            user = authorization.User(str(spec.get("user", "")), tuple(spec.get("groups") or ()))
        wanted = spec.get("resourceAttributes") or {}
        about = Target(
            wanted.get("verb", ""),
            "",
            wanted.get("group", ""),
            wanted.get("version", ""),
            wanted.get("resource", ""),
            wanted.get("namespace") or None,
            wanted.get("name") or None,
            wanted.get("subresource", ""),
        )
        return {**review, "status": {"allowed": authorization.allowed(self._store, user, about)}}


def _json(asked: Asked) -> Json:
    try:
        found = json.loads(asked.body)
    except ValueError as error:
        raise RefusedError(400, f"the body of the request is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise RefusedError(400, "the body of the request is no object")
    return found
