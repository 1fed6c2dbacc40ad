"""Read packets of pcap and pcapng files, and select the LLDP frames.

https://www.ietf.org/archive/id/draft-ietf-opsawg-pcap-05.html and draft-ietf-opsawg-pcapng-03. A capture is read
one packet at a time: a file of any length or an endless pipe needs the memory of one packet. A false size needs at
most ``BLOCK_MAX``. All packets before an error are yielded; then ``PcapError`` has the offset of the error.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from io import BytesIO

from nodeagent.lldp.ethernet import LLDP_ETHERTYPE, Frame, payload

ETHERNET = 1
COOKED = 113
COOKED_2 = 276

BLOCK_MAX = 16 << 20
"""Wireshark's limit. The longest packet that tcpdump keeps has 256 KiB."""
_CHUNK = 1 << 20

Capture = bytes | Callable[[int], bytes]
"""The whole capture, or the ``read`` of a file: it returns fewer bytes than requested only at the end."""

_SECTION = b"\x0a\x0d\x0d\x0a"  # the same in both byte orders
_PCAP_MAGIC = {  # byte order and ticks per second
    b"\xa1\xb2\xc3\xd4": (">", 10**6),
    b"\xd4\xc3\xb2\xa1": ("<", 10**6),
    b"\xa1\xb2\x3c\x4d": (">", 10**9),
    b"\x4d\x3c\xb2\xa1": ("<", 10**9),
}
_BLOCK_HEAD = 12  # type, size, and the size again, which ends the shortest block
# Interface, time high and low, captured, length: of the enhanced packet block and of the obsolete one.
_LAYOUTS = {6: "5I", 2: "H2x4I"}


class PcapError(ValueError):
    """A malformed file; ``offset`` is the byte of the error."""

    def __init__(self, message: str, offset: int) -> None:
        super().__init__(f"{message} at byte {offset}")
        self.message = message
        self.offset = offset


@dataclass(frozen=True, slots=True)
class Packet:
    """``number`` counts all packets of the file from 1, as Wireshark does. ``time`` is in seconds since 1970, or
    ``None``. ``length`` is the packet's own length; the capture may have cut ``data``.
    """

    number: int
    time: float | None
    link_type: int
    data: bytes
    length: int


def packets(capture: Capture) -> Iterator[Packet]:
    """Raises ``PcapError`` after the last valid packet."""
    stream = _Stream(BytesIO(capture).read if isinstance(capture, bytes) else capture)
    magic = stream.peek(4)
    if magic == _SECTION:
        return _pcapng(stream)
    if magic in _PCAP_MAGIC:
        return _pcap(stream, *_PCAP_MAGIC[magic])
    if not magic:
        raise PcapError("the file is empty, it has not even a header", 0)
    if magic[:2] == b"\x1f\x8b":
        raise PcapError("the file is compressed by gzip: unpack it first", 0)
    raise PcapError("the file is neither pcap nor pcapng: its first bytes are no known magic number", 0)


def lldp_frames(capture: Capture) -> Iterator[tuple[Packet, Frame]]:
    """The LLDP frames of a capture; other traffic and other link types are skipped."""
    for packet in packets(capture):
        frame = lldp_frame(packet)
        if frame is not None:
            yield packet, frame


def lldp_frame(packet: Packet) -> Frame | None:
    """``None`` if the packet is not LLDP, or if the capture has cut too much of it."""
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
        # The protocol comes first here, the payload (or the rest of a tag) after the 20 octets.
        ethertype, vlans, offset = payload(data[:2] + data[20:], 0)
        offset += 18
    else:
        return None
    return Frame(destination, source, vlans, data, offset) if ethertype == LLDP_ETHERTYPE else None


class _Stream:
    """A sequential reader that counts the bytes taken."""

    def __init__(self, read: Callable[[int], bytes]) -> None:
        self._read = read
        self._ahead = b""
        self.offset = 0

    def peek(self, size: int) -> bytes:
        self._ahead += self._more(size - len(self._ahead))
        return self._ahead[:size]

    def take(self, size: int) -> bytes:
        """Take ``size`` bytes, fewer only at the end of the file."""
        ahead, self._ahead = self._ahead[:size], self._ahead[size:]
        taken = ahead + self._more(size - len(ahead))
        self.offset += len(taken)
        return taken

    def whole(self, size: int, claim: str, offset: int, counted: int = 0) -> bytes:
        """Take ``size`` bytes that a header at ``offset`` announces; ``counted`` more are already taken."""
        taken = self.take(min(size, BLOCK_MAX))
        left = len(taken)
        while left < size and (skipped := len(self.take(min(size - left, _CHUNK)))):
            left += skipped
        if left < size:
            raise PcapError(f"{claim}, {left + counted} are left", offset)
        if size > BLOCK_MAX:
            raise PcapError(f"{claim}, and none has more than {BLOCK_MAX >> 20} MiB", offset)
        return taken

    def _more(self, size: int) -> bytes:
        """Read in chunks: a file object allocates all that is requested, even gigabytes."""
        parts = []
        while size > 0 and (part := self._read(min(size, _CHUNK))):
            parts.append(part)
            size -= len(part)
        return b"".join(parts)


