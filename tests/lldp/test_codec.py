"""Decode and encode LLDPDUs: frames of vendors, written by hand, and a round trip of every value."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec import structs

from nodeagent.lldp.escaping import object_identifier, printable, valid_unicode
from nodeagent.lldp.ethernet import GROUPS, NEAREST_BRIDGE, build_frame, parse_frame
from nodeagent.lldp.lldpdu import (
    Application,
    Capabilities,
    ChassisId,
    EtsConfiguration,
    EtsRecommendation,
    LinkAggregation,
    Lldpdu,
    LldpError,
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
    capability_words,
)
from nodeagent.lldp.lldpdu_codec import decode_lldpdu, encode_lldpdu
from nodeagent.lldp.optional_tlvs import BASIC, ORGANIZATIONAL
from nodeagent_lab.captures.describe import describe
from tests.support.examples import examples

SPECS = (*BASIC, *ORGANIZATIONAL)


def tlv(kind: int, value: bytes) -> bytes:
    """By the standard's figure 8-2, not by the code under test."""
    return bytes((kind << 1 | len(value) >> 8, len(value) & 0xFF)) + value


def dot1(subtype: int, value: bytes) -> bytes:
    return tlv(127, b"\x00\x80\xc2" + bytes((subtype,)) + value)


def dot3(subtype: int, value: bytes) -> bytes:
    return tlv(127, b"\x00\x12\x0f" + bytes((subtype,)) + value)


MAC = bytes.fromhex("1c34da1c5800")
CHASSIS = tlv(1, b"\x04" + MAC)
PORT = tlv(2, b"\x05swp1s0")
TTL = tlv(3, b"\x00\x78")
START = CHASSIS + PORT + TTL
END = b"\x00\x00"


# --- frames of vendors ------------------------------------------------------------------------------


def test_a_cumulus_port_with_roce_sends_its_dcbx_settings():
    pdu = decode_lldpdu(
        START
        + tlv(4, b"swp1s0")
        + tlv(5, b"leaf01")
        + tlv(6, b"Cumulus Linux version 5.9.1")
        + tlv(7, bytes.fromhex("00140014"))
        + tlv(8, bytes.fromhex("0501c0000211 02 00000002 00"))
        + dot1(9, bytes.fromhex("00 00030000 3232000000000000 0202020202020202"))
        + dot1(0x0B, bytes.fromhex("08 08"))
        + dot1(0x0C, bytes.fromhex("00 618915 6312b7"))
        + dot3(4, b"\x24\x00")
        + END
    )
    assert (pdu.chassis_id.word, pdu.chassis_id.text) == ("mac", "1c:34:da:1c:58:00")
    assert (pdu.port_id.word, pdu.port_id.text) == ("ifname", "swp1s0")
    assert pdu.ttl == 120
    assert pdu.system_name == "leaf01"
    assert capability_words(pdu.capabilities.enabled) == ("bridge", "router")
    assert pdu.management_addresses == (ManagementAddress(1, b"\xc0\x00\x02\x11", 2, 2),)
    assert pdu.management_addresses[0].text == "192.0.2.17"
    assert pdu.ets == EtsConfiguration(
        False, False, 8, bytes((0, 0, 0, 3, 0, 0, 0, 0)), bytes((50, 50, 0, 0, 0, 0, 0, 0)), bytes((2,) * 8)
    )
    assert pdu.pfc.priorities == (3,)
    assert pdu.applications == (Application(3, 1, 0x8915), Application(3, 3, 4791))
    assert pdu.maximum_frame_size == 9216
    assert pdu.warnings == ()


def test_a_sonic_port_has_its_alias_as_local_id():
    pdu = decode_lldpdu(CHASSIS + tlv(2, b"\x07Eth1/1") + TTL + tlv(4, b"Servers0:eth0") + END)
    assert (pdu.port_id.word, pdu.port_id.text) == ("local", "Eth1/1")
    assert pdu.port_description == "Servers0:eth0"


