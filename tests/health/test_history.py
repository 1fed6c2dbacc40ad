"""The samples of a device as they may arrive: late, and twice."""

from __future__ import annotations

import tracemalloc

import pytest

from nodeagent.health.health_settings import HealthSettings, effective
from nodeagent.health.history import Counter, History
from nodeagent.health.rules import windows
from nodeagent.measurements.sample import Sample, Source


def sample(at: float, carrier: float, changes: float) -> Sample:
    return Sample(at, "nic", Source.LINK, {"carrier": carrier, "carrier_down": changes})


@pytest.mark.parametrize("at", [5.0, 10.0])
def test_a_sample_that_is_not_newer_than_the_last_of_its_source_changes_nothing(at: float) -> None:
    history = History({"carrier_down": 60.0})
    history.take(sample(1, 1, 3))
    assert history.take(sample(10, 1, 4)) == {"carrier_down": 1}
    assert history.take(sample(at, 0, 9)) == {}
    assert history.level("carrier") == 1
    assert history.take(sample(11, 1, 5)) == {"carrier_down": 1}


def test_the_totals_of_a_counter_that_stands_still_are_one_object() -> None:
    counter = Counter(7.0, 0.0, 600.0)
    for second in range(1, 600, 5):
        counter.take(7.0, float(second))
    assert len(counter._totals) > 30
    assert len({id(total) for total in counter._totals}) == 1
    counter.take(9.0, 600.0)
    assert counter.over(600.0)[0] == 2


def test_an_hour_of_samples_takes_little_more_than_ten_minutes() -> None:
    """The windows of 13 NICs, with every counter of the rules at once."""
    kept = windows(effective(HealthSettings().rules))
    nics = [History(kept) for _ in range(13)]

    def feed(begin: int, end: int) -> int:
        for second in range(begin, end, 5):
            for nic in nics:
                nic.set_time(second)
                nic.take(Sample(second, "nic", Source.DRIVER, dict.fromkeys(kept, 0.0)))
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        ten_minutes = feed(1000, 1600)
        an_hour = feed(1600, 4600)
    finally:
        tracemalloc.stop()
    assert an_hour - ten_minutes < 128 << 10
    assert ten_minutes < 1 << 20
