"""What the cluster is told of a node: Events, marks on the Node, evictions; by level, slowly, and after an outage."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.cluster.affected_devices import hits, subjects
from nodeagent.cluster.events import BURST, HOURLY_S, PER_S, Events, Ledger, Note, Target, doubted, notes
from nodeagent.cluster.evictions import Evictions, Waiting
from nodeagent.cluster.node_marks import LABEL, TAINT, Marks, NodeState, Standing
from nodeagent.cluster.retry import Bucket, Trouble
from nodeagent.inventory import Inventory
from nodeagent.kube.access import Access
from nodeagent.kube.client import Client
from nodeagent.model import Devices, Function, Gpu, Health, Holding, Reason, Silence, Snapshot, State
from nodeagent.sim.apiserver import ApiServer

DOWN = Health(State.DOWN, (Reason("carrier_down", "no carrier"),), allocatable=False)
SLOW = Health(State.DEGRADED, (Reason("speed_reduced", "200 Gb/s of 400 Gb/s"),))
WARM = Health(State.HEALTHY, (Reason("optics_temperature", "71 °C of 70 °C", warning=True),))
STRAY = Health(State.MISCABLED, (Reason("miscabled", "is on leaf02, planned leaf01"),))
BLIND = Health(State.UNKNOWN, (Reason("stale", "no word for 40 s"),))
LOST = Health(State.UNHEALTHY, (Reason("xid", "XID 79: the GPU has fallen off the bus"),), allocatable=False)

UNHEARD = Health(State.UNKNOWN, (Reason("driver_silent", "hangs"), *LOST.reasons), allocatable=False)


def pf(n, health=None):
    return Function(
        f"0000:1{n}:00.0", "15b3", "1021", "mlx5_core", f"ens{n}np0", "ethernet",
        None, None, None, 0, (), num_vfs=1, total_vfs=8, health=health or Health(),
    )  # fmt: skip


def vf(n, health=None):
    return replace(
        pf(n, health), pci_address=f"0000:1{n}:00.1", netdev=None, parent=f"0000:1{n}:00.0", vf_index=0
    )


def gpu(n, health=None):
    return Gpu(f"GPU-{n}", n, n, "H100", f"0000:2{n}:00.0", 81559, 0, health=health or Health())


def holding(pod, resource, *ids):
    return Holding("default", pod, "main", resource, tuple(ids))


def offered(snapshot):
    """Two resources: the VF of each PF, and two slices of each GPU."""
    vfs = [Devices(f.parent, (f.pci_address,), (0,), f.health) for f in snapshot.functions if f.parent]
    slices = [Devices(g.uuid, (f"{g.uuid}::0", f"{g.uuid}::1"), (0,), g.health) for g in snapshot.gpus]
    return [("x/nic", vfs), ("x/mem", slices)]


HELD = (
    holding("a", "x/mem", "GPU-0::0", "GPU-0::1"),
    holding("b", "x/nic", "0000:11:00.1"),
    holding("c", "y/z", "1"),
)


def snapshot(links=(), gpus=(), holdings=HELD, silent=()):
    functions = [one for n, health in enumerate(links) for one in (pf(n, health), vf(n, health))]
    return Snapshot(
        functions=tuple(sorted(functions, key=lambda f: f.pci_address)),
        gpus=tuple(gpu(n, health) for n, health in enumerate(gpus)),
        holdings=holdings,
        silent=silent,
    )


def tell(inventory, made):
    inventory.state("pci", functions=made.functions)
    inventory.state("gpus", gpus=made.gpus)
    inventory.state("pods", holdings=made.holdings)


@pytest.fixture
async def server():
    server = await ApiServer(seed=1).start()
    server.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "gpu-0"}})
    for name in "ab":
        server.put({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"}})
    yield server
    await server.stop()


@pytest.fixture
async def client(server):
    client = Client(Access(server.url, token=server.token("agent")))
    yield client
    await client.close()


@pytest.fixture
async def running():
    tasks = []
    yield lambda work: tasks.append(asyncio.ensure_future(work))
    for task in tasks:
        task.cancel()
    for error in await asyncio.gather(*tasks, return_exceptions=True):
        assert isinstance(error, asyncio.CancelledError), error


# --- who is concerned ---------------------------------------------------------------------------------


def test_a_node_is_told_of_links_and_gpus_and_a_pod_of_what_it_holds():
    made = snapshot([None, DOWN, Health(State.UNUSED)], [LOST])
    assert [(one.title, one.health.state.value) for one in subjects(made)] == [
        ("ens0np0 (0000:10:00.0)", "healthy"),
        ("ens1np0 (0000:11:00.0)", "down"),
        ("GPU 0 (GPU-0)", "unhealthy"),
    ]
    assert [(hit.pod, hit.device_ids, hit.subject.title) for hit in hits(made, offered(made))] == [
        ("a", ("GPU-0::0", "GPU-0::1"), "GPU 0 (GPU-0)"),
        ("b", ("0000:11:00.1",), "VF 0000:11:00.1 of ens1np0 (0000:11:00.0)"),
    ]


def test_a_device_that_is_gone_has_failed_unless_a_source_is_silent():
    gone = snapshot([None])
    assert [hit.subject.health.reasons[0].key for hit in hits(gone, offered(gone))] == ["device_missing"]
    quiet = replace(gone, silent=(Silence("pci", "hangs"),))
    assert hits(quiet, offered(quiet)) == ()
    unknown = replace(gone, holdings=None)
    assert hits(unknown, offered(unknown)) == ()


def test_what_stands_is_said_in_the_words_of_the_field():
    made = snapshot([SLOW, DOWN, WARM, BLIND, STRAY], [LOST])
    said = notes(made, "n", offered(made))
    assert [(n.target.kind, n.target.name, n.reason, n.warning, n.message) for n in said] == [
        ("Node", "n", "LinkSpeedReduced", True, "ens0np0 (0000:10:00.0): 200 Gb/s of 400 Gb/s"),
        ("Node", "n", "LinkCarrierDown", True, "ens1np0 (0000:11:00.0): no carrier"),
        ("Node", "n", "LinkOpticsTemperature", False, "ens2np0 (0000:12:00.0): 71 °C of 70 °C"),
        ("Node", "n", "LinkMiscabled", True, "ens4np0 (0000:14:00.0): is on leaf02, planned leaf01"),
        ("Node", "n", "GpuXid", True, "GPU 0 (GPU-0): XID 79: the GPU has fallen off the bus"),
        (
            "Pod", "a", "DeviceFailed", True,
            "GPU 0 (GPU-0), held as x/mem (GPU-0::0 and 1 more), has failed: XID 79: the GPU has fallen off the bus",
        ),
        (
            "Pod", "b", "DeviceFailed", True,
            "VF 0000:11:00.1 of ens1np0 (0000:11:00.0), held as x/nic (0000:11:00.1), has failed: no carrier",
        ),
    ]  # fmt: skip


# --- the ledger ---------------------------------------------------------------------------------------

NODE = Target("Node", "", "n")
FAULT = Note(NODE, "d", "LinkCarrierDown", "d: no carrier")
WARNING = Note(NODE, "d", "LinkOptics", "d: warm", warning=False, hourly=True)


def told(ledger, now):
    due = ledger.due(now)
    for entry in due:
        entry.told, entry.told_at = entry.count, now
    return [(entry.note.reason, entry.count) for entry in due]


def test_a_fault_is_told_once_and_again_when_it_returns_and_so_is_its_end():
    ledger = Ledger()
    ledger.observe([FAULT], 0, 0)
    assert told(ledger, 0) == [("LinkCarrierDown", 1)]
    ledger.observe([FAULT], 1, 1)
    assert told(ledger, 1) == []
    ledger.observe([], 2, 2)
    assert told(ledger, 2) == [("Recovered", 1)]
    ledger.observe([FAULT], 3, 3)
    assert told(ledger, 3) == [("LinkCarrierDown", 2)]
    ledger.observe([], 4, 4)
    assert told(ledger, 4) == [("Recovered", 2)]
    ledger.observe([], 5 + HOURLY_S, 5)
    ledger.observe([], 6 + HOURLY_S, 6)
    assert ledger.entries == {}


def test_a_fault_that_came_and_went_while_nobody_answered_is_told_all_the_same():
    ledger = Ledger()
    for now in range(10):
        ledger.observe([FAULT] if now % 2 else [], now, now)
    assert told(ledger, 10) == [("LinkCarrierDown", 5)]
    ledger.observe([], 11, 11)
    assert told(ledger, 11) == [("Recovered", 1)]


def test_a_gpu_whose_driver_falls_silent_has_not_recovered():
    ledger = Ledger()

    def observe(made, now):
        ledger.observe(notes(made, "n", offered(made)), now, now, doubted(made))

    observe(snapshot([None, None], [LOST]), 0)
    assert told(ledger, 0) == [("GpuXid", 1), ("DeviceFailed", 1)]
    observe(snapshot([None, None], [UNHEARD]), 1)
    assert told(ledger, 1) == []
    observe(snapshot([None, None], [LOST]), 2)
    assert told(ledger, 2) == [], "and what stood all the time did not return"
    observe(snapshot([None, None], [UNHEARD]), 3)
    observe(snapshot([None, None], [None]), 4)
    assert told(ledger, 4) == [("Recovered", 1), ("Recovered", 1)]


def test_a_device_that_is_gone_has_not_recovered_when_a_source_falls_silent():
    ledger = Ledger()
    gone = snapshot([None])
    quiet = replace(gone, silent=(Silence("pci", "hangs"),))
    for made in (gone, quiet):
        ledger.observe(notes(made, "n", offered(made)), 0, 0, doubted(made))
        assert told(ledger, 0) == ([("DeviceFailed", 1)] if made is gone else [])


def test_ten_flaps_a_second_for_an_hour_are_a_handful_of_events():
    ledger, bucket, said = Ledger(), Bucket(BURST, PER_S), 0
    flapping = [
        note
        for number in range(8)
        for note in (replace(FAULT, device=str(number)), replace(WARNING, device=str(number)))
    ]
    for tick in range(36_000):
        now = tick / 10
        ledger.observe(flapping if tick % 2 else [], now, now)
        for entry in ledger.due(now):
            if bucket.wait(now):
                break
            bucket.take(now)
            entry.told, entry.told_at, said = entry.count, now, said + 1
    assert said <= BURST + 3600 * PER_S + 1
    assert len(ledger.entries) == 24


def test_a_warning_is_told_once_an_hour():
    ledger = Ledger()
    for now in range(100):
        ledger.observe([WARNING] if now % 2 else [], now, now)
        assert len(told(ledger, now)) == (now == 1)
    assert told(ledger, HOURLY_S) == []
    assert told(ledger, HOURLY_S + 2) == [("LinkOptics", 50)]


@given(st.lists(st.lists(st.integers(0, 3000), max_size=900), max_size=6))
def test_the_ledger_is_bounded(rounds):
    ledger = Ledger()
    for now, devices in enumerate(rounds):
        ledger.observe([Note(NODE, str(one), "x", "m") for one in devices], now, now)
        assert len(ledger.entries) <= 512


# --- Events -------------------------------------------------------------------------------------------


async def test_events_are_read_back_by_the_official_client(server, client, running):
    pytest.importorskip("kubernetes")
    from kubernetes import client as official

    inventory = Inventory()
    tell(inventory, snapshot([DOWN, DOWN], [LOST]))
    running(Events(client, inventory, "gpu-0", offered).run())
    await server.until(lambda: len(server.objects("events")) == 5)
    configuration = official.Configuration()
    configuration.host = server.url
    configuration.api_key = {name: f"Bearer {server.token()}" for name in ("authorization", "BearerToken")}
    with official.ApiClient(configuration) as api:
        found = await asyncio.to_thread(official.CoreV1Api(api).list_namespaced_event, "default")
    by_object = {}
    for one in found.items:
        by_object.setdefault(
            (one.involved_object.kind, one.involved_object.name, one.involved_object.uid), []
        ).append(one)
        assert one.source.host == one.reporting_instance == "gpu-0"
        assert (one.type, one.count) == ("Warning", 1)
    assert sorted(by_object) == [
        ("Node", "gpu-0", "gpu-0"), ("Pod", "a", "pods-default/a"), ("Pod", "b", "pods-default/b"),
    ]  # fmt: skip
    assert len(by_object["Node", "gpu-0", "gpu-0"]) == 3


async def test_an_event_counts_up_and_a_restart_tells_nothing_twice(server, client, running):
    inventory = Inventory()
    tell(inventory, snapshot([DOWN], holdings=()))
    running(Events(client, inventory, "gpu-0", offered).run())
    await server.until(lambda: server.objects("events"))
    tell(inventory, snapshot([None], holdings=()))
    await server.until(lambda: len(server.objects("events")) == 2)
    tell(inventory, snapshot([DOWN], holdings=()))

    def counts():
        return {one["reason"]: one["count"] for one in server.objects("events")}

    await server.until(lambda: counts()["LinkCarrierDown"] == 2)
    asked = server.counts["create", "events"]
    running(Events(client, inventory, "gpu-0", offered).run())
    await server.until(lambda: server.counts["create", "events"] == asked + 1)
    assert any(request.status == 409 for request in server.requests)
    assert counts() == {"LinkCarrierDown": 2, "Recovered": 1}


async def test_what_returns_after_a_restart_counts_on(server, client, running):
    earlier = Events(client, Inventory(), "gpu-0", offered)
    earlier.ledger.observe(notes(snapshot([DOWN], holdings=()), "gpu-0", ()), 0, 1_000_000)
    (entry,) = earlier.ledger.due(0)
    entry.count = 7
    await earlier._tell(entry)
    inventory = Inventory()
    tell(inventory, snapshot([None], holdings=()))
    running(Events(client, inventory, "gpu-0", offered).run())
    await asyncio.sleep(0)  # it has looked
    tell(inventory, snapshot([DOWN], holdings=()))
    await server.until(lambda: server.objects("events")[0]["count"] == 8)
    assert server.objects("events")[0]["lastTimestamp"] > "2000"
    tell(inventory, snapshot([None], holdings=()))
    await server.until(lambda: len(server.objects("events")) == 2)
    tell(inventory, snapshot([DOWN], holdings=()))
    await server.until(lambda: max(one["count"] for one in server.objects("events")) == 9)


async def test_what_an_outage_kept_back_is_told_after_it(server, client, running, caplog):
    server.fail("500", times=3, resource="events")
    inventory = Inventory()
    tell(inventory, snapshot([DOWN], holdings=()))
    events = Events(client, inventory, "gpu-0", offered)
    events._trouble._backoff_s = 0.01
    running(events.run())
    await server.until(lambda: server.objects("events"))
    assert [record.message for record in caplog.records if "do not reach" in record.message][1:] == []


async def test_a_namespace_that_has_gone_holds_up_nobody(server, client, running):
    inventory = Inventory()
    held = (Holding("gone", "p", "main", "x/nic", ("0000:10:00.1",)),)
    tell(inventory, snapshot([DOWN], holdings=held))
    events = Events(client, inventory, "gpu-0", offered)
    running(events.run())
    await server.until(lambda: server.counts["create", "events"] == 2)
    assert [one["involvedObject"]["kind"] for one in server.objects("events")] == ["Node"]


async def test_without_the_right_to_read_pods_events_go_without_their_uid(server, client, running):
    server.fail("403", resource="pods", times=None)
    inventory = Inventory()
    tell(inventory, snapshot([DOWN, DOWN], [LOST]))
    running(Events(client, inventory, "gpu-0", offered).run())
    await server.until(lambda: len(server.objects("events")) == 5)
    assert server.counts["get", "pods"] == 1
    pods = [
        one["involvedObject"] for one in server.objects("events") if one["involvedObject"]["kind"] == "Pod"
    ]
    assert all("uid" not in one for one in pods)


# --- the Node -----------------------------------------------------------------------------------------


def conditions(standing, made, now, silent=None):
    wanted = standing.wanted(subjects(made), now, silent=silent)
    return [(one.type.partition("/")[2], one.status, one.reason, one.message) for one in wanted.conditions]


def test_a_condition_waits_for_half_a_minute_and_names_the_worst():
    standing = Standing()
    bad = snapshot([DOWN, SLOW, STRAY, None], [None])
    assert conditions(standing, bad, 0) == [
        (
            "LinkHealthy",
            "False",
            "Degraded",
            "1 of 4 links is degraded: ens1np0 (0000:11:00.0), 200 Gb/s of 400 Gb/s",
        ),
        ("GpuHealthy", "True", "Healthy", "1 GPUs are healthy"),
    ]
    assert standing.due_s(0) == 30
    assert conditions(standing, bad, 30)[0] == (
        "LinkHealthy", "False", "LinkDown", "1 of 4 links is down: ens0np0 (0000:10:00.0), no carrier",
    )  # fmt: skip
    assert standing.wanted(subjects(bad), 30).degraded == 3
    assert standing.wanted(subjects(bad), 30).down == 1
    good = snapshot([None, None, STRAY, WARM], [LOST])
    assert conditions(standing, good, 31) == [
        ("LinkHealthy", "False", "Miscabled",
         "1 of 4 links is miscabled: ens2np0 (0000:12:00.0), is on leaf02, planned leaf01"),
        ("GpuHealthy", "False", "Unhealthy",
         "1 of 1 GPUs is unhealthy: GPU 0 (GPU-0), XID 79: the GPU has fallen off the bus"),
    ]  # fmt: skip
    calm = snapshot([None, WARM])
    assert conditions(standing, calm, 32)[0] == (
        "LinkHealthy", "True", "Healthy",
        "2 links are healthy; to be watched: ens1np0 (0000:11:00.0), 71 °C of 70 °C",
    )  # fmt: skip


def test_unknown_is_said_after_five_minutes():
    standing = Standing()
    blind = snapshot([BLIND, None])
    assert conditions(standing, blind, 0)[0][1:3] == ("True", "Healthy")
    assert conditions(standing, blind, 300)[0][1:3] == ("Unknown", "Unknown")
    assert conditions(standing, snapshot([None]), 301, "pci: hangs")[0][1:3] == ("True", "Healthy")
    assert conditions(standing, snapshot([None]), 601, "pci: hangs")[0] == (
        "LinkHealthy", "Unknown", "Unknown", "nothing is known at present: pci: hangs",
    )  # fmt: skip


def test_what_is_unknown_for_a_moment_is_not_healthy_meanwhile():
    standing = Standing()
    conditions(standing, snapshot([DOWN], [LOST]), 0)
    assert [one[1] for one in conditions(standing, snapshot([DOWN], [LOST]), 30)] == ["False", "False"]
    blind = snapshot([BLIND], [UNHEARD])
    assert [one[1:3] for one in conditions(standing, blind, 31)] == [
        ("False", "LinkDown"), ("False", "Unhealthy"),
    ]  # fmt: skip
    assert standing.wanted(subjects(blind), 32).down == 1
    assert [one[1] for one in conditions(standing, blind, 331)] == ["Unknown", "Unknown"]
    assert [one[1] for one in conditions(standing, snapshot([None], [None]), 332)] == ["True", "True"]


def test_a_node_without_links_has_no_opinion():
    assert Standing().wanted((), 0).conditions == ()


async def test_the_node_is_marked_beside_what_others_have_put_there(server, client, running):
    other = {"key": "dedicated", "effect": "NoSchedule", "value": "gpu"}
    ready = {"type": "Ready", "status": "True"}
    server.put(
        {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": "gpu-0", "labels": {"a": "b"}},
            "spec": {"taints": [other]},
            "status": {"conditions": [ready]},
        }
    )
    inventory = Inventory()
    tell(inventory, snapshot([SLOW, None]))
    state = NodeState(client, inventory, "gpu-0", Marks(conditions=True, label=True, rails_down=1))
    state._bucket = Bucket(100, 100)
    running(state.run())

    def node():
        return server.one("nodes", "gpu-0")

    await server.until(lambda: LABEL in node()["metadata"]["labels"])
    assert node()["metadata"]["labels"] == {"a": "b", LABEL: "1"}
    first, ours = node()["status"]["conditions"]
    assert first == ready
    assert (ours["type"], ours["status"], ours["reason"]) == ("nodeagent.io/LinkHealthy", "False", "Degraded")
    state._standing.since = {("0000:10:00.0", State.DOWN): -1e9}
    tell(inventory, snapshot([DOWN, None]))
    await server.until(lambda: len(node()["spec"]["taints"]) == 2)
    assert node()["spec"]["taints"] == [other, {"key": TAINT, "effect": "NoSchedule"}]
    tell(inventory, snapshot([None, None]))
    await server.until(lambda: LABEL not in node()["metadata"]["labels"])
    assert node()["spec"]["taints"] == [other]
    assert node()["status"]["conditions"][1]["status"] == "True"


async def test_a_restart_remembers_since_when_and_takes_away_a_taint_that_is_no_longer_wanted(
    server, client, running
):
    long_ago = "2026-01-01T00:00:00Z"
    condition = {"type": "nodeagent.io/LinkHealthy", "status": "False", "lastTransitionTime": long_ago}
    server.put(
        {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": "gpu-0"},
            "spec": {"taints": [{"key": TAINT, "effect": "NoSchedule"}]},
            "status": {"conditions": [condition]},
        }
    )
    inventory = Inventory()
    tell(inventory, snapshot([SLOW]))
    running(NodeState(client, inventory, "gpu-0", Marks(conditions=True, label=False, rails_down=None)).run())
    await server.until(lambda: "message" in server.one("nodes", "gpu-0")["status"]["conditions"][0])
    node = server.one("nodes", "gpu-0")
    assert node["status"]["conditions"][0]["lastTransitionTime"] == long_ago
    assert node["spec"]["taints"] == []


async def test_a_restart_is_no_news_of_links_that_are_down_before_and_after_it(server, client, running):
    def condition(status):
        kind = {"type": "nodeagent.io/LinkHealthy", "status": status}
        return kind | {"lastTransitionTime": "2026-01-01T00:00:00Z"}

    server.put(
        {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": "gpu-0", "labels": {LABEL: "2"}},
            "spec": {"taints": [{"key": TAINT, "effect": "NoSchedule"}]},
            "status": {"conditions": [condition("False")]},
        }
    )
    inventory = Inventory()
    tell(inventory, snapshot([DOWN, DOWN]))
    state = NodeState(client, inventory, "gpu-0", Marks(conditions=True, label=True, rails_down=2))
    state._bucket = Bucket(100, 100)
    running(state.run())
    await server.until(lambda: server.counts["patch", "nodes"])
    node = server.one("nodes", "gpu-0")
    assert node["spec"]["taints"] == [{"key": TAINT, "effect": "NoSchedule"}]
    assert node["metadata"]["labels"] == {LABEL: "2"}
    assert node["status"]["conditions"][0]["status"] == "False"
    assert node["status"]["conditions"][0]["lastTransitionTime"] == "2026-01-01T00:00:00Z"
    assert server.counts["patch", "nodes"] == 1, "the label; the taint was there"


async def test_a_right_that_is_missing_for_the_taint_keeps_back_no_condition(server, client, running, caplog):
    server.fail("403", verb="get", resource="nodes", times=None)
    server.fail("403", verb="patch", resource="nodes", times=None)
    inventory = Inventory()
    tell(inventory, snapshot([SLOW]))
    running(NodeState(client, inventory, "gpu-0", Marks(conditions=True, label=True, rails_down=1)).run())
    await server.until(lambda: server.counts["patch", "nodes/status"])
    conditions = server.one("nodes", "gpu-0")["status"]["conditions"]
    assert [one["reason"] for one in conditions] == ["Degraded"]
    assert "its taint" in caplog.text


async def test_nothing_is_said_before_anything_is_known_nor_faster_than_one_write_in_ten_seconds(
    server, client, running
):
    inventory = Inventory()
    state = NodeState(client, inventory, "gpu-0", Marks(conditions=True, label=True, rails_down=None))
    running(state.run())
    tell(inventory, snapshot([SLOW]))
    await server.until(lambda: server.counts["patch", "nodes/status"])
    tell(inventory, snapshot([None]))
    running(Events(client, inventory, "gpu-0", offered).run())
    tell(inventory, snapshot([DOWN]))
    await server.until(lambda: server.objects("events"))
    assert server.counts["patch", "nodes"] + server.counts["patch", "nodes/status"] == 1


# --- pods ---------------------------------------------------------------------------------------------


def test_a_pod_waits_and_is_asked_again():
    waiting = Waiting(300)
    made = snapshot([None, DOWN])
    waiting.observe(hits(made, offered(made)), 0)
    assert waiting.due(0) == ([], 300)
    waiting.observe(hits(made, offered(made)), 299)
    assert waiting.due(300) == ([("default", "b")], 3600)
    waiting.observe((), 301)
    waiting.observe(hits(made, offered(made)), 302)
    assert waiting.due(302) == ([], 300), "a device that came back starts the wait again"


async def test_a_pod_with_a_failed_device_is_evicted_within_its_budget(server, client, running):
    inventory = Inventory()
    server.fail("429", resource="pods/eviction", message="disruption budget", retry_after_s=0)
    tell(inventory, snapshot([None, DOWN], [None]))
    evictions = Evictions(client, inventory, offered, 0.01)
    evictions._bucket = Bucket(100, 100)
    running(evictions.run())
    await server.until(lambda: server.counts["create", "pods/eviction"] == 1)
    assert len(server.objects("pods")) == 2
    await server.until(lambda: len(server.objects("pods")) == 1)
    assert server.objects("pods")[0]["metadata"]["name"] == "a"


# --- pace ---------------------------------------------------------------------------------------------


@given(st.lists(st.floats(0, 100), max_size=50), st.integers(1, 30))
def test_a_bucket_gives_no_more_than_its_rate(gaps, burst):
    bucket, now, taken = Bucket(burst, 0.1), 0.0, 0
    for gap in gaps:
        now += gap
        if bucket.wait(now) <= 0:
            bucket.take(now)
            taken += 1
        assert taken <= burst + 0.1 * now + 1e-6


def test_trouble_is_said_once_and_waits_longer_each_time(caplog):
    from nodeagent.kube.failure import ApiError

    trouble = Trouble("It does not work")
    error = ApiError("patch", "/x", 500, "InternalError", "no")
    waits = [trouble.has(error, 0) for _ in range(8)]
    assert max(waits) <= 180
    assert waits[-1] > waits[0]
    assert trouble.wait(0) == waits[-1]
    assert trouble.has(ApiError("patch", "/x", 403, "Forbidden", "no"), 0) == 600
    trouble.over()
    assert (trouble.wait(0), trouble.reason) == (0, None)
    assert len(caplog.records) == 1
