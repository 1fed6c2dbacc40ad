"""Volcano's HyperNode as a value, read from the API and written to it.

The law of this file: what is written is tier, tier name, members by exact match in the order of their names,
our labels and our annotations, and nothing else; ``status`` is Volcano's own. Two values that are the
``same`` need no write.
"""

from __future__ import annotations

from typing import Any

import msgspec

API_VERSION = "topology.volcano.sh/v1alpha1"
KIND = "HyperNode"
TIER_NAMES = ("leaf", "spine", "core")
"""Constant: a job that asks for a tier name which does not exist loses its constraint without a word."""

SOURCE_LABEL = "volcano.sh/network-topology-source"
OWNER_LABEL = "app.kubernetes.io/managed-by"
FABRIC_LABEL = "nodeagent.io/fabric"
TIER_LABEL = "nodeagent.io/tier"
OURS = "nodeagent"
SWITCHES = "nodeagent.io/switches"
RAILS = "nodeagent.io/rails"
DERIVED_FROM = "nodeagent.io/derived-from"
ALIASES = "nodeagent.io/aliases"

_OWN_LABELS = frozenset((SOURCE_LABEL, OWNER_LABEL, FABRIC_LABEL, TIER_LABEL))
OWN_ANNOTATIONS = frozenset((SWITCHES, RAILS, DERIVED_FROM, ALIASES))
_MEMBER_BYTES = 69
"""One exact-match member in etcd; measured, the name's own length comes on top of the 20 that it counts."""
BYTES_MAX = 1_400_000
"""etcd refuses a request of more than 1.5 MiB; what is left is for managedFields and the envelope."""

Texts = tuple[tuple[str, str], ...]


class HyperNodeError(ValueError):
    """An object that is no HyperNode; the message says why."""


class HyperNode(msgspec.Struct, frozen=True, kw_only=True):
    """``nodes`` and ``children`` are members by exact match, sorted. ``patterns`` (regexMatch) and
    ``selectors`` (labelMatch, as JSON) are seen on objects of others only. Labels and annotations are pairs,
    sorted, and of ours only; ``source`` is who owns it.
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
        """An annotation of ours, or nothing."""
        return dict(self.annotations).get(key, "")

    def same(self, other: HyperNode) -> bool:
        """Nothing of this object would be written differently."""
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
    """About how many bytes an object with these members takes in etcd."""
    return envelope + (_MEMBER_BYTES - 20) * len(names) + sum(map(len, names))


def labels_of(fabric: str, tier: int) -> Texts:
    return (
        (OWNER_LABEL, OURS),
        (FABRIC_LABEL, fabric),
        (TIER_LABEL, tier_name(tier)),
        (SOURCE_LABEL, OURS),
    )


def tier_name(tier: int) -> str:
    return TIER_NAMES[min(tier, len(TIER_NAMES)) - 1]


def render(hypernode: HyperNode) -> dict[str, Any]:
    """The object to be written, in the order in which a person reads it."""
    metadata: dict[str, Any] = {"name": hypernode.name, "labels": dict(hypernode.labels)}
    if hypernode.annotations:
        metadata["annotations"] = dict(hypernode.annotations)
    members = [_member("Node", name) for name in hypernode.nodes]
    members += [_member(KIND, name) for name in hypernode.children]
    spec = {"tier": hypernode.tier, "tierName": hypernode.tier_name, "members": members}
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": spec}


def _member(kind: str, name: str) -> dict[str, Any]:
    return {"type": kind, "selector": {"exactMatch": {"name": name}}}


class _Exact(msgspec.Struct):
    name: str = ""


class _Regex(msgspec.Struct):
    pattern: str = ""


class _Selector(msgspec.Struct, rename="camel"):
    exact_match: _Exact | None = None
    regex_match: _Regex | None = None
    label_match: dict[str, Any] | None = None


class _Member(msgspec.Struct):
    type: str = "Node"
    selector: _Selector = msgspec.field(default_factory=_Selector)


class _Spec(msgspec.Struct, rename="camel"):
    tier: int = 0
    tier_name: str = ""
    members: list[_Member] | None = None


class _Metadata(msgspec.Struct, rename="camel"):
    name: str
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    resource_version: str | None = None


class HyperNodeObject(msgspec.Struct):
    """The object on the wire, as far as it matters here."""

    metadata: _Metadata
    spec: _Spec = msgspec.field(default_factory=_Spec)


_DECODER = msgspec.json.Decoder(HyperNodeObject)
_SPEC_DECODER = msgspec.json.Decoder(_Spec)


def of(
    name: str,
    labels: dict[str, str] | None,
    annotations: dict[str, str] | None,
    resource_version: str | None,
    spec: bytes,
) -> HyperNode:
    """From metadata that has been read, and the JSON of the spec. Raises ``HyperNodeError``."""
    try:
        decoded = _SPEC_DECODER.decode(spec)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise HyperNodeError(str(error)) from None
    return value_of(HyperNodeObject(_Metadata(name, labels, annotations, resource_version), decoded))


def decode(raw: bytes) -> HyperNode:
    """An object's JSON, as the API server sends it. Raises ``HyperNodeError``."""
    try:
        return value_of(_DECODER.decode(raw))
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise HyperNodeError(str(error)) from None


def convert(found: Any, *, lax: bool = False) -> HyperNode:
    """The same from what a YAML or JSON reader has made of it; ``lax`` where all its scalars are text.
    Raises ``HyperNodeError``.
    """
    try:
        return value_of(msgspec.convert(found, HyperNodeObject, strict=not lax))
    except msgspec.MsgspecError as error:
        raise HyperNodeError(str(error)) from None


def value_of(found: HyperNodeObject) -> HyperNode:
    nodes: set[str] = set()
    children: set[str] = set()
    patterns: set[str] = set()
    selectors: set[str] = set()
    for member in found.spec.members or ():
        selector = member.selector
        if selector.exact_match is not None:
            (nodes if member.type == "Node" else children).add(selector.exact_match.name)
        elif selector.regex_match is not None:
            patterns.add(selector.regex_match.pattern)
        elif selector.label_match is not None:
            selectors.add(msgspec.json.encode(selector.label_match, order="sorted").decode())
    labels = found.metadata.labels or {}
    annotations = found.metadata.annotations or {}
    return HyperNode(
        name=found.metadata.name,
        tier=found.spec.tier,
        tier_name=found.spec.tier_name,
        nodes=tuple(sorted(nodes)),
        children=tuple(sorted(children)),
        patterns=tuple(sorted(patterns)),
        selectors=tuple(sorted(selectors)),
        labels=tuple(sorted((key, value) for key, value in labels.items() if key in _OWN_LABELS)),
        annotations=tuple(
            sorted((key, value) for key, value in annotations.items() if key in OWN_ANNOTATIONS)
        ),
        source=labels.get(SOURCE_LABEL),
        resource_version=found.metadata.resource_version,
    )
