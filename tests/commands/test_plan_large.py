"""A large list, or a large file with one object in each line, gives the plan of small files, and the same faults."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nodeagent import cli
from nodeagent.commands.plan import objects, preview
from nodeagent.console import user_files
from nodeagent.fabric import FabricRules

UNIT, RAILS, NODES = 8, 8, 1600


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
    plan = json.loads(captured.out)
    assert plan.pop("source") == str(source)
    del plan["time"]
    return json.dumps(plan), captured.err.replace(str(source), "SOURCE")


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
        assert file.stat().st_size > objects.BEGINNING
        assert plan(capsys, file) == expected


def test_items_without_a_kind_have_that_of_their_list_at_its_end(tmp_path: Path) -> None:
    nodes = [{"metadata": {"name": f"n{i}", "labels": {"pad": "x" * 400}}} for i in range(12_000)]
    file = tmp_path / "nodes.json"
    file.write_text(json.dumps({"items": nodes, "kind": "NodeList"}))
    assert file.stat().st_size > objects.BEGINNING
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


def test_a_fault_in_a_large_file_of_lines_is_named_with_its_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [json.dumps(report) for report in reports()]
    file = tmp_path / "large.jsonl"
    for broken, expected in (
        (lines[1300].replace("v1alpha1", "v9"), "apiVersion 'nodeagent.io/v9'"),
        (lines[1300][:-1], "not JSON"),
        ("17", "'17' is no Kubernetes object"),
        ("\udcff", "byte 0 is not UTF-8"),
    ):
        text = "\n".join([*lines[:1300], broken, *lines[1301:]])
        file.write_bytes(text.encode("utf-8", "surrogateescape"))
        assert file.stat().st_size > objects.BEGINNING
        assert cli.main(["plan", "--from", str(file)]) == 2
        error = capsys.readouterr().err
        assert f"large.jsonl:1301: {expected}" in error or (":1301: " in error and expected in error)


def test_a_text_beyond_the_limit_is_refused_with_what_to_give_instead() -> None:
    with pytest.raises(user_files.UserFileError, match="one JSON object in each line"):
        user_files.read_rest(io.BytesIO(b"{" * 9), "huge.json", objects.LARGE, 0, 8)
    assert user_files.read_rest(io.BytesIO(b"{" * 8), "fits.json", objects.LARGE, 0, 8) == b"{" * 8


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
