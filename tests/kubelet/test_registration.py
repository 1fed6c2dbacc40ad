"""Registration with a kubelet that behaves as the real one, with its races."""

from __future__ import annotations

import asyncio
import fcntl
import gc
import itertools
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace

import grpc
import pytest

from nodeagent.facts.allocation import Allocation, DeviceInfo, Devices
from nodeagent.facts.model import HEALTHY, Function, Health, Reason, Snapshot, State
from nodeagent.host.inotify import InotifyError
from nodeagent.kinds import Refused
from nodeagent.kube import deviceplugin_pb2 as pb
from nodeagent.kubelet import node_lock, plugin, registration, registration_state, socket_probe
from nodeagent.kubelet.grown_requests import RequestNotes
from nodeagent.kubelet.registration import DevicePlugins
from nodeagent.kubelet.registration_state import KubeletId, Registration, Stage
from nodeagent.kubelet.rpc_stats import RpcStats
from nodeagent.kubelet.unix_server import BindError
from nodeagent_lab.sim.apiserver.http import stop_listening
from nodeagent_lab.sim.kubelet import Kubelet, PodSpec
from tests.support.waiting import LIMIT_S, until

DOWN = Health(State.DOWN, (Reason("carrier_down", "no carrier"),), allocatable=False)


@dataclass(frozen=True)
class Lamps:
    """A kind of device made for these tests: ``count`` lamps of one parent."""

    resource: str
    count: int = 2
    health: Health = HEALTHY
    veto: str = ""
    device_info: tuple[DeviceInfo, ...] = ()

    def devices(self, snapshot: Snapshot) -> tuple[Devices, ...]:
        ids = tuple(f"{self.resource.rpartition('/')[2]}-{n}" for n in range(self.count))
        return (Devices("parent", ids, (0,), self.health),)

    def made_of(self, snapshot: Snapshot) -> object:
        return snapshot

    def prefer(
        self,
        snapshot: Snapshot,
        available: Sequence[str],
        must_include: Sequence[str],
        size: int,
        near: Sequence[Function] = (),
        later_sizes: Sequence[int] | None = (),
    ) -> list[str]:
        if self.veto:
            raise Refused(self.veto)
        return sorted(available, reverse=True)[:size]

    def allocate(self, snapshot: Snapshot, ids: Sequence[str]) -> Allocation:
        if unknown := [id_ for id_ in ids if not id_.startswith(self.resource.rpartition("/")[2])]:
            raise Refused(f"{self.resource} has no device {unknown[0]}", invalid=True)
        return Allocation(env=(("LAMPS", ",".join(ids)),), device_info=self.device_info)


@dataclass(frozen=True)
class Written:
    """The files of an allocation, written by the test."""

    write: Callable[[Allocation], object]

    def stamped(self, allocation: Allocation) -> Allocation:
        return allocation

    def due(self, allocation: Allocation) -> bool:
        return bool(allocation.device_info)

    def take_failure(self, resource: str, allocation: Allocation) -> None:
        pass


