"""The documents of `--json`: both styles of keys, and the envelope."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nodeagent.cli import main
from nodeagent.commands.json_document import document
from nodeagent_lab.sim.machine import Machine


def test_keys_of_an_earlier_version_stay_beside_the_new_ones(tmp_path: Path) -> None:
    made = json.loads(document({"a_b": [{"c_d": None}], "00:01_x": 1}, tmp_path, "/run/agent.sock"))
    assert made["a_b"] == made["aB"] == [{"c_d": None, "cD": None}]
    assert made["00:01_x"] == 1
    assert made["source"] == "/run/agent.sock"


@pytest.mark.parametrize("verb", ["scan", "health", "gpus", "vfs show", "remembered"])
def test_every_document_names_node_time_and_source(
    verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Machine.load("two-gpu-two-nic").write(tmp_path)
    monkeypatch.setenv("NODE_NAME", "gpu-1")
    assert main([*verb.split(), "--json", "--root", str(tmp_path)]) == 0
    made = json.loads(capsys.readouterr().out)
    for one in made if isinstance(made, list) else [made]:
        assert one["node"] == "gpu-1"
        assert one["source"] == "this command"
        assert one["time"].endswith("Z")
