"""Which parts of a report the definition of NodeLinks in the cluster lacks: Helm does not upgrade definitions. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from nodeagent.fabric.nodelinks import API_VERSION, LinkNeighbor, NodeLink, NodeLinks, Wire
from nodeagent.facts.model import LINK_STATES

DEFINITION = "nodelinks.nodeagent.io"


def lacking(definition: Mapping[str, Any]) -> tuple[str, ...]:
    """The fields of a report and its links, and the states, that the definition lacks: ``links[].state (unused)``."""
    versions = _at(definition, "spec", "versions")
    for version in versions if isinstance(versions, list) else ():
        if _at(version, "name") != API_VERSION.partition("/")[2]:
            continue
        report = _at(version, "schema", "openAPIV3Schema")
        links = _at(report, "properties", "links", "items")
        states = _at(links, "properties", "state", "enum")
        return (
            *_fields(NodeLinks, report, ""),
            *_fields(NodeLink, links, "links[]"),
            *_fields(LinkNeighbor, _at(links, "properties", "neighbor"), "links[].neighbor"),
            *(
                f"links[].state ({state})"
                for state in LINK_STATES
                if isinstance(states, list) and state not in states
            ),
        )
    return ()


def _fields(struct: type[Wire], schema: Any, place: str) -> list[str]:
    properties = _at(schema, "properties")
    if not isinstance(properties, dict):
        return []  # a schema that lists no fields accepts each
    names = (field.encode_name for field in msgspec.structs.fields(struct))
    return [f"{place}.{name}".lstrip(".") for name in names if name not in properties]


def _at(node: Any, *steps: str) -> Any:
    for step in steps:
        node = node.get(step) if isinstance(node, dict) else None
    return node
