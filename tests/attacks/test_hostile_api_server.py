"""An API server that floods its clients, or asks them to send without a pause, or to wait without end.

Conditions: answers of hundreds of MiB, with and without an announced length, as gzip, nested millions of times, or of
millions of small values; a watch with an endless event; a list without a last page. Refusals with every form of
``Retry-After``: 0, negative, a date, a number of a thousand digits. The agent runs as a process of its own. Its memory
must not grow by more than a few tens of MiB, and each error names the call and the limit. Requests stay few, and the
agent tries again within minutes.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
import time
from collections.abc import Iterator
from contextlib import aclosing
from email.utils import formatdate
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from nodeagent.base.backoff import ASKED_MAX_S
from nodeagent.kube.access import Access
from nodeagent.kube.client import ApiClient, ApiError
from nodeagent.kube.resource import NODELINKS, NODES
from nodeagent_lab.sim.machine import Machine
from tests.support import hostile_server as hostile
from tests.support.running_agent import HEAD, IN_MEMORY, SMALL

GROWTH_MAX_MIB = 48
KUBECONFIG = """\
current-context: c
contexts: [{name: c, context: {cluster: c, user: u, namespace: nodeagent}}]
clusters: [{name: c, cluster: {server: "URL"}}]
users: [{name: u, user: {token: t}}]
"""


def peak_mib(pid: int) -> float:
    found = re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) / 1024


class DaemonProcess:
    """The agent on a simulated machine without a kubelet, or the controller, with an API server of the test."""

    def __init__(self, folder: Path, url: str) -> None:
        Machine.load(SMALL).write(folder / "r")
        (folder / "k").mkdir()
        (folder / "kubeconfig").write_text(KUBECONFIG.replace("URL", url))
        (folder / "c.yaml").write_text(
            f"{HEAD}cluster: {{access: kubeconfig, kubeconfig: {folder}/kubeconfig, conditions: true}}\n"
        )
        self._folder = folder
        self._log = (folder / "log").open("wb")
        self.process: asyncio.subprocess.Process | None = None

    async def start(self) -> int:
        return await self._run(
            "run", "--root", self._folder / "r", "--kubelet-dir", self._folder / "k",
            "--config", self._folder / "c.yaml", "--listen", "127.0.0.1:0",
        )  # fmt: skip

    async def start_controller(self) -> int:
        return await self._run(
            "controller", "--kubeconfig", self._folder / "kubeconfig", "--listen", "127.0.0.1:0"
        )

    async def _run(self, *arguments: str | Path) -> int:
        self.process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "nodeagent", *arguments,
            env=os.environ | {"NODE_NAME": "gpu-0"},
            stderr=self._log,
        )  # fmt: skip
        return self.process.pid

    @property
    def log(self) -> str:
        return (self._folder / "log").read_text()

    async def end(self) -> None:
        if self.process is not None and self.process.returncode is None:
            self.process.kill()
            await self.process.wait()
        self._log.close()


@pytest.mark.parametrize("kind", ["endless", "announced", "crowded"])
async def test_a_flood_of_the_api_server_does_not_fill_the_memory_of_the_agent(kind: str) -> None:
    """Without its bound, each of these fills the memory. The test of the errors has those that two bounds stop."""
    with TemporaryDirectory(prefix="na-", dir=IN_MEMORY) as folder:
        async with hostile.hostile_server() as server:
            agent = DaemonProcess(Path(folder), server.url)
            try:
                pid = await agent.start()
                await server.until(lambda: bool(server.requests))
                before = peak_mib(pid)
                flood = getattr(hostile, kind)
                await server.set_answer(lambda _: flood())
                first = len(server.requests)
                await server.until(lambda: len(server.requests) >= first + 3)
                assert peak_mib(pid) - before < GROWTH_MAX_MIB
                assert agent.process is not None
                assert agent.process.returncode is None, agent.log
                assert (
                    "get /apis/nodeagent.io/v1alpha1/namespaces/nodeagent/nodelinks/gpu-0: 200" in agent.log
                )
            finally:
                await agent.end()


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("endless", "TooLarge: the answer is refused: more than 4194304 bytes"),
        ("announced", "TooLarge: the answer is refused: 419430400 bytes, at most 4194304 are accepted"),
        ("gzip_bomb", "Broken: the answer has the content encoding 'gzip', which was not requested"),
        ("nested", "TooLarge: the answer is refused: more than 200000 values"),
        ("crowded", "TooLarge: the answer is refused: more than 200000 values"),
    ],
)
async def test_the_error_names_the_call_and_the_limit(kind: str, message: str) -> None:
    async with hostile.hostile_server() as server:
        flood = getattr(hostile, kind)
        await server.set_answer(lambda _: flood())
        client = ApiClient(Access(server.url), timeout_s=60.0)
        with pytest.raises(ApiError) as raised:
            await client.get(NODELINKS, "gpu-0", namespace="nodeagent")
        assert str(raised.value).startswith(
            "get /apis/nodeagent.io/v1alpha1/namespaces/nodeagent/nodelinks/gpu-0"
        )
        assert message in str(raised.value)
        await client.close()


async def test_a_deep_answer_within_the_other_limits_is_refused() -> None:
    async with hostile.hostile_server() as server:
        body = b'{"metadata":{"name":"a"},"spec":' + b"[" * 150_000 + b"]" * 150_000 + b"}"
        await server.set_answer(lambda _: hostile._whole(body))
        client = ApiClient(Access(server.url), timeout_s=60.0)
        with pytest.raises(ApiError, match=r"get /api/v1/nodes/a: 200 TooLarge: .*nested too deeply"):
            await client.get(NODES.partial, "a")
        await client.close()


async def test_a_list_without_a_last_page_and_a_watch_with_an_endless_event_end_with_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("nodeagent.kube.answer_bounds.OBJECTS_MAX", 50)
    page = b'{"metadata":{"resourceVersion":"1","continue":"more"},"items":[{"metadata":{"name":"a"}}]}'
    async with hostile.hostile_server() as server:
        client = ApiClient(Access(server.url), timeout_s=60.0)
        await server.set_answer(lambda _: hostile._whole(page))
        with pytest.raises(ApiError, match=r"list /api/v1/nodes: 200 TooLarge: .*more than 50 objects"):
            await client.list(NODES.partial)
        await server.set_answer(lambda _: hostile.endless())
        async with aclosing(client.watch(NODES.partial, resource_version="1")) as events:
            with pytest.raises(ApiError, match=r"watch /api/v1/nodes: 200 TooLarge: .*an event of more than"):
                await anext(events)
        await client.close()


async def test_a_page_that_is_too_large_is_requested_in_smaller_parts() -> None:
    async with hostile.hostile_server() as server:

        def answer(line: str) -> Iterator[bytes]:
            if "limit=500" in line:
                return hostile.endless()
            return hostile._whole(b'{"metadata":{"resourceVersion":"7"},"items":[{"metadata":{"name":"a"}}]}')

        await server.set_answer(answer)
        client = ApiClient(Access(server.url), timeout_s=60.0)
        listed = await client.list(NODES.partial)
        assert ([item.metadata.name for item in listed.items], listed.resource_version) == (["a"], "7")
        assert "limit=62" in server.requests[-1]
        await client.close()


NO_WAIT = ("0", "00000", "-1", "soon", formatdate(0, usegmt=True), "1.5", "\u0663", "")


async def test_no_retry_after_makes_the_agent_send_without_a_pause() -> None:
    """The agent sends for its report, its marks and its Events; 33,000 requests in 14 s were seen."""

    async def send(status: int, after: str) -> None:
        async with hostile.hostile_server() as server:
            header = f"Retry-After: {after}".encode().decode("latin-1")
            await server.set_answer(lambda _: hostile.refusal(status, header))
            client = ApiClient(Access(server.url), timeout_s=4.0)
            with pytest.raises(ApiError, match=r"later|no answer"):
                await client.get(NODES.partial, "a")
            assert len(server.requests) <= 4, f"waits of about 1 s and 2 s after {status} and {header!r}"
            await client.close()

    async with asyncio.TaskGroup() as group:
        for status in (429, 503):
            for after in NO_WAIT:
                group.create_task(send(status, after))


@pytest.mark.parametrize("after", [str(10**10), "9" * 1000, "Fri, 01 Jan 2100 00:00:00 GMT"])
async def test_no_retry_after_makes_a_client_wait_without_end(after: str) -> None:
    async with hostile.hostile_server() as server:
        await server.set_answer(lambda _: hostile.refusal(429, f"Retry-After: {after}"))
        client = ApiClient(Access(server.url), timeout_s=60.0)
        with pytest.raises(ApiError) as raised:
            await client.get(NODES.partial, "a")
        assert raised.value.retry_after_s == ASKED_MAX_S
        await client.close()


@pytest.mark.parametrize("daemon", ["agent", "controller"])
async def test_a_daemon_that_is_refused_with_retry_after_0_sends_few_requests(daemon: str) -> None:
    """Each task sends about once after 0, 1, 3 and 7 s: the controller has five of them, the agent three."""
    with TemporaryDirectory(prefix="na-", dir=IN_MEMORY) as folder:
        async with hostile.hostile_server() as server:
            process = DaemonProcess(Path(folder), server.url)
            try:
                await server.set_answer(lambda _: hostile.refusal(429, "Retry-After: 0"))
                await (process.start() if daemon == "agent" else process.start_controller())
                await server.until(lambda: bool(server.requests))
                began = time.monotonic()
                await server.until(lambda: len(server.requests) >= (8 if daemon == "agent" else 16))
                passed = time.monotonic() - began
                assert passed > 1.0, f"{len(server.requests)} requests in {passed:.1f} s"
            finally:
                await process.end()


async def test_a_flood_does_not_fill_the_memory_of_the_controller() -> None:
    """Three lists, the lease and a watch at a time, each within its own bound: half of the limit of the shipped pod."""
    with TemporaryDirectory(prefix="na-", dir=IN_MEMORY) as folder:
        async with hostile.hostile_server() as server:
            process = DaemonProcess(Path(folder), server.url)
            try:
                pid = await process.start_controller()
                await server.until(lambda: len(server.requests) >= 3)
                before = peak_mib(pid)
                await server.set_answer(lambda _: hostile.endless())
                first = len(server.requests)
                await server.until(lambda: len(server.requests) >= first + 12)
                assert peak_mib(pid) - before < 256
                assert "TooLarge" in process.log
            finally:
                await process.end()
