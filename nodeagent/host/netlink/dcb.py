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

from nodeagent.host.netlink.message import NetlinkError, RefusedError, attribute, attributes
from nodeagent.host.netlink.socket import Dialog
from nodeagent.model import Ets

# include/uapi/linux/rtnetlink.h, dcbnl.h
_GETDCB = 78
_CMD_IEEE_GET = 21
_ATTR_IFNAME, _ATTR_IEEE = 1, 13
_IEEE_ETS, _IEEE_PFC = 1, 2

# struct ieee_ets: willing, ets_cap, cbs, then eight octets each of tc_tx_bw, tc_rx_bw, tc_tsa, prio_tc, …
_ETS_AT, _ETS_SIZE = 3, 3 + 7 * 8
_PFC_SIZE = 2  # struct ieee_pfc: pfc_cap, pfc_en, …
_ALGORITHMS = {0: "strict", 1: "credit-based-shaper", 2: "ets", 255: "vendor"}

_NOTHING: tuple[None, None] = (None, None)


class DcbSocket:
    """A socket of the network namespace in which it was made; ``read`` may be called from any one thread."""

    def __init__(self) -> None:
        self._dialog = Dialog(socket.NETLINK_ROUTE, "DCB")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._dialog.close()

    def read(self, netdev: str) -> tuple[tuple[int, ...] | None, Ets | None]:
        """The priorities with PFC, and ETS; ``None`` for what the driver does not say."""
        name = netdev.encode("utf-8", "surrogateescape") + b"\0"
        body = struct.pack("=BBH", socket.AF_UNSPEC, _CMD_IEEE_GET, 0) + attribute(_ATTR_IFNAME, name)
        try:
            return ieee_of(self._dialog.ask(_GETDCB, body))
        except RefusedError as refusal:
            if refusal.code in (EOPNOTSUPP, ENODEV, EINVAL):
                return _NOTHING
            raise NetlinkError(f"DCB of {netdev} cannot be read: {refusal}") from refusal


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
