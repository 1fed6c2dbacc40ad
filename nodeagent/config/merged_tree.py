"""Merge the trees of several files to one: mappings by key; a value or a list has one place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from nodeagent.config.file_errors import FileErrors, Path, quote
from nodeagent.config.yaml_tree import YAML_SIZE_MAX, YamlEntry, YamlNode, count_values, parse


class ConfigFile(NamedTuple):
    """A file of a configuration. ``name``: its path, for messages."""

    name: str
    text: str


ConfigText = tuple[ConfigFile, ...]
"""The files of one configuration, in the order in which they are merged."""

_OF_ALL = ("apiVersion", "kind")
"""Keys that each file may have, with one value."""


def parse_files(files: ConfigText, errors: FileErrors, *, values_max: int, when_empty: str) -> YamlNode:
    """The root of all files, which hold no more characters and values than one may. A file without content counts for
    nothing, unless all are empty. Raises ``HaltError`` where no tree can be built."""
    trees: list[YamlNode] = []
    left, values_left = YAML_SIZE_MAX, values_max
    for name, text in files:
        tree = parse(text, errors, values_max=values_left, size_max=left, when_empty=None, file=name)
        left -= len(text)
        if tree is not None:
            values_left = max(0, values_left - count_values(tree))
            trees.append(tree)
    if not trees:
        return parse("", errors, when_empty=when_empty, file=files[0].name)
    return merged(trees, errors)


def merged(trees: Sequence[YamlNode], errors: FileErrors) -> YamlNode:
    """One mapping of all trees. What is set twice stands as it was set first, and is an error."""
    first, *others = trees
    for tree in others:
        if isinstance(first.value, dict) and isinstance(tree.value, dict):
            first = _both(first, tree, (), errors)
        else:
            here = tree if isinstance(first.value, dict) else first
            errors.halt(here.at, "the file must hold a mapping (keys with a colon), as the others do")
    return first


def _both(a: YamlNode, b: YamlNode, path: Path, errors: FileErrors) -> YamlNode:
    assert isinstance(a.value, dict)
    assert isinstance(b.value, dict)
    entries = dict(a.value)
    for key, entry in b.value.items():
        before = entries.get(key)
        if before is None:
            entries[key] = entry
            continue
        here = (*path, key)
        if isinstance(before.node.value, dict) and isinstance(entry.node.value, dict):
            entries[key] = YamlEntry(before.at, _both(before.node, entry.node, here, errors))
        elif not path and key in _OF_ALL:
            if before.node.value != entry.node.value:
                errors.add(here, entry.at, _differs(before, entry))
        else:
            where = f"in {before.at.seen_from(entry.at)} and in {entry.at.file}:{entry.at.line}"
            errors.add(here, entry.at, f"is set twice, {where}; keep one")
    return YamlNode(entries, False, a.at)


def _differs(before: YamlEntry, entry: YamlEntry) -> str:
    there, here = (
        quote(one.node.value) if isinstance(one.node.value, str) else "no text" for one in (before, entry)
    )
    return (
        f"is {here}, but {there} in {before.at.seen_from(entry.at)}; the files of one configuration have one"
    )
