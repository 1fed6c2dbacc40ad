"""Two agents run on one node: overlapping pools, or a Helm release beside a kustomization.

Conditions: another agent holds the lock of the node, in the same PID namespace, or in one that cannot be seen; or a
process without a note holds it; or the lock file is removed under the agents. What must hold: one agent serves at a
time. `/readyz` of the other names the pod and the process of the first, in the words of docs/troubleshooting.md, and it
serves as soon as the first ends.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from nodeagent import agent
from nodeagent.agent import AgentOptions
from nodeagent.agent_config import Config
from nodeagent.cli import main
from nodeagent.kubelet import node_lock
from tests.support.manifests import ROOT
from tests.support.running_agent import HEAD, Node, node
from tests.support.waiting import Lines

NIC0 = "two-gpus-and-two-nics/nic0"
POD = {"POD_NAMESPACE": "nodeagent", "POD_NAME": "nodeagent-x7k2p"}
HOLD = """
import fcntl, sys
file = open(sys.argv[1], "w")
fcntl.flock(file, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""
IN_ITS_OWN_NAMESPACE = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")


def quoted_in_troubleshooting() -> str:
    text = (ROOT / "docs" / "troubleshooting.md").read_text()
    (sentence,) = re.findall(r'"(Another agent of this node [^"]*)"', text)
    return str(sentence)


@contextmanager
def other_agent(n: Node, *wrapper: str) -> Iterator[subprocess.Popen[bytes]]:
    config = n.folder / "other.yaml"
    config.write_text(f"{HEAD}listen: null\n")
    words = [sys.executable, "-m", "nodeagent", "run", "--config", str(config)]
    words += ["--root", str(n.root), "--kubelet-dir", str(n.kubelet.directory)]
    process = subprocess.Popen(
        [*wrapper, *words], cwd=ROOT, env=os.environ | POD, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(20)


@pytest.mark.parametrize("missing", [None, *POD])
def test_the_agent_takes_its_own_pod_from_its_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, missing: str | None
) -> None:
    """Whether podresources lists its own pod shows the agent that the list of pods is whole."""
    options: list[AgentOptions] = []

    async def run(_config: Config, made: AgentOptions) -> None:
        options.append(made)

    monkeypatch.setattr(agent, "run_agent", run)
    monkeypatch.setattr("nodeagent.commands.run.log_to_stderr", lambda *_level, **_more: None)
    monkeypatch.setattr("gc.disable", lambda: None)  # the verb has a process of its own
    for name, value in POD.items():
        monkeypatch.setenv(name, value)
    if missing is not None:
        monkeypatch.delenv(missing)
    (tmp_path / "config.yaml").write_text(HEAD)
    assert main(["run", "--config", str(tmp_path / "config.yaml")]) == 0
    assert options[0].own_pod == (None if missing else ("nodeagent", "nodeagent-x7k2p"))


def note(n: Node) -> dict[str, object]:
    text = (n.kubelet.directory / "device-plugins" / node_lock.LOCK).read_text()
    found: dict[str, object] = json.loads(text) if text else {}
    return found


def reasons(n: Node) -> str:
    assert n.agent is not None
    return "; ".join(status.reason for status in n.agent.plugins.statuses())


@pytest.mark.parametrize(
    "wrapper",
    [
        pytest.param((), id="same"),
        pytest.param(IN_ITS_OWN_NAMESPACE, marks=pytest.mark.needs("root", "unshare")),
    ],
)
async def test_the_second_agent_names_the_first_and_serves_when_it_ends(wrapper: tuple[str, ...]) -> None:
    async with node() as n:
        await n.kubelet.start()
        with other_agent(n, *wrapper) as other:
            await n.allocatable(NIC0, 4)
            await n.start_agent()
            await n.until(lambda: "Another" in reasons(n))
            status, body = await n.get("/readyz")
            assert status == 503
            (line,) = (line for line in body.splitlines() if line.startswith(NIC0))
            assert quoted_in_troubleshooting() in line
            assert "pod nodeagent/nodeagent-x7k2p, process" in line
            assert "-m nodeagent run" in line
            assert f"process {note(n)['pid']} " in line
            os.killpg(other.pid, signal.SIGKILL)
            await n.registered()
        assert (await n.get("/readyz"))[0] == 200
        assert note(n)["pid"] == os.getpid()


async def test_a_holder_that_wrote_nothing_is_named_by_the_kernel() -> None:
    async with node() as n:
        await n.kubelet.start()
        path = n.kubelet.directory / "device-plugins" / node_lock.LOCK
        with subprocess.Popen(  # noqa: ASYNC220 - it only forks
            [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as holder:
            assert holder.stdout is not None
            assert Lines(holder.stdout.fileno()).next() == "held\n"
            await n.start_agent()
            await n.until(lambda: f"process {holder.pid} (" in reasons(n))
            holder.kill()


async def test_a_removed_lock_file_lets_no_second_agent_serve() -> None:
    async with node() as n:
        await n.kubelet.start()
        with other_agent(n) as other:
            await n.allocatable(NIC0, 4)
            lock = n.kubelet.directory / "device-plugins" / node_lock.LOCK
            lock.unlink()
            await n.until(lambda: lock.exists() and note(n).get("pid") == other.pid)
            await n.start_agent()
            await n.until(lambda: f"process {other.pid} " in reasons(n))
            lock.unlink()  # either agent may be faster; the slower one waits
            await n.until(lambda: lock.exists() and "pid" in note(n))
            await n.allocatable(NIC0, 4)


def test_a_lock_counts_only_while_its_file_is_there(tmp_path: Path) -> None:
    path = tmp_path / node_lock.LOCK
    first, second = (node_lock.NodeLock(path, node_lock._opened(path)) for _ in range(2))
    assert first.take()
    assert not second.take()
    path.unlink()
    assert second.take()
    assert not first.take()
    path.unlink()
    assert second.take()
    assert not first.take()
    second.close()
    assert first.take()
    first.close()


def test_a_note_of_another_pid_namespace_counts_and_nonsense_does_not(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with path.open("w+b") as file, path.open("rb") as reader:
        fcntl.flock(file, fcntl.LOCK_EX)

        def shown(text: bytes) -> str:
            path.write_bytes(text)
            return str(node_lock.holder_of(reader.fileno()))

        own = f"process {os.getpid()} ("
        assert shown(b"").startswith(own)
        assert shown(b"[" * 5000).startswith(own)
        assert (
            shown(b'{"pid": 1, "pid_namespace": 5, "pod": "ns/p\\u001b[31m"}')
            == "pod ns/p\\x1b[31m, process 1"
        )
