"""Field ownership: server-side apply, and the effect of every other write on the owners.

A path is a tuple of steps as in ``managedFields``: ``f:spec``, ``k:{"type":"Ready"}`` for an item of a keyed list,
``v:"x"`` for an item of a set, and ``.`` at the end for the item itself. A list without keys and every other value
except a map is owned as a whole.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from nodeagent_lab.sim.apiserver.resource_types import OWNERS, ApiKind, Steps
from nodeagent_lab.sim.apiserver.responses import ApiRefusedError

Json = dict[str, Any]
Path = tuple[str, ...]

UNOWNED = {
    ("f:apiVersion",),
    ("f:kind",),
    *(
        ("f:metadata", f"f:{name}")
        for name in (
            "name", "namespace", "uid", "resourceVersion", "generation", "creationTimestamp", "managedFields",
            "selfLink", "deletionTimestamp", "deletionGracePeriodSeconds", "generateName",
        )
    ),
}  # fmt: skip

MISSING = object()


@dataclass
class FieldManager:
    """The fields that one manager owns through one operation and subresource."""

    name: str
    operation: str
    subresource: str
    fields: set[Path]
    time: str

    @property
    def key(self) -> tuple[str, str, str]:
        return self.name, self.operation, self.subresource


def leaves(kind: ApiKind, value: Any) -> set[Path]:
    """All fields of an object, as paths."""
    return {
        path for path in _leaves(kind, value, (), ()) if path[:1] not in UNOWNED and path[:2] not in UNOWNED
    }


def _leaves(kind: ApiKind, value: Any, path: Path, steps: Steps) -> Iterator[Path]:
    if isinstance(value, dict) and (value or not path):
        for name, inner in value.items():
            yield from _leaves(kind, inner, (*path, f"f:{name}"), (*steps, name))
    elif isinstance(value, list) and (keys := keys_of(kind, steps)) is not None:
        for item in value:
            step = step_of(item, keys)
            yield (*path, step, ".")
            if keys:
                yield from _leaves(kind, item, (*path, step), (*steps, "*"))
    else:
        yield path


def keys_of(kind: ApiKind, steps: Steps) -> tuple[str, ...] | None:
    """The keys of a list that is merged item by item; ``None`` for any other list."""
    return kind.keyed.get(steps, OWNERS.get(steps))


def step_of(item: Any, keys: tuple[str, ...]) -> str:
    if not keys:
        return "v:" + json.dumps(item)
    present = [key for key in keys if isinstance(item, dict) and key in item]
    if not present:
        raise ApiRefusedError(400, f"an item of a list lacks its key {', '.join(keys)}")
    return "k:" + json.dumps({key: item[key] for key in present}, separators=(",", ":"))


def at(value: Any, path: Path) -> Any:
    """The value at a path, or ``MISSING``."""
    for step in path:
        if step == ".":
            continue
        if step.startswith("f:"):
            if not isinstance(value, dict) or step[2:] not in value:
                return MISSING
            value = value[step[2:]]
        else:
            items = [item for item in value if _matches(item, step)] if isinstance(value, list) else []
            if not items:
                return MISSING
            value = items[0]
    return value


def _matches(item: Any, step: str) -> bool:
    wanted = json.loads(step[2:])
    if step.startswith("v:"):
        return bool(item == wanted)
    return isinstance(item, dict) and all(item.get(key) == value for key, value in wanted.items())


def merge(kind: ApiKind, live: Any, config: Any, steps: Steps = ()) -> Any:
    """``live`` with every field of ``config``."""
    if isinstance(live, dict) and isinstance(config, dict):
        merged = dict(live)
        for name, value in config.items():
            inner = merge(kind, live.get(name), value, (*steps, name))
            if value is None:
                merged.pop(name, None)
            else:
                merged[name] = inner
        return merged
    keys = keys_of(kind, steps)
    if keys is not None and isinstance(live, list) and isinstance(config, list):
        configured = {step_of(item, keys): item for item in config}
        merged_list = []
        for item in live:
            step = step_of(item, keys)
            merged_list.append(
                merge(kind, item, configured.pop(step), (*steps, "*")) if step in configured else item
            )
        return merged_list + list(configured.values())
    return config


def drop(obj: Any, path: Path) -> None:
    """Remove the value at a path, and the maps that become empty."""
    holders, value = [], obj
    steps = path[:-1] if path[-1] == "." else path
    for step in steps:
        holders.append((value, step))
        value = at(value, (step,))
        if value is MISSING:
            return
    for index, (holder, step) in reversed(list(enumerate(holders))):
        if step.startswith("f:"):
            del holder[step[2:]]
        else:
            holder[:] = [item for item in holder if not _matches(item, step)]
        if holder or index == 0 or not holders[index - 1][1].startswith("f:"):
            return


def apply(
    kind: ApiKind,
    live: Json | None,
    config: Json,
    managers: list[FieldManager],
    mine: FieldManager,
    *,
    force: bool,
) -> Json:
    """The object after ``mine`` has applied ``config``; updates ``managers``.

    409 names the other owners of a field that would change.
    """
    before = next((manager for manager in managers if manager.key == mine.key), None)
    new = leaves(kind, config)
    others = [manager for manager in managers if manager.key != mine.key]
    base = live if live is not None else {}
    clashes: dict[str, list[Path]] = {}
    for other in others:
        for path in sorted(_touched(new, other.fields)):
            if _differs(base, config, path):
                clashes.setdefault(other.name, []).append(path)
    if clashes and not force:
        raise _conflict(clashes)
    lost = {path for paths in clashes.values() for path in paths}
    for other in others:
        other.fields -= _touched(lost, other.fields)
    merged: Json = merge(kind, deepcopy(base), config)
    owned = set().union(*(other.fields for other in others)) | new
    gone = (before.fields if before else set()) - new
    for path in sorted(gone, key=lambda path: (path[-1] == ".", -len(path))):
        above = path[:-1] if path[-1] == "." else path
        if path in owned or any(other_path[: len(above)] == above for other_path in owned):
            continue
        if path[-1] != "." and _is_key(path):
            continue  # the key of a list item is removed with the item
        drop(merged, path)
    merged = merge(kind, merged, config)  # restores a map that is empty in ``config``
    mine.fields = new
    managers[:] = [manager for manager in others if manager.fields] + ([mine] if new else [])
    return merged


def _is_key(path: Path) -> bool:
    return len(path) > 1 and path[-2].startswith("k:") and path[-1][2:] in json.loads(path[-2][2:])


def _touched(paths: set[Path], fields: set[Path]) -> set[Path]:
    """The ``fields`` that equal one of the paths, or are above or below it."""
    heads = {path[:n] for path in paths for n in range(1, len(path) + 1)}
    return {
        field for field in fields
        if (field[-1] != "." and (field in heads or any(field[:n] in paths for n in range(1, len(field)))))
        or field in paths
    }  # fmt: skip


def _differs(live: Json, config: Json, path: Path) -> bool:
    return path[-1] != "." and at(live, path) != at(config, path)


def _conflict(clashes: dict[str, list[Path]]) -> ApiRefusedError:
    causes = [
        {
            "reason": "FieldManagerConflict",
            "message": f'conflict with "{name}"',
            "field": "".join(_step_text(step) for step in path),
        }
        for name, paths in sorted(clashes.items())
        for path in paths
    ]
    plural = "conflicts" if len(causes) > 1 else "conflict"
    names = ", ".join(f"{cause['message']}: {cause['field']}" for cause in causes)
    return ApiRefusedError(
        409, f"Apply failed with {len(causes)} {plural}: {names}", details={"causes": causes}
    )


def _step_text(step: str) -> str:
    return f".{step[2:]}" if step.startswith("f:") else "" if step == "." else f"[{step[2:]}]"


def updated(
    kind: ApiKind, old: Json | None, new: Json, managers: list[FieldManager], mine: FieldManager
) -> None:
    """Update the owners after a write other than apply: it owns what it changed; removed fields have no owner."""
    written = leaves(kind, new)
    before = leaves(kind, old) if old is not None else set()
    changed = {path for path in written if path not in before or at(old, path) != at(new, path)}
    mine.fields = changed | {
        path for manager in managers if manager.key == mine.key for path in manager.fields if path in written
    }
    kept = []
    for other in managers:
        if other.key == mine.key:
            continue
        other.fields = (other.fields & written) - changed
        if other.fields:
            kept.append(other)
    managers[:] = kept + ([mine] if mine.fields else [])


# --- managedFields ------------------------------------------------------------------------------------


def read(obj: Json | None) -> list[FieldManager]:
    entries = ((obj or {}).get("metadata") or {}).get("managedFields") or []
    return [
        FieldManager(
            entry.get("manager", ""),
            entry.get("operation", "Update"),
            entry.get("subresource", ""),
            set(_paths(entry.get("fieldsV1") or {}, ())),
            entry.get("time", ""),
        )
        for entry in entries
    ]


def write(kind: ApiKind, managers: list[FieldManager]) -> list[Json]:
    return [
        {
            "manager": manager.name,
            "operation": manager.operation,
            "apiVersion": kind.api_version,
            "time": manager.time,
            "fieldsType": "FieldsV1",
            "fieldsV1": _nested(manager.fields),
            **({"subresource": manager.subresource} if manager.subresource else {}),
        }
        for manager in managers
    ]


def _paths(fields: Json, path: Path) -> Iterator[Path]:
    for step, inner in fields.items():
        if inner:
            yield from _paths(inner, (*path, step))
        else:
            yield (*path, step)


def _nested(fields: set[Path]) -> Json:
    root: Json = {}
    for path in sorted(fields):
        holder = root
        for step in path:
            holder = holder.setdefault(step, {})
    return root
