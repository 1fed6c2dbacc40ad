"""Which sizes requests grew to: chains of containers of one pod, refusals, other pods, limits."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nodeagent.kubelet.grown_requests import NOTED_MAX, SAME_POD_S, SIZES_MAX, GrownRequests


def ids(first: int, count: int) -> list[str]:
    return [f"GPU-0::{n}" for n in range(first, first + count)]


def test_a_request_that_the_next_container_extends_has_grown() -> None:
    grown = GrownRequests()
    assert grown.later_sizes(16) is None
    grown.allocate(ids(0, 16), 0.0)
    assert grown.later_sizes(16) == ()
    grown.ask(ids(0, 16), 40, 0.1)
    assert grown.later_sizes(16) == (40,), "also if the request is refused"
    grown.allocate(ids(0, 40), 0.2)
    grown.ask(ids(0, 40), 60, 0.3)
    grown.allocate(ids(0, 60), 0.3)
    assert grown.later_sizes(16) == (60,)


def test_an_equal_or_smaller_request_of_the_same_devices_and_another_pod_have_not_grown() -> None:
    grown = GrownRequests()
    grown.allocate(ids(0, 40), 0.0)
    grown.allocate(ids(5, 20), 0.1)
    grown.allocate(ids(100, 60), 0.2)
    grown.ask(ids(200, 5), 70, 0.3)
    grown.ask([], 60, 0.4)
    grown.allocate(ids(90, 79), 0.4)
    assert grown.later_sizes(40) == ()
    assert grown.later_sizes(20) is None
    grown.ask(ids(90, 79), 90, 0.4 + SAME_POD_S + 0.1)
    assert grown.later_sizes(79) == (), "later than one pod takes"
    assert grown.later_sizes(60) == ()


def test_old_notes_end_and_the_number_of_sizes_is_bounded() -> None:
    grown = GrownRequests()
    grown.allocate(ids(0, 16), 0.0)
    grown.ask(ids(0, 16), 40, 0.0)
    for turn in range(NOTED_MAX):
        grown.ask([], 16, 0.0)
        grown.allocate(ids(1000 * (turn + 1), 16), 0.0)
    assert grown.later_sizes(16) == ()
    for size in range(1, 2 * SIZES_MAX):
        grown.allocate(ids(10_000 * size, size % 1500 + 1), 0.0)
    assert sum(grown.later_sizes(size) is not None for size in range(1, 2000)) <= SIZES_MAX


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(1, 9), st.booleans()), max_size=40))
def test_every_noted_size_is_larger_than_its_request(steps: list[tuple[int, int, bool]]) -> None:
    grown = GrownRequests()
    for now, (first, count, asked) in enumerate(steps):
        if asked:
            grown.ask(ids(first, count), count + 1, now)
        else:
            grown.allocate(ids(first, count), now)
        for size in range(1, 12):
            assert all(later > size for later in grown.later_sizes(size) or ())