class World:
    """A kubelet, and the device plugins under test."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.kubelet = Kubelet(directory, seed=1, reconcile_s=0.02)
        self.written: list[Allocation] = []
        self.plugins = DevicePlugins(
            directory / "device-plugins",
            files=Written(self.written.append),
            stats=RpcStats(),
            requests=RequestNotes(),
        )
        self.task: asyncio.Task[None] | None = None

    def run(self) -> None:
        self.task = asyncio.create_task(self.plugins.run())

    async def end(self) -> None:
        if self.task is not None:
            self.task.cancel()
            await asyncio.gather(self.task, return_exceptions=True)
            self.task = None
        # A cancellation while the folder is gone may leave a plugin open; its server needs the open loop.
        for resource in (*self.plugins._resources.values(), *self.plugins._withdrawn.values()):
            await resource.plugin.stop()

    async def offered(self, resource: str, count: int) -> None:
        await self.kubelet.until(lambda: self.kubelet.allocatable().get(resource) == count, 10)

    def registrations(self, resource: str) -> int:
        return sum(1 for r in self.kubelet.registrations if r.resource == resource and r.error is None)


@asynccontextmanager
async def world() -> AsyncIterator[World]:
    # A socket's path may have 107 characters, which pytest's own folders exceed.
    with TemporaryDirectory(prefix="na-") as folder:
        made = World(Path(folder))
        try:
            yield made
        finally:
            await made.end()
            await made.kubelet.stop()


async def test_every_resource_is_registered_and_listed() -> None:
    async with world() as w:
        await w.kubelet.start()
        w.plugins.update([Lamps("example.com/a"), Lamps("example.com/b", 3)], Snapshot())
        w.run()
        await w.offered("example.com/a", 2)
        await w.offered("example.com/b", 3)
        await w.kubelet.until(lambda: all(status.registered for status in w.plugins.statuses()))
        assert [status.resource for status in w.plugins.statuses()] == ["example.com/a", "example.com/b"]


async def test_resources_with_names_longer_than_a_socket_path_are_registered() -> None:
    """A prefix may have 253 characters, the path of a socket 107."""
    prefix = ".".join(["accelerators"] * 9)
    async with world() as w:
        await w.kubelet.start()
        w.plugins.update([Lamps(f"{prefix}/a"), Lamps(f"{prefix}/b", 3)], Snapshot())
        w.run()
        await w.offered(f"{prefix}/a", 2)
        await w.offered(f"{prefix}/b", 3)


async def test_health_changes_are_sent_in_both_directions_and_no_list_is_sent_twice() -> None:
    async with world() as w:
        await w.kubelet.start()
        lamps = Lamps("example.com/a")
        w.plugins.update([lamps], Snapshot())
        w.run()
        await w.offered("example.com/a", 2)
        w.plugins.update([replace(lamps, health=DOWN)], Snapshot())
        await w.offered("example.com/a", 0)
        assert w.kubelet.capacity() == {"example.com/a": 2}
        w.plugins.update([lamps], Snapshot(revision=9))
        w.plugins.update([lamps], Snapshot(revision=10))
        await w.offered("example.com/a", 2)
        assert not any(update.repeated for update in w.kubelet.updates)
        assert len(w.kubelet.updates) == 3


async def test_the_agent_waits_for_a_kubelet_that_starts_later() -> None:
    async with world() as w:
        w.plugins.update([Lamps("example.com/a")], Snapshot())
        w.run()
        await asyncio.sleep(0)
        assert not w.plugins.statuses()[0].registered
        await w.kubelet.start(listen_delay_s=0.05)
        await w.offered("example.com/a", 2)


async def test_a_kubelet_that_restarts_gets_every_resource_again() -> None:
    async with world() as w:
        await w.kubelet.start()
        w.plugins.update([Lamps("example.com/a"), Lamps("example.com/b")], Snapshot())
        w.run()
        for _ in range(3):
            await w.offered("example.com/a", 2)
            await w.offered("example.com/b", 2)
            await w.kubelet.restart(listen_delay_s=0.02)
        await w.offered("example.com/a", 2)
        await w.offered("example.com/b", 2)


async def test_a_kubelet_that_was_killed_and_restarted_gets_every_resource_again() -> None:
    async with world() as w:
        await w.kubelet.start()
        w.plugins.update([Lamps("example.com/a")], Snapshot())
        w.run()
        await w.offered("example.com/a", 2)
        await w.kubelet.kill()
        await until(lambda: not w.plugins.statuses()[0].registered)
        await w.kubelet.start()
        await w.offered("example.com/a", 2)


async def test_a_kubelet_that_holds_every_stream_is_not_probed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection wakes the kubelet, and its open streams show that it is there."""
    probes, looks = [], asyncio.Queue[None]()

    async def connects(path: Path) -> bool:
        probes.append(path)
        return await socket_probe.connects(path)

    def looked(path: Path) -> KubeletId | None:
        looks.put_nowait(None)
        return socket_probe.kubelet_id(path)

    monkeypatch.setattr(registration, "connects", connects)
    monkeypatch.setattr(registration, "kubelet_id", looked)
    monkeypatch.setattr(registration, "SOCKET_LOOK_S", 0.005)
    async with world() as w:
        await w.kubelet.start()
        w.plugins.update([Lamps("example.com/a"), Lamps("example.com/b")], Snapshot())
        w.run()
        await w.offered("example.com/a", 2)
        await w.offered("example.com/b", 2)
        await until(lambda: all(status.streams and status.registered for status in w.plugins.statuses()))
        before = len(probes)
        while not looks.empty():
            looks.get_nowait()
        async with asyncio.timeout(LIMIT_S):
            for _ in range(20):
                await looks.get()
        assert len(probes) == before
        await w.kubelet.restart()
        await w.offered("example.com/a", 2)
        assert len(probes) > before


