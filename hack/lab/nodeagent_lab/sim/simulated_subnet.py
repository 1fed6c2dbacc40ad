"""A simulated InfiniBand subnet: nodes, cables, and Unix sockets in place of the umad devices of simulated machines.

A stand-in for the kernel's ib_umad and for the management agents of switches, which shows their unpleasant sides too:
a port without an answer gives status 110 (ETIMEDOUT) with the first 24 octets of the question only, a removed device
ends its descriptor, and answers come late, twice, cut, or about something else. It follows
``drivers/infiniband/core/user_mad.c`` and the InfiniBand Architecture Specification (14.2), and shares no code with the
agent. One thread serves all sockets.

Compared with the kernel's source alone. It proves nothing about real switches: ``tests/infiniband`` uses ibsim 0.10 and
``smpquery`` 44.0 for that.
"""

from __future__ import annotations

import os
import selectors
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

CHANNEL_ADAPTER, SWITCH, ROUTER = 1, 2, 3
NODE_DESCRIPTION, NODE_INFO = 0x10, 0x11
_HEADER_SIZE, _MAD_SIZE, _TIMED_OUT_SIZE = 64, 256, 24
_ETIMEDOUT = 110
_UNSUPPORTED = 0x0C
_LEAVES, _ADAPTERS = 0x025E_0000_00AA_0000, 0x025E_0000_00BB_0000
"""The first GUIDs of invented switches and adapters, locally administered."""
_BACK = 0x8000
"""The direction bit of the status field."""


@dataclass
class SubnetNode:
    """A switch, adapter or router. ``description`` has up to 64 octets of any value."""

    guid: int
    kind: int = SWITCH
    description: bytes = b""
    ports: int = 64
    system_image_guid: int = 0
    vendor: int = 0x0002C9
    device: int = 0xD2F2


@dataclass
class SubnetFault:
    """How one port misbehaves. ``silent`` attributes get no answer; ``mute``: not even status 110 comes back.
    ``change`` gets each answer, header and MAD, and returns the packets that come back in its place.
    """

    silent: frozenset[int] = frozenset()
    mute: bool = False
    change: Callable[[bytes], list[bytes]] | None = None


