"""Read Kubernetes objects from files and streams.

The input is YAML or JSON: one object, several documents, or lists of any depth, in any order. Anything else is refused
with its position. An object with errors is a refused report, and the other objects count. YAML scalars stay text until
their type is known, because YAML 1.1 reads some MAC addresses as numbers to base 60. Aliases are refused, and nothing
recurses, because the input is not trusted.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import yaml

from nodeagent.config.bounded_yaml import Limits, bounded_events
from nodeagent.fabric import hypernode, nodelinks
from nodeagent.fabric.hypernode import HyperNode, HyperNodeError
from nodeagent.fabric.nodelinks import NodeLinks, ReportError

LIMITS = Limits(depth=64, aliases=False)
SUFFIXES = (".yaml", ".yml", ".json")
_NULLS = ("", "~", "null", "Null", "NULL")


class StreamError(Exception):
    """The input cannot be read. The message names the file, the position and the error."""


@dataclass(slots=True)
class Objects:
    """``refused`` maps the names of refused reports to the reason; ``ignored`` counts objects of other kinds."""

    reports: list[NodeLinks] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    hypernodes: list[HyperNode] = field(default_factory=list)
    nodes: dict[str, dict[str, str]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    ignored: int = 0


def read(source: str) -> Objects:
    """Read a file, a directory of files, or ``-`` for the standard input. Raises ``StreamError``."""
    objects = Objects()
    for name, raw in _texts(source):
        for document, lax in _documents(name, raw):
            _store_all(document, objects, lax=lax)
    keep_latest(objects)
    return objects


def _texts(source: str) -> Iterator[tuple[str, bytes]]:
    if source == "-":
        yield "standard input", sys.stdin.buffer.read()
        return
    path = Path(source)
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.suffix in SUFFIXES and file.is_file())
        if not files:
            raise StreamError(f"{source}: no file in it ends in {', '.join(SUFFIXES)}")
        for file in files:
            yield str(file), file.read_bytes()
    else:
        yield source, path.read_bytes()


def _documents(name: str, raw: bytes) -> Iterator[tuple[Any, bool]]:
    """Each document, and whether all its scalars are text."""
    text = raw.lstrip(b"\xef\xbb\xbf \t\r\n")
    if text[:1] in (b"{", b"["):
        try:
            yield msgspec.json.decode(text), False
            return
        except msgspec.DecodeError as error:
            # The text may be JSON lines, or YAML that begins with a brace.
            if values := _json_lines(text):
                yield from ((value, False) for value in values)
                return
            reason = str(error)
        except RecursionError:
            raise StreamError(f"{name}: values are nested too deep") from None
        try:
            yield from ((document, True) for document in _yaml(raw))
        except yaml.YAMLError:
            raise StreamError(f"{name}: not JSON: {reason}") from None
        return
    try:
        yield from ((document, True) for document in _yaml(raw))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        position = f":{mark.line + 1}:{mark.column + 1}" if mark else ""
        raise StreamError(f"{name}{position}: not YAML: {error.problem or error.context}") from None
    except yaml.YAMLError as error:
        raise StreamError(f"{name}: not YAML: {' '.join(str(error).split())}") from None


def _json_lines(text: bytes) -> list[Any]:
    """The JSON value of each line; empty if some line is not JSON."""
    try:
        return [msgspec.json.decode(line) for line in text.splitlines() if line.strip()]
    except (msgspec.DecodeError, RecursionError):
        return []


def _yaml(raw: bytes) -> Iterator[Any]:
    """Build the documents of a stream from the parser's events."""
    stack: list[tuple[Any, list[Any]]] = []
    for event in bounded_events(raw, LIMITS):
        if isinstance(event, yaml.ScalarEvent):
            plain = event.style is None and event.tag is None
            value: Any = None if plain and event.value in _NULLS else event.value
        elif isinstance(event, yaml.SequenceStartEvent | yaml.MappingStartEvent):
            stack.append((event, []))
            continue
        elif isinstance(event, yaml.SequenceEndEvent):
            value = stack.pop()[1]
        elif isinstance(event, yaml.MappingEndEvent):
            flat = stack.pop()[1]
            value = {
                str(key): item for key, item in zip(flat[::2], flat[1::2], strict=True) if item is not None
            }
        else:
            continue
        if stack:
            stack[-1][1].append(value)
        else:
            yield value


