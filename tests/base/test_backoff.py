"""Waits between attempts grow up to a maximum; a rate limit allows no more than its rate."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.base.backoff import ASKED_MAX_S, JITTER, Backoff, RateLimit, asked_wait_s


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


@given(st.floats(0, 1e7), st.sampled_from([0.1, 1 / 3, 200.0]), st.lists(st.floats(0, 100), max_size=20))
def test_the_wait_that_a_rate_limit_names_is_long_enough(began, per_s, gaps):
    rate, now = RateLimit(2, per_s), began
    for gap in gaps:
        now += gap
        now += rate.wait_s(now)
        assert rate.wait_s(now) == 0
        rate.take(now)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        (None, None), ("", None), ("soon", None), ("-5", None), ("1.5", None), ("\u0663", None), ("0", 0.0),
        ("7", 7.0), (" 7 ", 7.0), (str(10**10), ASKED_MAX_S), ("9" * 5000, ASKED_MAX_S),
        ("Thu, 01 Jan 1970 00:16:50 GMT", 10.0), ("Thu, 01 Jan 1970 00:00:00 GMT", 0.0),
        ("Fri, 01 Jan 2100 00:00:00 GMT", ASKED_MAX_S), ("Fri, 99 Jan 99999 00:00:00 GMT", None),
    ],
)  # fmt: skip
def test_the_wait_that_a_server_asks_for_is_a_bounded_number(text, seconds):
    assert asked_wait_s(text, 1000.0) == seconds


def test_a_server_can_only_lengthen_a_wait_and_only_up_to_a_bound():
    for asked_s in (None, 0.0, 0.001, 10.0, 10.0**10):
        backoff = Backoff(1.0, 60.0, jitter=JITTER)
        waits = [backoff.next_s(asked_s) for _ in range(12)]
        assert min(waits) >= 0.5
        assert min(waits[-3:]) >= 30, "the waits grow whatever the server asks for"
        assert max(waits) <= 1.25 * ASKED_MAX_S
    assert len({Backoff(1.0, 60.0).next_s(20.0) for _ in range(10)}) > 1, "clients do not return together"
