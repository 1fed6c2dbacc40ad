"""LLDP sockets on real netdevs: veth pairs in namespaces of the test."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from nodeagent.host.packet import (
    BURST_FRAMES,
    QUEUE,
    RATE,
    LldpSocket,
    PacketError,
    QinqSocket,
    open_qinq_socket,
    open_socket,
)
from nodeagent.lldp.ethernet import GROUPS, build_frame
from tests.support.namespaces import Netns, veth
from tests.support.needs import lack
from tests.support.waiting import LIMIT_S, until

needs_root = pytest.mark.needs("root", "ip", "nsenter")
SOURCE = bytes.fromhex("020000000001")
PDU = bytes.fromhex("0207 04 020000000001 0404 05 737731 0602 0078 0000")


class Received(list[bytes]):
    """The received frames, and a way to wait for one."""

    socket: LldpSocket

    def __init__(self) -> None:
        self.lost = 0
        self.tagged: list[bool] = []
        self._changed = asyncio.Event()

    def take(self, frame: bytes, tagged: bool) -> None:
        self.append(frame)
        self.tagged.append(tagged)
        self._changed.set()

    def lose(self) -> None:
        self.lost += 1
        self._changed.set()

    async def until(self, done) -> None:
        async with asyncio.timeout(LIMIT_S):
            while not done():
                self._changed.clear()
                await self._changed.wait()


@pytest.fixture
def wire():
    """Namespaces ``near`` with ``a0`` and ``far`` with ``b0``."""
    with Netns() as near, Netns() as far:
        veth(near, "a0", far, "b0")
        yield near, far


@contextlib.contextmanager
def receiving(ns: Netns, netdev: str = "a0", *, enslaved: bool = False):
    received = Received()
    with ns.entered():
        index = socket.if_nametoindex(netdev)
        opened = open_socket(index, enslaved=enslaved)
        received.socket = LldpSocket(index, opened, received.take, received.lose)
    try:
        yield received
    finally:
        received.socket.close()


def last(number: int) -> bytes:
    """A frame to wait for: every frame sent before it has been received or rejected when it arrives."""
    return build_frame(GROUPS[0], SOURCE, PDU + number.to_bytes(2, "big"))


@needs_root
@pytest.mark.parametrize("enslaved", [False, True])
async def test_only_lldp_to_one_of_the_three_groups_is_received(wire, enslaved):
    near, far = wire
    with receiving(near, enslaved=enslaved) as received, far.raw("b0") as sender:
        frames = [build_frame(group, SOURCE, PDU) for group in GROUPS]
        others = [
            build_frame(bytes.fromhex("0180c200000f"), SOURCE, PDU),
            build_frame(bytes.fromhex("02000000000e"), SOURCE, PDU),
            b"\xff" * 6 + SOURCE + b"\x08\x00" + b"\0" * 46,
            frames[0][:12] + b"\x08\x06" + frames[0][14:],
        ]
        for frame in (*others, *frames):
            sender.send(frame)
        await received.until(lambda: len(received) >= 3)
        assert received == frames


@needs_root
async def test_the_netdev_joins_the_three_groups_while_a_socket_is_open(wire):
    near, _ = wire

    def memberships() -> str:
        command = near.command("ip", "maddr", "show", "dev", "a0")
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    with receiving(near):
        assert all(group.hex(":") in memberships() for group in GROUPS)
    # The socket closes in a thread.
    await until(lambda: not any(group.hex(":") in memberships() for group in GROUPS))


@needs_root
@pytest.mark.parametrize("enslaved", [False, True])
async def test_own_transmissions_are_not_received(wire, enslaved):
    near, far = wire
    with (
        receiving(near, enslaved=enslaved) as received,
        near.raw("a0") as other_agent,
        far.raw("b0") as sender,
    ):
        assert received.socket.send(last(1))
        other_agent.send(last(2))
        sender.send(last(3))
        await received.until(lambda: last(3) in received)
        assert received == [last(3)]


@needs_root
@pytest.mark.parametrize("enslaved", [False, True])
@pytest.mark.parametrize("vlan", [0, 100, 4095])
async def test_a_tagged_frame_is_received_without_its_tag(wire, vlan, enslaved):
    near, far = wire
    with receiving(near, enslaved=enslaved) as received, far.raw("b0") as sender:
        sender.send(build_frame(GROUPS[0], SOURCE, PDU, (vlan,)))
        sender.send(last(1))
        await received.until(lambda: len(received) >= 2)
        assert received == [build_frame(GROUPS[0], SOURCE, PDU), last(1)]
        assert received.tagged == [vlan != 0, False], "a priority tag names no VLAN"


@needs_root
@pytest.mark.parametrize("enslaved", [False, True])
@pytest.mark.parametrize("named", ["a0", "renamed"])
async def test_a_frame_of_a_vlan_of_which_the_host_has_a_netdev_is_tagged_too(wire, enslaved, named):
    near, far = wire
    try:
        near.ip("""link add link a0 name a0.100 type vlan id 100
                   link set a0.100 up""")
    except subprocess.CalledProcessError:
        lack("vlan", "a kernel with VLAN netdevs (8021q)")
    far.ip("""link add link b0 name b0.100 type vlan id 100
              link set b0.100 up""")
    with receiving(near, enslaved=enslaved) as received, far.raw("b0") as port, far.raw("b0.100") as sub:
        if named != "a0":
            near.ip(f"""link set a0 down
                        link set a0 name {named}
                        link set {named} up
                        link set a0.100 up""")
        sub.send(last(1))
        port.send(last(2))
        sub.send(last(3))
        await received.until(lambda: len(received) >= 3)
        assert [*zip(received, received.tagged, strict=True)] == [
            (last(1), True),
            (last(2), False),
            (last(3), True),
        ]


def twice_tagged(outer: bytes, inner: bytes, number: int = 1) -> bytes:
    frame = last(number)
    return frame[:12] + outer + b"\0\7" + inner + b"\0\x64" + frame[12:]


@needs_root
@pytest.mark.parametrize(
    ("outer", "inner"), [(b"\x88\xa8", b"\x81\0"), (b"\x81\0", b"\x81\0")], ids=["802.1ad", "802.1Q twice"]
)
async def test_a_frame_with_two_tags_is_received_without_the_outer_one(wire, outer, inner):
    near, far = wire
    received: list[tuple[str, bytes]] = []
    with near.entered():
        tagged = QinqSocket(open_qinq_socket(), lambda *frame: received.append(frame))
    with contextlib.closing(tagged), receiving(near) as untagged, far.raw("b0") as sender:
        ethertype = twice_tagged(outer, inner)[:20] + b"\x08\0" + bytes(40)
        for frame in (ethertype, twice_tagged(outer, inner), last(2)):
            sender.send(frame)
        await untagged.until(lambda: last(2) in untagged)
        await until(lambda: received)
        frame = last(1)
        assert received == [("a0", frame[:12] + inner + b"\0\x64" + frame[12:])]
        assert untagged == [last(2)]


@needs_root
async def test_a_port_of_a_bridge_receives_a_frame_with_two_tags(wire):
    near, far = wire
    near.ip("""link add br0 type bridge
               link set br0 up
               link set a0 master br0""")
    with receiving(near, enslaved=True) as received, far.raw("b0") as sender:
        sender.send(twice_tagged(b"\x88\xa8", b"\x81\0"))
        await received.until(lambda: len(received) >= 1)
        assert received[0][12:18] == b"\x81\0\0\x64\x88\xcc"


@needs_root
async def test_a_port_of_a_bridge_that_forwards_lldp_receives(wire):
    near, far = wire
    near.ip("""link add br0 type bridge group_fwd_mask 0x4000
               link set br0 up
               link set a0 master br0""")
    with receiving(near, enslaved=True) as received, far.raw("b0") as sender:
        for group in GROUPS:
            sender.send(build_frame(group, SOURCE, PDU))
        await received.until(lambda: len(received) >= 3)


@needs_root
async def test_a_socket_survives_a_rename_and_admin_down_and_up(wire):
    near, far = wire
    with receiving(near) as received, far.raw("b0") as sender:
        near.ip("""link set a0 down
                   link set a0 name swp1
                   link set swp1 up""")
        sender.send(last(1))
        await received.until(lambda: last(1) in received)
        assert received.socket.bound
        assert received.lost == 0


@needs_root
async def test_a_moved_netdev_is_lost_once_and_not_confused_with_a_later_one(wire):
    near, far = wire
    with Netns() as pod, receiving(near) as received:
        index = received.socket.ifindex
        near.ip(f"link set a0 netns {pod.path}")
        await received.until(lambda: received.lost)
        assert not received.socket.bound
        near.ip(f"link add a0 index {index} type veth peer name b1 netns {far.path}")
        near.ip("link set a0 up")
        far.ip("link set b1 up")
        with receiving(near) as again, far.raw("b1") as sender:
            assert again.socket.ifindex == index
            sender.send(last(1))
            await again.until(lambda: last(1) in again)
        assert received == []
        assert received.lost == 1


@needs_root
def test_a_missing_netdev_is_an_error_with_its_ifindex(wire):
    near, _ = wire
    with (
        near.entered(),
        pytest.raises(PacketError, match="netdev 4711 cannot have a packet socket: No such device"),
    ):
        open_socket(4711)


def run_as_nobody(*arguments: str) -> subprocess.CompletedProcess[str]:
    code = """
