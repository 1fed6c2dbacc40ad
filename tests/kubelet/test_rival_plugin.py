"""Another plugin registers a name of ours. The kubelet tells nobody, and keeps the streams of both."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.cluster import agent_events
from nodeagent.facts.model import Snapshot
from nodeagent.kubelet import counted_devices, holdings, registration
from nodeagent.kubelet.counted_devices import Comparison, Verdict
from nodeagent_lab.sim.apiserver import ApiServer
from nodeagent_lab.sim.kubelet import PodSpec
from tests.kubelet.test_registration import DOWN, Lamps, World, world
from tests.support.device_plugin import Plugin, device, many
from tests.support.running_agent import node, shorten
from tests.support.waiting import until

A, B = "example.com/a", "example.com/b"
LOOKS = {"look_s": 0.05, "again_s": 0.02}


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registration, "COUNTED_S", 0.0)


@asynccontextmanager
async def contested(*, looking: bool = True) -> AsyncIterator[tuple[World, Plugin]]:
    """Both resources are registered, and another plugin has just taken the name of the first."""
    async with world() as w:
        await w.kubelet.start()
        w.plugins.update([Lamps(A), Lamps(B)], Snapshot())
        w.run()
        await w.offered(A, 2)
        await w.offered(B, 2)
        rival = await Plugin(w.kubelet.socket.parent / "rival.sock", A, many("rival", 3)).start()
        looks = LOOKS if looking else {"look_s": 600.0}
        watching = asyncio.create_task(
            counted_devices.watch(w.kubelet.podresources_socket, w.plugins, **looks)
        )
        try:
            await rival.register(w.kubelet.socket)
            await w.offered(A, 3)
            yield w, rival
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
            await rival.stop()


async def look(w: World) -> bool:
    counted = await holdings.offered(w.kubelet.podresources_socket)
    return w.plugins.observe({name: frozenset(ids) for name, ids in counted.items()}, time.monotonic())


def status(w: World, name: str = A):
    return next(status for status in w.plugins.statuses() if status.resource == name)


async def test_a_name_that_another_plugin_has_taken_is_not_registered_and_the_reason_has_the_remedy() -> None:
    async with contested() as (w, _):
        await until(lambda: status(w).taken)
        assert not status(w).registered
        assert status(w).reason == (
            "another device plugin has registered this name, and the kubelet counts its devices, for example "
            "rival0: remove that plugin, or change resourcePrefix here; within a minute after its end this agent "
            "registers again"
        )
        assert status(w, B).registered


async def test_our_stream_stays_open_and_silent_while_another_plugin_has_the_name() -> None:
    """The kubelet asks the other plugin, and a message would make it count devices that the other does not know."""
    async with contested() as (w, rival):
        await until(lambda: status(w).taken)
        w.plugins.update([replace(Lamps(A), health=DOWN), replace(Lamps(B), health=DOWN)], Snapshot())
        await w.offered(B, 0)
        assert set(w.kubelet.devices(A)) == {"rival0", "rival1", "rival2"}
        assert (status(w).streams, rival.streams, len(w.kubelet.ends)) == (1, 1, 0)
        assert (await w.kubelet.admit(PodSpec.single("p", {A: 2}))).admitted
        assert len(rival.called("Allocate")) == 1


async def test_when_the_other_plugin_ends_first_the_name_is_registered_again() -> None:
    async with contested() as (w, rival):
        await until(lambda: status(w).taken)
        rival.end_streams()
        await w.kubelet.until(lambda: w.registrations(A) == 3)
        await w.offered(A, 2)
        await until(lambda: status(w).registered)
        assert set(w.kubelet.devices(A)) == {"a-0", "a-1"}
        w.plugins.update([replace(Lamps(A), health=DOWN), Lamps(B)], Snapshot())
        await w.offered(A, 0)


async def test_the_devices_of_the_other_plugin_do_not_come_on_our_list() -> None:
    """On a real kubelet they stayed on it, Unhealthy, after the plugin and its pods had gone: ten devices of eight."""
    async with contested() as (w, rival):
        await until(lambda: status(w).taken)
        assert (await w.kubelet.admit(PodSpec.single("p", {A: 2}))).admitted
        holdings_now = await holdings.once(w.kubelet.podresources_socket)
        assert {id_ for it in holdings_now for id_ in it.device_ids} < {"rival0", "rival1", "rival2"}
        w.plugins.update([Lamps(A), Lamps(B)], Snapshot(holdings=holdings_now))
        rival.end_streams()
        await w.kubelet.until(lambda: w.registrations(A) == 3)
        await w.offered(A, 2)
        assert set(w.kubelet.devices(A)) == {"a-0", "a-1"}


async def test_when_we_end_first_the_kubelet_drops_the_other_plugin_and_our_next_process_has_the_name() -> (
    None
):
    async with contested() as (w, rival):
        await until(lambda: status(w).taken)
        await w.end()
        await w.offered(A, 0)
        await until(lambda: rival.streams == 0)
        w.run()
        await w.offered(A, 2)


async def test_a_plugin_that_restarts_keeps_the_name() -> None:
    async with contested(looking=False) as (w, rival):
        for _ in range(2):
            assert status(w).registered
            await look(w)
        assert status(w).taken
        for _ in range(3):
            rival.end_streams()
            await w.offered(A, 0)
            assert await look(w), "a second look must decide"
            await rival.register(w.kubelet.socket)
            await w.offered(A, 3)
            assert not await look(w)
        assert status(w).taken
        assert w.registrations(A) == 5, "one of ours"


async def test_a_plugin_that_came_and_went_between_two_looks_leaves_the_name_to_us(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The kubelet has stopped the endpoint: the name stayed without devices until the agent's restart."""
    monkeypatch.setattr(counted_devices, "OWN_IDS_S", 0.1)
    async with contested() as (w, rival):
        rival.end_streams()
        await w.kubelet.until(lambda: w.registrations(A) == 3)
        await w.offered(A, 2)
        await until(lambda: status(w).registered)


