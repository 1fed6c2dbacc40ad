"""Read a settings file, or several that make one: YAML text → one frozen struct, or all errors at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

import msgspec

from nodeagent.config.file_errors import ConfigError, Conflict, FileErrors, HaltError, Path, dotted
from nodeagent.config.merged_tree import ConfigText, parse_files
from nodeagent.config.setting import Settings
from nodeagent.config.validate import INVALID, fit
from nodeagent.config.yaml_tree import NODES_MAX, YamlNode, locate, parse

S = TypeVar("S", bound=Settings)
Built = Mapping[str, Any]
"""The file's settings as builtins. Values that do not fit are left out, or ``INVALID`` within a list."""


def read_settings(
    text: str | ConfigText,
    type_: type[S],
    *,
    name: str,
    complete: Callable[[dict[str, Any]], None] = lambda _built: None,
    conflicts: Callable[[Built], Iterable[Conflict]] = lambda _built: (),
    conflicts_of_valid: Callable[[S], Iterable[Conflict]] = lambda _settings: (),
    values_max: int = NODES_MAX,
) -> tuple[S, YamlNode]:
    """The settings in a file's text, or in those of several files, and their tree. Raises ``ConfigError`` with all
    errors.

    ``complete`` sets values that follow from others. ``conflicts`` also sees a file with errors; ``conflicts_of_valid``
    sees a file without any.
    """
    errors = FileErrors()
    try:
        if isinstance(text, str):
            root = parse(text, errors, values_max=values_max, when_empty=type_.when_empty)
        else:
            root = parse_files(text, errors, values_max=values_max, when_empty=type_.when_empty)
        built = fit(root, errors, type_)
        complete(built)
        _add(conflicts(built), root, errors)
        if not errors:
            settings = msgspec.convert(built, type_)
            _add(conflicts_of_valid(settings), root, errors)
    except HaltError:
        raise ConfigError(name, errors) from None
    if errors:
        raise ConfigError(name, errors)
    return settings, root


def section(built: Built, path: tuple[str, ...], type_: type[S]) -> S:
    """One section of a file; a setting with an error stands at its default."""
    settings: Any = built
    for key in path:
        settings = settings.get(key, {})
    return msgspec.convert(_valid(settings), type_)


def entries(
    built: Built, path: tuple[str, ...], type_: Any, default: tuple[Any, ...] = ()
) -> Iterator[tuple[Path, Any]]:
    """The valid entries of a list with their paths. ``default`` stands where the file has no such list."""
    items: Any = built
    for key in path:
        items = None if items is None else items.get(key)
    for i, item in enumerate(default if items is None else items):
        if item is not INVALID:
            yield (*path, i), item if items is None else msgspec.convert(item, type_)


def _add(conflicts: Iterable[Conflict], root: YamlNode, errors: FileErrors) -> None:
    faulty = [error.path for error in errors]
    for conflict in conflicts:
        if any(_touches(dotted(path), other) for path in conflict.paths for other in faulty):
            continue
        at = locate(root, conflict.paths[0])
        first = "" if conflict.first is None else f" ({locate(root, conflict.first).seen_from(at)})"
        errors.add(conflict.paths[0], at, conflict.message + first)


def _valid(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _valid(item) for key, item in value.items() if item is not INVALID}
    if isinstance(value, list):
        return [_valid(item) for item in value if item is not INVALID]
    return value


def _touches(path: str, other: str) -> bool:
    """Whether the paths are equal or one leads to the other."""
    short, long = sorted((path, other), key=len)
    return long.startswith(short) and (len(long) == len(short) or long[len(short)] in ".[")
