"""The verb and the object of a request, from its method and path, as the API server reads them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from nodeagent_lab.sim.apiserver.resource_types import ApiKind
from nodeagent_lab.sim.apiserver.responses import ApiRefusedError

KindOf = Callable[[str, str, str], ApiKind | None]
VERBS = {"GET": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


REVIEW_GROUP = "authorization.k8s.io"
SELF_REVIEWS, REVIEWS = "selfsubjectaccessreviews", ("selfsubjectaccessreviews", "subjectaccessreviews")
"""Access reviews: answered, not stored."""


@dataclass(frozen=True, slots=True)
class RequestTarget:
    """``verb`` is RBAC's. ``kind`` is ``None`` for a path without a resource (``/version``)."""

    verb: str
    path: str
    group: str = ""
    version: str = ""
    plural: str = ""
    namespace: str | None = None
    name: str | None = None
    subresource: str = ""
    kind: ApiKind | None = None

    @property
    def resource(self) -> str:
        return f"{self.plural}/{self.subresource}" if self.subresource else self.plural


def parse_target(method: str, path: str, *, watch: bool, kind_of: KindOf) -> RequestTarget:
    """The target of a request. Raises ``ApiRefusedError`` for an unknown resource or method."""
    verb = VERBS.get(method)
    if verb is None:
        raise ApiRefusedError(405, "the server does not allow this method on the requested resource")
    steps = [step for step in path.split("/") if step]
    if steps[:1] == ["api"] and len(steps) > 2:
        group, version, rest = "", steps[1], steps[2:]
    elif steps[:1] == ["apis"] and len(steps) > 3:
        group, version, rest = steps[1], steps[2], steps[3:]
    else:
        return RequestTarget(verb, path)
    namespace = None
    if rest[0] == "namespaces" and len(rest) > 2 and rest[2] not in ("status", "finalize"):
        namespace, rest = rest[1], rest[2:]
    if group == REVIEW_GROUP and rest[0] in REVIEWS and len(rest) == 1:
        if verb != "create":
            raise ApiRefusedError(405, "the server does not allow this method on the requested resource")
        return RequestTarget(verb, path, group, version, rest[0])
    plural, name, sub = (*rest, None, "")[:3] if len(rest) < 3 else (rest[0], rest[1], rest[2])
    name = name or None
    kind = kind_of(group, version, plural or "")
    if kind is None or len(rest) > 3 or (namespace is not None and not kind.namespaced):
        raise ApiRefusedError(404, "the server could not find the requested resource")
    if name is None:
        verb = {"get": "watch" if watch else "list", "delete": "deletecollection"}.get(verb, verb)
        if kind.namespaced and namespace is None and verb not in ("list", "watch"):
            raise ApiRefusedError(405, "the server does not allow this method on the requested resource")
    elif watch:
        verb = "watch"
    elif (verb == "create" and not sub) or (kind.namespaced and namespace is None):
        raise ApiRefusedError(405, "the server does not allow this method on the requested resource")
    return RequestTarget(verb, path, group, version, kind.plural, namespace, name, sub or "", kind)
