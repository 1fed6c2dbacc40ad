"""The verbs in the agent's own pod: the read-only root, mounts and rights of the manifest.

The agent holds a NIC and a GPU down after faults that have passed, so that only its memory withdraws them. Each command
for the agent's pod that the pages document must run there, and ``health`` and ``scan`` must show what the agent
holds, with ``--root`` and without, and name the agent as the source. Below a capture, a copy of the machine or a root
whose agent has ended, no agent may answer.
"""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import shutil
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from nodeagent.cli import main
from nodeagent.web import local_socket
from nodeagent_lab.sim.kubelet import Kubelet
from nodeagent_lab.sim.machine import Machine
from tests.daemonset.test_confined import ENVIRONMENT, RESOURCES, base, configured, contained
from tests.docs.test_docs import PAGES
from tests.support.manifests import ROOT, built, named, pod_specs
from tests.support.running_agent import node

__all__ = ["base"]

HELD_NIC, HELD_GPU = "0000:dc:00.0", 3
OF_THE_POD = ("doctor", "health", "neighbors", "scan", "vfs")


def documented() -> list[str]:
    """The commands that the pages run in the agent's pod, without their placeholders."""
    commands = set()
    for page in (ROOT / "README.md", *PAGES):
        for line in re.findall(r"(?:kubectl nodeagent|-- nodeagent) ([^`\n|]+)", page.read_text()):
            words = [word for word in line.split() if word not in ("NODE", "$node", "…")]
            if words and words[0] in OF_THE_POD:
                commands.add(" ".join(words))
    return sorted(commands)


def test_the_pages_have_commands_for_the_pod() -> None:
    assert {line.split()[0] for line in documented()} >= {"doctor", "scan"}


@asynccontextmanager
async def pod(base: Path) -> AsyncIterator[list[str]]:
    """Run the agent in its pod, until it holds a NIC and a GPU. Yields the words that begin a command in the pod."""
    host = base / "h"
    machine = Machine.load("dgx-h100")
    machine.write(host)
    shutil.copytree(host / "proc" / "net", host / "proc" / "1" / "net")
    (spec,) = pod_specs(named(built(), "DaemonSet", "nodeagent"))
    (container,) = spec["containers"]
    mount = {"name": "gpus", "mountPath": "/host/.nodeagent", "readOnly": True}
    container = container | {"volumeMounts": [*container["volumeMounts"], mount]}
    spec = spec | {"volumes": [*spec["volumes"], {"name": "gpus"}]}
    given = {"config": configured(base, "base"), "token": base / "token", "gpus": host / ".nodeagent"}
    kubelet = Kubelet(host / "var/lib/kubelet", seed=1)
    kubelet.directory.mkdir(parents=True)
    await kubelet.start()
    try:
        async with contained(spec, container, host, given) as (process, log):
            await kubelet.until(
                lambda: kubelet.allocatable() == RESOURCES or process.returncode is not None, 60.0
            )
            assert process.returncode is None, log
            machine.set_link(HELD_NIC, up=False)
            machine.raise_xid(HELD_GPU, 79)
            less = {
                "nvidia-dgx-h100/nic7": 0,
                "nvidia-dgx-h100/gpu-mem": RESOURCES["nvidia-dgx-h100/gpu-mem"] - 79,
            }
            await kubelet.until(lambda: kubelet.allocatable() == RESOURCES | less, 60.0)
            machine.set_link(HELD_NIC, up=True)
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            up = ["nsenter", "--target", children[0], "--net", "ip", "link", "set", "lo", "up"]
            assert (await run(up))[0] == 0
            env = [f"{one['name']}={one['value']}" for one in container["env"] if "value" in one]
            yield [
                "env", *env, "nsenter", "--target", children[0], "--mount", "--net", "--pid", "--root", "--wd",
                sys.executable, "-m", "nodeagent",
            ]  # fmt: skip
    finally:
        await kubelet.stop()