THIS, OTHER = (1, 2, 3), (1, 2, 4)


@pytest.mark.parametrize(
    ("held", "by", "stage", "streams", "stream_lost"),
    [
        (True, THIS, Stage.REGISTERED, 1, False),
        (True, THIS, Stage.REGISTERED, 2, False),
        (False, OTHER, Stage.REGISTERED, 1, False),
        (False, THIS, Stage.UNREGISTERED, 1, False),
        (False, THIS, Stage.REFUSED, 1, False),
        (False, THIS, Stage.REGISTERED, 0, False),
        (False, THIS, Stage.REGISTERED, 1, True),
    ],
)
def test_a_kubelet_holds_a_resource_that_it_accepted_and_whose_stream_is_open(
    held: bool, by: KubeletId, stage: Stage, streams: int, stream_lost: bool
) -> None:
    """A kubelet that holds every resource is not asked whether it is there."""
    resource = registration._Resource(SimpleNamespace(streams=streams), RpcStats())
    resource.state, resource.stream_lost = Registration(stage=stage, kubelet=THIS), stream_lost
    assert resource.is_held_by(by) is held


async def test_a_refusal_is_the_reason_in_the_status_and_is_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registration_state, "REGISTRATION_RETRY_FIRST_S", 0.02)
    async with world() as w:
        w.kubelet.refuse("the resource name is taken")
        await w.kubelet.start()
        w.plugins.update([Lamps("example.com/a")], Snapshot())
        w.run()
        await w.kubelet.until(lambda: len(w.kubelet.registrations) >= 2)
        assert "the resource name is taken" in w.plugins.statuses()[0].reason
        w.kubelet.refuse(None)
        await w.offered("example.com/a", 2)


async def test_a_removed_socket_is_bound_and_registered_again_without_the_race() -> None:
    """The kubelet lives on: its old stream must be closed before the new registration (#127803)."""
    async with world() as w:
        await w.kubelet.start()
        w.plugins.update([Lamps("example.com/a")], Snapshot())
        w.run()
        await w.offered("example.com/a", 2)
        (socket,) = w.kubelet.socket.parent.glob("nodeagent-*.sock")
        socket.unlink()
        await w.kubelet.until(lambda: w.registrations("example.com/a") == 2)
        await w.offered("example.com/a", 2)
        assert socket.exists()


async def test_a_stream_that_the_kubelet_closed_is_registered_again() -> None:
    async with world() as w:
        await w.kubelet.start()
        w.plugins.update([Lamps("example.com/a")], Snapshot())
        w.run()
        await w.offered("example.com/a", 2)
        place = w.plugins._resources["example.com/a"]
        await place.plugin.stop()  # as a connection that broke: the kubelet never opens it again
        place.stream_lost = True
        w.plugins._wake.set()
        await w.kubelet.until(lambda: w.registrations("example.com/a") == 2)
        await w.offered("example.com/a", 2)


async def test_a_second_agent_waits_for_the_first_one_to_end() -> None:
    async with world() as w:
        await w.kubelet.start()
        lock = w.kubelet.socket.parent / node_lock.LOCK
        first = os.open(lock, os.O_RDWR | os.O_CREAT)
        fcntl.flock(first, fcntl.LOCK_EX)
        w.plugins.update([Lamps("example.com/a")], Snapshot())
        w.run()
        for _ in range(20):
            await asyncio.sleep(0.005)
        assert list(w.kubelet.socket.parent.glob("nodeagent-*.sock")) == []
        os.close(first)
        await w.offered("example.com/a", 2)


async def test_a_withdrawn_resource_loses_its_socket_and_a_new_resource_gets_one() -> None:
    async with world() as w:
        await w.kubelet.start()
        w.plugins.update([Lamps("example.com/a")], Snapshot())
        w.run()
        await w.offered("example.com/a", 2)
        w.plugins.update([Lamps("example.com/b")], Snapshot())
        await w.offered("example.com/b", 2)
        await w.offered("example.com/a", 0)
        assert [path.name for path in w.kubelet.socket.parent.glob("nodeagent-*.sock")] == [
            "nodeagent-example.com_b.sock"
        ]


