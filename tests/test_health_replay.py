"""Recorded samples through the rules: the same every time, and thresholds tuned on them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodeagent.checkup.replay import replay
from nodeagent.checkup.show import rules_markdown
from nodeagent.cli import main
from nodeagent.health.engine import Terms
from nodeagent.health.recording import Header, Subject, decode, encode
from nodeagent.health.rules import DEFAULTS
from nodeagent.health.samples import Sample, Source

PFS = [f"0000:{number:02x}:00.0" for number in (0x18, 0x2A, 0x3A, 0x5D)]
GOLDEN = Path(__file__).parent / "golden"
BOOTED = 1_790_000_000.0


def incident() -> Iterator[Sample]:
    """Four links; the second goes at 60 s and returns at 90 s, and flaps from 400 s on; the third runs at half its
    speed; at 900 s the collector of links falls silent for five minutes."""
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
    path.write_bytes(encode(header) + b"".join(map(encode, incident())))
    return path


def test_every_transition_is_printed_as_reviewed(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["health", "replay", str(recording)]) == 0
    told = capsys.readouterr().out
    golden = GOLDEN / "health-replay.txt"
    if os.environ.get("NODEAGENT_GOLDEN") == "write":
        golden.write_text(told)
    assert told == golden.read_text()
    assert main(["health", "replay", str(recording)]) == 0
    assert capsys.readouterr().out == told, "the samples hold all the time there is"


def test_thresholds_are_tuned_offline(
    recording: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "nodeagent.yaml"
    config.write_text(
        "apiVersion: nodeagent.io/v1alpha1\nkind: NodeAgentConfig\n"
        "health: {rules: [{rule: speed_reduced, enabled: false}, {rule: flapping, enter: 5000}]}\n"
    )
    assert main(["health", "replay", str(recording), "--config", str(config), "--json"]) == 0
    changes = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    reasons = {reason["key"] for one in changes for reason in one["after"]["reasons"]}
    assert "carrier_down" in reasons
    assert not reasons & {"speed_reduced", "flapping"}


def test_a_replay_needs_nothing_but_samples_and_bears_an_empty_one(tmp_path: Path) -> None:
    assert list(replay(Header(), [], Terms())) == []
    path = tmp_path / "empty"
    path.write_bytes(b"")
    assert main(["health", "replay", str(path)]) == 1
    assert main(["health", "replay", str(tmp_path / "none")]) == 1


def test_samples_of_others_than_the_headers_devices_are_left_out(recording: Path) -> None:
    with recording.open("rb") as lines:
        header, samples = decode(lines)
        strangers = [Sample(1.0, "GPU-1", Source.GPU, {"gpu_celsius": 40}), *samples]
    assert {one.device for one in replay(header, strangers, Terms())} <= set(PFS)


def test_the_documented_rules_are_those_of_the_code() -> None:
    """``NODEAGENT_GOLDEN=write`` puts them there."""
    page = Path(__file__).parents[1] / "docs/health.md"
    head, mark, rest = page.read_text().partition("<!-- rules -->\n")
    _, end, tail = rest.partition("<!-- end -->\n")
    text = f"{head}{mark}{rules_markdown(DEFAULTS)}{end}{tail}"
    if os.environ.get("NODEAGENT_GOLDEN") == "write":
        page.write_text(text)
    assert page.read_text() == text
