"""Volcano's deviceshare on one node: a stand-in scheduler places pods, the agent follows, and the kubelet asks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kubernetes.utils.quantity import parse_quantity
from msgspec.structs import replace

from nodeagent.facts.inventory import Inventory
from nodeagent.facts.model import Holding, VgpuGrant
from nodeagent.features.volcano_deviceshare import scheduler_lock
from nodeagent.features.volcano_deviceshare import volcano_annotations as notes
from nodeagent.features.volcano_deviceshare.deviceshare_node import VolcanoDeviceshare
from nodeagent.kinds import Refused
from nodeagent.kinds.gpu_memory import GpuMemory
from nodeagent.kinds.volcano_vgpus import MEMORY, NUMBER, VgpuParts, VgpuPlaces, next_waiting
from nodeagent.kube.access import Access
from nodeagent.kube.client import ApiClient
from nodeagent_lab.sim.apiserver import ApiServer
from nodeagent_lab.sim.apiserver.resource_slices import canonical
from tests.support.kind_machines import SICK, dgx, gpu_of, uuid_of
from tests.support.volcano_scheduler import Scheduler, Unschedulable
from tests.support.waiting import until

pytestmark = pytest.mark.usefixtures("virtual_time")

NODE = "gpu-0"
SLICES = GpuMemory(MEMORY, reserved_mib=512)
PLACES, PARTS = VgpuPlaces(SLICES), VgpuParts(SLICES, "memory")


class Stage:
    """A Node, its agent's half, and the kubelet's view of the devices."""

    def __init__(self, server: ApiServer, client: ApiClient, memory: GpuMemory = SLICES) -> None:
        self.server, self.scheduler = server, Scheduler(server)
        self.inventory, self.places = Inventory(), VgpuPlaces(memory)
        self.inventory.publish("gpus", gpus=dgx().gpus[:2])
        self.inventory.publish("pods", holdings=())
        self.share = VolcanoDeviceshare(
            client, self.inventory, NODE, lambda: memory, clock=lambda: self.scheduler.now
        )
        server.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})

    def pod(
        self,
        name: str,
        *limits: dict[str, int | str],
        notes: dict[str, str] | None = None,
        node: str = "",
        uid: str = "",
    ) -> None:
        containers = [
            {
                "name": f"c{n}",
                "resources": {
                    "limits": {f"volcano.sh/vgpu-{key}": canonical(str(it)) for key, it in one.items()}
                },
            }
            for n, one in enumerate(limits)
        ]
        meta = {"name": name, "namespace": "default", "uid": uid or f"uid-{name}", "annotations": notes or {}}
        spec = {"containers": containers} | ({"nodeName": node} if node else {})
        self.server.put(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": meta,
                "spec": spec,
                "status": {"phase": "Pending"},
            }
        )

    def notes(self, plural: str, name: str) -> dict[str, str]:
        found = self.server.find(plural, name, "default" if plural == "pods" else None)
        assert found is not None
        return dict(found["metadata"].get("annotations") or {})

    async def until(self, true: Callable[[], object]) -> None:
        await self.server.until(true)

    async def locked(self) -> None:
        """Wait until the agent has seen a lock of its Node."""
        await until(lambda: self.inventory.snapshot.vgpu_locked)

    async def waiting(self, *names: str) -> None:
        await until(lambda: [it.pod for it in self.inventory.snapshot.vgpu_waiting] == list(names))

    def admit(self, name: str, container: str, count: int = 1) -> list[str]:
        """The kubelet asks for a preference, allocates what it gets, and lists the pod."""
        snapshot = self.inventory.snapshot
        held = {id_ for it in snapshot.holdings or () for id_ in it.device_ids}
        free = [id_ for it in self.places.devices(snapshot) for id_ in it.ids if id_ not in held]
        chosen = self.places.prefer(snapshot, free, [], count)
        self.allocation = self.places.allocate(snapshot, chosen)
        key = next_waiting(snapshot, count).key
        self.inventory.publish("volcano", vgpu_granted=snapshot.vgpu_granted | {key})
        holding = Holding("default", name, container, NUMBER, tuple(chosen))
        self.inventory.publish("pods", holdings=(*(snapshot.holdings or ()), holding))
        return [id_.partition("::")[0] for id_ in chosen]

    async def registered(self) -> None:
        await self.until(lambda: notes.REGISTER in self.notes("nodes", NODE))


@asynccontextmanager
async def stage(
    memory: GpuMemory = SLICES, before: Callable[[Stage], object] = lambda _: None
) -> AsyncIterator[Stage]:
    """``before`` is called before the agent starts."""
    server = await ApiServer().start()
    client = ApiClient(Access(server.url, token=server.token("agent")))
    task = None
    try:
        async with asyncio.timeout(60):
            one = Stage(server, client, memory)
            before(one)
            task = asyncio.ensure_future(one.share.run())
            await one.registered()
            yield one
    finally:
        if task is not None:
            task.cancel()
            await asyncio.wait((task,))
        await client.close()
        await server.stop()


@pytest.mark.parametrize("patches", [False, True])
async def test_the_scheduler_chooses_the_gpu_the_agent_honors_it_reports_and_releases_the_lock(
    patches: bool,
) -> None:
    async with stage() as s:
        s.scheduler.patches = patches
        s.pod("a", {"number": 1, "memory": 40, "cores": 30})
        s.scheduler.bind("a", NODE)
        assert "hamivgpu" in s.notes("nodes", NODE)
        await s.waiting("a")
        await s.locked()
        assert s.admit("a", "c0") == [uuid_of(1)], "the scheduler takes the last GPU first"
        env = dict(s.allocation.env)
        assert (env["NODEAGENT_GPU_UUID"], env["NODEAGENT_GPU_MEM_MIB"]) == (uuid_of(1), str(40 * 1024))
        await s.until(lambda: s.notes("pods", "a")["volcano.sh/bind-phase"] == "success")
        assert s.notes("pods", "a")["volcano.sh/vgpu-time"] == str(2**64 - 1)
        await s.until(lambda: "hamivgpu" not in s.notes("nodes", NODE))
        assert PARTS.free(s.inventory.snapshot) == {uuid_of(0): 79, uuid_of(1): 39}

        s.pod("b", {"number": 1, "memory": 40})
        s.scheduler.bind("b", NODE)
        await s.waiting("b")
        assert s.admit("b", "c0") == [uuid_of(0)], "by card: 39 are left on the other"


async def test_the_containers_of_a_pod_get_their_gpus_in_order_and_several_at_once() -> None:
    async with stage() as s:
        s.pod("a", {"number": 1, "memory": 60}, {}, {"number": 1, "memory": 30}, {"number": 2, "memory": 19})
        s.scheduler.bind("a", NODE)
        await s.waiting("a", "a", "a")
        with pytest.raises(Refused, match="waits for 2 GPUs"):
            s.admit("a", "c3", 2)
        assert s.admit("a", "c0") == [uuid_of(1)]
        assert s.admit("a", "c2") == [uuid_of(0)]
        assert s.notes("pods", "a")["volcano.sh/bind-phase"] == "allocating"
        assert sorted(s.admit("a", "c3", 2)) == sorted((uuid_of(0), uuid_of(1)))
        assert [(it.container, it.uuid, it.slices) for it in s.inventory.snapshot.vgpu_shares] == [
            ("c2", uuid_of(0), 30),
            ("c3", uuid_of(0), 19),
            ("c0", uuid_of(1), 60),
            ("c3", uuid_of(1), 19),
        ]
        await s.until(lambda: s.notes("pods", "a")["volcano.sh/bind-phase"] == "success")


@pytest.mark.parametrize(("asked", "stored"), [(8000, "8k"), (40_000, "40k"), (8192, "8192"), ("8Ki", "8Ki")])
async def test_a_limit_is_read_in_the_form_in_which_the_api_server_stores_it(
    asked: int | str, stored: str
) -> None:
    async with stage(replace(SLICES, slice_mib=1)) as s:
        s.pod("a", {"number": 1, "memory": asked, "cores": 100})
        found = s.server.find("pods", "a", "default")
        assert found is not None
        assert found["spec"]["containers"][0]["resources"]["limits"][MEMORY] == stored
        s.scheduler.bind("a", NODE)
        await s.waiting("a")
        assert s.admit("a", "c0") == [uuid_of(1)]
        assert dict(s.allocation.env)["NODEAGENT_GPU_MEM_MIB"] == str(int(parse_quantity(asked)))


async def test_a_limit_with_a_fraction_is_refused_with_its_text() -> None:
    async with stage() as s:
        s.pod("a", {"number": 1, "memory": "8500m"}, notes=forged(), node=NODE)
        await s.waiting("a")
        with pytest.raises(Refused, match=r"the limit volcano\.sh/vgpu-memory: 8500m is no whole number"):
            s.admit("a", "c0")


@pytest.mark.parametrize(
    ("limits", "slices"),
    [
        ({"memory-percentage": 50}, 39),
        ({"memory": 8, "memory-percentage": 50}, 39),
        ({"memory": 8, "memory-percentage": 101}, 8),
        ({"memory-percentage": 101}, 79),
        ({}, 79),
    ],
)
async def test_a_percentage_of_each_gpu_counts_before_an_amount(
    limits: dict[str, int | str], slices: int
) -> None:
    async with stage() as s:
        s.pod("a", {"number": 1, **limits})
        s.scheduler.bind("a", NODE)
        await s.waiting("a")
        s.admit("a", "c0")
        assert dict(s.allocation.env)["NODEAGENT_GPU_MEM_MIB"] == str(slices * 1024)
        found = s.server.find("pods", "a", "default")
        assert found is not None
        s.server.put(found | {"metadata": found["metadata"] | {"annotations": {}}})
        await until(lambda: {it.slices for it in s.inventory.snapshot.vgpu_shares} == {slices})


async def test_a_percentage_is_of_each_gpu_where_they_differ() -> None:
    async with stage() as s:
        small = replace(gpu_of(0), memory_mib=gpu_of(0).memory_mib // 2)
        s.inventory.publish("gpus", gpus=(small, gpu_of(1)))
        await s.until(lambda: ",39," in s.notes("nodes", NODE)[notes.REGISTER])
        s.pod("a", {"number": 2, "memory-percentage": 50})
        s.scheduler.bind("a", NODE)
        await s.waiting("a")
        (waiting,) = s.inventory.snapshot.vgpu_waiting
        assert (waiting.fault, [it.slices for it in waiting.gpus]) == ("", [39, 19])


async def test_two_pods_that_wait_with_different_gpus_are_refused_rather_than_swapped() -> None:
    async with stage() as s:
        s.scheduler.locks = False
        for name in "ab":
            s.pod(name, {"number": 1, "memory": 60})
            s.scheduler.bind(name, NODE)
        await s.waiting("a", "b")
        with pytest.raises(Refused, match=r"default/a, default/b; is deviceshare\.NodeLockEnable true\?"):
            s.admit("a", "c0")


@pytest.mark.parametrize("phase", [None, notes.SUCCESS])
async def test_a_pod_without_a_choice_takes_neither_gpu_nor_share_of_one_that_volcano_placed(
    phase: str | None,
) -> None:
    async with stage() as s:
        s.pod("a", {"number": 1, "memory": 60})
        s.scheduler.bind("a", NODE)
        own = {} if phase is None else {notes.BIND_PHASE: phase}
        s.pod("thief", {"number": 1, "memory": 8}, notes=own, node=NODE)
        await until(lambda: len(s.inventory.snapshot.vgpu_waiting) == 2)
        with pytest.raises(
            Refused, match=r"default/thief: no GPU was chosen.*: default/a, default/thief"
        ) as both:
            s.admit("thief", "c0")
        assert both.value.later, "the end of the other pod may be on its way"
        found = s.server.find("pods", "thief", "default")
        assert found is not None
        s.server.put(found | {"status": {"phase": "Failed"}})
        await s.waiting("a")
        assert s.admit("a", "c0") == [uuid_of(1)]


async def test_an_init_container_that_asks_is_a_pod_without_a_choice() -> None:
    async with stage() as s:
        s.pod("thief", {}, node=NODE)
        found = s.server.find("pods", "thief", "default")
        assert found is not None
        found["spec"]["initContainers"] = [{"name": "i", "resources": {"limits": {NUMBER: "1"}}}]
        s.server.put(found)
        await s.waiting("thief")
        assert [it.container for it in s.inventory.snapshot.vgpu_waiting] == ["i"]


async def test_the_next_pod_of_a_name_waits_for_gpus_of_its_own() -> None:
    """Volcano starts a job again under the same names; the holdings are up to half a minute old."""
    async with stage() as s:
        s.pod("a", {"number": 1, "memory": 8})
        s.scheduler.bind("a", NODE)
        await s.waiting("a")
        s.admit("a", "c0")
        await s.until(lambda: s.notes("pods", "a").get(notes.BIND_PHASE) == notes.SUCCESS)
        s.server.remove("pods", "a", "default")
        await until(lambda: not s.inventory.snapshot.vgpu_shares)
        await s.until(lambda: notes.NODE_LOCK not in s.notes("nodes", NODE))
        s.pod("a", {"number": 1, "memory": 8}, uid="of-the-next")
        s.scheduler.bind("a", NODE)
        await s.waiting("a")
        await asyncio.sleep(1)
        assert s.notes("pods", "a")[notes.BIND_PHASE] == notes.ALLOCATING, "it has no GPU yet"
        s.admit("a", "c0")
        await s.until(lambda: s.notes("pods", "a")[notes.BIND_PHASE] == notes.SUCCESS)


@pytest.mark.parametrize(("limits", "free"), [({"number": 1, "memory": 8}, 71), ({"number": 1}, 0)])
async def test_what_a_pod_without_a_choice_holds_is_counted(limits: dict[str, int | str], free: int) -> None:
    """It has them from an earlier agent: this one refuses such a pod."""
    async with stage(before=lambda s: s.pod("thief", limits, node=NODE)) as s:
        place = s.places.devices(s.inventory.snapshot)[1].ids[0]
        s.inventory.publish("pods", holdings=(Holding("default", "thief", "c0", NUMBER, (place,)),))
        await until(lambda: s.inventory.snapshot.vgpu_shares)
        assert PARTS.free(s.inventory.snapshot) == {uuid_of(0): 79, uuid_of(1): free}
        assert s.inventory.snapshot.vgpu_waiting == ()
        s.pod("a", {"number": 1, "memory": 75})
        s.scheduler.bind("a", NODE)
        await s.waiting("a")
        with pytest.raises(Refused, match=rf"would have {79 - free + 75} of its 79 slices"):
            s.admit("a", "c0")


async def test_the_lock_of_the_next_pod_stays_though_it_is_of_the_same_second() -> None:
    """The scheduler locks before it annotates, and lock and bind times have whole seconds."""
    async with stage() as s:
        s.pod("a", {"number": 1, "memory": 8})
        s.scheduler.bind("a", NODE)
        await s.waiting("a")
        await s.locked()
        s.admit("a", "c0")
        await s.until(lambda: notes.NODE_LOCK not in s.notes("nodes", NODE))
        s.scheduler.lock(NODE)
        s.scheduler.annotate("nodes", NODE, None, **{notes.REGISTER: "x"})
        await s.until(lambda: s.notes("nodes", NODE)[notes.REGISTER] != "x")
        assert notes.NODE_LOCK in s.notes("nodes", NODE), "the next pod has it, and no annotation yet"
        s.inventory.publish("gpus", gpus=(gpu_of(0), replace(gpu_of(1), health=SICK)))
        await s.until(lambda: "false" in s.notes("nodes", NODE)[notes.REGISTER])
        assert notes.NODE_LOCK in s.notes("nodes", NODE)


@pytest.mark.usefixtures("virtual_time")
async def test_a_refused_report_delays_no_other_and_is_tried_again() -> None:
    async with stage() as s:
        s.scheduler.locks = False
        s.server.fail("deny", verb="patch", resource="pods", name="a", times=1)
        for name in "ab":
            s.pod(name, {"number": 1, "memory": 8})
            s.scheduler.bind(name, NODE)
            await s.waiting(name)
            s.admit(name, "c0")
            await s.waiting()
        await s.until(lambda: s.notes("pods", "b")[notes.BIND_PHASE] == notes.SUCCESS)
        assert s.notes("pods", "a")[notes.BIND_PHASE] == notes.ALLOCATING
        await s.until(lambda: s.notes("pods", "a")[notes.BIND_PHASE] == notes.SUCCESS)


async def test_a_report_leaves_a_lock_that_is_newer_than_its_pod() -> None:
    async with stage() as s:
        s.pod("a", {"number": 1, "memory": 8})
        s.scheduler.bind("a", NODE)
        await s.waiting("a")
        s.scheduler.annotate("nodes", NODE, None, **{notes.NODE_LOCK: None})
        s.scheduler.now += 5
        s.scheduler.lock(NODE)
        await s.until(lambda: notes.NODE_LOCK in s.notes("nodes", NODE))
        s.admit("a", "c0")
        await s.until(lambda: s.notes("pods", "a")["volcano.sh/bind-phase"] == "success")
        s.scheduler.annotate("nodes", NODE, None, **{notes.REGISTER: "x"})
        await s.until(lambda: s.notes("nodes", NODE)[notes.REGISTER] != "x")
        assert notes.NODE_LOCK in s.notes("nodes", NODE)


async def test_where_volcano_locks_the_node_the_refusal_blames_no_setting() -> None:
    async with stage() as s:
        for name in "ab":
            s.pod(name, {"number": 1, "memory": 60})
            s.scheduler.annotate("nodes", NODE, None, **{notes.NODE_LOCK: None})
            s.scheduler.bind(name, NODE)
        await s.waiting("a", "b")
        await s.locked()
        with pytest.raises(Refused, match=r"default/a, default/b$"):
            s.admit("a", "c0")


def _just_started(stage: Stage) -> None:
    """The kubelet lists no holdings, and has not done so for long enough to be believed."""
    stage.inventory.publish("pods", holdings=None)


async def test_a_pod_that_was_bound_after_the_start_waits_though_the_holdings_are_not_known_yet() -> None:
    async with stage(before=_just_started) as s:
        s.pod("a", {"number": 1, "memory": 40})
        s.scheduler.bind("a", NODE)
        await s.waiting("a")
        s.server.drop("pods")
        s.pod("b", {"number": 2}, node=NODE)
        s.server.expire()  # so the agent lists again
        await s.waiting("b", "a")
        s.server.remove("pods", "b", "default")
        await s.waiting("a")
        assert s.admit("a", "c0") == [uuid_of(1)]


async def test_while_the_holdings_are_unknown_a_pod_of_before_the_start_may_have_its_gpus() -> None:
    def left(s: Stage) -> None:
        _just_started(s)
        s.pod("old", {"number": 1, "memory": 40}, notes=forged(), node=NODE)

    async with stage(before=left) as s:
        s.scheduler.annotate("nodes", NODE, None, hamivgpu=None)
        s.pod("new", {"number": 1, "memory": 30})
        s.scheduler.bind("new", NODE)
        await until(lambda: "new" in {it.pod for it in s.inventory.snapshot.vgpu_shares})
        assert s.inventory.snapshot.vgpu_waiting == ()
        with pytest.raises(Refused, match="the kubelet has not listed yet what pods hold") as refused:
            next_waiting(s.inventory.snapshot, 1)
        assert refused.value.later
        s.inventory.publish("pods", holdings=())
        await s.waiting("new", "old")


async def test_a_pod_that_has_ended_before_the_start_holds_nothing_unknown() -> None:
    def left(s: Stage) -> None:
        _just_started(s)
        s.pod("old", {"number": 1, "memory": 40}, node=NODE)
        ended = s.server.find("pods", "old", "default")
        assert ended is not None
        s.server.put(ended | {"status": {"phase": "Failed"}})

    async with stage(before=left) as s:
        s.pod("new", {"number": 1, "memory": 30})
        s.scheduler.bind("new", NODE)
        await s.waiting("new")


async def test_equal_choices_of_two_pods_are_no_guess() -> None:
    async with stage() as s:
        s.scheduler.locks = False
        for name in "ab":
            s.pod(name, {"number": 1, "memory": 30})
            s.scheduler.bind(name, NODE)
        await s.waiting("a", "b")
        assert s.admit("a", "c0") == s.admit("b", "c0") == [uuid_of(1)]


async def test_a_lock_that_a_scheduler_left_behind_is_released_and_one_in_use_is_not() -> None:
    async with stage() as s:
        s.pod("a", {"number": 1, "memory": 8})
        s.scheduler.bind("a", NODE, crash=True)
        await s.locked()
        s.pod("b", {"number": 1, "memory": 8})
        with pytest.raises(Unschedulable, match="locked within 5 minutes"):
            s.scheduler.bind("b", NODE)
        s.scheduler.now += scheduler_lock.LOCK_GRACE_S + 1
        s.inventory.publish(
            "gpus", gpus=(gpu_of(0), replace(gpu_of(1), health=SICK))
        )  # any change ends the pause
        await s.until(lambda: "hamivgpu" not in s.notes("nodes", NODE))
        s.scheduler.bind("b", NODE)
        await s.waiting("b")
        s.scheduler.now += 60
        s.inventory.publish("gpus", gpus=(gpu_of(0), gpu_of(1)))
        await s.until(lambda: s.notes("nodes", NODE)[notes.REGISTER].count("true") == 2)
        assert "hamivgpu" in s.notes("nodes", NODE), "a pod waits"


async def test_an_unhealthy_gpu_has_no_places_for_a_scheduler_that_ignores_the_health() -> None:
    async with stage() as s:
        s.inventory.publish("gpus", gpus=(gpu_of(0), replace(gpu_of(1), health=SICK)))
        await s.until(lambda: "false" in s.notes("nodes", NODE)[notes.REGISTER])
        s.pod("a", {"number": 1, "memory": 8})
        s.scheduler.bind("a", NODE)
        await s.waiting("a")
        assert s.admit("a", "c0") == [uuid_of(0)]


async def test_a_changed_registration_is_repaired_and_a_scheduler_that_asks_gets_an_answer() -> None:
    async with stage() as s:
        good = s.notes("nodes", NODE)[notes.REGISTER]
        s.scheduler.annotate("nodes", NODE, None, **{notes.REGISTER: "x", notes.HANDSHAKE: "Requesting_2026"})
        await s.until(lambda: s.notes("nodes", NODE)[notes.REGISTER] == good)
        assert s.notes("nodes", NODE)[notes.HANDSHAKE].startswith("Reported_")


async def test_a_pod_that_ends_before_its_devices_is_reported_as_failed() -> None:
    async with stage() as s:
        s.pod("a", {"number": 1, "memory": 8})
        s.scheduler.bind("a", NODE)
        await s.waiting("a")
        await s.locked()
        found = s.server.find("pods", "a", "default")
        assert found is not None
        s.server.put(found | {"status": {"phase": "Failed"}})
        await s.until(lambda: s.notes("pods", "a")["volcano.sh/bind-phase"] == "failed")
        await s.until(lambda: "hamivgpu" not in s.notes("nodes", NODE))
        assert s.inventory.snapshot.vgpu_waiting == ()


def forged(**changes: str | None) -> dict[str, str]:
    """Annotations of a pod that its author wrote, as the scheduler writes them, with changes."""
    now = str(int(time.time()))
    text = f"{uuid_of(1)},NVIDIA,8,0:"
    good: dict[str, str | None] = {
        notes.PLACED_ON: NODE,
        notes.PLACED_AT: now,
        notes.CHOSEN: text,
        notes.TO_ALLOCATE: text,
        notes.BIND_PHASE: "allocating",
        notes.BIND_TIME: now,
    }
    return {key: value for key, value in (good | changes).items() if value is not None}


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({notes.PLACED_ON: "gpu-1"}, "names another node"),
        ({notes.BIND_TIME: None}, "is no time"),
        ({notes.PLACED_AT: "yesterday"}, "is no time"),
        ({notes.BIND_TIME: "1600000000"}, "is not of the last 300 s"),
        ({notes.BIND_TIME: "9999999999"}, "is not of the last 300 s"),
        ({notes.TO_ALLOCATE: "nonsense"}, "has another form"),
        ({notes.TO_ALLOCATE: f"{uuid_of(1)},NVIDIA,8,0:;{uuid_of(0)},NVIDIA,8,0:"}, "has another form"),
        ({notes.TO_ALLOCATE: f"{uuid_of(1)},NVIDIA,79,0:"}, "has 79 of volcano.sh/vgpu-memory"),
        ({notes.TO_ALLOCATE: f"{uuid_of(1)},NVIDIA,8,50:"}, "has 50 of volcano.sh/vgpu-cores"),
        ({notes.TO_ALLOCATE: f"{uuid_of(7)},NVIDIA,8,0:"}, "is no GPU"),
        ({notes.TO_ALLOCATE: f"{uuid_of(1)},NVIDIA,8,0:{uuid_of(0)},NVIDIA,8,0:"}, "has 2 GPUs"),
        ({notes.TO_ALLOCATE: "x" * 70_000}, "has another form"),
    ],
)
async def test_forged_and_stale_annotations_are_refused_with_the_reason(
    changes: dict[str, str | None], why: str
) -> None:
    async with stage() as s:
        s.pod("a", {"number": 1, "memory": 8}, notes=forged(**changes), node=NODE)
        await s.waiting("a")
        with pytest.raises(Refused, match=why):
            s.admit("a", "c0")
        assert not s.inventory.snapshot.holdings


async def test_a_forged_choice_takes_no_memory_of_another_pod() -> None:
    async with stage() as s:
        s.pod("a", {"number": 1, "memory": 75})
        s.scheduler.bind("a", NODE)
        await s.waiting("a")
        s.admit("a", "c0")
        s.pod("b", {"number": 1, "memory": 8}, notes=forged(), node=NODE)
        await s.waiting("b")
        with pytest.raises(Refused, match=f"the pods of {uuid_of(1)} would have 83 of its 79 slices"):
            s.admit("b", "c0")


async def test_a_running_pod_with_forged_annotations_closes_the_node_to_no_other_pod() -> None:
    """The kubelet has admitted it, so it does not ask; and its author may write annotations at any time."""
    async with stage() as s:
        for phase in (notes.FAILED, "Running"):
            s.pod(
                phase.lower(),
                {"number": 1, "memory": 8},
                notes=forged(**{notes.BIND_TIME: "9" * 12}),
                node=NODE,
            )
            found = s.server.find("pods", phase.lower(), "default")
            assert found is not None
            s.server.put(found | {"status": {"phase": phase.capitalize()}})
        s.pod("a", {"number": 1, "memory": 8})
        s.scheduler.bind("a", NODE)
        await s.waiting("a")
        await s.locked()
        assert s.admit("a", "c0") == [uuid_of(1)]
        await s.until(lambda: "hamivgpu" not in s.notes("nodes", NODE))


async def test_a_container_that_asks_for_memory_alone_takes_no_choice_of_another() -> None:
    """The scheduler chooses a GPU for it, and the kubelet never asks: it counts the resource with the number."""
    async with stage() as s:
        s.pod("a", {"memory": 60}, {"number": 1, "memory": 60})
        s.scheduler.bind("a", NODE)
        await s.waiting("a")
        assert s.admit("a", "c1") == [uuid_of(0)], "the first container has the other GPU"
        await s.until(lambda: s.notes("pods", "a")["volcano.sh/bind-phase"] == "success")


async def test_a_pod_that_asks_for_memory_alone_is_reported_as_failed_and_keeps_no_lock() -> None:
    async with stage() as s:
        s.pod("a", {"memory": 8})
        s.scheduler.bind("a", NODE)
        await s.until(lambda: s.notes("pods", "a")["volcano.sh/bind-phase"] == "failed")
        await s.until(lambda: "hamivgpu" not in s.notes("nodes", NODE))
        assert s.inventory.snapshot.vgpu_waiting == ()


async def test_a_pod_whose_annotations_arrive_late_is_refused_for_now_only() -> None:
    snapshot = dgx()
    with pytest.raises(Refused) as refused:
        PLACES.prefer(snapshot, [PLACES.devices(snapshot)[0].ids[0]], [], 1)
    assert refused.value.later


@given(text=st.text(alphabet="GPU-0:;,NVIDIA179x ", max_size=60) | st.text(max_size=40))
def test_any_text_decodes_to_grants_or_to_nothing(text: str) -> None:
    found = notes.decode_grants(text)
    if found is not None:
        assert all(isinstance(grant, VgpuGrant) and grant.slices >= 0 for part in found for grant in part)


def test_the_registration_is_what_the_scheduler_decodes() -> None:
    gpus = (gpu_of(0), replace(gpu_of(1), health=SICK, name="NVIDIA H100, 80GB: x"))
    assert notes.register(SLICES, gpus) == (
        f"{uuid_of(0)},64,79,NVIDIA-{gpu_of(0).name},true,hami-core:"
        f"{uuid_of(1)},0,79,NVIDIA-NVIDIA H100- 80GB- x,false,hami-core:"
    )
