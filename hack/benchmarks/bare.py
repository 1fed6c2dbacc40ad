"""Measure a device plugin with nothing behind it, by the agent's own measurements.

It is the least that a plugin in Python costs on this machine. Goals in milliseconds depend on the machine; the distance
of the agent to this plugin, in one run, does not.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from benchmarks.figures import Figure
from benchmarks.idle import at_rest
from benchmarks.stage import Process, Stage, registrations, settled
from nodeagent.kube import deviceplugin_pb2 as pb
from nodeagent_lab.sim.kubelet import Kubelet

_GROUP = "A bare plugin: 9 resources with gRPC and nothing behind it, no agent"
_PREFIX = "nvidia-dgx-h100"
_GAP_S = 0.05


async def bare(stage: Stage, *, quick: bool) -> AsyncIterator[Figure]:
    triggers = stage.folder / "triggers"
    triggers.mkdir()
    job = stage.folder / "bare.json"
    job.write_text(json.dumps(_job(triggers)))
    registered, worked = [], []
    for _ in range(5 if quick else 25):
        async with stage.kubelet() as kubelet, _bare(stage, kubelet, job) as process:
            worked.append(1000 * process.cpu_s())
            registered.append(1000 * (max(registrations(kubelet, 0).values()) - process.began))
    yield Figure(_GROUP, "start: all 9 resources are registered", "ms", registered, key="bare start")
    yield Figure(_GROUP, "  CPU time until then", "ms", worked)
    async with stage.kubelet() as kubelet, _bare(stage, kubelet, job) as process:
        yield Figure(
            _GROUP,
            "kubelet killed and started: all 9 registered",
            "ms",
            await _restarts(kubelet, 10 if quick else 50),
            key="bare restart",
        )
        yield Figure(
            _GROUP,
            "a file is written: the message of 8 Unhealthy VFs is at the kubelet",
            "ms",
            await _flips(kubelet, triggers, 10 if quick else 60),
            key="bare message",
        )
        async for figure in at_rest(_GROUP, process, "bare", quick=quick):
            yield figure


async def _restarts(kubelet: Kubelet, runs: int) -> list[float]:
    took = []
    for _ in range(runs):
        await kubelet.kill()
        await asyncio.sleep(_GAP_S)
        began = time.monotonic()
        await kubelet.start()
        await kubelet.until(partial(settled, kubelet, began), 30.0)
        took.append(1000 * (max(registrations(kubelet, began).values()) - began))
    return took


async def _flips(kubelet: Kubelet, triggers: Path, runs: int) -> list[float]:
    took = []
    name = _socket("nic0")
    for _ in range(runs):
        await asyncio.sleep(_GAP_S)
        before = len(kubelet.updates)
        began = time.monotonic()
        await asyncio.to_thread((triggers / name).write_text, "")
        await kubelet.until(lambda before=before: len(kubelet.updates) > before)
        took.append(1000 * (kubelet.updates[before].at - began))
    return took


@asynccontextmanager
async def _bare(stage: Stage, kubelet: Kubelet, job: Path) -> AsyncIterator[Process]:
    program = Path(__file__).with_name("bare_plugin.py")
    async with stage.process(sys.executable, str(program), str(kubelet.socket.parent), str(job)) as process:
        await kubelet.until(partial(settled, kubelet, process.began), 30.0)
        yield process


def _job(triggers: Path) -> dict[str, object]:
    """The device lists of the stage's agent: 632 slices of 8 GPUs, and 8 VFs of each of 8 NICs."""
    ids = {"gpu-mem": [f"GPU-{gpu:036d}::{slice_}" for gpu in range(8) for slice_ in range(79)]}
    ids |= {f"nic{nic}": [f"0000:{nic:02x}:00.{vf}" for vf in range(8)] for nic in range(8)}
    return {
        "triggers": str(triggers),
        "resources": {
            _socket(name): {
                "register": pb.RegisterRequest(
                    version="v1beta1", endpoint=_socket(name), resource_name=f"{_PREFIX}/{name}"
                ).SerializeToString().hex(),
                "lists": [_list(names, health).hex() for health in ("Healthy", "Unhealthy")],
            }
            for name, names in ids.items()
        },
    }  # fmt: skip


def _list(ids: list[str], health: str) -> bytes:
    numa = pb.TopologyInfo(nodes=[pb.NUMANode(ID=0)])
    devices = [pb.Device(ID=id_, health=health, topology=numa) for id_ in ids]
    return pb.ListAndWatchResponse(devices=devices).SerializeToString()


def _socket(name: str) -> str:
    return f"bare-{name}.sock"