def test_an_nxos_switch_has_another_chassis_id_on_each_port():
    first = decode_lldpdu(tlv(1, bytes.fromhex("04508789a1d8d6")) + tlv(2, b"\x05Ethernet1/1") + TTL + END)
    second = decode_lldpdu(tlv(1, bytes.fromhex("04508789a1d8d7")) + tlv(2, b"\x05Ethernet1/2") + TTL + END)
    assert first.chassis_id != second.chassis_id
    assert first.chassis_id.text == "50:87:89:a1:d8:d6"


def test_an_eos_port_sends_its_port_channel_in_the_deprecated_tlv():
    pdu = decode_lldpdu(
        CHASSIS + tlv(2, b"\x05Ethernet1") + TTL + dot3(3, bytes.fromhex("03 000f4245")) + dot1(1, b"\0\x64")
    )
    assert pdu.link_aggregation is None
    assert pdu.link_aggregation_8023 == LinkAggregation(True, True, 1000005)
    assert pdu.pvid == 100


def test_a_junos_port_id_is_an_interface_index_and_the_description_is_its_name():
    pdu = decode_lldpdu(CHASSIS + tlv(2, b"\x07541") + TTL + tlv(4, b"et-0/0/12") + END)
    assert (pdu.port_id.word, pdu.port_id.text, pdu.port_description) == ("local", "541", "et-0/0/12")


def test_the_trailing_nuls_of_extreme_are_compared_but_not_printed():
    pdu = decode_lldpdu(CHASSIS + tlv(2, b"\x051:1\0") + TTL + tlv(5, b"Summit300-48\0") + tlv(4, b"") + END)
    assert pdu.system_name == "Summit300-48\0"
    assert printable(pdu.system_name) == "Summit300-48"
    assert pdu.port_id.text == "1:1"
    assert pdu.port_id.raw == b"1:1\0"
    assert pdu.port_description == ""


def test_the_firmware_of_a_connectx_sends_a_ttl_of_48_seconds():
    pdu = decode_lldpdu(CHASSIS + tlv(2, b"\x03" + MAC) + tlv(3, b"\x00\x30") + END + bytes(30))
    assert (pdu.ttl, pdu.port_id.word, pdu.port_id.text) == (48, "mac", "1c:34:da:1c:58:00")


def test_the_leaf_group_of_big_switch_stays_raw():
    pdu = decode_lldpdu(START + tlv(127, bytes.fromhex("0026e102") + b"leaf0") + END)
    assert pdu.organizational == (Organizational(b"\x00\x26\xe1", 2, b"leaf0"),)


# --- the identifiers --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("subtype", "raw", "word", "text"),
    [
        (1, b"chassis 7", "component", "chassis 7"),
        (2, b"uplink", "ifalias", "uplink"),
        (3, b"bp/1", "port-component", "bp/1"),
        (4, MAC, "mac", "1c:34:da:1c:58:00"),
        (4, MAC + b"\1", "mac", "1c:34:da:1c:58:00:01"),
        (5, b"\x01\x0a\0\0\1", "network", "10.0.0.1"),
        (5, b"\x02" + bytes.fromhex("20010db8" + "0" * 23 + "1"), "network", "2001:db8::1"),
        (5, b"\x01\x0a\0", "network", "0a:00"),
        (5, b"\x01", "network", ""),
        (6, b"eth0", "ifname", "eth0"),
        (7, b"a\xff", "local", "a\udcff"),
    ],
)
def test_a_chassis_id_has_the_notation_of_its_subtype(subtype, raw, word, text):
    pdu = decode_lldpdu(tlv(1, bytes((subtype,)) + raw) + PORT + TTL + END)
    assert (pdu.chassis_id.word, pdu.chassis_id.text) == (word, text)


