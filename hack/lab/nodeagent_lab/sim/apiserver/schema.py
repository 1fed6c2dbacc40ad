"""Structural schemas of CRDs: validation, pruning and defaults.

Checked are types, required fields, enums, patterns, lengths, bounds, sizes, unique and keyed lists. CEL rules
(``x-kubernetes-validations``), formats other than ``date-time`` and ``allOf`` with its relatives are not evaluated.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

Json = dict[str, Any]

_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
}
_ROOT = ("apiVersion", "kind", "metadata")


def apply_schema(schema: Json, obj: Json, *, strict: bool = False) -> list[tuple[str, str]]:
    """Prune and default ``obj`` in place. Return the errors by field."""
    held = {name: obj.pop(name) for name in _ROOT if name in obj}
    unknown: list[str] = []
    _prune(schema, obj, "", unknown)
    _default(schema, obj)
    errors = list(
        _errors({**schema, "required": [n for n in schema.get("required", ()) if n not in _ROOT]}, obj, "")
    )
    rest = dict(obj)
    obj.clear()
    obj.update(held | rest)
    if strict:
        errors += [(field, f'unknown field "{field}"') for field in unknown]
    return errors


def _prune(schema: Json, value: Any, path: str, unknown: list[str]) -> None:
    if isinstance(value, list) and isinstance(schema.get("items"), dict):
        for i, item in enumerate(value):
            _prune(schema["items"], item, f"{path}[{i}]", unknown)
    if not isinstance(value, dict):
        return
    known = schema.get("properties") or {}
    extra = schema.get("additionalProperties")
    for name in list(value):
        if name in known:
            _prune(known[name], value[name], _join(path, name), unknown)
        elif isinstance(extra, dict):
            _prune(extra, value[name], _join(path, name), unknown)
        elif not extra and not schema.get("x-kubernetes-preserve-unknown-fields"):
            unknown.append(_join(path, name))
            del value[name]


def _default(schema: Json, value: Any) -> None:
    if isinstance(value, list) and isinstance(schema.get("items"), dict):
        for item in value:
            _default(schema["items"], item)
    if not isinstance(value, dict):
        return
    for name, inner in (schema.get("properties") or {}).items():
        if name not in value and "default" in inner:
            value[name] = json.loads(json.dumps(inner["default"]))
        if name in value:
            _default(inner, value[name])


def _errors(schema: Json, value: Any, path: str) -> Iterator[tuple[str, str]]:
    if value is None:
        if not schema.get("nullable"):
            yield path, f'Invalid value: "null": must be of type {schema.get("type")}: "null"'
        return
    wanted = _TYPES.get(schema.get("type", ""))
    if schema.get("x-kubernetes-int-or-string"):
        wanted = (int, str)
    if wanted and (not isinstance(value, wanted) or (isinstance(value, bool) and bool not in wanted)):
        actual = next((name for name, types in _TYPES.items() if type(value) in types), "null")
        yield path, f'Invalid value: "{actual}": must be of type {schema["type"]}: "{actual}"'
        return
    if "enum" in schema and value not in schema["enum"]:
        known = ", ".join(json.dumps(word) for word in schema["enum"])
        yield path, f"Unsupported value: {json.dumps(value)}: supported values: {known}"
    if isinstance(value, str):
        yield from _text_errors(schema, value, path)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield from _number_errors(schema, value, path)
    elif isinstance(value, list):
        yield from _list_errors(schema, value, path)
    elif isinstance(value, dict):
        for name in schema.get("required") or ():
            if name not in value:
                yield _join(path, name), "Required value"
        if len(value) > schema.get("maxProperties", len(value)):
            yield path, f"Too many: {len(value)}: must have at most {schema['maxProperties']} items"
        if len(value) < schema.get("minProperties", 0):
            yield (
                path,
                f"Invalid value: {len(value)}: should have at least {schema['minProperties']} properties",
            )
        for name, inner in value.items():
            below = (schema.get("properties") or {}).get(name, schema.get("additionalProperties"))
            if isinstance(below, dict):
                yield from _errors(below, inner, _join(path, name))


def _text_errors(schema: Json, value: str, path: str) -> Iterator[tuple[str, str]]:
    if len(value) > schema.get("maxLength", len(value)):
        yield path, f"Too long: may not be more than {schema['maxLength']} bytes"
    if len(value) < schema.get("minLength", 0):
        yield path, f"Invalid value: {json.dumps(value)}: should be at least {schema['minLength']} chars long"
    if "pattern" in schema and not re.search(schema["pattern"], value):
        yield path, f"Invalid value: {json.dumps(value)}: should match '{schema['pattern']}'"
    if schema.get("format") == "date-time" and not re.match(r"^\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d", value):
        yield path, f"Invalid value: {json.dumps(value)}: must be of type date-time"


def _number_errors(schema: Json, value: float, path: str) -> Iterator[tuple[str, str]]:
    if value < schema.get("minimum", value) or (
        schema.get("exclusiveMinimum") and value == schema["minimum"]
    ):
        yield path, f"Invalid value: {value}: should be greater than or equal to {schema['minimum']}"
    if value > schema.get("maximum", value) or (
        schema.get("exclusiveMaximum") and value == schema["maximum"]
    ):
        yield path, f"Invalid value: {value}: should be less than or equal to {schema['maximum']}"

    if "multipleOf" in schema and value % schema["multipleOf"]:
        yield path, f"Invalid value: {value}: should be a multiple of {schema['multipleOf']}"


def _list_errors(schema: Json, value: list[Any], path: str) -> Iterator[tuple[str, str]]:
    if len(value) > schema.get("maxItems", len(value)):
        yield path, f"Too many: {len(value)}: must have at most {schema['maxItems']} items"
    if len(value) < schema.get("minItems", 0):
        yield path, f"Invalid value: {len(value)}: should have at least {schema['minItems']} items"
    how, keys = schema.get("x-kubernetes-list-type"), schema.get("x-kubernetes-list-map-keys") or ()
    seen = set()
    for i, item in enumerate(value):
        if isinstance(schema.get("items"), dict):
            yield from _errors(schema["items"], item, f"{path}[{i}]")
        if how in ("set", "map"):
            mark = json.dumps(
                [item.get(key) for key in keys] if how == "map" and isinstance(item, dict) else item
            )
            if mark in seen:
                yield f"{path}[{i}]", f"Duplicate value: {mark}"
            seen.add(mark)


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
