"""A driver's private flags, as `ethtool --show-priv-flags` shows them: read, never set.

Two of Intel's drivers have a flag for the LLDP agent in the NIC's firmware, and only there is it told whether it
runs. By ioctl on a socket of this process's network namespace; none of the three questions needs a privilege.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import socket
import struct

# include/uapi/linux/sockios.h and ethtool.h
_SIOCETHTOOL = 0x8946
_GSTRINGS, _GPFLAGS, _GSSET_INFO = 0x1B, 0x27, 0x37
PRIV_FLAGS = 2  # ETH_SS_PRIV_FLAGS
_NAME = 32  # ETH_GSTRING_LEN
_FLAGS_MAX = 32  # as many as GPFLAGS can carry
_IFREQ = struct.Struct("16sP8x")
_SILENT = (errno.EOPNOTSUPP, errno.ENODEV, errno.EINVAL)


def priv_flags(netdev: str) -> dict[str, bool]:
    """Flag by name; empty where the driver has none. Raises ``OSError``."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as ours:
        names = _strings(ours, netdev, PRIV_FLAGS)
        if not names:
            return {}
        request = ctypes.create_string_buffer(struct.pack("=II", _GPFLAGS, 0), 8)
        if not _ask(ours, netdev, request):
            return {}
        flags = struct.unpack_from("=I", request.raw, 4)[0]
    return {name: bool(flags >> i & 1) for i, name in enumerate(names[:_FLAGS_MAX])}


def strings(netdev: str, kind: int) -> tuple[str, ...]:
    """One of the driver's lists of names (``ETH_SS_*``)."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as ours:
        return _strings(ours, netdev, kind)


def _strings(ours: socket.socket, netdev: str, kind: int) -> tuple[str, ...]:
    info = ctypes.create_string_buffer(struct.pack("=IIQI", _GSSET_INFO, 0, 1 << kind, 0), 20)
    if not _ask(ours, netdev, info):
        return ()
    _, _, answered, length = struct.unpack_from("=IIQI", info.raw)
    if not answered or not length:
        return ()
    request = ctypes.create_string_buffer(struct.pack("=III", _GSTRINGS, kind, length), 12 + length * _NAME)
    if not _ask(ours, netdev, request):
        return ()
    names = (request.raw[12 + i * _NAME : 12 + (i + 1) * _NAME] for i in range(length))
    return tuple(name.partition(b"\0")[0].decode("ascii", "backslashreplace") for name in names)


def _ask(ours: socket.socket, netdev: str, request: ctypes.Array[ctypes.c_char]) -> bool:
    """The answer is written into the request; false where the driver has none to give."""
    try:
        fcntl.ioctl(ours, _SIOCETHTOOL, _IFREQ.pack(netdev.encode()[:15], ctypes.addressof(request)))
    except OSError as error:
        if error.errno in _SILENT:
            return False
        raise
    return True