async def test_a_withdrawn_name_keeps_its_stream_until_the_other_plugin_ends() -> None:
    async with contested() as (w, rival):
        await until(lambda: status(w).taken)
        w.plugins.update([Lamps(B)], Snapshot())
        for _ in range(50):
            await asyncio.sleep(0.002)
        assert w.kubelet.allocatable()[A] == 3
        assert w.plugins._withdrawn[A].plugin.streams == 1
        rival.end_streams()
        await until(lambda: not w.plugins._withdrawn[A].plugin.serving)
        assert w.registrations(A) == 2


async def test_a_kubelet_that_restarts_gets_a_taken_name_again() -> None:
    async with contested() as (w, rival):
        await until(lambda: status(w).taken)
        await rival.stop()
        await w.kubelet.restart()
        await w.offered(A, 2)
        await until(lambda: status(w).registered)


async def test_another_plugin_with_some_of_our_ids_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two plugins of SR-IOV name their devices by PCI address."""
    monkeypatch.setattr(counted_devices, "OWN_IDS_S", 0.1)
    async with contested() as (w, rival):
        rival.say([device("a-0")])
        await until(lambda: status(w).taken)


@asynccontextmanager
async def a_slow_kubelet() -> AsyncIterator[tuple[World, Callable[[float, str], bool]]]:
    """Both resources are registered. The function tells the agent which devices (``"01"``: both) of A the kubelet
    counts at a time in seconds, and returns whether a second look soon must decide."""
    async with world() as w:
        await w.kubelet.start()
        w.plugins.update([Lamps(A), Lamps(B)], Snapshot())
        w.run()
        await w.offered(A, 2)
        await w.offered(B, 2)
        await until(lambda: status(w).registered and status(w, B).registered)
        start = time.monotonic()

        def counts(at_s: float, numbers: str) -> bool:
            ids = frozenset(f"a-{number}" for number in numbers)
            return w.plugins.observe({A: ids, B: frozenset(("b-0", "b-1"))}, start + 1 + at_s)

        yield w, counts


async def test_a_kubelet_that_is_behind_our_message_is_doubted_for_half_a_minute() -> None:
    async with a_slow_kubelet() as (w, counts):
        for at_s in range(0, 30, 3):
            assert counts(at_s, "0"), "a look soon must decide"
        assert status(w).registered
        assert not counts(30, "01")
        for at_s in range(50, 80, 3):
            assert counts(at_s, "0"), "the time counts from the last look that found our list"
        assert not counts(80, "0")
        assert status(w).taken


async def test_a_kubelet_that_still_counts_a_device_that_has_left_our_list_is_doubted_for_half_a_minute() -> (
    None
):
    """The ID of a VF that was removed is no other plugin's."""
    async with a_slow_kubelet() as (w, counts):
        w.plugins.update([Lamps(A, 1), Lamps(B)], Snapshot(), frozenset({"a-1"}))
        await w.offered(A, 1)
        for at_s in range(0, 30, 3):
            assert counts(at_s, "01"), "a look soon must decide"
        assert status(w).registered
        assert not counts(30, "0")


