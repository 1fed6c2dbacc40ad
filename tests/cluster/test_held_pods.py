"""Pods of one name come and go on two nodes: no eviction and no Event is for another pod than the one that holds the
failed device."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec import structs

from nodeagent.base.backoff import RateLimit
from nodeagent.cluster.evictions import Causes, Evictions, failed_device_causes
from nodeagent.cluster.held_pods import HeldDevice, HeldPods
from nodeagent.facts.inventory import Inventory
from nodeagent.facts.model import Holding
from nodeagent.kube.failure import ApiError
from tests.support import virtual_time
from tests.support.cluster_node import GPU_LOST, offered, running_pod, snapshot
from tests.support.examples import examples

HERE, ELSEWHERE = "gpu-0", "gpu-1"
NAMES, DEVICES = ("worker-0", "worker-1"), ("GPU-0", "GPU-1")
AFTER_S = 20.0
BUDGET = "Cannot evict pod as it would violate the pod's disruption budget."


class Cluster:
    """Two nodes, an API server and the kubelet of one node, which learns of pods later and in order.

    The agent's facts are what its last look at podresources said. ``held`` are the devices that each pod of this node
    ever held, by UID, while they had failed: the pods that may be evicted.
    """

    def __init__(self) -> None:
        self.pods: dict[str, dict[str, Any]] = {}
        self.changes: list[tuple[str, str, str]] = []
        """Pods of this node that came and went, and that the kubelet does not know yet."""
        self.running: dict[str, tuple[str, tuple[str, ...]]] = {}
        """The name and the devices of each pod that the kubelet runs, by UID."""
        self.failed: dict[str, float] = {}
        """Since when each failed device has failed."""
        self.held: dict[str, set[str]] = {}
        self.evicted: list[str] = []
        self.between: list[str] = []
        """Steps that happen before the next requests, one before each."""
        self.made = 0
        self.kubelet_answers = True
        self.refuses = False
        """A disruption budget refuses each eviction."""
        self.inventory = Inventory()
        self.look()

    # --- steps --------------------------------------------------------------------------------------------

    def step(self, name: str) -> None:
        kind, _, rest = name.partition(" ")
        getattr(self, f"do_{kind}")(*rest.split())

    def do_make(self, name: str, node: str) -> None:
        """A controller makes a pod again, and the scheduler binds it."""
        if name not in self.pods:
            self.made += 1
            uid = f"u{self.made}"
            self.pods[name] = running_pod(name, uid, node=node)
            if node == HERE:
                self.pods[name]["status"] = {"phase": "Pending"}
                self.changes.append(("add", name, uid))

    def do_delete(self, name: str) -> None:
        """By a controller, a drain, or by force: the object is gone at once."""
        if (pod := self.pods.pop(name, None)) is not None and pod["spec"]["nodeName"] == HERE:
            self.changes.append(("remove", name, pod["metadata"]["uid"]))

    def do_again(self, name: str, node: str) -> None:
        """A controller makes the pod again at once."""
        self.do_delete(name)
        self.do_make(name, node)

    def do_kubelet(self) -> None:
        """The kubelet learns of the next change. It gives a pod devices that are not held, and have not failed: the
        first worker one, the second one all that are left."""
        if not self.changes:
            return
        change, name, uid = self.changes.pop(0)
        if change == "remove":
            self.running.pop(uid, None)
            return
        taken = {device for _, devices in self.running.values() for device in devices}
        free = [device for device in DEVICES if device not in taken and device not in self.failed]
        if free:
            self.running[uid] = name, tuple(free if name == NAMES[1] else free[:1])
            pod = self.pods.get(name)
            if pod is not None and pod["metadata"]["uid"] == uid:
                pod["status"] = {"phase": "Running", "startTime": "2026-11-28T12:00:00Z"}
        self.note()

    def do_fail(self, device: str) -> None:
        self.failed.setdefault(device, time.monotonic())
        self.note()
        self.tell()

    def do_heal(self, device: str) -> None:
        self.failed.pop(device, None)
        self.tell()

    def tell(self) -> None:
        """The facts have the health of the devices at once."""
        health = [GPU_LOST if device in self.failed else None for device in DEVICES]
        self.inventory.publish("gpus", gpus=snapshot([], health).gpus)

    def do_look(self) -> None:
        self.look()

    def do_silent(self) -> None:
        self.kubelet_answers = not self.kubelet_answers

    def do_budget(self) -> None:
        self.refuses = not self.refuses

    def note(self) -> None:
        for uid, (_, devices) in self.running.items():
            if failed := self.failed.keys() & devices:
                self.held.setdefault(uid, set()).update(failed)

    def look(self) -> None:
        """The agent reads podresources, and publishes the answer."""
        if self.kubelet_answers:
            self.inventory.publish("pods", holdings=self.holdings())

    def holdings(self) -> tuple[Holding, ...]:
        return tuple(
            Holding("default", name, "main", "x/mem", tuple(f"{device}::0" for device in devices))
            for name, devices in sorted(self.running.values())
        )

    # --- what the agent asks ------------------------------------------------------------------------------

    def happen(self) -> None:
        if self.between:
            self.step(self.between.pop(0))

    async def read_holdings(self) -> tuple[Holding, ...] | None:
        self.happen()
        return self.holdings() if self.kubelet_answers else None

    async def get(self, resource: Any, name: str, *, namespace: str) -> Any:
        self.happen()
        if name not in self.pods:
            raise ApiError("get", "/", 404, "NotFound", "")
        return msgspec.convert(self.pods[name], resource.struct)

    async def evict(self, name: str, *, namespace: str, uid: str) -> None:
        self.happen()
        if name not in self.pods:
            raise ApiError("create", "/", 404, "NotFound", "")
        if self.pods[name]["metadata"]["uid"] != uid:
            raise ApiError("create", "/", 409, "Conflict", "the UID in the precondition does not match")
        if self.refuses:
            raise ApiError("create", "/", 429, "TooManyRequests", BUDGET)
        self.evicted.append(uid)
        self.do_delete(name)

    def causes(self, facts: Any) -> Causes:
        failed = set(self.failed)
        made = snapshot([], [GPU_LOST if device in failed else None for device in DEVICES])
        facts = structs.replace(facts, gpus=made.gpus)
        now = time.monotonic()

        def failed_s(keys: Collection[str]) -> float | None:
            return next((now - self.failed[key] for key in keys if key in failed), None)

        return failed_device_causes(facts, offered(facts), failed_s, now)


STEPS = st.sampled_from(
    [
        *(
            f"{what} {name} {node}"
            for what in ("make", "again")
            for name in NAMES
            for node in (HERE, ELSEWHERE)
        ),
        *(f"delete {name}" for name in NAMES),
        *(f"{what} {device}" for what in ("fail", "heal") for device in DEVICES),
        *["kubelet"] * 4,
        *["look"] * 2,
        "silent",
        "budget",
        *["time"] * 3,
    ]
)


async def played(steps: list[str], between: list[str]) -> Cluster:
    cluster = Cluster()
    cluster.between = list(between)
    client: Any = cluster
    evictions = Evictions(
        client,
        cluster.inventory,
        cluster.causes,
        AFTER_S,
        node=HERE,
        pods=HeldPods(client, HERE, cluster.read_holdings),
        rate=RateLimit(100, 100),
    )
    task = asyncio.ensure_future(evictions.run())
    try:
        for step in steps:
            if step == "time":
                await asyncio.sleep(AFTER_S)
            else:
                cluster.step(step)
                await asyncio.sleep(0.01)
        # The world stands still, and everybody learns of it: what holds a failed device goes.
        cluster.between.clear()
        cluster.kubelet_answers, cluster.refuses = True, False
        for _ in range(3):
            while cluster.changes:
                cluster.do_kubelet()
            cluster.look()
            await asyncio.sleep(400)
    finally:
        task.cancel()
        await asyncio.wait((task,))
    return cluster


HELD = ["make worker-1 gpu-0", "kubelet", "look"]
GANG = [*HELD, "fail GPU-0"]


@pytest.mark.slow
@given(
    steps=st.lists(STEPS, max_size=40), between=st.lists(STEPS.filter(lambda it: it != "time"), max_size=12)
)
@example([*GANG, "delete worker-1", "make worker-1 gpu-1", "time"], [])
@example([*GANG, "time", "time"], ["look", "look", "delete worker-1", "make worker-1 gpu-1"])
@example([*GANG, "delete worker-1", "make worker-1 gpu-0", "kubelet", "kubelet", "time"], [])
@example([*HELD, "again worker-1 gpu-0", "fail GPU-0", "time", "time"], [])
@example([*HELD, "again worker-1 gpu-0", "fail GPU-0", "kubelet", "kubelet", "time", "time"], [])
@example([*HELD, "again worker-1 gpu-1", "fail GPU-0", "time", "time"], [])
@settings(max_examples=examples(150))
def test_only_a_pod_that_held_the_failed_device_here_is_evicted_and_each_such_pod_goes(
    steps: list[str], between: list[str]
) -> None:
    cluster = virtual_time.run(played(steps, between))
    assert [uid for uid in cluster.evicted if uid not in cluster.held] == []
    left = {uid for uid, (_, devices) in cluster.running.items() if cluster.failed.keys() & devices}
    assert left == set(), "an eviction was due"


@pytest.mark.usefixtures("virtual_time")
async def test_a_uid_counts_when_the_kubelet_has_acknowledged_the_pod_and_lists_it_after_that() -> None:
    cluster = Cluster()
    client: Any = cluster
    pods, one = HeldPods(client, HERE, cluster.read_holdings), HeldDevice("default", "worker-0", "GPU-0")
    held = {one: ("GPU-0::0",)}
    assert 1 < await pods.identify(held) < 4, "no pod of the name"
    assert pods.uids == {}
    cluster.step(f"make worker-0 {HERE}")
    await asyncio.sleep(30)
    await pods.identify(held)
    assert pods.uids == {}, "the kubelet does not know it"
    cluster.step("kubelet")
    cluster.step("silent")
    await asyncio.sleep(60)
    await pods.identify(held)
    assert pods.uids == {}, "podresources does not answer"
    cluster.step("silent")
    await asyncio.sleep(60)
    assert await pods.identify(held) > 60
    assert pods.uids == {one: "u1"}
    other = HeldDevice("default", "worker-0", "GPU-1")
    await pods.identify({other: ("GPU-1::0",)})
    assert other not in pods.uids, "it holds another device"
    pods.keep({other})
    assert pods.uids == {}


@pytest.mark.usefixtures("virtual_time")
async def test_a_pod_that_has_ended_and_one_of_another_node_hold_nothing_here() -> None:
    cluster = Cluster()
    client: Any = cluster
    pods, one = HeldPods(client, HERE, cluster.read_holdings), HeldDevice("default", "worker-0", "GPU-0")
    cluster.running["u1"] = "worker-0", ("GPU-0",)
    for pod in (
        running_pod("worker-0", "u1", node=ELSEWHERE),
        running_pod("worker-0", "u1") | {"status": {"phase": "Failed", "startTime": "2026-11-28T12:00:00Z"}},
    ):
        cluster.pods["worker-0"] = pod
        await pods.identify({one: ()})
        assert pods.uids == {}
        await asyncio.sleep(100)
