"""Patches other than server-side apply: merge (RFC 7386), strategic merge, and JSON patch (RFC 6902)."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from nodeagent_lab.sim.apiserver.resource_types import ApiKind, Steps
from nodeagent_lab.sim.apiserver.responses import ApiRefusedError

Json = dict[str, Any]


def merge_patched(live: Any, patch: Any) -> Any:
    """RFC 7386: null removes, a list replaces."""
    if not isinstance(patch, dict):
        return patch
    result = dict(live) if isinstance(live, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = merge_patched(result.get(name), value)
    return result


def strategic_merge_patched(kind: ApiKind, live: Any, patch: Any, steps: Steps = ()) -> Any:
    """Like a merge patch, but keyed lists are merged item by item; ``$patch: delete`` removes an item."""
    if isinstance(patch, dict):
        if patch.get("$patch") == "replace":
            return {name: value for name, value in patch.items() if name != "$patch"}
        result = dict(live) if isinstance(live, dict) else {}
        for name, value in patch.items():
            if value is None:
                result.pop(name, None)
            elif name != "$patch" and not name.startswith("$setElementOrder/"):
                result[name] = strategic_merge_patched(kind, result.get(name), value, (*steps, name))
        return result
    keys = kind.keyed.get(steps)
    if not isinstance(patch, list) or not keys or not isinstance(live, list):
        return patch
    items = list(live)
    for item in patch:
        where = [i for i, old in enumerate(items) if all(old.get(key) == item.get(key) for key in keys)]
        if item.get("$patch") == "delete":
            items = [old for i, old in enumerate(items) if i not in where]
        elif where:
            items[where[0]] = strategic_merge_patched(kind, items[where[0]], item, (*steps, "*"))
        else:
            items.append(item)
    return items


def json_patched(live: Json, operations: Any) -> Json:
    """RFC 6902."""
    if not isinstance(operations, list):
        raise ApiRefusedError(400, "a JSON patch is a list of operations")
    root: Any = {"": deepcopy(live)}
    for operation in operations:
        try:
            _operate(root, operation)
        except (KeyError, IndexError, ValueError, TypeError, AttributeError) as error:
            raise ApiRefusedError(
                422,
                f"the server rejected our request due to an error in our request: {error}",
                reason="Invalid",
            ) from error
    result: Json = root[""]
    return result


def _operate(root: Json, operation: Json) -> None:
    verb, path = operation["op"], _steps(operation["path"])
    if verb in ("add", "replace"):
        _set(root, path, deepcopy(operation["value"]), insert=verb == "add")
    elif verb == "remove":
        _remove(root, path)
    elif verb == "test":
        holder, last = _holder(root, path)
        if _read(holder, last) != operation["value"]:
            raise ValueError(f"testing value {operation['path']} failed")
    elif verb in ("move", "copy"):
        source = _steps(operation["from"])
        holder, last = _holder(root, source)
        value = deepcopy(_read(holder, last))
        if verb == "move":
            _remove(root, source)
        _set(root, path, value, insert=True)
    else:
        raise ValueError(f"unknown operation {verb}")


def _steps(pointer: str) -> list[str]:
    return [step.replace("~1", "/").replace("~0", "~") for step in pointer.split("/")]


def _holder(root: Any, path: list[str]) -> tuple[Any, str]:
    for step in path[:-1]:
        root = _read(root, step)
    return root, path[-1]


def _read(holder: Any, step: str) -> Any:
    return holder[int(step)] if isinstance(holder, list) else holder[step]


def _set(root: Any, path: list[str], value: Any, *, insert: bool) -> None:
    holder, last = _holder(root, path)
    if isinstance(holder, list):
        if insert:
            holder.insert(len(holder) if last == "-" else int(last), value)
        else:
            holder[int(last)] = value
    elif insert or last in holder:
        holder[last] = value
    else:
        raise KeyError(f"nothing at {'/'.join(path)}")


def _remove(root: Any, path: list[str]) -> None:
    holder, last = _holder(root, path)
    del holder[int(last) if isinstance(holder, list) else last]