from nodeagent.host.packet import PacketError, open_socket
try:
    open_socket(1).close()
    print("open")
except PacketError as error:
    print(error.forbidden, error)
"""
    command = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", *arguments]
    return subprocess.run(
        [*command, sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
        timeout=60,
    )


@pytest.mark.needs("root", "setpriv")
def test_without_root_the_error_names_the_missing_capability():
    assert "True receiving LLDP needs CAP_NET_RAW" in run_as_nobody().stdout


@pytest.mark.needs("root", "setpriv")
def test_cap_net_raw_is_sufficient():
    only = ("--inh-caps", "-all,+net_raw", "--ambient-caps", "+net_raw", "--bounding-set", "-all,+net_raw")
    assert run_as_nobody(*only).stdout == "open\n"


@needs_root
async def test_a_flood_on_one_link_is_bounded_and_does_not_delay_another(wire):
    near, far = wire
    veth(near, "a1", far, "b1")
    frame = last(0) + b"\0" * 1000
    stop = threading.Event()

    def flood(hostile: socket.socket) -> int:
        """20,000 a second, in bursts that fit the queue: only the limit of the socket's reader bounds them."""
        started, sent = time.monotonic(), 0
        while not stop.is_set():
            while sent < (time.monotonic() - started) * 20_000:
                hostile.send(frame)
                sent += 1
            time.sleep(0.001)
        return sent

    with receiving(near, "a0") as flooded, receiving(near, "a1") as quiet:
        with far.raw("b0") as hostile, far.raw("b1") as switch:
            started, lags = time.monotonic(), []
            flooding = asyncio.create_task(asyncio.to_thread(flood, hostile))
            for number in range(50):
                sent_at = time.monotonic()
                switch.send(last(number))
                await quiet.until(lambda number=number: last(number) in quiet)
                lags.append(time.monotonic() - sent_at)
                await asyncio.sleep(0.02)
            stop.set()
            sent = await flooding
        took = time.monotonic() - started
        assert sent > 2 * len(flooded)
        assert len(flooded) <= RATE * took + BURST_FRAMES
        assert flooded.socket.paused > 0
        assert statistics.quantiles(lags, n=10)[-1] < 0.5, "nine of ten frames"
        # No frame is lost uncounted: each was received, dropped, or waits in a queue of bounded size.
        waiting = sent - len(flooded) - flooded.socket.count_drops()
        assert 0 <= waiting <= 2 * QUEUE / 700
        assert quiet.socket.count_drops() == 0
