"""Read Kubernetes objects from files and streams.

The input is YAML or JSON: one object, several documents or values, or lists of any depth, in any order. Anything else
is refused with its position. An object with errors is a refused report, and the other objects count. YAML scalars stay
text until their type is known, because YAML 1.1 reads some MAC addresses as numbers to base 60. Aliases are refused,
and nothing recurses, because the input is not trusted.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import msgspec
import yaml

from nodeagent.base.plain_text import one_line
from nodeagent.commands.plan.controller_settings import CABLING_PLAN, LABELS, STORED_CONFIG_MAPS, ConfigMap
from nodeagent.config.bounded_yaml import LOADER, Limits, bounded_events
from nodeagent.console import user_files
from nodeagent.console.user_files import UserFileError
from nodeagent.fabric import hypernode, nodelinks, rail_partners
from nodeagent.fabric.agent_pods import AGENT_LABELS, AgentPod, SeenAgents
from nodeagent.fabric.away_nodes import AwayNode, away_of_document
from nodeagent.fabric.hypernode import HyperNode, HyperNodeError
from nodeagent.fabric.jobs import ListedPod
from nodeagent.fabric.maintenance import MAINTENANCE_LABEL
from nodeagent.fabric.nodelinks import NodeLinks, ReportError, VfHolder
from nodeagent.fabric.planner import Planner
from nodeagent.fabric.rail_partners import RailPartners
from nodeagent.fabric.traffic_figures import NODE_TRAFFIC, PodFigures, TrafficFigures

_LIMITS = Limits(depth=64, aliases=False)
SUFFIXES = (".yaml", ".yml", ".json")
BEGINNING = 4 << 20
"""Bytes that are read first. A text that has more, and whose first line is JSON, has one value in each line."""
_NULLS = ("", "~", "null", "Null", "NULL")
_BETWEEN = re.compile(r"[ \t\r\n]*")


_EXPECTED = (
    "NodeLinks, HyperNodes and Nodes as YAML or JSON, as `kubectl get nodelinks -A -o yaml` prints them"
)
LARGE = f"{_EXPECTED}; more than that in several files of a folder, or as one JSON object in each line"


@dataclass(slots=True)
class Objects:
    """The objects of all sources. ``planner`` has the reports: as objects, 100,000 of them take a gigabyte.

    ``refused`` maps the names of refused reports to the reason. HyperNodes of a later source replace those of an
    earlier one.
    """

    planner: Planner
    reports: dict[str, NodeLinks] | None = None
    """The reports as the planner takes them, by name, for a caller that gives a dict."""
    holders: dict[str, tuple[VfHolder, ...]] | None = None
    """The pods with VFs by node, for a caller that gives a dict."""
    pods: list[ListedPod] | None = None
    """The Pods, for a caller that gives a list."""
    figures: dict[tuple[str, str, str], PodFigures] = field(default_factory=dict)
    """The traffic of pods, by node, namespace and pod."""
    agents: SeenAgents | None = None
    """The pods of the agents, for a caller that gives this; they are not among ``pods`` then."""
    documents: list[dict[str, Any]] | None = None
    """The Nodes and NodeLinks as they were read, for a caller that gives a list."""
    partners: dict[str, RailPartners] = field(default_factory=dict)
    """The lists of partners by node: with them the plan names places that lose packets."""
    refused: dict[str, str] = field(default_factory=dict)
    hypernodes: dict[str, HyperNode] = field(default_factory=dict)
    nodes: dict[str, dict[str, str]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    config_maps: list[ConfigMap] = field(default_factory=list)
    """Those with the labels of the controller's, and those with a cabling plan: their name is ``CABLING_PLAN``."""
    stored: int = 0
    """Objects of all kinds."""
    unused_pods: int = 0
    """Pods that are of no agent, for a caller that takes those of agents alone."""
    _versions: dict[str, int] = field(default_factory=dict)
    _equal_names: Counter[str] = field(default_factory=Counter)

    def add_report(self, report: NodeLinks) -> None:
        """Of several reports with a name the latest version counts, in whatever order they come."""
        self.stored += 1
        if self.agents is not None and report.metadata.namespace:
            self.agents.spaces.add(report.metadata.namespace)
        name = report.metadata.name or report.node_name
        version = _version(report)
        known = self._versions.get(name)
        if known is not None:
            self._equal_names[name] += 1
            if version < known:
                return
        reports = self.planner.inputs.reports
        before = reports.get(name)
        self._versions[name] = version
        self.planner.report(name, report)
        if self.holders is not None:
            self.holders[name] = report.holders
        kept = None if self.reports is None else self.reports.get(name)
        if self.reports is not None:
            self.reports[name] = self.planner.inputs.known_neighbors.complete(report)
        if before is not None and version == known and name in reports and repr(before) > repr(reports[name]):
            reports[name] = before
            if self.reports is not None and kept is not None:
                self.reports[name] = kept

    def add_node(
        self, name: str, labels: dict[str, str], annotations: dict[str, str], away: AwayNode | None = None
    ) -> None:
        self.nodes[name] = labels
        self.planner.inputs.take_away(name, away)
        book = self.planner.inputs.maintenance
        if book.take(name, annotations.get(MAINTENANCE_LABEL)) and (fault := book.faults.get(name)):
            self.notes.append(
                f"the annotation {MAINTENANCE_LABEL} of the Node {one_line(name, 64)} is wrong: {fault}"
            )

    def drop_reports(self) -> None:
        """They are read again from the start."""
        for name in self._versions:
            self.planner.report(name, None)
        self._versions.clear()
        if self.reports is not None:
            self.reports.clear()
        self._equal_names.clear()

    def complete(self, now: float) -> None:
        """All sources are read: give the planner the rest, and add notes on equal names. ``now``: Unix time, from which
        the age of the agents' pods counts."""
        for name, more in self._equal_names.items():
            self.notes.append(f"{more + 1} reports are called {name}: the latest counts")
        for name, published in self.hypernodes.items():
            self.planner.hypernode(name, published)
        for name, labels in self.nodes.items():
            self.planner.node(name, labels)
        for name, why in self.refused.items():
            self.planner.refuse(name, why)
        if self.agents is not None:
            inputs = self.planner.inputs
            reported = inputs.reports.keys() | inputs.refused.keys()
            inputs.no_agent.update(self.agents.missing(reported, now))


