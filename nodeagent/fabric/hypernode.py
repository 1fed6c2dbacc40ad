"""Volcano's HyperNode as a value, decoded from the API server's JSON and rendered for a write.

A write contains the tier, the tier name, the members by exact match in the order of their names, and our labels and
annotations. ``status`` belongs to Volcano. Two values that are the ``same`` need no write.
"""

from __future__ import annotations

from typing import Any

import msgspec

_API_VERSION = "topology.volcano.sh/v1alpha1"
HYPERNODE_KIND = "HyperNode"
NVLINK, LEAF = 0, 1
"""The tiers of NVLink domains and of leaf groups. The numbers that Volcano gets may be shifted by one."""
TIER_NAMES = ("nvlink", "leaf", "spine", "core")
"""By tier. Constant, because Volcano drops the constraint of a job without a message if it names an unknown tier."""

SOURCE_LABEL = "volcano.sh/network-topology-source"
OWNER_LABEL = "app.kubernetes.io/managed-by"
FABRIC_LABEL = "nodeagent.io/fabric"
_TIER_LABEL = "nodeagent.io/tier"
OURS = "nodeagent"
SWITCHES = "nodeagent.io/switches"
RAILS = "nodeagent.io/rails"
DERIVED_FROM = "nodeagent.io/derived-from"
ALIASES_ANNOTATION = "nodeagent.io/aliases"
NVLINK_DOMAIN = "nodeagent.io/nvlink-domain"

_OWN_LABELS = frozenset((SOURCE_LABEL, OWNER_LABEL, FABRIC_LABEL, _TIER_LABEL))
OWN_ANNOTATIONS = frozenset((SWITCHES, RAILS, DERIVED_FROM, ALIASES_ANNOTATION, NVLINK_DOMAIN))
_MEMBER_BYTES = 69
"""Measured for an exact-match member with a name of 20 characters."""
BYTES_MAX = 1_400_000
"""etcd refuses requests of more than 1.5 MiB; the rest is for managedFields and the envelope."""

Texts = tuple[tuple[str, str], ...]


class HyperNodeError(ValueError):
    """The object is not a HyperNode. The message gives the reason."""


class HyperNode(msgspec.Struct, frozen=True, kw_only=True):
    """A HyperNode of any owner.

    ``nodes`` and ``children`` are the members by exact match, sorted. ``patterns`` (regexMatch) and ``selectors``
    (labelMatch, as JSON) occur only on foreign or edited objects. ``labels`` and ``annotations`` are sorted pairs with
    the keys that nodeagent writes. ``source`` is the owner. ``tier`` is Volcano's number: 1 is the lowest tier.
    """

    name: str
    tier: int
    tier_name: str = ""
    nodes: tuple[str, ...] = ()
    children: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()
    selectors: tuple[str, ...] = ()
    labels: Texts = ()
    annotations: Texts = ()
    source: str | None = OURS
    resource_version: str | None = None

    @property
    def ours(self) -> bool:
        return self.source == OURS

    @property
    def fabric(self) -> str:
        return dict(self.labels).get(FABRIC_LABEL, "")

    @property
    def switches(self) -> tuple[str, ...]:
        text = dict(self.annotations).get(SWITCHES, "")
        return tuple(text.split(",")) if text else ()

    def note(self, key: str) -> str:
        """The value of one of our annotations, or an empty string."""
        return dict(self.annotations).get(key, "")

    def same(self, other: HyperNode) -> bool:
        """A write of either object gives the same result."""
        return (
            self.nodes == other.nodes
            and self.children == other.children
            and self.tier == other.tier
            and self.tier_name == other.tier_name
            and self.annotations == other.annotations
            and self.labels == other.labels
            and not self.patterns + self.selectors + other.patterns + other.selectors
        )


def size_of(names: tuple[str, ...], envelope: int = 1000) -> int:
    """The approximate size in etcd of an object with these members, in bytes."""
    return envelope + (_MEMBER_BYTES - 20) * len(names) + sum(map(len, names))


def labels_of(fabric: str, tier: int) -> Texts:
    return (
        (OWNER_LABEL, OURS),
        (FABRIC_LABEL, fabric),
        (_TIER_LABEL, tier_name(tier)),
        (SOURCE_LABEL, OURS),
    )


def tier_name(tier: int) -> str:
    return TIER_NAMES[tier]


