"""Recorded samples through the rules: the same every time, and thresholds tuned on them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from hack.docs.health_rules import rules_table
from nodeagent.cli import main
from nodeagent.commands.health.replay import Transition, replay
from nodeagent.health.health_settings import HealthSettings
from nodeagent.health.recording import Header, Subject, decode_recording, encode_recorded
from nodeagent.health.rules import NIC_RULES
from nodeagent.measurements.sample import Sample, Source
from tests.support import golden

PFS = [f"0000:{number:02x}:00.0" for number in (0x18, 0x2A, 0x3A, 0x5D)]
GOLDEN = Path(__file__).parents[1] / "golden"
BOOTED = 1_790_000_000.0


def incident() -> Iterator[Sample]:
    """Four links; the second goes at 60 s and returns at 90 s, and flaps from 400 s on; the third runs at half its
    speed; at 900 s the collector of links stops for five minutes."""
    downs = dict.fromkeys(PFS, 2.0)
    for step in range(400):
        at = 100.0 + 5 * step
        since = 5 * step
        if 900 <= since < 1200:
            continue
        for number, device in enumerate(PFS):
            lost = number == 1 and 60 <= since < 90
            if number == 1 and (since == 60 or since in (400, 410, 420)):
                downs[device] += 1
            up = not lost
            yield Sample(
                at,
                device,
                Source.LINK,
                {"admin_up": 1, "carrier": float(up), "carrier_down": downs[device], "carrier_up": 1},
            )
            speed = 200_000 if number == 2 and since >= 300 else 400_000
            yield Sample(at, device, Source.MODES, {"speed_mbps": speed} if up else {})


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    header = Header(
        agent="1.0",
        boot_id="x",
        booted_at=BOOTED,
        devices=tuple(
            Subject(
                device, netdev=f"ens{number}np0", driver="mlx5_core", link_type="ethernet", speed_mbps=400_000
            )
            for number, device in enumerate(PFS, 1)
        ),
    )
    path = tmp_path / "incident.jsonl"
    path.write_bytes(encode_recorded(header) + b"".join(map(encode_recorded, incident())))
    return path


@pytest.mark.golden("tests/golden/health-replay.txt")
def test_every_transition_is_printed_as_reviewed(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["health", "replay", str(recording)]) == 0
    output = capsys.readouterr().out
    golden.same(GOLDEN / "health-replay.txt", output)
    assert main(["health", "replay", str(recording)]) == 0
    assert capsys.readouterr().out == output, "only the samples contain times"


def test_thresholds_can_be_tuned_on_a_recording(
    recording: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "nodeagent.yaml"
    config.write_text(
        "apiVersion: nodeagent.io/v1alpha1\nkind: NodeAgentConfig\n"
        "health: {rules: [{rule: speed_reduced, enabled: false}, {rule: flapping, enter: 5000}]}\n"
    )
    assert main(["health", "replay", str(recording), "--config", str(config), "--json"]) == 0
    changes = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    reasons = {reason["key"] for change in changes for reason in change["after"]["reasons"]}
    assert "carrier_down" in reasons
    assert not reasons & {"speed_reduced", "flapping"}


def test_a_recording_without_samples_is_replayed(tmp_path: Path) -> None:
    assert list(replay(Header(), [], HealthSettings())) == []
    path = tmp_path / "empty"
    path.write_bytes(b"")
    assert main(["health", "replay", str(path)]) == 2
    assert main(["health", "replay", str(tmp_path / "none")]) == 2


def test_a_port_that_was_never_cabled_is_unused_as_in_the_agent() -> None:
    header = Header(devices=(Subject(PFS[0], netdev="ens1np0", driver="mlx5_core", link_type="ethernet"),))
    samples = [
        Sample(100.0 + 5 * step, PFS[0], Source.LINK, {"admin_up": 1, "carrier": 0, "carrier_down": 0})
        for step in range(30)
    ]
    states = [change.after.state.value for change in replay(header, samples, HealthSettings())]
    assert states == ["unused"]


def test_samples_of_devices_that_are_not_in_the_header_are_ignored(recording: Path) -> None:
    with recording.open("rb") as lines:
        header, samples = decode_recording(lines)
        strangers = [Sample(1.0, "GPU-1", Source.GPU, {"gpu_celsius": 40}), *samples]
    assert {change.device for change in replay(header, strangers, HealthSettings())} <= set(PFS)


# --- GPUs ------------------------------------------------------------------------------------------------

CARDS = Header(devices=(Subject("GPU-a", "gpu", index=4), Subject("GPU-b", "gpu", index=5)))


def gpus(at: float, values: dict[str, float], **texts: str) -> Sample:
    return Sample(at, "GPU-a", Source.GPU, values, texts)


def links_up(at: float, *up: int) -> Sample:
    return gpus(at, {f"gpu_nvlink_up/{number}": float(bit) for number, bit in enumerate(up)})


def judged(*samples: Sample) -> list[tuple[float, str, str, bool]]:
    return [brief(change) for change in replay(CARDS, samples, HealthSettings())]


def brief(change: Transition) -> tuple[float, str, str, bool]:
    reasons = ",".join(reason.key for reason in change.after.reasons)
    return change.at, change.name, reasons, change.after.allocatable


def test_measured_faults_of_a_gpu_start_and_end_as_in_the_agent() -> None:
    down = [links_up(100.0, 1, 1)] + [links_up(115.0 + 15 * step, 1, 0) for step in range(4)]
    clean = [links_up(175.0 + 15 * step, 1, 1) for step in range(50)]
    assert judged(*down, *clean) == [
        (145.0, "GPU4", "nvlink_down", False),
        (175.0 + 600, "GPU4", "", True),
    ]


def test_an_xid_ends_with_the_reset_that_the_driver_asked_for() -> None:
    values = {"gpu_lost": 0.0, "gpu_mig": 0.0}
    assert judged(
        gpus(10.0, values, gpu_recovery_action="none"),
        gpus(12.0, {"gpu_xids/79": 1, "gpu_xids/13": 4}),
        gpus(15.0, values, gpu_recovery_action="gpu_reset"),
        gpus(20.0, values, gpu_recovery_action="gpu_reset"),
        gpus(25.0, values, gpu_recovery_action="none"),
        gpus(30.0, values | {"gpu_lost": 1.0}),
    ) == [
        (12.0, "GPU4", "xid_79", False),
        (15.0, "GPU4", "recovery_gpu_reset,xid_79", False),
        (25.0, "GPU4", "", True),
        (30.0, "GPU4", "gpu_lost", False),
    ]


def test_an_xid_ends_by_time_only_while_the_driver_answers() -> None:
    def with_answers(*times: int) -> list[Sample]:
        return [gpus(float(at), {"gpu_celsius": 40, "gpu_xids/79": 1}) for at in range(*times)]

    def carrier(*times: int) -> list[Sample]:
        return [Sample(float(at), PFS[0], Source.LINK, {"carrier": 1}) for at in range(*times)]

    without_answers = (*with_answers(100, 400, 15), *carrier(400, 2000, 5), *with_answers(2000, 2100, 15))
    assert judged(*without_answers) == [(100.0, "GPU4", "xid_79", False), (2000.0, "GPU4", "", True)]
    # The time to clear is over before the driver answers again.
    short = (*with_answers(100, 680, 15), *carrier(686, 720, 5))
    assert judged(*short) == [(100.0, "GPU4", "xid_79", False), (701.0, "GPU4", "", True)]


def test_the_loss_of_all_gpus_is_guarded_as_in_the_agent() -> None:
    def reading(at: float, lost: float) -> list[Sample]:
        return [
            Sample(at, card.device, Source.GPU, {"gpu_lost": lost, "gpu_mig": 0}) for card in CARDS.devices
        ]

    output = judged(*reading(10, 0), *(sample for at in range(15, 85, 5) for sample in reading(at, 1)))
    assert output == [
        (15.0, "GPU4", "gpu_lost", False),
        (15.0, "GPU5", "gpu_lost,guard", True),
        (75.0, "GPU5", "gpu_lost", False),
    ]


def test_a_gpu_that_is_not_in_the_header_is_ignored() -> None:
    assert judged(Sample(1.0, "GPU-z", Source.GPU, {"gpu_row_remap_failed": 1})) == []


@pytest.mark.golden("docs/reference/nic-rules.md")
def test_the_documented_rules_are_those_of_the_code() -> None:
    page = Path(__file__).parents[2] / "docs/reference/nic-rules.md"
    golden.same_between(page, "<!-- rules -->\n", "<!-- end -->\n", rules_table(NIC_RULES))
