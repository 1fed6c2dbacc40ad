"""Print settings: a commented default for people, a JSON schema for editors.

Both are made from the structs; a test reads the default back and compares it.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import inspect

from nodeagent.config.setting import Settings
from nodeagent.config.validate import bare, choices, struct_type

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_WIDTH = 100


def commented(settings: Settings, about: str) -> str:
    """A YAML file with the values of ``settings`` and the meaning of each, below the text ``about``."""
    return "\n".join([*_comment(about), "", *_settings(settings, struct_type(type(settings)), ())]) + "\n"


def schema(settings: type[Settings], title: str) -> dict[str, Any]:
    """A JSON schema (draft 2020-12) of the file.

    It describes each setting alone. The loader refuses more (settings that exclude each other) and accepts more
    spellings: a plain number is a text where the setting is a text.
    """
    generated = msgspec.json.schema(settings)
    definitions = generated["$defs"]
    definitions[settings.__name__]["required"] = [
        field.encode_name for field in struct_type(settings).fields if bare(field.type)[1].get("required")
    ]
    _tidy(definitions)
    return {"$schema": DIALECT, "title": title, **generated}


def _settings(struct: msgspec.Struct, type_: inspect.StructType, path: tuple[str, ...]) -> Iterator[str]:
    """A struct as the lines of a block mapping, without indentation."""
    for i, field in enumerate(type_.fields):
        if i and not path:
            yield ""
        yield from _comment(meaning(field), _allowed(field.type))
        yield from _value(field.encode_name, getattr(struct, field.name), field, (*path, field.encode_name))


def _value(key: str, value: Any, field: inspect.Field, path: tuple[str, ...]) -> Iterator[str]:
    inner = bare(field.type)[0]
    if isinstance(value, msgspec.Struct) and isinstance(inner, inspect.StructType):
        yield f"{key}:"
        yield from _indent(_settings(value, inner, path), "  ")
    elif isinstance(inner, inspect.VarTupleType) and (entries := entry_types(inner)):
        yield f"{key}:" if value else f"{key}: []"
        for entry in value:
            yield from _comment((type(entry).__doc__ or "").strip())
            yield from _entry(entry, entries[type(entry)], path)
            yield ""
        text, example = bare(field.type)[1]["example"]
        yield from _comment(text)
        yield from _indent(_entry(example, entries[type(example)], path), "# ")
    else:
        line = f"{key}: {yaml_line(value)}"
        yield from textwrap.wrap(
            line, _WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
        )


def _entry(entry: msgspec.Struct, type_: inspect.StructType, path: tuple[str, ...]) -> Iterator[str]:
    lines = list(_settings(entry, type_, (*path, "[]")))
    if type_.tag is not None:
        lines.insert(0, f"{type_.tag_field}: {type_.tag}")
    else:
        # The dash goes before the first setting, below the comment on it.
        first = next(i for i, line in enumerate(lines) if not line.startswith("#"))
        yield from lines[:first]
        lines = lines[first:]
    yield f"- {lines[0]}"
    yield from _indent(lines[1:], "  ")


def entry_types(type_: inspect.VarTupleType) -> dict[type, inspect.StructType]:
    item = bare(type_.item_type)[0]
    kinds = choices(item)[0] if isinstance(item, inspect.UnionType) else [item]
    return {kind.cls: kind for kind in kinds if isinstance(kind, inspect.StructType)}


def meaning(field: inspect.Field) -> str:
    assert isinstance(field.type, inspect.Metadata)
    assert field.type.extra_json_schema is not None
    return str(field.type.extra_json_schema["description"])


def _allowed(type_: inspect.Type) -> str:
    """The allowed values in a comment, where they are a closed set."""
    inner = bare(type_)[0]
    literal = bare(inner.item_type)[0] if isinstance(inner, inspect.VarTupleType) else inner
    if isinstance(literal, inspect.LiteralType) and len(literal.values) == 1:
        return ""
    words = type_words(literal)
    closed = isinstance(literal, inspect.LiteralType) or isinstance(inner, inspect.UnionType)
    return f"({words})" if closed and not words.startswith("text") else ""


def type_words(type_: inspect.Type) -> str:
    type_ = bare(type_)[0]
    match type_:
        case inspect.UnionType():
            kept, null = choices(type_)
            words = " | ".join(map(type_words, kept))
            return f"{words} | null" if null else words
        case inspect.StructType(tag=tag):
            return str(tag or "mapping")
        case inspect.LiteralType(values=values):
            return " | ".join(str(value) for value in values)
        case inspect.VarTupleType(item_type=item):
            words = type_words(item)
            return "list of entries" if words == "mapping" or entry_types(type_) else f"list of {words}"
        case inspect.IntType(ge=low, le=high):
            return f"integer, {low}..{high}"
        case inspect.FloatType(ge=None, le=None):
            return "number"
        case inspect.FloatType(ge=low, le=high):
            return f"number, {low}..{high}"
        case inspect.BoolType():
            return "true | false"
        case inspect.DictType():
            return "mapping"
        case _:
            return "text"


def yaml_line(value: Any) -> str:
    """A value in one line of YAML."""
    if isinstance(value, tuple):
        return f"[{', '.join(map(yaml_line, value))}]"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, str) and re.fullmatch(
        r"(?!(?i:true|false|yes|no|on|off|null)$)[A-Za-z/][\w/.-]*", value
    ):
        return value
    return json.dumps(value)


def _comment(*texts: str) -> list[str]:
    lines: list[str] = []
    for text in texts:
        for paragraph in text.splitlines():
            lines += [f"# {line}" for line in textwrap.wrap(paragraph, _WIDTH, break_on_hyphens=False)]
    return lines


def _indent(lines: Any, by: str) -> list[str]:
    return [(by + line).rstrip() for line in lines]


def _tidy(node: Any) -> None:
    """Allow numbers where a number is a spelling of a text, and remove an empty ``required``."""
    if isinstance(node, dict):
        if node.pop("x-digits", False):
            node["type"] = ["string", "integer"]
        if node.get("required") == []:
            del node["required"]
        for value in node.values():
            _tidy(value)
    elif isinstance(node, list):
        for value in node:
            _tidy(value)
