"""Netdevs and DCB settings from rtnetlink: real namespaces and encoded messages."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.facts.model import Ets
from nodeagent.host.netlink.dcb import UNKNOWN_DCB, DcbSettings, DcbSocket, ieee_of
from nodeagent.host.netlink.message import NetlinkError, attribute, messages
from nodeagent.host.netlink.netdevs import Netdevs, VfTraffic, netdev_of, vfs_of
from tests.support.namespaces import Netns, veth


@pytest.mark.needs("root", "ip", "nsenter")
def test_the_netdevs_of_a_namespace_are_listed_with_their_properties():
    with Netns() as near, Netns() as far:
        veth(near, "swp1", far, "b0")
        near.ip("""link set swp1 mtu 9000 address 02:00:00:00:00:07
                   link add br0 type bridge
                   tuntap add tap0 mode tap""")
        with near.entered():
            netdevs = Netdevs()
        with netdevs:
            by_name = {netdev.name: netdev for netdev in netdevs.read()}
            assert list(by_name) == ["br0", "lo", "swp1", "tap0"]
            swp1 = by_name["swp1"]
            assert (swp1.kind, swp1.hardware, swp1.mtu) == ("veth", 1, 9000)
            assert swp1.mac == bytes.fromhex("020000000007")
            assert (swp1.admin_up, swp1.carrier) == (True, True)
            assert by_name["lo"].hardware == 772
            assert by_name["tap0"].kind == "tun"
            assert (by_name["br0"].admin_up, by_name["br0"].carrier) == (False, None)
            far.ip("link set b0 down")
            assert {netdev.name: netdev.carrier for netdev in netdevs.read()}["swp1"] is False


@pytest.mark.needs("root", "ip", "nsenter")
def test_a_dump_of_hundreds_of_netdevs_spans_several_datagrams():
    with Netns() as near:
        near.ip("\n".join(f"link add dummy{n:03} type veth peer name peer{n:03}" for n in range(150)))
        with near.entered(), Netdevs() as netdevs:
            assert len(netdevs.read()) == 301


def test_a_physical_netdev_has_its_parent_device():
    link = struct.pack("=BxHiII", 0, 1, 7, 0x1_0043, 0)
    raw = link + b"".join(
        (
            attribute(3, b"ens1np0\0"),
            attribute(1, b"\2\0\0\0\0\1"),
            attribute(54, b"\2\0\0\0\0\2"),
            attribute(4, struct.pack("=I", 9216)),
            attribute(33, b"\1"),
            attribute(56, b"0000:1a:00.0\0"),
            attribute(57, b"pci\0"),
        )
    )
    netdev = netdev_of(raw)
    assert (netdev.ifindex, netdev.name, netdev.kind, netdev.mtu, netdev.carrier) == (
        7,
        "ens1np0",
        None,
        9216,
        True,
    )
    assert (netdev.bus, netdev.pci_address) == ("pci", "0000:1a:00.0")
    assert (netdev.mac, netdev.permanent_mac) == (b"\2\0\0\0\0\1", b"\2\0\0\0\0\2")


@pytest.mark.parametrize(
    ("slave_kind", "enslaved"), [(b"bond", True), (b"bridge", True), (b"vrf", False), (None, True)]
)
def test_a_netdev_in_a_vrf_is_no_port_of_a_bond(slave_kind, enslaved):
    info = b"" if slave_kind is None else attribute(18, attribute(4, slave_kind + b"\0"))
    link = struct.pack("=BxHiII", 0, 1, 7, 0x1_0043, 0)
    netdev = netdev_of(link + attribute(3, b"ens1np0\0") + attribute(10, struct.pack("=I", 9)) + info)
    assert (netdev.kind, netdev.enslaved) == (None, enslaved)


@given(st.binary(max_size=200))
def test_any_message_decodes_or_raises_netlink_error(data):
    for read in (netdev_of, lambda raw: list(messages(raw)), ieee_of):
        try:
            read(data)
        except NetlinkError:
            continue


# In the order of rtnl_fill_vf_info in net/core/rtnetlink.c and with the numbers of include/uapi/linux/if_link.h,
# Linux 7.2.13. The kernel puts a PAD before each number of 64 bits where the processor cannot read it unaligned.
VF_STATS_PAD = 6


def vf_info(index: int, *statistics: int, padded: bool = False) -> bytes:
    """An IFLA_VF_INFO. ``statistics``: packets received and sent, bytes received and sent, broadcast, multicast,
    dropped received and sent; none: a kernel before 4.0."""
    numbers = (0, 1, 2, 3, 4, 5, 7, 8)
    pad = attribute(VF_STATS_PAD, b"") if padded else b""
    nest = b"".join(
        pad + attribute(number, struct.pack("=Q", value))
        for number, value in zip(numbers, statistics, strict=False)
    )
    settings = (
        attribute(1, struct.pack("=I32s", index, b"\x02\0\0\0\0\1"))
        + attribute(13, b"\xff" * 6 + bytes(26))
        + attribute(2, struct.pack("=III", index, 7, 0))
        + attribute(6, struct.pack("=III", index, 0, 0))
        + attribute(3, struct.pack("=II", index, 0))
        + attribute(4, struct.pack("=II", index, 1))
        + attribute(5, struct.pack("=II", index, 0))
        + attribute(7, struct.pack("=II", index, 0xFFFFFFFF))
        + attribute(9, struct.pack("=II", index, 0))
        + attribute(12, attribute(1, struct.pack("=IIIHxx", index, 7, 0, 0x8100)))
    )
    return attribute(1, settings + (attribute(8, nest) if statistics else b""))


def pf_link(*vfs: bytes) -> bytes:
    head = struct.pack("=BxHiII", 0, 1, 7, 0x1003, 0)
    return (
        head
        + attribute(3, b"ens1np0\0")
        + attribute(21, struct.pack("=I", len(vfs)))
        + attribute(22, b"".join(vfs))
    )


@pytest.mark.parametrize("padded", [False, True])
def test_the_bytes_of_vfs_are_decoded_from_the_kernels_layout(padded):
    counts = (11, 12, 2**40 + 13, 2**63 + 14, 15, 16, 17, 18)
    found = vfs_of(
        pf_link(vf_info(0, *counts, padded=padded), vf_info(1), vf_info(2, *(0,) * 8, padded=padded))
    )
    setup = {
        "mac": "02:00:00:00:00:01",
        "vlan": "7",
        "spoof_check": "on",
        "link_state": "auto",
        "trust": "off",
    }
    assert found == (
        VfTraffic(0, 11, 12, 2**40 + 13, 2**63 + 14, 17, 18, setup),
        VfTraffic(2, 0, 0, 0, 0, 0, 0, setup),
    )


def test_a_kernel_before_the_dropped_packets_of_vfs_gives_the_others():
    (found,) = vfs_of(pf_link(vf_info(3, 1, 2, 3, 4, 5, 6)))
    assert (found.index, found.tx_bytes, found.rx_dropped, found.tx_dropped) == (3, 4, None, None)


@given(st.integers(0, 400), st.integers(1, 3))
def test_vfs_of_a_message_that_is_cut_short_decode_or_raise_netlink_error(at, cut):
    whole = pf_link(vf_info(0, *range(8)), vf_info(1, *range(8), padded=True))
    text = bytearray(whole)
    for _ in range(cut):
        text[at % len(text)] ^= 1 << cut
    for damaged in (whole[: at % len(whole)], bytes(text)):
        try:
            vfs_of(damaged)
        except NetlinkError:
            continue


def test_pfc_and_ets_are_decoded_from_the_kernels_layout():
    ets = bytes(
        (0, 8, 0)
        + (50, 0, 0, 50, 0, 0, 0, 0)
        + (0,) * 8
        + (2, 0, 0, 2, 0, 0, 0, 0)
        + (0, 0, 0, 3, 0, 0, 6, 7)
        + (0,) * 24
    )
    pfc = bytes((8, 0x08, 0)) + b"\0" * 133
    answer = (
        b"\0\x15\0\0"
        + attribute(1, b"ens1np0\0")
        + attribute(13 | 0x8000, attribute(1, ets) + attribute(2, pfc))
    )
    assert ieee_of(answer) == DcbSettings(
        (3,),
        Ets(
            classes=(0, 0, 0, 3, 0, 0, 6, 7),
            bandwidth=(50, 0, 0, 50, 0, 0, 0, 0),
            algorithms=("ets", "strict", "strict", "ets", "strict", "strict", "strict", "strict"),
        ),
    )


def test_a_netdev_without_dcb_and_a_missing_netdev_have_unknown_settings():
    with DcbSocket() as dcb:
        assert dcb.read("lo") == UNKNOWN_DCB
        assert dcb.read("no-such-netdev") == UNKNOWN_DCB
