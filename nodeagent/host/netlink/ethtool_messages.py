"""Ethtool over netlink: how fast a port is, why it is down, what FEC corrects, who pauses whom.

One dump is one send and a receive or two for all netdevs; drivers that have no answer are left out by the
kernel. A driver that fails ends the dump: then each port is asked by itself (``one``). Needs no
capability but for the pages of a module's EEPROM (CAP_NET_ADMIN).
Constants: include/uapi/linux/ethtool_netlink.h and ethtool.h.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Generic as Of
from typing import Self, TypeVar

from nodeagent.host.netlink.generic import HEADER_BYTES, Generic
from nodeagent.host.netlink.message import NetlinkError, attribute, attributes, nest, number, u8, u32
from nodeagent.host.netlink.words import FEC_MODES, LINK_MODES, STATES, SUBSTATES

T = TypeVar("T", bound="Answer")

_HEADER, _DEV_INDEX, _FLAGS = 1, 1, 3
_COMPACT_BITSETS, _STATISTICS = 1, 4
_LINKMODES_GET, _LINKSTATE_GET, _PAUSE_GET, _FEC_GET, _EEPROM_GET = 4, 6, 21, 29, 31
_BITSET_MASK = 5
_SPEED_UNKNOWN = 0xFFFF_FFFF
_NOT_COUNTED = 2**64 - 1  # ETHTOOL_STAT_NOT_SET


@dataclass(frozen=True, slots=True)
class Answer:
    """``ifindex`` says whose it is."""

    ifindex: int


@dataclass(frozen=True, slots=True)
class Modes(Answer):
    """``speed_mbps`` is ``None`` where nothing is negotiated; ``supported_mbps`` is the fastest known mode."""

    speed_mbps: int | None
    lanes: int | None
    supported_mbps: int | None


@dataclass(frozen=True, slots=True)
class LinkState(Answer):
    """Why a link is down, in the kernel's words, and how often the PHY lost it."""

    state: str | None
    substate: str | None
    down_events: int | None


@dataclass(frozen=True, slots=True)
class Fec(Answer):
    """Sums over all lanes since the port began to count."""

    mode: str | None
    corrected_blocks: int | None
    uncorrectable_blocks: int | None
    corrected_bits: int | None


@dataclass(frozen=True, slots=True)
class Pause(Answer):
    """Frames of IEEE 802.3x; those of priority flow control are in the driver's own statistics alone."""

    rx_frames: int | None
    tx_frames: int | None


@dataclass(frozen=True, slots=True)
class Question(Of[T]):
    """A command, the flags it is asked with, and how its answer is read."""

    name: str
    command: int
    flags: int
    read: Callable[[bytes], T]


def modes_of(payload: bytes) -> Modes:
    told = attributes(payload, HEADER_BYTES)
    speed = number(told.get(5))
    return Modes(
        ifindex=_ifindex(told),
        speed_mbps=speed if speed and speed != _SPEED_UNKNOWN else None,
        lanes=number(told.get(9)) or None,
        supported_mbps=_fastest(told.get(3, b"")),
    )


def state_of(payload: bytes) -> LinkState:
    told = attributes(payload, HEADER_BYTES)
    state, substate = number(told.get(5)), number(told.get(6))
    return LinkState(
        ifindex=_ifindex(told),
        state=None if state is None else STATES.get(state, f"state-{state}"),
        substate=None
        if state is None or substate is None
        else SUBSTATES.get((state, substate), f"substate-{substate}"),
        down_events=number(told.get(7)),
    )


def fec_of(payload: bytes) -> Fec:
    told = attributes(payload, HEADER_BYTES)
    mode = number(told.get(4))
    counted = attributes(told.get(5, b""))
    return Fec(
        ifindex=_ifindex(told),
        mode=None if mode is None else FEC_MODES.get(mode, f"mode-{mode}"),
        corrected_blocks=_total(counted.get(2)),
        uncorrectable_blocks=_total(counted.get(3)),
        corrected_bits=_total(counted.get(4)),
    )


def pause_of(payload: bytes) -> Pause:
    told = attributes(payload, HEADER_BYTES)
    counted = attributes(told.get(5, b""))
    return Pause(_ifindex(told), rx_frames=number(counted.get(3)), tx_frames=number(counted.get(2)))


# What hardly ever changes is the same bytes each time.
_PORTS_MAX = 1024
MODES = Question("link modes", _LINKMODES_GET, _COMPACT_BITSETS, lru_cache(_PORTS_MAX)(modes_of))
STATE = Question("link state", _LINKSTATE_GET, _STATISTICS, lru_cache(_PORTS_MAX)(state_of))
FEC = Question("FEC", _FEC_GET, _COMPACT_BITSETS | _STATISTICS, fec_of)
PAUSE = Question("pause", _PAUSE_GET, _STATISTICS, pause_of)


class Ports:
    """A socket of the network namespace in which it was made, for one thread at a time."""

    def __init__(self) -> None:
        self._family = Generic("ethtool")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._family.close()

    @property
    def overruns(self) -> int:
        return self._family.overruns

    def all(self, question: Question[T]) -> list[T]:
        """The answers of all netdevs that have one. Raises ``RefusedError`` where one driver fails."""
        return self._family.dump(question.command, _header(None, question.flags), question.read)

    def one(self, question: Question[T], ifindex: int) -> T:
        """Raises ``RefusedError``: EOPNOTSUPP where the driver has no answer."""
        return question.read(self._family.ask(question.command, _header(ifindex, question.flags)))

    def eeprom(self, ifindex: int, i2c: int, page: int, offset: int, length: int) -> bytes:
        """A piece of a page of a module's EEPROM. Needs CAP_NET_ADMIN, and milliseconds on a slow bus."""
        body = _header(ifindex, 0) + b"".join(
            (
                attribute(2, u32(offset)),
                attribute(3, u32(length)),
                attribute(4, u8(page)),
                attribute(5, u8(0)),
                attribute(6, u8(i2c)),
            )
        )
        told = attributes(self._family.ask(_EEPROM_GET, body), HEADER_BYTES)
        data = told.get(7, b"")
        if len(data) != length:
            raise NetlinkError(f"the module gave {len(data)} of {length} bytes of page {page}")
        return data


def _header(ifindex: int | None, flags: int) -> bytes:
    whose = b"" if ifindex is None else attribute(_DEV_INDEX, u32(ifindex))
    return nest(_HEADER, whose, attribute(_FLAGS, u32(flags)))


def _ifindex(told: dict[int, bytes]) -> int:
    found = number(attributes(told.get(_HEADER, b"")).get(_DEV_INDEX))
    if found is None:
        raise NetlinkError("an answer of ethtool does not say which netdev it is about")
    return found


def _fastest(bitset: bytes) -> int | None:
    """Of the modes in the mask, which are those that the port supports; the value has those it advertises."""
    bits = number(attributes(bitset).get(_BITSET_MASK)) or 0
    return max((speed for bit, speed in LINK_MODES.items() if bits >> bit & 1), default=None)


def _total(array: bytes | None) -> int | None:
    """Of a total and, where the driver counts them, one number for each lane."""
    if not array:
        return None
    if len(array) % 8:
        raise NetlinkError(f"FEC statistics of {len(array)} bytes are no array of 64-bit numbers")
    (total,) = struct.unpack_from("=Q", array)
    return None if total == _NOT_COUNTED else int(total)
