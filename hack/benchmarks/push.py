"""ListAndWatch: the time until one GPU's change reaches the kubelet, and the stall of the agent's loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from functools import partial
from operator import gt

from benchmarks.calls import AGENT_IDS, ENDPOINT_IDS, GUARDED, channel
from benchmarks.figures import Figure
from benchmarks.stage import INSIDE, Stage, change

_GAP_S = 0.25
_STALL = "the longest delay of a task in the agent's loop that is due every millisecond"


async def push(stage: Stage, *, quick: bool) -> AsyncIterator[Figure]:
    for count in AGENT_IDS:
        group = f"ListAndWatch at {count:,} slices: one GPU's health changes"
        pushed: list[float] = []
        stalls: list[float] = []
        async with (
            stage.kubelet() as kubelet,
            stage.agent(kubelet, stage.config(count // 8), INSIDE) as process,
        ):
            await process.answer()
            await asyncio.sleep(1.5)
            for number in range(5 if quick else 40):
                gpu = number % len(stage.machine.gpus)
                await process.ask("lag")
                took = await change(
                    stage, kubelet, "nvidia-dgx-h100/gpu-mem", lambda gpu=gpu: stage.machine.raise_xid(gpu, 79),
                    healthy=partial(gt, count),
                )  # fmt: skip
                pushed.append(1000 * took.whole)
                await asyncio.sleep(0.1)  # the agent reads the GPUs again within this time
                stalls.append((await process.ask("lag"))["lag_ms"])
                stage.machine.set_recovery_action(gpu, "gpu_reset")
                await asyncio.sleep(_GAP_S)
                stage.machine.set_recovery_action(gpu, "none")
                await kubelet.until(
                    lambda count=count: kubelet.allocatable()["nvidia-dgx-h100/gpu-mem"] == count
                )
                await asyncio.sleep(_GAP_S)
            await process.ask("lag")
            await asyncio.sleep(2.0)
            calm = (await process.ask("lag"))["lag_ms"]
            size = kubelet.updates[-1].size
        yield Figure(group, f"XID to the message of {size / 1e6:.2f} MB at the kubelet", "ms", pushed)
        yield Figure(group, "longest stall of the agent's loop during this", "ms", stalls, {}, _STALL)
        yield Figure(group, "longest stall in two quiet seconds", "ms", [calm], {}, _STALL)
    async for figure in _endpoint(stage, 10 if quick else 60):
        yield figure


async def _endpoint(stage: Stage, runs: int) -> AsyncIterator[Figure]:
    group = f"ListAndWatch at {ENDPOINT_IDS:,} slices: one GPU's health changes"
    socket = stage.folder / "push.sock"
    pushed: list[float] = []
    stalls: list[float] = []
    async with stage.process(*INSIDE, "endpoint", str(socket), str(ENDPOINT_IDS)) as process:
        await process.answer()
        async with channel(socket) as connection:
            watch = connection.unary_stream("/v1beta1.DevicePlugin/ListAndWatch")(b"")
            size = len(await watch.read())
            for number in range(runs + 2):
                await asyncio.sleep(0.05)
                await process.ask("lag")
                flip, _ = await asyncio.gather(process.ask("flip"), watch.read())
                at = time.monotonic()
                await asyncio.sleep(0.02)
                lag = (await process.ask("lag"))["lag_ms"]
                if number >= 2:  # the first message of each health state is serialized once
                    pushed.append(1000 * (at - flip["at"]))
                    stalls.append(lag)
            watch.cancel()
    yield Figure(
        group, f"change to the message of {size / 1e6:.2f} MB at the client", "ms", pushed, {}, GUARDED
    )
    yield Figure(group, "longest stall of the loop during this", "ms", stalls, {}, GUARDED)
