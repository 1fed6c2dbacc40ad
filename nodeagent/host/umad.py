"""Exchange subnet management packets with the fabric through a umad device of the kernel.

* ``/dev/infiniband/umadN`` belongs to one port of one RDMA device. Reading the far end of a cable needs it, and nothing
  else: no address, no library, no subnet manager.
* The device can also change the fabric. So ``UmadPort.ask`` sends a packet only if it is a Get without an M_Key over at
  most one hop, and raises ``ValueError`` for any other.
* ``open`` and ``ask`` block: callers use a thread with a time limit. ``ask`` itself returns after the timeout of the
  kernel plus ``SPARE_S``.
* A captured or simulated machine has a Unix socket (SOCK_SEQPACKET) in place of the device. It gets and sends the same
  packets; there are no ioctls.

Sources: include/uapi/rdma/ib_user_mad.h (structs, ioctls, ABI 5), drivers/infiniband/core/user_mad.c (errors) of Linux
6.12; Documentation/infiniband/user_mad.rst.
"""

from __future__ import annotations

import errno
import fcntl
import os
import select
import socket
import struct
import sys
import time
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Self

from nodeagent.base.bounded_calls import enter
from nodeagent.host.fd import Closing

TIMEOUT_MS = 200
"""For each try of the kernel. A switch answers within a fraction of a millisecond, and VL15 loses packets."""
RETRIES = 0
"""The caller repeats a question. A switch with a management key reports each packet to its subnet manager."""
SPARE_S = 0.5

MAD_SIZE = 256
_HEADER = struct.Struct("=IIIII4s4sHBBBBBB16sIHxxxxxx")
"""``struct ib_user_mad_hdr``: id, status, timeout_ms, retries, length; qpn, qkey; lid, sl, path bits, GRH present, GID
index, hop limit, traffic class; GID, flow label, P_Key index. 64 bytes, because ENABLE_PKEY was called."""
_READ_MAX = 4096
_PERMISSIVE_LID = 0xFFFF

_REGISTER_AGENT = 0xC01C1B01
"""_IOWR(0x1b, 1, struct ib_user_mad_reg_req) of 28 bytes."""
_ENABLE_PKEY = 0x1B03
"""_IO(0x1b, 3); it must be the first ioctl of a descriptor."""
_REGISTRATION = struct.Struct("=I16sBBB3sBx")
"""``struct ib_user_mad_reg_req``: id, method mask, qpn, class, its version, OUI, RMPP version."""
_DIRECTED_ROUTE, _CLASS_VERSION, _GET = 0x81, 1, 0x01
_TRANSACTION = slice(12, 16)
"""The lower half of the transaction ID in a MAD; the kernel sets the upper half."""


class UmadReason(StrEnum):
    """Why a port cannot be asked. The doctor has a remedy for each."""

    NO_MODULE = "no-module"
    """The port has no umad device: the module ib_umad is not loaded"""
    NO_DEVICE = "no-device"
    """The port has a umad device, and the container does not have its file"""
    CGROUP = "device-cgroup"
    """EPERM: the device cgroup of the container, or the RDMA device belongs to another network namespace"""
    MODE = "mode"
    """EACCES: the mode of the file, or SELinux"""
    NO_SMI = "no-smi"
    """The port has no subnet management interface: a VF, RoCE, or a device with planes"""
    GONE = "gone"
    """The device was removed"""
    FAILED = "failed"


_REASONS = {
    errno.ENOENT: UmadReason.NO_DEVICE,
    errno.ENOTDIR: UmadReason.NO_DEVICE,
    errno.EPERM: UmadReason.CGROUP,
    errno.EACCES: UmadReason.MODE,
    errno.EPROTONOSUPPORT: UmadReason.NO_SMI,
    errno.ENXIO: UmadReason.GONE,
    errno.ENODEV: UmadReason.GONE,
    errno.EIO: UmadReason.GONE,
    errno.EPIPE: UmadReason.GONE,
    errno.ECONNRESET: UmadReason.GONE,
}


REMEDIES = {
    UmadReason.NO_MODULE: "load the module: modprobe ib_umad, and at each boot with a file in /etc/modules-load.d",
    UmadReason.NO_DEVICE: "give the container the host's /dev/infiniband",
    UmadReason.CGROUP: "the container may not use the device: grant it as the component infiniband does (privileged), "
    "a mount alone is not enough; or the RDMA device is in another network namespace (rdma system show)",
    UmadReason.MODE: "the file is for root alone, or SELinux refuses it: run as root, and allow manage_subnet",
    UmadReason.NO_SMI: "the port has no subnet management interface: a VF, RoCE, or an adapter with planes, whose "
    "sub-device an administrator has to make (rdma dev add smi0 type SMI parent DEVICE)",
    UmadReason.GONE: "the device was removed; it is asked again when it is back",
    UmadReason.FAILED: "see the kernel's log",
}


