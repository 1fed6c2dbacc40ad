"""Captures in every format, malformed captures, and the output of ``nodeagent decode``."""

from __future__ import annotations

import json
import struct
import tracemalloc
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.console.json_document import camel
from nodeagent.lldp.ethernet import NEAREST_BRIDGE, build_frame
from nodeagent.lldp.lldpdu import (
    Application,
    Capabilities,
    ChassisId,
    EtsConfiguration,
    EtsRecommendation,
    LinkAggregation,
    Lldpdu,
    MacPhy,
    ManagementAddress,
    Med,
    MedCapabilities,
    Organizational,
    Pfc,
    PortId,
    Ppvid,
    Reserved,
    Vlan,
)
from nodeagent.lldp.lldpdu_codec import encode
from nodeagent_lab.captures.describe import decode_file, line, lines
from nodeagent_lab.captures.pcap import BLOCK_MAX, Packet, PcapError, lldp_frame, packets

SOURCE = bytes.fromhex("1c34da1c5801")
SMALL = Lldpdu(ChassisId(4, bytes.fromhex("1c34da1c5800")), PortId(5, b"swp1"), 120)
LLDP = build_frame(NEAREST_BRIDGE, SOURCE, encode(SMALL))
OTHER = bytes(12) + b"\x08\x00" + bytes(46)
ORDERS = pytest.mark.parametrize("order", ["<", ">"], ids=["little-endian", "big-endian"])


def pcap(
    *frames: bytes, order: str = "<", magic: int = 0xA1B2C3D4, network: int = 1, snaplen: int = 65535
) -> bytes:
    out = struct.pack(order + "IHHiIII", magic, 2, 4, 0, 0, snaplen, network)
    for n, frame in enumerate(frames):
        kept = frame[:snaplen]
        out += struct.pack(order + "4I", 1_700_000_000 + n, 250_000, len(kept), len(frame)) + kept
    return out


def block(order: str, kind: int, body: bytes) -> bytes:
    body += bytes(-len(body) % 4)
    size = struct.pack(order + "I", len(body) + 12)
    return struct.pack(order + "I", kind) + size + body + size


def section(order: str) -> bytes:
    return block(order, 0x0A0D0D0A, struct.pack(order + "IHHq", 0x1A2B3C4D, 1, 0, -1))


def interface(order: str, link_type: int = 1, snaplen: int = 0, options: bytes = b"") -> bytes:
    return block(order, 1, struct.pack(order + "HHI", link_type, 0, snaplen) + options)


def enhanced(order: str, frame: bytes, ticks: int = 0, index: int = 0, length: int | None = None) -> bytes:
    header = struct.pack(
        order + "5I", index, ticks >> 32, ticks & 0xFFFFFFFF, len(frame), length or len(frame)
    )
    return block(order, 6, header + frame)


@ORDERS
@pytest.mark.parametrize(
    ("magic", "time"), [(0xA1B2C3D4, 1_700_000_000.25), (0xA1B23C4D, 1_700_000_000.00025)], ids=["µs", "ns"]
)
def test_a_pcap_of_either_byte_order_and_resolution_is_read(order, magic, time):
    found = list(packets(pcap(LLDP, OTHER, order=order, magic=magic)))
    assert found == [
        Packet(1, time, 1, LLDP, len(LLDP)),
        Packet(2, time + 1, 1, OTHER, len(OTHER)),
    ]


@ORDERS
def test_a_pcapng_with_every_kind_of_packet_block_is_read(order):
    obsolete = block(order, 2, struct.pack(order + "HH4I", 0, 9, 0, 1_500_000, len(LLDP), len(LLDP)) + LLDP)
    data = (
        section(order)
        + interface(order)
        + block(order, 5, bytes(12))
        + enhanced(order, LLDP, 2_500_000)
        + block(order, 3, struct.pack(order + "I", len(LLDP)) + LLDP)
        + obsolete
    )
    assert [(each.number, each.time, each.data) for each in packets(data)] == [
        (1, 2.5, LLDP),
        (2, None, LLDP),
        (3, 1.5, LLDP),
    ]