async def test_the_kubelets_folder_may_be_removed_and_created_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world() as w:
        await w.kubelet.start()
        w.plugins.update([Lamps("example.com/a")], Snapshot())
        w.run()
        await w.offered("example.com/a", 2)
        await w.kubelet.stop()
        folder = w.kubelet.socket.parent
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()
        await w.kubelet.start()
        await w.offered("example.com/a", 2)


async def test_a_pod_gets_the_preferred_devices_and_a_veto_is_in_its_message() -> None:
    async with world() as w:
        await w.kubelet.start()
        lamps = Lamps("example.com/a", 4)
        w.plugins.update([lamps], Snapshot())
        w.run()
        await w.offered("example.com/a", 4)
        given = (await w.kubelet.admit(PodSpec.single("one", {"example.com/a": 2}))).given["main"]
        assert sorted(dict(given.env)["LAMPS"].split(",")) == ["a-2", "a-3"]
        w.plugins.update([replace(lamps, veto="no single lamp is bright enough")], Snapshot())
        refused = await w.kubelet.admit(PodSpec.single("two", {"example.com/a": 1}))
        assert (refused.phase, refused.reason) == ("Failed", "UnexpectedAdmissionError")
        assert "no single lamp is bright enough" in refused.message


async def call(w: World, method: str, request: bytes) -> bytes:
    (socket,) = w.kubelet.socket.parent.glob("nodeagent-*.sock")
    async with grpc.aio.insecure_channel(f"unix:{socket}") as channel:
        answer: bytes = await channel.unary_unary(f"/v1beta1.DevicePlugin/{method}")(request, timeout=5)
        return answer


def allocate(*ids: str) -> bytes:
    wanted = pb.ContainerAllocateRequest(devices_ids=ids)
    return pb.AllocateRequest(container_requests=[wanted]).SerializeToString()


async def test_invalid_requests_are_refused_and_the_agent_continues() -> None:
    async with world() as w:
        await w.kubelet.start()
        w.plugins.update([Lamps("example.com/a")], Snapshot())
        w.run()
        await w.offered("example.com/a", 2)
        for method in ("Allocate", "GetPreferredAllocation"):
            with pytest.raises(grpc.aio.AioRpcError) as garbage:
                await call(w, method, b"\xff\xff\xff")
            assert garbage.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        with pytest.raises(grpc.aio.AioRpcError, match="has no device b-1"):
            await call(w, "Allocate", allocate("b-1"))
        w.plugins.update([Lamps("example.com/a", 1)], Snapshot())
        with pytest.raises(grpc.aio.AioRpcError) as missing:
            await call(w, "Allocate", allocate("a-1"))
        assert missing.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert missing.value.details() == "example.com/a: a-1 is no longer found on this node"
        assert await call(w, "Allocate", allocate("a-0"))


async def test_a_full_disk_refuses_the_allocation_and_names_the_file() -> None:
    async with world() as w:

        def full(_allocation: Allocation) -> None:
            raise OSError(28, "No space left on device", "/var/run/k8s.cni.cncf.io/devinfo/dp/x-device.json")

        w.plugins = DevicePlugins(
            w.directory / "device-plugins", files=Written(full), stats=RpcStats(), requests=RequestNotes()
        )
        await w.kubelet.start()
        w.plugins.update([Lamps("example.com/a", device_info=(DeviceInfo("x", "{}"),))], Snapshot())
        w.run()
        await w.offered("example.com/a", 2)
        refused = await w.kubelet.admit(PodSpec.single("one", {"example.com/a": 1}))
        assert refused.phase == "Failed"
        assert "x-device.json cannot be written: No space left on device" in refused.message


async def test_a_write_that_hangs_is_refused_at_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugin, "ALLOCATE_DEADLINE_S", 0.05)
    async with world() as w:
        loop, released = asyncio.get_running_loop(), asyncio.Event()

        def hang(_allocation: Allocation) -> None:
            asyncio.run_coroutine_threadsafe(released.wait(), loop).result(5)

        w.plugins = DevicePlugins(
            w.directory / "device-plugins", files=Written(hang), stats=RpcStats(), requests=RequestNotes()
        )
        await w.kubelet.start()
        w.plugins.update([Lamps("example.com/a", device_info=(DeviceInfo("x", "{}"),))], Snapshot())
        w.run()
        await w.offered("example.com/a", 2)
        try:
            refused = await w.kubelet.admit(PodSpec.single("one", {"example.com/a": 1}))
            assert "were not written within 0.05 s" in refused.message
        finally:
            released.set()