def read_objects(source: str, objects: Objects, stdin: BinaryIO | None = None) -> None:
    """Read a file, a directory of files, or ``-`` for the standard input, which may have been kept. Raises
    ``UserFileError``."""
    before = objects.stored
    others: UserFileError | None = None
    for name in _files(source):
        other = _read_file(name, objects, stdin)
        others = others or other
    if others is not None:
        if objects.stored == before:
            raise others
        first, _, _ = str(others).partition("; expected ")
        objects.notes.append(f"objects of other kinds are left out, the first at {first}")
    elif objects.unused_pods and objects.stored == before:
        raise UserFileError(user_files.source_name(source), "it has Pods alone", _EXPECTED)


def _read_file(source: str, objects: Objects, stdin: BinaryIO | None) -> UserFileError | None:
    """Store the objects of one file. Returns an error for the first object of another kind."""
    name = user_files.source_name(source)
    with user_files.opened(source, _EXPECTED, stdin) as stream:
        beginning = user_files.read_at_most(stream, BEGINNING)
        line, end, _ = beginning.partition(b"\n")
        if len(beginning) == BEGINNING and end and line[:1] == b"{" and _json_lines(line):
            return _read_lines(name, beginning, stream, objects)
        if len(beginning) == BEGINNING:
            beginning += user_files.read_rest(stream, name, LARGE, len(beginning))
        return _read_whole(name, beginning, objects)


def _read_whole(name: str, raw: bytes, objects: Objects) -> UserFileError | None:
    user_files.refuse_unless_utf8(raw, name, _EXPECTED)
    others: UserFileError | None = None
    documents = 0
    for document, lax, origin in _documents(name, raw):
        if document is None:  # nothing between two lines of hyphens
            continue
        documents += 1
        other = _store_all(document, objects, origin, lax=lax)
        others = others or other
    if not documents:
        raise UserFileError(name, "the file is empty", _EXPECTED, 1)
    return others


