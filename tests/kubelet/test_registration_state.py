"""The registration of one resource as a state machine: alone, and with a kubelet that comes, goes and refuses."""

from __future__ import annotations

import asyncio
import gc
import shutil
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import grpc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from nodeagent.facts.model import Snapshot
from nodeagent.kubelet import counted_devices, registration, registration_state
from nodeagent.kubelet.registration_state import (
    PAUSE_MAX_S,
    STEADY_S,
    Event,
    KubeletId,
    Registration,
    Stage,
)
from tests.kubelet.test_registration import Lamps, World
from tests.support.device_plugin import Plugin, many
from tests.support.examples import examples

OLD, NEW = (1, 1, 1), (1, 2, 2)
Step = tuple[Event, KubeletId, float]
EVENTS = st.tuples(st.sampled_from(Event), st.sampled_from((OLD, NEW)), st.floats(0.0, 100.0))


def walk(steps: list[Step]) -> tuple[Registration, float]:
    state, now = Registration(), 0.0
    for event, kubelet, passed in steps:
        now += passed
        state = state.after(event, now, kubelet=kubelet, reason="a reason")
    return state, now


@given(st.lists(EVENTS, max_size=30))
def test_a_resource_that_is_not_registered_has_a_reason_and_a_bounded_pause(steps: list[Step]) -> None:
    state, now = walk(steps)
    assert state.registered == (not state.reason)
    assert state.not_before - now <= PAUSE_MAX_S + 1e-9
    assert 0.0 <= state.settle_s <= PAUSE_MAX_S
    assert 0.0 <= state.retry_s <= PAUSE_MAX_S


@given(st.lists(EVENTS, max_size=30))
def test_a_new_kubelet_is_asked_at_once(steps: list[Step]) -> None:
    state, now = walk(steps)
    assert state.due((9, 9, 9), now)


@given(st.lists(EVENTS, max_size=30), st.floats(0.0, STEADY_S - 1))
def test_after_a_loss_the_same_kubelet_gets_time_to_see_the_end_of_the_stream(
    steps: list[Step], lasted: float
) -> None:
    state, now = walk(steps)
    state = state.after(Event.ACCEPTED, now, kubelet=OLD)
    assert not state.due(OLD, now)
    before = state.settle_s
    closing = state.after(Event.LOST, now + lasted, reason="lost")
    assert closing.stage is Stage.CLOSING
    closed_at = now + lasted + 1
    settling = closing.after(Event.CLOSED, closed_at)
    assert settling.stage is Stage.SETTLING
    assert settling.settle_s >= max(before, registration_state.REGISTRATION_SETTLE_S)
    assert not settling.due(OLD, closed_at)
    assert settling.due(OLD, closed_at + settling.settle_s + 1e-6)
    assert settling.due(NEW, closed_at)


def test_pauses_grow_with_one_kubelet_and_start_over_with_the_next() -> None:
    state = Registration()
    pauses = []
    for now in range(7):
        state = state.after(Event.FAILED, float(now), kubelet=OLD, reason="no")
        pauses.append(state.retry_s)
    assert pauses == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
    assert state.after(Event.FAILED, 7.0, kubelet=NEW, reason="no").retry_s == 1.0
    assert state.after(Event.ACCEPTED, 7.0, kubelet=OLD).retry_s == 0.0


def test_a_registration_that_lasted_is_renewed_soon() -> None:
    state, settled = Registration(), []
    for at, lasted in ((0.0, 1.0), (10.0, 1.0), (20.0, STEADY_S), (100.0, 1.0)):
        state = state.after(Event.ACCEPTED, at, kubelet=OLD).after(Event.LOST, at + lasted, reason="lost")
        settled.append(round(state.settle_s, 3))
        state = state.after(Event.CLOSED, at + lasted)
    assert settled == [0.1, 0.2, 0.1, 0.2]


# --- with a kubelet -----------------------------------------------------------------------------------------

A, B = "example.com/a", "example.com/b"