async def test_a_kubelet_that_counts_nothing_when_all_have_recovered_is_doubted_for_half_a_minute() -> None:
    """The resource was registered anew, so that a busy kubelet got a message more."""
    async with a_slow_kubelet() as (w, counts):
        w.plugins.update([replace(Lamps(A), health=DOWN), Lamps(B)], Snapshot())
        await w.offered(A, 0)
        w.plugins.update([Lamps(A), Lamps(B)], Snapshot())
        await w.offered(A, 2)
        for at_s in range(0, 30, 3):
            assert counts(at_s, ""), "a look soon must decide"
        assert status(w).registered
        assert not counts(30, "")
        await w.kubelet.until(lambda: w.registrations(A) == 2)
        await until(lambda: status(w).registered)


async def test_a_name_taken_by_mistake_is_ours_when_the_kubelet_has_caught_up() -> None:
    """The changes of the meantime are sent. They were not, and the name stayed taken until the agent's restart."""
    async with a_slow_kubelet() as (w, counts):
        counts(0, "0")
        counts(30, "0")
        assert status(w).taken
        counts(50, "0")
        assert status(w).taken
        w.plugins.update([Lamps(A, 3), Lamps(B)], Snapshot())
        counts(70, "01")  # what was sent last
        assert status(w).registered
        assert status(w).reason == ""
        await w.offered(A, 3)
        w.plugins.update([replace(Lamps(A, 3), health=DOWN), Lamps(B)], Snapshot())
        await w.offered(A, 0)
        assert w.registrations(A) == 1
        assert not any(update.repeated for update in w.kubelet.updates)


async def test_a_kubelet_that_counts_what_we_would_send_and_have_not_sent_is_another_plugins() -> None:
    async with a_slow_kubelet() as (w, counts):
        w.plugins.update([Lamps(A, 3), Lamps(B)], Snapshot())
        await w.offered(A, 3)
        counts(0, "01")
        counts(30, "01")
        assert status(w).taken
        w.plugins.update([Lamps(A), Lamps(B)], Snapshot())
        counts(50, "01")
        assert status(w).taken
        counts(70, "012")  # it has caught up
        assert status(w).registered
        await w.offered(A, 2)


