"""A driver's private statistics and its name, by ioctl: netlink has no way to them.

Statistics are numbers without names; the names are asked once for each netdev and number of statistics, for a
driver that grows queues grows both. The answer of some drivers costs firmware commands: ask in a thread, and
not every second.
"""

from __future__ import annotations

import array
import errno
import fcntl
import os
import socket
import struct
from dataclasses import dataclass
from typing import Self

# include/uapi/linux/sockios.h and ethtool.h
_SIOCETHTOOL = 0x8946
_GDRVINFO, _GSTRINGS, _GSTATS, _GSSET_INFO = 0x03, 0x1B, 0x1D, 0x37
_STATISTICS_SET = 1  # ETH_SS_STATS
_NAME_BYTES = 32  # ETH_GSTRING_LEN
_STATISTICS_MAX = 65536
_IFNAMSIZ = 16
_TRIES = 3
_DRVINFO = struct.Struct("=I32s32s32s32s32s12sIIIII")


class EthtoolError(Exception):
    """A driver that did not answer; ``code`` is the errno. EOPNOTSUPP is one that has no such thing."""

    def __init__(self, netdev: str, what: str, code: int) -> None:
        self.code = code
        name = errno.errorcode.get(code, str(code))
        super().__init__(f"{netdev}: its {what} cannot be read: {os.strerror(code)} ({name})")


@dataclass(frozen=True, slots=True)
class DriverInfo:
    """As the driver words it."""

    driver: str
    version: str
    firmware: str
    bus: str


class Ethtool:
    """A socket of the network namespace in which it was made, for one thread at a time."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._names: dict[tuple[int, int], tuple[str, ...]] = {}
        self._counts: dict[int, int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def statistics(self, netdev: str, ifindex: int) -> dict[str, int]:
        """By the driver's own names; of equal names the first. Raises ``EthtoolError``.

        The kernel says how many there are in the answer itself; where that is not what was expected, names
        and numbers may not belong together, and both are asked again.
        """
        for _ in range(_TRIES):
            count = self._counts.get(ifindex)
            if count is None:
                count = self._counts[ifindex] = self._count(netdev)
            if count == 0:
                return {}
            names = self._names.get((ifindex, count))
            if names is None:
                names = self._names[ifindex, count] = self._strings(netdev, count)
            buffer = array.array("Q", bytes(8 * (count + 1)))
            struct.pack_into("=II", buffer, 0, _GSTATS, count)
            self._ioctl(netdev, buffer, "statistics")
            _, told = struct.unpack_from("=II", buffer)
            if told == count == len(names):
                return dict(zip(reversed(names), reversed(buffer[1:]), strict=True))
            self.forget(ifindex)
        raise EthtoolError(netdev, "statistics", errno.EAGAIN)

    def forget(self, ifindex: int) -> None:
        """The netdev has gone, or what is known of it is wrong."""
        count = self._counts.pop(ifindex, None)
        if count is not None:
            self._names.pop((ifindex, count), None)

    def info(self, netdev: str) -> DriverInfo:
        buffer = array.array("B", bytes(_DRVINFO.size))
        struct.pack_into("=I", buffer, 0, _GDRVINFO)
        self._ioctl(netdev, buffer, "driver")
        _, driver, version, firmware, bus, *_ = _DRVINFO.unpack_from(buffer)
        return DriverInfo(_word(driver), _word(version), _word(firmware), _word(bus))

    def _count(self, netdev: str) -> int:
        buffer = array.array("B", struct.pack("=IIQI", _GSSET_INFO, 0, 1 << _STATISTICS_SET, 0))
        self._ioctl(netdev, buffer, "statistics")
        _, _, sets, count = struct.unpack_from("=IIQI", buffer)
        return min(count, _STATISTICS_MAX) if sets else 0

    def _strings(self, netdev: str, count: int) -> tuple[str, ...]:
        buffer = array.array("B", bytes(12 + _NAME_BYTES * count))
        struct.pack_into("=III", buffer, 0, _GSTRINGS, _STATISTICS_SET, count)
        self._ioctl(netdev, buffer, "statistics' names")
        _, _, told = struct.unpack_from("=III", buffer)
        data = buffer.tobytes()[12:]
        return tuple(
            _word(data[at : at + _NAME_BYTES]) for at in range(0, _NAME_BYTES * min(told, count), _NAME_BYTES)
        )

    def _ioctl(self, netdev: str, buffer: array.array[int], what: str) -> None:
        address, _ = buffer.buffer_info()
        name = netdev.encode("utf-8", "surrogateescape")[: _IFNAMSIZ - 1]
        try:
            fcntl.ioctl(self._socket, _SIOCETHTOOL, struct.pack("@16sP16x", name, address))
        except OSError as error:
            raise EthtoolError(netdev, what, error.errno or errno.EIO) from error


def _word(raw: bytes) -> str:
    return raw.partition(b"\0")[0].decode("ascii", "replace").strip()
