"""`nodeagent history`: the list, the difference of two moments, and saved answers."""

from __future__ import annotations

import doctest
import json
import time
from pathlib import Path

import pytest

from nodeagent.base.change_log import Change, ChangeLog
from nodeagent.base.kept_changes import CHANGES_FORM, kept
from nodeagent.cli import main
from nodeagent.commands.history import differences
from nodeagent.console import moments
from nodeagent.web.history_page import history_page
from tests.support.manifests import ROOT

NOON = 1795867200.0  # 2026-11-28 12:00 UTC


@pytest.fixture(autouse=True)
def _utc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()


def saved(folder: Path, *changes: Change) -> str:
    log = ChangeLog(100)
    log.add(changes)
    file = folder / "history.json"
    file.write_bytes(CHANGES_FORM.encode(kept(tuple(log.changes))))
    return str(file)


CHANGES = (
    Change(
        NOON - 7200,
        "nic",
        "nic3",
        "healthy",
        "down (carrier_down)",
        ("no carrier for 1 s",),
        ("enp1", "leaf3"),
    ),
    Change(
        NOON - 3600, "neighbor", "nic3", "leaf3 Eth1", "leaf4 Eth1", names=("leaf3", "leaf4"), node="gpu-17"
    ),
    Change(NOON - 60, "nic", "nic3", "down (carrier_down)", "healthy", names=("enp1",)),
)


def test_changes_have_local_times_and_their_reasons_below(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = saved(tmp_path, *CHANGES)
    assert main(["history", "--from", file, "--since", "2026-11-28 09:00"]) == 0
    assert capsys.readouterr().out == (
        "Saturday, 2026-11-28, UTC\n"
        "10:00:00  nic3: healthy → down (carrier_down)\n"
        "          no carrier for 1 s\n"
        "11:00:00  gpu-17 nic3, neighbor: leaf3 Eth1 → leaf4 Eth1\n"
        "11:59:00  nic3: down (carrier_down) → healthy\n"
    )


@pytest.mark.parametrize(
    ("words", "times"),
    [
        (["leaf4"], [NOON - 3600]),
        (["gpu-17/nic3"], [NOON - 3600]),
        (["--until", "2026-11-28 11:30"], [NOON - 7200, NOON - 3600]),
        (["nic9"], []),
    ],
)
def test_what_was_printed_as_json_is_read_again(
    words: list[str], times: list[float], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = saved(tmp_path, *CHANGES)
    assert main(["history", "--json", "--from", file, "--since", "2026-11-28 09:00"]) == 0
    again = tmp_path / "again.json"
    again.write_text(capsys.readouterr().out)
    assert main(["history", "--json", "--from", str(again), "--since", "2026-11-28 09:00", *words]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {"time", "source", "node", "since", "complete", "changes"} == found.keys()
    stamps = [it["at"] for it in found["changes"]]
    assert stamps == [time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(at)) for at in times]


@pytest.mark.parametrize("complete", [True, False])
def test_a_saved_answer_says_again_whether_it_was_complete(
    complete: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "saved.json"
    file.write_text(json.dumps({"complete": complete, "changes": []}))
    assert main(["history", "--json", "--from", str(file)]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["complete"] is complete
    assert ("older changes are not kept" in err) is not complete


@pytest.mark.parametrize(
    ("times", "since", "complete"),
    [
        ([], 5.0, False),
        ([10.0], 5.0, False),  # a daemon that started at 10 does not know what was before
        ([10.0], 20.0, True),
        ([10.0, 30.0], 20.0, True),
    ],
)
async def test_an_answer_is_complete_if_the_changes_reach_back(
    times: list[float], since: float, complete: bool
) -> None:
    log = ChangeLog(10)
    log.add(Change(at, "agent", "agent", "", "started") for at in times)
    page = await history_page(log, "agent")({"since": str(since)})
    assert json.loads(page.body)["complete"] is complete


def test_the_difference_of_two_moments_has_each_thing_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = saved(tmp_path, *CHANGES)
    assert main(["history", "--from", file, "--between", "2026-11-28 09:00", "2026-11-28 12:00"]) == 0
    assert capsys.readouterr().out == "gpu-17 nic3, neighbor: leaf3 Eth1 → leaf4 Eth1\n"
    assert differences(CHANGES[:2])[0].after == "down (carrier_down)"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--since", "yesterday"], "'yesterday' is no time: give a duration such as 30min"),
        (["--between", "1h", "2h"], "the second time is before the first"),
        (["--between", "11:30", "11:10"], "the second time is before the first"),
        (["--from", str(ROOT / "README.md")], "README.md"),
    ],
)
def test_wrong_input_names_the_remedy(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "time", lambda: NOON)
    assert main(["history", *words]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("since", "until", "expected"),
    [
        ("11:50", "12:10", NOON + 600),  # has not come yet
        ("08:00", "23:00", NOON + 39600),
        ("11:50", "11:55", NOON - 300),
        ("13:00", "01:00", NOON - 39600),  # yesterday to today
        ("11:50", "11:40", NOON - 1200),  # the wrong order
        ("2h", "3h", NOON - 10800),
        ("11:50", "2026-11-28 13:00", NOON + 3600),
    ],
)
def test_an_end_that_has_not_come_is_later_and_not_yesterday(since: str, until: str, expected: float) -> None:
    assert moments.end(until, moments.moment(since, NOON, past=True), NOON) == expected


def test_just_before_midnight_the_end_is_tomorrow() -> None:
    late = NOON + 43200 - 300
    assert moments.end("00:10", moments.moment("23:50", late, past=True), late) == NOON + 43200 + 600


def test_without_an_agent_the_verb_says_what_to_give(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["history", "--root", str(tmp_path)]) == 2
    assert "--agent" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "past", "expected"),
    [
        ("11:30", True, NOON - 1800),
        ("11:30", False, NOON + 84600),
        ("12:30:15", True, NOON - 86400 + 1815),
        ("12:30:15", False, NOON + 1815),
        ("90 min", False, NOON + 5400),
        ("3d", True, NOON - 3 * 86400),
        ("2026-11-28T13:00+01:00", True, NOON),
    ],
)
def test_a_moment_is_what_people_mean(text: str, past: bool, expected: float) -> None:
    assert moments.moment(text, NOON, past=past) == expected


@pytest.mark.parametrize("text", ["", "25:00", "2h30", "999999999999d", "9999999w", "-1h", "9999-13-01"])
def test_no_moment_names_the_forms(text: str) -> None:
    with pytest.raises(ValueError, match="is no time: give"):
        moments.moment(text, NOON, past=True)


def test_the_examples_are_right() -> None:
    assert doctest.testmod(moments).failed == 0