@dataclass
class SimulatedSubnet:
    """All nodes and cables. ``questions`` are the MADs that came in, with the node and port that sent each."""

    nodes: dict[int, SubnetNode] = field(default_factory=dict)
    faults: dict[tuple[int, int], SubnetFault] = field(default_factory=dict)
    questions: list[tuple[int, int, bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._cables: dict[tuple[int, int], tuple[int, int]] = {}
        self._selector = selectors.DefaultSelector()
        self._lock = threading.Lock()
        self._wake, self._woken = socket.socketpair()
        self._selector.register(self._woken, selectors.EVENT_READ, None)
        self._sockets: dict[Path, list[socket.socket]] = {}
        self._thread: threading.Thread | None = None
        self._ended = False

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._serve, name="simulated subnet", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended = True
        self._wake.send(b"\0")
        assert self._thread is not None
        self._thread.join()
        for place in list(self._sockets):
            self.remove(place)
        self._selector.close()
        self._wake.close()
        self._woken.close()

    def add(self, node: SubnetNode) -> SubnetNode:
        self.nodes[node.guid] = node
        return node

    def cable(self, here: tuple[int, int], there: tuple[int, int]) -> None:
        """Connect two ports, each a node GUID and a port number. Cables at either are removed first."""
        self.unplug(here)
        self.unplug(there)
        self._cables[here], self._cables[there] = there, here

    def unplug(self, port: tuple[int, int]) -> None:
        other = self._cables.pop(port, None)
        if other is not None:
            self._cables.pop(other, None)

    def attach(self, place: Path, guid: int, port: int = 1) -> None:
        """Put a socket at ``place`` (``…/dev/infiniband/umad0``): the umad device of a port."""
        place.parent.mkdir(parents=True, exist_ok=True)
        place.unlink(missing_ok=True)
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with _short(place) as path:
            listening.bind(path)
        listening.listen(64)
        with self._lock:
            self._sockets[place] = [listening]
            self._selector.register(listening, selectors.EVENT_READ, (place, guid, port))
        self._wake.send(b"\0")

    def remove(self, place: Path) -> None:
        """Remove the device: descriptors end, as with EIO."""
        with self._lock:
            for opened in self._sockets.pop(place, ()):
                with suppress(KeyError, ValueError):
                    self._selector.unregister(opened)
                with suppress(OSError):
                    opened.shutdown(socket.SHUT_RDWR)
                opened.close()
        place.unlink(missing_ok=True)

    # --- the kernel and the management agents ---------------------------------------------------------

    def _serve(self) -> None:
        while not self._ended:
            for key, _ in self._selector.select():
                with self._lock:
                    if key.fileobj is self._woken:
                        self._woken.recv(64)
                    elif key.data is not None and isinstance(key.fileobj, socket.socket):
                        self._serve_socket(key.fileobj, *key.data)

    def _serve_socket(self, ready: socket.socket, place: Path, guid: int, port: int) -> None:
        opened = self._sockets.get(place)
        if opened is None or ready.fileno() < 0:
            return
        if ready is opened[0]:
            connection, _ = ready.accept()
            opened.append(connection)
            self._selector.register(connection, selectors.EVENT_READ, (place, guid, port))
            return
        try:
            packet = ready.recv(4096)
        except OSError:
            packet = b""
        if not packet:
            self._selector.unregister(ready)
            opened.remove(ready)
            ready.close()
            return
        for reply in self._replies(guid, port, packet):
            with suppress(OSError):
                ready.send(reply)

    def _replies(self, guid: int, port: int, packet: bytes) -> list[bytes]:
        header, mad = packet[:_HEADER_SIZE], packet[_HEADER_SIZE:]
        self.questions.append((guid, port, mad))
        fault = self.faults.get((guid, port), SubnetFault())
        if fault.mute:
            return []
        (attribute,) = struct.unpack_from(">H", mad, 16)
        data = None if attribute in fault.silent else self._data(guid, port, mad, attribute)
        if data is None:
            timed_out = mad[:_TIMED_OUT_SIZE]
            reply = header[:4] + struct.pack("=I", _ETIMEDOUT) + header[8:] + timed_out
        else:
            answered = bytearray(mad)
            answered[3] = 0x81
            status = _BACK | (_UNSUPPORTED if not data else 0)
            struct.pack_into(">H", answered, 4, status)
            answered[64 : 64 + len(data)] = data
            answered[8:12] = os.urandom(4)  # the kernel's half of the transaction ID
            reply = header[:4] + struct.pack("=I", 0) + header[8:] + bytes(answered)
        return [reply] if fault.change is None else fault.change(reply)

    def _data(self, guid: int, port: int, mad: bytes, attribute: int) -> bytes | None:
        """The data of the answer; empty for an attribute that is not supported, ``None`` without an answer."""
        hops, first = mad[7], mad[129]
        if mad[3] != 1 or hops > 1 or (hops == 1 and first != port):
            return None
        there = (guid, port) if hops == 0 else self._cables.get((guid, port))
        if there is None or there[0] not in self.nodes:
            return None
        node = self.nodes[there[0]]
        if attribute == NODE_DESCRIPTION:
            return node.description[:64].ljust(64, b"\0")
        if attribute == NODE_INFO:
            return struct.pack(
                ">BBBBQQQHHIB3s",
                *(1, 1, node.kind, node.ports),
                *(node.system_image_guid or node.guid, node.guid, node.guid + (node.kind == 1)),
                *(32, node.device, 0xA1, there[1], node.vendor.to_bytes(3, "big")),
            )
        return b""


def one_leaf_for_each(subnet: SimulatedSubnet, places: Sequence[Path]) -> None:
    """Put a device at each place, and connect the n-th one to port 1 of the n-th leaf."""
    for rail, place in enumerate(places):
        leaf = subnet.add(SubnetNode(_LEAVES + rail, description=f"MF0;leaf{rail:02d}:MQM9700/U1".encode()))
        hca = subnet.add(
            SubnetNode(_ADAPTERS + rail, CHANNEL_ADAPTER, f"simulated mlx5_{rail}".encode(), ports=1)
        )
        subnet.cable((hca.guid, 1), (leaf.guid, 1))
        subnet.attach(place, hca.guid)


@contextmanager
def _short(place: Path) -> Iterator[str]:
    """A path of the socket that is short enough for a socket address."""
    folder = os.open(place.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{place.name}"
    finally:
        os.close(folder)
