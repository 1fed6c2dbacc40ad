"""The leaves of a configuration: every setting with a value of its own, as the file spells its path."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec import inspect

from nodeagent.config.reference import entry_types
from nodeagent.config.setting import Settings
from nodeagent.config.validate import bare, choices, struct_type

HEAD = frozenset({"apiVersion", "kind"})
"""Have one value each."""


def leaves(declared: type[Settings]) -> dict[str, bool]:
    """Path → whether a change waits for a restart. The entries of a list are ``resources[vf].name``."""
    return {path: restart for path, restart in _leaves(struct_type(declared), "", False) if path not in HEAD}


def _leaves(type_: inspect.StructType, prefix: str, above: bool) -> Iterator[tuple[str, bool]]:
    for field in type_.fields:
        inner, extra = bare(field.type)
        path, restart = prefix + field.encode_name, above or bool(extra.get("restart"))
        entries = entry_types(inner) if isinstance(inner, inspect.VarTupleType) else {}
        if isinstance(inner, inspect.StructType):
            yield from _leaves(inner, f"{path}.", restart)
        for entry in entries.values():
            yield from _leaves(entry, f"{path}[{entry.tag or ''}].", restart)
        if not entries and not isinstance(inner, inspect.StructType):
            yield path, restart


def changed(text: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """The file ``text`` with the setting at ``path``, in the first entry of each list on the way."""
    key, _, rest = path.partition(".")
    name, is_list, tag = key.partition("[")
    if not rest:
        return {**text, key: value}
    if not is_list:
        return {**text, key: changed(text.get(key) or {}, rest, value)}
    first, *others = text.get(name) or [{"kind": tag[:-1]} if tag != "]" else {}]
    return {**text, name: [changed(first, rest, value), *others]}


def another(declared: type[Settings], path: str, text: dict[str, Any]) -> Any:
    """Another value of a setting than in the file ``text``, by its type. It knows no texts of a special form."""
    type_: inspect.StructType = struct_type(declared)
    present: Any = text
    for key in path.split("."):
        name, is_list, tag = key.partition("[")
        (field,) = (it for it in type_.fields if it.encode_name == name)
        inner, default = bare(field.type)[0], field.default
        present = present.get(name) if isinstance(present, dict) else None
        if isinstance(inner, inspect.StructType):
            type_ = inner
        elif is_list and isinstance(inner, inspect.VarTupleType):
            (type_,) = (it for it in entry_types(inner).values() if (it.tag or "") == tag[:-1])
            present = present[0] if present else None
    return _another(inner, default if present is None else present)


def _another(type_: inspect.Type, value: Any) -> Any:
    match bare(type_)[0]:
        case inspect.BoolType():
            return not value
        case inspect.LiteralType(values=values):
            return next(one for one in values if one != value)
        case inspect.IntType(ge=low) | inspect.FloatType(ge=low):
            low = low or 0
            return value - 1 if isinstance(value, int | float) and value - 1 >= low else low + 1
        case inspect.UnionType() as union:
            return _another(choices(union)[0][0], value)
        case inspect.VarTupleType(item_type=item):
            return [_another(item, None)]
        case inspect.StrType(pattern=pattern):
            if "{}+" in (pattern or ""):  # braces and a sum of rails, not a number of repetitions
                return "10.{rail}.0.0/8" if "/" in (pattern or "") else "another{rail}"
            return "/run/another" if (pattern or "").startswith("^(/") else "another"
    raise AssertionError(f"no other value of {type_} is known")