def _read_lines(name: str, beginning: bytes, stream: BinaryIO, objects: Objects) -> UserFileError | None:
    """Store the JSON value of each line, of which there may be a million: one at a time is in memory."""
    others: UserFileError | None = None
    *whole, last = beginning.split(b"\n")
    rest = iter(lambda: stream.readline(user_files.SIZE_MAX), b"")
    for number, line in enumerate(chain(whole, (last + next(rest, b""),), rest)):
        if not line.strip():
            continue
        try:
            document = msgspec.json.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            user_files.refuse_unless_utf8(line, name, _EXPECTED, number)
            raise UserFileError(name, f"not JSON: {error}", _EXPECTED, number + 1) from None
        other = _store_all(document, objects, _Origin(name, line, 0, number), lax=False)
        others = others or other
    return others


class _Origin(NamedTuple):
    """Where an object comes from: the ``number`` of its document counts from 0, ``raw`` is after ``lines`` others."""

    name: str
    raw: bytes
    number: int
    lines: int = 0

    def fault(self, fault: str, path: tuple[str | int, ...]) -> UserFileError:
        return UserFileError(self.name, fault, _EXPECTED, self._line(path))

    def _line(self, path: tuple[str | int, ...]) -> int | None:
        """The line of the value at this path in the document: parses the file again, with positions."""
        try:
            for _ in bounded_events(self.raw, _LIMITS):
                pass
            node = next(islice(yaml.compose_all(self.raw, LOADER), self.number, None))
            for part in path:
                if isinstance(part, int):
                    node = node.value[part]
                else:
                    node = next(value for key, value in node.value if key.value == part)
        except (yaml.YAMLError, StopIteration, LookupError, AttributeError, TypeError):
            # JSON that is no YAML: a JSON object on each line, or tabs.
            lines = [number for number, line in enumerate(self.raw.splitlines(), 1) if line.strip()]
            return self.lines + lines[self.number] if self.number < len(lines) else None
        return self.lines + int(node.start_mark.line) + 1


def _files(source: str) -> Iterator[str]:
    if source == "-" or not Path(source).is_dir():
        yield source
        return
    every = (os.path.join(folder, name) for folder, _, names in os.walk(source) for name in names)
    files = sorted(file for file in every if file.endswith(SUFFIXES))
    if not files:
        raise UserFileError(source, f"no file in it ends in {', '.join(SUFFIXES)}", _EXPECTED)
    yield from files


def _documents(name: str, raw: bytes) -> Iterator[tuple[Any, bool, _Origin]]:
    """Each document, whether all its scalars are text, and where it comes from."""
    text = raw.lstrip(b"\xef\xbb\xbf \t\r\n")
    json_fault = ""
    if text[:1] in (b"{", b"["):
        try:
            yield msgspec.json.decode(text), False, _Origin(name, raw, 0)
            return
        except msgspec.DecodeError as error:
            # The text may be JSON lines, JSON values one after the other, or YAML that begins with a brace.
            if values := _json_lines(text):
                yield from ((value, False, _Origin(name, raw, i)) for i, value in enumerate(values))
                return
            json_fault = f"not JSON: {error}"
        except RecursionError:
            raise UserFileError(name, "values are nested too deep", _EXPECTED) from None
        if several := _json_values(name, raw, text):
            yield from ((value, False, origin) for value, origin in several)
            return
    try:
        yield from ((document, True, _Origin(name, raw, i)) for i, document in enumerate(_yaml(raw)))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        fault = json_fault or f"not YAML: {error.problem or error.context}"
        raise UserFileError(name, fault, _EXPECTED, mark.line + 1 if mark else None) from None
    except yaml.reader.ReaderError as error:
        line = raw.decode("utf-8", "replace").count("\n", 0, int(error.position)) + 1
        raise UserFileError(name, f"not YAML: {error.reason}", _EXPECTED, line) from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserFileError(name, f"not YAML: {' '.join(str(error).split())}", _EXPECTED) from None


