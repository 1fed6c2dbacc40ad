"""The neighbors of links over restarts of the agent."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from msgspec.structs import replace

from nodeagent.base.stored_file import StoredFile
from nodeagent.lldp.neighbor_table import SENIOR_S, NeighborTable
from nodeagent.sources import lldp_source
from nodeagent.sources.lldp_source import NEIGHBORS_FORM, has_news, keep_neighbors, remembered, restore
from tests.lldp.test_neighbor_table import frame, ports
from tests.support.waiting import until


def of_a_day() -> NeighborTable:
    table = NeighborTable()
    for n in range(2880):
        table.receive("eth0", frame("real"), 30.0 * n)
    return table


def test_after_a_restart_the_switch_is_the_neighbor_again_although_another_sender_was_first(
    tmp_path: Path,
) -> None:
    before = of_a_day()
    StoredFile(tmp_path, NEIGHBORS_FORM).write(remembered(before))
    after = NeighborTable()
    restore(after, StoredFile(tmp_path, NEIGHBORS_FORM).read() or (), 0.0)
    for n in range(29):
        after.receive("eth0", frame("forged", ttl=65535), 5.0 + n)
    assert ports(after) == [("eth0", "forged", False)]
    after.receive("eth0", frame("real"), 35.0)
    assert ports(after) == [("eth0", "real", False), ("eth0", "forged", False)]


def test_a_steady_neighbor_is_written_a_few_times_only() -> None:
    table, written, writes = NeighborTable(), (), 0
    for n in range(2880):
        table.receive("eth0", frame("real"), 30.0 * n)
        now = remembered(table)
        if has_news(written, now):
            written, writes = now, writes + 1
    assert 3 <= writes <= 6
    table.receive("eth0", frame("real", ttl=0), 86400.0)
    for n in range(6000):
        table.receive("eth0", frame("other"), 86430.0 + 30.0 * n)
    assert has_news(written, remembered(table)), "another neighbor"


@pytest.mark.parametrize(
    "wrong", [{"chassis": "x"}, {"chassis_subtype": 0}, {"port_subtype": 9}, {"live_s": -1.0}, {"port": "0"}]
)
def test_a_record_that_cannot_be_true_is_ignored(wrong: dict[str, object]) -> None:
    good = remembered(of_a_day())[0]
    table = NeighborTable()
    restore(table, [replace(good, **wrong), good], 0.0)
    assert [len(times) for times in table.times().values()] == [1]


async def test_the_file_has_the_neighbors_soon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lldp_source, "CHECK_S", 0.01)
    table = of_a_day()
    keeping = asyncio.create_task(keep_neighbors(table, StoredFile(tmp_path, NEIGHBORS_FORM), ()))
    await until((tmp_path / NEIGHBORS_FORM.name).exists)
    keeping.cancel()
    assert StoredFile(tmp_path, NEIGHBORS_FORM).read() == remembered(table)


def test_the_record_of_an_earlier_version_is_that_of_the_first_sender_with_its_ids() -> None:
    (real,) = remembered(of_a_day())
    older = replace(real, source="", name=None, place=0, live_s=86370.0)
    table = NeighborTable()
    restore(table, [older], 0.0)
    table.receive("eth0", frame("real"), 5.0)
    assert [one.confirmed for one in table.neighbors()] == [True]
    assert remembered(table)[0].live_s == SENIOR_S


def test_of_senders_that_have_sent_for_ten_minutes_the_first_is_the_neighbor_after_a_restart_too() -> None:
    before = of_a_day()
    for n in range(300):
        before.receive("eth0", frame("forged"), 86400.0 + 10 * n)
    found = remembered(before)
    assert [(bytes.fromhex(one.port), one.place) for one in found] == [(b"forged", 2), (b"real", 1)]
    after = NeighborTable()
    restore(after, found, 0.0)
    after.receive("eth0", frame("forged"), 1.0)
    after.receive("eth0", frame("real"), 2.0)
    assert ports(after) == [("eth0", "real", False), ("eth0", "forged", False)]


@pytest.mark.parametrize(("hours", "first"), [(23, "real"), (25, "next")])
def test_a_sender_that_was_away_for_more_than_a_day_is_a_new_one(hours: int, first: str) -> None:
    """Its cable was moved, and somebody copies its frames."""
    table = of_a_day()
    for n in range(120 * hours):
        table.receive("eth0", frame("next"), 86400.0 + 30.0 * n)
    table.receive("eth0", frame("real"), 86400.0 + 3600.0 * hours)
    assert ports(table)[0] == ("eth0", first, False)
