"""Health in the words of NVSentinel: which events a device makes, and that the conditions follow through outages."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from nodeagent.facts.model import Function, Health, Reason, Snapshot, StaleSource, State, UnusableGpu
from nodeagent.features.nvsentinel.health_events import GPU_CHECK, MESSAGE_MAX, NIC_CHECK, EventLedger
from tests.support.cluster_node import (
    DEGRADED,
    DOWN,
    GPU_LOST,
    GPU_UNKNOWN,
    MISCABLED,
    UNKNOWN,
    WARNED,
    gpu,
    pf,
    snapshot,
)
from tests.support.platform_connector import NodeConditions, ReceivedEvent

HEALTHY = Health()


def deliver(ledger: EventLedger, conditions: NodeConditions | None = None):
    """Deliver everything that is due, one device at a time. Return the events."""
    sent = []
    while due := ledger.due(1):
        ((key, event),) = due
        for step in ledger.steps(key, event):
            sent.append(step)
            if conditions is not None:
                conditions.take(
                    ReceivedEvent(
                        "nodeagent", step.component, step.check, step.fatal, step.healthy, step.message,
                        5, step.codes, step.entities, 0, "n", 1,
                    )
                )  # fmt: skip
        ledger.mark_received(key, event)
    return sent


def test_each_device_has_one_event_and_the_faults_come_first():
    ledger = EventLedger()
    ledger.observe(snapshot([DEGRADED, DOWN, WARNED, UNKNOWN, MISCABLED], [GPU_LOST, None]))
    assert [(e.check, e.healthy, e.fatal, e.codes, e.entities, e.message) for e in deliver(ledger)] == [
        (NIC_CHECK, False, True, ("carrier_down",), (("PCI", "0000:11:00.0"),), "ens1np0 (0000:11:00.0): no carrier"),
        (
            GPU_CHECK, False, True, ("xid",), (("PCI", "0000:20:00.0"), ("GPU_UUID", "GPU-0")),
            "GPU 0 (GPU-0): XID 79: the GPU has fallen off the bus",
        ),
        (NIC_CHECK, True, False, (), (("PCI", "0000:10:00.0"),), ""),
        (
            NIC_CHECK, False, False, ("speed_reduced",), (("PCI", "0000:10:00.0"),),
            "ens0np0 (0000:10:00.0): 200 Gb/s of 400 Gb/s",
        ),
        (NIC_CHECK, True, False, (), (("PCI", "0000:14:00.0"),), ""),
        (
            NIC_CHECK, False, False, ("miscabled",), (("PCI", "0000:14:00.0"),),
            "ens4np0 (0000:14:00.0): is on leaf02, planned leaf01",
        ),
        (NIC_CHECK, True, False, (), (("PCI", "0000:12:00.0"),), ""),
        (GPU_CHECK, True, False, (), (("PCI", "0000:21:00.0"), ("GPU_UUID", "GPU-1")), ""),
    ]  # fmt: skip
    assert deliver(ledger) == []


def test_a_fault_and_its_recovery_are_sent_once_each():
    ledger = EventLedger()
    fatal = []
    for health in (HEALTHY, DOWN, DOWN, HEALTHY, HEALTHY):
        ledger.observe(snapshot([health], ()))
        fatal.append([event.fatal for event in deliver(ledger)])
    assert fatal == [[False], [True], [], [False], []]


def test_an_unknown_state_leaves_the_last_event():
    ledger = EventLedger()
    ledger.observe(snapshot((), [GPU_LOST]))
    deliver(ledger)
    ledger.observe(snapshot((), [GPU_UNKNOWN]))
    assert deliver(ledger) == []


def test_a_fatal_fault_that_changes_is_not_cleared_in_between():
    ledger = EventLedger()
    ledger.observe(snapshot([DOWN], ()))
    deliver(ledger)
    ledger.observe(snapshot([replace(DOWN, reasons=(Reason("device_missing", "gone"),))], ()))
    assert [(event.healthy, event.codes) for event in deliver(ledger)] == [(False, ("device_missing",))]


def test_a_device_that_is_withdrawn_without_a_fault_is_a_fatal_event():
    ledger = EventLedger()
    ledger.observe(snapshot([replace(HEALTHY, allocatable=False)], ()))
    assert [(event.fatal, event.codes) for event in deliver(ledger)] == [(True, ("healthy",))]


@pytest.mark.parametrize("stale", [(), (StaleSource("gpus", "hangs"),)])
def test_a_device_that_is_gone_has_recovered_unless_a_source_has_failed(stale):
    ledger, conditions = EventLedger(), NodeConditions()
    ledger.observe(snapshot((), [GPU_LOST]))
    deliver(ledger, conditions)
    ledger.observe(snapshot((), (), stale=stale))
    deliver(ledger, conditions)
    assert bool(conditions.standing(GPU_CHECK)) is bool(stale)


def test_a_gpu_that_comes_back_clears_what_was_reported_of_its_slot_by_an_earlier_agent():
    conditions = NodeConditions()
    lost = UnusableGpu(
        "0000:20:00.0", Health(State.UNHEALTHY, (Reason("not_initialized", "x"),), allocatable=False)
    )
    before = EventLedger()
    before.observe(Snapshot(unusable_gpus=(lost,)))
    deliver(before, conditions)
    assert conditions.standing(GPU_CHECK)
    after = EventLedger()
    after.observe(Snapshot(gpus=(gpu(0),)))
    deliver(after, conditions)
    assert not conditions.standing(GPU_CHECK)


def test_a_message_is_bounded_and_does_not_split_a_condition():
    ledger, conditions = EventLedger(), NodeConditions()
    reason = Reason("miscabled", "is on a;b\n" + "x" * 2000)
    ledger.observe(snapshot([Health(State.DOWN, (reason,), allocatable=False)], ()))
    (event,) = deliver(ledger, conditions)
    assert len(event.message) == MESSAGE_MAX
    assert event.message.isprintable()
    assert len(conditions.standing(NIC_CHECK)) == 1


HEALTHS = st.sampled_from([HEALTHY, DOWN, DEGRADED, WARNED, MISCABLED, UNKNOWN])
STEPS = st.one_of(
    st.tuples(st.just("health"), st.integers(0, 2), HEALTHS),
    st.tuples(st.sampled_from(["deliver", "connector restarts", "agent restarts"])),
)


@given(st.lists(STEPS, max_size=30))
def test_the_condition_of_the_node_names_the_devices_that_pods_cannot_get(steps):
    """Through restarts of both sides. The Node keeps its conditions, so those of an unknown device stay too."""
    now: list[Health] = [HEALTHY] * 3
    known: list[Health] = list(now)
    ledger, conditions = EventLedger(), NodeConditions()

    def facts() -> Snapshot:
        functions: tuple[Function, ...] = tuple(pf(n, health) for n, health in enumerate(now))
        return Snapshot(functions=functions)

    ledger.observe(facts())
    for name, *rest in [*steps, ("deliver",)]:
        if name == "health":
            n, health = rest
            now[n] = health
            if health is not UNKNOWN:
                known[n] = health
            ledger.observe(facts())
        elif name == "deliver":
            deliver(ledger, conditions)
        elif name == "connector restarts":
            ledger.forget_received()
        else:
            # What an agent has not delivered of a device that the next one does not know is lost.
            deliver(ledger, conditions)
            ledger = EventLedger()
            ledger.observe(facts())
    standing = conditions.standing(NIC_CHECK)
    for n, health in enumerate(known):
        assert any(f"PCI:0000:1{n}:00.0 " in text for text in standing) is not health.allocatable
