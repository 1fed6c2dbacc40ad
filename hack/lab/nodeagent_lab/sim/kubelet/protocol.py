"""gRPC on unix sockets, as the kubelet's Go library does it.

``GrpcListener`` separates the socket file from the server. gRPC removes the file when it stops, which a killed kubelet
does not do, and it never shows the moment between bind and listen.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

# grpc-go's default, which the kubelet does not raise for ListAndWatch.
RECEIVE_MAX = 4 << 20
PATH_MAX = 107  # sizeof(sun_path) - 1, unix(7)

_OPTIONS = (
    ("grpc.max_receive_message_length", RECEIVE_MAX),
    ("grpc.default_authority", "localhost"),
    # One connection for each dial. A shared one would lead a new registration to the old server of a path.
    ("grpc.use_local_subchannel_pool", 1),
)
_numbers = count()


def dial(path: Path) -> grpc.aio.Channel:
    return grpc.aio.insecure_channel(f"unix:{path}", options=_OPTIONS)


def refuse(context: grpc.aio.ServicerContext[Any, Any], code: grpc.StatusCode, text: str) -> None:
    """Give a call an error as its result; what the handler returns is not sent.

    ``context.abort`` raises an exception whose frames refer to the call, and the call refers to the exception: the
    server would live until the next collection of garbage, when its event loop has ended."""
    context.set_code(code)
    context.set_details(text)


def rpc_error(error: grpc.aio.AioRpcError) -> str:
    """The error as Go prints it."""
    name = error.code().name
    code = "Canceled" if name == "CANCELLED" else "".join(part.capitalize() for part in name.split("_"))
    return f"rpc error: code = {code} desc = {error.details()}"


CLOSING = "rpc error: code = Canceled desc = grpc: the client connection is closing"


def cancelled_by_others() -> bool:
    """Whether a ``CancelledError`` was raised by the call, and this task itself is not being cancelled."""
    task = asyncio.current_task()
    return task is None or not task.cancelling()


class GrpcListener:
    """A gRPC server on ``path``. The caller decides when the file appears, listens and is removed.

    The server itself listens on a hidden name under ``hidden``, in the same file system.
    """

    def __init__(self, path: Path, handlers: Sequence[grpc.GenericRpcHandler], hidden: Path) -> None:
        self.path = path
        self._inner = hidden / f".{os.getpid()}-{next(_numbers)}.sock"
        for name in (self.path, self._inner):
            if len(os.fsencode(name)) > PATH_MAX:
                raise ValueError(
                    f"{name} is longer than {PATH_MAX} bytes: give the kubelet a shorter directory"
                )
        self._relay: asyncio.Task[None] | None = None
        self._server: grpc.aio.Server | None = grpc.aio.server()
        self._server.add_generic_rpc_handlers(tuple(handlers))

    async def start(self, *, listen_delay_s: float = 0.0) -> None:
        """Serve. With a delay, the file exists at once and refuses connections until the delay has passed."""
        assert self._server is not None, "a stopped listener does not start again"
        self._server.add_insecure_port(f"unix:{self._inner}")
        await self._server.start()
        if listen_delay_s > 0:
            bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            bound.setblocking(False)
            bound.bind(os.fspath(self.path))
            self._relay = asyncio.create_task(_relay(bound, self._inner, listen_delay_s))
        else:
            os.link(self._inner, self.path)  # a link is an inotify CREATE, as bind is

    async def stop(self, *, leave_file: bool = False) -> None:
        if self._relay is not None:
            await _end(self._relay)
        # Without this reference the server is freed while its loop is open; its finalizer needs the loop.
        server, self._server = self._server, None
        if server is not None:
            await server.stop(None)
        self._inner.unlink(missing_ok=True)
        if not leave_file:
            self.path.unlink(missing_ok=True)


async def _end(task: asyncio.Task[None]) -> None:
    """Cancel a task and wait for its end. The traceback of the cancellation keeps only this frame alive."""
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def _relay(bound: socket.socket, inner: Path, delay_s: float) -> None:
    """Listen after the delay, then copy the bytes of every connection to the real server."""
    loop = asyncio.get_running_loop()
    # Not sock_accept(): cancelled in the pass of the loop that finds a connection, it logs an InvalidStateError.
    waiting = asyncio.Event()
    with bound:
        await asyncio.sleep(delay_s)
        bound.listen(128)
        loop.add_reader(bound, waiting.set)
        try:
            async with asyncio.TaskGroup() as group:
                while await waiting.wait():
                    waiting.clear()
                    with contextlib.suppress(BlockingIOError):
                        connection, _ = bound.accept()
                        connection.setblocking(False)
                        group.create_task(_carry(connection, inner))
        finally:
            loop.remove_reader(bound)


async def _carry(near: socket.socket, inner: Path) -> None:
    loop = asyncio.get_running_loop()
    far = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    far.setblocking(False)

    async def copy(source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := await loop.sock_recv(source, 65536):
                await loop.sock_sendall(sink, data)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_WR)

    with near, far:
        await loop.sock_connect(far, os.fspath(inner))
        await asyncio.gather(copy(near, far), copy(far, near))