def _pcap(stream: _Stream, order: str, ticks: int) -> Iterator[Packet]:
    head = stream.take(24)
    if len(head) < 24:
        raise PcapError(f"the pcap header has {len(head)} of 24 bytes", 0)
    (network,) = struct.unpack_from(order + "I", head, 20)
    # The upper bits hold the length of a frame check sequence at the end of each packet, in units of two octets.
    fcs = (network >> 28) * 2 if network & 1 << 26 else 0
    record = struct.Struct(order + "4I")
    number = 0
    while head := stream.take(record.size):
        number += 1
        if len(head) < record.size:
            raise PcapError(f"the header of packet {number} is cut off", stream.offset - len(head))
        seconds, fraction, captured, length = record.unpack(head)
        offset = stream.offset - record.size
        data = stream.whole(captured, f"packet {number} claims {captured} bytes", offset)
        kept = _without_fcs(data, length, fcs)
        yield Packet(number, seconds + fraction / ticks, network & 0xFFFF, kept, max(0, length - fcs))


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
    """Values of earlier blocks of the file; a section header resets all but the packet number."""

    order: str = "<"
    number: int = 0
    interfaces: list[_Interface] = field(default_factory=list)

    def interface(self, index: int, offset: int) -> _Interface:
        if index >= len(self.interfaces):
            raise PcapError(f"a packet of interface {index}, which no block describes", offset)
        return self.interfaces[index]


def _pcapng(stream: _Stream) -> Iterator[Packet]:
    state = _State()
    while head := stream.take(_BLOCK_HEAD):
        offset = stream.offset - len(head)
        if head[:4] == _SECTION:
            state = _State(_byte_order(head, offset), state.number)
        if len(head) < _BLOCK_HEAD:
            raise PcapError(f"a block of {len(head)} bytes, the shortest has 12", offset)
        kind, block = _block(stream, head, offset, state.order)
        if kind == 1:
            state.interfaces.append(_interface(block, state.order, offset))
        elif kind == 3:
            yield _simple(block, state, offset)
        elif kind in _LAYOUTS:
            yield _stamped(block, state, _LAYOUTS[kind], offset)


def _byte_order(head: bytes, offset: int) -> str:
    mark = head[8:12]
    if mark == b"\x1a\x2b\x3c\x4d":
        return ">"
    if mark == b"\x4d\x3c\x2b\x1a":
        return "<"
    raise PcapError("a section header without a byte-order mark", offset)


def _block(stream: _Stream, head: bytes, offset: int, order: str) -> tuple[int, bytes]:
    """The type and content of a block whose two sizes agree."""
    kind, size = struct.unpack_from(order + "2I", head)
    if size < _BLOCK_HEAD or size % 4:
        raise PcapError(f"a block has the impossible size of {size} bytes", offset)
    claim = f"a block claims {size} bytes"
    whole = head + stream.whole(size - _BLOCK_HEAD, claim, offset, _BLOCK_HEAD)
    (again,) = struct.unpack_from(order + "I", whole, size - 4)
    if again != size:
        raise PcapError(f"a block has the size {size} at its beginning and {again} at its end", offset)
    return kind, whole[8:-4]


def _need(count: int, block: bytes, what: str, offset: int) -> None:
    if len(block) < count:
        raise PcapError(f"{what} of {len(block)} bytes, {count} needed", offset)


def _interface(block: bytes, order: str, offset: int) -> _Interface:
    _need(8, block, "an interface block", offset)
    link_type, _, snaplen = struct.unpack_from(order + "HHI", block)
    ticks, epoch = 10**6, 0
    at = 8
    while at + 4 <= len(block):
        code, size = struct.unpack_from(order + "HH", block, at)
        value = block[at + 4 : at + 4 + size]
        if code == 0 or len(value) < size:
            break
        if code == 9 and size == 1:  # if_tsresol
            ticks = 2 ** (value[0] & 0x7F) if value[0] & 0x80 else 10 ** value[0]
        elif code == 14 and size == 8:  # if_tsoffset
            (epoch,) = struct.unpack(order + "q", value)
        at += 4 + (size + 3) // 4 * 4
    return _Interface(link_type, snaplen, ticks, epoch)


def _stamped(block: bytes, state: _State, layout: str, offset: int) -> Packet:
    state.number += 1
    _need(20, block, "a packet block", offset)
    index, high, low, captured, length = struct.unpack_from(state.order + layout, block)
    interface = state.interface(index, offset)
    kept = _cut(block, 20, captured, state, offset)
    return Packet(state.number, interface.time(high, low), interface.link_type, kept, length)


def _simple(block: bytes, state: _State, offset: int) -> Packet:
    state.number += 1
    _need(4, block, "a simple packet block", offset)
    (length,) = struct.unpack_from(state.order + "I", block)
    interface = state.interface(0, offset)
    kept = _cut(block, 4, min(length, interface.snaplen or length), state, offset)
    return Packet(state.number, None, interface.link_type, kept, length)


def _cut(block: bytes, start: int, captured: int, state: _State, offset: int) -> bytes:
    left = len(block) - start
    if captured > left:
        raise PcapError(f"packet {state.number} claims {captured} bytes, its block has {left}", offset)
    return block[start : start + captured]