def test_sections_of_both_byte_orders_continue_the_packet_numbers():
    data = b"".join(section(o) + interface(o) + enhanced(o, LLDP) for o in ("<", ">", "<"))
    assert [each.number for each in packets(data)] == [1, 2, 3]


@pytest.mark.parametrize(
    ("options", "time"),
    [
        (struct.pack("<HHB3x", 9, 1, 9), 5.0),
        (struct.pack("<HHB3x", 9, 1, 0x80 | 10), 5e9 / 1024),
        (struct.pack("<HH4s", 2, 3, b"eth") + struct.pack("<HHB3x", 9, 1, 9), 5.0),
        (struct.pack("<HHB3xHHq", 9, 1, 9, 14, 8, 100), 105.0),
        (struct.pack("<HHHHB3x", 0, 0, 9, 1, 9), 5000.0),
        (struct.pack("<HH", 9, 400), 5000.0),
    ],
    ids=["ns", "binary", "after another option", "offset", "after the end of options", "cut"],
)
def test_the_resolution_and_offset_of_an_interface_are_kept(options, time):
    data = section("<") + interface("<", options=options) + enhanced("<", LLDP, 5_000_000_000)
    assert next(packets(data)).time == time


def test_a_simple_packet_is_cut_at_the_interface_snap_length():
    data = section("<") + interface("<", snaplen=20) + block("<", 3, struct.pack("<I", 60) + LLDP[:20])
    assert list(packets(data)) == [Packet(1, None, 1, LLDP[:20], 60)]


COOKED = struct.pack(">HHH8sH", 1, 1, 6, SOURCE + b"\0\0", 0x88CC) + LLDP[14:]
COOKED_TAGGED = struct.pack(">HHH8sHHH", 1, 1, 6, SOURCE + b"\0\0", 0x8100, 7, 0x88CC) + LLDP[14:]
COOKED_2 = struct.pack(">HHIHBB8s", 0x88CC, 0, 3, 1, 1, 6, SOURCE + b"\0\0") + LLDP[14:]
COOKED_2_TAGGED = struct.pack(">HHIHBB8sHH", 0x8100, 0, 3, 1, 1, 6, SOURCE + b"\0\0", 7, 0x88CC) + LLDP[14:]


@pytest.mark.parametrize(
    ("link_type", "data", "destination", "vlans"),
    [
        (1, LLDP, NEAREST_BRIDGE, ()),
        (1, build_frame(NEAREST_BRIDGE, SOURCE, encode(SMALL), (4, 7)), NEAREST_BRIDGE, (4, 7)),
        (113, COOKED, None, ()),
        (113, COOKED_TAGGED, None, (7,)),
        (276, COOKED_2, None, ()),
        (276, COOKED_2_TAGGED, None, (7,)),
    ],
)
def test_lldp_is_found_in_every_link_type(link_type, data, destination, vlans):
    frame = lldp_frame(Packet(1, 0.0, link_type, data, len(data)))
    assert frame is not None
    assert (frame.destination, frame.source, frame.vlans) == (destination, SOURCE, vlans)
    assert frame.data[frame.offset :] == encode(SMALL)


@pytest.mark.parametrize(
    ("link_type", "data"),
    [(1, OTHER), (1, LLDP[:13]), (113, COOKED[:15]), (276, COOKED_2[:19]), (105, LLDP), (113, OTHER)],
)
def test_other_traffic_is_skipped(link_type, data):
    assert lldp_frame(Packet(1, 0.0, link_type, data, len(data))) is None


def test_a_captured_frame_check_sequence_is_not_part_of_the_frame():
    found = next(packets(pcap(LLDP + b"FCS!", network=1 | 1 << 26 | 2 << 28)))
    assert (found.link_type, found.data, found.length) == (1, LLDP, len(LLDP))


def drained(reader: Iterator) -> tuple[list, PcapError | None]:
    """The packets before the error, and the error."""
    found = []
    try:
        for each in reader:
            found.append(each)  # noqa: PERF402 (a list() would be lost with the error)
    except PcapError as error:
        return found, error
    return found, None


