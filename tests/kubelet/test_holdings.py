"""When an empty list of the kubelet counts: after the time for a start, or sooner if it lists the agent's own pod."""

from __future__ import annotations

import asyncio
import socket
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import grpc
import pytest

from nodeagent.facts.model import Holding
from nodeagent.kube.podresources_client import PodResources, PodResourcesError
from nodeagent.kubelet import holdings
from nodeagent_lab.sim.kubelet import Container, Kubelet, PodSpec

NEVER_S = 3600.0
OWN_S = 0.15
AGENT = PodSpec("nodeagent-x7k2p", (Container("agent", {}),), namespace="nodeagent")
STATIC = PodSpec("etcd-n1", (Container("etcd", {}),), namespace="kube-system")


@asynccontextmanager
async def watched(kubelet: Kubelet) -> AsyncIterator[asyncio.Queue[tuple[Holding, ...]]]:
    """A queue of the published holdings. An empty list without the own pod never counts within a test."""
    published: asyncio.Queue[tuple[Holding, ...]] = asyncio.Queue()
    task = asyncio.create_task(
        holdings.watch_holdings(
            kubelet.podresources_socket,
            lambda holdings, _users: published.put_nowait(holdings),
            lambda _reason: None,
            asyncio.Event(),
            interval_s=0.05,
            own_pod=(AGENT.namespace, AGENT.name),
            empty_stands_s=NEVER_S,
            own_stands_s=OWN_S,
        )
    )
    try:
        yield published
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


@asynccontextmanager
async def running(*pods: PodSpec) -> AsyncIterator[Kubelet]:
    """A kubelet that has started these pods, and that has just been restarted."""
    with tempfile.TemporaryDirectory() as folder:
        kubelet = Kubelet(Path(folder), seed=1)
        await kubelet.start()
        for pod in pods:
            await kubelet.admit(pod)
        await kubelet.restart()
        try:
            yield kubelet
        finally:
            await kubelet.stop()


async def test_an_empty_list_with_the_own_pod_counts_when_it_has_lasted() -> None:
    async with running(AGENT) as kubelet, watched(kubelet) as published:
        began = asyncio.get_running_loop().time()
        assert await asyncio.wait_for(published.get(), 20) == ()
        assert asyncio.get_running_loop().time() - began >= OWN_S


async def test_an_empty_list_without_the_own_pod_does_not_count_yet() -> None:
    """Static pods are listed before the API server has answered the kubelet."""
    async with running(STATIC) as kubelet, watched(kubelet) as published:
        with suppress(TimeoutError):
            async with asyncio.timeout(4 * OWN_S):
                raise AssertionError(await published.get())


class BlinkingLister:
    """A kubelet that restarts all the time: every second answer lists no pod. No answer has a device."""

    def __init__(self, _socket: Path) -> None:
        self.pods_listed: frozenset[tuple[str, str]] = frozenset()

    async def list(self) -> tuple[Holding, ...]:
        own = frozenset({(AGENT.namespace, AGENT.name)})
        self.pods_listed = frozenset() if self.pods_listed else own
        return ()


async def test_the_time_begins_again_when_the_own_pod_is_not_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holdings, "PodResources", BlinkingLister)
    async with running() as kubelet, watched(kubelet) as published:
        with suppress(TimeoutError):
            async with asyncio.timeout(4 * OWN_S):
                raise AssertionError(await published.get())


async def test_a_kubelet_that_accepts_and_never_answers_costs_the_limit_and_is_named(tmp_path: Path) -> None:
    path = tmp_path / "kubelet.sock"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()
        with pytest.raises(PodResourcesError, match=r"kubelet\.sock: .* no answer within 0\.05 s"):
            await PodResources(path, timeout_s=0.05).list()


async def garbage(_request: bytes, _context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
    return b"\xff\xff\xff"


async def test_an_answer_that_cannot_be_read_is_a_failure_and_not_the_end_of_the_task(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, stale = tmp_path / "kubelet.sock", asyncio.Queue[str]()
    server = grpc.aio.server()
    methods = ("List", "GetAllocatableResources")
    handlers = {method: grpc.unary_unary_rpc_method_handler(garbage) for method in methods}
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("v1.PodResourcesLister", handlers),)
    )
    server.add_insecure_port(f"unix:{path}")
    await server.start()
    client = PodResources(path)
    for ask in (client.list, client.offered):
        with pytest.raises(PodResourcesError, match=r"kubelet\.sock: .* the answer is no \w+Response"):
            await ask()
    watching = asyncio.create_task(
        holdings.watch_holdings(path, lambda *_: None, stale.put_nowait, asyncio.Event(), interval_s=0.01)
    )
    for _ in range(2):  # it goes on
        assert "the answer is no ListPodResourcesResponse" in await asyncio.wait_for(stale.get(), 20)
    watching.cancel()
    with suppress(asyncio.CancelledError):
        await watching
    await server.stop(None)
    assert [record.name for record in caplog.records if record.exc_info] == []