def render(hypernode: HyperNode) -> dict[str, Any]:
    """The object for a write, with its fields in the order of a manifest."""
    metadata: dict[str, Any] = {"name": hypernode.name, "labels": dict(hypernode.labels)}
    if hypernode.annotations:
        metadata["annotations"] = dict(hypernode.annotations)
    members = [_member("Node", name) for name in hypernode.nodes]
    members += [_member(HYPERNODE_KIND, name) for name in hypernode.children]
    spec = {"tier": hypernode.tier, "tierName": hypernode.tier_name, "members": members}
    return {"apiVersion": _API_VERSION, "kind": HYPERNODE_KIND, "metadata": metadata, "spec": spec}


def _member(kind: str, name: str) -> dict[str, Any]:
    return {"type": kind, "selector": {"exactMatch": {"name": name}}}


class _Exact(msgspec.Struct):
    name: str = ""


class _Regex(msgspec.Struct):
    pattern: str = ""


class _MemberSelector(msgspec.Struct, rename="camel"):
    exact_match: _Exact | None = None
    regex_match: _Regex | None = None
    label_match: dict[str, Any] | None = None


class _Member(msgspec.Struct):
    type: str = "Node"
    selector: _MemberSelector = msgspec.field(default_factory=_MemberSelector)


class _HyperNodeSpec(msgspec.Struct, rename="camel"):
    tier: int = 0
    tier_name: str = ""
    members: list[_Member] | None = None


class _HyperNodeMetadata(msgspec.Struct, rename="camel"):
    name: str
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    resource_version: str | None = None


class HyperNodeObject(msgspec.Struct):
    """The part of the JSON object that is used."""

    metadata: _HyperNodeMetadata
    spec: _HyperNodeSpec = msgspec.field(default_factory=_HyperNodeSpec)


_DECODER = msgspec.json.Decoder(HyperNodeObject)
_SPEC_DECODER = msgspec.json.Decoder(_HyperNodeSpec)


def of(
    name: str,
    labels: dict[str, str] | None,
    annotations: dict[str, str] | None,
    resource_version: str | None,
    spec: bytes,
) -> HyperNode:
    """Make a HyperNode from decoded metadata and the JSON of the spec. Raises ``HyperNodeError``."""
    try:
        decoded = _SPEC_DECODER.decode(spec)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise HyperNodeError(str(error)) from None
    return value_of(HyperNodeObject(_HyperNodeMetadata(name, labels, annotations, resource_version), decoded))


def _decode(raw: bytes) -> HyperNode:
    """Decode an object's JSON. Raises ``HyperNodeError``."""
    try:
        return value_of(_DECODER.decode(raw))
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise HyperNodeError(str(error)) from None


def convert_hypernode(document: Any, *, lax: bool = False) -> HyperNode:
    """Convert a parsed YAML or JSON document; ``lax`` if all its scalars are text. Raises ``HyperNodeError``."""
    try:
        return value_of(msgspec.convert(document, HyperNodeObject, strict=not lax))
    except msgspec.MsgspecError as error:
        raise HyperNodeError(str(error)) from None


def value_of(document: HyperNodeObject) -> HyperNode:
    nodes: set[str] = set()
    children: set[str] = set()
    patterns: set[str] = set()
    selectors: set[str] = set()
    for member in document.spec.members or ():
        selector = member.selector
        if selector.exact_match is not None:
            (nodes if member.type == "Node" else children).add(selector.exact_match.name)
        elif selector.regex_match is not None:
            patterns.add(selector.regex_match.pattern)
        elif selector.label_match is not None:
            selectors.add(msgspec.json.encode(selector.label_match, order="sorted").decode())
    labels = document.metadata.labels or {}
    annotations = document.metadata.annotations or {}
    return HyperNode(
        name=document.metadata.name,
        tier=document.spec.tier,
        tier_name=document.spec.tier_name,
        nodes=tuple(sorted(nodes)),
        children=tuple(sorted(children)),
        patterns=tuple(sorted(patterns)),
        selectors=tuple(sorted(selectors)),
        labels=tuple(sorted((key, value) for key, value in labels.items() if key in _OWN_LABELS)),
        annotations=tuple(
            sorted((key, value) for key, value in annotations.items() if key in OWN_ANNOTATIONS)
        ),
        source=labels.get(SOURCE_LABEL),
        resource_version=document.metadata.resource_version,
    )
