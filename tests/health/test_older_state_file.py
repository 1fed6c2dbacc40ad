"""A state file of the version before this one is read, and its faults are active again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nodeagent.base.stored_file import boot_id
from nodeagent.facts.model import State
from nodeagent.health.service import GPU_SECTION, NIC_SECTION, HealthService
from nodeagent.health.state_file import HEALTH_FORM, StateFile
from nodeagent.health.structural import find_faults
from nodeagent.measurements.sample import Sample, Source
from tests.support.judged_gpus import gpu
from tests.support.judged_machine import link, pf
from tests.support.manifests import ROOT

OLDER = ROOT / "tests/golden/stored/health.json"
NOW = 100.0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    boot = boot_id()
    if boot is None:
        pytest.skip("the kernel does not report its boot ID")
    (tmp_path / "health.json").write_text(OLDER.read_text().replace("BOOT", boot))
    return tmp_path


def restored(folder: Path) -> HealthService:
    return HealthService(state_file=StateFile.open(folder), clock=lambda: NOW)


def test_the_faults_of_gpus_are_active_before_the_first_reading(folder: Path) -> None:
    health = restored(folder)
    assert {uuid: health.gpus.health(uuid).allocatable for uuid in health.gpus.devices} == {
        "GPU-0": False,
        "GPU-1": False,
        "GPU-2": False,
    }
    assert [[reason.key for reason in health.gpus.health(uuid).reasons] for uuid in health.gpus.devices] == [
        ["nvlink_down"],
        ["recovery_gpu_reset", "gpu_unavailable", "xid_79", "gpu_unreadable", "xid_63"],
        ["gpu_lost"],
    ]
    assert health.gpus.health("GPU-0").reasons[0].detail == "NVLink 1 is down; 1 are up."
    health.judge_gpus(readings=[gpu(n) for n in range(3)])
    assert [health.gpus.health(f"GPU-{n}").allocatable for n in range(3)] == [False, True, True]


def test_the_faults_and_the_penalty_of_a_nic_are_active_at_the_first_facts(folder: Path) -> None:
    health, nic = restored(folder), pf(1)
    functions, faults = find_faults([nic], [link(nic)])
    (judged,) = health.judge_functions(functions, [link(nic)], faults)
    assert judged.health.state is State.DOWN
    assert [reason.key for reason in judged.health.reasons] == ["carrier_down", "flapping"]
    assert health.figures()[nic.pci_address].penalty == pytest.approx(2994.5, rel=0.02)


def test_the_time_of_the_last_reading_is_stored_and_a_reading_alone_is_no_news_for_some_minutes(
    folder: Path,
) -> None:
    now = NOW
    health, nic = HealthService(state_file=StateFile.open(folder), clock=lambda: now), pf(1)
    functions, faults = find_faults([nic], [link(nic)])
    health.judge_functions(functions, [link(nic)], faults)

    def stored(at: float, *, last: bool = False) -> dict[str, object]:
        nonlocal now
        now = at
        health.take_samples(
            [Sample(at, nic.pci_address, Source.LINK, {"carrier": 1.0, "carrier_down": 13.0})]
        )
        health.judge_nics()
        health.store(last=last)
        entries = json.loads(HEALTH_FORM.encode(health.state_file.content()))["entries"]
        (value,) = (entry["value"] for entry in entries if entry["room"] == NIC_SECTION)
        return value

    first = stored(NOW + 1)
    assert first["read_at"] == NOW + 1
    older = json.loads((folder / "health.json").read_text())["entries"][-1]["value"]
    new = {"read_at", "settings", "failed_since"}
    assert first.keys() - older.keys() <= new, "an older agent ignores what is new"
    assert first["downs"] == older["downs"]
    settled = stored(NOW + 400)
    assert settled["read_at"] == NOW + 400
    assert stored(NOW + 410) == settled
    assert stored(NOW + 710)["read_at"] == NOW + 710
    assert stored(NOW + 711, last=True)["read_at"] == NOW + 711


def test_the_file_keeps_its_form(folder: Path) -> None:
    health = restored(folder)
    older = {
        (entry["room"], entry["pci_address"]): entry["value"]
        for entry in json.loads((folder / "health.json").read_text())["entries"]
    }
    health.store()
    text = json.loads(HEALTH_FORM.encode(health.state_file.content()))
    assert text["version"] == 1
    newer = {(entry["room"], entry["pci_address"]): entry["value"] for entry in text["entries"]}
    for section in (NIC_SECTION, GPU_SECTION):
        assert {key for key in newer if key[0] == section} == {key for key in older if key[0] == section}
    before, after = older[GPU_SECTION, "0000:10:00.0"], newer[GPU_SECTION, "0000:10:00.0"]
    # An older agent ignores what is new.
    assert {**after, "reading": None, "faults": None}.items() >= {
        **before,
        "reading": None,
        "faults": None,
    }.items()
    assert after["reading"].items() >= before["reading"].items()
    after, before = newer[GPU_SECTION, "0000:11:00.0"], older[GPU_SECTION, "0000:11:00.0"]
    assert after.keys() - before.keys() == {"xid_times", "failed_since"}
    assert before["faults"]
    for old, new in zip(before["faults"], after["faults"], strict=True):
        assert new.items() >= old.items()
        assert new.keys() - old.keys() <= {"fatal", "detail"}
    assert newer[NIC_SECTION, "0000:01:00.0"] == older[NIC_SECTION, "0000:01:00.0"]
