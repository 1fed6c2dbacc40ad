"""The resources of the API server that we use: group, version, plural, and the struct that an object is decoded into.

A ``Resource`` is a value. ``typed`` is the same resource with another struct, ``partial`` with metadata alone, which
takes a quarter of the bytes. A struct has only the fields that are used; the decoder skips the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar
from urllib.parse import quote

import msgspec

T = TypeVar("T")
U = TypeVar("U")

Json = dict[str, Any]


class Meta(msgspec.Struct, rename="camel", omit_defaults=True):
    """The used fields of an object's metadata."""

    name: str = ""
    namespace: str | None = None
    uid: str | None = None
    resource_version: str | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class Partial(msgspec.Struct, rename="camel"):
    """An object of which only the metadata is read."""

    metadata: Meta


@dataclass(frozen=True, slots=True)
class WatchEvent(Generic[T]):
    """One change of one object. ``type`` is ``ADDED``, ``MODIFIED``, ``DELETED`` or ``BOOKMARK``, without an object."""

    type: str
    object: T | None
    resource_version: str


@dataclass(frozen=True, slots=True)
class Resource(Generic[T]):
    """``struct`` is a msgspec struct with a field ``metadata``, or ``dict``.

    ``metadata_only`` requests PartialObjectMetadata.
    """

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool
    struct: type[T]
    metadata_only: bool = False

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def partial(self) -> Resource[Partial]:
        return replace(self.typed(Partial), metadata_only=True)

    def typed(self, struct: type[U]) -> Resource[U]:
        return Resource(self.group, self.version, self.plural, self.kind, self.namespaced, struct)

    def path(self, namespace: str | None = None, name: str | None = None, subresource: str = "") -> str:
        """The path on the server, with each part escaped."""
        parts = ["apis", self.group, self.version] if self.group else ["api", self.version]
        if namespace is not None:
            if not self.namespaced:
                raise ValueError(f"{self.plural} have no namespace, and {namespace!r} was given")
            parts += ["namespaces", namespace]
        parts += [part for part in (self.plural, name, subresource) if part]
        return "/" + "/".join(quote(part, safe="") for part in parts)


def metadata(obj: Any) -> Meta:
    """The metadata of a decoded object: a dict or a struct."""
    if isinstance(obj, Mapping):
        return msgspec.convert(obj.get("metadata") or {}, Meta)
    meta: Meta = obj.metadata
    return meta


NODES: Resource[Json] = Resource("", "v1", "nodes", "Node", False, dict)
PODS: Resource[Json] = Resource("", "v1", "pods", "Pod", True, dict)
EVENTS: Resource[Json] = Resource("", "v1", "events", "Event", True, dict)
LEASES: Resource[Json] = Resource("coordination.k8s.io", "v1", "leases", "Lease", True, dict)
HYPERNODES: Resource[Json] = Resource(
    "topology.volcano.sh", "v1alpha1", "hypernodes", "HyperNode", False, dict
)
NODELINKS: Resource[Json] = Resource("nodeagent.io", "v1alpha1", "nodelinks", "NodeLinks", True, dict)
RAIL_PARTNERS: Resource[Json] = Resource(
    "nodeagent.io", "v1alpha1", "railpartners", "RailPartners", False, dict
)
RESOURCE_CLAIMS: Resource[Json] = Resource(
    "resource.k8s.io", "v1", "resourceclaims", "ResourceClaim", True, dict
)
RESOURCE_SLICES: Resource[Json] = Resource(
    "resource.k8s.io", "v1", "resourceslices", "ResourceSlice", False, dict
)
