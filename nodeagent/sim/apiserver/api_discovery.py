"""API discovery: the groups, versions and resources that the server has."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from nodeagent.sim.apiserver.resource_types import ApiKind

Json = dict[str, Any]

VERSION: Json = {
    "major": "1",
    "minor": "34",
    "gitVersion": "v1.34.0-nodeagent-standin",
    "gitCommit": "",
    "gitTreeState": "clean",
    "buildDate": "1970-01-01T00:00:00Z",
    "goVersion": "",
    "compiler": "",
    "platform": "linux/amd64",
}
VERBS = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]


def discovery_document(path: str, kinds: Iterable[ApiKind]) -> Json | None:
    """The document at a discovery path; ``None`` if there is none."""
    kinds = list(kinds)
    steps = [step for step in path.split("/") if step]
    if steps == ["version"]:
        return VERSION
    if steps == ["api"]:
        return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}
    if steps == ["apis"]:
        groups = sorted({kind.group for kind in kinds if kind.group} | {"authorization.k8s.io", "policy"})
        return {
            "kind": "APIGroupList",
            "apiVersion": "v1",
            "groups": [_group(group, kinds) for group in groups],
        }
    if steps[:1] == ["apis"] and len(steps) == 2:
        known = {kind.group for kind in kinds}
        return (
            {"kind": "APIGroup", "apiVersion": "v1"} | _group(steps[1], kinds) if steps[1] in known else None
        )
    if steps == ["api", "v1"]:
        return _resources("v1", [kind for kind in kinds if not kind.group])
    if steps[:1] == ["apis"] and len(steps) == 3:
        served = [kind for kind in kinds if (kind.group, kind.version) == (steps[1], steps[2])]
        return _resources("/".join(steps[1:]), served) if served or steps[1] in _VIRTUAL else None
    return None


_VIRTUAL = {"authorization.k8s.io": "v1", "policy": "v1"}


def _group(group: str, kinds: list[ApiKind]) -> Json:
    versions = sorted({kind.version for kind in kinds if kind.group == group}) or [_VIRTUAL.get(group, "v1")]
    named = [{"groupVersion": f"{group}/{version}", "version": version} for version in versions]
    return {"name": group, "versions": named, "preferredVersion": named[-1], "serverAddressByClientCIDRs": []}


def _resources(group_version: str, kinds: list[ApiKind]) -> Json:
    resources: list[Json] = []
    for kind in kinds:
        resource: Json = {
            "name": kind.plural,
            "singularName": kind.singular,
            "namespaced": kind.namespaced,
            "kind": kind.kind,
        }
        resources.append({**resource, "verbs": VERBS, "shortNames": list(kind.short)})
        if kind.status:
            resources.append(
                {**resource, "name": f"{kind.plural}/status", "verbs": ["get", "patch", "update"]}
            )
        if kind.plural == "pods":
            eviction = {"name": "pods/eviction", "group": "policy", "version": "v1", "kind": "Eviction"}
            resources.append({**resource, **eviction, "verbs": ["create"]})
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": group_version,
        "resources": resources,
    }
