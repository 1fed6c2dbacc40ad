"""`nodeagent attach --list`: the netdevs in the pods of this node, from the state of the running process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nodeagent.attach.attach_files import AttachFiles, AttachState
from nodeagent.cli import main
from nodeagent.facts.model import PodNetdev

NETDEVS = (
    PodNetdev("0000:18:00.2", "ml", "worker-0", "rail0", ("10.100.16.7/16", "fd00::7/64")),
    PodNetdev("0000:19:00.2", "ml", "worker-0", "rail1"),
)


def listed(folder: Path, *options: str) -> int:
    return main(["attach", "--list", "--directory", str(folder), *options])


def test_it_prints_a_line_for_each_netdev(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = AttachFiles(tmp_path)
    files.folder.mkdir()
    files.write_state(AttachState(netdevs=NETDEVS))
    assert listed(tmp_path) == 0
    table = [line.split() for line in capsys.readouterr().out.splitlines() if line]
    assert table == [
        ["NETDEVS", "IN", "PODS"],
        ["POD", "DEVICE", "NETDEV", "ADDRESS"],
        ["ml/worker-0", "0000:18:00.2", "rail0", "10.100.16.7/16,", "fd00::7/64"],
        ["ml/worker-0", "0000:19:00.2", "rail1"],
    ]
    assert listed(tmp_path, "--json") == 0
    (first, second) = json.loads(capsys.readouterr().out)
    assert {key: first[key] for key in ("device", "namespace", "pod", "netdev", "addresses")} == {
        "device": "0000:18:00.2", "namespace": "ml", "pod": "worker-0", "netdev": "rail0",
        "addresses": ["10.100.16.7/16", "fd00::7/64"],
    }  # fmt: skip
    assert second["addresses"] == []


def test_without_a_state_there_are_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert listed(tmp_path) == 0
    assert capsys.readouterr().out == "NETDEVS IN PODS\n  none\n\n"


def test_a_state_that_cannot_be_read_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "attach").mkdir()
    (tmp_path / "attach/state.json").write_text("[]")
    assert listed(tmp_path) == 2
    assert "the netdevs in pods cannot be read" in capsys.readouterr().err
