"""Files and streams of Kubernetes objects → values, whoever has written them.

The law of this file: YAML and JSON, one object, several documents or lists of any depth, in any order. A file
that is none of these is refused with its place; an object that is not what it should be is a report refused,
and the others count. Scalars of YAML stay text until it is known what they stand for: a MAC address is no
number to base 60. Aliases are not read, and nothing here recurses: these files come from anywhere.
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
    """A file that cannot be read; the message names it, the place and the remedy."""


@dataclass(slots=True)
class Objects:
    """``refused`` are reports by the name of their object with what is wrong; ``passed`` counts objects of
    other kinds.
    """

    reports: list[NodeLinks] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    hypernodes: list[HyperNode] = field(default_factory=list)
    nodes: dict[str, dict[str, str]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    passed: int = 0


def read(source: str) -> Objects:
    """A file, a folder of files, or ``-`` for the standard input."""
    objects = Objects()
    for name, raw in _texts(source):
        for found in _documents(name, raw):
            _walk(found, objects)
    settle(objects)
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
    """Each document, and whether its scalars are text that may mean something else."""
    text = raw.lstrip(b"\xef\xbb\xbf \t\r\n")
    if text[:1] in (b"{", b"["):
        try:
            yield msgspec.json.decode(text), False
            return
        except msgspec.DecodeError as error:
            # JSON objects one after the other, or YAML that begins with a brace.
            several = list(_lines(text))
            if several:
                yield from ((one, False) for one in several)
                return
            trouble = str(error)
        except RecursionError:
            raise StreamError(f"{name}: values are nested too deep") from None
        try:
            yield from ((one, True) for one in _yaml(raw))
        except yaml.YAMLError:
            raise StreamError(f"{name}: not JSON: {trouble}") from None
        return
    try:
        yield from ((one, True) for one in _yaml(raw))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f":{mark.line + 1}:{mark.column + 1}" if mark else ""
        raise StreamError(f"{name}{place}: not YAML: {error.problem or error.context}") from None
    except yaml.YAMLError as error:
        raise StreamError(f"{name}: not YAML: {' '.join(str(error).split())}") from None


def _lines(text: bytes) -> list[Any]:
    """One JSON value on each line; nothing where some line is none."""
    try:
        return [msgspec.json.decode(line) for line in text.splitlines() if line.strip()]
    except (msgspec.DecodeError, RecursionError):
        return []


def _yaml(raw: bytes) -> Iterator[Any]:
    """The documents of a stream, built from the parser's events."""
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


def _walk(found: tuple[Any, bool], objects: Objects) -> None:
    document, lax = found
    todo: list[Any] = [document]
    while todo:
        one = todo.pop()
        if isinstance(one, list):
            todo += one
        elif isinstance(one, dict):
            kind = one.get("kind")
            items = one.get("items")
            if isinstance(items, list) and (not isinstance(kind, str) or kind.endswith("List")):
                todo += _typed(items, kind)
            else:
                take(one, objects, lax=lax)
        elif one is not None:
            objects.passed += 1


def _typed(items: list[Any], kind: Any) -> Iterator[Any]:
    """In a list of one kind the items need not say theirs."""
    of = kind.removesuffix("List") if isinstance(kind, str) else ""
    for item in items:
        yield {"kind": of, **item} if of and isinstance(item, dict) and "kind" not in item else item


def take(found: dict[str, Any], objects: Objects, *, lax: bool = False) -> None:
    """One object of whichever kind."""
    kind = found.get("kind")
    if kind == nodelinks.KIND or (kind in (None, "") and "nodeName" in found):
        try:
            objects.reports.append(_report(found, lax))
        except ReportError as error:
            objects.refused[_name(found)] = f"is no NodeLinks: {error}"
    elif kind == hypernode.KIND:
        try:
            objects.hypernodes.append(hypernode.convert(found, lax=lax))
        except HyperNodeError as error:
            objects.notes.append(f"a HyperNode is not read ({error}): {_name(found)}")
    elif kind == "Node":
        metadata = found.get("metadata")
        labels = metadata.get("labels") if isinstance(metadata, dict) else None
        pairs = labels.items() if isinstance(labels, dict) else ()
        objects.nodes[_name(found)] = {str(key): str(value) for key, value in pairs}
    else:
        objects.passed += 1


def _report(found: dict[str, Any], lax: bool) -> NodeLinks:
    try:
        return nodelinks.convert(found, lax=lax)
    except ReportError:
        # What some languages write for nothing: null for an empty list.
        without = _without_null(found)
        if without == found:
            raise
        return nodelinks.convert(without, lax=lax)


def _without_null(found: Any) -> Any:
    if isinstance(found, dict):
        return {key: _without_null(value) for key, value in found.items() if value is not None}
    return [_without_null(value) for value in found] if isinstance(found, list) else found


def _name(found: dict[str, Any]) -> str:
    metadata = found.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    name = name if isinstance(name, str) else found.get("nodeName")
    return name if isinstance(name, str) else ""


def settle(objects: Objects) -> None:
    """One report for each name. Of several the latest version, whatever the order they came in."""
    found: dict[str, list[NodeLinks]] = {}
    for report in objects.reports:
        found.setdefault(report.metadata.name or report.node_name, []).append(report)
    chosen: list[NodeLinks] = []
    for name, several in found.items():
        chosen.append(max(several, key=_version))
        if len(several) > 1:
            objects.notes.append(f"{len(several)} reports are called {name}: the latest counts")
    objects.reports = chosen


def _version(report: NodeLinks) -> tuple[int, bytes]:
    version = report.metadata.resource_version or ""
    number = int(version) if version.isdecimal() and len(version) < 30 else -1
    return number, msgspec.json.encode(report)


def merged(parts: Iterable[Objects]) -> Objects:
    """Several sources as one; HyperNodes of a later one replace those of an earlier."""
    whole = Objects()
    for part in parts:
        whole.reports += part.reports
        whole.refused.update(part.refused)
        whole.hypernodes += part.hypernodes
        whole.nodes.update(part.nodes)
        whole.notes += part.notes
        whole.passed += part.passed
    return whole
