"""Packets of pcap and pcapng files, and the LLDP frames among them.

https://www.ietf.org/archive/id/draft-ietf-opsawg-pcap-05.html and draft-ietf-opsawg-pcapng-03. Sizes in a
file are checked against the file before anything is cut out of it, so a corrupt one costs nothing: what
stands before it is yielded, then ``PcapError`` says where the file stopped making sense.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

from nodeagent.lldp.ethernet import LLDP, Frame, payload

ETHERNET = 1
COOKED = 113
COOKED_2 = 276

_SECTION = b"\x0a\x0d\x0d\x0a"  # the same in both byte orders
_PCAP_MAGIC = {  # byte order and ticks per second
    b"\xa1\xb2\xc3\xd4": (">", 10**6),
    b"\xd4\xc3\xb2\xa1": ("<", 10**6),
    b"\xa1\xb2\x3c\x4d": (">", 10**9),
    b"\x4d\x3c\xb2\xa1": ("<", 10**9),
}
# Interface, time high and low, captured, length: of the enhanced packet block and of the obsolete one.
_LAYOUTS = {6: "5I", 2: "H2x4I"}


class PcapError(ValueError):
    """A file that cannot be read on; ``offset`` is the byte at which it stopped making sense."""

    def __init__(self, message: str, offset: int) -> None:
        super().__init__(f"{message} at byte {offset}")
        self.message = message
        self.offset = offset


@dataclass(frozen=True, slots=True)
class Packet:
    """``number`` counts all packets of the file from 1, as Wireshark does. ``time`` is in seconds since
    1970 or ``None``. ``length`` is what was on the wire; ``data`` may be less.
    """

    number: int
    time: float | None
    link_type: int
    data: bytes
    length: int


def packets(data: bytes) -> Iterator[Packet]:
    """Raises ``PcapError`` after the last good packet."""
    magic = data[:4]
    if magic == _SECTION:
        return _pcapng(data)
    if magic in _PCAP_MAGIC:
        return _pcap(data, *_PCAP_MAGIC[magic])
    if not magic:
        raise PcapError("the file is empty, it has not even a header", 0)
    if magic[:2] == b"\x1f\x8b":
        raise PcapError("the file is compressed by gzip: unpack it first", 0)
    raise PcapError("the file is neither pcap nor pcapng: its first bytes are no known magic number", 0)


def lldp_frames(data: bytes) -> Iterator[tuple[Packet, Frame]]:
    """The LLDP frames of a capture; other traffic and other link types are passed over."""
    for packet in packets(data):
        frame = lldp_frame(packet)
        if frame is not None:
            yield packet, frame


def lldp_frame(packet: Packet) -> Frame | None:
    """``None`` when the packet carries no LLDP, or too little was captured to tell."""
    data = packet.data
    destination = source = None
    if packet.link_type == ETHERNET and len(data) >= 14:
        destination, source = data[:6], data[6:12]
        ethertype, vlans, offset = payload(data, 12)
    elif packet.link_type == COOKED and len(data) >= 16:
        if data[4:6] == b"\0\x06":
            source = data[6:12]
        ethertype, vlans, offset = payload(data, 14)
    elif packet.link_type == COOKED_2 and len(data) >= 20:
        if data[11] == 6:
            source = data[12:18]
        # The protocol stands first here, the payload (or the rest of a tag) after the 20 octets.
        ethertype, vlans, offset = payload(data[:2] + data[20:], 0)
        offset += 18
    else:
        return None
    return Frame(destination, source, vlans, data, offset) if ethertype == LLDP else None


def _pcap(data: bytes, order: str, ticks: int) -> Iterator[Packet]:
    if len(data) < 24:
        raise PcapError(f"the pcap header has {len(data)} of 24 bytes", 0)
    (network,) = struct.unpack_from(order + "I", data, 20)
    # The upper bits may say that each packet ends in a frame check sequence, in units of two octets.
    fcs = (network >> 28) * 2 if network & 1 << 26 else 0
    record = struct.Struct(order + "4I")
    offset = 24
    number = 0
    while offset < len(data):
        number += 1
        if offset + 16 > len(data):
            raise PcapError(f"the header of packet {number} is cut off", offset)
        seconds, fraction, captured, length = record.unpack_from(data, offset)
        end = offset + 16 + captured
        if end > len(data):
            left = len(data) - offset - 16
            raise PcapError(f"packet {number} claims {captured} bytes, {left} are left", offset)
        kept = _without_fcs(data[offset + 16 : end], length, fcs)
        yield Packet(number, seconds + fraction / ticks, network & 0xFFFF, kept, max(0, length - fcs))
        offset = end


def _without_fcs(kept: bytes, length: int, fcs: int) -> bytes:
    return kept[: max(0, length - fcs)] if fcs else kept


@dataclass(frozen=True, slots=True)
class _Interface:
    link_type: int
    snaplen: int
    ticks: int = 10**6
    epoch: int = 0

    def time(self, high: int, low: int) -> float:
        return (high << 32 | low) / self.ticks + self.epoch


@dataclass(slots=True)
class _State:
    """What earlier blocks of the file have said; a section header begins anew, but for the numbers."""

    order: str = "<"
    number: int = 0
    interfaces: list[_Interface] = field(default_factory=list)

    def interface(self, index: int, offset: int) -> _Interface:
        if index >= len(self.interfaces):
            raise PcapError(f"a packet of interface {index}, which no block has described", offset)
        return self.interfaces[index]


def _pcapng(data: bytes) -> Iterator[Packet]:
    state = _State()
    offset = 0
    while offset < len(data):
        if data[offset : offset + 4] == _SECTION:
            state = _State(_byte_order(data, offset), state.number)
        kind, size = _block(data, offset, state.order)
        body, end = offset + 8, offset + size - 4
        if kind == 1:
            state.interfaces.append(_interface(data, body, end, state.order))
        elif kind == 3:
            yield _simple(data, body, end, state)
        elif kind in _LAYOUTS:
            yield _stamped(data, body, end, state, _LAYOUTS[kind])
        offset += size


def _byte_order(data: bytes, offset: int) -> str:
    mark = data[offset + 8 : offset + 12]
    if mark == b"\x1a\x2b\x3c\x4d":
        return ">"
    if mark == b"\x4d\x3c\x2b\x1a":
        return "<"
    raise PcapError("a section header without a byte-order mark", offset)


def _block(data: bytes, offset: int, order: str) -> tuple[int, int]:
    """The type and total size of the block at ``offset``, once both of its lengths agree."""
    left = len(data) - offset
    if left < 12:
        raise PcapError(f"a block of {left} bytes, the shortest has 12", offset)
    kind, size = struct.unpack_from(order + "2I", data, offset)
    if size < 12 or size % 4:
        raise PcapError(f"a block says that it has {size} bytes, which none can have", offset)
    if size > left:
        raise PcapError(f"a block claims {size} bytes, {left} are left", offset)
    (again,) = struct.unpack_from(order + "I", data, offset + size - 4)
    if again != size:
        raise PcapError(f"a block has {size} bytes at its begin and {again} at its end", offset)
    return kind, size


def _need(count: int, body: int, end: int, what: str) -> None:
    if end - body < count:
        raise PcapError(f"{what} of {end - body} bytes, {count} needed", body - 8)


def _interface(data: bytes, body: int, end: int, order: str) -> _Interface:
    _need(8, body, end, "an interface block")
    link_type, _, snaplen = struct.unpack_from(order + "HHI", data, body)
    ticks, epoch = 10**6, 0
    at = body + 8
    while at + 4 <= end:
        code, size = struct.unpack_from(order + "HH", data, at)
        value = data[at + 4 : at + 4 + size]
        if code == 0 or at + 4 + size > end:
            break
        if code == 9 and size == 1:  # if_tsresol
            ticks = 2 ** (value[0] & 0x7F) if value[0] & 0x80 else 10 ** value[0]
        elif code == 14 and size == 8:  # if_tsoffset
            (epoch,) = struct.unpack(order + "q", value)
        at += 4 + (size + 3) // 4 * 4
    return _Interface(link_type, snaplen, ticks, epoch)


def _stamped(data: bytes, body: int, end: int, state: _State, layout: str) -> Packet:
    state.number += 1
    _need(20, body, end, "a packet block")
    index, high, low, captured, length = struct.unpack_from(state.order + layout, data, body)
    interface = state.interface(index, body - 8)
    start = body + 20
    if start + captured > end:
        raise PcapError(
            f"packet {state.number} claims {captured} bytes, its block has {end - start}", body - 8
        )
    kept = data[start : start + captured]
    return Packet(state.number, interface.time(high, low), interface.link_type, kept, length)


def _simple(data: bytes, body: int, end: int, state: _State) -> Packet:
    state.number += 1
    _need(4, body, end, "a simple packet block")
    (length,) = struct.unpack_from(state.order + "I", data, body)
    interface = state.interface(0, body - 8)
    captured = min(length, interface.snaplen or length)
    start = body + 4
    if start + captured > end:
        raise PcapError(
            f"packet {state.number} claims {captured} bytes, its block has {end - start}", body - 8
        )
    return Packet(state.number, None, interface.link_type, data[start : start + captured], length)
