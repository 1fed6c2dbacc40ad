"""The PFC and ETS settings of the node's own links: IEEE 802.1Qaz over rtnetlink (dcbnl).

A few drivers support it (mlx5, bnxt, ice, i40e, qede…). Others, and a kernel without CONFIG_DCB, return
EOPNOTSUPP: the settings are then unknown. Reading needs no capability. Where the NIC's firmware runs DCBX, the
driver reports what the firmware negotiated.
"""

from __future__ import annotations

import socket
import struct
from errno import EINVAL, ENODEV, EOPNOTSUPP

from msgspec import Struct

from nodeagent.facts.model import Ets, ets_algorithm
from nodeagent.host.netlink.message import NetlinkError, NetlinkRefusedError, attribute, attributes
from nodeagent.host.netlink.socket import NetlinkSocket

# include/uapi/linux/rtnetlink.h, dcbnl.h
_GETDCB = 78
_CMD_IEEE_GET = 21
_ATTR_IFNAME, _ATTR_IEEE = 1, 13
_IEEE_ETS, _IEEE_PFC = 1, 2

# struct ieee_ets: willing, ets_cap, cbs, then eight octets each of tc_tx_bw, tc_rx_bw, tc_tsa, prio_tc, …
_ETS_AT, _ETS_SIZE = 3, 3 + 7 * 8
_PFC_SIZE = 2  # struct ieee_pfc: pfc_cap, pfc_en, …


class DcbSettings(Struct, frozen=True):
    """The priorities with PFC, and ETS; ``None`` for a part that the driver does not report."""

    pfc: tuple[int, ...] | None = None
    ets: Ets | None = None


UNKNOWN_DCB = DcbSettings()


class DcbSocket(NetlinkSocket):
    """A socket of the network namespace in which it was made; use it from one thread at a time."""

    def __init__(self) -> None:
        super().__init__(socket.NETLINK_ROUTE, "DCB")

    def read(self, netdev: str) -> DcbSettings:
        name = netdev.encode("utf-8", "surrogateescape") + b"\0"
        body = struct.pack("=BBH", socket.AF_UNSPEC, _CMD_IEEE_GET, 0) + attribute(_ATTR_IFNAME, name)
        try:
            return ieee_of(self.ask(_GETDCB, body))
        except NetlinkRefusedError as refusal:
            if refusal.code in (EOPNOTSUPP, ENODEV, EINVAL):
                return UNKNOWN_DCB
            raise NetlinkError(f"DCB of {netdev} cannot be read: {refusal}") from refusal


def ieee_of(payload: bytes) -> DcbSettings:
    """Decode an answer to DCB_CMD_IEEE_GET."""
    attrs = attributes(attributes(payload, 4).get(_ATTR_IEEE, b""))
    pfc, ets = attrs.get(_IEEE_PFC, b""), attrs.get(_IEEE_ETS, b"")
    return DcbSettings(
        tuple(priority for priority in range(8) if pfc[1] >> priority & 1) if len(pfc) >= _PFC_SIZE else None,
        _ets(ets) if len(ets) >= _ETS_SIZE else None,
    )


def _ets(data: bytes) -> Ets:
    bandwidth, _, algorithms, classes = (tuple(data[at : at + 8]) for at in range(_ETS_AT, _ETS_AT + 32, 8))
    names = tuple(map(ets_algorithm, algorithms))
    return Ets(classes=classes, bandwidth=bandwidth, algorithms=names)
