"""Receive and send LLDP frames on one netdev with an AF_PACKET socket.

* A socket belongs to one netdev by its ifindex, whatever its name. When the netdev is unregistered (deleted, or
  moved into another network namespace), the kernel unbinds the socket for good: a later netdev with the same
  ifindex is never confused with it. Admin down and up keep the socket bound.
* A socket for EtherType 0x88cc alone costs other traffic nothing. But a bond, a bridge and Open vSwitch take the
  frames of their ports before such a socket does. For these netdevs (``enslaved``) the socket takes every
  EtherType, at 0.1 µs for each received packet, and the filter in the kernel selects. A netdev that is enslaved
  later needs another socket.
* Two measures exclude the node's own transmissions: PACKET_IGNORE_OUTGOING (Linux 4.20) saves the clone of each
  sent packet, and the filter works where that option is missing.
* A frame with a VLAN or priority tag is received without it: the kernel strips the tag. Of two tags (802.1ad,
  QinQ) it strips the outer one and delivers the frame by the EtherType of the inner one. ``QinqSocket`` receives
  these, one socket for all netdevs; other traffic with two tags costs it the filter.
* A frame of a VLAN comes from a subinterface of the switch port. The kernel shows it in three ways
  (``__netif_receive_skb_core`` in net/core/dev.c). A socket for every EtherType gets the tag as auxiliary data. A
  socket for one gets the frame after the tag is gone: by the netdev of that VLAN if the host has one, otherwise as a
  frame for another host, although it is multicast.
* The event loop reads at most ``TURN`` frames in a row, and a link at most ``RATE`` frames a second. Then the
  socket pauses for ``_PAUSE_S``, and the kernel drops, without a copy, frames beyond ``QUEUE`` bytes.
* Calls that may wait for the kernel run in threads: ``open_socket`` takes the RTNL lock, which a driver may hold
  for seconds, and closing waits for an RCU grace period, 16 ms for each socket.

Needs CAP_NET_RAW only. A socket belongs to one event loop.
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

from nodeagent.base.bounded_calls import in_thread

_GROUPS = tuple(bytes.fromhex(f"0180c20000{last}") for last in ("0e", "03", "00"))

TURN = 16
RATE = 4000.0
BURST_FRAMES = 512.0
_PAUSE_S = 0.025
QUEUE = 64 * 1024
"""The value of SO_RCVBUF; the kernel doubles it, which is room for about 150 frames."""
_FRAME_MAX = 2048  # an LLDPDU must fit a frame of 1500 octets; a longer one is cut and counts as malformed

# include/uapi/linux/if_packet.h, if_ether.h, if_arp.h, asm-generic/socket.h
_SOL_PACKET = 263
_ADD_MEMBERSHIP, _STATISTICS, _AUXDATA, _IGNORE_OUTGOING = 1, 6, 8, 23
_MR_MULTICAST = 0
_ANY = 0  # as ifindex: every netdev
_ETH_P_ALL, _ETH_P_LLDP = 0x0003, 0x88CC
_ETH_P_8021Q, _ETH_P_8021AD = 0x8100, 0x88A8
_SO_ATTACH_FILTER = 26
_TAG_IS_VALID = 1 << 4  # TP_STATUS_VLAN_VALID
_TAG = struct.Struct("=3I4H")  # tpacket_auxdata: status, length, cut length, offsets of 2 headers, TCI, TPID
_VLAN_ID = 0xFFF
_ADDRESS = struct.Struct("=H2siHBB8s")  # sockaddr_ll: family, protocol, ifindex, hatype, pkttype, halen, addr

_libc = ctypes.CDLL(None, use_errno=True)


class PacketError(Exception):
    """No socket on a netdev; the message has the reason and the remedy.

    ``forbidden``: a capability is missing, so no netdev can have a socket.
    """

    def __init__(self, message: str, *, forbidden: bool = False) -> None:
        super().__init__(message)
        self.forbidden = forbidden


# Classic BPF (linux/filter.h): code, jump if true, jump if false, operand.
_LOAD_WORD, _LOAD_HALF, _EQUAL, _RETURN = 0x20, 0x28, 0x15, 0x06
_PACKET_TYPE = 0xFFFF_F004  # SKF_AD_OFF + SKF_AD_PKTTYPE
_OTHER_HOST, _OUTGOING = 3, 4
_FILTER = (
    (_LOAD_WORD, 0, 0, _PACKET_TYPE),
    (_EQUAL, 13, 0, _OUTGOING),
    (_LOAD_HALF, 0, 0, 12),
    (_EQUAL, 4, 0, _ETH_P_LLDP),
    (_EQUAL, 1, 0, _ETH_P_8021Q),
    (_EQUAL, 0, 9, _ETH_P_8021AD),
    (_LOAD_HALF, 0, 0, 16),
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


def may_receive() -> bool:
    """Whether this process may open a socket for frames."""
    try:
        socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0).close()
    except PermissionError:
        return False
    return True


class LldpSocket:
    """Takes over ``opened``, a result of ``open_socket(ifindex)``. Calls ``on_frame`` with each frame and whether it is
    of a VLAN, and ``on_lost`` once when the netdev has left this namespace. A priority tag names no VLAN.

    ``dropped`` counts frames that the kernel dropped for lack of room, ``paused`` the pauses after too many frames.
    """

    def __init__(
        self,
        ifindex: int,
        opened: socket.socket,
        on_frame: Callable[[bytes, bool], object],
        on_lost: Callable[[], object],
    ) -> None:
        self.ifindex = ifindex
        self.dropped = 0
        self.paused = 0
        self._on_frame = on_frame
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._budget = BURST_FRAMES
        self._budget_at = self._loop.time()
        self._resume: asyncio.TimerHandle | None = None
        self._closed = False
        self._socket = opened
        self._loop.add_reader(self._socket, self._read)

    def close(self) -> None:
        """May be called twice, and inside ``on_frame`` and ``on_lost``."""
        if self._closed:
            return
        self.count_drops()
        self._closed = True
        if self._resume is not None:
            self._resume.cancel()
        self._loop.remove_reader(self._socket)
        in_thread(self._socket.close)

    @property
    def bound(self) -> bool:
        """Whether the socket is still bound to its netdev."""
        if self._closed:
            return False
        address = ctypes.create_string_buffer(_ADDRESS.size)
        length = ctypes.c_uint(_ADDRESS.size)
        if _libc.getsockname(self._socket.fileno(), address, ctypes.byref(length)) != 0:
            return False
        return int(_ADDRESS.unpack(address.raw)[2]) == self.ifindex

    def send(self, frame: bytes) -> bool:
        """Send a frame; false if the link is down or its queue is full."""
        if self._closed:
            return False
        try:
            self._socket.send(frame)
        except OSError:
            return False
        return True

    def count_drops(self) -> int:
        """All frames dropped so far. The kernel resets its own counter with each reading."""
        if not self._closed:
            _, drops = struct.unpack("=II", self._socket.getsockopt(_SOL_PACKET, _STATISTICS, 8))
            self.dropped += drops
        return self.dropped

    def _read(self) -> None:
        for _ in range(self._allowance()):
            try:
                frame, tagged = self._receive()
            except BlockingIOError:
                return
            except OSError as error:
                # ENETDOWN comes once each time the netdev goes down; the socket is lost only if unbound.
                if error.errno != ENETDOWN or not self.bound:
                    self.close()
                    self._on_lost()
                return
            self._budget -= 1.0
            self._on_frame(frame, tagged)
            if self._closed:
                return

    def _receive(self) -> tuple[bytes, bool]:
        """The next frame, and whether it is of a VLAN."""
        frame, extra, _, (netdev, _, packet_type, *_) = self._socket.recvmsg(
            _FRAME_MAX, socket.CMSG_SPACE(_TAG.size)
        )
        tagged = packet_type == _OTHER_HOST or netdev != self._socket.getsockname()[0]
        for level, kind, data in extra:
            if (level, kind, len(data)) == (_SOL_PACKET, _AUXDATA, _TAG.size):
                status, *_, tag, _ = _TAG.unpack(data)
                tagged |= bool(status & _TAG_IS_VALID and tag & _VLAN_ID)
        return frame, tagged

    def _allowance(self) -> int:
        """How many frames may be read now. If none, pause the socket."""
        now = self._loop.time()
        self._budget = min(BURST_FRAMES, self._budget + (now - self._budget_at) * RATE)
        self._budget_at = now
        if self._budget < 1.0:
            self.paused += 1
            self._loop.remove_reader(self._socket)
            self._resume = self._loop.call_later(_PAUSE_S, self._loop.add_reader, self._socket, self._read)
            return 0
        return min(TURN, int(self._budget))


class QinqSocket(LldpSocket):
    """Takes over a result of ``open_qinq_socket``. Calls ``on_frame`` with the netdev's name and each frame that has
    two tags. The sockets of the netdevs join the groups.
    """

    def __init__(self, opened: socket.socket, on_frame: Callable[[str, bytes], object]) -> None:
        self._netdev = ""
        super().__init__(_ANY, opened, lambda frame, _: on_frame(self._netdev, frame), lambda: None)

    def _receive(self) -> tuple[bytes, bool]:
        frame, (self._netdev, *_) = self._socket.recvfrom(_FRAME_MAX)
        return frame, True


def open_socket(ifindex: int, *, enslaved: bool = False) -> socket.socket:
    """A socket in the network namespace of this thread, bound and filtered. Raises ``PacketError``."""
    return _open(ifindex, _ETH_P_ALL if enslaved else _ETH_P_LLDP)


def open_qinq_socket() -> socket.socket:
    """A socket for all netdevs of the network namespace of this thread. Raises ``PacketError``."""
    return _open(_ANY, _ETH_P_8021Q)


def _open(ifindex: int, protocol: int) -> socket.socket:
    try:
        # A socket with protocol 0 receives nothing until it is bound: no frame passes before the filter is set.
        opened = socket.socket(
            socket.AF_PACKET, socket.SOCK_RAW | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC, 0
        )
    except OSError as error:
        if error.errno in (EPERM, EACCES):
            raise PacketError(
                "receiving LLDP needs CAP_NET_RAW: "
                "run as root, or add NET_RAW to the container's capabilities",
                forbidden=True,
            ) from error
        raise PacketError(f"no packet socket: {error.strerror}") from error
    try:
        _set_up(opened, ifindex, protocol)
    except OSError as error:
        opened.close()
        raise PacketError(f"netdev {ifindex} cannot have a packet socket: {error.strerror}") from error
    return opened


def _set_up(opened: socket.socket, ifindex: int, protocol: int) -> None:
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, QUEUE)
    with contextlib.suppress(OSError):  # before Linux 4.20 only the filter excludes own frames
        opened.setsockopt(_SOL_PACKET, _IGNORE_OUTGOING, 1)
    opened.setsockopt(_SOL_PACKET, _AUXDATA, 1)
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *step) for step in _FILTER))
    program = struct.pack("@HP", len(_FILTER), ctypes.addressof(code))
    opened.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)
    # By ifindex: another netdev may have the name by now, and socket.bind() takes only names.
    address = _ADDRESS.pack(socket.AF_PACKET, struct.pack("!H", protocol), ifindex, 0, 0, 0, b"\0" * 8)
    if _libc.bind(opened.fileno(), address, len(address)) != 0:
        code_ = ctypes.get_errno()
        raise OSError(code_, os.strerror(code_))
    for group in _GROUPS if ifindex != _ANY else ():
        membership = struct.pack("=iHH8s", ifindex, _MR_MULTICAST, len(group), group)
        opened.setsockopt(_SOL_PACKET, _ADD_MEMBERSHIP, membership)
