"""A device plugin with nothing behind it: what Python and gRPC need by themselves on this machine.

    bare_plugin.py FOLDER JOB      the kubelet's folder for device plugins, and a JSON file as ``bare`` writes it

It serves and registers the resources of the job with fixed device lists, again after each start of the kubelet. It
sends the other list of a resource when a file with the resource's socket name is written into the job's folder.
"""

import asyncio
import ctypes
import json
import os
import socket
import struct
import sys
from pathlib import Path

import grpc
import grpc.aio

_KUBELET = "kubelet.sock"
_OPTIONS = b"\x10\x01"  # DevicePluginOptions: it answers GetPreferredAllocation
# include/uapi/linux/inotify.h
_IN_CLOSE_WRITE, _IN_CREATE = 0x008, 0x100
_EVENT = struct.Struct("iIII")


class Resource:
    def __init__(self, path, lists):
        self.path = path
        self._lists = lists
        self._changed = asyncio.Event()
        self._server = None

    async def serve(self):
        if self._server is not None:
            await self._server.stop(None)
        self._server = grpc.aio.server()
        handlers = {
            "GetDevicePluginOptions": grpc.unary_unary_rpc_method_handler(self._options),
            "ListAndWatch": grpc.unary_stream_rpc_method_handler(self._list_and_watch),
        }
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("v1beta1.DevicePlugin", handlers),)
        )
        self.path.unlink(missing_ok=True)
        self._server.add_insecure_port(f"unix:{self.path}")
        await self._server.start()

    def flip(self):
        self._lists.reverse()
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def _options(self, _request, _context):
        return _OPTIONS

    async def _list_and_watch(self, _request, _context):
        while True:
            changed = self._changed
            yield self._lists[0]
            await changed.wait()


async def register(folder, resources, requests):
    """Serve again, as a kubelet that starts has removed the sockets, and register with it."""
    kubelet = folder / _KUBELET
    await asyncio.gather(*(resource.serve() for resource in resources.values()))
    while not _listens(kubelet):
        await asyncio.sleep(0.001)
    options = (("grpc.use_local_subchannel_pool", 1), ("grpc.default_authority", "localhost"))
    async with grpc.aio.insecure_channel(f"unix:{kubelet}", options=options) as channel:
        call = channel.unary_unary("/v1beta1.Registration/Register")
        await asyncio.gather(*(call(request, timeout=10.0) for request in requests))


def _listens(path):
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(path)) == 0


async def main(folder, plan):
    names = plan["resources"]
    triggers = Path(plan["triggers"])
    resources = {
        name: Resource(folder / name, [bytes.fromhex(text) for text in entry["lists"]])
        for name, entry in names.items()
    }
    requests = [bytes.fromhex(entry["register"]) for entry in names.values()]
    libc = ctypes.CDLL(None)
    watch = libc.inotify_init1(os.O_NONBLOCK)
    libc.inotify_add_watch(watch, os.fsencode(folder), _IN_CREATE)
    libc.inotify_add_watch(watch, os.fsencode(triggers), _IN_CLOSE_WRITE)
    started = asyncio.Event()

    def read():
        for name in _names(os.read(watch, 1 << 16)):
            if name == _KUBELET:
                started.set()
            elif name in resources and (triggers / name).exists():
                (triggers / name).unlink()
                resources[name].flip()

    asyncio.get_running_loop().add_reader(watch, read)
    while True:
        await register(folder, resources, requests)
        await started.wait()
        started.clear()


def _names(data):
    at = 0
    while at < len(data):
        _, _, _, length = _EVENT.unpack_from(data, at)
        at += _EVENT.size + length
        yield os.fsdecode(data[at - length : at].rstrip(b"\0"))


asyncio.run(main(Path(sys.argv[1]), json.loads(Path(sys.argv[2]).read_bytes())))
