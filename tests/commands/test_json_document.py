"""The documents of `--json`: the style of their keys, and the envelope of every verb."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nodeagent.cli import _parser, main
from nodeagent.commands.completion import parsers
from nodeagent.console.json_document import json_document
from nodeagent_lab.sim.machine import Machine
from tests.commands import test_job
from tests.support.manifests import ROOT

OF_A_NODE = {
    "scan": "scan --json --root MACHINE",
    "neighbors": "neighbors --json --root INFINIBAND",
    "health": "health --json --root MACHINE",
    "health DEVICE": "health nic0 --json --root MACHINE",
    "health rules": "health rules --json --root MACHINE",
    "health replay": "health replay RECORDING --json",
    "gpus": "gpus --json --root MACHINE",
    "history": "history --json --from HISTORY",
    "remembered": "remembered --json --root MACHINE",
    "cordon": "cordon --json --root MACHINE",
    "doctor": "doctor --json --root MACHINE",
    "config features": "config features --json --root MACHINE",
    "vfs show": "vfs show --json --root MACHINE",
    "vfs apply": "vfs apply --json --root MACHINE",
}
OF_A_FABRIC = {
    "trouble": "trouble --json --from HALL",
    "job": "job llama --json --from HALL",
    "plan": "plan -o json --from HALL",
    "explain": "explain su0-n00 --json --from HALL",
    "explain SWITCH": "explain su0-leaf0 --json --from HALL",
    "topology": "topology -o json --from HALL",
    "cabling": "cabling --all --json --from HALL",
}
OTHER_FORMS = {"decode": "the time and the sender of each frame"}
"""Verbs whose objects have a time and a source of their own."""
OF_A_DAEMON = {
    "attach": "tests/commands/test_attach_list.py",
    "rails": "tests/commands/test_rails.py",
    "rails check": "tests/commands/test_rails.py",
    "rails traffic": "tests/commands/test_job_rails.py",
    "maintain": "tests/commands/test_maintain.py",
    "diff": "tests/commands/test_node_differences.py",
}
"""Verbs that need a running agent, a cluster or reports with more, and where their documents are tested."""


@pytest.fixture
def inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    machine, hall, infiniband = tmp_path / "machine", tmp_path / "hall", tmp_path / "infiniband"
    Machine.load("two-gpu-two-nic").write(machine)
    Machine.load("dgx-h100-infiniband").write(infiniband)
    hall.mkdir()
    test_job.file(*test_job.troubled(), hall)
    history = tmp_path / "history.json"
    history.write_text(json.dumps({"node": "gpu-1", "changes": []}))
    monkeypatch.setenv("NODE_NAME", "gpu-1")
    monkeypatch.delenv("KUBECONFIG", raising=False)
    recording = ROOT / "tests/recordings/flaps.jsonl"
    return {
        "MACHINE": str(machine),
        "INFINIBAND": str(infiniband),
        "HALL": str(hall),
        "HISTORY": str(history),
        "RECORDING": str(recording),
    }


def printed(line: str, inputs: dict[str, str], capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    """The objects that a command prints."""
    assert main([inputs.get(word, word) for word in line.split()]) in (0, 1)
    text = capsys.readouterr().out
    try:
        made = json.loads(text)
    except json.JSONDecodeError:
        made = list(map(json.loads, text.splitlines()))
    assert made
    return made if isinstance(made, list) else [made]


def has_json(parser: argparse.ArgumentParser) -> bool:
    return any(
        "--json" in action.option_strings
        or (action.dest == "format" and action.choices is not None and "json" in action.choices)
        for action in parser._actions
    )


def test_the_table_has_every_verb_that_prints_json() -> None:
    found = {one.prog.removeprefix("nodeagent ") for one in parsers(_parser()) if has_json(one)}
    tested = OF_A_NODE.keys() | OF_A_FABRIC.keys() | OTHER_FORMS.keys() | OF_A_DAEMON.keys()
    assert len(found) > 15
    assert not found - tested, "give a new verb the keys node (or cluster), time and source, and a row here"
    assert not {name for name in tested if not name.startswith(tuple(found))}


def test_a_key_is_in_camel_case_alone(tmp_path: Path) -> None:
    made = json.loads(json_document({"a_b": [{"c_d": None}], "00:01_x": 1}, tmp_path, "/run/agent.sock"))
    assert made["aB"] == [{"cD": None}]
    assert made["00:01_x"] == 1
    assert "a_b" not in made
    assert made["source"] == "/run/agent.sock"


@pytest.mark.parametrize("verb", OF_A_NODE)
def test_a_document_of_a_node_names_node_time_and_source(
    verb: str, inputs: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    for one in printed(OF_A_NODE[verb], inputs, capsys):
        assert one["node"] == (None if verb == "health replay" else "gpu-1")
        assert one["time"].endswith("Z")
        assert one["source"] in ("this command", inputs["HISTORY"], inputs["RECORDING"])
        assert not set(snake(one))


@pytest.mark.parametrize("verb", OF_A_FABRIC)
def test_a_document_of_a_fabric_names_cluster_time_and_source(
    verb: str, inputs: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    for one in printed(OF_A_FABRIC[verb], inputs, capsys):
        assert (one["cluster"], one["fabric"], one["source"]) == (None, "compute", inputs["HALL"])
        assert one["time"].endswith("Z")
        assert not set(snake(one))


def snake(value: Any) -> Iterator[str]:
    """The keys that are names with an underscore, at any depth."""
    if isinstance(value, list):
        for one in value:
            yield from snake(one)
    elif isinstance(value, dict):
        for key, one in value.items():
            yield from (key,) if "_" in key and key.isidentifier() else ()
            yield from snake(one)


def test_an_explanation_has_its_sentences_and_its_table(
    inputs: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    (made,) = printed("explain su0-n02 --json --from HALL", inputs, capsys)
    assert (made["kind"], made["name"]) == ("node", "su0-n02")
    (leaf,) = made["hypernodes"]
    assert made["sentences"][0] == f"The node su0-n02 is in {leaf}."
    assert {link["group"] for link in made["links"]} == {leaf}
    assert made["links"][0].keys() == {"link", "rail", "switch", "port", "lldp", "state", "group"}
    (switch,) = printed(f"explain {made['links'][0]['switch']} --json --from HALL", inputs, capsys)
    assert (switch["kind"], switch["hypernodes"]) == ("switch", [leaf])
    assert "su0-n02" in {link["node"] for link in switch["links"]}
    (above,) = printed(f"explain {leaf} --json --from HALL", inputs, capsys)
    assert (above["kind"], above["hypernodes"]) == ("hypernode", [])