GOOD = section("<") + interface("<") + enhanced("<", LLDP)


@pytest.mark.parametrize(
    ("data", "good", "message"),
    [
        (b"", 0, "the file is empty"),
        (
            b"#!/bin/sh",
            0,
            "the file is neither pcap nor pcapng: its first bytes are no known magic number at byte 0",
        ),
        (b"\x1f\x8b\x08", 0, "the file is compressed by gzip: unpack it first at byte 0"),
        (pcap()[:20], 0, "the pcap header has 20 of 24 bytes at byte 0"),
        (pcap(LLDP, LLDP)[:-1], 1, f"packet 2 claims {len(LLDP)} bytes, {len(LLDP) - 1} are left at byte"),
        (pcap(LLDP) + bytes(7), 1, "the header of packet 2 is cut off at byte"),
        (pcap(LLDP) + b"\xff" * 16, 1, "packet 2 claims 4294967295 bytes, 0 are left at byte"),
        (section("<")[:8], 0, "a section header without a byte-order mark at byte 0"),
        (GOOD + bytes(4), 1, "a block of 4 bytes, the shortest has 12 at byte"),
        (GOOD + bytes(16), 1, "a block has the impossible size of 0 bytes at byte"),
        (GOOD + struct.pack("<III", 6, 13, 13), 1, "a block has the impossible size of 13 bytes"),
        (GOOD + struct.pack("<III", 6, 0xFFFFFFF0, 0), 1, "a block claims 4294967280 bytes, 12 are left"),
        (
            GOOD + struct.pack("<III", 9, 12, 16),
            1,
            "a block has the size 12 at its beginning and 16 at its end at",
        ),
        (GOOD[:-1], 0, "a block claims"),
        (GOOD + enhanced("<", LLDP, index=1), 1, "a packet of interface 1, which no block describes at"),
        (GOOD + block("<", 6, bytes(16)), 1, "a packet block of 16 bytes, 20 needed at byte"),
        (GOOD + block("<", 3, b""), 1, "a simple packet block of 0 bytes, 4 needed at byte"),
        (GOOD + block("<", 1, bytes(4)), 1, "an interface block of 4 bytes, 8 needed at byte"),
        (GOOD + block("<", 6, struct.pack("<5I", 0, 0, 0, 99, 99)), 1, "packet 2 claims 99 bytes, its block"),
        (GOOD + block("<", 3, struct.pack("<I", 1 << 31)), 1, "packet 2 claims 2147483648 bytes, its block"),
    ],
)
def test_a_malformed_capture_yields_its_valid_packets_and_one_error(data, good, message):
    found, error = drained(decode_file(data))
    assert len(found) == good
    assert str(error).startswith(message)


def test_packets_before_the_error_are_yielded_first():
    reader = lines(pcap(LLDP, OTHER, LLDP) + b"\xff" * 16, as_json=True)
    assert [json.loads(next(reader))["frame"] for _ in range(2)] == [1, 3]
    with pytest.raises(PcapError, match="packet 4"):
        next(reader)


def test_a_corrupt_length_allocates_no_memory():
    data = pcap(LLDP) + struct.pack("<4I", 0, 0, 0x7FFFFFFF, 0x7FFFFFFF)
    tracemalloc.start()
    with pytest.raises(PcapError):
        list(packets(data))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1_000_000


def test_a_file_needs_the_memory_of_one_packet():
    """A gigabyte of packets needs the same memory."""
    some = pcap(LLDP, *[bytes(1500)] * 100)
    left = [some[:24], *[some[24:]] * 200]

    def read(size: int) -> bytes:
        if left and not left[0]:
            left.pop(0)
        part, left[:1] = (left[0][:size], [left[0][size:]]) if left else (b"", [])
        return part

    tracemalloc.start()
    assert sum(1 for _ in decode_file(read)) == 200
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1_000_000


