"""Resident memory of agent and controller: without the pages, with the pages and no viewer, with ten, and afterwards.

    python hack/bench_ui_memory.py [ROUNDS] [SECONDS]

The agent serves a simulated DGX H100 to a stand-in kubelet, the controller 1,024 nodes with 8 links of a stand-in API
server, each in a process of its own. Each round starts both twice: with ``web: {ui: false}``, and as by default. VmRSS
is read after SECONDS at rest, SECONDS after ten viewers have come, and SECONDS after they have left.
"""

from __future__ import annotations

import asyncio
import json
import re
import statistics
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from hack.bench_ui import VIEWER
from nodeagent_lab.demo.demo_steps import free_port
from nodeagent_lab.sim.apiserver import ApiServer
from nodeagent_lab.sim.kubelet import Kubelet
from nodeagent_lab.sim.machine import Machine
from tests.controller.test_controller import leaves, nodelinks

VIEWERS = 10
UNITS, EACH = 32, 32
KINDS = {"NodeAgentConfig": "nodeagent.yaml", "FabricConfig": "fabric.yaml"}


def settings(folder: Path, kind: str, *, ui: bool) -> str:
    file = folder / KINDS[kind]
    web = "" if ui else "web: {ui: false}\n"
    file.write_text(f"apiVersion: nodeagent.io/v1alpha1\nkind: {kind}\n{web}")
    return str(file)


@asynccontextmanager
async def process(*argv: str) -> AsyncIterator[int]:
    started = await asyncio.create_subprocess_exec(
        sys.executable, *argv, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        yield started.pid
    finally:
        started.kill()
        await started.wait()


def resident_mib(pid: int) -> float:
    found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) / 1024


async def measured(argv: Sequence[str], port: int, seconds: float, *, ui: bool) -> list[float]:
    async with process("-m", "nodeagent", *argv) as pid:
        await asyncio.sleep(seconds)
        found = [resident_mib(pid)]
        if ui:
            async with process("-c", VIEWER, str(port), str(VIEWERS)):
                await asyncio.sleep(seconds)
                found.append(resident_mib(pid))
            await asyncio.sleep(seconds)
            found.append(resident_mib(pid))
    return found


async def of_agent(folder: Path, seconds: float, *, ui: bool) -> list[float]:
    kubelet = Kubelet(folder / "k", seed=3)
    await kubelet.start()
    port = free_port()
    argv = ("run", "--root", str(folder / "root"), "--kubelet-dir", str(folder / "k"))
    config = settings(folder, "NodeAgentConfig", ui=ui)
    try:
        return await measured(
            (*argv, "--config", config, "--listen", f"127.0.0.1:{port}"), port, seconds, ui=ui
        )
    finally:
        await kubelet.kill()


async def of_controller(folder: Path, seconds: float, *, ui: bool) -> list[float]:
    server = await ApiServer().start()
    for unit in range(UNITS):
        for number in range(EACH):
            node = f"node-{unit:02}{number:02}"
            server.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}})
            server.put(nodelinks(node, leaves(unit, 8)))
    access = {
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": server.url}}],
        "users": [{"name": "c", "user": {"token": server.token()}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c", "namespace": "nodeagent"}}],
    }  # fmt: skip
    (folder / "kubeconfig").write_text(json.dumps(access))
    (folder / "kubeconfig").chmod(0o600)
    port = free_port()
    argv = ("controller", "--kubeconfig", str(folder / "kubeconfig"), "--listen", f"127.0.0.1:{port}")
    try:
        fabric = settings(folder, "FabricConfig", ui=ui)
        return await measured((*argv, "--fabric", fabric), port, seconds, ui=ui)
    finally:
        await server.stop()


async def main() -> None:
    rounds, seconds = (int(value) for value in (sys.argv[1:] + ["3", "40"][len(sys.argv) - 1 :]))
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        folder = Path(name)
        Machine.load("dgx-h100").write(folder / "root")
        for title, of in (("agent", of_agent), ("controller", of_controller)):
            rows: dict[str, list[float]] = {}
            for _ in range(rounds):
                (off,) = await of(folder, seconds, ui=False)
                on = await of(folder, seconds, ui=True)
                states = ("ui: false", "no viewer", f"{VIEWERS} viewers", "afterwards")
                for state, mib in zip(states, (off, *on), strict=True):
                    rows.setdefault(state, []).append(mib)
            for state, values in rows.items():
                shown = ", ".join(f"{mib:.1f}" for mib in values)
                print(f"{title}, {state}: median {statistics.median(values):.1f} MiB of {shown}", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
