"""Simulated halls: how soon and how surely the place of each fault is named from what nodes report.

The seeds are fixed. ``hack/bench_rails.py`` prints the table of all rows with as many halls as you like.
"""

from __future__ import annotations

import pytest

from nodeagent.fabric.rail_suspects import Scope
from tests.support.rail_hall import DAY_S, HALLS, ROWS, RailHall, level, row, unrest

SMALL = RailHall(*HALLS["256 nodes"])


@pytest.mark.parametrize("name", [name for name in ROWS if name not in ("one path of the core", "link 1 %")])
def test_each_place_is_named_in_time(name: str):
    found = row(SMALL, ROWS[name], runs=10)
    assert found.right == 10, found.wrong
    assert found.within_s(0.95) <= ROWS[name].promise_s


@pytest.mark.slow
@pytest.mark.parametrize("name", ROWS)
def test_each_row_of_the_table(name: str):
    hall, runs = ("8,192 nodes, 8 pods", 2) if "core" in name else ("1,024 nodes", 20)
    found = row(RailHall(*HALLS[hall]), ROWS[name], runs=runs)
    assert found.right >= found.runs - 1, found.wrong
    assert found.extra <= 1, found.wrong
    assert found.within_s(0.95) <= ROWS[name].promise_s


@pytest.mark.slow
def test_no_nic_and_no_switch_is_blamed_in_a_thousand_days_of_nodes_that_pause_and_reboot():
    hall = RailHall(*HALLS["1,024 nodes"])
    named = hall.named(unrest(hall, 1.0), DAY_S)
    assert {one.finding.suspect.scope for one in named} <= {Scope.HOST}
    assert named, "reboots are hosts that are silent"


def test_a_burst_is_no_level_and_two_losses_that_lie_apart_are():
    assert level([100.0, 101.0, 102.0], 105.0) == 0
    assert level([100.0, 110.0], 112.0) == 10
    assert level([float(at) for at in range(100, 112, 2)], 112.0) == 100
    assert level([100.0, 500.0], 505.0) == 1
    assert level([100.0, 500.0], 1401.0) == 0
