"""YAML text → a tree of nodes with their lines, for settings files.

* A scalar stays the text of the file. Its setting decides what it means: the PCI address ``0000:17:00.0`` is not a
  number to base 60, and the vendor ``0403`` is not octal.
* A key that stands twice is an error; anchors and merge keys are allowed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, overload

import msgspec

from nodeagent.config.bounded_yaml import LimitError, Limits, bounded_events
from nodeagent.config.file_errors import FileErrors, FilePlace, Path, quote
from nodeagent.config.libyaml import yaml

YAML_SIZE_MAX = 1 << 20
"""Characters in a file; a Kubernetes ConfigMap holds no more than 1 MiB (bytes) either."""
DEPTH_MAX = 32
NODES_MAX = 50_000
"""Values in a file; a value counts again for each alias."""

# The complement of YAML 1.1's printable characters, lone surrogates (undecodable bytes) among them. A pattern of the
# printable ones with a ^ takes 7 ms to compile.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f\ud800-\udfff\ufffe\uffff]")
_STRING_TAGS = ("!", "tag:yaml.org,2002:str")


class YamlNode(msgspec.Struct, frozen=True):
    """A value in the file: a scalar's text, a list's items or a mapping's entries.

    ``quoted``: the scalar is written as text.
    """

    value: str | tuple[YamlNode, ...] | dict[str, YamlEntry]
    quoted: bool
    at: FilePlace


class YamlEntry(msgspec.Struct, frozen=True):
    """The value of a key, and where the key stands."""

    at: FilePlace
    node: YamlNode


def empty_file(remedy: str) -> str:
    """The message about a file without content."""
    return f"the file is empty; {remedy}"


@overload
def parse(
    text: str,
    errors: FileErrors,
    *,
    values_max: int = ...,
    size_max: int = ...,
    when_empty: str = ...,
    file: str = ...,
) -> YamlNode: ...
@overload
def parse(
    text: str,
    errors: FileErrors,
    *,
    values_max: int = ...,
    size_max: int = ...,
    when_empty: None,
    file: str = ...,
) -> YamlNode | None: ...
def parse(
    text: str,
    errors: FileErrors,
    *,
    values_max: int = NODES_MAX,
    size_max: int = YAML_SIZE_MAX,
    when_empty: str | None = "write it",
    file: str = "",
) -> YamlNode | None:
    """The root of the only document. Errors of the notation go to ``errors``. ``when_empty``: the remedy for an empty
    file; with ``None`` the root of such a file is ``None``. ``file``: its name, where it is one of several.

    Raises ``HaltError`` where no tree can be built.
    """
    limits = Limits(depth=DEPTH_MAX, size=size_max, values=values_max)
    if (bad := _UNPRINTABLE.search(text)) is not None:
        before = text[: bad.start()].split("\n")
        place = FilePlace(len(before), len(before[-1]) + 1, file)
        errors.halt(place, f"not YAML: the character U+{ord(bad[0]):04X} is not allowed")
    try:
        return _Composer(bounded_events(text, limits), errors, file).document(when_empty)
    except LimitError as error:
        errors.halt(_mark_place(error, file), str(error.problem))
    except yaml.YAMLError as error:
        errors.halt(*_syntax_complaint(error, file))


def count_values(root: YamlNode) -> int:
    """How many values a tree has. A value counts again for each alias."""
    counted: dict[int, int] = {}

    def count(node: YamlNode) -> int:
        if (known := counted.get(id(node))) is None:
            below: Iterable[YamlNode] = ()
            if isinstance(node.value, dict):
                below = (entry.node for entry in node.value.values())
            elif isinstance(node.value, tuple):
                below = node.value
            known = counted[id(node)] = 1 + sum(map(count, below))
        return known

    return count(root)


def locate(root: YamlNode, path: Path) -> FilePlace:
    """The place of the value at a path, or of the nearest value above it in the file."""
    node = root
    at = root.at
    for part in path:
        child: YamlNode | YamlEntry | None = None
        if isinstance(node.value, dict) and isinstance(part, str):
            child = node.value.get(part)
        elif isinstance(node.value, tuple) and isinstance(part, int) and part < len(node.value):
            child = node.value[part]
        if child is None:
            break
        at = child.at
        node = child.node if isinstance(child, YamlEntry) else child
    return at


class _Composer:
    """Builds the tree from the parser's events."""

    def __init__(self, events: Iterator[Any], errors: FileErrors, file: str) -> None:
        self._events, self._errors, self._file = events, errors, file
        self._anchors: dict[str, YamlNode] = {}

    def document(self, when_empty: str | None) -> YamlNode | None:
        next(self._events)  # the start of the stream
        event: Any = next(self._events)
        if isinstance(event, yaml.StreamEndEvent):
            if when_empty is None:
                return None
            self._errors.halt(FilePlace(1, 1, self._file), empty_file(when_empty))
        root = self._node(next(self._events), ())
        next(self._events)  # the end of the document
        event = next(self._events)
        if isinstance(event, yaml.DocumentStartEvent):
            message = "a second YAML document begins; the configuration is one document"
            self._errors.halt(self._place(event), message)
        return root

    def _node(self, event: Any, path: Path) -> YamlNode:
        at = self._place(event)
        if isinstance(event, yaml.AliasEvent):
            return self._anchors[str(event.anchor)]
        if event.tag is not None and event.tag not in _STRING_TAGS:
            message = f"the YAML tag {quote(event.tag)} is not supported; remove it"
            self._errors.add(path, at, message)
        if isinstance(event, yaml.ScalarEvent):
            quoted = event.style not in (None, "") or event.tag in _STRING_TAGS
            node = YamlNode(event.value, quoted, at)
        elif isinstance(event, yaml.SequenceStartEvent):
            node = self._sequence(path, at)
        else:
            node = self._mapping(path, at)
        if event.anchor is not None:
            self._anchors[event.anchor] = node
        return node

    def _sequence(self, path: Path, at: FilePlace) -> YamlNode:
        items: list[YamlNode] = []
        while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
            items.append(self._node(event, (*path, len(items))))
        return YamlNode(tuple(items), False, at)

    def _mapping(self, path: Path, at: FilePlace) -> YamlNode:
        entries: dict[str, YamlEntry] = {}
        merged: list[YamlNode] = []
        first_merge: int | None = None
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            key = self._node(event, (*path, "?"))
            text = key.value if isinstance(key.value, str) else "?"
            node = self._node(next(self._events), (*path, text))
            here = YamlEntry(self._place(event), node)
            if not isinstance(key.value, str):
                message = "a key must be a text, this one is a list or a mapping"
                self._errors.add(path, here.at, message)
            elif text == "<<" and not key.quoted:
                if first_merge is not None:
                    self._twice((*path, text), here, first_merge)
                first_merge = here.at.line
                merged += self._merge_sources(node, (*path, text))
            elif text in entries:
                self._twice((*path, text), here, entries[text].at.line)
            else:
                entries[text] = here
        # The mapping's own keys come first, then the sources in their order (yaml.org/type/merge).
        for source in merged:
            if isinstance(source.value, dict):
                for text, entry in source.value.items():
                    entries.setdefault(text, entry)
        return YamlNode(entries, False, at)

    def _merge_sources(self, node: YamlNode, path: Path) -> list[YamlNode]:
        sources = list(node.value) if isinstance(node.value, tuple) else [node]
        if all(isinstance(source.value, dict) for source in sources):
            return sources
        message = "a merge key takes a mapping or a list of mappings, usually as an alias: <<: *name"
        self._errors.add(path, node.at, message)
        return []

    def _twice(self, path: Path, here: YamlEntry, first: int) -> None:
        message = f"the key occurs twice, in line {first} and in line {here.at.line}; keep one"
        self._errors.add(path, here.at, message)

    def _place(self, event: Any) -> FilePlace:
        return FilePlace(event.start_mark.line + 1, event.start_mark.column + 1, self._file)


def _mark_place(error: yaml.MarkedYAMLError, file: str) -> FilePlace:
    mark = error.problem_mark or error.context_mark
    return FilePlace(mark.line + 1, mark.column + 1, file) if mark else FilePlace(1, 1, file)


def _syntax_complaint(error: yaml.YAMLError, file: str) -> tuple[FilePlace, str]:
    if not isinstance(error, yaml.MarkedYAMLError):
        return FilePlace(1, 1, file), f"not YAML: {quote(str(error))}"
    message = f"not YAML: {error.problem or error.context}"
    if error.context and error.problem and error.context_mark:
        message += f" ({error.context} that begins in line {error.context_mark.line + 1})"
    return _mark_place(error, file), message