@pytest.mark.parametrize(
    ("subtype", "word"),
    [*enumerate(["ifalias", "component", "mac", "network", "ifname", "agent-circuit-id", "local"], 1)],
)
def test_a_port_id_has_its_own_subtypes(subtype, word):
    assert decode_lldpdu(CHASSIS + tlv(2, bytes((subtype,)) + b"\1\1") + TTL).port_id.word == word


# --- errors of the frame ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "the frame ends before the chassis ID at byte 0"),
        (b"\x02", "the frame ends before the chassis ID at byte 0"),
        (END, "a TLV of type 0 in place of the chassis ID at byte 0"),
        (PORT + CHASSIS + TTL, "a TLV of type 2 in place of the chassis ID at byte 0"),
        (CHASSIS + TTL + PORT, "a TLV of type 3 in place of the port ID at byte 9"),
        (CHASSIS + PORT, "the frame ends before the TTL at byte 18"),
        (CHASSIS + PORT + END, "a TLV of type 0 in place of the TTL at byte 18"),
        (CHASSIS + PORT + tlv(3, b"\1"), "the TTL has 1 octets, needs 2 at byte 18"),
        (tlv(1, b"\x04") + PORT + TTL, "the chassis ID has 0 octets, 1 to 255 expected at byte 0"),
        (tlv(1, b"") + PORT + TTL, "the chassis ID has 0 octets, 1 to 255 expected at byte 0"),
        (
            CHASSIS + tlv(2, b"\x05" + bytes(256)),
            "the port ID has 256 octets, 1 to 255 expected at byte 9",
        ),
        (tlv(1, b"\0abc") + PORT + TTL, "the chassis ID has the reserved subtype 0 at byte 2"),
        (CHASSIS + tlv(2, b"\x08abc") + TTL, "the port ID has the reserved subtype 8 at byte 11"),
        (START + CHASSIS, "a second chassis ID at byte 22"),
        (START + tlv(5, b"x") + PORT, "a second port ID at byte 25"),
        (START + TTL, "a second TTL at byte 22"),
        (START + b"\x00\x01x", "the End TLV is not empty at byte 22"),
        (START + b"\x0a\x05leaf", "a TLV of type 5 has 5 octets, but 4 are left at byte 22"),
        (START + b"\xfe", "the frame ends inside a TLV header at byte 22"),
        (START + b"\x00", "the frame ends inside a TLV header at byte 22"),
        (CHASSIS[:-1], "a TLV of type 1 has 7 octets, but 6 are left at byte 0"),
        (START + tlv(9, b"") * 300, "more than 256 TLVs at byte 534"),
    ],
)
def test_a_malformed_frame_is_an_error_with_reason_and_offset(data, message):
    with pytest.raises(LldpError) as caught:
        decode_lldpdu(data)
    assert str(caught.value) == message


def test_offsets_count_from_the_start_of_the_ethernet_frame():
    frame = build_frame(NEAREST_BRIDGE, MAC, START + CHASSIS, vlans=(7,))
    with pytest.raises(LldpError) as caught:
        decode_lldpdu(frame, parse_frame(frame).offset)
    assert caught.value.offset == 18 + 22


@pytest.mark.parametrize("length", [1, 255])
def test_the_shortest_and_the_longest_id_are_valid(length):
    assert len(decode_lldpdu(tlv(1, b"\x07" + b"x" * length) + PORT + TTL).chassis_id.raw) == length


