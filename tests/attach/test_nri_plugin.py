"""The plugin of NRI, by a runtime that speaks as containerd does: both ways of pod events, limits, bad octets."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.attach.nri_plugin import (
    SANDBOXES_MAX,
    AttachRefused,
    NriError,
    NriPlugin,
    Runtime,
    Sandbox,
)
from nodeagent.attach.ttrpc_frames import TTRPC_MAX, TtrpcError, TtrpcMessage, TtrpcReader
from tests.support.nri_runtime import PLUGIN, REQUEST, NriRuntime, decode, encode, message, pod
from tests.support.waiting import until


class Followed:
    """Keeps what the plugin passes on. ``work`` is what a begin does."""

    def __init__(self) -> None:
        self.told: list[tuple[str, object]] = []
        self.work: Callable[[Sandbox], Awaitable[None]] | None = None
        self.went_on = asyncio.Event()

    async def synchronize(self, sandboxes: tuple[Sandbox, ...]) -> None:
        self.told.append(("synchronize", sandboxes))

    async def begin(self, sandbox: Sandbox) -> None:
        self.told.append(("begin", sandbox))
        if self.work is not None:
            await self.work(sandbox)

    async def end(self, sandbox: Sandbox) -> None:
        self.told.append(("end", sandbox))


@asynccontextmanager
async def plugin_of(
    runtime: NriRuntime, followed: Followed
) -> AsyncIterator[tuple[NriPlugin, asyncio.Task[None]]]:
    plugin = NriPlugin(runtime.socket, followed)
    task = asyncio.create_task(plugin.run())
    try:
        yield plugin, task
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError, NriError):
            await task


def sandbox(name: str, network: str = "/var/run/netns/cni-1", *, on_host: bool = False) -> Sandbox:
    return Sandbox(f"id-{name}", "default", name, f"uid-{name}", network, on_host)


async def test_it_registers_and_asks_for_the_events_of_sandboxes_alone(tmp_path: Path) -> None:
    followed = Followed()
    async with (
        NriRuntime(tmp_path / "nri", limit_ms=1500) as runtime,
        plugin_of(runtime, followed) as (plugin, _),
    ):
        await runtime.begin(pod("a"), pod("b", None), pod("c", stopped=True))
        assert runtime.registered == {1: b"nodeagent-attach", 2: b"10"}
        assert runtime.events == 0b111  # RUN, STOP and REMOVE_POD_SANDBOX
        assert plugin.runtime == Runtime("containerd", "v2.1.9", "", 1.5)
        (told,) = followed.told
        assert told == ("synchronize", (sandbox("a"), sandbox("b", "", on_host=True), sandbox("c", "")))


@pytest.mark.parametrize("dedicated", [False, True])
async def test_both_generations_of_pod_events_are_served(tmp_path: Path, *, dedicated: bool) -> None:
    followed = Followed()
    async with NriRuntime(tmp_path / "nri") as runtime, plugin_of(runtime, followed):
        await runtime.begin()
        for event, method in enumerate(("RunPodSandbox", "StopPodSandbox", "RemovePodSandbox"), 1):
            if dedicated:
                answer = await runtime.call(method, {1: pod("a")})
            else:
                answer = await runtime.call("StateChange", {1: event, 2: pod("a")})
            assert 1 not in answer
        assert followed.told[1:] == [("begin", sandbox("a")), ("end", sandbox("a")), ("end", sandbox("a"))]


async def test_a_list_in_several_parts_is_one(tmp_path: Path) -> None:
    followed = Followed()
    async with NriRuntime(tmp_path / "nri") as runtime, plugin_of(runtime, followed):
        await runtime.connected.wait()
        await runtime.call("Configure", {2: "containerd", 5: 2000})
        answer = await runtime.call("Synchronize", {1: [pod("a")], 3: 1})
        assert decode(answer[2]) == {2: 1}  # another answer makes the runtime close the plugin
        assert followed.told == []
        await runtime.call("Synchronize", {1: [pod("b")]})
        assert followed.told == [("synchronize", (sandbox("a"), sandbox("b")))]


async def test_a_refusal_fails_the_sandbox_with_its_reason(tmp_path: Path) -> None:
    followed = Followed()

    async def refuse(_: Sandbox) -> None:
        raise AttachRefused("0000:18:00.2 as rail3: move: Device or resource busy")

    followed.work = refuse
    async with NriRuntime(tmp_path / "nri") as runtime, plugin_of(runtime, followed):
        await runtime.begin()
        answer = await runtime.call("StateChange", {1: 1, 2: pod("a")})
        assert decode(answer[1]) == {1: 2, 2: b"0000:18:00.2 as rail3: move: Device or resource busy"}


async def test_the_answer_leaves_before_the_runtimes_limit_and_the_work_goes_on(tmp_path: Path) -> None:
    followed, driver, done = Followed(), asyncio.Event(), asyncio.Event()

    async def wait_for_driver(_: Sandbox) -> None:
        await driver.wait()
        done.set()

    followed.work = wait_for_driver
    async with NriRuntime(tmp_path / "nri", limit_ms=50) as runtime, plugin_of(runtime, followed):
        await runtime.begin()
        answer = await runtime.call("RunPodSandbox", {1: pod("a")})
        assert (1 not in answer, done.is_set()) == (True, False)
        driver.set()
        await done.wait()


async def test_a_slow_pod_does_not_delay_the_answer_for_another(tmp_path: Path) -> None:
    followed, driver = Followed(), asyncio.Event()

    async def wait_for_driver(of: Sandbox) -> None:
        if of.pod == "slow":
            await driver.wait()

    followed.work = wait_for_driver
    async with NriRuntime(tmp_path / "nri", limit_ms=60_000) as runtime, plugin_of(runtime, followed):
        await runtime.begin()
        slow = runtime.ask("RunPodSandbox", {1: pod("slow")})
        quick = runtime.ask("RunPodSandbox", {1: pod("quick")})
        assert (await runtime.receive())[1] == quick
        driver.set()
        assert (await runtime.receive())[1] == slow


async def test_a_call_of_another_version_is_unimplemented(tmp_path: Path) -> None:
    async with NriRuntime(tmp_path / "nri") as runtime, plugin_of(runtime, Followed()):
        await runtime.begin()
        answer = await runtime.call("ValidateContainerAdjustment", {1: pod("a")})
        assert decode(answer[1]) == {1: 12, 2: b"ValidateContainerAdjustment"}


async def test_more_sandboxes_than_a_node_can_have_are_refused(tmp_path: Path) -> None:
    async with NriRuntime(tmp_path / "nri") as runtime, plugin_of(runtime, Followed()):
        await runtime.connected.wait()
        answer = await runtime.call("Synchronize", {1: [{1: "x"}] * (SANDBOXES_MAX + 1)})
        assert decode(answer[1])[1] == 8


async def test_a_payload_that_is_no_message_is_answered_with_an_error(tmp_path: Path) -> None:
    async with NriRuntime(tmp_path / "nri") as runtime, plugin_of(runtime, Followed()):
        await runtime.begin()
        answer = await runtime.call("StateChange", {2: b"\xff\xff"})
        assert decode(answer[1])[1] == 3


@pytest.mark.parametrize(
    ("octets", "why"),
    [
        (struct.pack(">II", PLUGIN, 5 << 20), "a frame of 5242880 bytes is longer"),
        (struct.pack(">IIIIBB", PLUGIN, 10, 5 << 20, 1, REQUEST, 0), "a message of 5242880 bytes is longer"),
    ],
)
async def test_octets_beyond_the_bounds_end_the_connection(tmp_path: Path, octets: bytes, why: str) -> None:
    async with NriRuntime(tmp_path / "nri") as runtime, plugin_of(runtime, Followed()) as (plugin, task):
        await runtime.begin()
        runtime.send(octets)
        with pytest.raises(NriError, match=why):
            await task
        assert plugin.runtime is None


@pytest.mark.usefixtures("virtual_time")
async def test_a_connection_without_pods_stays_open(tmp_path: Path) -> None:
    """A node may have no new pod for days. The limit of the registration ended such a connection every ten seconds."""
    followed = Followed()
    async with NriRuntime(tmp_path / "nri") as runtime, plugin_of(runtime, followed) as (plugin, task):
        await runtime.begin()
        await asyncio.sleep(86_400)
        assert (task.done(), plugin.runtime is None) == (False, False)
        await runtime.call("RunPodSandbox", {1: pod("a")})
        assert followed.told[1:] == [("begin", sandbox("a"))]


@pytest.mark.usefixtures("virtual_time")
async def test_a_runtime_that_does_not_register_the_plugin_is_left(tmp_path: Path) -> None:
    async with NriRuntime(tmp_path / "nri") as runtime, plugin_of(runtime, Followed()) as (_, task):
        await runtime.connected.wait()
        with pytest.raises(NriError, match="the runtime did not register the plugin"):
            await task


async def test_the_end_of_the_runtime_is_named(tmp_path: Path) -> None:
    async with NriRuntime(tmp_path / "nri") as runtime, plugin_of(runtime, Followed()) as (_, task):
        await runtime.begin()
        runtime.close()
        with pytest.raises(NriError, match="nri: the runtime closed the connection"):
            await task


async def test_a_runtime_that_refuses_the_plugin_is_quoted(tmp_path: Path) -> None:
    socket = tmp_path / "nri"
    async with (
        NriRuntime(socket, refusal="invalid plugin index") as runtime,
        plugin_of(runtime, Followed()) as (_, task),
    ):
        with pytest.raises(NriError, match="the runtime refuses the plugin: invalid plugin index"):
            await task


async def test_without_a_socket_the_error_names_it(tmp_path: Path) -> None:
    with pytest.raises(NriError, match=r"nri\.sock: the runtime's NRI cannot be reached: No such file"):
        await NriPlugin(tmp_path / "nri.sock", Followed()).run()


# --- frames -----------------------------------------------------------------------------------------------

_MESSAGES = st.lists(
    st.tuples(
        st.sampled_from([1, 2]), st.integers(0, 2**32 - 1), st.sampled_from([1, 2]), st.binary(max_size=40)
    ),
    max_size=6,
)


@given(_MESSAGES, st.data())
def test_messages_arrive_whole_however_the_socket_cuts_them(
    sent: list[tuple[int, int, int, bytes]], data: st.DataObject
) -> None:
    octets = b"".join(message(*one) for one in sent)
    reader, got, at = TtrpcReader(), [], 0
    while at < len(octets):
        size = data.draw(st.integers(1, 30))
        got += list(reader.feed(octets[at : at + size]))
        at += size
    assert got == [TtrpcMessage(*one) for one in sent]


@given(_MESSAGES)
def test_a_message_may_come_in_frames_of_an_octet_between_those_of_the_other_connection(
    sent: list[tuple[int, int, int, bytes]],
) -> None:
    streams = {
        connection: b"".join(message(*one)[8:] for one in sent if one[0] == connection)
        for connection in (1, 2)
    }
    frames = b""
    for at in range(max(map(len, streams.values()))):
        for connection, octets in streams.items():
            if at < len(octets):
                frames += struct.pack(">II", connection, 1) + octets[at : at + 1]
    got = list(TtrpcReader().feed(frames))
    for connection in (1, 2):
        expected = [TtrpcMessage(*one) for one in sent if one[0] == connection]
        assert [one for one in got if one.connection == connection] == expected


@given(st.binary(max_size=200))
def test_any_octets_are_messages_or_an_error(octets: bytes) -> None:
    with suppress(TtrpcError):
        assert all(len(one.body) <= TTRPC_MAX for one in TtrpcReader().feed(octets))


def test_octets_of_a_third_connection_are_dropped() -> None:
    assert list(TtrpcReader().feed(message(3, 1, 1, b"x") + message(1, 1, 1, encode({1: "y"})))) == [
        TtrpcMessage(1, 1, 1, b"\n\x01y")
    ]


async def test_work_goes_on_when_its_connection_ends_and_its_failure_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    followed, begun, goes_on, ended = Followed(), asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def moves(_: Sandbox) -> None:
        begun.set()
        await goes_on.wait()
        ended.set()
        raise AttachRefused("the VF does not move")

    followed.work = moves
    async with NriRuntime(tmp_path / "nri") as runtime, plugin_of(runtime, followed):
        await runtime.begin()
        call = asyncio.create_task(runtime.call("StateChange", {1: 1, 2: pod("a")}))
        await begun.wait()
        call.cancel()
    goes_on.set()
    await ended.wait()
    await until(lambda: "the VF does not move" in caplog.text)
