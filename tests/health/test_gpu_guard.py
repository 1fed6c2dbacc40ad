"""Most GPUs of a node do not go at once on one word of the driver."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nodeagent.health.gpuguard import Guard
from nodeagent.host.gpu_driver import GpuReading
from nodeagent.model import HEALTHY, Health, Reason, State
from nodeagent.sources.gpu_health_service import Ledger
from nodeagent.sources.nvml_session import Reading as Session

UUIDS = [f"GPU-{number}" for number in range(8)]


def bad(*keys: str) -> Health:
    return Health(State.UNHEALTHY, tuple(Reason(key, key) for key in keys), allocatable=False)


def offered(guard: Guard, now: float, *taken: Health) -> int:
    """How many are offered, of eight of which the first are these."""
    healths = dict(zip(UUIDS, [*taken, *[HEALTHY] * (8 - len(taken))], strict=True))
    return sum(one.allocatable for one in guard.judge(healths, now).values())


def test_a_list_that_comes_back_empty_takes_half_and_the_rest_when_it_stands() -> None:
    guard = Guard()
    assert offered(guard, 0) == 8
    assert offered(guard, 10, *[bad("gpu_lost")] * 8) == 4
    assert offered(guard, 69, *[bad("gpu_lost")] * 8) == 4
    assert offered(guard, 70, *[bad("gpu_lost")] * 8) == 0


def test_what_was_held_back_and_is_over_was_never_taken() -> None:
    guard = Guard()
    offered(guard, 0)
    offered(guard, 10, *[bad("gpu_lost")] * 8)
    assert offered(guard, 40) == 8
    assert offered(guard, 100, *[bad("gpu_lost")] * 8) == 4, "and its time begins anew"


def test_two_witnesses_take_all_at_once() -> None:
    guard = Guard()
    offered(guard, 0)
    assert offered(guard, 10, *[bad("gpu_lost", "remap_failed")] * 8) == 0


def test_an_event_is_evidence_about_one_gpu_and_never_held_back() -> None:
    guard = Guard()
    offered(guard, 0)
    assert offered(guard, 10, *[bad("xid_79")] * 8) == 0


def test_what_is_found_at_the_start_is_told_as_it_is() -> None:
    assert offered(Guard(), 0, *[bad("gpu_lost")] * 8) == 0


def test_a_single_gpu_goes_at_once() -> None:
    guard = Guard()
    guard.judge({"GPU-0": HEALTHY}, 0)
    assert not guard.judge({"GPU-0": bad("xid_79")}, 1)["GPU-0"].allocatable


def test_mig_on_all_gpus_is_a_persons_will() -> None:
    guard = Guard()
    offered(guard, 0)
    mig = Health(State.HEALTHY, (Reason("mig_enabled", "MIG"),), allocatable=False)
    assert offered(guard, 1, *[mig] * 8) == 0


def test_it_can_be_switched_off() -> None:
    guard = Guard(share=1.0)
    offered(guard, 0)
    assert offered(guard, 1, *[bad("gpu_lost")] * 8) == 0


@given(st.lists(st.tuples(st.floats(0.1, 100), st.sets(st.integers(0, 7))), max_size=30))
def test_it_delays_and_never_forbids_nor_condemns(steps: list[tuple[float, set[int]]]) -> None:
    guard, now, since = Guard(), 0.0, {}
    offered(guard, 0)
    for pause, lost in steps:
        now += pause
        since = {number: since.get(number, now) for number in lost}
        healths = {uuid: bad("gpu_lost") if n in lost else HEALTHY for n, uuid in enumerate(UUIDS)}
        told = guard.judge(healths, now)
        for number, uuid in enumerate(UUIDS):
            if number not in lost:
                assert told[uuid] == HEALTHY
            elif now - since[number] >= 60:
                assert not told[uuid].allocatable


def test_the_ledger_tells_what_the_guard_lets_through_and_explains_it() -> None:
    ledger, told = Ledger(), []
    ledger.tell(told.append)
    readings = tuple(
        GpuReading(number, UUIDS[number], number, "H100", f"0000:2{number}:00.0", 81559)
        for number in range(4)
    )
    ledger.hear_reading(Session("550", readings, {}))
    ledger.hear_reading(Session("550", (), {}))
    assert [one.health.allocatable for one in told[-1]] == [False, False, True, True]
    assert {one.health.state for one in told[-1]} == {State.UNHEALTHY}
    views = ledger.explained()
    assert [one.allocatable for one in views] == [False, False, True, True]
    assert [reason.key for reason in views[3].reasons] == ["gpu_lost", "guard"]
    ledger.fall_silent("hangs")
    assert [one.health.allocatable for one in told[-1]] == [False, False, True, True]
