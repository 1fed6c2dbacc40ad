"""A stand-in for the RDMA part of a kernel in the exclusive mode, beside real network namespaces.

It answers as drivers/infiniband/core/nldev.c (``nldev_set_doit``) and device.c (``ib_device_set_netns_put``,
``rdma_dev_change_netns``) do: in their order, with their errors, and no kinder. Compared with these sources of Linux
(2026-11-30) and with what iproute2's `rdma` sends, and with no kernel that has RDMA (docs/reference/verified.md). Its
sysfs shows what that of the host shows: ``infiniband`` is filtered by namespace, ``infiniband_verbs`` is not
(uverbs_main.c).
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass
from errno import EBADF, EINVAL, ENODEV, EOPNOTSUPP
from pathlib import Path
from typing import cast

from nodeagent.host.netlink.message import (
    DONE,
    ERROR,
    F_DUMP,
    MESSAGE,
    attribute,
    attributes,
    number,
    u32,
)
from nodeagent.host.netlink.rdma_devices import RdmaDevices

_GET, _SET = 5 << 10 | 1, 5 << 10 | 2


def namespace_of(path: str = "/proc/thread-self/ns/net") -> int:
    """The number that tells a network namespace from others."""
    return Path(path).stat().st_ino


@dataclass
class RdmaDevice:
    """``disassociates``: the driver can take it from programs that have it open, which rxe of Linux 6.18 cannot."""

    index: int
    name: str
    pci: str
    namespace: int
    node: int
    disassociates: bool = True


class RdmaKernel:
    """``host`` is the path of the host's network namespace; ``root`` gets its ``/sys``."""

    def __init__(self, root: Path, host: str, *, shared: bool = False) -> None:
        self.root, self.host, self.shared = root, namespace_of(host), shared
        self.devices: list[RdmaDevice] = []
        self.moves: list[str] = []
        self.requests: list[bytes] = []
        self.at_move: Callable[[RdmaDevice], object] = lambda _device: None
        mode = root / "sys/module/ib_core/parameters/netns_mode"
        mode.parent.mkdir(parents=True)
        mode.write_text("Y\n" if shared else "N\n")

    def add(self, pci: str, name: str, *, disassociates: bool = True) -> RdmaDevice:
        made = RdmaDevice(len(self.devices) + 3, name, pci, self.host, self._free_node(), disassociates)
        self.devices.append(made)
        self._show()
        return made

    def end(self, namespace: int) -> None:
        """The namespace dies (``rdma_dev_exit_net``)."""
        for device in self.devices:
            if device.namespace == namespace:
                device.namespace = self.host
        self._show()

    def connect(self) -> RdmaDevices:
        kernel = self

        class Devices(RdmaDevices):
            def _open(self) -> socket.socket:
                return cast("socket.socket", _Socket(kernel))

        return Devices()

    def where(self, pci: str) -> int:
        return next(device.namespace for device in self.devices if device.pci == pci)

    def change_namespace(self, attrs: dict[int, bytes], of_socket: int) -> int:
        index = number(attrs.get(1))
        found = [one for one in self.devices if (one.index, one.namespace) == (index, of_socket)]
        if not found:
            return EINVAL
        device = found[0]
        try:
            target = namespace_of(f"/proc/self/fd/{number(attrs.get(68))}")
        except OSError:
            return EBADF
        if not device.disassociates or self.shared:
            return EOPNOTSUPP
        if device.namespace != namespace_of():
            return ENODEV
        self.at_move(device)
        device.namespace, device.node = target, -1
        device.node = self._free_node()
        self.moves.append(device.name)
        self._show()
        return 0

    def _free_node(self) -> int:
        used = {device.node for device in self.devices}
        return next(node for node in range(256) if node not in used)

    def _show(self) -> None:
        for device in self.devices:
            folder = self.root / "sys/bus/pci/devices" / device.pci
            for old in folder.glob("infiniband_verbs/*"):
                (old / "ibdev").unlink()
                old.rmdir()
            for old in folder.glob("infiniband/*"):
                old.rmdir()
            node = folder / f"infiniband_verbs/uverbs{device.node}"
            node.mkdir(parents=True)
            (node / "ibdev").write_text(f"{device.name}\n")
            if device.namespace == self.host:
                (folder / "infiniband" / device.name).mkdir(parents=True)


class _Socket:
    """A netlink socket of the namespace of the thread that makes it."""

    def __init__(self, kernel: RdmaKernel) -> None:
        self._kernel, self._namespace = kernel, namespace_of()
        self._answers: list[bytes] = []

    def close(self) -> None:
        self._answers = []

    def sendto(self, data: bytes, _to: tuple[int, int]) -> None:
        self._kernel.requests.append(data)
        _, kind, flags, sequence, _ = MESSAGE.unpack_from(data)
        if kind == _GET and flags & F_DUMP:
            for device in self._kernel.devices:
                if device.namespace == self._namespace:
                    name = device.name.encode() + b"\0"
                    self._answer(kind, sequence, attribute(1, u32(device.index)) + attribute(2, name))
            self._answer(DONE, sequence, struct.pack("=i", 0))
            return
        attrs = attributes(data, MESSAGE.size)
        code = self._kernel.change_namespace(attrs, self._namespace) if kind == _SET else EINVAL
        self._answer(ERROR, sequence, struct.pack("=i", -code) + data[: MESSAGE.size])

    def recvmsg(self, _size: int) -> tuple[bytes, list[object], int, tuple[int, int]]:
        return self._answers.pop(0), [], 0, (0, 0)

    def _answer(self, kind: int, sequence: int, body: bytes) -> None:
        self._answers.append(MESSAGE.pack(MESSAGE.size + len(body), kind, 0, sequence, 0) + body)