@pytest.mark.parametrize("claim", [pcap() + struct.pack("<4I", 0, 0, BLOCK_MAX + 1, BLOCK_MAX + 1), None])
def test_an_impossible_packet_size_is_not_read_even_if_the_file_is_as_long(claim):
    head = claim or section("<") + struct.pack("<III", 6, BLOCK_MAX + 16, 0)
    left = [*[head[at : at + 1] for at in range(len(head))], *[bytes(1 << 16)] * (BLOCK_MAX // (1 << 16) + 1)]
    error = drained(decode_file(lambda size: left.pop(0)[:size] if left else b""))[1]
    assert "and none has more than 16 MiB" in str(error)


@given(st.lists(st.integers(1, 64), min_size=1, max_size=8), st.booleans())
def test_the_chunks_of_a_pipe_make_no_difference(sizes, ng):
    data = GOOD + enhanced("<", LLDP) if ng else pcap(LLDP, OTHER, LLDP)
    at = turn = 0

    def read(size: int) -> bytes:
        nonlocal at, turn
        part = data[at : at + min(size, sizes[turn % len(sizes)])]
        at, turn = at + len(part), turn + 1
        return part

    assert list(lines(read, as_json=True)) == list(lines(data, as_json=True))


captures = st.sampled_from(
    [
        pcap(LLDP, OTHER, LLDP),
        pcap(COOKED, order=">", network=113),
        GOOD + block("<", 3, struct.pack("<I", len(LLDP)) + LLDP),
        section(">") + interface(">", 276, options=struct.pack(">HHB3x", 9, 1, 9)) + enhanced(">", COOKED_2),
    ]
)


@given(
    captures, st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=6), st.integers(0, 400)
)
def test_any_damage_yields_frames_and_at_most_one_error(data, damage, size):
    spoiled = bytearray(data)
    for at, value in damage:
        spoiled[at % len(spoiled)] = value
    raw = bytes(spoiled[:size] if size < 300 else spoiled)
    for as_json in (True, False):
        found, error = drained(lines(raw, as_json))
        assert all(each.isprintable() for each in found)
        assert error is None or 0 <= error.offset <= len(raw)


@given(st.binary(max_size=200), st.sampled_from([b"", pcap(), pcap(order=">"), section("<"), section(">")]))
def test_any_bytes_yield_frames_and_at_most_one_error(data, start):
    _, error = drained(lines(start + data, as_json=True))
    assert error is None or 0 <= error.offset <= len(start + data)


# --- what is printed --------------------------------------------------------------------------------

EVERYTHING = Lldpdu(
    ChassisId(4, bytes.fromhex("1c34da1c5800")),
    PortId(5, b"swp1s0"),
    120,
    port_description="rail 0\0",
    system_name="leaf\x1b[2J-\u202e01",
    system_description="Cumulus Linux\n5.9.1 \udcff",
    capabilities=Capabilities(0x8014, 0x10),
    management_addresses=(
        ManagementAddress(1, bytes((192, 0, 2, 17)), 2, 3, bytes.fromhex("2b0601")),
        ManagementAddress(2, bytes.fromhex("20010db8" + "00" * 11 + "11")),
        ManagementAddress(6, bytes.fromhex("1c34da1c5800"), 3, 1),
        ManagementAddress(99, b"\1\2", 9, 1),
    ),
    pvid=100,
    ppvids=(Ppvid(5, True, False),),
    vlans=(Vlan(100, "rail-0"), Vlan(200, "")),
    link_aggregation=LinkAggregation(True, True, 1000005),
    ets=EtsConfiguration(
        True,
        False,
        8,
        bytes((0, 0, 0, 3, 0, 0, 6, 7)),
        bytes((50, 0, 0, 50, 0, 0, 0, 0)),
        bytes((2, 2, 0, 2, 0, 1, 255, 9)),
    ),
    ets_recommendation=EtsRecommendation(bytes(8), bytes((100, *(0,) * 7)), bytes((2,) * 8)),
    pfc=Pfc(False, False, 8, 0x18),
    applications=(Application(3, 1, 0x8915), Application(3, 3, 4791), Application(1, 7, 1)),
    mac_phy=MacPhy(True, True, 0x6C00, 30),
    maximum_frame_size=9216,
    med=Med(MedCapabilities(0x33, 4), serial_number="MT2045X01234", model="MSN4700"),
    organizational=(Organizational(b"\x00\x26\xe1", 2, b"leaf0"),),
    reserved=(Reserved(9, b"\1"),),
)


def sample() -> bytes:
    tagged = build_frame(NEAREST_BRIDGE, SOURCE, encode(SMALL), vlans=(100,))
    shutdown = build_frame(
        NEAREST_BRIDGE, SOURCE, encode(Lldpdu(ChassisId(7, b"a\xffb"), PortId(7, b"541\0"), 0))
    )
    malformed = LLDP[:-2] + bytes.fromhex("0e0100") + b"\0\0"
    missing = LLDP[:14] + b"\0\0"
    full = build_frame(NEAREST_BRIDGE, SOURCE, encode(EVERYTHING))
    return pcap(full, OTHER, tagged, shutdown, malformed, missing)


GOLDEN = """\
{"frame": 1, "time": 1700000000.25, "destination": "01:80:c2:00:00:0e", "source": "1c:34:da:1c:58:01", \
"chassis_id": {"subtype": "mac", "value": "1c:34:da:1c:58:00"}, "port_id": {"subtype": "ifname", "value": \
"swp1s0"}, "ttl": 120, "port_description": "rail 0", "system_name": "leaf\\u001b[2J-\\u202e01", \
"system_description": "Cumulus Linux\\n5.9.1 \\\\xff", "capabilities": {"supported": ["bridge", "router", \
"bit-15"], "enabled": ["router"]}, "management_addresses": [{"family": "ipv4", "address": "192.0.2.17", \
"interface": {"subtype": "ifindex", "number": 3}, "oid": "1.3.6.1"}, {"family": "ipv6", "address": \
"2001:db8::11", "interface": {"subtype": "unknown", "number": 0}}, {"family": "mac", "address": \
"1c:34:da:1c:58:00", "interface": {"subtype": "system-port", "number": 1}}, {"family": "family-99", \
"address": "01:02", "interface": {"subtype": "9", "number": 1}}], "pvid": 100, "ppvids": [{"id": 5, \
"supported": true, "enabled": false}], "vlans": [{"id": 100, "name": "rail-0"}, {"id": 200, "name": ""}], \
"link_aggregation": {"capable": true, "enabled": true, "port_id": 1000005}, "mac_phy": {"autonegotiation": \
{"supported": true, "enabled": true}, "advertised": 27648, "mau": 30}, "maximum_frame_size": 9216, "dcbx": \
{"ets": {"willing": true, "credit_based_shaper": false, "max_classes": 8, "classes": [0, 0, 0, 3, 0, 0, 6, \
7], "bandwidth": [50, 0, 0, 50, 0, 0, 0, 0], "algorithms": ["ets", "ets", "strict", "ets", "strict", \
"credit-based-shaper", "vendor", "algorithm-9"]}, "ets_recommendation": {"classes": [0, 0, 0, 0, 0, 0, 0, 0], \
"bandwidth": [100, 0, 0, 0, 0, 0, 0, 0], "algorithms": ["ets", "ets", "ets", "ets", "ets", "ets", "ets", \
"ets"]}, "pfc": {"willing": false, "macsec_bypass": false, "capability": 8, "enabled": [3, 4]}, \
"applications": [{"priority": 3, "selector": "ethertype", "protocol": 35093}, {"priority": 3, "selector": \
"udp-dccp", "protocol": 4791}, {"priority": 1, "selector": "7", "protocol": 1}]}, "med": {"capabilities": \
51, "device_class": 4, "serial_number": "MT2045X01234", "model": "MSN4700"}, "organizational": [{"oui": \
"00-26-e1", "subtype": 2, "hex": "6c65616630"}], "reserved": [{"type": 9, "hex": "01"}]}
{"frame": 3, "time": 1700000002.25, "destination": "01:80:c2:00:00:0e", "source": "1c:34:da:1c:58:01", \
"tags": [100], "chassis_id": {"subtype": "mac", "value": "1c:34:da:1c:58:00"}, "port_id": {"subtype": \
"ifname", "value": "swp1"}, "ttl": 120}
{"frame": 4, "time": 1700000003.25, "destination": "01:80:c2:00:00:0e", "source": "1c:34:da:1c:58:01", \
"chassis_id": {"subtype": "local", "value": "a\\\\xffb"}, "port_id": {"subtype": "local", "value": "541"}, \
"ttl": 0}
{"frame": 5, "time": 1700000004.25, "destination": "01:80:c2:00:00:0e", "source": "1c:34:da:1c:58:01", \
"chassis_id": {"subtype": "mac", "value": "1c:34:da:1c:58:00"}, "port_id": {"subtype": "ifname", "value": \
"swp1"}, "ttl": 120, "warnings": ["system capabilities: 1 octets, 4 or more expected at byte 34"]}
{"frame": 6, "error": "a TLV of type 0 in place of the chassis ID at byte 14"}
"""

GOLDEN_TEXT = """\
     1  2023-11-14T22:13:20.250000Z  1c:34:da:1c:58:01  chassis mac 1c:34:da:1c:58:00  port ifname swp1s0  \
ttl 120  name leaf\\x1b[2J-\\u202e01  description rail 0  management 192.0.2.17  management 2001:db8::11  \
management 1c:34:da:1c:58:00  management 01:02  pvid 100
     3  2023-11-14T22:13:22.250000Z  1c:34:da:1c:58:01  chassis mac 1c:34:da:1c:58:00  port ifname swp1  \
ttl 120
     4  2023-11-14T22:13:23.250000Z  1c:34:da:1c:58:01  chassis local a\\xffb  port local 541  shutdown
     5  2023-11-14T22:13:24.250000Z  1c:34:da:1c:58:01  chassis mac 1c:34:da:1c:58:00  port ifname swp1  \
ttl 120  warning: system capabilities: 1 octets, 4 or more expected at byte 34
     6  error: a TLV of type 0 in place of the chassis ID at byte 14
"""


def test_a_capture_is_printed_as_json_lines():
    printed = [json.loads(each) for each in lines(sample(), as_json=True)]
    assert printed == [camel(json.loads(each)) for each in GOLDEN.splitlines()]
    assert "chassis_id" not in printed[0]


def test_a_capture_is_printed_as_text_lines():
    assert "".join(each + "\n" for each in lines(sample(), as_json=False)) == GOLDEN_TEXT


def test_a_frame_cut_by_the_capture_has_a_warning():
    data = pcap(LLDP, snaplen=28)
    assert list(decode_file(data)) == [
        {
            "frame": 1,
            "error": "a TLV of type 2 has 5 octets, but 3 are left at byte 23 "
            f"(the capture kept 28 of {len(LLDP)} bytes)",
        }
    ]
    (whole,) = decode_file(pcap(LLDP, snaplen=len(LLDP) - 2))
    assert whole["warnings"] == [f"the capture kept {len(LLDP) - 2} of {len(LLDP)} bytes"]


def test_a_time_beyond_the_calendar_is_printed_as_a_number():
    data = section("<") + interface("<", options=struct.pack("<HHB3x", 9, 1, 0))
    (found,) = decode_file(data + enhanced("<", LLDP, ticks=1 << 62))
    assert found["time"] == float(1 << 62)
    assert "  4611686018427387904.000000  " in line(found)


def test_a_packet_without_a_time_has_null_in_json():
    (found,) = decode_file(section("<") + interface("<") + block("<", 3, struct.pack("<I", len(LLDP)) + LLDP))
    assert found["time"] is None
    assert line(found).split()[1] == "-"


@pytest.mark.needs("scapy")
def test_a_capture_of_scapy_is_read(tmp_path):
    from scapy.utils import PcapNgWriter

    path = tmp_path / "scapy.pcapng"
    with PcapNgWriter(str(path)) as writer:
        writer.write(LLDP)
        writer.write(OTHER)
        writer.write(LLDP)
    assert [found["frame"] for found in decode_file(path.read_bytes())] == [1, 3]
