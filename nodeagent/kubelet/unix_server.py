"""A gRPC server on a unix socket of the kubelet's folders."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path

import grpc

from nodeagent.base.file_writing import unwritable_because

PATH_MAX = 107
"""Bytes in the path of a socket: sizeof(sun_path) - 1, unix(7)."""

_OPTIONS = (
    # GetPreferredAllocation lists every free ID: 80,000 of them exceed gRPC's default of 4 MiB.
    ("grpc.max_receive_message_length", 32 << 20),
    ("grpc.max_send_message_length", -1),
    ("grpc.so_reuseport", 0),
)


class BindError(Exception):
    """The socket cannot be opened. The message names the socket and the cause."""


class UnixServer:
    """A server that starts and stops many times. ``bound`` counts its starts."""

    def __init__(self) -> None:
        self.bound = 0
        self._server: grpc.aio.Server | None = None
        self._inode: tuple[int, int] | None = None
        self._path: Path | None = None

    @property
    def serving(self) -> bool:
        return self._server is not None

    def intact(self) -> bool:
        """Whether the socket's file is still the one that was bound."""
        return self._path is not None and self._inode is not None and _inode(self._path) == self._inode

    async def start(self, path: Path, handlers: Sequence[grpc.GenericRpcHandler]) -> None:
        """Bind and serve. A file at ``path`` is replaced; the caller holds a lock. Raises ``BindError``."""
        server = grpc.aio.server(options=_OPTIONS)
        server.add_generic_rpc_handlers(tuple(handlers))
        try:
            path.unlink(missing_ok=True)
            server.add_insecure_port(f"unix:{path}")
            await server.start()
            _make_private(path)  # gRPC creates it as the umask is
        except (RuntimeError, OSError) as error:
            raise BindError(f"cannot listen on {path}: {_bind_obstacle(path.parent) or error}") from error
        self._server, self._path, self._inode = server, path, _inode(path)
        self.bound += 1

    async def stop(self) -> None:
        """Close the socket and every stream. Return when they are closed."""
        server, self._server = self._server, None
        self._inode = None
        if server is not None:
            await server.stop(grace=None)


def _make_private(path: Path) -> None:
    """Set the mode of a socket. Another device plugin may have put a link in its place."""
    descriptor = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            Path(f"/proc/self/fd/{descriptor}").chmod(0o600)
    finally:
        os.close(descriptor)


def _bind_obstacle(folder: Path) -> str | None:
    """Return why no socket can be created in a folder: gRPC's own error does not name the cause."""
    try:
        return unwritable_because(folder)
    except OSError as error:
        return f"its folder is not there ({error.strerror})"


def _inode(path: Path) -> tuple[int, int] | None:
    try:
        status = path.lstat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def socket_name(resource: str, folder: Path) -> str:
    """Return the basename, which the kubelet joins to its folder. It skips names that begin with a dot.

    If the path would be too long for a socket, the name has a digest of the resource.
    """
    name = f"nodeagent-{resource.replace('/', '_')}.sock"
    if len(os.fsencode(folder / name)) <= PATH_MAX:
        return name
    return f"nodeagent-{blake2b(resource.encode(), digest_size=8).hexdigest()}.sock"
