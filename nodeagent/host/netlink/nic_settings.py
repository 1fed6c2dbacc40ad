"""Settings of a NIC that somebody chose: priorities with PFC, pause frames, rings and channels, over netlink.

Each is asked of one netdev at a time: a dump covers all netdevs of a host with hundreds of VFs, and ends at the first
driver that fails. Nothing here needs a capability. Constants: include/uapi/linux/ethtool_netlink.h.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Mapping
from contextlib import ExitStack
from errno import EOPNOTSUPP

from msgspec import Struct

from nodeagent.host.netlink.dcb import DcbSocket
from nodeagent.host.netlink.ethtool_messages import EthtoolSocket, PortAnswer, PortQuery, ifindex_of
from nodeagent.host.netlink.message import NetlinkError, NetlinkRefusedError, attributes, number
from nodeagent.host.netlink.socket import HEADER_BYTES

log = logging.getLogger(__name__)

_RINGS_GET, _CHANNELS_GET, _PAUSE_GET = 15, 17, 21
_COMPACT_BITSETS = 1

_RINGS = {"rx": 6, "tx": 9}
"""Entries of the rings in use, by ETHTOOL_A_RINGS_RX and _TX; those before are the largest possible ones."""
_CHANNELS = {"combined": 9, "rx": 6, "tx": 7}
"""By ETHTOOL_A_CHANNELS_COMBINED_COUNT, _RX_COUNT and _TX_COUNT. Channels for link interrupts alone are no setting."""
_PAUSE = {"rx": 3, "tx": 4, "autoneg": 2}
"""By ETHTOOL_A_PAUSE_RX, _TX and _AUTONEG."""


class NicSettings(Struct, frozen=True, omit_defaults=True):
    """Settings as texts, such as ``rx 8192 tx 512``, or ``8192`` if both are equal; ``None`` where the driver does not
    say it. ``pause``: for what it is on. ``pfc``: the priorities with PFC."""

    pfc: tuple[int, ...] | None = None
    pause: str | None = None
    rings: str | None = None
    channels: str | None = None


class _Setting(PortAnswer, frozen=True):
    text: str | None


def rings_of(payload: bytes) -> _Setting:
    return _counts(payload, _RINGS)


def channels_of(payload: bytes) -> _Setting:
    return _counts(payload, _CHANNELS)


def pause_setting_of(payload: bytes) -> _Setting:
    attrs = attributes(payload, HEADER_BYTES)
    known = {word: number(attrs.get(kind)) for word, kind in _PAUSE.items()}
    if None in known.values():
        return _Setting(ifindex_of(attrs), None)
    return _Setting(ifindex_of(attrs), " ".join(word for word, value in known.items() if value) or "none")


def _counts(payload: bytes, kinds: Mapping[str, int]) -> _Setting:
    """A kind of ring or channel that a NIC does not have is absent, or 0."""
    attrs = attributes(payload, HEADER_BYTES)
    counts = {word: count for word, kind in kinds.items() if (count := number(attrs.get(kind)))}
    if len(equal := {*counts.values()}) == 1:
        return _Setting(ifindex_of(attrs), str(*equal))
    return _Setting(ifindex_of(attrs), " ".join(f"{word} {count}" for word, count in counts.items()) or None)


_RINGS_QUERY = PortQuery("rings", _RINGS_GET, _COMPACT_BITSETS, rings_of)
_CHANNELS_QUERY = PortQuery("channels", _CHANNELS_GET, _COMPACT_BITSETS, channels_of)
_PAUSE_QUERY = PortQuery("pause setting", _PAUSE_GET, _COMPACT_BITSETS, pause_setting_of)


def read_nic_settings(netdevs: Mapping[str, str]) -> dict[str, NicSettings]:
    """The settings of these netdevs, by the keys of ``netdevs``. Blocks. What the kernel or a driver does not say is
    ``None``."""
    with ExitStack() as sockets:
        dcb = ethtool = None
        try:
            dcb = sockets.enter_context(DcbSocket())
            ethtool = sockets.enter_context(EthtoolSocket())
        except NetlinkError as error:
            log.debug("A netlink family is absent, so settings of NICs are not known. reason=%r", str(error))
        return {key: _settings(netdev, dcb, ethtool) for key, netdev in netdevs.items()}


def _settings(netdev: str, dcb: DcbSocket | None, ethtool: EthtoolSocket | None) -> NicSettings:
    return NicSettings(
        None if dcb is None else _pfc(dcb, netdev),
        *(
            None if ethtool is None else _text(ethtool, query, netdev)
            for query in (_PAUSE_QUERY, _RINGS_QUERY, _CHANNELS_QUERY)
        ),
    )


def _pfc(dcb: DcbSocket, netdev: str) -> tuple[int, ...] | None:
    try:
        return dcb.read(netdev).pfc
    except NetlinkError as error:
        log.debug("PFC is not read now. netdev=%r reason=%r", netdev, str(error))
        return None


def _text(ethtool: EthtoolSocket, query: PortQuery[_Setting], netdev: str) -> str | None:
    try:
        return ethtool.one(query, socket.if_nametoindex(netdev)).text
    except (OSError, NetlinkError) as error:
        if not isinstance(error, NetlinkRefusedError) or error.code != EOPNOTSUPP:
            log.debug("The %s are not read now. netdev=%r reason=%r", query.name, netdev, str(error))
        return None
