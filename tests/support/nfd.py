"""The definitions of Node Feature Discovery's NodeFeatureGroup, as at the commit in ``tests/schemas/nfd.yaml``, and
NodeFeature.

That of the groups has the fields that we write, and those that our admission policy forbids."""

from __future__ import annotations

from typing import Any

_TEXT = {"type": "string"}
_TERM = {
    "type": "object",
    "properties": {"op": _TEXT, "value": {"type": "array", "items": _TEXT}, "type": _TEXT},
}
_FEATURE = {
    "type": "object",
    "properties": {"feature": _TEXT, "matchExpressions": {"type": "object", "additionalProperties": _TERM}},
}
_FEATURES = {"type": "array", "items": _FEATURE}
_ANY = {"type": "array", "items": {"type": "object", "properties": {"matchFeatures": _FEATURES}}}
_VARS = {"type": "object", "additionalProperties": _TEXT}
_RULE = {
    "type": "object",
    "required": ["name"],
    "properties": {
        "name": _TEXT, "vars": _VARS, "varsTemplate": _TEXT, "matchFeatures": _FEATURES, "matchAny": _ANY,
    },
}  # fmt: skip
_SPEC = {
    "type": "object",
    "required": ["featureGroupRules"],
    "properties": {"featureGroupRules": {"type": "array", "items": _RULE}},
}


def nfd_definition() -> dict[str, Any]:
    """The CustomResourceDefinition, for the stand-in API server and for the check of types."""
    schema = {"type": "object", "required": ["spec"], "properties": {"spec": _SPEC}}
    version = {
        "name": "v1alpha1",
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "schema": {"openAPIV3Schema": schema},
    }
    names = {"kind": "NodeFeatureGroup", "listKind": "NodeFeatureGroupList", "plural": "nodefeaturegroups"}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "nodefeaturegroups.nfd.k8s-sigs.io"},
        "spec": {"group": "nfd.k8s-sigs.io", "scope": "Namespaced", "versions": [version], "names": names},
    }


def node_feature_definition() -> dict[str, Any]:
    """The CustomResourceDefinition of the features of a node, which we read alone: without a schema."""
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1alpha1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    names = {"kind": "NodeFeature", "listKind": "NodeFeatureList", "plural": "nodefeatures"}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "nodefeatures.nfd.k8s-sigs.io"},
        "spec": {"group": "nfd.k8s-sigs.io", "scope": "Namespaced", "versions": [version], "names": names},
    }