async def test_a_folder_that_takes_no_socket_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world() as w:
        place = Lamps("example.com/" + "x" * 60)
        w.plugins.update([place], Snapshot())
        made = w.plugins._resources[place.resource].plugin
        with pytest.raises(BindError, match="cannot listen on"):
            await made.start(w.directory / ("deep" * 30) / "a.sock")


def test_a_lock_whose_folder_is_gone_stays_with_its_holder_alone(tmp_path: Path) -> None:
    folder = tmp_path / "device-plugins"
    folder.mkdir()
    path = folder / node_lock.LOCK
    locks = [node_lock.NodeLock(path, os.open(path, os.O_RDWR | os.O_CREAT)) for _ in range(2)]
    with closing(locks[0]) as first, closing(locks[1]) as second:
        assert (first.take(), second.take()) == (True, False)
        shutil.rmtree(folder)
        assert first.take()
        with pytest.raises(FileNotFoundError):
            second.take()


async def test_a_folder_that_takes_no_lock_is_the_reason_until_it_takes_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(node_lock, "OPEN_AGAIN_S", 0.01)
    async with world() as w:
        await w.kubelet.start()
        lock = w.directory / "device-plugins" / node_lock.LOCK
        lock.mkdir()
        w.plugins.update([Lamps("example.com/a")], Snapshot())
        w.run()
        reason = "nodeagent.lock cannot be opened: Is a directory"
        await until(lambda: reason in w.plugins.statuses()[0].reason)
        assert "mount the kubelet's folder read-write" in w.plugins.statuses()[0].reason
        lock.rmdir()
        await w.offered("example.com/a", 2)


READ_ONLY = """
import asyncio, subprocess, sys
from pathlib import Path
from nodeagent.facts.model import Snapshot
from nodeagent_lab.sim.kubelet import Kubelet
from nodeagent.kubelet import node_lock
from tests.kubelet.test_registration import Lamps, World
from tests.support.waiting import until

node_lock.OPEN_AGAIN_S = 0.01

async def main():
    w = World(Path(sys.argv[1]))
    await w.kubelet.start()
    place = str(w.directory / "device-plugins")
    subprocess.run(["mount", "--bind", "-o", "ro", place, place], check=True)
    w.plugins.update([Lamps("example.com/a")], Snapshot())
    w.run()
    await until(lambda: "it is mounted read-only" in w.plugins.statuses()[0].reason)
    print(w.plugins.statuses()[0].reason)
    subprocess.run(["umount", place], check=True)
    await w.offered("example.com/a", 2)
    await w.end()
    await w.kubelet.stop()

asyncio.run(main())
"""


