"""Find the LLDPDU in an Ethernet frame, behind any VLAN tags."""

from __future__ import annotations

import msgspec

from nodeagent.lldp.lldpdu import LldpError

LLDP_ETHERTYPE = 0x88CC
_UNTAGGED = LLDP_ETHERTYPE.to_bytes(2, "big")
_TAGS = frozenset((0x8100, 0x88A8, 0x9100))  # 802.1Q, 802.1ad, and QinQ before the standard
_TAGS_MAX = 4

NEAREST_BRIDGE = bytes.fromhex("0180c200000e")
NEAREST_NON_TPMR_BRIDGE = bytes.fromhex("0180c2000003")
NEAREST_CUSTOMER_BRIDGE = bytes.fromhex("0180c2000000")
GROUPS = (NEAREST_BRIDGE, NEAREST_NON_TPMR_BRIDGE, NEAREST_CUSTOMER_BRIDGE)


class Frame(msgspec.Struct, frozen=True, gc=False):
    """``data`` from ``offset`` on is the LLDPDU and perhaps padding. ``vlans`` are the VLAN IDs of the tags,
    the outermost first; 0 is a priority tag. A cooked capture has no ``destination``.
    """

    destination: bytes | None
    source: bytes | None
    vlans: tuple[int, ...]
    data: bytes
    offset: int


def parse_frame(data: bytes) -> Frame:
    """Raises ``LldpError`` if the frame is not LLDP over Ethernet."""
    if data[12:14] == _UNTAGGED:
        return Frame(data[:6], data[6:12], (), data, 14)
    if len(data) < 14:
        raise LldpError(f"an Ethernet frame of {len(data)} octets, 14 needed", 0)
    ethertype, vlans, offset = payload(data, 12)
    if ethertype != LLDP_ETHERTYPE:
        raise LldpError(f"EtherType {ethertype:#06x} is not LLDP", offset - 2)
    return Frame(data[:6], data[6:12], vlans, data, offset)


def payload(data: bytes, offset: int) -> tuple[int, tuple[int, ...], int]:
    """The EtherType behind all tags, the tags' VLAN IDs, and the offset of the payload.

    ``offset`` is the offset of the first EtherType. If the data ends inside a tag, the result has the tag's type.
    """
    ethertype = data[offset] << 8 | data[offset + 1]
    offset += 2
    vlans: tuple[int, ...] = ()
    while ethertype in _TAGS and len(data) >= offset + 4 and len(vlans) < _TAGS_MAX:
        vlans = (*vlans, (data[offset] << 8 | data[offset + 1]) & 0xFFF)
        ethertype = data[offset + 2] << 8 | data[offset + 3]
        offset += 4
    return ethertype, vlans, offset


def build_frame(destination: bytes, source: bytes, pdu: bytes, vlans: tuple[int, ...] = ()) -> bytes:
    """The frame without padding and checksum, which the kernel and the NIC add."""
    if len(destination) != 6 or len(source) != 6 or not all(0 <= vid <= 0xFFF for vid in vlans):
        raise LldpError("a MAC has 6 octets, a VLAN ID 12 bits", 0)
    tags = b"".join(b"\x81\x00" + vid.to_bytes(2, "big") for vid in vlans)
    return destination + source + tags + _UNTAGGED + pdu
