"""Allocate and GetPreferredAllocation, by a client on the agent's socket; requests are serialized beforehand."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import grpc.aio

from benchmarks.figures import Figure
from benchmarks.stage import INSIDE, Stage
from nodeagent.kube import deviceplugin_pb2 as pb

ALLOCATE_P99_MS = 5.0
AGENT_IDS = (640, 10_000)
ENDPOINT_IDS = 80_000
_UNLIMITED = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))

GUARDED = (
    "one plugin in a process of its own: the agent refuses a configuration with a list above 3 MiB, because the "
    "kubelet accepts 4 MiB and this list is longer"
)


def group(count: int) -> str:
    return f"Calls of the kubelet at {count:,} slices on 8 GPUs, a Python client's time included"


async def calls(stage: Stage, *, quick: bool) -> AsyncIterator[Figure]:
    for count in AGENT_IDS:
        async with stage.kubelet() as kubelet, stage.agent(kubelet, stage.config(count // 8)):
            folder = kubelet.socket.parent
            ids = sorted(kubelet.devices("nvidia-dgx-h100/gpu-mem"))
            async for figure in _slices(folder / _socket("gpu-mem"), ids, count, 50 if quick else 500, ""):
                yield figure
            if count == AGENT_IDS[0]:
                yield await _vf(
                    folder / _socket("nic0"),
                    min(kubelet.devices("nvidia-dgx-h100/nic0")),
                    count,
                    50 if quick else 500,
                )
    socket = stage.folder / "endpoint.sock"
    async with stage.process(*INSIDE, "endpoint", str(socket), str(ENDPOINT_IDS)) as process:
        await process.answer()
        async with channel(socket) as connection:
            watch = connection.unary_stream("/v1beta1.DevicePlugin/ListAndWatch")(b"")
            listed = pb.ListAndWatchResponse.FromString(await watch.read())
            watch.cancel()
        ids = [device.ID for device in listed.devices]
        async for figure in _slices(socket, ids, ENDPOINT_IDS, 10 if quick else 100, GUARDED):
            yield figure


def _socket(name: str) -> str:
    return f"nodeagent-nvidia-dgx-h100_{name}.sock"


def channel(socket: Path) -> grpc.aio.Channel:
    return grpc.aio.insecure_channel(
        f"unix:{socket}", options=(*_UNLIMITED, ("grpc.default_authority", "localhost"))
    )


async def _slices(socket: Path, ids: list[str], count: int, runs: int, note: str) -> AsyncIterator[Figure]:
    """Containers with half a GPU and with all GPUs, and the kubelet's GetPreferredAllocation."""
    assert len(ids) == count, (len(ids), count)
    first = [name for name in ids if name.startswith(ids[0].partition("::")[0])]
    half = len(first) // 2
    allocate = {
        f"Allocate of {half:,} slices, half a GPU": first[:half],
        f"Allocate of {count:,} slices, all GPUs": ids,
    }
    async with channel(socket) as connection:
        for name, chosen in allocate.items():
            request = pb.AllocateRequest(container_requests=[pb.ContainerAllocateRequest(devices_ids=chosen)])
            samples = await timed(connection, "Allocate", request.SerializeToString(), runs)
            yield Figure(group(count), name, "ms", samples, {"p99": ALLOCATE_P99_MS}, note)
        wanted = pb.ContainerPreferredAllocationRequest(available_deviceIDs=ids, allocation_size=half)
        request = pb.PreferredAllocationRequest(container_requests=[wanted]).SerializeToString()
        name = f"GetPreferredAllocation of {half:,} among {count:,} free ({len(request) / 1e6:.2f} MB)"
        samples = await timed(connection, "GetPreferredAllocation", request, runs)
        yield Figure(group(count), name, "ms", samples, {}, note)


async def _vf(socket: Path, device: str, count: int, runs: int) -> Figure:
    request = pb.AllocateRequest(container_requests=[pb.ContainerAllocateRequest(devices_ids=[device])])
    async with channel(socket) as connection:
        samples = await timed(connection, "Allocate", request.SerializeToString(), runs)
    name = "Allocate of a VF, its device-info file written before the answer"
    return Figure(group(count), name, "ms", samples, {"p99": ALLOCATE_P99_MS})


async def timed(connection: grpc.aio.Channel, method: str, request: bytes, runs: int) -> list[float]:
    call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = connection.unary_unary(
        f"/v1beta1.DevicePlugin/{method}"
    )
    samples = []
    for number in range(runs + 10):
        began = time.perf_counter()
        await call(request)
        if number >= 10:
            samples.append(1000 * (time.perf_counter() - began))
        await asyncio.sleep(0.002)  # a kubelet pauses between calls
    return samples