def _json_lines(text: bytes) -> list[Any]:
    """The JSON value of each line; empty if some line is not JSON."""
    try:
        return [msgspec.json.decode(line) for line in text.splitlines() if line.strip()]
    except (msgspec.DecodeError, RecursionError):
        return []


def _json_values(name: str, raw: bytes, text: bytes) -> list[tuple[Any, _Origin]]:
    """The values of a text like that of ``kubectl get -o json`` in a loop: one after the other, each in many lines.

    Empty for a text that may be YAML. Raises ``UserFileError`` for a fault after the first value.
    """
    whole = text.decode()
    lines = raw.count(b"\n", 0, len(raw) - len(text))
    values: list[tuple[Any, _Origin]] = []
    decode, start = json.JSONDecoder().raw_decode, 0
    while start < len(whole):
        try:
            value, end = decode(whole, start)
        except RecursionError:
            raise UserFileError(name, "values are nested too deep", _EXPECTED) from None
        except ValueError as error:
            if not values or whole[start] not in "{[":  # --- between two values is YAML
                return []
            line = lines + getattr(error, "lineno", 1) - whole.count("\n", 0, start)
            raise UserFileError(name, f"not JSON: {getattr(error, 'msg', error)}", _EXPECTED, line) from None
        values.append((value, _Origin(name, whole[start:end].encode(), 0, lines)))
        following = _BETWEEN.match(whole, end)
        end = end if following is None else following.end()
        lines += whole.count("\n", start, end)
        start = end
    return values


def _yaml(raw: bytes) -> Iterator[Any]:
    """Build the documents of a stream from the parser's events."""
    stack: list[tuple[Any, list[Any]]] = []
    for event in bounded_events(raw, _LIMITS):
        if isinstance(event, yaml.ScalarEvent):
            plain = not event.style and event.tag is None
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


def _store_all(document: Any, objects: Objects, origin: _Origin, *, lax: bool) -> UserFileError | None:
    """Store the objects of a document. Returns an error for the first object of another kind, which may stand beside
    the others. Raises ``UserFileError`` for a value that is no object."""
    other: UserFileError | None = None
    todo: list[tuple[Any, tuple[str | int, ...]]] = [(document, ())]
    while todo:
        value, path = todo.pop()
        if isinstance(value, list):
            todo += ((item, (*path, i)) for i, item in reversed(list(enumerate(value))))
        elif isinstance(value, dict):
            kind, items = value.get("kind"), value.get("items")
            if isinstance(items, list) and (not isinstance(kind, str) or kind.endswith("List")):
                items = list(_with_kind(items, kind))
                todo += ((item, (*path, "items", i)) for i, item in reversed(list(enumerate(items))))
            elif not store_object(value, objects, lax=lax):
                other = other or origin.fault(_other_kind(value), path)
        elif value is not None:
            raise origin.fault(f"{_shown(value)} is no Kubernetes object", path)
        _refuse_other_version(value, origin, path)
    return other


def _refuse_other_version(value: Any, origin: _Origin, path: tuple[str | int, ...]) -> None:
    if isinstance(value, dict) and value.get("kind") == nodelinks.NODELINKS_KIND:
        version = value.get("apiVersion", nodelinks.API_VERSION)
        if version != nodelinks.API_VERSION:
            raise origin.fault(
                f"NodeLinks of apiVersion {_shown(version)}, and this program reads {nodelinks.API_VERSION}",
                path,
            )


def _other_kind(value: dict[str, Any]) -> str:
    return f"an object of kind {_shown(value.get('kind'))}" if "kind" in value else "an object without kind"


def _shown(value: Any) -> str:
    return "null" if value is None else repr(one_line(str(value), 60))


def _with_kind(items: list[Any], kind: Any) -> Iterator[Any]:
    """Add the kind of a list to its items, which may omit it."""
    of = kind.removesuffix("List") if isinstance(kind, str) else ""
    for item in items:
        yield {"kind": of, **item} if of and isinstance(item, dict) and "kind" not in item else item


