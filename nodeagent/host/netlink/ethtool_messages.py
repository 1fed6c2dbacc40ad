"""Ethtool over netlink: port speed, the reason why a link is down, counters of FEC, pauses and MAC, module EEPROMs.

One dump is one send and one or two receives for all netdevs; the kernel leaves out drivers without an answer.
A driver that fails ends the dump with its error; ``one`` then asks one port at a time. Only EEPROM pages need a
capability (CAP_NET_ADMIN). Constants: include/uapi/linux/ethtool_netlink.h and ethtool.h.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Generic, TypeVar

from msgspec import Struct

from nodeagent.host.netlink.message import (
    NetlinkError,
    attribute,
    attributes,
    listed_attributes,
    nest,
    number,
    u8,
    u32,
)
from nodeagent.host.netlink.socket import HEADER_BYTES, GenericSocket

A = TypeVar("A", bound="PortAnswer")

_HEADER, _DEV_INDEX, _FLAGS = 1, 1, 3
_COMPACT_BITSETS, _STATISTICS = 1, 4
_LINKMODES_GET, _LINKSTATE_GET, _PAUSE_GET, _FEC_GET, _EEPROM_GET = 4, 6, 21, 29, 31
_STATISTICS_GET, _STATISTICS_HEADER = 32, 2
_BITSET_MASK = 5
_SPEED_UNKNOWN = 0xFFFF_FFFF
_NOT_COUNTED = 2**64 - 1  # ETHTOOL_STAT_NOT_SET

_MODE_BITS: dict[int, str] = {
    10: "0-1",
    100: "2-3 67 90-91",
    1_000: "4-5 17 41 68",
    2_500: "15 47",
    5_000: "48",
    10_000: "12 18-20 42-46",
    20_000: "21-22",
    25_000: "31-33",
    40_000: "23-26",
    50_000: "34-35 40 52-56",
    56_000: "27-30",
    100_000: "36-39 57-61 75-79",
    200_000: "62-66 80-84 103-108",
    400_000: "69-73 85-89 109-114",
    800_000: "93-98 115-120",
    1_600_000: "121-126",
}
"""Mbit/s: bits of enum ethtool_link_mode_bit_indices."""


def _bits(spans: str) -> list[int]:
    bits: list[int] = []
    for span in spans.split():
        first, _, last = span.partition("-")
        bits += range(int(first), int(last or first) + 1)
    return bits


_LINK_MODES: dict[int, int] = {bit: speed for speed, spans in _MODE_BITS.items() for bit in _bits(spans)}
"""Speed in Mbit/s by bit. Bits for ports, FEC and pause are no modes and are left out."""

_FEC_MODES = {49: "Off", 50: "RS", 51: "BASER", 74: "LLRS"}
"""Name by bit, as ``ethtool --show-fec`` prints them."""

_STATES = (
    *("autoneg", "link-training-failure", "link-logical-mismatch", "bad-signal-integrity", "no-cable"),
    *("cable-issue", "eeprom-issue", "calibration-failure", "power-budget-exceeded", "overheat", "module"),
)
"""By enum ethtool_link_ext_state."""

_AUTONEG, _TRAINING, _MISMATCH, _SIGNAL, _CABLE, _MODULE = 0, 1, 2, 3, 5, 10
_SUBSTATES = {
    (_AUTONEG, 1): "no-partner-detected",
    (_AUTONEG, 2): "ack-not-received",
    (_AUTONEG, 3): "next-page-exchange-failed",
    (_AUTONEG, 4): "no-partner-detected-force-mode",
    (_AUTONEG, 5): "fec-mismatch-during-override",
    (_AUTONEG, 6): "no-highest-common-denominator",
    (_TRAINING, 1): "kr-frame-lock-not-acquired",
    (_TRAINING, 2): "kr-link-inhibit-timeout",
    (_TRAINING, 3): "kr-link-partner-did-not-set-receiver-ready",
    (_TRAINING, 4): "remote-fault",
    (_MISMATCH, 1): "pcs-did-not-acquire-block-lock",
    (_MISMATCH, 2): "pcs-did-not-acquire-am-lock",
    (_MISMATCH, 3): "pcs-did-not-get-align-status",
    (_MISMATCH, 4): "fc-fec-not-locked",
    (_MISMATCH, 5): "rs-fec-not-locked",
    (_SIGNAL, 1): "large-number-of-physical-errors",
    (_SIGNAL, 2): "unsupported-rate",
    (_SIGNAL, 3): "serdes-reference-clock-lost",
    (_SIGNAL, 4): "serdes-alos",
    (_CABLE, 1): "unsupported-cable",
    (_CABLE, 2): "cable-test-failure",
    (_MODULE, 1): "cmis-not-ready",
}
"""By state and enum ethtool_link_ext_substate_*."""


class PortAnswer(Struct, frozen=True):
    """An answer about one netdev."""

    ifindex: int


class LinkModes(PortAnswer, frozen=True):
    """``speed_mbps`` is ``None`` where nothing is negotiated; ``supported_mbps`` is the fastest mode of the port."""

    speed_mbps: int | None
    lanes: int | None
    supported_mbps: int | None


class LinkState(PortAnswer, frozen=True):
    """Why a link is down, as the kernel names it, and how often the PHY lost it."""

    state: str | None
    substate: str | None
    down_events: int | None


class FecCounters(PortAnswer, frozen=True):
    """Sums over all lanes since the port started to count."""

    mode: str | None
    corrected_blocks: int | None
    uncorrectable_blocks: int | None
    corrected_bits: int | None


class PauseCounters(PortAnswer, frozen=True):
    """Frames of IEEE 802.3x. Only the driver's own statistics count frames of priority flow control."""

    rx_frames: int | None
    tx_frames: int | None


