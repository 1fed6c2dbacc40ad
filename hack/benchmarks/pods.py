"""Measure the agent while pods start and end: each has a veth pair, and the node has many of them.

The agent runs in a network namespace of its own with this machine's PCI bus, without GPUs. It needs root.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from benchmarks.figures import Figure
from benchmarks.stage import NODEAGENT, Process, Stage
from nodeagent_lab.sim.netns import Netns

VETHS = (110, 1000)
EVERY_S = 1.5
_SETTLE_S = 5.0
_CONFIG = """\
apiVersion: nodeagent.io/v1alpha1
kind: NodeAgentConfig
resources:
- {kind: vf, name: "nic{rail}"}
gpu: {driver: none}
cluster: {access: none}
health: {stateDirectory: STATE}
"""


async def pods(stage: Stage, *, quick: bool) -> AsyncIterator[Figure]:
    if os.geteuid() != 0:
        return
    seconds = 15.0 if quick else 60.0
    for count in VETHS:
        group = f"A node with {count} veth pairs of pods"
        with Netns() as node, Netns() as far:
            _add(node, far, range(count))
            async with _agent(stage, node) as process:
                await asyncio.sleep(_SETTLE_S)
                at_rest = await _spent(process, seconds)
                churning = asyncio.create_task(_start_and_end(node, far))
                busy = await _spent(process, seconds)
                churning.cancel()
                await asyncio.wait((churning,))
        yield Figure(group, "share of a core at rest", "%", [at_rest], key="agent with veths")
        yield Figure(group, f"  with one start or end in {EVERY_S:g} s", "%", [busy], key="agent churn")


def _add(node: Netns, pods: Netns, numbers: range) -> None:
    lines = [
        f"link add veth{n} type veth peer name p{n} netns {pods.path}\nlink set veth{n} up" for n in numbers
    ]
    command = node.command("ip", "-batch", "-")
    subprocess.run(command, input="\n".join(lines).encode(), check=True)


async def _start_and_end(node: Netns, pods: Netns) -> None:
    """Add the veth pair of a pod, set both ends up, and remove it at the next turn."""
    while True:
        steps = (
            f"link add churn type veth peer name eth0 netns {pods.path}",
            "link set churn up",
            "link set churn mtu 1450",
        )
        await _ip(node, *steps)
        await _ip(pods, "link set eth0 up")
        await asyncio.sleep(EVERY_S)
        await _ip(node, "link del churn")
        await asyncio.sleep(EVERY_S)


async def _ip(namespace: Netns, *steps: str) -> None:
    process = await asyncio.create_subprocess_exec(
        *namespace.command("ip", "-batch", "-"), stdin=asyncio.subprocess.PIPE
    )
    await process.communicate("\n".join(steps).encode())


def _agent(stage: Stage, node: Netns) -> AbstractAsyncContextManager[Process]:
    folder = stage.folder / "pods"
    (folder / "kubelet").mkdir(parents=True, exist_ok=True)
    config: Path = folder / "nodeagent.yaml"
    config.write_text(_CONFIG.replace("STATE", str(folder)))
    return stage.process(
        *node.command(*NODEAGENT),
        *("run", "--config", str(config), "--kubelet-dir", str(folder / "kubelet")),
        *("--listen", "127.0.0.1:0"),
    )


async def _spent(process: Process, seconds: float) -> float:
    """The share of a core in percent."""
    began, cpu = time.monotonic(), process.cpu_s()
    await asyncio.sleep(seconds)
    return 100 * (process.cpu_s() - cpu) / (time.monotonic() - began)
