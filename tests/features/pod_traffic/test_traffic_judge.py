"""The levels of a pod's rails: what moves, what is silent, what is below its peers, and how often a level changes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.facts.model import PodTraffic
from nodeagent.features.pod_traffic.traffic_judge import (
    BURST,
    EACH_S,
    MOVES_BPS,
    STAYS_BPS,
    GpuLoad,
    PodNow,
    PodVf,
    TrafficJudge,
    VfCounters,
    load_word,
)

POD = "ml/llama-0"
FULL = 20e9


class Node:
    """One pod with some VFs, read every 30 s."""

    def __init__(self, vfs: int = 4, driver: str | None = "mlx5_core", gpus: int = 2) -> None:
        self.judge, self.now = TrafficJudge(), 1000.0
        self.vfs = [PodVf(f"0000:{n:02x}:00.2", f"0000:{n:02x}:00.0", driver) for n in range(vfs)]
        self.pods = {POD: PodNow(tuple(self.vfs), tuple(range(gpus)))}
        self.sent = [0.0] * vfs
        self.levels: tuple[PodTraffic, ...] = ()
        self.seen: list[tuple[PodTraffic, ...]] = []

    def run(
        self,
        seconds: float,
        *rates: float,
        load: float = 0.9,
        memory: float | None = 0.4,
        counted: bool = True,
    ) -> PodTraffic | None:
        """Read until then with these rates of the VFs, the last for all that follow."""
        for _ in range(round(seconds / 30)):
            self.now += 30
            for number in range(len(self.sent)):
                self.sent[number] += 30 * rates[min(number, len(rates) - 1)]
            counters = {
                vf.address: VfCounters(self.now, sent, sent)
                for vf, sent in zip(self.vfs, self.sent, strict=True)
            }
            loads = {index: GpuLoad(self.now, load, memory) for index in self.pods[POD].gpus}
            self.levels = self.judge.take(self.now, self.pods, counters if counted else {}, loads)
            if not self.seen or self.seen[-1] != self.levels:
                self.seen.append(self.levels)
        return self.levels[0] if self.levels else None


def test_a_pod_that_never_moved_is_unused_and_never_silent() -> None:
    node = Node()
    level = node.run(7200, 0.0, load=1.0, memory=0.0)
    assert level is not None
    assert (level.level, level.gpus) == ("unused", "waiting")


def test_a_pod_that_stops_is_silent_since_its_last_movement() -> None:
    node = Node()
    assert node.run(600, FULL).level == "moving"
    stopped = node.now
    assert node.run(120, 0.0, load=1.0, memory=0.0).level == "moving", "a checkpoint is no news"
    level = node.run(30, 0.0, load=1.0, memory=0.0)
    assert (level.level, level.since, level.gpus) == ("silent", stopped, "")
    assert node.run(120, 0.0, load=1.0, memory=0.0).gpus == "", "a straggler of four minutes is no news"
    assert node.run(60, 0.0, load=1.0, memory=0.0).gpus == "waiting"
    assert node.run(30, FULL).level == "moving"


def test_what_the_gpus_do_is_told_apart() -> None:
    for load, memory, word in (
        (1.0, 0.0, "waiting"),
        (1.0, 0.02, "working"),
        (0.0, 0.0, "idle"),
        (0.5, None, "working"),
    ):
        node = Node()
        node.run(600, FULL)
        assert node.run(360, 0.0, load=load, memory=memory).gpus == word
    assert load_word(()) == ""
    assert load_word([GpuLoad(at, 1.0, None) for at in range(4)]) == "waiting"


def test_pauses_of_the_same_length_change_no_level() -> None:
    """Checkpoints of eight minutes each half hour: the first is news, and the longest pause becomes known."""
    node = Node()
    node.run(1800, FULL)
    node.run(480, 0.0)
    node.run(1800, FULL)
    before = len(node.seen)
    for _ in range(40):
        node.run(480, 0.0)
        node.run(1800, FULL)
    assert len(node.seen) == before
    assert 480 <= node.levels[0].longest_pause <= 780


def test_a_dark_rail_of_a_pod_that_moves_is_silent_by_itself() -> None:
    node = Node()
    node.run(600, FULL)
    since = node.now
    level = node.run(150, 0.0, FULL)
    assert [(one.vf, one.level, one.since) for one in level.rails] == [(node.vfs[0].address, "silent", since)]
    assert level.level == "moving"
    assert node.run(60, FULL).rails == ()


def test_a_rail_below_the_others_is_named_after_two_minutes_and_cleared_with_hysteresis() -> None:
    node = Node()
    node.run(600, FULL)
    level = node.run(300, 0.3 * FULL, FULL)
    assert [one.level for one in level.rails] == ["below"]
    assert node.run(600, 0.6 * FULL, FULL).rails == level.rails, "between the limits it stays"
    assert node.run(300, 0.9 * FULL, FULL).rails == ()


def test_of_two_rails_none_is_odd() -> None:
    node = Node(2)
    assert node.run(900, 0.1 * FULL, FULL).rails == ()


@pytest.mark.parametrize("driver", ["ice", "ionic", "bnxt_en", "i40e", None])
def test_a_driver_that_does_not_count_all_is_never_silent(driver: str | None) -> None:
    """Its RDMA may be what it does not count."""
    node = Node(driver=driver)
    for rates in ((0.0,), (FULL,), (0.0, FULL), (0.0,)):
        level = node.run(600, *rates)
        assert (level.level, level.rails) == ("unmeasured", ())
        assert [node.judge.is_measured(vf) for vf in node.vfs] == [
            rates[min(n, len(rates) - 1)] > 0 for n in range(4)
        ]


def test_a_pod_with_one_vf_of_such_a_driver_is_judged_by_the_others() -> None:
    node = Node()
    node.vfs[3] = node.vfs[3]._replace(driver="ionic")
    node.pods = {POD: PodNow(tuple(node.vfs))}
    assert [one.level for one in node.run(600, FULL, FULL, FULL, 0.0).rails] == ["unmeasured"]
    level = node.run(300, 0.0)
    assert (level.level, level.gpus, level.longest_pause) == ("silent", "", 0)


def test_without_counters_a_pod_is_not_measured() -> None:
    node = Node()
    assert node.run(600, 0.0, counted=False).level == "unmeasured"


def test_a_counter_that_falls_is_a_new_beginning() -> None:
    node = Node()
    node.run(600, FULL)
    node.sent = [0.0] * 4
    assert node.run(30, 0.0).level == "moving"
    assert node.run(30, FULL).level == "moving"
    assert node.levels[0].rails == ()


def test_a_reading_that_the_driver_refused_is_no_traffic() -> None:
    """The kernel drops the driver's error and answers zeros; the next reading is no growth from 0."""
    node = Node()
    node.run(600, FULL)
    moved_at = node.now
    node.run(300, 0.0)
    kept, node.sent = node.sent, [0.0] * 4
    node.run(60, 0.0)
    node.sent = kept
    level = node.run(300, 0.0)
    assert (level.level, level.since, level.longest_pause) == ("silent", moved_at, 0)
    assert all(moved == moved_at for _, moved in node.judge.rates().values())