class StandardCounters(PortAnswer, frozen=True):
    """The counters of IEEE 802.3 and RMON that the driver gives, by the names that ``ethtool -S NETDEV --groups``
    prints."""

    counts: Mapping[str, int]


class PortQuery(Struct, Generic[A], frozen=True):
    """A command, its flags and the decoder of its answer. ``header`` is the type of the header in question and answer,
    ``body`` what follows it."""

    name: str
    command: int
    flags: int
    read: Callable[[bytes], A]
    header: int = _HEADER
    body: bytes = b""


def modes_of(payload: bytes) -> LinkModes:
    attrs = attributes(payload, HEADER_BYTES)
    speed = number(attrs.get(5))
    return LinkModes(
        ifindex=ifindex_of(attrs),
        speed_mbps=speed if speed and speed != _SPEED_UNKNOWN else None,
        lanes=number(attrs.get(9)) or None,
        supported_mbps=_fastest(attrs.get(3, b"")),
    )


def state_of(payload: bytes) -> LinkState:
    attrs = attributes(payload, HEADER_BYTES)
    state, substate = number(attrs.get(5)), number(attrs.get(6))
    return LinkState(
        ifindex=ifindex_of(attrs),
        state=None if state is None else _STATES[state] if state < len(_STATES) else f"state-{state}",
        substate=None
        if state is None or substate is None
        else _SUBSTATES.get((state, substate), f"substate-{substate}"),
        down_events=number(attrs.get(7)),
    )


def fec_of(payload: bytes) -> FecCounters:
    attrs = attributes(payload, HEADER_BYTES)
    mode = number(attrs.get(4))
    statistics = attributes(attrs.get(5, b""))
    return FecCounters(
        ifindex=ifindex_of(attrs),
        mode=None if mode is None else _FEC_MODES.get(mode, f"mode-{mode}"),
        corrected_blocks=_total(statistics.get(2)),
        uncorrectable_blocks=_total(statistics.get(3)),
        corrected_bits=_total(statistics.get(4)),
    )


def pause_of(payload: bytes) -> PauseCounters:
    attrs = attributes(payload, HEADER_BYTES)
    statistics = attributes(attrs.get(5, b""))
    return PauseCounters(
        ifindex_of(attrs), rx_frames=number(statistics.get(3)), tx_frames=number(statistics.get(2))
    )


_MAC = (
    "FramesTransmittedOK SingleCollisionFrames MultipleCollisionFrames FramesReceivedOK FrameCheckSequenceErrors"
    " AlignmentErrors OctetsTransmittedOK FramesWithDeferredXmissions LateCollisions FramesAbortedDueToXSColls"
    " FramesLostDueToIntMACXmitError CarrierSenseErrors OctetsReceivedOK FramesLostDueToIntMACRcvError"
    " MulticastFramesXmittedOK BroadcastFramesXmittedOK FramesWithExcessiveDeferral MulticastFramesReceivedOK"
    " BroadcastFramesReceivedOK InRangeLengthErrors OutOfRangeLengthField FrameTooLongErrors"
)
_GROUPS: tuple[tuple[str, ...], ...] = (
    ("SymbolErrorDuringCarrier",),
    tuple(_MAC.split()),
    ("MACControlFramesTransmitted", "MACControlFramesReceived", "UnsupportedOpcodesReceived"),
    ("etherStatsUndersizePkts", "etherStatsOversizePkts", "etherStatsFragments", "etherStatsJabbers"),
)
"""By enum ethtool_stats (eth-phy, eth-mac, eth-ctrl, rmon): the names by enum ETHTOOL_A_STATS_ETH_PHY_*, _ETH_MAC_*,
_ETH_CTRL_* and _RMON_*."""


