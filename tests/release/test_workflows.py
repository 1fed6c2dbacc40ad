"""The workflows are valid by their own schema, name existing files and commands, and pin what they use."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from hack.release import __main__ as command
from tests.support.manifests import ROOT

WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))


def load(path: Path) -> dict[str, Any]:
    """``on`` is a key here, and not the truth."""
    found = yaml.safe_load(path.read_text())
    return {("on" if key is True else key): value for key, value in found.items()}


def steps(path: Path) -> list[dict[str, Any]]:
    return [step for job in load(path)["jobs"].values() for step in job.get("steps", ())]


def faults(schema: str, *paths: Path) -> str:
    """Return what check-jsonschema finds by SchemaStore's schema of the forge."""
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}"]
    done = subprocess.run([*command, *map(str, paths)], capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stdout + done.stderr


def test_workflows_and_issue_forms_match_the_schemas_of_the_forge() -> None:
    assert faults("github-workflows", *WORKFLOWS) == ""
    forms = [path for path in (ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml") if path.name != "config.yml"]
    assert faults("github-issue-forms", *forms) == ""


def test_the_schema_refuses_a_word_that_the_forge_does_not_know(tmp_path: Path) -> None:
    wrong = tmp_path / "ci.yml"
    wrong.write_text(WORKFLOWS[0].read_text().replace("runs-on:", "runs_on:"))
    assert "runs_on" in faults("github-workflows", wrong)


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_each_action_is_pinned_by_commit_and_says_its_version(path: Path) -> None:
    for line in path.read_text().splitlines():
        if (found := re.search(r"uses: (\S+)(.*)", line)) is not None:
            used, comment = found.groups()
            if used.startswith("./"):
                assert (ROOT / used).exists()
            else:
                assert re.fullmatch(r"[\w.-]+/[\w.-]+@[0-9a-f]{40}", used), used
                assert re.fullmatch(r" # v\d+\.\d+\.\d+", comment), line


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_it_may_only_read_unless_a_job_says_more(path: Path) -> None:
    assert load(path)["permissions"] == {"contents": "read"}
    for name, job in load(path)["jobs"].items():
        if path.name != "release.yml":
            assert "permissions" not in job, name
    assert "pull_request_target" not in path.read_text()


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_the_files_and_targets_that_it_names_exist(path: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    for step in steps(path):
        text = step.get("run", "")
        for named in re.findall(r"(?<![\w/.])((?:hack|daemonset|tests|\.ci)/(?!nodeagent\b)[\w./-]+)", text):
            assert (ROOT / named).exists(), named
        assert {*re.findall(r"\bmake ([a-z-]+)", text)} <= targets
        if config := step.get("with", {}).get("config"):
            assert (ROOT / config).exists()


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_no_text_of_an_event_gets_into_a_shell(path: Path) -> None:
    assert not [step["run"] for step in steps(path) if "${{" in step.get("run", "")]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_its_scripts_are_valid_shell(path: Path) -> None:
    for step in steps(path):
        done = subprocess.run(
            ["bash", "-n"], input=step.get("run", ""), text=True, capture_output=True, check=False
        )
        assert done.returncode == 0, done.stderr


def test_the_gate_is_the_one_of_every_machine() -> None:
    (gate,) = load(ROOT / ".github/workflows/ci.yml")["jobs"].values()
    *before, last = gate["steps"]
    assert last == {"run": "bash .ci/run"}
    assert not [step for step in before if "make" in step.get("run", "")]
    assert "NODEAGENT_" not in json.dumps(gate), "no part of the gate is left out"


def test_a_release_follows_the_gate_and_uses_the_commands_by_hand() -> None:
    jobs = load(ROOT / ".github/workflows/release.yml")["jobs"]
    assert jobs["gate"] == {"uses": "./.github/workflows/ci.yml"}
    assert jobs["release"]["needs"] == "gate"
    text = (ROOT / ".github/workflows/release.yml").read_text()
    for words in re.findall(r'make release ARGS="([^"]+)"', text):
        command.parser().parse_args(words.replace("$REGISTRY", "ghcr.io/owner").split())
    assert jobs["release"]["permissions"]["id-token"] == "write", "cosign signs by it"
