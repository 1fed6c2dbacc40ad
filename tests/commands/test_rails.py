"""The verb `rails`, which asks the agent on its socket."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from nodeagent.cli import main
from nodeagent.cluster.rail_watch import PartnerView, RailListing, RailView
from nodeagent.commands import agent_query

PARTNER = PartnerView("gpu-2", "nic0", "10.1.2.1", "leaf", 1800, 0, 0, rtt_us=12.4, answered_s=1.5)
LISTING = RailListing(
    True,
    (
        RailView("nic0", "eth0", "yes", ("10.1.1.1/31",), (PARTNER,)),
        RailView("nic1", "eth1", "no-address"),
    ),
)


def shown(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    listing: RailListing | None,
    *more: str,
) -> tuple[int, str, str]:
    body = None if listing is None else msgspec.json.encode(listing)
    answer = agent_query.AgentAnswer(body, "/run/agent.sock")
    monkeypatch.setattr(agent_query, "ask", lambda page, *_: answer if page == "/rails" else None)
    status = main(["rails", *more])
    return status, *capsys.readouterr()


def test_a_good_rail_and_one_that_cannot_be_checked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, _ = shown(monkeypatch, capsys, LISTING)
    assert status == 0
    assert " ".join(out.splitlines()[2].split()) == "nic0 gpu-2 nic0 leaf 1800 0 % 12 µs 2 s good"
    assert "nic1 (eth1): its netdev has no IP address" in out


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"level": 10, "lost": 180}, "10 % 12 µs 2 s loses 10 %"),
        ({"level": 100, "lost": 1800}, "100 % 12 µs 2 s dead"),
        ({"level": 100, "large": True}, "large lost"),
    ],
)
def test_a_leg_that_loses_packets_is_exit_status_1(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    change: dict[str, object],
    words: str,
) -> None:
    partner = msgspec.structs.replace(PARTNER, **change)
    lossy = RailListing(True, (msgspec.structs.replace(LISTING.rails[0], partners=(partner,)),))
    status, out, _ = shown(monkeypatch, capsys, lossy)
    assert status == 1
    assert words in " ".join(out.split())
    status, out, _ = shown(monkeypatch, capsys, lossy, "--json")
    (read,) = json.loads(out)["rails"][0]["partners"]
    assert (status, read["node"], read["level"]) == (1, "gpu-2", change["level"])


def test_without_probes_or_an_agent_it_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    status, _, said = shown(monkeypatch, capsys, RailListing(False))
    assert status == 0
    assert "set rails.probe" in said
    status, _, said = shown(monkeypatch, capsys, None)
    assert status == 2
    assert "start it with rails.probe" in said