# --- malformed optional TLVs ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bad", "warning"),
    [
        (tlv(5, b"x" * 256), "system name: 256 octets, 255 or fewer expected at byte 22"),
        (tlv(7, b"\0\x14"), "system capabilities: 2 octets, 4 or more expected at byte 22"),
        (
            tlv(8, bytes(8)),
            "management address: 0 octets of family and address, 2 to 32 expected at byte 24",
        ),
        (
            tlv(8, bytes.fromhex("0901c000021102000000")),
            "management address: the address leaves no room for the interface number at byte 24",
        ),
        (
            tlv(8, bytes.fromhex("0501c0000211020000000205")),
            "management address: the object identifier passes the end of the TLV at byte 35",
        ),
        (dot1(1, b"\1"), "port VLAN ID: 1 octets, 2 or more expected at byte 22"),
        (dot1(3, b"\0\1\x05abc"), "VLAN name: the name passes the end of the TLV at byte 30"),
        (
            dot1(3, b"\0\1\x21" + b"a" * 33),
            "VLAN name: a name of 33 octets, at most 32 are allowed at byte 30",
        ),
        (dot1(9, bytes(20)), "ETS configuration: 20 octets, 21 or more expected at byte 22"),
        (dot1(12, bytes(3)), "application priority: the table ends inside an entry at byte 28"),
        (tlv(127, b"\0\x80\xc2"), "organizational TLV: too short for an OUI and a subtype at byte 22"),
    ],
)
def test_a_malformed_optional_tlv_is_dropped_with_a_warning_and_the_rest_stays(bad, warning):
    pdu = decode_lldpdu(START + bad + dot3(4, b"\x05\xdc") + END)
    assert pdu.warnings == (warning,)
    assert structs.replace(pdu, warnings=()) == decode_lldpdu(START + dot3(4, b"\x05\xdc") + END)


def test_the_first_of_a_repeated_tlv_counts():
    pdu = decode_lldpdu(START + tlv(5, b"one") + tlv(5, b"two") + dot1(1, b"\0\1") + dot1(1, b"\0\2") + END)
    assert (pdu.system_name, pdu.pvid) == ("one", 1)
    assert pdu.warnings == ("system name: repeated at byte 27", "port VLAN ID: repeated at byte 40")


def test_octets_of_a_later_edition_are_ignored():
    pdu = decode_lldpdu(START + tlv(7, b"\0\x04\0\x04more") + dot3(4, b"\x05\xdc!") + END)
    assert pdu.capabilities == Capabilities(4, 4)
    assert pdu.maximum_frame_size == 1500
    assert pdu.warnings == ()


def test_an_oui_of_zeros_is_not_a_basic_tlv():
    pdu = decode_lldpdu(START + tlv(127, b"\0\0\0\x05evil") + END)
    assert pdu.system_name is None
    assert pdu.organizational == (Organizational(b"\0\0\0", 5, b"evil"),)


def test_octets_after_the_end_tlv_are_padding():
    assert decode_lldpdu(START + END + b"\xff" * 40) == decode_lldpdu(START)


def test_a_management_address_without_the_length_of_its_oid_is_valid():
    assert decode_lldpdu(START + tlv(8, bytes.fromhex("0501c00002110200000002"))).management_addresses == (
        ManagementAddress(1, b"\xc0\x00\x02\x11", 2, 2),
    )


# --- there and back ---------------------------------------------------------------------------------

octet = st.integers(0, 255)
short = st.integers(0, 0xFFFF)
long = st.integers(0, 0xFFFFFFFF)


def texts(most: int) -> st.SearchStrategy[str]:
    return st.binary(max_size=most).map(lambda raw: raw.decode("utf-8", "surrogateescape"))


def eights(least: int, most: int) -> st.SearchStrategy[bytes]:
    return st.tuples(*[st.integers(least, most)] * 8).map(bytes)


def some(value: st.SearchStrategy) -> st.SearchStrategy:
    return st.none() | value


def several(value: st.SearchStrategy) -> st.SearchStrategy[tuple]:
    return st.lists(value, max_size=4).map(tuple)


