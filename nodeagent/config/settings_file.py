"""Read a settings file: YAML text → one frozen struct, or all errors of the file at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

import msgspec

from nodeagent.config.faults import ConfigError, Conflict, FaultList, HaltError, Path, dotted
from nodeagent.config.setting import Settings
from nodeagent.config.validate import INVALID, fit
from nodeagent.config.yaml_tree import NODES_MAX, YamlNode, locate, parse

S = TypeVar("S", bound=Settings)
Built = Mapping[str, Any]
"""The file's settings as builtins. Values that do not fit are left out, or ``INVALID`` within a list."""


def read_settings(
    text: str,
    type_: type[S],
    *,
    name: str,
    conflicts: Callable[[Built], Iterable[Conflict]] = lambda _built: (),
    conflicts_of_valid: Callable[[S], Iterable[Conflict]] = lambda _settings: (),
    values_max: int = NODES_MAX,
) -> tuple[S, YamlNode]:
    """The settings in a file's text, and its tree. Raises ``ConfigError`` with all errors of the file.

    ``conflicts`` also sees a file with faults; ``conflicts_of_valid`` sees a file without any.
    """
    faults = FaultList()
    try:
        root = parse(text, faults, values_max=values_max, when_empty=type_.when_empty)
        built = fit(root, faults, type_)
        _add(conflicts(built), root, faults)
        if not faults:
            settings = msgspec.convert(built, type_)
            _add(conflicts_of_valid(settings), root, faults)
    except HaltError:
        raise ConfigError(name, faults) from None
    if faults:
        raise ConfigError(name, faults)
    return settings, root


def section(built: Built, path: tuple[str, ...], type_: type[S]) -> S:
    """One section of a file; a setting with a fault stands at its default."""
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


def _add(conflicts: Iterable[Conflict], root: YamlNode, faults: FaultList) -> None:
    faulty = [fault.path for fault in faults]
    for conflict in conflicts:
        if any(_touches(dotted(path), other) for path in conflict.paths for other in faulty):
            continue
        line = "" if conflict.first is None else f" (line {locate(root, conflict.first)[0]})"
        faults.add(conflict.paths[0], locate(root, conflict.paths[0]), conflict.message + line)


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
