"""The tables of settings in ``docs/reference/configuration.md`` and ``fabric-settings.md``."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import inspect

from hack.docs.markdown import table
from nodeagent.config.reference import entry_types, meaning, type_words, yaml_line
from nodeagent.config.setting import Settings
from nodeagent.config.validate import bare, struct_type


def settings_table(declared: type[Settings]) -> str:
    """Return a table of all settings: path, type, default, when a change counts, meaning."""
    rows = (
        (
            f"`{path}`",
            _escaped(type_words(field.type)),
            _default(field),
            "restart" if restart else "at once",
            _escaped(meaning(field)),
        )
        for path, field, restart in _fields(struct_type(declared), "", above=False)
    )
    return table(("setting", "type", "default", "counts", "meaning"), rows)


def _fields(
    type_: inspect.StructType, prefix: str, *, above: bool
) -> Iterator[tuple[str, inspect.Field, bool]]:
    """Yield every setting with its path, also of nested mappings and entries of lists, and whether a change waits for a
    restart. ``above``: whether one of the settings around these does."""
    for field in type_.fields:
        path = prefix + field.encode_name
        inner, extra = bare(field.type)
        restart = above or bool(extra.get("restart"))
        if isinstance(inner, inspect.StructType):
            yield from _fields(inner, path + ".", above=restart)
            continue
        yield path, field, restart
        if isinstance(inner, inspect.VarTupleType):
            for entry in entry_types(inner).values():
                yield from _fields(entry, f"{path}[{entry.tag or ''}].", above=restart)


def _default(field: inspect.Field) -> str:
    if field.required or bare(field.type)[1].get("required"):
        return "required"
    inner = bare(field.type)[0]
    if isinstance(inner, inspect.VarTupleType) and entry_types(inner):
        kinds = [str(entry.__struct_config__.tag) for entry in field.default]
        return f"one {' and one '.join(kinds)}" if kinds else "`[]`"
    return f"`{yaml_line(field.default)}`"


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")
