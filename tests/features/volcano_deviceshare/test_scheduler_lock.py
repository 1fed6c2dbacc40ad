"""Bursts of pods by Volcano, whose lock and bind times have whole seconds, against the agent with watches that lag."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodeagent.facts.inventory import Inventory
from nodeagent.facts.model import Holding
from nodeagent.features.volcano_deviceshare import scheduler_lock
from nodeagent.features.volcano_deviceshare import volcano_annotations as notes
from nodeagent.features.volcano_deviceshare.deviceshare_node import VolcanoDeviceshare
from nodeagent.kinds.gpu_memory import GpuMemory
from nodeagent.kinds.volcano_vgpus import MEMORY, NUMBER
from nodeagent.kube.failure import ApiError
from nodeagent.kube.resource import NODES, WatchEvent
from tests.support import virtual_time
from tests.support.examples import examples
from tests.support.kind_machines import dgx, uuid_of

NODE, BEGAN, PODS_OF_A_BURST = "gpu-0", 1_900_000_000, 12
FINISH_S = 20
"""Two refusals cost at most 3 + 6 s (``RETRY_FIRST_S``, doubled, with jitter), and a round 5 s."""
Json = dict[str, Any]


class Burst:
    """The API server, Volcano's scheduler with ``NodeLockEnable``, and the kubelet: one step of each at a time.

    volcano ed72c7c8: ``LockNode``, then the choice, in whole seconds; both are sent with the Binding, which the API
    server stores at once with the node's name (``BindingREST.setPodNodeAndMetadata``).
    """

    def __init__(self) -> None:
        self.version = 1
        self.notes: dict[str, str] = {notes.HANDSHAKE: "Reported_"}
        self.pods: dict[str, Json] = {}
        self.history: dict[str, list[tuple[int, Json]]] = {"nodes": [], "pods": []}
        self.delivered = {"nodes": 0, "pods": 0}
        """The watches show the history up to this version."""
        self.gaps: set[str] = set()
        self.woken = asyncio.Event()
        self.owner = ""
        self.unbound = ""
        self.bound_at = 0
        self.answers: list[str] = []
        """The answers to the next patches; then ``ok``."""
        self.left = {"touch": 8, "gap": 2, "fault": 2}
        """How often these can still happen."""
        self.unanswered = 0
        self.wrong: list[str] = []
        self.inventory = Inventory()
        self.inventory.publish("gpus", gpus=dgx().gpus[:2])
        self.inventory.publish("pods", holdings=())
        self.changed("nodes")

    # --- the API server, as a client of the agent ---------------------------------------------------------

    def node(self) -> Json:
        return {"metadata": {"name": NODE, "resourceVersion": str(self.version), "annotations": self.notes}}

    def changed(self, plural: str, name: str = "") -> None:
        self.version += 1
        obj = self.node() if plural == "nodes" else self.pods[name]
        obj["metadata"]["resourceVersion"] = str(self.version)
        self.history[plural].append((self.version, msgspec.json.decode(msgspec.json.encode(obj))))

    async def list_each(
        self, resource: Any, take: Callable[[Any], None], _restart: object, **_selected: object
    ) -> str:
        latest = {one["metadata"]["name"]: one for _, one in self.history[resource.plural]}
        for one in latest.values():
            if resource.plural == "nodes" or one["spec"].get("nodeName"):
                take(msgspec.convert(one, resource.struct))
        self.delivered[resource.plural] = self.version
        return str(self.version)

    async def watch(
        self, resource: Any, *, resource_version: str, **_selected: object
    ) -> AsyncGenerator[WatchEvent[Any], None]:
        seen = int(resource_version)
        while True:
            if resource.plural in self.gaps:
                self.gaps.discard(resource.plural)
                raise ApiError("watch", "/", 410, "Expired", "too old")
            for version, one in list(self.history[resource.plural]):
                if seen < version <= self.delivered[resource.plural]:
                    seen = version
                    if resource.plural == "nodes" or one["spec"].get("nodeName"):
                        found = msgspec.convert(one, resource.struct)
                        yield WatchEvent("MODIFIED", found, str(version))
            self.woken.clear()
            await self.woken.wait()

    async def patch(self, resource: Any, name: str, body: Json, *, namespace: str | None = None) -> None:
        answer = self.answers.pop(0) if self.answers else "ok"
        if answer == "refused":
            self.unanswered += body["metadata"]["annotations"].get(notes.NODE_LOCK, "") is None
            raise ApiError("patch", "/", 500, "InternalError", "try again")
        changes = body["metadata"]["annotations"]
        if resource is NODES:
            if int(body["metadata"]["resourceVersion"]) != self.version_of_node():
                raise ApiError("patch", "/", 409, "Conflict", "modified")
            if changes.get(notes.NODE_LOCK, "") is None and notes.NODE_LOCK in self.notes:
                self.unanswered += answer == "lost"
                owner = self.pods.get(self.owner)
                phase = owner and owner["metadata"]["annotations"].get(notes.BIND_PHASE, notes.ALLOCATING)
                if phase == notes.ALLOCATING and self.now - self.bound_at < scheduler_lock.LOCK_GRACE_S:
                    self.wrong.append(f"the lock of {self.owner} ({phase}) was released")
        has = self.notes if resource is NODES else self.pods[name]["metadata"]["annotations"]
        for key, value in changes.items():
            if value is None:
                has.pop(key, None)
            else:
                has[key] = value
        self.changed(resource.plural, name)
        assert namespace in (None, "default")
        if answer == "lost":
            raise ApiError("patch", "/", None, "Unreachable", "no answer")

    def version_of_node(self) -> int:
        return self.history["nodes"][-1][0]

    # --- the steps ----------------------------------------------------------------------------------------

    @property
    def now(self) -> float:
        return BEGAN + asyncio.get_running_loop().time()

    def steps(self) -> dict[str, Callable[[], object]]:
        """Each step that can happen now, by name."""
        can: dict[str, Callable[[], object]] = {}
        if self.left["touch"]:
            can["the kubelet reports the Node"] = self.touch
        if notes.NODE_LOCK not in self.notes and len(self.pods) < PODS_OF_A_BURST and not self.unbound:
            can["lock"] = self.lock
        if self.unbound:
            can["bind"] = self.bind
        for plural, history in self.history.items():
            if history and history[-1][0] > self.delivered[plural]:
                can[f"deliver {plural}"] = lambda plural=plural: self.deliver(plural)
                can[f"deliver all {plural}"] = lambda plural=plural: self.deliver(plural, everything=True)
                if self.left["gap"]:
                    can[f"gap {plural}"] = lambda plural=plural: self.gap(plural)
        if waiting := self.inventory.snapshot.vgpu_waiting:
            can["admit"] = lambda: self.admit(waiting[0].pod)
        if self.left["fault"]:
            can["lose an answer"] = lambda: self.fault("lost")
            can["refuse a patch"] = lambda: self.fault("refused")
        return can

    def fault(self, answer: str) -> None:
        self.left["fault"] -= 1
        self.answers.append(answer)

    def touch(self) -> None:
        self.left["touch"] -= 1
        self.changed("nodes")

    def lock(self) -> None:
        name = f"p{len(self.pods)}"
        meta = {"name": name, "namespace": "default", "uid": f"uid-{name}", "annotations": {}}
        limits = {NUMBER: "1", MEMORY: "1"}
        container = {"name": "c", "resources": {"limits": limits}}
        self.pods[name] = {
            "metadata": meta,
            "spec": {"containers": [container]},
            "status": {"phase": "Pending"},
        }
        self.owner = self.unbound = name
        self.bound_at = int(self.now)
        self.notes[notes.NODE_LOCK] = datetime.fromtimestamp(self.bound_at, UTC).strftime(
            "%Y-%m-%dT%H:%M:%SZ"
        )
        self.changed("nodes")

    def bind(self) -> None:
        pod, self.unbound = self.pods[self.unbound], ""
        text = f"{uuid_of(1)},NVIDIA,1,0:"
        pod["metadata"]["annotations"] = {
            notes.PLACED_ON: NODE,
            notes.PLACED_AT: str(self.bound_at),
            notes.CHOSEN: text,
            notes.TO_ALLOCATE: text,
            notes.BIND_PHASE: notes.ALLOCATING,
            notes.BIND_TIME: str(self.bound_at),
        }
        pod["spec"]["nodeName"] = NODE
        self.changed("pods", pod["metadata"]["name"])

    def admit(self, name: str) -> None:
        held, granted = self.inventory.snapshot.holdings or (), self.inventory.snapshot.vgpu_granted
        self.inventory.publish("volcano", vgpu_granted=granted | {(f"uid-{name}", "c")})
        place = f"{uuid_of(1)}::vgpu{len(held)}"
        self.inventory.publish("pods", holdings=(*held, Holding("default", name, "c", NUMBER, (place,))))

    def delete(self, name: str) -> None:
        self.version += 1
        del self.pods[name]
        self.history["pods"] = [it for it in self.history["pods"] if it[1]["metadata"]["name"] != name]
        self.gap("pods")

    def deliver(self, plural: str, *, everything: bool = False) -> None:
        later = [version for version, _ in self.history[plural] if version > self.delivered[plural]]
        self.delivered[plural] = later[-1 if everything else 0]
        self.woken.set()

    def gap(self, plural: str) -> None:
        self.left["gap"] -= 1
        self.gaps.add(plural)
        self.woken.set()

    async def finish(self) -> None:
        """Each pod is bound, admitted and shown, each within a second. The agent may still wait for some seconds
        after a refusal; the grace of a lock is longer than all this."""
        self.answers.clear()
        if self.unbound:
            self.bind()
        for _ in range(FINISH_S):
            for plural in self.history:
                self.delivered[plural] = self.version
            self.woken.set()
            await asyncio.sleep(1)
            for waiting in self.inventory.snapshot.vgpu_waiting:
                self.admit(waiting.pod)


async def settle() -> None:
    """Wait until all tasks wait: only then does the virtual time advance."""
    await asyncio.sleep(0.001)


@asynccontextmanager
async def burst() -> AsyncIterator[Burst]:
    world = Burst()
    memory = GpuMemory(MEMORY, reserved_mib=512)
    client: Any = world
    share = VolcanoDeviceshare(client, world.inventory, NODE, lambda: memory, clock=lambda: world.now)
    task = asyncio.ensure_future(share.run())
    try:
        await settle()
        yield world
    finally:
        task.cancel()
        await asyncio.wait((task,))


@pytest.mark.usefixtures("virtual_time")
async def test_a_report_is_repeated_after_the_wait_of_its_refusals_and_the_lock_goes_with_it() -> None:
    """Found by a search: the report came after 5 and 15 s, when a round began."""
    async with burst() as world:
        world.answers = ["refused", "refused"]
        world.lock()
        world.bind()
        for plural in world.history:
            world.deliver(plural, everything=True)
        await settle()
        world.admit("p0")
        await asyncio.sleep(10)
        assert world.pods["p0"]["metadata"]["annotations"][notes.BIND_PHASE] == notes.SUCCESS
        world.deliver("pods", everything=True)
        await settle()
        assert notes.NODE_LOCK not in world.notes


async def drawn(draw: Callable[[Any], Any]) -> Burst:
    async with burst() as world:
        for _ in range(draw(st.integers(5, 80))):
            steps = {**world.steps(), "a second": lambda: None}
            step = draw(st.sampled_from(sorted(steps)))
            steps[step]()
            await (asyncio.sleep(1.1) if step == "a second" else settle())
        await world.finish()
    return world


@pytest.mark.slow
@given(data=st.data())
@settings(max_examples=examples(100))
def test_no_interleaving_releases_the_lock_of_another_pod_and_none_outlives_the_report(
    data: st.DataObject,
) -> None:
    world = virtual_time.run(drawn(data.draw))
    assert world.wrong == []
    assert world.unanswered or notes.NODE_LOCK not in world.notes


@pytest.mark.usefixtures("virtual_time")
async def test_a_lock_that_is_seen_after_the_report_on_its_pod_is_released() -> None:
    async with burst() as world:
        world.lock()
        world.bind()
        world.deliver("pods", everything=True)
        await settle()
        world.admit("p0")
        await settle()
        assert world.pods["p0"]["metadata"]["annotations"][notes.BIND_PHASE] == notes.SUCCESS
        assert notes.NODE_LOCK in world.notes
        await world.finish()
        assert notes.NODE_LOCK not in world.notes


@pytest.mark.usefixtures("virtual_time")
async def test_a_release_without_an_answer_costs_no_lock_of_the_same_second_and_the_grace_ends_it() -> None:
    async with burst() as world:
        world.lock()
        world.bind()
        for plural in world.history:
            world.deliver(plural, everything=True)
        await settle()
        world.admit("p0")
        await settle()
        world.answers = ["lost"]
        world.deliver("pods", everything=True)
        await settle()
        assert (world.unanswered, notes.NODE_LOCK in world.notes) == (1, False)
        world.lock()
        world.gap("nodes")
        await asyncio.sleep(10)
        assert (world.wrong, notes.NODE_LOCK in world.notes) == ([], True)
        world.unbound = ""
        await asyncio.sleep(scheduler_lock.LOCK_GRACE_S)
        assert notes.NODE_LOCK not in world.notes, "its pod never came"


@pytest.mark.usefixtures("virtual_time")
@pytest.mark.parametrize("answers", [["ok", "refused", "refused"], ["lost"], ["lost", "refused"]])
async def test_a_report_or_a_release_that_fails_for_a_moment_keeps_no_lock(answers: list[str]) -> None:
    async with burst() as world:
        world.lock()
        world.bind()
        for plural in world.history:
            world.deliver(plural, everything=True)
        await settle()
        world.answers = answers
        world.admit("p0")
        await settle()
        world.deliver("pods", everything=True)
        await asyncio.sleep(20)
        assert notes.NODE_LOCK not in world.notes


@pytest.mark.usefixtures("virtual_time")
async def test_the_lock_of_a_pod_that_is_deleted_before_its_devices_is_released() -> None:
    async with burst() as world:
        world.lock()
        world.bind()
        for plural in world.history:
            world.deliver(plural, everything=True)
        await settle()
        world.delete("p0")
        await asyncio.sleep(6)
        assert notes.NODE_LOCK not in world.notes


def test_a_lock_has_the_time_of_go_with_any_zone_and_a_text_that_is_no_time_waits_for_the_grace() -> None:
    for text in ("2026-11-24T12:00:00Z", "2026-11-24T13:00:00+01:00", "2026-11-24T06:30:00-05:30"):
        assert scheduler_lock.lock_time(text) == 1795521600.0
    assert scheduler_lock.lock_time("yesterday") is scheduler_lock.lock_time("2026-11-24T12:00:00") is None
    lock = scheduler_lock.SchedulerLock()
    lock.observe("yesterday", 100.0)
    assert not lock.is_free(100.0 + scheduler_lock.LOCK_GRACE_S, waited_for=False)
    assert lock.is_free(101.0 + scheduler_lock.LOCK_GRACE_S, waited_for=False)
    assert not lock.is_free(101.0 + scheduler_lock.LOCK_GRACE_S, waited_for=True)
