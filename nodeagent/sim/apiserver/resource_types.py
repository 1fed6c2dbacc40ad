"""What the stand-in keeps: built-in kinds, and those that CustomResourceDefinitions add."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

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
OWNERS: dict[Steps, tuple[str, ...]] = {("metadata", "ownerReferences"): ("uid",)}


@dataclass(frozen=True)
class Kind:
    """One resource of one version. ``keyed`` are the lists that server-side apply merges by key; the empty
    key is a set of plain values. All other lists are replaced as a whole.

    ``schema`` is a structural schema (of a CRD), ``counts`` says that ``metadata.generation`` does.
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

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def singular(self) -> str:
        return self.kind.lower()


_RBAC = "rbac.authorization.k8s.io"

BUILT_IN = (
    Kind("", "v1", "namespaces", "Namespace", False, status=True, short=("ns",)),
    Kind("", "v1", "nodes", "Node", False, status=True, short=("no",), keyed=NODE_LISTS),
    Kind("", "v1", "pods", "Pod", True, status=True, short=("po",), keyed=POD_LISTS),
    Kind("", "v1", "events", "Event", True, short=("ev",)),
    Kind("", "v1", "configmaps", "ConfigMap", True, short=("cm",)),
    Kind("", "v1", "secrets", "Secret", True),
    Kind("", "v1", "serviceaccounts", "ServiceAccount", True, short=("sa",)),
    Kind("apps", "v1", "daemonsets", "DaemonSet", True, status=True, short=("ds",), counts=True),
    Kind("apps", "v1", "deployments", "Deployment", True, status=True, short=("deploy",), counts=True),
    Kind("coordination.k8s.io", "v1", "leases", "Lease", True),
    Kind(_RBAC, "v1", "roles", "Role", True),
    Kind(_RBAC, "v1", "rolebindings", "RoleBinding", True),
    Kind(_RBAC, "v1", "clusterroles", "ClusterRole", False),
    Kind(_RBAC, "v1", "clusterrolebindings", "ClusterRoleBinding", False),
    Kind(
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
)

INSTALLED = (
    Kind(
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
    Kind("nodeagent.io", "v1alpha1", "nodelinks", "NodeLinks", True, status=True, custom=True, counts=True),
)
"""There from the start without a schema, until a CRD of the same name is put over them."""


def of_crd(crd: Json) -> Iterable[Kind]:
    """The kinds that a CustomResourceDefinition serves."""
    spec = crd["spec"]
    names = spec["names"]
    for version in spec["versions"]:
        if not version.get("served", True):
            continue
        schema = (version.get("schema") or {}).get("openAPIV3Schema")
        yield Kind(
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
