"""Simulated halls: how soon and how surely the place of each fault is named from what nodes report.

The seeds are fixed. ``hack/bench_rails.py`` prints the table of all rows with as many halls as you like.
"""

from __future__ import annotations

import pytest

from nodeagent.fabric.rail_suspects import Scope
from tests.support.rail_hall import DAY_S, FASTEST, HALLS, ROWS, Lost, RailHall, levels, row, unrest

SMALL = RailHall(*HALLS["64 nodes"])
LONG = {
    "one of 32 spine planes": ("1,024 nodes", 20, 2),
    "one path of the core": ("8,192 nodes, 8 pods", 2, 1),
}
"""Rows in parts: the hall, how many of them, and how many one test tries."""
FAST = RailHall(*HALLS["64 nodes"], per_second=FASTEST)


@pytest.mark.parametrize("name", [name for name in ROWS if name != "one path of the core"])
def test_each_place_is_named_in_time(name: str):
    found = row(SMALL, ROWS[name], runs=10)
    assert found.right == 10, found.wrong
    assert found.extra <= (name == "host loses 30 %"), found.wrong
    assert found.within_s(0.9) <= ROWS[name].promise_s


@pytest.mark.parametrize(
    "name", [name for name, wanted in ROWS.items() if wanted.soon_s and "1 %" not in name]
)
def test_at_the_highest_rate_each_place_is_named_sooner(name: str):
    found = row(FAST, ROWS[name], runs=10)
    assert found.right == 10, found.wrong
    assert found.within_s(0.9) <= ROWS[name].soon_s


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in ROWS if name not in LONG])
def test_each_row_of_the_table(name: str):
    found = row(RailHall(*HALLS["1,024 nodes"]), ROWS[name], runs=20)
    assert found.right >= found.runs - 1, found.wrong
    assert found.extra <= 1, found.wrong
    assert found.within_s(0.95) <= ROWS[name].promise_s


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "first"),
    [(name, first) for name, (_, halls, runs) in LONG.items() for first in range(0, halls, runs)],
)
def test_each_hall_of_the_rows_with_many_bad_legs(name: str, first: int):
    """Nearly every leg of these halls is bad, which takes 3 to 17 s for one hall."""
    hall, _, runs = LONG[name]
    found = row(RailHall(*HALLS[hall]), ROWS[name], runs, first)
    assert found.right == runs, found.wrong
    assert not found.extra, found.wrong
    assert found.within_s(1.0) <= ROWS[name].promise_s


@pytest.mark.slow
def test_no_nic_and_no_switch_is_blamed_in_a_thousand_days_of_nodes_that_pause_and_reboot():
    hall = RailHall(*HALLS["1,024 nodes"])
    named = hall.named(unrest(hall, 1.0), DAY_S)
    assert {one.finding.suspect.scope for one in named} <= {Scope.HOST}
    assert named, "reboots are hosts that are silent"


def test_the_level_of_a_leg_is_that_of_the_agents_windows():
    def of(*times: float) -> list[int]:
        return [level for _, level in levels([Lost(at) for at in times], 2.0)]

    assert of(100, 102, 104) == []
    assert of(100, 112) == [10, 0]
    assert of(100, 500) == [1, 0]
    assert of(100, 2500) == []
    assert of(*range(100, 130, 2)) == [100, 0]
    assert list(levels([Lost(float(at), 113.0) for at in range(100, 112, 2)], 2.0)) == []
