"""The search for another driver of our name among the sockets of the kubelet's registrations."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

import grpc

from nodeagent.dra import DRIVER
from nodeagent.dra.rival_drivers import RivalDrivers
from nodeagent.kube import pluginregistration_pb2
from nodeagent.kubelet.unix_server import UnixServer


def answering_together(barrier: asyncio.Barrier, name: str) -> grpc.GenericRpcHandler:
    """A registration that answers once all that share the barrier have been asked."""

    async def get_info(_request: bytes, _context: Any) -> bytes:
        await barrier.wait()
        return pluginregistration_pb2.PluginInfo(type="DRAPlugin", name=name).SerializeToString()

    handler = grpc.unary_unary_rpc_method_handler(get_info)
    return grpc.method_handlers_generic_handler("pluginregistration.Registration", {"GetInfo": handler})


async def test_sockets_that_hang_keep_no_other_one_waiting(tmp_path: Path) -> None:
    """Each hanging one took a second, and meanwhile nobody looked after our own sockets."""
    hanging = []
    for number in range(3):
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(tmp_path / f"a{number}.sock"))
        listener.listen(1)
        hanging.append(listener)
    barrier, servers = asyncio.Barrier(3), [UnixServer() for _ in range(3)]
    names = ("gpu.example.com", "nic.example.com", DRIVER)
    for number, (server, name) in enumerate(zip(servers, names, strict=True)):
        await server.start(tmp_path / f"b{number}.sock", (answering_together(barrier, name),))
    sentence = await RivalDrivers(tmp_path, tmp_path / "own.sock").look()
    assert sentence is not None
    assert "b2.sock" in sentence
    for server in servers:
        await server.stop()
    for listener in hanging:
        listener.close()