def _store_all(document: Any, objects: Objects, *, lax: bool) -> None:
    todo: list[Any] = [document]
    while todo:
        value = todo.pop()
        if isinstance(value, list):
            todo += value
        elif isinstance(value, dict):
            kind, items = value.get("kind"), value.get("items")
            if isinstance(items, list) and (not isinstance(kind, str) or kind.endswith("List")):
                todo += _with_kind(items, kind)
            else:
                store_object(value, objects, lax=lax)
        elif value is not None:
            objects.ignored += 1


def _with_kind(items: list[Any], kind: Any) -> Iterator[Any]:
    """Add the kind of a list to its items, which may omit it."""
    of = kind.removesuffix("List") if isinstance(kind, str) else ""
    for item in items:
        yield {"kind": of, **item} if of and isinstance(item, dict) and "kind" not in item else item


def store_object(document: dict[str, Any], objects: Objects, *, lax: bool = False) -> None:
    """Store one object of any kind; ``lax`` if all its scalars are text."""
    kind = document.get("kind")
    if kind == nodelinks.KIND or (kind in (None, "") and "nodeName" in document):
        try:
            objects.reports.append(_report(document, lax))
        except ReportError as error:
            objects.refused[_name(document)] = f"is not a NodeLinks object: {error}"
    elif kind == hypernode.KIND:
        try:
            objects.hypernodes.append(hypernode.convert(document, lax=lax))
        except HyperNodeError as error:
            objects.notes.append(f"HyperNode {_name(document)} is ignored: {error}")
    elif kind == "Node":
        metadata = document.get("metadata")
        labels = metadata.get("labels") if isinstance(metadata, dict) else None
        pairs = labels.items() if isinstance(labels, dict) else ()
        objects.nodes[_name(document)] = {str(key): str(value) for key, value in pairs}
    else:
        objects.ignored += 1


def _report(document: dict[str, Any], lax: bool) -> NodeLinks:
    try:
        return nodelinks.convert(document, lax=lax)
    except ReportError:
        # Some encoders write null for an empty list.
        without = _without_null(document)
        if without == document:
            raise
        return nodelinks.convert(without, lax=lax)


def _without_null(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_null(item) for key, item in value.items() if item is not None}
    return [_without_null(item) for item in value] if isinstance(value, list) else value


def _name(document: dict[str, Any]) -> str:
    metadata = document.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    name = name if isinstance(name, str) else document.get("nodeName")
    return name if isinstance(name, str) else ""


def keep_latest(objects: Objects) -> None:
    """Keep one report for each name: the one with the latest version, in whatever order they were read."""
    by_name: dict[str, list[NodeLinks]] = {}
    for report in objects.reports:
        by_name.setdefault(report.metadata.name or report.node_name, []).append(report)
    objects.reports = [max(reports, key=_version) for reports in by_name.values()]
    for name, reports in by_name.items():
        if len(reports) > 1:
            objects.notes.append(f"{len(reports)} reports are called {name}: the latest counts")


def _version(report: NodeLinks) -> tuple[int, bytes]:
    version = report.metadata.resource_version or ""
    number = int(version) if version.isdecimal() and len(version) < 30 else -1
    return number, msgspec.json.encode(report)


def merged(parts: Iterable[Objects]) -> Objects:
    """Merge several sources. HyperNodes of a later source replace those of an earlier one."""
    whole = Objects()
    for part in parts:
        whole.reports += part.reports
        whole.refused.update(part.refused)
        whole.hypernodes += part.hypernodes
        whole.nodes.update(part.nodes)
        whole.notes += part.notes
        whole.ignored += part.ignored
    return whole
