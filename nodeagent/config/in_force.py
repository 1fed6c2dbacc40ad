"""Which settings of a changed file are in force at once, and which wait for a restart.

A setting that needs a restart says so where it is declared (``setting(..., restart=True)``). In a running daemon it
keeps the value of the start for every reader, so no part of it counts before the restart. All other settings are read
where they are used, from the configuration in force: a part gets a function that returns its section, never a value.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

import msgspec

from nodeagent.config.setting import Settings

S = TypeVar("S", bound=Settings)


def adopted(in_force: S, read: S) -> tuple[S, tuple[str, ...]]:
    """The settings in force once the file reads as ``read``, and the paths of changed settings that wait for a restart,
    as the file spells them: ``web.hostNames``."""
    changes: dict[str, Any] = {}
    waiting: list[str] = []
    for field in msgspec.structs.fields(type(read)):
        before, now = getattr(in_force, field.name), getattr(read, field.name)
        if needs_restart(field):
            changes[field.name] = before
            waiting += (".".join((field.encode_name, *path)) for path in _changed(before, now))
        elif isinstance(before, Settings) and isinstance(now, Settings):
            changes[field.name], below = adopted(before, now)
            waiting += (f"{field.encode_name}.{path}" for path in below)
    return msgspec.structs.replace(read, **changes), tuple(waiting)


def needs_restart(field: msgspec.structs.FieldInfo) -> bool:
    """Whether the declaration says ``restart=True``."""
    return any((it.extra or {}).get("restart", False) for it in getattr(field.type, "__metadata__", ()))


def _changed(before: Any, now: Any) -> Iterator[tuple[str, ...]]:
    """The paths below a setting whose values differ."""
    if before == now:
        return
    if not (isinstance(now, Settings) and type(before) is type(now)):
        yield ()
        return
    for field in msgspec.structs.fields(type(now)):
        for path in _changed(getattr(before, field.name), getattr(now, field.name)):
            yield (field.encode_name, *path)
