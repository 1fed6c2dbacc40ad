"""Decode netlink answers about links, ports, firmware and RDMA: kernel layouts and malformed messages."""

from __future__ import annotations

import socket
import struct
from errno import EBUSY, EIO, ENODEV, EOPNOTSUPP

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.host.netlink import ethtool_messages, nic_settings
from nodeagent.host.netlink.devlink import HealthReporter, reporter_of
from nodeagent.host.netlink.message import (
    DONE,
    ERROR,
    F_DUMP_INTERRUPTED,
    MESSAGE,
    NetlinkError,
    NetlinkRefusedError,
    attribute,
    attributes,
    listed_attributes,
    messages,
    nest,
    u8,
    u32,
)
from nodeagent.host.netlink.netdevs import Netdevs, decode_link, netdev_counters, netdev_of, vfs_of
from nodeagent.host.netlink.rdma_counters import rdma_counters_of
from nodeagent.host.netlink.rdma_devices import device_of
from nodeagent.host.netlink.socket import NetlinkSocket
from tests.support.namespaces import Netns, veth

GENERIC = b"\x01\x01\0\0"
ROUTE = struct.pack("=BxHiII", 0, 1, 7, 0x1_0043, 0)


def u64(value: int) -> bytes:
    return struct.pack("=Q", value)


def header(ifindex: int = 7) -> bytes:
    return nest(1, attribute(1, u32(ifindex)), attribute(2, b"eth0\0"))


# --- links ----------------------------------------------------------------------------------------------


def link(*more: bytes, flags: int = 0x1_0043) -> bytes:
    return struct.pack("=BxHiII", 0, 1, 7, flags, 0) + b"".join(
        (
            attribute(3, b"ens1np0\0"),
            attribute(4, u32(9216)),
            attribute(16, u8(6)),
            attribute(999, b"from a kernel to come"),
            attribute(33, u8(1)),
            attribute(47, u32(5)),
            attribute(48, u32(4)),
            attribute(54, b"\2\0\0\0\0\2"),
            attribute(56, b"0000:1a:00.0\0"),
            *more,
        )
    )


def test_a_link_is_decoded_with_its_counters_and_unknown_attributes_are_skipped():
    raw = link(attribute(57, b"pci\0"), attribute(23, struct.pack("=25Q", *range(25))))
    reading = netdev_counters(raw)
    netdev = reading.netdev
    assert (netdev.ifindex, netdev.name, netdev.mtu, netdev.pci_address) == (
        7,
        "ens1np0",
        9216,
        "0000:1a:00.0",
    )
    assert (netdev.admin_up, reading.oper_up, netdev.carrier) == (True, True, True)
    assert (reading.carrier_up, reading.carrier_down) == (5, 4)
    assert reading.counters == tuple(range(24))
    assert netdev.permanent_mac == b"\2\0\0\0\0\2"
    assert netdev == netdev_of(raw)


def test_an_admin_down_link_has_no_carrier_value():
    assert netdev_counters(link(flags=0x1002)).netdev.carrier is None
    assert netdev_counters(ROUTE).counters is None


@given(
    counters=st.lists(st.integers(0, 2**64 - 1), min_size=25, max_size=25),
    at=st.integers(0, 500),
    value=st.integers(0, 255),
)
def test_the_next_message_of_a_link_is_decoded_as_if_it_were_the_first(counters, at, value):
    first = link(
        attribute(23, struct.pack("=25Q", *range(25))), attribute(7, bytes(100)), attribute(57, b"pci\0")
    )
    changed = bytearray(
        link(attribute(23, struct.pack("=25Q", *counters)), attribute(7, bytes(100)), attribute(57, b"pci\0"))
    )
    assert decode_link(first).again(bytes(changed)) in (None, netdev_counters(bytes(changed)))
    changed[at % len(changed)] = value
    try:
        alone = netdev_counters(bytes(changed))
    except NetlinkError:
        alone = None
    assert decode_link(first).again(bytes(changed)) in (None, alone)


