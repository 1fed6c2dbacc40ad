"""The kinds that the server stores: built-in ones, and those of CustomResourceDefinitions.

Also API discovery: the groups, versions and resources that the server lists.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nodeagent_lab.sim.apiserver import resource_claims, resource_slices

Json = dict[str, Any]
Steps = tuple[str, ...]

NODE_LISTS: dict[Steps, tuple[str, ...]] = {
    ("status", "conditions"): ("type",),
    ("status", "addresses"): ("type",),
}
POD_LISTS: dict[Steps, tuple[str, ...]] = {
    ("status", "conditions"): ("type",),
    ("spec", "containers"): ("name",),
    ("spec", "initContainers"): ("name",),
    ("spec", "volumes"): ("name",),
}
CRD_LISTS: dict[Steps, tuple[str, ...]] = {
    ("status", "conditions"): ("type",),
    ("spec", "versions"): ("name",),
}
CLAIM_LISTS: dict[Steps, tuple[str, ...]] = {
    ("status", "devices"): ("driver", "device", "pool", "shareID"),
    ("status", "devices", "*", "conditions"): ("type",),
}
OWNERS: dict[Steps, tuple[str, ...]] = {("metadata", "ownerReferences"): ("uid",)}


@dataclass(frozen=True)
class ApiKind:
    """One resource in one version.

    ``keyed`` are the lists that server-side apply merges by key; an empty key means a set of plain values. All other
    lists are replaced as a whole. ``schema`` is the structural schema of a CRD. With ``counts``,
    ``metadata.generation`` is increased. ``prepare`` changes an object before it is stored, with the gates that are on;
    ``errors`` are the reasons to refuse it, with the stored object of an update.
    """

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool
    status: bool = False
    short: tuple[str, ...] = ()
    keyed: dict[Steps, tuple[str, ...]] = field(default_factory=dict)
    schema: Json | None = None
    custom: bool = False
    counts: bool = False
    since: int = 0
    """The first minor version of Kubernetes that serves it."""
    prepare: Callable[[Json, Collection[str]], None] | None = None
    errors: Callable[[Json, Json | None], Iterable[tuple[str, str]]] | None = None

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def singular(self) -> str:
        return self.kind.lower()


_RBAC = "rbac.authorization.k8s.io"

BUILT_IN = (
    ApiKind("", "v1", "namespaces", "Namespace", False, status=True, short=("ns",)),
    ApiKind("", "v1", "nodes", "Node", False, status=True, short=("no",), keyed=NODE_LISTS),
    ApiKind("", "v1", "pods", "Pod", True, status=True, short=("po",), keyed=POD_LISTS),
    ApiKind("", "v1", "events", "Event", True, short=("ev",)),
    ApiKind("", "v1", "configmaps", "ConfigMap", True, short=("cm",)),
    ApiKind("", "v1", "secrets", "Secret", True),
    ApiKind("", "v1", "serviceaccounts", "ServiceAccount", True, short=("sa",)),
    ApiKind("apps", "v1", "daemonsets", "DaemonSet", True, status=True, short=("ds",), counts=True),
    ApiKind("apps", "v1", "deployments", "Deployment", True, status=True, short=("deploy",), counts=True),
    ApiKind("coordination.k8s.io", "v1", "leases", "Lease", True),
    ApiKind(_RBAC, "v1", "roles", "Role", True),
    ApiKind(_RBAC, "v1", "rolebindings", "RoleBinding", True),
    ApiKind(_RBAC, "v1", "clusterroles", "ClusterRole", False),
    ApiKind(_RBAC, "v1", "clusterrolebindings", "ClusterRoleBinding", False),
    ApiKind(
        "apiextensions.k8s.io",
        "v1",
        "customresourcedefinitions",
        "CustomResourceDefinition",
        False,
        status=True,
        short=("crd", "crds"),
        keyed=CRD_LISTS,
        counts=True,
    ),
    ApiKind(
        "resource.k8s.io",
        "v1",
        "resourceclaims",
        "ResourceClaim",
        True,
        status=True,
        keyed=CLAIM_LISTS,
        since=34,
        prepare=resource_claims.prepare,
        errors=resource_claims.errors,
    ),
    ApiKind(
        "resource.k8s.io",
        "v1",
        "deviceclasses",
        "DeviceClass",
        False,
        counts=True,
        since=34,
        prepare=resource_claims.prepare,
        errors=resource_claims.errors,
    ),
    ApiKind(
        "resource.k8s.io",
        "v1",
        "resourceslices",
        "ResourceSlice",
        False,
        counts=True,
        since=34,
        prepare=resource_slices.prepare,
        errors=resource_slices.errors,
    ),
)

_DEFINITION = json.loads(Path(__file__).with_name("nodelinks.json").read_text(encoding="utf-8"))


def kinds_of_crd(crd: Json) -> Iterable[ApiKind]:
    """The kinds that a CustomResourceDefinition serves."""
    spec = crd["spec"]
    names = spec["names"]
    for version in spec["versions"]:
        if not version.get("served", True):
            continue
        schema = (version.get("schema") or {}).get("openAPIV3Schema")
        yield ApiKind(
            spec["group"],
            version["name"],
            names["plural"],
            names["kind"],
            spec["scope"] == "Namespaced",
            status="status" in (version.get("subresources") or {}),
            short=tuple(names.get("shortNames") or ()),
            keyed=dict(_keyed(schema or {}, ())),
            schema=schema,
            custom=True,
            counts=True,
        )


def _keyed(schema: Json, path: Steps) -> Iterable[tuple[Steps, tuple[str, ...]]]:
    how = schema.get("x-kubernetes-list-type")
    if how == "map":
        yield path, tuple(schema.get("x-kubernetes-list-map-keys") or ())
    elif how == "set":
        yield path, ()
    for name, inner in (schema.get("properties") or {}).items():
        yield from _keyed(inner, (*path, name))
    if isinstance(schema.get("items"), dict) and how == "map":
        yield from _keyed(schema["items"], (*path, "*"))


INSTALLED = (
    ApiKind(
        "topology.volcano.sh",
        "v1alpha1",
        "hypernodes",
        "HyperNode",
        False,
        status=True,
        short=("hn",),
        custom=True,
        counts=True,
    ),
    *kinds_of_crd(_DEFINITION),
)
"""Served from the start, until another CRD is stored: HyperNodes without a schema, NodeLinks with the shipped one."""

MINOR = 36
"""The minor version of Kubernetes that the server claims by default."""


def version_document(minor: int) -> Json:
    """The answer at ``/version``."""
    return {
        "major": "1",
        "minor": str(minor),
        "gitVersion": f"v1.{minor}.0-nodeagent-standin",
        "gitCommit": "",
        "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "",
        "compiler": "",
        "platform": "linux/amd64",
    }


VERBS = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]


def discovery_document(path: str, kinds: Iterable[ApiKind], minor: int = MINOR) -> Json | None:
    """The document at a discovery path; ``None`` if there is none."""
    kinds = list(kinds)
    steps = [step for step in path.split("/") if step]
    if steps == ["version"]:
        return version_document(minor)
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
            resources.append({**resource, "name": "pods/binding", "kind": "Binding", "verbs": ["create"]})
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": group_version,
        "resources": resources,
    }