def standard_of(payload: bytes) -> StandardCounters:
    """A driver states only what its hardware counts; many have an answer without a counter."""
    counts: dict[str, int] = {}
    for kind, group in listed_attributes(payload, HEADER_BYTES):
        if kind != 4:
            continue
        id_ = number(attributes(group).get(2))
        names = _GROUPS[id_] if id_ is not None and id_ < len(_GROUPS) else ()
        for inner, statistic in listed_attributes(group):
            if inner == 4:
                for which, raw in listed_attributes(statistic):
                    count = number(raw)
                    if which < len(names) and count is not None and count != _NOT_COUNTED:
                        counts[names[which]] = count
    return StandardCounters(ifindex_of(attributes(payload, HEADER_BYTES), _STATISTICS_HEADER), counts)


def _bitset(bits: int) -> bytes:
    """A compact bitset in which all of so many bits are set, as value and as mask."""
    every = u32((1 << bits) - 1)
    return attribute(2, u32(bits)) + attribute(4, every) + attribute(_BITSET_MASK, every)


# These answers rarely change, so the same bytes come each time.
_PORTS_MAX = 1024
MODES = PortQuery("link modes", _LINKMODES_GET, _COMPACT_BITSETS, lru_cache(_PORTS_MAX)(modes_of))
STATE = PortQuery("link state", _LINKSTATE_GET, _STATISTICS, lru_cache(_PORTS_MAX)(state_of))
FEC = PortQuery("FEC", _FEC_GET, _COMPACT_BITSETS | _STATISTICS, fec_of)
PAUSE = PortQuery("pause", _PAUSE_GET, _STATISTICS, pause_of)
STANDARD = PortQuery(
    "standard statistics",
    _STATISTICS_GET,
    _COMPACT_BITSETS,
    standard_of,
    _STATISTICS_HEADER,
    nest(3, _bitset(len(_GROUPS))),
)
"""Since Linux 5.13."""


class EthtoolSocket(GenericSocket):
    """A socket of the network namespace in which it was made, for one thread at a time."""

    def __init__(self) -> None:
        super().__init__("ethtool")

    def all(self, query: PortQuery[A]) -> list[A]:
        """The answers of all netdevs whose driver has one. Raises ``NetlinkRefusedError`` where a driver fails."""
        return self.dump_command(query.command, _question(query, None), query.read)

    def one(self, query: PortQuery[A], ifindex: int) -> A:
        """Raises ``NetlinkRefusedError``: EOPNOTSUPP where the driver has no answer."""
        return query.read(self.ask_command(query.command, _question(query, ifindex)))

    def eeprom(self, ifindex: int, i2c: int, page: int, offset: int, length: int) -> bytes:
        """Part of a page of a module's EEPROM. Needs CAP_NET_ADMIN; takes milliseconds on a slow bus."""
        body = _header(ifindex, 0) + b"".join(
            (
                attribute(2, u32(offset)),
                attribute(3, u32(length)),
                attribute(4, u8(page)),
                attribute(5, u8(0)),
                attribute(6, u8(i2c)),
            )
        )
        attrs = attributes(self.ask_command(_EEPROM_GET, body), HEADER_BYTES)
        data = attrs.get(7, b"")
        if len(data) != length:
            raise NetlinkError(f"the module returned {len(data)} of {length} bytes of page {page}")
        return data


def _question(query: PortQuery[A], ifindex: int | None) -> bytes:
    return _header(ifindex, query.flags, query.header) + query.body


def _header(ifindex: int | None, flags: int, kind: int = _HEADER) -> bytes:
    whose = b"" if ifindex is None else attribute(_DEV_INDEX, u32(ifindex))
    return nest(kind, whose, attribute(_FLAGS, u32(flags)))


def ifindex_of(attrs: dict[int, bytes], header: int = _HEADER) -> int:
    ifindex = number(attributes(attrs.get(header, b"")).get(_DEV_INDEX))
    if ifindex is None:
        raise NetlinkError("an ethtool answer does not name its netdev")
    return ifindex


def _fastest(bitset: bytes) -> int | None:
    """The fastest mode in the mask, which holds the supported modes; the value holds the advertised ones."""
    bits = number(attributes(bitset).get(_BITSET_MASK)) or 0
    return max((speed for bit, speed in _LINK_MODES.items() if bits >> bit & 1), default=None)


def _total(array: bytes | None) -> int | None:
    """The first number of the array, the total. A driver that counts per lane adds one number for each lane."""
    if not array:
        return None
    if len(array) % 8:
        raise NetlinkError(f"FEC statistics of {len(array)} bytes are not an array of 64-bit numbers")
    (total,) = struct.unpack_from("=Q", array)
    return None if total == _NOT_COUNTED else int(total)