@pytest.mark.needs("root", "unshare", "mount")
def test_the_agent_waits_while_the_folder_is_read_only() -> None:
    with TemporaryDirectory(prefix="na-") as folder:
        done = subprocess.run(
            ["unshare", "-m", "--propagation", "private", sys.executable, "-c", READ_ONLY, folder],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
    assert done.returncode == 0, done.stderr
    assert f"{folder}/device-plugins/nodeagent.lock cannot be opened: it is mounted read-only" in done.stdout


async def test_registration_follows_as_soon_as_a_late_kubelet_listens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(registration, "SOCKET_LOOK_S", 600.0)
    monkeypatch.setattr(registration_state, "REGISTRATION_RETRY_FIRST_S", 600.0)
    async with world() as w:
        await w.kubelet.start()
        w.plugins.update([Lamps("example.com/a")], Snapshot())
        w.run()
        await w.offered("example.com/a", 2)
        await w.kubelet.restart(listen_delay_s=0.5)
        await w.offered("example.com/a", 2)


def no_inotify() -> None:
    raise InotifyError("too many watches")


@asynccontextmanager
async def hanging_kubelet(w: World) -> AsyncIterator[asyncio.Event]:
    """A kubelet that accepts connections and never answers. The event is set when the agent has sent Register."""
    asked, connections = asyncio.Event(), dict[asyncio.Task[None] | None, asyncio.StreamWriter]()

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections[asyncio.current_task()] = writer
        with closing(writer), suppress(ConnectionError):
            while await reader.read(1 << 16):  # a probe sends nothing
                asked.set()

    w.kubelet.socket.parent.mkdir(parents=True, exist_ok=True)
    server = await asyncio.start_unix_server(hang, w.kubelet.socket)
    try:
        yield asked
    finally:
        await stop_listening(server)
        for writer in connections.values():  # gRPC ends an attempt to connect after 20 s
            writer.transport.abort()
        await asyncio.gather(*filter(None, connections))


@pytest.mark.parametrize("inotify", [True, False])
async def test_a_kubelet_that_never_answers_does_not_delay_the_one_that_replaces_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, inotify: bool
) -> None:
    monkeypatch.setattr(registration, "REGISTER_S", 600.0)
    monkeypatch.setattr(registration, "SOCKET_LOOK_S", 600.0)
    if not inotify:
        monkeypatch.setattr(registration, "FolderWatch", no_inotify)
    async with world() as w, hanging_kubelet(w) as asked:
        w.plugins.update([Lamps("example.com/a"), Lamps("example.com/b")], Snapshot())
        w.run()
        async with asyncio.timeout(30):
            await asked.wait()
        w.plugins._wake.clear()  # ``update`` has set it
        await w.kubelet.start()
        await w.offered("example.com/a", 2)
        await w.offered("example.com/b", 2)
    gc.collect()  # it reports an error that no task has taken
    assert not [record for record in caplog.records if record.name == "asyncio"]


async def test_a_folder_of_the_kubelet_that_hangs_during_register_does_not_stop_the_event_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(socket_probe, "REPLACED_S", 0.001)
    monkeypatch.setattr(registration, "FOLDER_S", 0.01)
    hangs, looked, free = False, asyncio.Event(), threading.Event()
    loop, stat = asyncio.get_running_loop(), Path.stat

    def hang(path: Path, *, follow_symlinks: bool = True) -> os.stat_result:
        if hangs and path.name == "kubelet.sock":
            loop.call_soon_threadsafe(looked.set)
            free.wait(30)
        return stat(path, follow_symlinks=follow_symlinks)

    monkeypatch.setattr(Path, "stat", hang)
    async with world() as w, hanging_kubelet(w) as asked:
        w.plugins.update([Lamps("example.com/a")], Snapshot())
        w.run()
        async with asyncio.timeout(30):
            await asked.wait()
            hangs = True
            await looked.wait()
        assert not free.is_set()
        await asyncio.sleep(0)
        free.set()
        hangs = False
        await w.kubelet.start()
        await w.offered("example.com/a", 2)


async def test_a_folder_in_place_of_a_socket_affects_that_resource_alone() -> None:
    async with world() as w:
        await w.kubelet.start()
        folder = w.kubelet.socket.parent / "nodeagent-example.com_a.sock"
        folder.mkdir()
        (w.kubelet.socket.parent / "nodeagent-example.com_b.sock").write_text("left over")
        w.plugins.update([Lamps("example.com/a"), Lamps("example.com/b")], Snapshot())
        w.run()
        await w.offered("example.com/b", 2)
        assert "nodeagent-example.com_a.sock" in w.plugins.statuses()[0].reason
        folder.rmdir()
        await w.offered("example.com/a", 2)
        assert w.registrations("example.com/b") == 1


async def test_resources_may_change_while_the_loop_closes_others() -> None:
    async with world() as w:
        await w.kubelet.start()
        stays, goes = Lamps("example.com/a"), Lamps("example.com/b")
        w.plugins.update([stays, goes], Snapshot())
        w.run()
        await w.offered("example.com/a", 2)
        await w.offered("example.com/b", 2)
        endpoint = w.plugins._resources["example.com/a"].plugin
        for socket in w.kubelet.socket.parent.glob("nodeagent-*.sock"):
            socket.unlink()
        await until(lambda: not endpoint.serving, pause_s=0)
        w.plugins.update([stays], Snapshot())  # in the middle of closing the first
        await w.kubelet.until(lambda: w.registrations("example.com/a") == 2)
        assert w.task is not None
        assert not w.task.done()


