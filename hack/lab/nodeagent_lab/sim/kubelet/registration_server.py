"""The watcher of ``plugins_registry``: it gets the info of every socket there and registers the plugin.

It polls the directory every ``reconcile_s``; the kubelet has fsnotify and a reconciler that runs every second. Names
that begin with a dot are skipped, folders are searched. A replaced socket is registered again, a removed one is
disconnected, and after a kubelet restart all sockets are found again. A failure up to the validation is retried with
back-off. A failure of the registration itself is reported to the plugin and not retried, because the kubelet has
already marked the socket as done.
"""

from __future__ import annotations

import asyncio
import os
import stat
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import grpc
import grpc.aio

from nodeagent.kube import pluginregistration_pb2 as pb
from nodeagent_lab.sim.kubelet import protocol
from nodeagent_lab.sim.kubelet.dra_manager import DRIVER_TYPE, DraManager
from nodeagent_lab.sim.kubelet.plugin_clients import PluginClients, RegistrationError

DIAL_S = 10.0
GET_INFO_S = 1.0
NOTIFY_S = 5.0
BACKOFF_FIRST_S = 0.5
BACKOFF_MAX_S = 122.0
TYPE = "DevicePlugin"

_Stamp = tuple[int, int]  # inode, time when it was bound: a re-bound socket may reuse the inode


@dataclass(slots=True)
class _Failing:
    retry_at: float
    wait_s: float


class RegistryWatcher:
    """The plugins in one directory."""

    def __init__(self, directory: Path, plugins: PluginClients, dra: DraManager, reconcile_s: float) -> None:
        self._directory = directory
        self._plugins, self._dra = plugins, dra
        self._reconcile_s = reconcile_s
        self._done: dict[Path, tuple[_Stamp, str, str]] = {}  # with the name and type of the plugin
        self._failing: dict[Path, _Failing] = {}
        self._busy: dict[Path, asyncio.Task[None]] = {}

    async def run(self) -> None:
        try:
            while True:
                await self._reconcile()
                await asyncio.sleep(self._reconcile_s)
        finally:
            for task in self._busy.values():
                task.cancel()
            await asyncio.gather(*self._busy.values(), return_exceptions=True)

    async def _reconcile(self) -> None:
        found = dict(_sockets(self._directory))
        for path in [path for path, (stamp, *_) in self._done.items() if found.get(path) != stamp]:
            _, name, type_ = self._done.pop(path)
            await (self._dra if type_ == DRIVER_TYPE else self._plugins).disconnect(name)
        self._failing = {path: failing for path, failing in self._failing.items() if path in found}
        for path, stamp in found.items():
            failing = self._failing.get(path)
            due = failing is None or time.monotonic() >= failing.retry_at
            if due and path not in self._done and path not in self._busy:
                task = asyncio.create_task(self._take(path, stamp), name=f"kubelet registers {path.name}")
                self._busy[path] = task
                task.add_done_callback(partial(self._finished, path))

    def _finished(self, path: Path, task: asyncio.Task[None]) -> None:
        del self._busy[path]
        if not task.cancelled():
            task.result()

    async def _take(self, path: Path, stamp: _Stamp) -> None:
        at = time.monotonic()
        info = pb.PluginInfo()
        error: str | None = None
        channel = protocol.dial(path)
        try:
            info = await _get_info(channel, path)
            await self._register(channel, path, stamp, info)
            self._failing.pop(path, None)
        except RegistrationError as fault:
            error = str(fault)
            before = self._failing.get(path)
            wait_s = BACKOFF_FIRST_S if before is None else min(2 * before.wait_s, BACKOFF_MAX_S)
            self._failing[path] = _Failing(time.monotonic() + wait_s, wait_s)
        finally:
            await channel.close()
        self._plugins.record(at, info.name, str(path), "plugins_registry", error)

    async def _register(
        self, channel: grpc.aio.Channel, path: Path, stamp: _Stamp, info: pb.PluginInfo
    ) -> None:
        try:
            if info.type not in (TYPE, DRIVER_TYPE):
                raise RegistrationError(
                    f"no handler registered for plugin type: {info.type} at socket {path}"
                )
            if info.type == TYPE:
                self._plugins.validate(info.name, list(info.supported_versions))
        except RegistrationError as fault:
            await _notify(channel, f"RegisterPlugin error -- plugin validation failed with err: {fault}")
            raise
        self._done[path] = (stamp, info.name, info.type)
        endpoint = Path(info.endpoint) if info.endpoint else path
        try:
            if info.type == DRIVER_TYPE:
                await self._dra.connect(info.name, endpoint, list(info.supported_versions))
            else:
                await self._plugins.connect(info.name, endpoint)
        except RegistrationError as fault:
            await _notify(channel, f"RegisterPlugin error -- plugin registration failed with err: {fault}")
            raise
        await _notify(channel, "")


async def _get_info(channel: grpc.aio.Channel, path: Path) -> pb.PluginInfo:
    get_info = channel.unary_unary(
        "/pluginregistration.Registration/GetInfo",
        request_serializer=pb.InfoRequest.SerializeToString,
        response_deserializer=pb.PluginInfo.FromString,
    )
    try:
        await asyncio.wait_for(channel.channel_ready(), DIAL_S)
        return await get_info(pb.InfoRequest(), timeout=GET_INFO_S)
    except TimeoutError:
        raise RegistrationError(f"RegisterPlugin error -- dial failed at socket {path}") from None
    except grpc.aio.AioRpcError as error:
        raise RegistrationError(
            f"RegisterPlugin error -- failed to get plugin info using RPC GetInfo at socket {path}, "
            f"err: {protocol.rpc_error(error)}"
        ) from error


async def _notify(channel: grpc.aio.Channel, error: str) -> None:
    notify = channel.unary_unary(
        "/pluginregistration.Registration/NotifyRegistrationStatus",
        request_serializer=pb.RegistrationStatus.SerializeToString,
        response_deserializer=pb.RegistrationStatusResponse.FromString,
    )
    try:
        await notify(pb.RegistrationStatus(plugin_registered=not error, error=error), timeout=NOTIFY_S)
    except grpc.aio.AioRpcError as fault:
        raise RegistrationError(
            f"RegisterPlugin error -- failed to send registration status: {protocol.rpc_error(fault)}"
        ) from fault


def _sockets(directory: Path) -> list[tuple[Path, _Stamp]]:
    found = []
    for folder, folders, names in os.walk(directory):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            path = Path(folder, name)
            try:
                state = path.lstat()
            except FileNotFoundError:
                continue
            if stat.S_ISSOCK(state.st_mode) and not name.startswith("."):
                found.append((path, (state.st_ino, state.st_mtime_ns)))
    return found
