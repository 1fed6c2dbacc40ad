"""Label and field selectors."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec

from nodeagent.sim.apiserver.responses import ApiRefusedError

Json = dict[str, Any]
Selector = Callable[[bytes], bool]

_SET = re.compile(r"^\s*(?P<key>[^\s!=,()]+)\s+(?P<op>in|notin)\s*\((?P<values>[^)]*)\)\s*$")
_EQUAL = re.compile(r"^\s*(?P<key>[^\s!=,()]+)\s*(?P<op>==|=|!=)\s*(?P<value>[^\s,()]*)\s*$")
_PRESENT = re.compile(r"^\s*(?P<no>!?)\s*(?P<key>[^\s!=,()]+)\s*$")


class _Labels(msgspec.Struct):
    labels: dict[str, str] | None = None


class _Labeled(msgspec.Struct):
    metadata: _Labels


_labels = msgspec.json.Decoder(_Labeled)


def selector(labels: str, fields: str) -> Selector | None:
    """Return a function that returns whether an encoded object is selected; ``None`` selects all."""
    tests = [_label(term) for term in _terms(labels)]
    wanted = [_field(term) for term in _terms(fields)]
    if not tests and not wanted:
        return None

    def choose(body: bytes) -> bool:
        if tests:
            has = _labels.decode(body).metadata.labels or {}
            if not all(test(has) for test in tests):
                return False
        return not wanted or all(test(msgspec.json.decode(body)) for test in wanted)

    return choose


def _terms(selector: str) -> list[str]:
    return [term for term in re.split(r",(?![^(]*\))", selector) if term.strip()]


def _label(term: str) -> Callable[[dict[str, str]], bool]:
    if match := _SET.match(term):
        key, values = match["key"], {value.strip() for value in match["values"].split(",")}
        if match["op"] == "in":
            return lambda has: has.get(key) in values
        return lambda has: has.get(key) not in values
    if match := _EQUAL.match(term):
        key, value = match["key"], match["value"]
        if match["op"] == "!=":
            return lambda has: has.get(key) != value
        return lambda has: has.get(key) == value
    if match := _PRESENT.match(term):
        key, present = match["key"], not match["no"]
        return lambda has: (key in has) is present
    raise ApiRefusedError(400, f"unable to parse requirement: {term!r}")


def _field(term: str) -> Callable[[Json], bool]:
    match = _EQUAL.match(term)
    if match is None:
        raise ApiRefusedError(400, f"invalid field selector: {term!r}")
    path, value, differs = match["key"].split("."), match["value"], match["op"] == "!="

    def test(obj: Json) -> bool:
        field_value: Any = obj
        for step in path:
            field_value = field_value.get(step) if isinstance(field_value, dict) else None
        return ((field_value if isinstance(field_value, str) else "") == value) is not differs

    return test
