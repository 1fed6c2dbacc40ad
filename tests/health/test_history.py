"""The samples of a device as they may arrive: late, and twice."""

from __future__ import annotations

import pytest

from nodeagent.health.history import History
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
