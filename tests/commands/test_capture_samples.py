"""Samples in recordings and in captures."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import pytest

from nodeagent.cli import main
from nodeagent.commands.capture.machine_capture import CaptureError, capture
from nodeagent.commands.capture.sample_recorder import record_samples
from nodeagent.commands.health.replay import replay
from nodeagent.health.health_settings import HealthSettings
from nodeagent.health.recording import decode_recording
from nodeagent.host.sysfs import Tree
from nodeagent.measurements.sample import Source
from nodeagent.sampling.recorded_samples import load_samples
from nodeagent.sources.gpu_source import Pace
from nodeagent_lab.sim.machine import Machine
from tests.support.waiting import LIMIT_S


@pytest.fixture
def machine(tmp_path: Path) -> tuple[Machine, Path]:
    made = Machine.load("two-gpu-two-nic")
    made.write(tmp_path / "m")
    return made, tmp_path / "m"


def test_a_recording_can_be_read_and_names_devices_but_no_node(machine, tmp_path):
    made, root = machine
    file = tmp_path / "samples.jsonl"
    assert "samples of 3 PFs and 2 GPUs" in record_samples(root, file, 0.7)
    with file.open("rb") as lines:
        header, rest = decode_recording(lines)
        samples = list(rest)
    nic = made.nic(0)
    mine = next(one for one in header.devices if one.device == nic.address)
    assert (mine.netdev, mine.rdma, mine.speed_mbps, mine.default_route) == (
        "enp24s0np0",
        "mlx5_0",
        400_000,
        False,
    )
    assert mine.mac == nic.netdev.mac
    assert mine.path[-1] == nic.address
    # A recorded machine has no kernel that reports changes by an administrator.
    sources = set(Source) - {Source.GPU, Source.ADMINISTRATION, Source.RAILS, Source.ATTACH}
    assert {one.source for one in samples if one.device == nic.address} == sources
    for source in Source:
        times = [one.at for one in samples if one.source is source and one.device == nic.address]
        assert times == sorted(times)


def until_it_holds(file: Path, *texts: str) -> None:
    """Read the file every few milliseconds until it has these texts."""
    ends = time.monotonic() + 20
    while not (file.exists() and all(text in file.read_text() for text in texts)):
        assert time.monotonic() < ends, texts
        time.sleep(0.005)


@pytest.mark.slow
def test_gpu_faults_are_recorded_and_replayed(machine, tmp_path):
    made, root = machine
    file = tmp_path / "samples.jsonl"
    made.ecc(0, uncorrectable=1)
    pace = Pace(interval_s=0.2, vitals_s=0.5)
    recording = threading.Thread(target=record_samples, args=(root, file, 4.0), kwargs={"pace": pace})
    recording.start()
    until_it_holds(file, '"gpu_celsius"', '"gpu_lost"')
    made.raise_xid(1, 79)
    made.set_recovery_action(1, "gpu_reset")
    until_it_holds(file, '"gpu_xids/79"', '"gpu_recovery_action":"gpu_reset"')
    made.reset_gpu(1)
    recording.join(LIMIT_S)
    assert not recording.is_alive()
    with file.open("rb") as lines:
        header, rest = decode_recording(lines)
        samples = list(rest)
    cards = {one.device: one for one in header.devices if one.kind == "gpu"}
    assert [one.index for one in cards.values()] == [0, 1]
    assert {one.numa_node for one in cards.values()} == {0, 1}
    for card in cards:
        times = [one.at for one in samples if one.device == card]
        assert len(times) > 10
        assert times == sorted(times)
    verdicts = [
        (one.name, tuple(reason.key for reason in one.after.reasons), one.after.allocatable)
        for one in replay(header, samples, HealthSettings())
        if one.device in cards
    ]
    assert ("GPU0", ("sram_uncorrectable",), False) in verdicts
    assert any("xid_79" in reasons for name, reasons, _ in verdicts if name == "GPU1")
    assert [one for one in verdicts if one[0] == "GPU1"][-1] == ("GPU1", (), True)


@pytest.mark.slow
def test_a_pf_whose_vfs_change_and_that_leaves_the_bus_is_recorded_and_replayed(machine, tmp_path):
    made, root = machine
    file = tmp_path / "samples.jsonl"
    recording = threading.Thread(target=record_samples, args=(root, file, 6.0))
    recording.start()
    until_it_holds(file, '"pf_vfs"')
    made.set_vfs(0, 2)
    until_it_holds(file, '"pf_vfs":2')
    made.unplug(0)
    until_it_holds(file, '"pf_present":0')
    recording.join(LIMIT_S)
    assert not recording.is_alive()
    with file.open("rb") as lines:
        header, rest = decode_recording(lines)
        samples = list(rest)
    address = made.nic(0).address
    facts = [one for one in samples if one.device == address and "pf_present" in one.values]
    assert [one.values.get("pf_vfs") for one in facts][-2:] == [2, None]
    assert [one.texts.get("pf_driver") for one in facts][-2:] == ["mlx5_core", None]
    last = [one for one in replay(header, samples, HealthSettings()) if one.device == address][-1]
    assert [reason.key for reason in last.after.reasons] == ["device_missing"]


def test_a_failing_driver_is_reported_and_the_nics_are_recorded(machine, tmp_path):
    made, root = machine
    made.fail_driver("init", "Driver/library version mismatch")
    file = tmp_path / "samples.jsonl"
    summary = record_samples(root, file, 0.3)
    assert "3 PFs and 0 GPUs" in summary
    assert "gpu: Driver/library version mismatch" in summary
    assert file.read_bytes().count(b"\n") > 3


def test_a_recording_does_not_overwrite_a_file(machine, tmp_path):
    file = tmp_path / "samples.jsonl"
    file.write_text("an incident that will not happen again\n")
    with pytest.raises(CaptureError, match="exists already"):
        record_samples(machine[1], file, 0.1)
    assert file.read_text().startswith("an incident")


def test_the_verb_records_samples(machine, tmp_path, capsys):
    file = tmp_path / "samples.jsonl"
    assert main(["capture", "--root", str(machine[1]), "--samples", "0.3", str(file)]) == 0
    assert "nodeagent health replay" in capsys.readouterr().out
    assert file.read_bytes().startswith(b'{"form":"nodeagent-samples"')
    assert main(["capture", "--root", str(machine[1]), "--samples", "1", "--scramble", str(file)]) == 2


def test_a_capture_has_samples_without_serial_numbers(machine, tmp_path):
    made, root = machine
    made.count(0, "symbol_errors", 5)
    made.downtrain(0, width=4)
    capture(root, tmp_path / "c", scramble=False)
    text = (tmp_path / "c/.nodeagent/samples.json").read_text()
    assert "module_part" in text
    assert "serial" not in text
    assert isinstance(json.loads(text), list)
    device = made.nic(0).address
    values = {
        name: value
        for one in load_samples(Tree(tmp_path / "c"))
        if one.device == device
        for name, value in one.values.items()
    }
    assert (values["symbol_errors"], values["pcie_width"], values["pcie_expected_width"]) == (5, 4, 16)
