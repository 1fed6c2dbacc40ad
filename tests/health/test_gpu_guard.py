"""The guard: most devices of a node do not become Unhealthy at once on the report of one source."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from nodeagent.facts.model import Gpu, State
from nodeagent.health.gpu import GpuJudge
from nodeagent.health.gpu_settings import GpuHealthSettings, GpuSettings
from nodeagent.health.guard import Guard
from nodeagent.health.health_settings import GuardSettings, HealthSettings
from nodeagent.health.rules.gpu_rules import EXCLUDED, LOST, measured_rules
from nodeagent.health.rules.xids import xid_rule
from nodeagent.health.service import HealthService
from nodeagent.host.gpu_driver import GpuReading
from nodeagent.sources.gpu_publisher import GpuPublisher
from nodeagent.sources.nvml_session import DriverReading

UUIDS = [f"GPU-{number}" for number in range(8)]
REMAP_FAILED = measured_rules(GpuHealthSettings())[0]
XID_79 = xid_rule(79, GpuSettings())


@dataclass
class Device:
    """A device with these rules active. ``over``: its faults only wait for their time to clear."""

    rules: tuple = ()
    over: bool = False

    @property
    def withdraws(self) -> bool:
        return any(rule.withdraws for rule in self.rules)

    def witnesses(self) -> frozenset[str]:
        return frozenset().union(*(rule.witnesses for rule in self.rules))


def gpu_guard(share: float = 0.5) -> Guard:
    return Guard(share, least=1.0)


def offered(guard: Guard, now: float, *failing: Device) -> int:
    """How many of eight devices are offered. The first have these faults."""
    devices = dict(zip(UUIDS, [*failing, *[Device()] * (8 - len(failing))], strict=True))
    guard.judge(devices, {}, now)
    return sum(guard.allocatable(uuid) for uuid in UUIDS)


def test_an_empty_list_withdraws_half_and_the_rest_when_the_fault_has_lasted() -> None:
    guard = gpu_guard()
    assert offered(guard, 0) == 8
    assert offered(guard, 10, *[Device((LOST,))] * 8) == 4
    assert offered(guard, 69, *[Device((LOST,))] * 8) == 4
    assert offered(guard, 70, *[Device((LOST,))] * 8) == 0


def test_a_fault_that_ends_while_it_is_held_back_never_withdraws() -> None:
    guard = gpu_guard()
    offered(guard, 0)
    offered(guard, 10, *[Device((LOST,))] * 8)
    assert offered(guard, 40) == 8
    assert offered(guard, 100, *[Device((LOST,))] * 8) == 4, "the time starts again"


def test_a_fault_that_only_waits_to_be_cleared_does_not_last() -> None:
    guard = gpu_guard(share=0.125)
    offered(guard, 0)
    assert offered(guard, 10, *[Device((REMAP_FAILED,))] * 8) == 7
    assert offered(guard, 100, *[Device((REMAP_FAILED,), over=True)] * 8) == 6, "the share of a new minute"
    assert offered(guard, 159, *[Device((REMAP_FAILED,))] * 8) == 6
    assert offered(guard, 160, *[Device((REMAP_FAILED,))] * 8) == 0


def test_two_witnesses_withdraw_all_at_once() -> None:
    guard = gpu_guard()
    offered(guard, 0)
    assert offered(guard, 10, *[Device((LOST, REMAP_FAILED))] * 8) == 0


def test_an_event_names_one_gpu_and_is_never_held_back() -> None:
    guard = gpu_guard()
    offered(guard, 0)
    assert offered(guard, 10, *[Device((XID_79,))] * 8) == 0


def test_the_first_evaluation_is_not_guarded() -> None:
    assert offered(gpu_guard(), 0, *[Device((LOST,))] * 8) == 0


def test_a_single_gpu_is_withdrawn_at_once() -> None:
    guard = gpu_guard()
    guard.judge({"GPU-0": Device()}, {}, 0)
    guard.judge({"GPU-0": Device((LOST,))}, {}, 1)
    assert not guard.allocatable("GPU-0")


def test_gpus_that_a_person_excludes_leave_at_once() -> None:
    guard = gpu_guard()
    offered(guard, 0)
    assert offered(guard, 1, *[Device((EXCLUDED,))] * 8) == 0


def test_it_can_be_switched_off() -> None:
    guard = gpu_guard(share=1.0)
    offered(guard, 0)
    assert offered(guard, 1, *[Device((LOST,))] * 8) == 0


@given(st.lists(st.tuples(st.floats(0.1, 100), st.sets(st.integers(0, 7))), max_size=30))
def test_it_delays_and_never_forbids_and_withdraws_no_healthy_device(
    steps: list[tuple[float, set[int]]],
) -> None:
    guard, now, since = gpu_guard(), 0.0, {}
    offered(guard, 0)
    for pause, lost in steps:
        now += pause
        since = {number: since.get(number, now) for number in lost}
        guard.judge({uuid: Device((LOST,) if n in lost else ()) for n, uuid in enumerate(UUIDS)}, {}, now)
        for number, uuid in enumerate(UUIDS):
            if number not in lost:
                assert guard.allocatable(uuid)
                assert not guard.holds_back(uuid)
            elif now - since[number] >= 60:
                assert not guard.allocatable(uuid)


def test_a_list_of_the_driver_that_is_empty_is_guarded() -> None:
    judge = GpuJudge()
    judge.take_readings([GpuReading(n, uuid) for n, uuid in enumerate(UUIDS)], 0)
    assert all(health.allocatable for health in judge.judge(0).values())
    judge.take_readings([], 5)
    assert [health.allocatable for health in judge.judge(5).values()] == [False] * 4 + [True] * 4
    judge.take_readings([], 65)
    assert not any(health.allocatable for health in judge.judge(65).values())


def test_the_guarded_health_is_published_and_explained() -> None:
    facts = GpuPublisher(HealthService())
    published: list[tuple[Gpu, ...]] = []
    facts.publish_to(published.append)
    readings = tuple(
        GpuReading(number, UUIDS[number], number, "H100", f"0000:2{number}:00.0", 81559)
        for number in range(4)
    )
    facts.take_reading(DriverReading("550", readings, {}))
    facts.take_reading(DriverReading("550", (), {}))
    assert [gpu.health.allocatable for gpu in published[-1]] == [False, False, True, True]
    assert {gpu.health.state for gpu in published[-1]} == {State.UNHEALTHY}
    views = facts.health.explain()
    assert [view.allocatable for view in views] == [False, False, True, True]
    assert [reason.key for reason in views[3].reasons] == ["gpu_lost", "guard"]
    facts.take_driver_failure("hangs")
    assert [gpu.health.allocatable for gpu in published[-1]] == [False, False, True, True]


def test_a_changed_guard_applies_to_gpus_at_the_next_reading() -> None:
    facts = GpuPublisher(HealthService())
    published: list[tuple[Gpu, ...]] = []
    facts.publish_to(published.append)
    readings = tuple(
        GpuReading(number, UUIDS[number], number, "H100", f"0000:2{number}:00.0", 81559)
        for number in range(4)
    )
    facts.take_reading(DriverReading("550", readings, {}))
    facts.health.adopt(HealthSettings(guard=GuardSettings(share=1.0, seconds=7.0)))
    facts.take_reading(DriverReading("550", (), {}))
    assert [gpu.health.allocatable for gpu in published[-1]] == [False] * 4