class KubeletLife(RuleBasedStateMachine):
    """After each change to kubelet, sockets and folder, every resource is registered if the kubelet allows it."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        # The path of a socket has at most 107 characters.
        self.folder = TemporaryDirectory(prefix="na-")
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(registration_state, "REGISTRATION_RETRY_FIRST_S", 0.02)
        self.patch.setattr(registration_state, "PAUSE_MAX_S", 0.1)
        self.patch.setattr(registration, "REFUSES_S", 0.02)
        self.patch.setattr(registration, "COUNTED_S", 0.0)
        self.patch.setattr(counted_devices, "OWN_IDS_S", 0.1)
        self.rival: Plugin | None = None
        """Another plugin of the name B."""
        self.offered = {A, B}
        self.refuses = False
        self.reachable = False

    @initialize()
    def begin(self) -> None:
        self.runner.run(self.start_agent())

    async def start_agent(self) -> None:
        self.world = World(Path(self.folder.name))
        self.kubelet = self.world.kubelet
        self.update()
        self.world.run()
        self.watching = asyncio.create_task(
            counted_devices.watch_counts(
                self.kubelet.podresources_socket, self.world.plugins, look_s=0.03, again_s=0.03
            )
        )

    def update(self) -> None:
        self.world.plugins.update([Lamps(name) for name in sorted(self.offered)], Snapshot())

    # What happens to the kubelet.

    @precondition(lambda self: not self.kubelet.running)
    @rule(delay=st.sampled_from((0.0, 0.03)))
    def kubelet_starts(self, delay: float) -> None:
        self.runner.run(self.kubelet.start(listen_delay_s=delay))
        self.reachable = True

    @precondition(lambda self: self.kubelet.running)
    @rule(delay=st.sampled_from((0.0, 0.03)))
    def kubelet_restarts(self, delay: float) -> None:
        self.runner.run(self.kubelet.restart(listen_delay_s=delay))
        self.reachable = True

    @precondition(lambda self: self.kubelet.running)
    @rule(kill=st.booleans())
    def kubelet_ends(self, kill: bool) -> None:
        self.runner.run(self.kubelet.kill() if kill else self.kubelet.stop())
        self.reachable = False

    @rule()
    def kubelet_refuses_or_accepts(self) -> None:
        self.refuses = not self.refuses
        self.kubelet.refuse("the resource name is taken" if self.refuses else None)

    @precondition(lambda self: self.kubelet.running)
    @rule()
    def socket_of_the_kubelet_is_removed(self) -> None:
        self.kubelet.socket.unlink(missing_ok=True)
        self.reachable = False

    @precondition(lambda self: not self.kubelet.running)
    @rule()
    def folder_is_removed(self) -> None:
        shutil.rmtree(self.sockets, ignore_errors=True)

    # What another plugin does.

    @precondition(
        lambda self: self.kubelet.running and self.reachable and not self.refuses and not self.rival
    )
    @rule()
    def another_plugin_registers(self) -> None:
        self.runner.run(self.rival_registers())

    async def rival_registers(self) -> None:
        self.rival = await Plugin(self.sockets / "rival.sock", B, many("rival", 3)).start()
        await self.rival.register(self.kubelet.socket)
        await self.rival.until(lambda: self.rival.streams > 0)

    @precondition(lambda self: self.rival)
    @rule()
    def another_plugin_ends(self) -> None:
        self.runner.run(self.rival_ends())

    async def rival_ends(self) -> None:
        rival, self.rival = self.rival, None
        if rival is not None:
            await rival.stop()

    # What happens to the agent.

    @property
    def sockets(self) -> Path:
        return self.kubelet.socket.parent

    @rule()
    def our_sockets_are_removed(self) -> None:
        for path in self.sockets.glob("nodeagent-*.sock"):
            path.unlink()

    @rule()
    def resource_comes_or_goes(self) -> None:
        self.offered ^= {B}
        self.update()

    # What must come of it.

    @invariant()
    def every_resource_is_registered_if_the_kubelet_allows_it(self) -> None:
        if not self.reachable:
            self.runner.run(self.until(self.nothing_is_registered))
        elif not self.refuses:
            self.runner.run(self.until(self.everything_is_offered))

    @invariant()
    def nothing_is_sent_twice_and_every_dial_is_answered(self) -> None:
        assert not any(update.repeated for update in self.kubelet.updates)
        errors = [entry.error for entry in self.kubelet.registrations if entry.error is not None]
        assert not [error for error in errors if "failed to dial" in error]

    def nothing_is_registered(self) -> bool:
        statuses = self.world.plugins.statuses()
        return all(status.reason and not status.registered for status in statuses)

    def everything_is_offered(self) -> bool:
        statuses = {status.resource: status.registered for status in self.world.plugins.statuses()}
        allocatable = self.kubelet.allocatable()
        withdrawn = {A, B} - self.offered
        if self.rival and self.rival.streams:
            return self.contested(statuses, allocatable)
        return (
            statuses == dict.fromkeys(self.offered, True)
            and len(list(self.sockets.glob("nodeagent-*.sock"))) == len(self.offered)
            and all(allocatable.get(name) == 2 for name in self.offered)
            and not any(allocatable.get(name) for name in withdrawn)
        )

    def contested(self, statuses: dict[str, bool], allocatable: dict[str, int]) -> bool:
        """Either we have registered B last, or the kubelet counts the other plugin's devices and we know it."""
        if B not in self.offered:
            return statuses == {A: True} and allocatable.get(B) in (0, 3)
        return statuses[A] and allocatable.get(B) == (2 if statuses[B] else 3)

    async def until(self, holds: Callable[[], bool]) -> None:
        assert self.world.task is not None
        try:
            async with asyncio.timeout(10):
                while not holds():
                    assert not self.world.task.done()
                    await asyncio.sleep(0.005)
        except TimeoutError:
            raise AssertionError(f"{holds.__name__}: {self.world.plugins.statuses()}") from None

    def teardown(self) -> None:
        self.runner.run(self.rival_ends())
        self.watching.cancel()
        self.runner.run(self.world.end())
        self.runner.run(self.kubelet.stop())
        del self.world, self.kubelet
        self.runner.run(collect_servers())
        self.runner.close()
        self.patch.undo()
        self.folder.cleanup()


async def collect_servers() -> None:
    """Free the gRPC servers while their loop is open: the finalizer of a server schedules its shutdown there."""
    gc.collect()
    await asyncio.sleep(0.01)


grpc.aio.init_grpc_aio()
"""Keeps the poller thread of grpc.aio. Without this reference the last object that the garbage collector frees joins
that thread, which waits for streams of loops that the state machines have closed."""


LIFE = settings(
    max_examples=examples(8), stateful_step_count=12, deadline=None, suppress_health_check=list(HealthCheck)
)
TestKubeletLife = KubeletLife.TestCase
TestKubeletLife.settings = LIFE