class UmadError(Exception):
    """A umad device cannot be used. The message has the reason without the remedy."""

    def __init__(self, reason: UmadReason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class NoAnswerError(Exception):
    """The peer did not answer within the tries of the kernel."""


class UmadPort(Closing):
    """One umad device, registered for directed-route SMPs. For one thread at a time."""

    def __init__(self, place: str, descriptor: int, agent: int) -> None:
        self._place, self._descriptor, self._agent = place, descriptor, agent

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open a device and register, or connect to the socket that a simulated machine has in its place. Raises
        ``UmadError``."""
        enter(str(path))
        try:
            simulated = path.is_socket()
            descriptor = (
                _connect(path) if simulated else os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
            )
        except OSError as error:
            raise _failed(str(path), error) from error
        try:
            agent = 0 if simulated else _register(descriptor)
        except OSError as error:
            os.close(descriptor)
            raise _failed(str(path), error) from error
        return cls(str(path), descriptor, agent)

    def close(self) -> None:
        os.close(self._descriptor)

    def ask(self, mad: bytes, timeout_ms: int = TIMEOUT_MS, retries: int = RETRIES) -> bytes:
        """Send a question and return its answer, which is at most ``MAD_SIZE`` octets of any value.

        Late answers to earlier questions are dropped. Raises ``NoAnswerError``, ``UmadError``, and ``ValueError`` for a
        packet that is not a question.
        """
        _refuse_all_but_questions(mad)
        enter(self._place)
        end = time.monotonic() + timeout_ms * (1 + retries) / 1000 + SPARE_S
        try:
            os.write(self._descriptor, _header(self._agent, timeout_ms, retries) + mad)
            return self._read(mad[_TRANSACTION], end)
        except OSError as error:
            raise _failed(self._place, error) from error

    def _read(self, transaction: bytes, end: float) -> bytes:
        poll = select.poll()
        poll.register(self._descriptor, select.POLLIN)
        while (left_s := end - time.monotonic()) > 0:
            if not poll.poll(left_s * 1000):
                break
            # If the device was removed, poll returns POLLERR, and this fails with EIO.
            packet = b""
            with suppress(BlockingIOError):
                packet = os.read(self._descriptor, _READ_MAX)
                if not packet:
                    raise OSError(errno.EIO, os.strerror(errno.EIO))
            status = int.from_bytes(packet[4:8], sys.byteorder) if len(packet) >= _HEADER.size else None
            received = packet[_HEADER.size :][:MAD_SIZE]
            if status is None or received[_TRANSACTION] != transaction:
                continue
            if status == errno.ETIMEDOUT:  # then it is the head of the question itself
                break
            if status:
                raise OSError(status, os.strerror(status))
            return received
        raise NoAnswerError(f"{self._place}: the peer does not answer")


def _connect(path: Path) -> int:
    """Connect to a socket whose path may be longer than a socket address."""
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
            connection.connect(f"/proc/self/fd/{folder}/{path.name}")
            connection.setblocking(False)
            return connection.detach()
    finally:
        os.close(folder)


def _register(descriptor: int) -> int:
    """Return the id of the agent."""
    fcntl.ioctl(descriptor, _ENABLE_PKEY)
    request = bytearray(_REGISTRATION.pack(0, bytes(16), 0, _DIRECTED_ROUTE, _CLASS_VERSION, bytes(3), 0))
    fcntl.ioctl(descriptor, _REGISTER_AGENT, request)
    agent: int = _REGISTRATION.unpack(request)[0]
    return agent


def _header(agent: int, timeout_ms: int, retries: int) -> bytes:
    """A header for queue pair 0, whose Q_Key is 0."""
    return _HEADER.pack(
        *(agent, 0, timeout_ms, retries, 0),
        *(bytes(4), bytes(4)),
        *(_PERMISSIVE_LID, 0, 0, 0, 0, 0, 0),  # the same in either byte order
        *(bytes(16), 0, 0),
    )


def _refuse_all_but_questions(mad: bytes) -> None:
    """A question: a Get with directed route over at most one hop, without an M_Key."""
    head = len(mad) == MAD_SIZE and (mad[1], mad[2], mad[3]) == (_DIRECTED_ROUTE, _CLASS_VERSION, _GET)
    if not head or mad[7] > 1 or any(mad[24:32]):
        raise ValueError("only a Get over at most one hop, without an M_Key, is sent to the fabric")


def _failed(place: str, error: OSError) -> UmadError:
    reason = _REASONS.get(error.errno or 0, UmadReason.FAILED)
    return UmadError(reason, f"{place}: {error.strerror or error}")
