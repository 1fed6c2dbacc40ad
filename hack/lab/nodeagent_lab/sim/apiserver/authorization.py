"""RBAC: the rights of each user, from the stored Roles, ClusterRoles and their bindings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from nodeagent_lab.sim.apiserver.request_target import REVIEW_GROUP, SELF_REVIEWS, RequestTarget
from nodeagent_lab.sim.apiserver.store import Store, decode

Json = dict[str, Any]

GROUP = "rbac.authorization.k8s.io"
MASTERS = "system:masters"
OPEN = ("/version", "/healthz", "/readyz", "/livez", "/api", "/apis")
"""The paths that ``system:discovery`` grants to every authenticated user."""


@dataclass(frozen=True, slots=True)
class ApiUser:
    name: str
    groups: tuple[str, ...] = ()

    @property
    def account(self) -> tuple[str, str] | None:
        """Namespace and name of a service account."""
        parts = self.name.split(":")
        return (parts[2], parts[3]) if parts[:2] == ["system", "serviceaccount"] and len(parts) == 4 else None


ANONYMOUS = ApiUser("system:anonymous", ("system:unauthenticated",))


def allowed(store: Store, user: ApiUser, target: RequestTarget) -> bool:
    if MASTERS in user.groups:
        return True
    if (target.group, target.plural) == (REVIEW_GROUP, SELF_REVIEWS):
        return "system:authenticated" in user.groups  # system:basic-user
    if not target.plural:
        authenticated = "system:authenticated" in user.groups
        path = target.path.rstrip("/") or "/"
        if authenticated and target.verb == "get" and (path in OPEN or path.startswith(("/api/", "/apis/"))):
            return True
        return any(_path(rule, target) for rule in _rules(store, user, None))
    return any(_resource(rule, target) for rule in _rules(store, user, target.namespace))


def forbidden(user: ApiUser, target: RequestTarget) -> str:
    """The message of the real API server."""
    if not target.plural:
        return f'forbidden: User "{user.name}" cannot {target.verb} path "{target.path}"'
    whole = f"{target.plural}.{target.group}" if target.group else target.plural
    where = "at the cluster scope" if target.namespace is None else f'in the namespace "{target.namespace}"'
    name = f' "{target.name}"' if target.name else ""
    return (
        f'{whole}{name} is forbidden: User "{user.name}" cannot {target.verb} resource "{target.resource}" '
        f'in API group "{target.group}" {where}'
    )


def _rules(store: Store, user: ApiUser, namespace: str | None) -> Iterator[Json]:
    for binding in _all(store, "clusterrolebindings", None):
        if any(_matches(subject, user) for subject in binding.get("subjects") or ()):
            yield from _rules_of(store, binding["roleRef"], None)
    for binding in _all(store, "rolebindings", namespace) if namespace is not None else ():
        if any(_matches(subject, user) for subject in binding.get("subjects") or ()):
            yield from _rules_of(store, binding["roleRef"], namespace)


def _all(store: Store, plural: str, namespace: str | None) -> Iterator[Json]:
    for body in store.items(GROUP, plural, namespace)[1]:
        yield decode(body)


def _matches(subject: Json, user: ApiUser) -> bool:
    kind, name = subject.get("kind"), subject.get("name")
    if kind == "ServiceAccount":
        return user.account == (subject.get("namespace"), name)
    return (kind == "User" and name == user.name) or (kind == "Group" and name in user.groups)


def _rules_of(store: Store, reference: Json, namespace: str | None) -> Iterator[Json]:
    if reference.get("kind") == "Role":
        role = store.get(GROUP, "roles", f"{namespace}/{reference.get('name')}")
    else:
        role = store.get(GROUP, "clusterroles", str(reference.get("name")))
    yield from (role or {}).get("rules") or ()


def _resource(rule: Json, target: RequestTarget) -> bool:
    names = rule.get("resourceNames")
    return (
        _has(rule.get("verbs"), target.verb)
        and _has(rule.get("apiGroups"), target.group)
        and (
            _has(rule.get("resources"), target.resource)
            or (bool(target.subresource) and f"*/{target.subresource}" in (rule.get("resources") or ()))
        )
        and (not names or (target.name or "") in names)
    )


def _path(rule: Json, target: RequestTarget) -> bool:
    return _has(rule.get("verbs"), target.verb) and any(
        path == target.path or (path.endswith("*") and target.path.startswith(path[:-1]))
        for path in rule.get("nonResourceURLs") or ()
    )


def _has(words: list[str] | None, word: str) -> bool:
    return bool(words) and ("*" in (words or ()) or word in (words or ()))
