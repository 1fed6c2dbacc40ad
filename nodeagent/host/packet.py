"""LLDP frames on one netdev: an AF_PACKET socket that hears little and never waits.

The law of this file:

* A receiver belongs to one netdev by its ifindex; what it is called is nobody's business here. When the
  netdev is unregistered (deleted, or moved into another network namespace) the kernel unbinds the socket for
  good, so a later netdev with the same ifindex is never taken for it. Admin down and up pass.
* A socket for EtherType 0x88cc alone costs other traffic nothing, but comes too late on a port of something:
  bond, bridge and Open vSwitch take a frame away before it gets there. On those (``enslaved``) the socket takes
  every EtherType, for 0.1 µs a packet received, and the filter in the kernel chooses; a netdev that is enslaved
  later needs another socket.
* Own transmissions are refused twice: PACKET_IGNORE_OUTGOING (Linux 4.20) saves the clone of each packet
  sent, and the filter holds where that option is missing.
* A frame under a VLAN or priority tag is heard as if it came without: the kernel strips the tag, and nobody
  here asks for it.
* A turn takes at most ``TURN`` frames, and a link at most ``RATE`` frames a second; then it is left alone
  for ``PAUSE_S`` and the kernel drops what does not fit ``QUEUE`` bytes, before it copies any of it.

* What may wait for the kernel is done in threads: ``open_on`` takes the RTNL lock, which a driver may hold for
  seconds, and closing waits for an RCU grace period, 16 ms a socket.

CAP_NET_RAW is all it needs. A receiver belongs to one event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import socket
import struct
from collections.abc import Callable
from errno import EACCES, ENETDOWN, EPERM

_GROUPS = tuple(bytes.fromhex(f"0180c20000{last}") for last in ("0e", "03", "00"))

TURN = 16
RATE = 4000.0
BURST = 512.0
PAUSE_S = 0.025
QUEUE = 64 * 1024
"""As asked of SO_RCVBUF; the kernel books twice that, room for about 150 frames."""
_FRAME_MAX = 2048  # an LLDPDU has to fit one frame of 1500 octets; what is longer is cut, and malformed then

# include/uapi/linux/if_packet.h, if_ether.h, if_arp.h, asm-generic/socket.h
_SOL_PACKET = 263
_ADD_MEMBERSHIP, _STATISTICS, _IGNORE_OUTGOING = 1, 6, 23
_MR_MULTICAST = 0
_ETH_P_ALL, _ETH_P_LLDP = 0x0003, 0x88CC
_SO_ATTACH_FILTER = 26
_ADDRESS = struct.Struct("=H2siHBB8s")  # sockaddr_ll: family, protocol, ifindex, hatype, pkttype, halen, addr

_libc = ctypes.CDLL(None, use_errno=True)


class PacketError(Exception):
    """A netdev that cannot be listened on; the message says why and what would help.

    ``forbidden``: no netdev can be, for want of a capability.
    """

    def __init__(self, message: str, *, forbidden: bool = False) -> None:
        super().__init__(message)
        self.forbidden = forbidden


# Classic BPF (linux/filter.h): code, jump if true, jump if false, operand.
_LOAD_WORD, _LOAD_HALF, _EQUAL, _RETURN = 0x20, 0x28, 0x15, 0x06
_PACKET_TYPE = 0xFFFF_F004  # SKF_AD_OFF + SKF_AD_PKTTYPE
_OUTGOING = 4
_FILTER = (
    (_LOAD_WORD, 0, 0, _PACKET_TYPE),
    (_EQUAL, 9, 0, _OUTGOING),
    (_LOAD_HALF, 0, 0, 12),
    (_EQUAL, 0, 7, _ETH_P_LLDP),
    (_LOAD_WORD, 0, 0, 0),
    (_EQUAL, 0, 5, 0x0180_C200),
    (_LOAD_HALF, 0, 0, 4),
    (_EQUAL, 2, 0, 0x000E),
    (_EQUAL, 1, 0, 0x0003),
    (_EQUAL, 0, 1, 0x0000),
    (_RETURN, 0, 0, _FRAME_MAX),
    (_RETURN, 0, 0, 0),
)


class Receiver:
    """``opened`` is from ``open_on(ifindex)`` and is the receiver's now. ``hear`` is called with each frame,
    ``lost`` once when the netdev has gone from this namespace.

    ``dropped`` counts frames that the kernel had no room for, ``paused`` how often the link sent too much.
    """

    def __init__(
        self,
        ifindex: int,
        opened: socket.socket,
        hear: Callable[[bytes], object],
        lost: Callable[[], object],
    ) -> None:
        self.ifindex = ifindex
        self.dropped = 0
        self.paused = 0
        self._hear = hear
        self._lost = lost
        self._loop = asyncio.get_running_loop()
        self._budget = BURST
        self._budget_at = self._loop.time()
        self._resume: asyncio.TimerHandle | None = None
        self._closed = False
        self._socket = opened
        self._loop.add_reader(self._socket, self._turn)

    def close(self) -> None:
        """May be called again, and from within ``hear`` and ``lost``."""
        if self._closed:
            return
        self.count_drops()
        self._closed = True
        if self._resume is not None:
            self._resume.cancel()
        self._loop.remove_reader(self._socket)
        self._loop.run_in_executor(None, self._socket.close)

    @property
    def bound(self) -> bool:
        """Whether the netdev is still the one that was given."""
        if self._closed:
            return False
        address = ctypes.create_string_buffer(_ADDRESS.size)
        length = ctypes.c_uint(_ADDRESS.size)
        if _libc.getsockname(self._socket.fileno(), address, ctypes.byref(length)) != 0:
            return False
        return int(_ADDRESS.unpack(address.raw)[2]) == self.ifindex

    def send(self, frame: bytes) -> bool:
        """False where the frame could not be sent now: the link is down, or its queue is full."""
        if self._closed:
            return False
        try:
            self._socket.send(frame)
        except OSError:
            return False
        return True

    def count_drops(self) -> int:
        """Ask the kernel, whose own counter starts over with each question; all so far."""
        if not self._closed:
            _, drops = struct.unpack("=II", self._socket.getsockopt(_SOL_PACKET, _STATISTICS, 8))
            self.dropped += drops
        return self.dropped

    def _turn(self) -> None:
        for _ in range(self._affordable()):
            try:
                frame = self._socket.recv(_FRAME_MAX)
            except BlockingIOError:
                return
            except OSError as error:
                # Once for each time that the netdev went down; what matters is whether it is still there.
                if error.errno != ENETDOWN or not self.bound:
                    self.close()
                    self._lost()
                return
            self._budget -= 1.0
            self._hear(frame)
            if self._closed:
                return

    def _affordable(self) -> int:
        """How many frames this turn may take. With none left the link is left alone for a while."""
        now = self._loop.time()
        self._budget = min(BURST, self._budget + (now - self._budget_at) * RATE)
        self._budget_at = now
        if self._budget < 1.0:
            self.paused += 1
            self._loop.remove_reader(self._socket)
            self._resume = self._loop.call_later(PAUSE_S, self._loop.add_reader, self._socket, self._turn)
            return 0
        return min(TURN, int(self._budget))


def open_on(ifindex: int, *, enslaved: bool = False) -> socket.socket:
    """A socket in the network namespace of this thread, bound and filtered. Raises ``PacketError``."""
    try:
        # Protocol 0 hears nothing until it is bound: no frame passes before the filter is in place.
        opened = socket.socket(
            socket.AF_PACKET, socket.SOCK_RAW | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC, 0
        )
    except OSError as error:
        if error.errno in (EPERM, EACCES):
            raise PacketError(
                "listening for LLDP needs CAP_NET_RAW: "
                "run as root, or add NET_RAW to the container's capabilities",
                forbidden=True,
            ) from error
        raise PacketError(f"no packet socket: {error.strerror}") from error
    try:
        _set_up(opened, ifindex, _ETH_P_ALL if enslaved else _ETH_P_LLDP)
    except OSError as error:
        opened.close()
        raise PacketError(f"netdev {ifindex} cannot be listened on: {error.strerror}") from error
    return opened


def _set_up(opened: socket.socket, ifindex: int, protocol: int) -> None:
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, QUEUE)
    with contextlib.suppress(OSError):  # before Linux 4.20 the filter alone does it
        opened.setsockopt(_SOL_PACKET, _IGNORE_OUTGOING, 1)
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *step) for step in _FILTER))
    program = struct.pack("@HP", len(_FILTER), ctypes.addressof(code))
    opened.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)
    # By number: a name may be another netdev's by now, and socket.bind() takes only names.
    address = _ADDRESS.pack(socket.AF_PACKET, struct.pack("!H", protocol), ifindex, 0, 0, 0, b"\0" * 8)
    if _libc.bind(opened.fileno(), address, len(address)) != 0:
        code_ = ctypes.get_errno()
        raise OSError(code_, os.strerror(code_))
    for group in _GROUPS:
        membership = struct.pack("=iHH8s", ifindex, _MR_MULTICAST, len(group), group)
        opened.setsockopt(_SOL_PACKET, _ADD_MEMBERSHIP, membership)
