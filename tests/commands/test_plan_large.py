"""A list that is read in parts gives the same plan as its objects in small files, and the same faults."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent import cli
from nodeagent.commands.plan import large_lists, objects, preview
from nodeagent.fabric import FabricRules

UNIT, RAILS, NODES = 8, 8, 1600

_TEXTS = st.sampled_from(["a", "},{", '"},{"apiVersion"', "\\", "]}", "\n", "ü", "},\n    {\n"]) | st.text(
    max_size=5
)
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | _TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_TEXTS, inner, max_size=4),
    max_leaves=12,
)
_ITEMS = st.lists(
    _VALUES.map(lambda value: {"apiVersion": "v1", "spec": [{"apiVersion": value}, {}]}), min_size=1
)
_STYLES = st.sampled_from(
    [{"indent": 4}, {"indent": 1}, {"separators": (",", ":")}, {}, {"indent": "\t", "ensure_ascii": False}]
)


@given(_ITEMS, _STYLES, st.integers(1, 300), st.booleans())
def test_the_parts_have_all_items_once_in_their_order(
    items: list[Any], style: dict[str, Any], step: int, kind_first: bool
) -> None:
    whole = {"kind": "List", "items": items} if kind_first else {"items": items, "kind": "List"}
    text = json.dumps(whole, **style).encode("utf-8", "surrogatepass")
    first = text[: max(step, 80)]
    parts = large_lists.parts(first, io.BytesIO(text[len(first) :]), len(text), step)
    assert parts is not None
    found: list[Any] = []
    for part in parts:
        if part.items is None:
            rest = json.loads(part.content)
            assert rest["kind"] == "List"
            found += rest["items"]
        else:
            found += [msgspec.json.decode(item) for item in part.items]
    assert found == items


@given(st.lists(_VALUES.map(lambda value: {"spec": value}), min_size=1), st.integers(1, 200))
def test_lines_are_read_in_parts_too(items: list[Any], step: int) -> None:
    text = b"".join(json.dumps(item).encode() + b"\n" for item in items)
    first = text[: text.index(b"\n") + 1]
    parts = large_lists.parts(first, io.BytesIO(text[len(first) :]), len(text), step)
    assert parts is not None
    assert [msgspec.json.decode(item) for part in parts for item in part.items or ()] == items


def test_a_text_beyond_the_limit_is_refused_while_it_is_read() -> None:
    text = json.dumps({"items": [{"kind": "Node"}] * 1000}).encode()
    parts = large_lists.parts(text[:100], io.BytesIO(text[100:]), 5000, 1000)
    assert parts is not None
    with pytest.raises(large_lists.ListTooLargeError):
        list(parts)


def reports() -> Iterator[dict[str, Any]]:
    for node in range(NODES):
        links = [
            {
                "name": f"nic{rail}",
                "rail": rail,
                "fabric": "compute",
                "state": "healthy",
                "lastTransitionTime": "2026-11-01T08:00:00Z" * 10,
                "neighbor": {
                    "chassisID": {"subtype": "mac", "value": f"02:00:00:{node // UNIT:04x}:{rail:02x}"},
                    "portID": {"subtype": "ifname", "value": f"swp{node % UNIT}"},
                    "systemName": f"su{node // UNIT}-leaf{rail}",
                },
            }
            for rail in range(RAILS)
        ]
        yield {
            "apiVersion": "nodeagent.io/v1alpha1",
            "kind": "NodeLinks",
            "links": links,
            "metadata": {"name": f"gpu-{node:04}", "resourceVersion": str(node)},
            "nodeName": f"gpu-{node:04}",
        }


def mixed_objects() -> list[dict[str, Any]]:
    """Reports, one of them twice, two with odd values; Nodes and a HyperNode between them."""
    listed = [*reports()]
    listed[700]["links"][0]["reasons"] = None
    listed[900]["links"] = "many"
    old = {**listed[1], "metadata": {"name": "gpu-0001", "resourceVersion": "0"}, "links": []}
    nodes = [
        {"apiVersion": "v1", "kind": "Node", "metadata": {"name": f"gpu-{node:04}", "labels": {"ü": "}"}}}
        for node in range(NODES)
    ]
    hypernode = {
        "apiVersion": "topology.volcano.sh/v1alpha1",
        "kind": "HyperNode",
        "metadata": {"name": "theirs"},
        "spec": {"tier": 1, "members": [{"type": "Node", "selector": {"exactMatch": {"name": "far"}}}] * 99},
    }
    return [*listed[:800], *nodes[:3], hypernode, *nodes[3:], *listed[800:], old]


def plan(capsys: pytest.CaptureFixture[str], source: Path) -> tuple[str, str]:
    assert cli.main(["plan", "--json", "--from", str(source)]) == 0
    captured = capsys.readouterr()
    return captured.out, captured.err


def test_a_large_list_gives_the_plan_of_many_small_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    items = mixed_objects()
    folder = tmp_path / "small"
    folder.mkdir()
    for start in range(0, len(items), 500):
        part = {"kind": "List", "items": items[start : start + 500]}
        (folder / f"{start:05}.json").write_text(json.dumps(part))
    expected = plan(capsys, folder)
    assert "2 reports are called gpu-0001" in expected[1]
    kubectl = json.dumps({"apiVersion": "v1", "items": items, "kind": "List"}, indent=4, ensure_ascii=False)
    raw = {"kind": "List", "metadata": {"resourceVersion": "1"}, "items": items}
    lines = "\n".join(json.dumps(item) for item in items)
    for text in (kubectl, json.dumps(raw, separators=(",", ":")), lines, f"\ufeff{kubectl}"):
        file = tmp_path / "large.json"
        file.write_text(text, encoding="utf-8")
        assert file.stat().st_size > objects.WHOLE_MAX
        assert plan(capsys, file) == expected


def test_items_without_a_kind_have_that_of_their_list_at_its_end(tmp_path: Path) -> None:
    nodes = [{"metadata": {"name": f"n{i}", "labels": {"pad": "x" * 400}}} for i in range(12_000)]
    file = tmp_path / "nodes.json"
    file.write_text(json.dumps({"items": nodes, "kind": "NodeList"}))
    assert file.stat().st_size > objects.WHOLE_MAX
    read = preview.make_objects(FabricRules())
    objects.read(str(file), read)
    assert len(read.nodes) == len(nodes)


def _another_version(text: str) -> str:
    head, _, tail = text.rpartition("nodeagent.io/v1alpha1")
    return f"{head}nodeagent.io/v9{tail}"


def _cut(text: str) -> str:
    return text[: len(text) // 2]


def _with_a_zero_byte(text: str) -> str:
    half = len(text) // 2
    return f"{text[:half]}\x00{text[half:]}"


@pytest.mark.parametrize(
    ("damage", "expected"),
    [(_another_version, "apiVersion 'nodeagent.io/v9'"), (_cut, "not JSON"), (_with_a_zero_byte, "not ")],
)
def test_a_fault_in_a_large_list_is_named_with_its_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: Callable[[str], str], expected: str
) -> None:
    text = json.dumps({"apiVersion": "v1", "items": [*reports()], "kind": "List"}, indent=4)
    broken = damage(text)
    file = tmp_path / "large.json"
    file.write_text(broken)
    assert cli.main(["plan", "--from", str(file)]) == 2
    error = capsys.readouterr().err
    assert expected in error
    line = int(error.partition("large.json:")[2].partition(":")[0])
    at = broken.find("v9") if "v9" in broken else len(text) // 2
    assert abs(line - 1 - broken.count("\n", 0, at)) <= 1


def test_bytes_that_are_no_text_are_named_with_their_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = json.dumps({"apiVersion": "v1", "items": [*reports()], "kind": "List"}, indent=4).encode()
    half = text.index(b"lastTransitionTime", len(text) // 2)
    file = tmp_path / "large.json"
    file.write_bytes(text[:half] + b"\xff" + text[half:])
    assert cli.main(["plan", "--from", str(file)]) == 2
    line = 1 + text.count(b"\n", 0, half)
    assert f"large.json:{line}: byte" in capsys.readouterr().err