async def test_a_change_of_our_list_does_not_replace_that_of_a_plugin_with_some_of_our_ids(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Our list became that of the other plugin, so the name was ours, and the next message replaced its list."""
    monkeypatch.setattr(counted_devices, "OWN_IDS_S", 0.1)
    async with contested() as (w, rival):
        rival.say([device("a-0")])
        await until(lambda: status(w).taken)
        messages = len(w.kubelet.updates)
        w.plugins.update([Lamps(A, 1), Lamps(B)], Snapshot())
        for _ in range(2):
            await look(w)
        assert status(w).taken
        w.plugins.update([Lamps(A, 2), replace(Lamps(B), health=DOWN)], Snapshot())
        await w.offered(B, 0)
        assert status(w).taken
        assert not any(update.resource == A for update in w.kubelet.updates[messages:])


async def test_a_withdrawn_name_that_is_ours_again_ends() -> None:
    async with a_slow_kubelet() as (w, counts):
        counts(0, "0")
        counts(30, "0")
        w.plugins.update([Lamps(B)], Snapshot())
        assert w.plugins._withdrawn[A].plugin.serving
        counts(50, "01")
        await w.offered(A, 0)


async def test_the_readiness_metric_and_event_name_it(monkeypatch: pytest.MonkeyPatch) -> None:
    shorten(monkeypatch, counted_devices.watch, **LOOKS)
    monkeypatch.setattr(agent_events, "STATE_LOOK_S", 0.05)
    server = await ApiServer(seed=1).start()
    server.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "gpu-0"}})
    async with node() as n:
        path = n.folder / "kubeconfig"
        token = server.token("system:serviceaccount:nodeagent:nodeagent")
        path.write_text(
            "{current-context: c, contexts: [{name: c, context: {cluster: c, user: u, namespace: nodeagent}}],"
            f" clusters: [{{name: c, cluster: {{server: '{server.url}'}}}}],"
            f" users: [{{name: u, user: {{token: '{token}'}}}}]}}"
        )
        await n.kubelet.start()
        text = f"cluster: {{access: kubeconfig, kubeconfig: {path}}}\n"
        await n.start_agent(n.configure(text), node_name="gpu-0")
        await n.until(n.agent.plugins.statuses)
        await n.registered()
        name = n.agent.plugins.statuses()[0].resource
        rival = await Plugin(n.kubelet.socket.parent / "rival.sock", name, many("rival", 3)).start()
        await rival.register(n.kubelet.socket)
        await n.until(lambda: n.agent.plugins.statuses()[0].taken)
        code, page = await n.get("/readyz")
        assert code == 503
        assert f"{name}: not registered: another device plugin has registered this name" in page
        metric = f'nodeagent_resource_registered{{resource="{name}"}} '
        assert f"{metric}0" in (await n.get("/metrics"))[1]

        def events() -> set[str]:
            return {event["reason"] for event in server.objects("events")}

        await server.until(lambda: "ResourceTaken" in events())
        rival.end_streams()
        await n.registered()
        await server.until(lambda: "Recovered" in events())
        assert f"{metric}1" in (await n.get("/metrics"))[1]
        await rival.stop()
    await server.stop()


IDS = st.frozensets(st.sampled_from("abcd"))


@given(IDS, IDS, st.integers(0, 3))
def test_what_was_sent_is_never_taken_for_another_plugins(
    healthy: frozenset[str], more: frozenset[str], looks: int
) -> None:
    comparison = Comparison()
    for revision in range(looks):
        assert comparison.judge(healthy, healthy, healthy | more, revision, 0.0) is Verdict.OURS


@given(st.lists(IDS, min_size=2, max_size=6))
def test_a_kubelet_one_message_behind_is_doubted_and_never_taken_for_another_plugins(
    lists: list[frozenset[str]],
) -> None:
    """Each look finds the list before the current one, of IDs that stay known."""
    comparison, known = Comparison(), frozenset("abcd")
    for revision, (before, now) in enumerate(itertools.pairwise(lists)):
        assert comparison.judge(before, now, known, revision, 60.0 * revision) in (
            Verdict.OURS,
            Verdict.DOUBT,
        )


def test_two_looks_decide() -> None:
    ours, others, none = frozenset("ab"), frozenset("xy"), frozenset[str]()
    for counted, verdict in (
        (others, Verdict.OTHERS),
        (frozenset("ax"), Verdict.OTHERS),
        (frozenset("a"), Verdict.DOUBT),
        (none, Verdict.DOUBT),
    ):
        comparison = Comparison()
        assert comparison.judge(counted, ours, ours, 1, 20.0) is Verdict.DOUBT
        assert comparison.judge(counted, ours, ours, 1, 23.0) is verdict
    comparison = Comparison()
    assert comparison.judge(others, ours, ours, 1, 20.0) is Verdict.DOUBT
    assert comparison.judge(others, ours, ours, 2, 23.0) is Verdict.OTHERS, "foreign IDs need no quiet list"
    comparison = Comparison()
    assert comparison.judge_taken(none, ours) is Verdict.DOUBT
    assert comparison.judge_taken(others, ours) is Verdict.OTHERS
    assert comparison.judge_taken(none, ours) is Verdict.DOUBT
    assert comparison.judge_taken(none, ours) is Verdict.NONE


@pytest.mark.parametrize(("counted", "verdict"), [("a", Verdict.OTHERS), ("", Verdict.NONE)])
def test_some_of_our_ids_and_none_are_told_within_a_minute(counted: str, verdict: Verdict) -> None:
    """The other plugin comes, or has come and gone, right after a look."""
    comparison, ours, now = Comparison(), frozenset("ab"), counted_devices.LOOK_S
    while (found := comparison.judge(frozenset(counted), ours, ours, 1, now)) is Verdict.DOUBT:
        now += counted_devices.AGAIN_S
    assert found is verdict
    assert now - counted_devices.LOOK_S >= counted_devices.OWN_IDS_S
    assert now + counted_devices.AGAIN_S + agent_events.STATE_LOOK_S < 60.0, "the Event too"


def test_a_new_message_of_ours_starts_the_time_again() -> None:
    comparison, ours, some = Comparison(), frozenset("ab"), frozenset("a")
    looks = [(1, 0.0), (1, 27.0), (2, 30.0), (2, 57.0), (2, 60.0)]
    verdicts = [comparison.judge(some, ours, ours, revision, now) for revision, now in looks]
    assert verdicts == [Verdict.DOUBT] * 4 + [Verdict.OTHERS]


def test_a_taken_name_is_ours_again_with_the_list_that_was_sent() -> None:
    comparison, sent = Comparison(), frozenset("abc")
    for counted, verdict in (
        (sent, Verdict.OURS),
        (frozenset("ab"), Verdict.OTHERS),
        (frozenset("abcx"), Verdict.OTHERS),
    ):
        assert comparison.judge_taken(counted, sent) is verdict
    comparison, none = Comparison(), frozenset[str]()
    assert comparison.judge_taken(none, none) is Verdict.DOUBT, "a kubelet that dropped us counts none too"
    assert comparison.judge_taken(none, none) is Verdict.NONE
