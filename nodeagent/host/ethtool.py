"""Driver statistics, private flags and driver information by ethtool ioctl; netlink has no request for them.

The driver sends statistics without names. The names are read once for each netdev and number of statistics: a
driver that adds queues adds both. On some drivers a reading costs firmware commands: call it in a thread, and
not every second. Private flags are read, never set. Nothing here needs a privilege.
"""

from __future__ import annotations

import array
import errno
import fcntl
import os
import socket
import struct

from msgspec import Struct

from nodeagent.host.fd import Closing

# include/uapi/linux/sockios.h and ethtool.h
_SIOCETHTOOL = 0x8946
_GDRVINFO, _GSTRINGS, _GSTATS, _GPFLAGS, _GSSET_INFO = 0x03, 0x1B, 0x1D, 0x27, 0x37
STATISTICS, PRIVATE_FLAGS = 1, 2  # ETH_SS_STATS, ETH_SS_PRIV_FLAGS
_NAME_BYTES = 32  # ETH_GSTRING_LEN
_NAMES_MAX = 65536
_FLAGS_MAX = 32  # the bits of one answer to ETHTOOL_GPFLAGS
_WITHOUT = (errno.EOPNOTSUPP, errno.ENODEV, errno.EINVAL)
_IFNAMSIZ = 16
_TRIES = 3
_WHAT = {STATISTICS: "statistics", PRIVATE_FLAGS: "private flags"}
_DRVINFO = struct.Struct("=I32s32s32s32s32s12sIIIII")


class EthtoolError(Exception):
    """A request that failed; ``code`` is the errno, EOPNOTSUPP where the driver does not support it."""

    def __init__(self, netdev: str, what: str, code: int) -> None:
        self.code = code
        name = errno.errorcode.get(code, str(code))
        super().__init__(f"{netdev}: its {what} cannot be read: {os.strerror(code)} ({name})")


class DriverInfo(Struct, frozen=True):
    """Texts as the driver reports them."""

    driver: str
    version: str
    firmware: str
    bus: str


class Ethtool(Closing):
    """A socket of the network namespace in which it was made, for one thread at a time."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._names: dict[tuple[int, int], tuple[str, ...]] = {}
        self._counts: dict[int, int] = {}

    def close(self) -> None:
        self._socket.close()

    def statistics(self, netdev: str, ifindex: int) -> dict[str, int]:
        """Statistics by the driver's own names; of equal names the first. Raises ``EthtoolError``.

        The answer holds its own count. If it differs from the expected one, names and numbers may not belong
        together, and both are read again.
        """
        for _ in range(_TRIES):
            count = self._counts.get(ifindex)
            if count is None:
                count = self._counts[ifindex] = self._count(netdev, STATISTICS)
            if count == 0:
                return {}
            names = self._names.get((ifindex, count))
            if names is None:
                names = self._names[ifindex, count] = self._names_of(netdev, STATISTICS, count)
            buffer = array.array("Q", bytes(8 * (count + 1)))
            struct.pack_into("=II", buffer, 0, _GSTATS, count)
            self._ioctl(netdev, buffer, "statistics")
            _, answered = struct.unpack_from("=II", buffer)
            if answered == count == len(names):
                return dict(zip(reversed(names), reversed(buffer[1:]), strict=True))
            self.forget(ifindex)
        raise EthtoolError(netdev, "statistics", errno.EAGAIN)

    def forget(self, ifindex: int) -> None:
        """Drop the cached names and count: the netdev was removed, or they are outdated."""
        count = self._counts.pop(ifindex, None)
        if count is not None:
            self._names.pop((ifindex, count), None)

    def info(self, netdev: str) -> DriverInfo:
        buffer = array.array("B", bytes(_DRVINFO.size))
        struct.pack_into("=I", buffer, 0, _GDRVINFO)
        self._ioctl(netdev, buffer, "driver")
        _, driver, version, firmware, bus, *_ = _DRVINFO.unpack_from(buffer)
        return DriverInfo(_text(driver), _text(version), _text(firmware), _text(bus))

    def private_flags(self, netdev: str) -> dict[str, bool]:
        """Flag by name, as `ethtool --show-priv-flags` shows them; empty where the driver has none.

        Raises ``EthtoolError``.
        """
        try:
            names = self.names(netdev, PRIVATE_FLAGS)
            if not names:
                return {}
            buffer = array.array("B", struct.pack("=II", _GPFLAGS, 0))
            self._ioctl(netdev, buffer, "private flags")
        except EthtoolError as error:
            if error.code in _WITHOUT:
                return {}
            raise
        _, bits = struct.unpack_from("=II", buffer)
        return {name: bool(bits >> bit & 1) for bit, name in enumerate(names[:_FLAGS_MAX])}

    def names(self, netdev: str, names: int) -> tuple[str, ...]:
        """One of the driver's lists of names (``ETH_SS_*``). Raises ``EthtoolError``."""
        count = self._count(netdev, names)
        return self._names_of(netdev, names, count) if count else ()

    def _count(self, netdev: str, names: int) -> int:
        buffer = array.array("B", struct.pack("=IIQI", _GSSET_INFO, 0, 1 << names, 0))
        self._ioctl(netdev, buffer, _WHAT.get(names, "names"))
        _, _, sets, count = struct.unpack_from("=IIQI", buffer)
        return min(count, _NAMES_MAX) if sets else 0

    def _names_of(self, netdev: str, names: int, count: int) -> tuple[str, ...]:
        buffer = array.array("B", bytes(12 + _NAME_BYTES * count))
        struct.pack_into("=III", buffer, 0, _GSTRINGS, names, count)
        self._ioctl(netdev, buffer, f"{_WHAT.get(names, 'list')} names")
        _, _, answered = struct.unpack_from("=III", buffer)
        data = buffer.tobytes()[12:]
        size = _NAME_BYTES * min(answered, count)
        return tuple(_text(data[at : at + _NAME_BYTES]) for at in range(0, size, _NAME_BYTES))

    def _ioctl(self, netdev: str, buffer: array.array[int], what: str) -> None:
        address, _ = buffer.buffer_info()
        name = netdev.encode("utf-8", "surrogateescape")[: _IFNAMSIZ - 1]
        try:
            fcntl.ioctl(self._socket, _SIOCETHTOOL, struct.pack("@16sP16x", name, address))
        except OSError as error:
            raise EthtoolError(netdev, what, error.errno or errno.EIO) from error


def _text(raw: bytes) -> str:
    return raw.partition(b"\0")[0].decode("ascii", "replace").strip()