def store_object(document: dict[str, Any], objects: Objects, *, lax: bool = False) -> bool:
    """Store one object; ``lax`` if all its scalars are text. Returns whether it is of a kind that counts."""
    kind = document.get("kind")
    if objects.documents is not None and kind in (nodelinks.NODELINKS_KIND, "Node"):
        objects.documents.append(document)
    if kind == nodelinks.NODELINKS_KIND or (kind in (None, "") and "nodeName" in document):
        try:
            objects.add_report(_report(document, lax))
        except ReportError as error:
            objects.stored += 1
            name = _name(document) or f"(report {objects.stored}, without a name)"
            objects.refused[name] = f"is not a NodeLinks object: {error}"
    elif kind == hypernode.HYPERNODE_KIND:
        try:
            published = hypernode.convert_hypernode(document, lax=lax)
            objects.stored += 1
            objects.hypernodes[published.name] = published
        except HyperNodeError as error:
            objects.notes.append(f"HyperNode {_name(document)} is ignored: {error}")
    elif kind == "Node":
        metadata = document.get("metadata")
        objects.stored += 1
        labels, annotations = (_texts(metadata, key) for key in ("labels", "annotations"))
        objects.add_node(_name(document), labels, annotations, away_of_document(document, lax=lax))
    elif kind == rail_partners.PARTNERS_KIND:
        try:
            objects.partners[_name(document)] = rail_partners.rail_partners_of(document, lax=lax)
            objects.stored += 1
        except ReportError as error:
            objects.notes.append(f"RailPartners {_name(document)} is ignored: {error}")
    elif kind == "Pod" and (objects.pods is not None or objects.agents is not None):
        _store_pod(document, objects, lax)
    elif kind == NODE_TRAFFIC:
        _store_traffic(document, objects, lax=lax)
    else:
        return kind == STORED_CONFIG_MAPS.kind and _store_config_map(document, objects)
    return True


def _store_traffic(document: dict[str, Any], objects: Objects, *, lax: bool) -> None:
    try:
        answer = msgspec.convert(document, TrafficFigures, strict=not lax)
    except msgspec.MsgspecError as error:
        objects.notes.append(f"the traffic of {document.get('node')} is ignored: {error}")
        return
    for pod in answer.pods:
        objects.figures[answer.node, pod.namespace, pod.pod] = pod


def _store_pod(document: dict[str, Any], objects: Objects, lax: bool) -> None:
    try:
        labels = _texts(document.get("metadata"), "labels")
        if objects.agents is not None and AGENT_LABELS.items() <= labels.items():
            objects.agents.add(msgspec.convert(document, AgentPod, strict=not lax))
        elif objects.pods is not None:
            objects.pods.append(msgspec.convert(document, ListedPod, strict=not lax))
        else:
            objects.unused_pods += 1
            return
        objects.stored += 1
    except msgspec.MsgspecError as error:
        objects.notes.append(f"Pod {_name(document)} is ignored: {error}")


def _store_config_map(document: dict[str, Any], objects: Objects) -> bool:
    try:
        found = msgspec.convert(document, ConfigMap)
    except msgspec.MsgspecError:
        return False
    labels = (found.metadata.labels or {}).items()
    if not (LABELS.items() <= labels or found.metadata.name == CABLING_PLAN):
        return False
    objects.config_maps.append(found)
    objects.stored += 1
    return True


def _texts(metadata: Any, key: str) -> dict[str, str]:
    texts = metadata.get(key) if isinstance(metadata, dict) else None
    return {str(name): str(text) for name, text in texts.items()} if isinstance(texts, dict) else {}


def _report(document: dict[str, Any], lax: bool) -> NodeLinks:
    try:
        return nodelinks.convert_nodelinks(document, lax=lax)
    except ReportError:
        # Some encoders write null for an empty list.
        without = _without_null(document)
        if without == document:
            raise
        return nodelinks.convert_nodelinks(without, lax=lax)


def _without_null(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_null(item) for key, item in value.items() if item is not None}
    return [_without_null(item) for item in value] if isinstance(value, list) else value


def _name(document: dict[str, Any]) -> str:
    metadata = document.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    name = name if isinstance(name, str) else document.get("nodeName")
    return name if isinstance(name, str) else ""


def _version(report: NodeLinks) -> int:
    version = report.metadata.resource_version or ""
    return int(version) if version.isdecimal() and len(version) < 30 else -1
