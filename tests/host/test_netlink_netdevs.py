"""Netdevs and DCB from rtnetlink: real namespaces, and messages as the kernel writes them."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.host.netlink.dcb import DcbSocket, ieee_of
from nodeagent.host.netlink.message import NetlinkError, attribute, messages
from nodeagent.host.netlink.netdevs import Netdevs, netdev_of
from nodeagent.model import Ets
from tests.support.namespaces import Netns, veth


@pytest.mark.needs("root", "ip", "nsenter")
def test_the_netdevs_of_a_namespace_are_listed_with_what_they_are():
    with Netns() as near, Netns() as far:
        veth(near, "swp1", far, "b0")
        near.ip("""link set swp1 mtu 9000 address 02:00:00:00:00:07
                   link add br0 type bridge
                   tuntap add tap0 mode tap""")
        with near.entered():
            netdevs = Netdevs()
        with netdevs:
            found = {one.name: one for one in netdevs.read()}
            assert list(found) == ["br0", "lo", "swp1", "tap0"]
            swp1 = found["swp1"]
            assert (swp1.kind, swp1.hardware, swp1.mtu) == ("veth", 1, 9000)
            assert swp1.mac == bytes.fromhex("020000000007")
            assert (swp1.admin_up, swp1.carrier) == (True, True)
            assert found["lo"].hardware == 772
            assert found["tap0"].kind == "tun"
            assert (found["br0"].admin_up, found["br0"].carrier) == (False, None)
            far.ip("link set b0 down")
            assert {one.name: one.carrier for one in netdevs.read()}["swp1"] is False


@pytest.mark.needs("root", "ip", "nsenter")
def test_hundreds_of_netdevs_are_more_than_one_datagram():
    with Netns() as near:
        near.ip("\n".join(f"link add dummy{n:03} type veth peer name peer{n:03}" for n in range(150)))
        with near.entered(), Netdevs() as netdevs:
            assert len(netdevs.read()) == 301


def test_a_physical_netdev_tells_its_parent():
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
    one = netdev_of(raw)
    assert (one.ifindex, one.name, one.kind, one.mtu, one.carrier) == (7, "ens1np0", None, 9216, True)
    assert (one.bus, one.pci_address) == ("pci", "0000:1a:00.0")
    assert (one.mac, one.permanent_mac) == (b"\2\0\0\0\0\1", b"\2\0\0\0\0\2")


@given(st.binary(max_size=200))
def test_any_message_is_a_netdev_or_the_one_error(data):
    for read in (netdev_of, lambda raw: list(messages(raw)), ieee_of):
        try:
            read(data)
        except NetlinkError:
            continue


def test_pfc_and_ets_are_read_as_the_kernel_lays_them_out():
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
    assert ieee_of(answer) == (
        (3,),
        Ets(
            classes=(0, 0, 0, 3, 0, 0, 6, 7),
            bandwidth=(50, 0, 0, 50, 0, 0, 0, 0),
            algorithms=("ets", "strict", "strict", "ets", "strict", "strict", "strict", "strict"),
        ),
    )


def test_a_netdev_without_dcb_or_not_there_says_nothing():
    with DcbSocket() as dcb:
        assert dcb.read("lo") == (None, None)
        assert dcb.read("no-such-netdev") == (None, None)