async def run(words: list[str]) -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(
        *words, env=ENVIRONMENT, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(120):
        out, err = await process.communicate()
    return process.returncode or 0, out.decode(), err.decode()


@pytest.mark.slow
@pytest.mark.needs("kubectl", "root", "ip")
async def test_the_documented_commands_show_what_the_agent_of_the_pod_holds(base: Path) -> None:
    async with pod(base) as inside:
        for line in documented():
            code, out, err = await run([*inside, *shlex.split(line)])
            assert "Traceback" not in err, (line, err)
            assert code == 0 or (line.startswith("doctor") and code == 1), (line, code, err)
            if line.split()[0] in ("health", "neighbors", "scan"):
                assert "the agent at " in err, (line, err)
        for more in (["--root", "/host"], []):
            code, out, err = await run([*inside, "health", *more, "--json"])
            withdrawn = {view["device"] for view in json.loads(out) if not view["allocatable"]}
            assert (code, len(withdrawn)) == (0, 2), err
            assert HELD_NIC in withdrawn
            assert "the agent at " in err
            assert "no agent" not in err
        _, out, err = await run([*inside, "doctor", "--json"])
        findings = [entry for entry in json.loads(out)["findings"] if entry["key"] == "agent_withdraws"]
        assert len(findings) == 2, err
        for more in ([], ["--root", "/host", "--config", "/etc/nodeagent/nodeagent.yaml"]):
            code, out, err = await run([*inside, "scan", *more, "--json"])
            seen = json.loads(out)
            faulty = [gpu["health"]["state"] != "healthy" for gpu in seen["gpus"]]
            assert faulty == [index == HELD_GPU for index in range(8)]
            pfs = {function["pciAddress"]: function["health"]["state"] for function in seen["functions"]}
            assert pfs[HELD_NIC] == "down"
            healthy = {
                name: sum(len(entry["ids"]) for entry in entries if not entry["health"]["reasons"])
                for name, entries in ((one["resource"], one["devices"]) for one in seen["resources"])
            }
            assert healthy["nvidia-dgx-h100/nic7"] == 0
            assert healthy["nvidia-dgx-h100/nic0"] == RESOURCES["nvidia-dgx-h100/nic0"]
            assert (seen["agent"], err) == ("/host/var/lib/nodeagent/agent.sock", "")


@pytest.mark.slow
async def test_no_agent_answers_for_another_root(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with node() as n:
        await n.kubelet.start()
        await n.start_agent()
        folder = n.root / "var/lib/nodeagent"
        await n.until((folder / local_socket.NAME).exists)
        assert (folder / local_socket.NAME).stat().st_mode & 0o777 == 0o600
        n.machine.set_link(0, up=False)
        await n.until(lambda: n.agent is not None and "down" in str(n.agent.inventory.snapshot.functions))
        n.machine.set_link(0, up=True)
        capture, copy = tmp_path / "capture", tmp_path / "copy"
        assert await asyncio.to_thread(main, ["capture", "--root", str(n.root), str(capture)]) == 0
        shutil.copytree(n.root, copy, symlinks=True, ignore=shutil.ignore_patterns("*.sock", "kubelet"))
        stale = socket.socket(socket.AF_UNIX)
        (copy / "var/lib/nodeagent").mkdir(parents=True, exist_ok=True)
        monkeypatch.chdir(copy / "var/lib/nodeagent")
        stale.bind("agent.sock")
        stale.close()
        capsys.readouterr()
        for root, why in ((capture, "does not exist"), (copy, "has ended")):
            for verb in ("health", "scan"):
                assert await asyncio.to_thread(main, [verb, "--root", str(root)]) == 0
                said = capsys.readouterr()
                assert "no agent runs here" in said.err
                assert why in said.err
                assert "the agent at" not in said.err
        for verb in ("health", "scan"):
            assert await asyncio.to_thread(main, [verb, "--root", str(n.root)]) == 0
            assert f"the agent at {folder}/agent.sock answers" in capsys.readouterr().err
        await n.stop_agent()
        assert await asyncio.to_thread(main, ["health", "--root", str(n.root)]) == 0
        assert "has ended" in capsys.readouterr().err
        await n.start_agent()
        await n.until(lambda: _answers(folder))


def _answers(folder: Path) -> bool:
    try:
        local_socket.connect(folder, 1.0).close()
    except OSError:
        return False
    return True
