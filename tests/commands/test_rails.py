"""The verb `rails`, which asks the agent on its socket."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
import yaml

from nodeagent.cli import main
from nodeagent.console import agent_query
from nodeagent.features.rail_probing.rail_views import (
    BurstRail,
    BurstResult,
    PartnerView,
    RailListing,
    RailView,
)

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


def test_a_leg_that_has_never_answered_is_not_good(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    new = msgspec.structs.replace(PARTNER, sent=1, lost=1, rtt_us=None, answered_s=None)
    rail = msgspec.structs.replace(LISTING.rails[0], partners=(new,))
    status, out, _ = shown(monkeypatch, capsys, RailListing(True, (rail,)))
    assert status == 0
    assert out.splitlines()[2].rstrip().endswith("no answer yet")


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


def test_a_rate_that_the_cap_cuts_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cut = msgspec.structs.replace(LISTING, due_per_s=160.0, at_most_per_s=64.0)
    status, _, said = shown(monkeypatch, capsys, cut)
    assert status == 0
    assert "64 of 160 packets a second are sent" in said
    _, out, _ = shown(monkeypatch, capsys, cut, "--json")
    assert (json.loads(out)["duePerS"], json.loads(out)["atMostPerS"]) == (160, 64)
    assert "packets a second" not in shown(monkeypatch, capsys, LISTING)[2]


def test_without_probes_or_an_agent_it_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    status, _, said = shown(monkeypatch, capsys, RailListing(False))
    assert status == 2
    assert "set rails.probe" in said
    status, _, said = shown(monkeypatch, capsys, None)
    assert status == 2
    assert "start it with rails.probe" in said


def checked(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    result: BurstResult | None,
    *more: str,
) -> tuple[int, str, str]:
    asked: list[tuple[str, float]] = []

    def ask(page: str, _config: object, _root: object, timeout_s: float) -> agent_query.AgentAnswer:
        asked.append((page, timeout_s))
        body = None if result is None else msgspec.json.encode(result)
        return agent_query.AgentAnswer(body, "/run/agent.sock")

    monkeypatch.setattr(agent_query, "ask", ask)
    status = main(["rails", "check", "gpu-1", "gpu-2", *more])
    ((page, timeout_s),) = asked
    seconds = 8 if "8" in more else 5
    assert page == f"/rails/check/gpu-1/gpu-2/{seconds}"
    assert timeout_s >= seconds + 13, "the agent knocks for 10 s and waits for late answers"
    return status, *capsys.readouterr()


GOOD_RAIL = BurstRail("nic0", "10.1.2.1", 90, 0, 9, 0, 12.4)
RESULTS = [
    ((), 0, "nic0 10.1.2.1 99 0 12 µs good"),
    ((BurstRail("nic1", "10.2.2.1", 90, 1, 9, 0, 12.4),), 1, "nic1 10.2.2.1 99 1 12 µs loses packets"),
    ((BurstRail("nic1", "10.2.2.1", 90, 0, 9, 9, 12.4),), 1, "nic1 10.2.2.1 99 9 12 µs large lost"),
    ((BurstRail("nic1", "10.2.2.1", 10, 10),), 1, "10 10 - dead"),
    ((BurstRail("nic1", why="down"),), 1, "dead"),
    ((BurstRail("nic1", why="no-address"),), 2, "nic1: its netdev has no IP address"),
    ((BurstRail("nic1", "10.2.2.1", why="refused"),), 2, "nic1: no agent answers there"),
    ((BurstRail("nic1", "", 9, 9), BurstRail("nic2", why="not-there")), 1, "nic2: the other node reports no"),
]


@pytest.mark.parametrize(("rails", "status", "words"), RESULTS)
def test_a_check_is_good_bad_or_impossible(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    rails: tuple[BurstRail, ...],
    status: int,
    words: str,
) -> None:
    result = BurstResult("gpu-2", "", (GOOD_RAIL, *rails))
    found, out, _ = checked(monkeypatch, capsys, result)
    assert found == status
    assert words in " ".join(out.split())
    found, out, _ = checked(monkeypatch, capsys, result, "--json", "--seconds", "8")
    read = json.loads(out)
    assert found == status
    assert read["node"]
    assert read["time"]
    assert (read["source"], read["to"], read["rails"][0]["sent"]) == ("/run/agent.sock", "gpu-2", 90)
    found, out, _ = checked(monkeypatch, capsys, result, "-o", "yaml")
    assert (found, yaml.safe_load(out)["rails"]) == (status, read["rails"])


def test_a_check_that_cannot_be_made_says_why(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    status, _, said = checked(monkeypatch, capsys, BurstResult("gpu-2", "another check runs"))
    assert status == 2
    assert "gpu-2 cannot be checked: another check runs" in said
    status, _, said = checked(monkeypatch, capsys, None)
    assert status == 2
    assert "the agent of gpu-1 makes the check" in said
