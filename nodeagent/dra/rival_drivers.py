"""Another DRA driver under our name: the sockets beside ours in the kubelet's folder of registrations.

The kubelet sends the claims of a name to the driver that has registered it last. It asks each socket of the folder for
its name; so does this, once for each socket: the question changes nothing.
"""

from __future__ import annotations

import asyncio
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from nodeagent.dra import DRIVER
from nodeagent.kube import pluginregistration_pb2 as registration

ANSWER_S = 1.0
AGAIN_S = 60.0
"""A socket that has not answered is asked again."""
SOCKETS_MAX = 64
GET_INFO = "/pluginregistration.Registration/GetInfo"
_OPTIONS = (("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", 1 << 20))


class _Socket(NamedTuple):
    path: str
    inode: int
    changed_ns: int


class RivalDrivers:
    """``own`` is our socket in the folder ``registry``. Belongs to one event loop."""

    def __init__(self, registry: Path, own: Path) -> None:
        self._registry, self._own = registry, own
        self._known: dict[_Socket, tuple[str | None, float]] = {}
        """The sentence about each socket, and until when it counts."""

    async def look(self) -> str | None:
        """Return a sentence about another driver of our name; ``None``: there is none, as far as sockets answer."""
        found = tuple(self._sockets())
        now = time.monotonic()
        self._known = {one: known for one, known in self._known.items() if one in found and now < known[1]}
        new = [one for one in found if one not in self._known]
        answers = await asyncio.gather(*(_ask(one.path) for one in new))
        self._known.update(zip(new, answers, strict=True))
        return next((self._known[one][0] for one in found if self._known[one][0] is not None), None)

    def _sockets(self) -> Iterator[_Socket]:
        """The sockets that the kubelet finds: below subfolders too, without hidden ones."""
        count = 0
        for folder, folders, names in os.walk(self._registry):
            folders[:] = sorted(it for it in folders if not it.startswith("."))
            for name in sorted(names):
                path = os.path.join(folder, name)
                if name.startswith(".") or path == str(self._own):
                    continue
                try:
                    status = os.lstat(path)
                except OSError:
                    continue
                if stat.S_ISSOCK(status.st_mode):
                    yield _Socket(path, status.st_ino, status.st_ctime_ns)
                    if (count := count + 1) >= SOCKETS_MAX:
                        return


async def _ask(path: str) -> tuple[str | None, float]:
    try:
        async with grpc.aio.insecure_channel(f"unix:{path}", options=_OPTIONS) as channel:
            call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(GET_INFO)
            info = registration.PluginInfo.FromString(await call(b"", timeout=ANSWER_S))
    except (grpc.RpcError, DecodeError):
        return None, time.monotonic() + AGAIN_S
    if (info.type, info.name) != ("DRAPlugin", DRIVER):
        return None, float("inf")
    return (
        f"another DRA driver registers the name {DRIVER} ({path!r}, endpoint {info.endpoint!r}), and the kubelet sends "
        "claims to the one that came last: remove the other one",
        float("inf"),
    )