subtypes = st.integers(1, 7)
ids = st.binary(min_size=1, max_size=255)
known = {b"\x00\x80\xc2" + bytes((n,)) for n in (1, 2, 3, 7, 9, 10, 11, 12)}
known |= {b"\x00\x12\x0f" + bytes((n,)) for n in (1, 3, 4)}
known |= {b"\x00\x12\xbb" + bytes((n,)) for n in (1, 5, 6, 7, 8, 9, 10, 11)}
ouis = st.sampled_from([b"\0\x80\xc2", b"\0\x12\x0f", b"\0\x12\xbb", b"\0\0\0"]) | st.binary(
    min_size=3, max_size=3
)
aggregations = st.builds(LinkAggregation, st.booleans(), st.booleans(), long)
optional: dict[str, st.SearchStrategy] = {
    "port_description": some(texts(255)),
    "system_name": some(texts(255)),
    "system_description": some(texts(255)),
    "capabilities": some(st.builds(Capabilities, short, short)),
    "management_addresses": several(
        st.builds(
            ManagementAddress, octet, st.binary(min_size=1, max_size=31), octet, long, st.binary(max_size=128)
        )
    ),
    "pvid": some(short),
    "ppvids": several(st.builds(Ppvid, short, st.booleans(), st.booleans())),
    "vlans": several(st.builds(Vlan, short, texts(32))),
    "link_aggregation": some(aggregations),
    "link_aggregation_8023": some(aggregations),
    "ets": some(
        st.builds(
            EtsConfiguration,
            st.booleans(),
            st.booleans(),
            st.integers(1, 8),
            eights(0, 15),
            eights(0, 255),
            eights(0, 255),
        )
    ),
    "ets_recommendation": some(st.builds(EtsRecommendation, eights(0, 15), eights(0, 255), eights(0, 255))),
    "pfc": some(st.builds(Pfc, st.booleans(), st.booleans(), st.integers(0, 15), octet)),
    "applications": some(several(st.builds(Application, st.integers(0, 7), st.integers(0, 7), short))),
    "mac_phy": some(st.builds(MacPhy, st.booleans(), st.booleans(), short, short)),
    "maximum_frame_size": some(short),
    "med": some(
        st.builds(
            Med, some(st.builds(MedCapabilities, short, octet)), *[some(texts(32)) for _ in range(7)]
        ).filter(lambda med: med != Med())
    ),
    "organizational": several(
        st.builds(Organizational, ouis, octet, st.binary(max_size=507)).filter(
            lambda one: one.oui + bytes((one.subtype,)) not in known
        )
    ),
    "reserved": several(st.builds(Reserved, st.integers(9, 126), st.binary(max_size=511))),
}
pdus = st.builds(
    Lldpdu,
    st.builds(ChassisId, subtypes, ids),
    st.builds(PortId, subtypes, ids),
    short,
    **optional,
)


@given(pdus)
def test_every_value_survives_a_round_trip(pdu):
    assert decode_lldpdu(encode_lldpdu(pdu)) == pdu


@given(pdus, st.binary(max_size=40))
def test_every_value_survives_a_round_trip_with_padding_behind_ethernet_and_a_tag(pdu, padding):
    frame = build_frame(NEAREST_BRIDGE, MAC, encode_lldpdu(pdu) + padding, vlans=(100,))
    assert decode_lldpdu(frame, parse_frame(frame).offset) == pdu


def attempted(data: bytes) -> tuple[Lldpdu | None, LldpError | None]:
    try:
        return decode_lldpdu(data), None
    except LldpError as error:
        return None, error


@given(st.binary(max_size=600))
@example(START + b"\xfe\x03\x00\x80\xc2")
def test_any_bytes_decode_or_raise_lldp_error(data):
    _, error = attempted(data)
    assert error is None or 0 <= error.offset <= len(data)


@given(st.lists(st.tuples(st.integers(0, 127), st.binary(max_size=60)), max_size=12), st.integers(0, 40))
def test_any_tlvs_after_the_first_three_decode_or_raise_lldp_error(parts, cut):
    data = START + b"".join(tlv(kind, value) for kind, value in parts)
    pdu, error = attempted(data[: len(data) - cut])
    if pdu is None:
        assert 0 <= error.offset <= len(data)
    else:
        again = structs.replace(pdu, warnings=())
        assert decode_lldpdu(encode_lldpdu(again)) == again