def test_counters_that_stay_at_zero_were_reset() -> None:
    node = Node()
    node.run(600, FULL)
    moved_at, node.sent = node.now, [0.0] * 4
    level = node.run(300, 0.0)
    assert (level.level, level.since) == ("silent", moved_at)
    assert node.run(60, FULL).level == "moving"


def test_changes_have_a_budget_and_none_is_lost() -> None:
    """A job that pauses a little longer each time, and a rail that flaps: the node writes at most so often."""
    node = Node()
    node.run(600, FULL)
    hours = 10
    for number in range(hours * 12):
        node.run(150, 0.0 if number % 2 else FULL, FULL)
        node.run(150, FULL)
    assert len(node.seen) - 2 <= BURST + hours * 3600 / EACH_S
    assert node.run(900, FULL).rails == ()
    assert node.run(900, 0.0, FULL).rails[0].level == "silent"


@given(
    st.lists(
        st.tuples(st.sampled_from((0.0, MOVES_BPS / 4, MOVES_BPS, FULL)), st.integers(1, 12)), max_size=12
    )
)
def test_a_level_is_true_of_the_readings(runs: list[tuple[float, int]]) -> None:
    """Silent means that nothing moved for two minutes at least; unused that nothing ever moved."""
    node, moved = Node(), None
    for rate, count in runs:
        for _ in range(count):
            level = node.run(30, rate)
            limit = MOVES_BPS if moved is None else STAYS_BPS
            if 2 * rate >= limit and node.now > 1030:
                moved = node.now
            if level is not None and level.level == "silent":
                assert moved is not None
                assert node.now - moved > 120
            if level is not None and level.level == "unused":
                assert moved is None


@pytest.mark.parametrize("identity", [{"allocated": 1500.0}, {"claims": frozenset({"llama-0-rails-x7k2p"})}])
def test_the_next_pod_of_a_name_with_the_same_vfs_begins_anew(identity: dict[str, Any]) -> None:
    """A StatefulSet starts it within seconds, so no look is between them: it loads its data, and is not silent."""
    node = Node()
    node.run(600, FULL)
    node.run(240, 0.0)
    before = node.run(300, FULL)
    assert before is not None
    assert before.longest_pause > 0
    node.pods = {POD: node.pods[POD]._replace(**identity)}
    began = node.now
    first = node.run(30, 0.0)
    assert first is None
    later = node.run(900, 0.0)
    assert later is not None
    assert (later.level, later.longest_pause, later.at_start) == ("unused", 0, False)
    assert later.since is not None
    assert later.since >= began


def test_a_pod_of_before_the_agent_and_one_after_it_differ() -> None:
    node = Node()
    node.pods = {POD: node.pods[POD]._replace(allocated=1000.0)}
    level = node.run(120, 0.0)
    assert level is not None
    assert not level.at_start
