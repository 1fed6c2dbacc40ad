"""The recordings of incidents, replayed by the verb: the times for which each device is Unhealthy."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hack.docs.incidents import Period, incidents_table, periods
from hack.incidents import BEGIN_S, FOLDER, INCIDENTS, Incident, recording
from nodeagent.cli import main
from nodeagent.commands.health.replay import Transition
from nodeagent.facts.model import Health
from tests.support import golden
from tests.support.findings import one_item
from tests.support.manifests import ROOT


def replayed(file: Path, capsys: pytest.CaptureFixture[str], *options: str) -> tuple[Period, ...]:
    assert main(["health", "replay", str(file), "--json", *options]) == 0
    changes = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    return periods(
        Transition(change["at"], change["device"], change["name"], None, health(change["after"]))
        for change in changes
    )


def health(written: dict[str, object]) -> Health:
    import msgspec

    return msgspec.convert(written, Health)


def withdrawn(found: tuple[Period, ...]) -> tuple[object, ...]:
    return tuple(
        (period.name, period.from_s, period.until_s, period.reasons)
        for period in found
        if not period.allocatable
    )


@one_item("incident", INCIDENTS, ids=lambda incident: incident.name)
def test_a_recorded_incident_withdraws_what_an_experienced_operator_would(
    incident: Incident, capsys: pytest.CaptureFixture[str]
) -> None:
    assert withdrawn(replayed(FOLDER / f"{incident.name}.jsonl", capsys)) == incident.expected


@one_item("incident", INCIDENTS, ids=lambda incident: incident.name)
@pytest.mark.golden("tests/recordings/*.jsonl")
def test_the_recordings_are_as_the_script_makes_them(incident: Incident) -> None:
    golden.same(FOLDER / f"{incident.name}.jsonl", recording(incident).decode())


def test_every_recording_belongs_to_an_incident() -> None:
    assert {file.stem for file in FOLDER.iterdir()} == {incident.name for incident in INCIDENTS}


def test_warnings_and_degraded_devices_stay_healthy_for_the_kubelet(
    capsys: pytest.CaptureFixture[str],
) -> None:
    (gpu,) = replayed(FOLDER / "nvlink-errors.jsonl", capsys)
    assert (gpu.name, gpu.state, gpu.allocatable, gpu.reasons) == (
        "GPU0",
        "degraded",
        True,
        ("nvlink_errors",),
    )
    victim = next(period for period in replayed(FOLDER / "pauses.jsonl", capsys) if period.name == "ens2np0")
    assert (victim.state, victim.allocatable, victim.reasons) == ("healthy", True, ("network_paused",))


def test_a_rule_that_is_off_withdraws_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "nodeagent.yaml"
    config.write_text(
        "apiVersion: nodeagent.io/v1alpha1\nkind: NodeAgentConfig\n"
        "health: {rules: [{rule: pause_source, enabled: false}]}\n"
    )
    assert withdrawn(replayed(FOLDER / "pauses.jsonl", capsys, "--config", str(config))) == ()


def test_without_a_settle_time_administration_and_training_withdraw(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The recordings have the evidence that the settle time excuses."""
    config = tmp_path / "nodeagent.yaml"
    config.write_text(
        "apiVersion: nodeagent.io/v1alpha1\nkind: NodeAgentConfig\nhealth: {settleSeconds: 0}\n"
    )
    for name, reason in (("administration", "flapping"), ("leaf-reboot", "post_fec_errors")):
        found = withdrawn(replayed(FOLDER / f"{name}.jsonl", capsys, "--config", str(config)))
        assert any(reason in reasons for _, _, _, reasons in found), name


@pytest.mark.golden("docs/reference/nic-rules.md")
def test_the_table_of_incidents_is_that_of_the_replays() -> None:
    page = ROOT / "docs" / "reference" / "nic-rules.md"
    golden.same_between(page, "<!-- incidents -->\n", "<!-- incidents: end -->\n", incidents_table(FOLDER))


def test_each_recording_has_time_before_the_incident() -> None:
    assert all(next(incident.samples()).at < BEGIN_S - 60 for incident in INCIDENTS)
