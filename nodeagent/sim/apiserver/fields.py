"""Who owns which field: server-side apply, and what every other write does to the ownership.

A path is a tuple of steps as ``managedFields`` writes them: ``f:spec``, ``k:{"type":"Ready"}`` for an item of
a keyed list, ``v:"x"`` for one of a set, and ``.`` last for the item itself. A list that is not keyed, and
whatever is no map, is owned as a whole.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from nodeagent.sim.apiserver.resource_types import OWNERS, Kind, Steps
from nodeagent.sim.apiserver.responses import RefusedError

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
class Manager:
    """What one manager owns through one operation and subresource."""

    name: str
    operation: str
    subresource: str
    fields: set[Path]
    time: str

    @property
    def key(self) -> tuple[str, str, str]:
        return self.name, self.operation, self.subresource


def leaves(kind: Kind, value: Any) -> set[Path]:
    """All that an object says, as paths."""
    return {
        path for path in _leaves(kind, value, (), ()) if path[:1] not in UNOWNED and path[:2] not in UNOWNED
    }


def _leaves(kind: Kind, value: Any, path: Path, steps: Steps) -> Iterator[Path]:
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


def keys_of(kind: Kind, steps: Steps) -> tuple[str, ...] | None:
    """The keys of a list that is merged item by item, else ``None``."""
    return kind.keyed.get(steps, OWNERS.get(steps))


def step_of(item: Any, keys: tuple[str, ...]) -> str:
    if not keys:
        return "v:" + json.dumps(item)
    if not isinstance(item, dict) or any(key not in item for key in keys):
        raise RefusedError(400, f"an item of a list lacks its key {', '.join(keys)}")
    return "k:" + json.dumps({key: item[key] for key in keys}, separators=(",", ":"))


def at(value: Any, path: Path) -> Any:
    """What stands at a path, or ``MISSING``."""
    for step in path:
        if step == ".":
            continue
        if step.startswith("f:"):
            if not isinstance(value, dict) or step[2:] not in value:
                return MISSING
            value = value[step[2:]]
        else:
            found = [item for item in value if _is(item, step)] if isinstance(value, list) else []
            if not found:
                return MISSING
            value = found[0]
    return value


def _is(item: Any, step: str) -> bool:
    wanted = json.loads(step[2:])
    if step.startswith("v:"):
        return bool(item == wanted)
    return isinstance(item, dict) and all(item.get(key) == value for key, value in wanted.items())


def merge(kind: Kind, live: Any, config: Any, steps: Steps = ()) -> Any:
    """``live`` with everything that ``config`` says."""
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
        said = {step_of(item, keys): item for item in config}
        merged_list = []
        for item in live:
            step = step_of(item, keys)
            merged_list.append(merge(kind, item, said.pop(step), (*steps, "*")) if step in said else item)
        return merged_list + list(said.values())
    return config


def drop(obj: Any, path: Path) -> None:
    """Take away what stands at a path, and maps that it leaves empty."""
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
            holder[:] = [item for item in holder if not _is(item, step)]
        if holder or index == 0 or not holders[index - 1][1].startswith("f:"):
            return


def apply(
    kind: Kind, live: Json | None, config: Json, managers: list[Manager], mine: Manager, *, force: bool
) -> Json:
    """The object after ``mine`` has applied ``config``; ``managers`` is brought up to date. 409 names who
    else owns what is to change."""
    before = next((one for one in managers if one.key == mine.key), None)
    new = leaves(kind, config)
    others = [one for one in managers if one.key != mine.key]
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
    for path in sorted(gone, key=lambda one: (one[-1] == ".", -len(one))):
        above = path[:-1] if path[-1] == "." else path
        if path in owned or any(one[: len(above)] == above for one in owned):
            continue
        if path[-1] != "." and _is_key(path):
            continue  # what names an item of a list goes with the item
        drop(merged, path)
    merged = merge(kind, merged, config)  # a map that was to be there empty has gone with its last key
    mine.fields = new
    managers[:] = [one for one in others if one.fields] + ([mine] if new else [])
    return merged


def _is_key(path: Path) -> bool:
    return len(path) > 1 and path[-2].startswith("k:") and path[-1][2:] in json.loads(path[-2][2:])


def _touched(paths: set[Path], fields: set[Path]) -> set[Path]:
    """Those of ``fields`` that are one of the paths, above one or below one."""
    heads = {path[:n] for path in paths for n in range(1, len(path) + 1)}
    return {
        field for field in fields
        if (field[-1] != "." and (field in heads or any(field[:n] in paths for n in range(1, len(field)))))
        or field in paths
    }  # fmt: skip


def _differs(live: Json, config: Json, path: Path) -> bool:
    return path[-1] != "." and at(live, path) != at(config, path)


def _conflict(clashes: dict[str, list[Path]]) -> RefusedError:
    causes = [
        {
            "reason": "FieldManagerConflict",
            "message": f'conflict with "{name}"',
            "field": "".join(_shown(step) for step in path),
        }
        for name, paths in sorted(clashes.items())
        for path in paths
    ]
    plural = "conflicts" if len(causes) > 1 else "conflict"
    names = ", ".join(f"{cause['message']}: {cause['field']}" for cause in causes)
    return RefusedError(409, f"Apply failed with {len(causes)} {plural}: {names}", details={"causes": causes})


def _shown(step: str) -> str:
    return f".{step[2:]}" if step.startswith("f:") else "" if step == "." else f"[{step[2:]}]"


def updated(kind: Kind, old: Json | None, new: Json, managers: list[Manager], mine: Manager) -> None:
    """What a write other than apply does: it owns all that it changed, and nobody owns what is gone."""
    said = leaves(kind, new)
    before = leaves(kind, old) if old is not None else set()
    changed = {path for path in said if path not in before or at(old, path) != at(new, path)}
    mine.fields = changed | {
        path for one in managers if one.key == mine.key for path in one.fields if path in said
    }
    kept = []
    for other in managers:
        if other.key == mine.key:
            continue
        other.fields = (other.fields & said) - changed
        if other.fields:
            kept.append(other)
    managers[:] = kept + ([mine] if mine.fields else [])


# --- managedFields ------------------------------------------------------------------------------------


def read(obj: Json | None) -> list[Manager]:
    entries = ((obj or {}).get("metadata") or {}).get("managedFields") or []
    return [
        Manager(
            entry.get("manager", ""),
            entry.get("operation", "Update"),
            entry.get("subresource", ""),
            set(_paths(entry.get("fieldsV1") or {}, ())),
            entry.get("time", ""),
        )
        for entry in entries
    ]


def write(kind: Kind, managers: list[Manager]) -> list[Json]:
    return [
        {
            "manager": one.name,
            "operation": one.operation,
            "apiVersion": kind.api_version,
            "time": one.time,
            "fieldsType": "FieldsV1",
            "fieldsV1": _nested(one.fields),
            **({"subresource": one.subresource} if one.subresource else {}),
        }
        for one in managers
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