@pytest.mark.parametrize("known_oui", [b"\x00\x80\xc2", b"\x00\x12\x0f", b"\x00\x12\xbb"])
@given(octet, st.binary(max_size=40))
def test_any_content_of_a_known_organization_is_a_value_or_a_warning(known_oui, subtype, value):
    pdu = decode_lldpdu(START + tlv(127, known_oui + bytes((subtype,)) + value) + END)
    assert pdu != decode_lldpdu(START + END)
    again = structs.replace(pdu, warnings=())
    assert decode_lldpdu(encode_lldpdu(again)) == again


@pytest.mark.parametrize(
    "changes",
    [
        {"ttl": 65536},
        {"ttl": -1},
        {"chassis_id": ChassisId(8, b"x")},
        {"port_id": PortId(1, b"")},
        {"system_name": "x" * 256},
        {"system_name": "\ud800"},
        {"capabilities": Capabilities(65536, 0)},
        {"management_addresses": (ManagementAddress(1, b""),)},
        {"management_addresses": (ManagementAddress(300, b"x"),)},
        {"pvid": 65536},
        {"vlans": (Vlan(1, "x" * 33),)},
        {"vlans": (Vlan(-1, "x"),)},
        {"ets": EtsConfiguration(True, True, 9, bytes(8), bytes(8), bytes(8))},
        {"ets": EtsConfiguration(True, True, 8, b"\x10" * 8, bytes(8), bytes(8))},
        {"ets": EtsConfiguration(True, True, 8, bytes(7), bytes(8), bytes(8))},
        {"pfc": Pfc(True, True, 16, 0)},
        {"applications": (Application(8, 0, 0),)},
        {"applications": (Application(0, 0, 0),) * 200},
        {"organizational": (Organizational(b"\0\0", 1, b""),)},
        {"reserved": (Reserved(8, b""),)},
    ],
)
def test_a_value_that_does_not_fit_a_frame_is_an_error(changes):
    pdu = structs.replace(decode_lldpdu(START), **changes)
    with pytest.raises(LldpError):
        encode_lldpdu(pdu)


# --- Ethernet ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tags", "vlans"),
    [
        ("", ()),
        ("81000064", (100,)),
        ("8100e000", (0,)),
        ("88a800c881000064", (200, 100)),
        ("91000005", (5,)),
    ],
)
def test_the_lldpdu_is_found_behind_any_tags(tags, vlans):
    raw = GROUPS[0] + MAC + bytes.fromhex(tags) + b"\x88\xcc" + START
    frame = parse_frame(raw)
    assert (frame.destination, frame.source, frame.vlans) == (GROUPS[0], MAC, vlans)
    assert raw[frame.offset :] == START


@pytest.mark.parametrize("raw", [b"", GROUPS[0] + MAC + b"\x88", GROUPS[0] + MAC + b"\x08\x00" + START])
def test_a_frame_that_is_not_lldp_over_ethernet_is_an_error(raw):
    with pytest.raises(LldpError):
        parse_frame(raw)


@given(st.binary(max_size=60) | st.binary(max_size=40).map(lambda rest: GROUPS[0] + MAC + b"\x81\x00" + rest))
def test_any_bytes_parse_or_raise_lldp_error(data):
    try:
        frame = parse_frame(data)
    except LldpError:
        return
    assert data[frame.offset - 2 : frame.offset] == b"\x88\xcc"


# --- text -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        (b"leaf-01", "leaf-01"),
        ("Zürich 東京".encode(), "Zürich 東京"),
        (b"a\nb\tc\r", "a\\nb\\tc\\r"),
        (b"\x1b[2Jgone", "\\x1b[2Jgone"),
        (b"\xff\xfe", "\\xff\\xfe"),
        ("\u202eevil".encode(), "\\u202eevil"),
        ("\u0085".encode(), "\\u0085"),
        (b"\x85", "\\x85"),
        (b"C:\\x41", "C:\\\\x41"),
        (b"nul\0\0", "nul"),
        (b"a\0b", "a\\x00b"),
        ("\U000e0001".encode(), "\\U000e0001"),
    ],
)
def test_printable_text_cannot_move_a_cursor(raw, shown):
    assert printable(raw.decode("utf-8", "surrogateescape")) == shown


