"""YAML text → a tree of nodes that know their lines.

The law of this file:

* A scalar stays the text of the file. What it means is decided where its setting is known, so that the
  PCI address ``0000:17:00.0`` is not a number to base 60 and the vendor ``0403`` is not octal.
* A file can do no harm: its size, its depth and what its aliases expand to are bounded before anybody
  walks the tree, and nothing here recurses deeper than ``DEPTH_MAX``.
* A key that stands twice is a fault, anchors and merge keys are not.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml

from nodeagent.config.faults import FaultList, Path, quote

SIZE_MAX = 1 << 20
"""Characters in a file; a Kubernetes ConfigMap holds no more than 1 MiB (bytes) either."""
DEPTH_MAX = 32
NODES_MAX = 50_000
"""Values in a file, those counted again that aliases repeat."""

# libyaml where PyYAML was built with it: ten times as fast, the same events.
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
# The complement of YAML 1.1's printable characters, lone surrogates (undecodable bytes) among them.
_UNPRINTABLE = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
EMPTY = "the file is empty; `nodeagent config defaults` prints one to start from"
_STRING_TAGS = ("!", "tag:yaml.org,2002:str")


@dataclass(frozen=True, slots=True)
class YamlNode:
    """A value in the file: a scalar's text, a list's items or a mapping's entries.

    ``quoted`` is true for a scalar that is text by its writing. ``weight`` counts the values below and
    this one, ``height`` the levels below.
    """

    value: str | tuple[YamlNode, ...] | dict[str, YamlEntry]
    quoted: bool
    line: int
    column: int
    weight: int = 1
    height: int = 0


@dataclass(frozen=True, slots=True)
class YamlEntry:
    """What stands under a key, and where the key stands."""

    line: int
    column: int
    node: YamlNode


def parse(text: str, faults: FaultList, *, values_max: int = NODES_MAX) -> YamlNode:
    """The root of the only document; what is wrong in the way that it is written goes to ``faults``.

    Raises ``HaltError`` where there is no tree to look at.
    """
    if len(text) > SIZE_MAX:
        faults.halt((1, 1), f"the file is larger than {SIZE_MAX} characters")
    if (bad := _UNPRINTABLE.search(text)) is not None:
        before = text[: bad.start()].split("\n")
        place = len(before), len(before[-1]) + 1
        faults.halt(place, f"not YAML: the character U+{ord(bad[0]):04X} is not allowed")
    try:
        return _Composer(text, faults, values_max).document()
    except yaml.YAMLError as error:
        faults.halt(*_syntax_complaint(error))


def locate(root: YamlNode, path: Path) -> tuple[int, int]:
    """Line and column of the value at a path, or of the nearest thing above it that is in the file."""
    node = root
    line, column = root.line, root.column
    for part in path:
        found: YamlNode | YamlEntry | None = None
        if isinstance(node.value, dict) and isinstance(part, str):
            found = node.value.get(part)
        elif isinstance(node.value, tuple) and isinstance(part, int) and part < len(node.value):
            found = node.value[part]
        if found is None:
            break
        line, column = found.line, found.column
        node = found.node if isinstance(found, YamlEntry) else found
    return line, column


class _Composer:
    """Builds the tree from the parser's events, the bounds kept on the way."""

    def __init__(self, text: str, faults: FaultList, values_max: int) -> None:
        self._faults = faults
        self._values_max = values_max
        self._events: Iterator[Any] = yaml.parse(text, Loader=_LOADER)
        self._anchors: dict[str, YamlNode] = {}

    def document(self) -> YamlNode:
        next(self._events)  # the start of the stream
        event: Any = next(self._events)
        if isinstance(event, yaml.StreamEndEvent):
            self._faults.halt((1, 1), EMPTY)
        root = self._node(next(self._events), ())
        next(self._events)  # the end of the document
        event = next(self._events)
        if isinstance(event, yaml.DocumentStartEvent):
            message = "a second YAML document begins; the configuration is one document"
            self._faults.halt(_place(event), message)
        return root

    def _node(self, event: Any, path: Path) -> YamlNode:
        line, column = _place(event)
        if isinstance(event, yaml.AliasEvent):
            return self._alias(str(event.anchor), path, line, column)
        if len(path) > DEPTH_MAX:
            self._faults.halt((line, column), f"values are nested more than {DEPTH_MAX} deep")
        if event.tag is not None and event.tag not in _STRING_TAGS:
            message = f"the YAML tag {quote(event.tag)} is not understood; remove it"
            self._faults.add(path, (line, column), message)
        if isinstance(event, yaml.ScalarEvent):
            quoted = event.style not in (None, "") or event.tag in _STRING_TAGS
            node = YamlNode(event.value, quoted, line, column)
        elif isinstance(event, yaml.SequenceStartEvent):
            node = self._sequence(path, line, column)
        else:
            node = self._mapping(path, line, column)
        if event.anchor is not None:
            self._anchors[event.anchor] = node
        return node

    def _alias(self, anchor: str, path: Path, line: int, column: int) -> YamlNode:
        node = self._anchors.get(anchor)
        if node is None:
            message = f"not YAML: the alias *{anchor[:60]} has no anchor that ends before it"
            self._faults.halt((line, column), message)
        if len(path) + node.height > DEPTH_MAX:
            self._faults.halt((line, column), f"values are nested more than {DEPTH_MAX} deep")
        return node

    def _sequence(self, path: Path, line: int, column: int) -> YamlNode:
        items: list[YamlNode] = []
        weight = 1
        while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
            item = self._node(event, (*path, len(items)))
            items.append(item)
            weight = self._bounded(weight + item.weight, event)
        height = 1 + max((item.height for item in items), default=0)
        return YamlNode(tuple(items), False, line, column, weight, height)

    def _mapping(self, path: Path, line: int, column: int) -> YamlNode:
        entries: dict[str, YamlEntry] = {}
        merged: list[YamlNode] = []
        weight, height = 1, 1
        first_merge: int | None = None
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            key = self._node(event, (*path, "?"))
            text = key.value if isinstance(key.value, str) else "?"
            node = self._node(next(self._events), (*path, text))
            weight = self._bounded(weight + key.weight + node.weight, event)
            height = max(height, 1 + node.height)
            here = YamlEntry(*_place(event), node)
            if not isinstance(key.value, str):
                message = "a key must be a word, this one is a list or a mapping"
                self._faults.add(path, (here.line, here.column), message)
            elif text == "<<" and not key.quoted:
                if first_merge is not None:
                    self._twice((*path, text), here, first_merge)
                first_merge = here.line
                merged += self._merge_sources(node, (*path, text))
            elif text in entries:
                self._twice((*path, text), here, entries[text].line)
            else:
                entries[text] = here
        # The mapping's own keys win, then the sources in their order (YAML's merge key, yaml.org/type/merge).
        for source in merged:
            if isinstance(source.value, dict):
                for text, entry in source.value.items():
                    entries.setdefault(text, entry)
        return YamlNode(entries, False, line, column, weight, height)

    def _bounded(self, weight: int, event: Any) -> int:
        """The weight, checked while it grows: a bomb must not be put together before it is weighed."""
        if weight > self._values_max:
            message = f"the file expands to more than {self._values_max} values here; repeat less by aliases"
            self._faults.halt(_place(event), message)
        return weight

    def _merge_sources(self, node: YamlNode, path: Path) -> list[YamlNode]:
        sources = list(node.value) if isinstance(node.value, tuple) else [node]
        if all(isinstance(source.value, dict) for source in sources):
            return sources
        message = "a merge key takes a mapping, or a list of mappings, mostly as an alias: <<: *name"
        self._faults.add(path, (node.line, node.column), message)
        return []

    def _twice(self, path: Path, here: YamlEntry, first: int) -> None:
        message = f"the key stands twice, in line {first} and in line {here.line}; keep one"
        self._faults.add(path, (here.line, here.column), message)


def _place(event: Any) -> tuple[int, int]:
    return event.start_mark.line + 1, event.start_mark.column + 1


def _syntax_complaint(error: yaml.YAMLError) -> tuple[tuple[int, int], str]:
    if not isinstance(error, yaml.MarkedYAMLError):
        return (1, 1), f"not YAML: {quote(str(error))}"
    mark = error.problem_mark or error.context_mark
    message = f"not YAML: {error.problem or error.context}"
    if error.context and error.problem and error.context_mark:
        message += f" ({error.context} that begins in line {error.context_mark.line + 1})"
    return (mark.line + 1, mark.column + 1) if mark else (1, 1), message