async def test_a_resource_that_is_offered_again_keeps_its_ids_and_avoids_the_race() -> None:
    """The old stream's end must be over before the new registration (#127803)."""
    async with world() as w:
        await w.kubelet.start()
        a, b = Lamps("example.com/a", 3), Lamps("example.com/b")
        w.plugins.update([a], Snapshot())
        w.run()
        await w.offered("example.com/a", 3)
        for _ in range(5):
            w.plugins.update([b], Snapshot())
            await asyncio.sleep(0.002)
            w.plugins.update([a, b], Snapshot())
            await w.offered("example.com/a", 3)
        w.plugins.update([b], Snapshot())
        await w.offered("example.com/a", 0)
        w.plugins.update([replace(a, count=2), b], Snapshot())
        await w.offered("example.com/a", 2)
        assert w.kubelet.capacity()["example.com/a"] == 3


async def open_and_cancel_stream(path: Path) -> None:
    options = (("grpc.use_local_subchannel_pool", 1),)
    async with grpc.aio.insecure_channel(f"unix:{path}", options=options) as channel:
        stream = channel.unary_stream("/v1beta1.DevicePlugin/ListAndWatch")(b"")
        await stream.read()
        stream.cancel()


class FickleKubelet:
    """Accepts every registration, and closes the stream before it answers Register, or opens none."""

    def __init__(self, socket: Path, *, opens: bool = True) -> None:
        self.socket, self.opens = socket, opens
        self.registered_at: list[float] = []
        self.server = grpc.aio.server()
        handler = grpc.unary_unary_rpc_method_handler(self._register)
        self.server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("v1beta1.Registration", {"Register": handler}),)
        )

    async def start(self) -> None:
        self.socket.parent.mkdir(parents=True)
        self.server.add_insecure_port(f"unix:{self.socket}")
        await self.server.start()

    async def _register(self, request: bytes, _context: object) -> bytes:
        if self.opens:
            await open_and_cancel_stream(self.socket.parent / pb.RegisterRequest.FromString(request).endpoint)
        self.registered_at.append(asyncio.get_running_loop().time())
        return b""


async def test_a_stream_lost_inside_register_is_noticed_without_a_look_and_the_pauses_grow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(registration, "SOCKET_LOOK_S", 600.0)
    async with world() as w:
        kubelet = FickleKubelet(w.kubelet.socket)
        await kubelet.start()
        w.plugins.update([Lamps("example.com/a")], Snapshot())
        w.run()
        try:
            await until(lambda: len(kubelet.registered_at) >= 4)
            pauses = [later - earlier for earlier, later in itertools.pairwise(kubelet.registered_at)]
            for times, pause in enumerate(pauses):
                assert pause >= 0.1 * 2**times, pauses
        finally:
            await kubelet.server.stop(None)
            del kubelet.server  # its finalizer needs the open loop


async def test_a_kubelet_that_accepts_and_opens_no_stream_is_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(registration, "SOCKET_LOOK_S", 0.05)
    monkeypatch.setattr(registration, "REGISTER_S", 0.5)
    async with world() as w:
        kubelet = FickleKubelet(w.kubelet.socket, opens=False)
        await kubelet.start()
        w.plugins.update([Lamps("example.com/a")], Snapshot())
        w.run()
        try:
            await until(lambda: len(kubelet.registered_at) >= 2)
            first, second = kubelet.registered_at[:2]
            assert second - first > 0.5
        finally:
            await kubelet.server.stop(None)
            del kubelet.server  # its finalizer needs the open loop


async def test_a_touched_socket_of_the_same_kubelet_causes_no_registration(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its mode or label has changed; the streams show that the process is the same."""
    monkeypatch.setattr(registration, "SOCKET_LOOK_S", 0.05)
    async with world() as w:
        await w.kubelet.start()
        w.plugins.update([Lamps("example.com/a")], Snapshot())
        w.run()
        await w.offered("example.com/a", 2)
        resource = w.plugins._resources["example.com/a"]
        await until(lambda: resource.plugin.streams and resource.state.registered)
        w.kubelet.socket.chmod(0o660)
        touched = socket_probe.kubelet_id(w.kubelet.socket)
        assert resource.state.kubelet != touched
        await until(lambda: resource.state.kubelet == touched)
        assert w.registrations("example.com/a") == 1
