"""The windows and levels of one leg, over hours of virtual time."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from nodeagent.features.rail_probing.leg_windows import SLOT_S, LegWindows


def levels(
    seconds: float, lost: Callable[[int, float], bool], late_s: float = 0.0, every_s: float = 2.0
) -> list[tuple[float, int]]:
    """The changes of the level of a leg that is probed every two seconds. ``late_s``: when a lost one is answered."""
    leg, changes, now, count = LegWindows(0.0), [], 0.0, 0
    waiting: list[tuple[float, bool, float]] = []
    while now < seconds:
        if now % every_s == 0:
            waiting.append((now + 2.0, lost(count, now), now))
            count += 1
        for at, missed, sent in [one for one in waiting if one[0] <= now]:
            waiting.remove((at, missed, sent))
            if not missed:
                leg.answered(sent)
            elif at == sent + 2.0:
                leg.missing(sent, now)
                if late_s:
                    waiting.append((sent + late_s, True, sent))
            else:
                leg.late(sent)
        if now % 5 == 0 and leg.evaluate(now):
            changes.append((now, leg.level))
        now += 0.5
    return changes


def test_a_good_leg_has_no_level() -> None:
    assert levels(7200, lambda _count, _now: False) == []


def test_a_dead_leg_is_dead_soon_and_good_soon_after_its_repair() -> None:
    (dead, good) = levels(3600, lambda _count, now: 600 <= now < 900)
    assert dead == (pytest.approx(615, abs=10), 100)
    assert good == (pytest.approx(910, abs=10), 0)


@pytest.mark.parametrize(("share", "level", "within_s"), [(0.5, 50, 120), (0.1, 10, 240), (0.01, 1, 1800)])
def test_each_share_of_loss_has_its_level(share: float, level: int, within_s: float) -> None:
    found = 0
    for seed in range(20):
        draw = random.Random(seed)
        changes = levels(within_s, lambda _count, _now, draw=draw: draw.random() < share)
        found += bool(changes) and abs(changes[-1][1] - level) <= {50: 0, 10: 40, 1: 9}[level]
    assert found >= 18


def test_one_burst_is_no_level() -> None:
    assert levels(7200, lambda _count, now: 3000 <= now < 3004) == []


def test_a_burst_after_a_single_loss_is_no_loss_of_ten_percent() -> None:
    changes = levels(7200, lambda _count, now: now == 2500 or 3000 <= now < 3008)
    assert [level for _, level in changes] == [1, 0]


def test_a_leg_that_loses_two_packets_in_five_minutes_keeps_its_level() -> None:
    """It had one for two minutes of each five, and its node wrote a report at each change."""
    changes = levels(7200, lambda count, _now: count % 150 in (7, 22))
    assert [level for _, level in changes] == [10]


def test_at_eight_packets_a_second_two_losses_are_a_level_if_they_are_close() -> None:
    assert not levels(1800, lambda _count, now: now in (1000, 1500), every_s=0.5)
    assert levels(1800, lambda _count, now: now in (1000, 1030), every_s=0.5)
    assert levels(1800, lambda _count, now: now in (1000, 1200, 1500), every_s=1.0)


def test_a_level_ends_with_the_late_answer_that_it_took_for_a_loss() -> None:
    leg = LegWindows(0.0)
    for second in range(0, 900, 2):
        (leg.missing(second, second + 2.0) if second in (400, 800) else leg.answered(float(second)))
    assert leg.evaluate(900.0)
    leg.late(800.0)
    assert leg.evaluate(905.0)
    assert leg.level == 0


def test_late_answers_are_no_loss() -> None:
    assert levels(3600, lambda _count, now: now % 60 < 4, late_s=5.0) == []


def test_a_refusal_excuses_what_was_silent_and_what_will_be() -> None:
    leg = LegWindows(0.0)
    for second in range(30):
        leg.missing(float(second), second + 2.0)
    assert [leg.evaluate(35.0), leg.evaluate(40.0), leg.level] == [False, True, 100]
    leg.refused(41.0)
    assert (leg.level, leg.absent(50.0), leg.absent(57.0)) == (0, True, False)
    leg.missing(45.0, 47.0)
    assert leg.long(60.0).lost == 0


def test_the_level_begins_with_its_first_loss() -> None:
    leg = LegWindows(0.0)
    for second in range(100, 120, 2):
        leg.missing(float(second), second + 2.0)
    leg.evaluate(122.0)
    leg.evaluate(127.0)
    assert (leg.level, leg.since) == (100, 100.0)


@pytest.mark.parametrize("late_s", [2.5, 4, 9.5])
def test_a_host_that_is_always_late_loses_nothing_and_a_loss_afterwards_is_found(late_s: float) -> None:
    leg, levels = LegWindows(0), []

    def pass_s(begin: int, end: int, *, late: bool) -> None:
        for tick in range(2 * begin, 2 * end):
            now = tick / 2
            if late:
                leg.missing(now - 2, now)
                if now - late_s >= begin - 2:
                    leg.late(now - late_s)
            elif tick % 10 == 0:
                leg.missing(now - 2, now)
            else:
                leg.answered(now)
            if now % SLOT_S == 0:
                leg.evaluate(now)
                levels.append(leg.level)

    pass_s(10, 200, late=True)
    assert set(levels) == {0}
    for tick in range(400, 420):
        leg.late(tick / 2 - late_s)
    pass_s(210, 290, late=False)
    assert levels[-1] == 10
