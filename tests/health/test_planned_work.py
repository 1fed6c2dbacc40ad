"""Planned work on a NIC: its losses are no flaps, its faults stay, and the state says what is planned."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.facts.model import CORDONED, HEALTHY, MAINTENANCE, Health, Reason, State
from nodeagent.health.cordons import PlannedWork, with_cordon, with_planned_work
from nodeagent.health.service import HealthService
from nodeagent.measurements.sample import Source
from tests.support.judged_machine import Bench, link, pf

LINK = Source.LINK


def planned(bench: Bench, begin: float, end: float, at: float | None = None) -> Bench:
    work = PlannedWork(begin, end, "maintenance until then by ann: optics")
    bench.now = bench.now if at is None else at
    bench.engine.take_planned({bench.pfs[0].pci_address: work})
    return bench.wait(0)


def losses(bench: Bench, *counts: tuple[float, float]) -> Bench:
    for at, count in counts:
        bench.sample(LINK, at=at, carrier=1, carrier_down=count)
    return bench


def test_losses_in_the_time_of_planned_work_are_no_flaps_and_later_ones_are() -> None:
    bench = losses(planned(Bench(2).look(), 1000, 2000), (1001, 0), (1500, 9))
    assert bench.reasons() == [MAINTENANCE]
    assert (bench.health().state, bench.health().allocatable) == (State.HEALTHY, True)
    assert losses(bench, (2001, 9)).health() == HEALTHY, "the remark ends with the work"
    assert losses(bench, (2030, 12)).reasons() == ["flapping"]


def test_work_that_is_known_late_ends_what_its_losses_have_started() -> None:
    """The agent learns of it with the answer to its next report: after the first loss."""
    bench = losses(Bench(2).look(), (1001, 0), (1010, 4))
    assert bench.reasons() == ["flapping"]
    assert planned(bench, 1005, 2000).reasons() == [MAINTENANCE]
    assert bench.engine.devices[bench.pfs[0].pci_address].losses.times == []


def test_losses_before_the_work_keep_their_penalty() -> None:
    bench = losses(Bench(2).look(), (1001, 0), (1010, 4))
    planned(losses(bench, (1020, 5)), 1015, 2000)
    assert bench.reasons() == ["flapping", MAINTENANCE]
    assert bench.engine.devices[bench.pfs[0].pci_address].losses.within_day(1020) == 4


def test_a_fault_is_not_hidden_and_another_link_counts() -> None:
    bench = planned(Bench(2).look(), 1000, 5000).down(at=1100)
    assert bench.reasons() == ["carrier_down", MAINTENANCE]
    assert bench.health().allocatable is False
    for at, count in ((1101, 0), (1110, 4)):
        bench.sample(LINK, 2, at=at, carrier=1, carrier_down=count)
    assert "flapping" in bench.reasons(2)


def test_work_that_ends_early_counts_from_then_on() -> None:
    bench = losses(planned(Bench(2).look(), 1000, 5000), (1001, 0), (1010, 4))
    bench.engine.take_planned({})
    assert losses(bench, (1100, 4)).health() == HEALTHY
    assert losses(bench, (1110, 8)).reasons() == ["flapping"]


@given(
    st.lists(st.tuples(st.floats(1, 25), st.integers(0, 3)), min_size=1, max_size=12),
    st.integers(0, 11),
    st.floats(1000, 1300),
    st.floats(0, 300),
)
def test_it_does_not_matter_when_the_agent_learns_of_the_work(
    steps: list[tuple[float, int]], learnt: int, begin: float, length: float
) -> None:
    """The losses that count are the same whether the work is known before or in between."""
    found = []
    for known_at in (0, min(learnt, len(steps) - 1)):
        bench, count = Bench(1).look().sample(LINK, at=1000.5, carrier=1, carrier_down=0), 0.0
        for number, (pause, lost) in enumerate(steps):
            if number == known_at:
                planned(bench, begin, begin + length)
            count += lost
            bench.sample(LINK, at=bench.now + pause, carrier=1, carrier_down=count)
        found.append(bench.engine.devices[bench.pfs[0].pci_address].losses.times)
    assert found[0] == found[1]


@pytest.mark.parametrize(("now", "said"), [(9.9, True), (10.0, False)])
def test_the_remark_changes_neither_state_nor_cordon(now: float, said: bool) -> None:
    cordoned = with_cordon(HEALTHY, Reason(CORDONED, "by ann"))
    after = with_planned_work(cordoned, PlannedWork(0, 10, "work"), now)
    assert after == Health(
        State.HEALTHY,
        (*cordoned.reasons, *[Reason(MAINTENANCE, "work", warning=True)] * said),
        allocatable=False,
    )
    assert after.only_cordoned


def test_the_service_takes_times_from_now() -> None:
    health = HealthService(clock=lambda: 500.0)
    health.judge_functions([pf(1)], [link(pf(1))])
    health.take_planned_work({pf(1).pci_address: (-100.0, 100.0, "work")})
    assert health.nics.planned == {pf(1).pci_address: PlannedWork(400.0, 600.0, "work")}
    assert [it.key for it in health.judge_functions([pf(1)], [link(pf(1))])[0].health.reasons] == [
        MAINTENANCE
    ]
    assert health.nics.due() == 600.0
    health.take_planned_work({})
    assert health.judge_functions([pf(1)], [link(pf(1))])[0].health == HEALTHY
