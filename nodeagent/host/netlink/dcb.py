"""What the node's own side of a link is set to do about priorities: IEEE 802.1Qaz over rtnetlink (dcbnl).

Only a few drivers answer (mlx5, bnxt, ice, i40e, qede…); the others, and a kernel without CONFIG_DCB, say
EOPNOTSUPP, and then nothing is known. Reading needs no capability. Where a NIC's firmware runs DCBX by
itself the driver shows what the firmware negotiated.
"""

from __future__ import annotations

import socket
import struct
from errno import EINVAL, ENODEV, EOPNOTSUPP
from typing import Self

from nodeagent.host.netlink.events import NetlinkError
from nodeagent.host.netlink.netdevs import attributes, messages
from nodeagent.model import Ets

# include/uapi/linux/rtnetlink.h, dcbnl.h
_GETDCB = 78
_CMD_IEEE_GET = 21
_ATTR_IFNAME, _ATTR_IEEE = 1, 13
_IEEE_ETS, _IEEE_PFC = 1, 2
_MESSAGE = struct.Struct("=IHHII")
_ERROR = 2
_REQUEST = 1
_TIMEOUT_S = 10.0
_REPLY_MAX = 64 * 1024

# struct ieee_ets: willing, ets_cap, cbs, then eight octets each of tc_tx_bw, tc_rx_bw, tc_tsa, prio_tc, …
_ETS_AT, _ETS_SIZE = 3, 3 + 7 * 8
_PFC_SIZE = 2  # struct ieee_pfc: pfc_cap, pfc_en, …
_ALGORITHMS = {0: "strict", 1: "credit-based-shaper", 2: "ets", 255: "vendor"}

_NOTHING: tuple[None, None] = (None, None)


class DcbSocket:
    """A socket of the network namespace in which it was made; ``read`` may be called from any one thread."""

    def __init__(self) -> None:
        self._sequence = 0
        try:
            self._socket = socket.socket(
                socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE
            )
        except OSError as error:
            raise NetlinkError(f"no netlink socket for DCB: {error.strerror}; allow AF_NETLINK") from error
        self._socket.settimeout(_TIMEOUT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def read(self, netdev: str) -> tuple[tuple[int, ...] | None, Ets | None]:
        """The priorities with PFC, and ETS; ``None`` for what the driver does not say."""
        self._sequence += 1
        name = netdev.encode("utf-8", "surrogateescape") + b"\0"
        attribute = struct.pack("=HH", 4 + len(name), _ATTR_IFNAME) + name + b"\0" * (-len(name) % 4)
        body = struct.pack("=BBH", socket.AF_UNSPEC, _CMD_IEEE_GET, 0) + attribute
        head = _MESSAGE.pack(_MESSAGE.size + len(body), _GETDCB, _REQUEST, self._sequence, 0)
        try:
            self._socket.sendto(head + body, (0, 0))
            while True:
                for kind, _, sequence, payload in messages(self._socket.recv(_REPLY_MAX)):
                    if sequence == self._sequence:
                        return _refused(netdev, payload) if kind == _ERROR else ieee_of(payload)
        except OSError as error:
            raise NetlinkError(f"DCB of {netdev} cannot be read: {error.strerror or error}") from error


def ieee_of(payload: bytes) -> tuple[tuple[int, ...] | None, Ets | None]:
    """The payload of an answer to DCB_CMD_IEEE_GET."""
    told = attributes(attributes(payload, 4).get(_ATTR_IEEE, b""))
    pfc, ets = told.get(_IEEE_PFC, b""), told.get(_IEEE_ETS, b"")
    return (
        tuple(p for p in range(8) if pfc[1] >> p & 1) if len(pfc) >= _PFC_SIZE else None,
        _ets(ets) if len(ets) >= _ETS_SIZE else None,
    )


def _ets(data: bytes) -> Ets:
    bandwidth, _, algorithms, classes = (tuple(data[at : at + 8]) for at in range(_ETS_AT, _ETS_AT + 32, 8))
    words = tuple(_ALGORITHMS.get(each, f"algorithm-{each}") for each in algorithms)
    return Ets(classes=classes, bandwidth=bandwidth, algorithms=words)


def _refused(netdev: str, payload: bytes) -> tuple[None, None]:
    code = -struct.unpack_from("=i", payload)[0]
    if code in (EOPNOTSUPP, ENODEV, EINVAL):
        return _NOTHING
    raise NetlinkError(f"DCB of {netdev} cannot be read: the kernel refused with error {code}")
