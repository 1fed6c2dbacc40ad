"""The codec of the two questions: octets by the specification, and answers of any content."""

from __future__ import annotations

import contextlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.infiniband import smp
from nodeagent.infiniband.smp import Attribute, NodeType, SmpError

PORTS = st.integers(1, 254)
TRANSACTIONS = st.integers(0, 2**32 - 1)


def answered(attribute: int, data: bytes, *, status: int = 0x8000, method: int = 0x81) -> bytes:
    head = struct.pack(
        ">BBBBHBBQHHIQHH", 1, 0x81, 1, method, status, 0, 1, 1, attribute, 0, 0, 0, 65535, 65535
    )
    return head.ljust(64, b"\0") + data.ljust(192, b"\0")


def info(kind: int = 2, node: int = 0xB83FD20300AA0000, port: int = 7) -> bytes:
    return struct.pack(
        ">BBBBQQQHHIB3s", 1, 1, kind, 65, 11, node, 13, 32, 0xD2F2, 0xA1, port, b"\x00\x02\xc9"
    )


@given(st.sampled_from(Attribute), PORTS, TRANSACTIONS)
def test_every_question_is_a_get_over_one_hop_without_a_key(
    attribute: Attribute, port: int, tid: int
) -> None:
    """The only packets that are ever built. A Set has method 2; a sweep would have more hops."""
    packet = smp.question(attribute, port, tid)
    assert len(packet) == 256
    assert packet[:8] == bytes((1, 0x81, 1, 1, 0, 0, 0, 1))
    assert packet[8:16] == bytes(4) + tid.to_bytes(4, "big")
    assert packet[16:24] == bytes((0, attribute)) + bytes(6)
    assert packet[24:32] == bytes(8)
    assert packet[32:36] == b"\xff" * 4
    assert packet[128:130] == bytes((0, port))
    assert not any(packet[36:128])
    assert not any(packet[130:])


@pytest.mark.parametrize("port", [0, 255, -1])
def test_a_port_number_that_no_port_has_is_refused(port: int) -> None:
    with pytest.raises(ValueError, match="not the number of an InfiniBand port"):
        smp.question(Attribute.NODE_INFO, port, 1)


def test_the_answer_names_the_node_and_the_port_at_the_other_end() -> None:
    found = smp.node_info(answered(0x11, info()))
    assert found.node_type is NodeType.SWITCH
    assert smp.guid_text(found.node_guid) == "b83fd20300aa0000"
    assert (found.local_port, found.ports, found.vendor, found.device) == (7, 65, 0x0002C9, 0xD2F2)


@pytest.mark.parametrize(
    ("description", "text"),
    [
        (b"MF0;su1-leaf0:MQM9700/U1\0garbage", b"MF0;su1-leaf0:MQM9700/U1"),
        (b"x" * 64, b"x" * 64),
        (b"\xff\x1b[2J" + b"\xfe" * 59, b"\xff\x1b[2J" + b"\xfe" * 59),
        (b"", b""),
    ],
)
def test_a_description_ends_at_its_first_nul_or_after_64_octets(description: bytes, text: bytes) -> None:
    assert smp.node_description(answered(0x10, description)) == text


@pytest.mark.parametrize(
    ("packet", "reason"),
    [
        (answered(0x11, info())[:24], "24 octets"),
        (answered(0x10, info()), "about the attribute 0x0010"),
        (answered(0x11, info(), status=0x800C), "does not support this attribute"),
        (answered(0x11, info(), status=0x8001), "busy"),
        (answered(0x11, info(), method=0x01), "method 0x01"),
        (b"\x01\x04" + answered(0x11, info())[2:], "management class 0x04"),
        (answered(0x11, info(node=0)), "GUID 0000000000000000"),
        (answered(0x11, info(node=2**64 - 1)), "GUID ffffffffffffffff"),
        (answered(0x11, info(kind=9)), "unknown node type 9"),
        (answered(0x11, info(port=0)), "names no port"),
    ],
)
def test_an_answer_that_is_none_has_a_reason(packet: bytes, reason: str) -> None:
    with pytest.raises(SmpError, match=reason):
        smp.node_info(packet)


@given(st.binary(max_size=300))
def test_any_octets_are_an_answer_or_an_error(packet: bytes) -> None:
    for read in (smp.node_info, smp.node_description):
        with contextlib.suppress(SmpError):
            read(packet)


@given(st.binary(min_size=64, max_size=64))
def test_any_64_octets_of_an_answer_are_read_or_refused(data: bytes) -> None:
    assert smp.node_description(answered(0x10, data)) == data.partition(b"\0")[0]
    try:
        found = smp.node_info(answered(0x11, data))
    except SmpError:
        return
    assert found.node_guid not in (0, 2**64 - 1)
    assert found.local_port > 0
