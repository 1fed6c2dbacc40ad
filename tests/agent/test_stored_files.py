"""Each stored file is declared once, and every list of stored files has it or says why it does not."""

from __future__ import annotations

import json
import re
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from nodeagent.agent import Agent, AgentOptions
from nodeagent.agent_config import Config
from nodeagent.base.stored_file import StoredForm
from nodeagent.cli import main
from nodeagent_lab.sim.machine import Machine
from tests.support.manifests import ROOT
from tests.support.running_agent import SMALL

PACKAGE = ROOT / "nodeagent"
FORMS = {
    name: path.relative_to(ROOT)
    for path in sorted(PACKAGE.rglob("*.py"))
    for name in re.findall(r'StoredForm\(\s*name="([^"]+)"', path.read_text())
}
"""The module of each form, by the name of its file."""

OLDER = ROOT / "tests/golden/stored"
PAGE = ROOT / "docs/stored-files.md"

UNREPORTED = {
    "neighbors.json": "the neighbors are learned again from their frames",
    "infiniband.json": "a switch is asked three more times",
    "history.json": "the changes before a restart are forgotten",
    "requests.json": "one request of each size goes to the emptiest GPU",
    "over-uses.json": "the time before an eviction starts again",
    "claims/UID.json": "the claim is refused, and the Event of its pod has the reason",
}
"""Files that are not in ``Stored.files``."""
UNSHOWN = {
    "health.json": "`nodeagent health` shows the faults, and each of them has a way to clear",
    "requests.json": "it only helps to choose a GPU",
    "over-uses.json": "`nodeagent gpus` shows the pods, and their time ends with their use",
    "history.json": "`nodeagent history` shows it",
    "cordons.json": "`nodeagent cordon` shows and `uncordon` ends them",
    "slices.json": "`/readyz` shows a size that stays",
    "neighbors.json": "`nodeagent neighbors` shows the neighbors",
    "infiniband.json": "`nodeagent neighbors` shows a port whose peer does not answer",
    "claims/UID.json": "the kubelet ends claims",
}
"""Files that the verb `remembered` does not show, because nothing in them has to be forgotten by hand."""
OTHER_WRITERS = {
    "nodeagent/attach/plan_file.py": "read by nodeagent attach, and written again when it differs",
    "nodeagent/attach/attach_files.py": "read by the doctor",
    "nodeagent/attach/attach_stamps.py": "read by nodeagent attach; an Allocate fails without its stamp",
    "nodeagent/attach/leases.py": "read by nodeagent attach, which gives the addresses back",
    "nodeagent/attach/attached_spec.py": "read by container runtimes",
    "nodeagent/attach/given_numbers.py": "the controller's object, kept for a start without the API server",
    "nodeagent/attach/host_names.py": "of nodeagent attach, which is no agent",
    "nodeagent/dra/claim_files.py": "a form of the store, with a CDI spec beside each file",
    "nodeagent/kubelet/cdi_files.py": "read by container runtimes",
    "nodeagent/kubelet/device_info.py": "read by CNI plugins",
    "nodeagent/features/gpu_labels/feature_file.py": "read by Node Feature Discovery",
    "nodeagent/kubelet/offer_files.py": "tell.sh: read by shells of containers, and written again when it differs",
}
"""Modules that replace files without ``StoredFile``."""


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    Machine.load(SMALL).write(tmp_path)
    return tmp_path


def test_a_name_has_one_form() -> None:
    found = [
        name
        for path in PACKAGE.rglob("*.py")
        for name in re.findall(r'StoredForm\(\s*name="([^"]+)"', path.read_text())
    ]
    assert sorted(found) == sorted(FORMS)
    assert sum(path.read_text().count("= StoredForm(") for path in PACKAGE.rglob("*.py")) == len(found), (
        "a form begins with its name"
    )


@pytest.mark.parametrize("name", sorted(FORMS))
def test_the_file_of_an_older_agent_is_read_without_a_loss(name: str) -> None:
    """These files are never written again: a change of a type must read what an agent before it has stored."""
    older = OLDER / name
    assert older.is_file(), f"store the file as this agent writes it in {older.relative_to(ROOT)}"
    module = import_module(".".join(FORMS[name].with_suffix("").parts))
    (form,) = (it for it in vars(module).values() if isinstance(it, StoredForm) and it.name == name)
    text = older.read_text()
    assert not lost(json.loads(text), json.loads(form.encode(form.decode(text))))


def lost(older: Any, newer: Any) -> list[Any]:
    """The values of the older document that the newer one does not have."""
    if isinstance(older, dict) and isinstance(newer, dict):
        return [one for key, value in older.items() for one in lost(value, newer.get(key))]
    if isinstance(older, list) and isinstance(newer, list) and len(older) == len(newer):
        return [one for pair in zip(older, newer, strict=True) for one in lost(*pair)]
    return [] if older == newer else [older]


def test_the_page_has_a_row_for_each_stored_file() -> None:
    page = PAGE.read_text()
    missing = [f"{name} of {module}" for name, module in FORMS.items() if f"\n| `{name}` |" not in page]
    assert not missing, (
        "docs/stored-files.md needs a row: what the file holds, and what a start without it does"
    )


async def test_the_agent_reports_each_file_that_cannot_be_written_or_there_is_a_reason(machine: Path) -> None:
    agent = Agent(Config(), AgentOptions(machine, machine / "kubelet"))
    reported = {file.form.name for file in agent.stored.files}
    assert reported | UNREPORTED.keys() == FORMS.keys(), (
        "add the file to `Stored.files`, or the reason to UNREPORTED"
    )
    assert not reported & UNREPORTED.keys()
    (sentence,) = re.findall(r" If (`[^.]*`) cannot be written", PAGE.read_text().replace(".json", ""))
    told = {f"{name}.json" for name in re.findall(r"`(\w+)`", sentence)}
    assert told == reported, "docs/stored-files.md names the files of `Stored.files` in its last paragraph"


def test_the_verb_shows_each_file_or_there_is_a_reason(
    machine: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["remembered", "--json", "--root", str(machine)]) == 0
    parts = json.loads(capsys.readouterr().out).keys() - {"node", "time", "source"}
    shown = {f"{part}.json" for part in parts}
    assert shown | UNSHOWN.keys() == FORMS.keys(), (
        "add the file to the verb `remembered`, or the reason to UNSHOWN"
    )
    assert not shown & UNSHOWN.keys()


def test_files_of_the_agent_are_written_by_the_store() -> None:
    writers = {
        str(path.relative_to(ROOT))
        for path in PACKAGE.rglob("*.py")
        if re.search(r"replace_(changed_)?file\(", path.read_text()) and path.parent.name != "base"
    }
    assert writers == OTHER_WRITERS.keys(), (
        "declare a StoredForm and write with StoredFile, or name here who reads the file"
    )
