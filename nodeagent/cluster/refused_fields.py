"""The parts of a NodeLinks object that the API server refuses: leave them out, and name them.

The definition in the cluster may be older than the agent, because Helm does not upgrade definitions, or a value may
break a limit of it. The server names each field that it refuses. The report is then sent without these fields, so that
one of them does not cost the others. Pure.

* A state that an older definition does not list becomes ``down``.
* A list that is too long is cut. A required field takes the object with it that requires it.
* ``nodeName``, ``metadata`` and the list of links cannot be left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from nodeagent.facts.model import MISSING, State
from nodeagent.kube.failure import ApiError, RefusedField

OLDER_STATES = {MISSING: State.DOWN.value, State.UNUSED.value: State.DOWN.value}
"""The state in a report, and the one that a definition without it gets."""
_STATES = ("state", "health")
_REQUIRED = ("name", "chassisID", "portID", "subtype", "value")
_FIXED = ("apiVersion", "kind", "metadata", "nodeName")
_STEP = re.compile(r'\[(?:name=|resource=)?"([^"]+)"\]|\[(\d+)\]|([^.\[\]]+)')
_TOO_MANY = re.compile(r"must have at most (\d+) items")
_UNDECLARED_WORDS = "field not declared in schema"
_UNDECLARED = re.compile(rf"\.(\S+): {_UNDECLARED_WORDS}")
"""The refusal of a server-side apply with a field that the definition lacks. It names no cause, and its message is cut,
so the field is left out of every entry of its list."""
_KEYED = ("links", "gpuMemory")
"""The lists whose entries the server names by a key."""

FieldPath = tuple[str | int, ...]


def refused_fields(error: ApiError) -> tuple[RefusedField, ...]:
    """The fields that the server refuses; empty if the error is another one."""
    if error.status == 422 and error.causes:
        return error.causes
    return tuple(RefusedField(field, _UNDECLARED_WORDS) for field in _UNDECLARED.findall(error.message))


def leave_out(
    report: dict[str, Any], fields: Iterable[RefusedField], *, whole_links: bool = False
) -> list[str]:
    """Remove the refused parts from ``report``. Return their names, such as ``nic3.neighbor.systemName``.

    ``whole_links`` removes the links that contain them instead. An empty answer: nothing can be removed.
    """
    changes: dict[FieldPath, tuple[str, Any]] = {}
    for field, named in _named(report, fields):
        path = _removable(report, named[:2] if whole_links and named[:1] == ("links",) else named)
        if not path:
            continue
        value = _at(report, path)
        replaced = _replacement(path, value, field.message)
        if path == ("links",) and replaced is None:
            continue
        name = _name(report, path)
        changes[path] = (name, None) if replaced is None else (f"{name} {_shown(value)}", replaced)
    # The last items of a list first, so that the places of the others stay as they are.
    for path in sorted(changes, key=_order, reverse=True):
        holder, key, (_, replaced) = _at(report, path[:-1]), path[-1], changes[path]
        if replaced is None:
            del holder[key]
        else:
            holder[key] = replaced
    return [name for name, _ in changes.values()]


def _removable(report: dict[str, Any], path: FieldPath) -> FieldPath:
    """The nearest part that can be left out; empty: there is none."""
    if path[:1] in (("holders",), ("traffic",)):
        path = path[:1]  # most of their fields are required, and a list without some pods would be misleading
    if path and isinstance(path[-1], str) and not _holds(report, path):
        path = path[:-1]  # a required field that is absent
    while path and path[-1] in _REQUIRED:
        path = path[:-1]
    return path if path and path[0] not in _FIXED and _holds(report, path) else ()


def _named(
    report: dict[str, Any], fields: Iterable[RefusedField]
) -> Iterator[tuple[RefusedField, FieldPath]]:
    """The refused fields with their paths in the report."""
    for field in fields:
        path = _path(report, field.field)
        if field.message == _UNDECLARED_WORDS and path and path[0] in _KEYED and len(path) > 2:
            alike = ((*path[:1], n, *path[2:]) for n in range(len(report[str(path[0])])))
            yield from ((field, other) for other in alike if _holds(report, other))
        else:
            yield field, path


def _path(report: dict[str, Any], field: str) -> FieldPath:
    """``links[3].state`` or ``links[name="nic3"].state`` as steps; empty for a text that is no path."""
    path: list[str | int] = []
    end = 0
    for step in _STEP.finditer(field):
        if field[end : step.start()] not in ("", "."):
            return ()
        end = step.end()
        key, place, name = step.groups()
        if key is not None:
            holder = _at(report, tuple(path)) if _holds(report, tuple(path)) else None
            items = holder if isinstance(holder, list | tuple) else ()
            keyed = [item if isinstance(item, dict) else {} for item in items]
            found = (n for n, item in enumerate(keyed) if key in (item.get("name"), item.get("resource")))
            path.append(next(found, -1))
        else:
            path.append(int(place) if place is not None else name)
    return tuple(path) if end == len(field) else ()


def _replacement(path: FieldPath, value: Any, message: str) -> Any:
    if path[-1] in _STATES and value in OLDER_STATES:
        return OLDER_STATES[value]
    if (
        isinstance(value, list | tuple)
        and (bound := _TOO_MANY.search(message))
        and int(bound[1]) < len(value)
    ):
        return list(value[: int(bound[1])])
    return None


def _holds(report: Any, path: FieldPath) -> bool:
    node: Any = report
    for step in path:
        if isinstance(node, dict):
            there = step in node
        else:
            there = isinstance(node, list) and isinstance(step, int) and 0 <= step < len(node)
        if not there:
            return False
        node = node[step]
    return True


def _at(report: Any, path: FieldPath) -> Any:
    for step in path:
        report = report[step]
    return report


def _name(report: dict[str, Any], path: FieldPath) -> str:
    """The path with the link's name for ``links[3]``."""
    if path[0] == "links" and len(path) > 1:
        link = _at(report, path[:2])
        head, rest = str(link.get("name", path[1])), path[2:]
    else:
        head, rest = str(path[0]), path[1:]
    return head + "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in rest)


def _shown(value: Any) -> str:
    return f"({value})" if isinstance(value, str) else f"(of {len(value)})"


def _order(path: FieldPath) -> tuple[tuple[int, str], ...]:
    return tuple((step, "") if isinstance(step, int) else (-1, step) for step in path)