@given(texts(60), texts(60))
def test_different_texts_stay_different_when_escaped(one, other):
    assert printable(one).isprintable()
    assert (printable(one) == printable(other)) == (one.rstrip("\0") == other.rstrip("\0"))


@given(texts(60))
def test_text_for_json_is_valid_unicode(text):
    valid_unicode(text).encode("utf-8")


@pytest.mark.parametrize(
    ("raw", "dotted"),
    [
        ("2b06010201", "1.3.6.1.2.1"),
        ("060a2b0601040181af030101", "1.3.6.1.4.1.22403.1.1"),
        ("883703", "2.999.3"),
        ("2b86", "2b:86"),
        ("", ""),
    ],
)
def test_a_valid_object_identifier_is_dotted(raw, dotted):
    assert object_identifier(bytes.fromhex(raw)) == dotted


# --- an independent encoder -------------------------------------------------------------------------


@pytest.mark.needs("scapy")
def test_frames_of_scapy_decode_to_the_same_values():
    from scapy.contrib import lldp
    from scapy.layers.l2 import Ether

    packet = (
        Ether(dst="01:80:c2:00:00:0e", src="00:11:22:33:44:56")
        / lldp.LLDPDUChassisID(subtype=4, id="00:11:22:33:44:55")
        / lldp.LLDPDUPortID(subtype=5, id=b"Ethernet0")
        / lldp.LLDPDUTimeToLive(ttl=121)
        / lldp.LLDPDUSystemName(system_name=b"spine")
        / lldp.LLDPDUSystemCapabilities(mac_bridge_available=1, router_available=1, router_enabled=1)
        / lldp.LLDPDUManagementAddress(
            management_address_subtype=1,
            management_address=b"\x0a\x00\x00\x01",
            interface_numbering_subtype=2,
            interface_number=7,
            object_id=b"\x2b\x06",
        )
        / lldp.LLDPDUEndOfLLDPDU()
    )
    frame = parse_frame(bytes(packet))
    assert frame.destination == NEAREST_BRIDGE
    pdu = decode_lldpdu(frame.data, frame.offset)
    assert pdu == Lldpdu(
        ChassisId(4, bytes.fromhex("001122334455")),
        PortId(5, b"Ethernet0"),
        121,
        system_name="spine",
        capabilities=Capabilities(0x14, 0x10),
        management_addresses=(ManagementAddress(1, b"\x0a\0\0\1", 2, 7, b"\x2b\x06"),),
    )


def test_every_tlv_names_the_clause_of_its_standard():
    assert all(re.fullmatch(r"(802\.(1AB|1Q|3)|TIA-1057) (D\.)?\d[\d.]*", spec.clause) for spec in SPECS)


def test_the_strategies_draw_every_field_and_know_every_tlv():
    mandatory = {"chassis_id", "port_id", "ttl", "warnings"}
    assert optional.keys() | mandatory == set(Lldpdu.__struct_fields__), "add its strategy to `optional`"
    rows = {spec.field.partition(".")[0] for spec in SPECS} | {"organizational", "reserved"}
    assert rows == optional.keys(), "give the field a TlvSpec in nodeagent/lldp/optional_tlvs.py"
    assert known == {spec.key for spec in ORGANIZATIONAL}, "add its key to `known`"


@pytest.mark.parametrize("field", sorted(optional))
@settings(max_examples=examples(10))
@given(st.data())
def test_every_field_is_in_the_description(field, data):
    value = data.draw(optional[field].filter(lambda value: value not in (None, ())))
    bare = Lldpdu(ChassisId(4, MAC), PortId(5, b"swp1"), 120)
    described = describe(structs.replace(bare, **{field: value}))
    assert described != describe(bare), f"add {field} to hack/lab/nodeagent_lab/captures/describe.py"
