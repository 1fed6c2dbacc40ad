"""The answer to each authorized request."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from nodeagent_lab.sim.apiserver import authorization
from nodeagent_lab.sim.apiserver.http import HttpAnswer, HttpRequest
from nodeagent_lab.sim.apiserver.read_verbs import list_body, requested_view, watch_events
from nodeagent_lab.sim.apiserver.request_target import REVIEWS, SELF_REVIEWS, RequestTarget
from nodeagent_lab.sim.apiserver.resource_types import ApiKind, discovery_document
from nodeagent_lab.sim.apiserver.responses import ApiRefusedError
from nodeagent_lab.sim.apiserver.store import Store, encode, key_of
from nodeagent_lab.sim.apiserver.write_verbs import WriteOptions, WriteVerbs

Json = dict[str, Any]

APPLY = ("application/apply-patch+yaml", "application/apply-patch+json")


class Routes:
    def __init__(
        self,
        store: Store,
        verbs: WriteVerbs,
        kinds: Mapping[tuple[str, str, str], ApiKind],
        bookmark_s: float,
        minor: int,
    ) -> None:
        self._store = store
        self._verbs = verbs
        self._kinds = kinds
        self._bookmark_s = bookmark_s
        self._minor = minor

    def answer(self, request: HttpRequest, target: RequestTarget, user: authorization.ApiUser) -> HttpAnswer:
        if target.plural in REVIEWS:
            return HttpAnswer(201, encode(self._review(_json(request), user, target.plural)))
        if target.kind is None:
            return self._plain(request)
        accept = request.headers.get("accept", "")
        view = requested_view(target.kind, accept)
        if target.verb == "list":
            return HttpAnswer(200, list_body(self._store, view, target.namespace, request))
        if target.verb == "watch":
            return HttpAnswer(
                200,
                stream=watch_events(
                    self._store, view, target.namespace, target.name, request, bookmark_s=self._bookmark_s
                ),
            )
        if target.subresource == "eviction":
            return self._evict(request, target)
        if target.subresource == "binding":
            return self._bind(request, target)
        if target.subresource not in ("", "status") or (target.subresource and not target.kind.status):
            raise ApiRefusedError(404, "the server could not find the requested resource")
        code, obj = self._one_object(request, target)
        return HttpAnswer(code, view.body(encode(obj)))

    def _one_object(self, request: HttpRequest, target: RequestTarget) -> tuple[int, Json]:
        kind = target.kind
        assert kind is not None
        agent = request.headers.get("user-agent", "unknown").partition("/")[0]
        write = WriteOptions(
            kind,
            target.namespace,
            target.name,
            target.subresource,
            request.query_value("fieldManager") or agent,
            request.query_value("fieldValidation") == "Strict",
            request.query_value("dryRun") == "All",
        )
        if target.verb == "get":
            return 200, self._verbs.get(kind, target.namespace, target.name or "")
        if target.verb == "create":
            return 201, self._verbs.create(write, _json(request))
        if target.verb == "update":
            return 200, self._verbs.update(write, _json(request))
        if target.verb == "patch":
            content_type = request.headers.get("content-type", "").partition(";")[0]
            if content_type not in APPLY:
                return 200, self._verbs.patch(write, content_type, request.body)
            force = request.query_value("force").lower() in ("true", "1")
            key = key_of(target.namespace, target.name or "")
            exists = self._store.get(kind.group, kind.plural, key) is not None
            return (200 if exists else 201), self._verbs.apply(write, request.body, force=force)
        if target.verb == "delete":
            return 200, self._verbs.delete(write, _json(request) if request.body else {})
        return self._delete_all(request, write)

    def _delete_all(self, request: HttpRequest, write: WriteOptions) -> tuple[int, Json]:
        view = requested_view(write.kind, "")
        deleted = json.loads(list_body(self._store, view, write.namespace, request))
        for obj in deleted["items"]:
            meta = obj["metadata"]
            self._verbs.delete(
                WriteOptions(write.kind, meta.get("namespace"), meta["name"], "", write.manager), {}
            )
        return 200, deleted

    def _evict(self, request: HttpRequest, target: RequestTarget) -> HttpAnswer:
        if target.verb != "create" or target.kind is None or target.kind.plural != "pods":
            raise ApiRefusedError(405, "the server does not allow this method on the requested resource")
        write = WriteOptions(target.kind, target.namespace, target.name, target.subresource, "eviction")
        self._verbs.evict(write, _json(request))
        done = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}
        return HttpAnswer(201, encode(done))

    def _bind(self, request: HttpRequest, target: RequestTarget) -> HttpAnswer:
        if target.verb != "create" or target.kind is None or target.kind.plural != "pods":
            raise ApiRefusedError(405, "the server does not allow this method on the requested resource")
        write = WriteOptions(target.kind, target.namespace, target.name, target.subresource, "binding")
        self._verbs.bind(write, _json(request))
        done = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}
        return HttpAnswer(201, encode(done))

    def _plain(self, request: HttpRequest) -> HttpAnswer:
        if request.path in ("/healthz", "/readyz", "/livez"):
            return HttpAnswer(200, b"ok", "text/plain")
        if (document := discovery_document(request.path, self._kinds.values(), self._minor)) is None:
            raise ApiRefusedError(404, "the server could not find the requested resource")
        return HttpAnswer(200, encode(document))

    def _review(self, review: Json, user: authorization.ApiUser, plural: str) -> Json:
        spec = review.get("spec") or {}
        if plural != SELF_REVIEWS:
            user = authorization.ApiUser(str(spec.get("user", "")), tuple(spec.get("groups") or ()))
        attributes = spec.get("resourceAttributes") or {}
        target = RequestTarget(
            attributes.get("verb", ""),
            "",
            attributes.get("group", ""),
            attributes.get("version", ""),
            attributes.get("resource", ""),
            attributes.get("namespace") or None,
            attributes.get("name") or None,
            attributes.get("subresource", ""),
        )
        return {**review, "status": {"allowed": authorization.allowed(self._store, user, target)}}


def _json(request: HttpRequest) -> Json:
    try:
        body = json.loads(request.body)
    except ValueError as error:
        raise ApiRefusedError(400, f"the body of the request is no JSON: {error}") from error
    if not isinstance(body, dict):
        raise ApiRefusedError(400, "the body of the request is no object")
    return body
