"""Read the files of other programs within bounds. Pure.

Each scalar stays text, as in our own files: a PCI address is no number to base 60. Keys are compared without case, as
the JSON of Go is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from nodeagent.config.bounded_yaml import Limits, bounded_events
from nodeagent.config.file_errors import did_you_mean, quote
from nodeagent.config.libyaml import yaml
from nodeagent.config.yaml_tree import DEPTH_MAX, NODES_MAX, YAML_SIZE_MAX

_LIMITS = Limits(depth=DEPTH_MAX, size=YAML_SIZE_MAX, values=NODES_MAX)
_LOADER: Any = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
_NULL = ("", "null", "Null", "NULL", "~")
_TRUE, _FALSE = ("true", "yes", "on"), ("false", "no", "off", *_NULL)

Fields = dict[str, Any]


class UnreadableFile(Exception):  # noqa: N818 - an answer about a file
    """The file is not one of that program, or the program itself would refuse it. The message says where and why."""


def documents(text: str, name: str) -> list[Any]:
    """Return the documents of a YAML or JSON text, empty ones left out. ``name`` is that of the file, for errors.

    Raises ``UnreadableFile``."""
    try:
        for _ in bounded_events(text, _LIMITS):
            pass
        found = list(yaml.load_all(text, _LOADER))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = name if mark is None else f"{name}:{mark.line + 1}:{mark.column + 1}"
        raise UnreadableFile(f"{place}: cannot be read: {error.problem}") from error
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise UnreadableFile(f"{name}: cannot be read: {' '.join(str(error).split())}") from error
    return [document for document in found if document not in _NULL]


def objects(text: str, name: str) -> Iterator[tuple[str, Fields]]:
    """Yield the objects of a file with their places; the items of a list (``kubectl get -o yaml``) are objects.

    Raises ``UnreadableFile``."""
    found = documents(text, name)
    if not found:
        raise UnreadableFile(f"{name}: the file is empty")
    for number, document in enumerate(found):
        place = f"{name}: document {number + 1}" if len(found) > 1 else name
        items = document.get("items") if isinstance(document, dict) else None
        for i, one in enumerate(items if isinstance(items, list) else [document]):
            where = f"{place}: items[{i}]" if isinstance(items, list) else place
            if not isinstance(one, dict):
                raise UnreadableFile(f"{where} has no keys")
            yield where, one


def of_config_map(fields: Fields, place: str, key: str | None) -> tuple[str, str]:
    """Return a key of a ConfigMap and its text: ``key``, or the only one. Raises ``UnreadableFile``."""
    data = fields.get("data")
    texts = (
        {name: text for name, text in data.items() if isinstance(text, str)} if isinstance(data, dict) else {}
    )
    if key is not None and key in texts:
        return key, texts[key]
    names = ", ".join(quote(name) for name in list(texts)[:20]) or "none"
    if key is not None:
        raise UnreadableFile(f"{place}: the ConfigMap has no key {quote(key)}; there are {names}")
    if len(texts) != 1:
        raise UnreadableFile(f"{place}: the ConfigMap has {len(texts)} keys; choose one with --key: {names}")
    return next(iter(texts.items()))


class ListForm(NamedTuple):
    """A configuration that is one list. ``part``: its section of a NicClusterPolicy or NicNodePolicy of NVIDIA's
    network operator."""

    program: str
    key: str
    part: str


def listed_entries(name: str, text: str, key: str | None, form: ListForm) -> Iterator[tuple[str, Any]]:
    """Yield the entries of the lists in a file, in a ConfigMap or in a policy, with their places. ``key``: of a
    ConfigMap. Raises ``UnreadableFile``."""
    for outer, container in objects(text, name):
        where, fields = _inside(outer, container, key, form)
        lists = [value for written, value in fields.items() if str(written).lower() == form.key.lower()]
        if not lists or not isinstance(lists[-1], list):
            raise UnreadableFile(f"{where}: no {form.key}; this is not a configuration of {form.program}")
        for i, entry in enumerate(lists[-1]):
            yield f"{where}: {form.key}[{i}]", entry


def _inside(where: str, fields: Fields, key: str | None, form: ListForm) -> tuple[str, Fields]:
    """Return the configuration in a ConfigMap or in a policy."""
    match fields.get("kind"):
        case "ConfigMap":
            inner, text = of_config_map(fields, where, key)
        case "NicClusterPolicy" | "NicNodePolicy" as kind:
            match fields.get("spec"):
                case {form.part: {"config": str(text)}}:
                    inner = f"spec.{form.part}.config"
                case _:
                    raise UnreadableFile(f"{where}: the {kind} has no spec.{form.part}.config")
        case _:
            return where, fields
    found = documents(text, f"{where}: {inner}")
    if len(found) != 1 or not isinstance(found[0], dict):
        raise UnreadableFile(f"{where}: {inner} has no configuration with {form.key}")
    return f"{where}: {inner}", found[0]


def known(fields: Any, place: str, keys: Mapping[str, str]) -> tuple[Fields, list[tuple[str, str]]]:
    """Return the fields under the names of ``keys``, those with a null value left out, and each unknown key with a
    sentence. Raises ``UnreadableFile``."""
    if not isinstance(fields, dict):
        raise UnreadableFile(f"{place} must have keys")
    folded = {key.lower(): key for key in keys}
    found: Fields = {}
    unknown: list[tuple[str, str]] = []
    for written, value in fields.items():
        name = folded.get(str(written).lower())
        if name is None:
            unknown.append(
                (
                    str(written),
                    f"that program has no such key and ignores it{did_you_mean(str(written), keys)}",
                )
            )
        elif not (isinstance(value, str) and value in _NULL):
            found[name] = value
    return found, unknown


def in_use(value: Any) -> bool:
    """Whether a value does anything: an empty list, an empty text, false and 0 do not."""
    return not (value in ([], {}) or (isinstance(value, str) and (value.lower() in _FALSE or value == "0")))


def texts(value: Any, place: str) -> list[str]:
    """Return a list of texts. Raises ``UnreadableFile``."""
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise UnreadableFile(f"{place} must be a list of texts")
    return [item.strip() for item in value]


def foreign_text(value: Any, place: str) -> str:
    if not isinstance(value, str):
        raise UnreadableFile(f"{place} must be a text")
    return value.strip()


def truth(value: Any, place: str) -> bool:
    word = foreign_text(value, place).lower()
    if word in _TRUE or word in _FALSE:
        return word in _TRUE
    raise UnreadableFile(f"{place} is {quote(word)}, must be true or false")


def whole_number(value: Any, place: str) -> int:
    word = foreign_text(value, place)
    if not (word.isascii() and word.isdigit() and len(word) < 10):
        raise UnreadableFile(f"{place} is {quote(word)}, must be a whole number")
    return int(word)
