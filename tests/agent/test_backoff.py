"""Waits between attempts grow up to a maximum; a rate limit allows no more than its rate."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nodeagent.backoff import JITTER, Backoff, RateLimit


def test_each_wait_is_twice_the_last_up_to_the_maximum_and_a_success_starts_again():
    backoff = Backoff(0.5, 30.0)
    assert [backoff.next_s() for _ in range(8)] == [0.5, 1, 2, 4, 8, 16, 30, 30]
    backoff.reset()
    assert backoff.next_s() == 0.5


@given(st.integers(0, 20))
def test_jitter_multiplies_each_wait_and_does_not_change_the_next_one(failures):
    steady, spread = Backoff(2.0, 120.0), Backoff(2.0, 120.0, jitter=JITTER)
    for _ in range(failures):
        wait = steady.next_s()
        assert JITTER[0] * wait <= spread.next_s() <= JITTER[1] * wait


@given(st.lists(st.floats(0, 100), max_size=50), st.integers(1, 30))
def test_a_rate_limit_allows_no_more_than_its_rate(gaps, burst):
    rate, now, taken = RateLimit(burst, 0.1), 0.0, 0
    for gap in gaps:
        now += gap
        if rate.wait_s(now) <= 0:
            rate.take(now)
            taken += 1
        assert taken <= burst + 0.1 * now + 1e-6