def counted(start: int, count: int = 24) -> bytes:
    """The counters of a link as the kernel sends them: of 64 bits, then of 32 bits, between other attributes."""
    values = range(start, start + count)
    long, short = struct.pack(f"={count}Q", *values), struct.pack(f"={count}I", *values)
    return attribute(23, long) + attribute(7, short) + attribute(43, b"\0" * 4)


@pytest.mark.parametrize("count", [24, 25])
def test_a_link_whose_counters_alone_have_changed_is_decoded_from_its_last_message(count):
    first, then = link(counted(0, count)), link(counted(100, count))
    reading = decode_link(first).again(then)
    assert reading == netdev_counters(then)
    assert reading.counters == tuple(range(100, 124))
    assert decode_link(first).again(link(counted(0, count), flags=0x1002)) is None
    assert decode_link(first).again(link(counted(0, count)[:-4] + b"\1\0\0\0")) is None
    assert decode_link(ROUTE).again(ROUTE) is None


def vf_info(index: int, counted: int | None) -> bytes:
    inner = attribute(1, u32(index) + b"\2\0\0\0\0\1" + b"\0" * 26)
    if counted is not None:
        # in the kernel's order, with its padding attribute between
        values = ((0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (5, 6), (7, 7), (8, 8))
        inner += nest(8, *(attribute(6, b"") + attribute(kind, u64(counted + n)) for kind, n in values))
    return nest(1, inner)


@pytest.mark.parametrize("count", [0, 8, 127])
def test_the_traffic_of_all_vfs_is_decoded(count):
    raw = link(nest(22, *(vf_info(index, 1000 * index) for index in range(count))))
    vfs = vfs_of(raw)
    assert [vf.index for vf in vfs] == list(range(count))
    for vf in vfs:
        base = 1000 * vf.index
        assert (vf.rx_packets, vf.tx_packets, vf.rx_bytes, vf.tx_bytes) == (
            base + 1,
            base + 2,
            base + 3,
            base + 4,
        )
        assert (vf.rx_dropped, vf.tx_dropped) == (base + 7, base + 8)


def test_the_settings_of_a_vf_are_decoded_as_far_as_the_driver_reports_them():
    words = (
        attribute(1, u32(3) + b"\2\0\0\0\0\1" + b"\0" * 26),
        attribute(2, u32(3) + u32(120) + u32(0)),
        attribute(4, u32(3) + u32(1)),
        attribute(5, u32(3) + u32(2)),
        attribute(9, u32(3) + u32(0)),
        nest(8, attribute(0, u64(1))),
    )
    (vf,) = vfs_of(link(nest(22, nest(1, *words))))
    assert vf.setup == {
        "mac": "02:00:00:00:00:01",
        "vlan": "120",
        "spoof_check": "on",
        "link_state": "disable",
        "trust": "off",
    }
    unknown = u32(3) + u32(0xFFFF_FFFF)  # the driver reports no value
    cut = (
        words[0],
        attribute(2, b"\3"),
        attribute(4, unknown),
        attribute(5, unknown),
        attribute(9, b""),
        words[5],
    )
    (vf,) = vfs_of(link(nest(22, nest(1, *cut))))
    assert vf.setup == {"mac": "02:00:00:00:00:01"}


def test_vfs_without_counters_are_left_out():
    assert vfs_of(link(nest(22, vf_info(0, None), vf_info(1, 5))))[0].index == 1
    assert vfs_of(link()) == ()


# --- ports ----------------------------------------------------------------------------------------------


def modes(speed: int, *more: bytes, supported: int = 1 << 85 | 1 << 62 | 1 << 50) -> bytes:
    bits = nest(
        3, attribute(2, u32(96)), attribute(4, b"\0" * 12), attribute(5, supported.to_bytes(12, "little"))
    )
    return GENERIC + header() + bits + attribute(5, u32(speed)) + b"".join(more)


def test_link_modes_hold_speed_lanes_and_the_fastest_supported_mode():
    assert ethtool_messages.modes_of(modes(200_000, attribute(9, u32(4)))) == ethtool_messages.LinkModes(
        7, 200_000, 4, 400_000
    )


@pytest.mark.parametrize("speed", [0xFFFF_FFFF, 0])
def test_an_unknown_speed_is_none(speed):
    assert ethtool_messages.modes_of(modes(speed)).speed_mbps is None


def test_unknown_link_modes_are_ignored():
    assert ethtool_messages.modes_of(modes(5, supported=1 << 95 | 1 << 94)).supported_mbps == 800_000
    assert ethtool_messages.modes_of(modes(5, supported=1 << 50 | 1 << 6)).supported_mbps is None


def test_the_state_of_a_link_is_decoded_to_names():
    raw = GENERIC + header() + attribute(2, u8(0))
    down = raw + attribute(5, u8(3)) + attribute(6, u8(2)) + attribute(7, u32(11))
    assert ethtool_messages.state_of(down) == ethtool_messages.LinkState(
        7, "bad-signal-integrity", "unsupported-rate", 11
    )
    assert ethtool_messages.state_of(raw) == ethtool_messages.LinkState(7, None, None, None)
    assert ethtool_messages.state_of(raw + attribute(5, u8(77)) + attribute(6, u8(9))).state == "state-77"


@pytest.mark.parametrize("lanes", [0, 4, 8])
def test_fec_counters_are_totals_for_any_number_of_lanes(lanes):
    def array(total: int) -> bytes:
        return b"".join(map(u64, (total, *range(lanes))))

    counted = nest(
        5, attribute(2, array(10)), attribute(3, array(20)), attribute(4, array(30)), attribute(6, b"new")
    )
    assert ethtool_messages.fec_of(
        GENERIC + header() + attribute(4, u32(50)) + counted
    ) == ethtool_messages.FecCounters(7, "RS", 10, 20, 30)


def test_fec_counters_that_the_driver_lacks_are_none_and_not_zero():
    assert ethtool_messages.fec_of(GENERIC + header()) == ethtool_messages.FecCounters(
        7, None, None, None, None
    )
    counted = nest(5, attribute(2, b""), attribute(3, u64(2**64 - 1)))
    assert ethtool_messages.fec_of(GENERIC + header() + counted).uncorrectable_blocks is None
    with pytest.raises(NetlinkError, match="not an array"):
        ethtool_messages.fec_of(GENERIC + header() + nest(5, attribute(2, b"\0" * 7)))


def test_pause_counters_of_both_directions_are_decoded():
    raw = GENERIC + header() + nest(5, attribute(2, u64(3)), attribute(3, u64(4)))
    assert ethtool_messages.pause_of(raw) == ethtool_messages.PauseCounters(7, rx_frames=4, tx_frames=3)
    assert ethtool_messages.pause_of(GENERIC + header()) == ethtool_messages.PauseCounters(7, None, None)


def test_rings_channels_and_pause_are_texts_of_what_is_in_use() -> None:
    rings = attribute(2, u32(8192)), attribute(5, u32(8192)), attribute(6, u32(1024)), attribute(9, u32(512))
    assert nic_settings.rings_of(GENERIC + header() + b"".join(rings)).text == "rx 1024 tx 512"
    channels = attribute(5, u32(63)), attribute(8, u32(1)), attribute(9, u32(8)), attribute(6, u32(0))
    assert nic_settings.channels_of(GENERIC + header() + b"".join(channels)).text == "8"
    assert (
        nic_settings.rings_of(GENERIC + header() + attribute(6, u32(512)) + attribute(9, u32(512))).text
        == "512"
    )
    pause = attribute(2, u8(0)), attribute(3, u8(1)), attribute(4, u8(0))
    assert nic_settings.pause_setting_of(GENERIC + header() + b"".join(pause)).text == "rx"
    off = (attribute(kind, u8(0)) for kind in (2, 3, 4))
    assert nic_settings.pause_setting_of(GENERIC + header() + b"".join(off)).text == "none"
    for read in (nic_settings.rings_of, nic_settings.channels_of, nic_settings.pause_setting_of):
        assert read(GENERIC + header()).text is None, "the driver does not say it"


def standard(*groups: tuple[int, dict[int, int]]) -> bytes:
    """An answer as net/ethtool/stats.c makes it: the header has another type than elsewhere, each statistic is alone in
    a nest, and RMON has a histogram before its statistics."""
    raw = GENERIC + nest(2, attribute(1, u32(7)), attribute(2, b"eth0\0")) + attribute(5, u32(0))
    for group, counts in groups:
        histogram = nest(5, attribute(7, u32(0)), attribute(8, u32(64)), attribute(9, u64(99)))
        raw += nest(
            4,
            attribute(2, u32(group)),
            attribute(3, u32(17 + group)),
            *([histogram] if group == 3 else []),
            *(nest(4, attribute(kind, u64(count))) for kind, count in counts.items()),
        )
    return raw


def test_counters_of_the_standards_are_decoded_by_the_names_of_the_kernel() -> None:
    raw = standard(
        (0, {0: 1}), (1, {4: 2, 12: 3, 21: 4, 22: 99}), (2, {2: 5}), (3, {0: 6, 3: 7}), (4, {0: 99})
    )
    read = ethtool_messages.standard_of(raw)
    assert read.ifindex == 7
    assert read.counts == {
        "SymbolErrorDuringCarrier": 1,
        "FrameCheckSequenceErrors": 2,
        "OctetsReceivedOK": 3,
        "FrameTooLongErrors": 4,
        "UnsupportedOpcodesReceived": 5,
        "etherStatsUndersizePkts": 6,
        "etherStatsJabbers": 7,
    }, "statistics and groups of a later kernel are left out"


def test_a_counter_that_the_driver_lacks_is_absent_and_not_zero() -> None:
    assert ethtool_messages.standard_of(standard((0, {}), (1, {4: 2**64 - 1}))).counts == {}


def test_an_answer_without_a_netdev_is_an_error():
    for read in (ethtool_messages.modes_of, ethtool_messages.standard_of):
        with pytest.raises(NetlinkError, match="does not name its netdev"):
            read(GENERIC)


# --- devlink and RDMA -----------------------------------------------------------------------------------


def test_a_devlink_health_reporter_is_decoded():
    inner = (
        attribute(115, b"fw_fatal\0"),
        attribute(116, u8(1)),
        attribute(117, u64(2)),
        attribute(118, u64(1)),
    )
    raw = GENERIC + attribute(1, b"pci\0") + attribute(2, b"0000:1a:00.0\0") + nest(114, *inner)
    assert reporter_of(raw) == HealthReporter("0000:1a:00.0", None, "fw_fatal", True, 2, 1)
    assert reporter_of(GENERIC + attribute(1, b"auxiliary\0") + attribute(2, b"x\0")).pci_address is None


def test_one_answer_holds_all_hardware_counters_of_a_port():
    def entry(name: bytes, value: int) -> bytes:
        return nest(81, attribute(82, name + b"\0"), attribute(83, u64(value)))

    raw = attribute(1, u32(0)) + nest(80, entry(b"out_of_sequence", 5), entry(b"np_cnp_sent", 2**40))
    assert rdma_counters_of(raw) == {"out_of_sequence": 5, "np_cnp_sent": 2**40}
    assert device_of(attribute(1, u32(3)) + attribute(2, b"mlx5_3\0")) == (3, "mlx5_3")


@given(st.binary(max_size=300))
def test_any_bytes_decode_or_raise_netlink_error(data):
    reads = (
        *(
            netdev_counters,
            netdev_of,
            vfs_of,
            ethtool_messages.modes_of,
            ethtool_messages.state_of,
            ethtool_messages.fec_of,
            ethtool_messages.pause_of,
            ethtool_messages.standard_of,
            nic_settings.rings_of,
            nic_settings.channels_of,
            nic_settings.pause_setting_of,
            reporter_of,
            rdma_counters_of,
        ),
        *(device_of, lambda raw: list(messages(raw)), lambda raw: list(listed_attributes(raw)), attributes),
    )
    for raw in (data, GENERIC + header() + data, ROUTE + data):
        for read in reads:
            try:
                read(raw)
            except NetlinkError:
                continue


@given(st.lists(st.tuples(st.integers(0, 0x3FFF), st.binary(max_size=40)), max_size=8))
def test_attributes_decode_as_they_were_encoded(written):
    raw = b"".join(attribute(kind, value) for kind, value in written)
    assert list(listed_attributes(raw)) == written
    assert attributes(raw) == dict(written)


# --- sockets -------------------------------------------------------------------------------------------


class Kernel(NetlinkSocket):
    """A socket that reads from a list of answers, each a list of datagrams or errors."""

    def __init__(self, *answers: list[bytes | OSError]) -> None:
        super().__init__(socket.NETLINK_ROUTE, "links")
        self._answers = list(answers)
        self._left: list[bytes | OSError] = []

    def _send(self, kind: int, flags: int, body: bytes) -> int:
        self._sequence += 1
        self._left = list(self._answers.pop(0))
        return self._sequence

    def _receive(self) -> bytes:
        one = self._left.pop(0)
        if isinstance(one, OSError):
            raise one
        return one.replace(b"\xee\xee\xee\xee", struct.pack("=I", self._sequence))


def message(kind: int, payload: bytes, flags: int = 2, sequence: bytes = b"\xee\xee\xee\xee") -> bytes:
    size = MESSAGE.size + len(payload)
    raw = struct.pack("=IHH", size, kind, flags) + sequence + u32(0) + payload
    return raw + b"\0" * (-len(raw) % 4)


def code(errno: int) -> bytes:
    return struct.pack("=i", -errno) + b"\0" * 16


END = message(DONE, struct.pack("=i", 0))


def test_a_dump_of_several_datagrams_is_one_answer():
    with Kernel([message(16, b"aaaa") + message(16, b"bbbb"), message(16, b"cccc"), END]) as kernel:
        assert kernel.dump(18, b"", bytes) == [b"aaaa", b"bbbb", b"cccc"]


def test_an_interrupted_dump_is_repeated():
    torn = [message(16, b"aaaa", F_DUMP_INTERRUPTED), END]
    with Kernel(torn, [message(16, b"bbbb"), END]) as kernel:
        assert kernel.dump(18, b"", bytes) == [b"bbbb"]
    with Kernel(*[torn] * 5) as kernel, pytest.raises(NetlinkError, match="change faster"):
        kernel.dump(18, b"", bytes)


@pytest.mark.parametrize("end", [message(ERROR, code(EIO)), message(DONE, code(EIO))])
def test_an_error_inside_a_dump_raises_its_errno(end):
    with Kernel([message(16, b"aaaa") + end]) as kernel:
        with pytest.raises(NetlinkRefusedError) as refused:
            kernel.dump(18, b"", bytes)
        assert refused.value.code == EIO


def test_the_rest_of_an_abandoned_answer_is_skipped():
    stale = message(16, b"old!", sequence=u32(99)) + message(DONE, b"\0" * 4, sequence=u32(99))
    with Kernel([stale + message(16, b"aaaa") + END]) as kernel:
        assert kernel.dump(18, b"", bytes) == [b"aaaa"]


def test_a_dump_with_lost_messages_is_counted_and_repeated():
    with Kernel([message(16, b"aaaa"), OSError(105, "ENOBUFS")], [message(16, b"bbbb"), END]) as kernel:
        assert kernel.dump(18, b"", bytes) == [b"bbbb"]
        assert kernel.overruns == 1


def test_a_missing_answer_is_an_error():
    with (
        Kernel([BlockingIOError(11, "EAGAIN")]) as kernel,
        pytest.raises(NetlinkError, match="did not answer"),
    ):
        kernel.dump(18, b"", bytes)


def test_a_truncated_datagram_is_an_error():
    with Kernel([message(16, b"aaaa")[:-1]]) as kernel, pytest.raises(NetlinkError, match="cut short"):
        kernel.dump(18, b"", bytes)


def test_a_request_returns_its_answer_or_raises_its_errno():
    with Kernel([message(16, b"aaaa")], [message(ERROR, code(ENODEV))]) as kernel:
        assert kernel.ask(18, b"") == b"aaaa"
        with pytest.raises(NetlinkRefusedError) as refused:
            kernel.ask(18, b"")
        assert refused.value.code == ENODEV
        assert str(refused.value) == "links: No such device (ENODEV)"


# --- the real kernel ------------------------------------------------------------------------------------


def test_this_kernel_reports_the_counters_of_its_loopback():
    with Netdevs() as netdevs:
        lo = next(reading for reading in netdevs.counters() if reading.netdev.name == "lo")
        assert lo.counters is not None
        assert netdevs.vfs(lo.netdev.ifindex) == ()
        with pytest.raises(NetlinkRefusedError) as refused:
            netdevs.vfs(2**31 - 2)
        assert refused.value.code == ENODEV


@pytest.mark.needs("root", "ip", "nsenter")
def test_traffic_alone_makes_no_link_be_decoded_again():
    with Netns() as ns:
        ns.ip("link set lo up")
        with ns.entered(), Netdevs() as netdevs, socket.socket(type=socket.SOCK_DGRAM) as sender:
            (before,) = netdevs.counters()
            (decoded,) = netdevs._last.values()
            sender.sendto(b"x", ("127.0.0.1", 9))
            (after,) = netdevs.counters()
            assert after.counters > before.counters
            assert list(netdevs._last.values()) == [decoded]
            assert after.netdev is before.netdev


@pytest.mark.needs("root", "ip", "nsenter")
def test_dumps_and_single_requests_give_the_same_answer():
    with Netns() as near, Netns() as far:
        veth(near, "v0", far, "w0")
        with near.entered():
            ethtool = ethtool_messages.EthtoolSocket()
        index = near.ifindex("v0")
        with ethtool:
            assert [answer.ifindex for answer in ethtool.all(ethtool_messages.MODES)] == [index]
            assert ethtool.one(ethtool_messages.MODES, index).speed_mbps == 10_000
            assert index in [answer.ifindex for answer in ethtool.all(ethtool_messages.STATE)]
            assert ethtool.all(ethtool_messages.FEC) == []
            with pytest.raises(NetlinkRefusedError) as refused:
                ethtool.one(ethtool_messages.FEC, index)
            assert refused.value.code == EOPNOTSUPP
            with pytest.raises(NetlinkRefusedError) as refused:
                ethtool.eeprom(index, 0x50, 0, 0, 1)
            assert refused.value.code in (EOPNOTSUPP, EBUSY)


@pytest.mark.needs("root", "ip", "nsenter")
def test_the_kernel_answers_for_each_netdev_and_a_veth_has_no_standard_counter():
    with Netns() as near, Netns() as far:
        veth(near, "v0", far, "w0")
        with near.entered(), ethtool_messages.EthtoolSocket() as ethtool:
            answers = {answer.ifindex: answer.counts for answer in ethtool.all(ethtool_messages.STANDARD)}
            assert answers.keys() == {index for index, _ in socket.if_nameindex()}
            v0 = socket.if_nametoindex("v0")
            assert ethtool.one(ethtool_messages.STANDARD, v0).counts == answers[v0] == {}
