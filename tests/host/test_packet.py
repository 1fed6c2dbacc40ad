"""The receiver on real netdevs: veth pairs in namespaces of the test's own."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from nodeagent.host.packet import BURST, QUEUE, RATE, PacketError, Receiver, open_on
from nodeagent.lldp.ethernet import GROUPS, build_frame
from tests.support.namespaces import Netns, veth

needs_root = pytest.mark.needs("root", "ip", "nsenter")
SOURCE = bytes.fromhex("020000000001")
PDU = bytes.fromhex("0207 04 020000000001 0404 05 737731 0602 0078 0000")


class Heard(list[bytes]):
    """Frames as they come, and a way to wait for one."""

    def __init__(self) -> None:
        self.lost = 0
        self._changed = asyncio.Event()

    def take(self, frame: bytes) -> None:
        self.append(frame)
        self._changed.set()

    def lose(self) -> None:
        self.lost += 1
        self._changed.set()

    async def until(self, done) -> None:
        async with asyncio.timeout(10):
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
def listening(ns: Netns, netdev: str = "a0", *, enslaved: bool = False):
    heard = Heard()
    with ns.entered():
        index = socket.if_nametoindex(netdev)
        receiver = Receiver(index, open_on(index, enslaved=enslaved), heard.take, heard.lose)
    heard.receiver = receiver
    try:
        yield heard
    finally:
        receiver.close()


def last(number: int) -> bytes:
    """A frame to wait for: whatever was sent before it has been heard or refused when it comes."""
    return build_frame(GROUPS[0], SOURCE, PDU + number.to_bytes(2, "big"))


@needs_root
@pytest.mark.parametrize("enslaved", [False, True])
async def test_lldp_to_any_of_the_three_groups_is_heard_and_nothing_else(wire, enslaved):
    near, far = wire
    with listening(near, enslaved=enslaved) as heard, far.raw("b0") as sender:
        frames = [build_frame(group, SOURCE, PDU) for group in GROUPS]
        others = [
            build_frame(bytes.fromhex("0180c200000f"), SOURCE, PDU),
            build_frame(bytes.fromhex("02000000000e"), SOURCE, PDU),
            b"\xff" * 6 + SOURCE + b"\x08\x00" + b"\0" * 46,
            frames[0][:12] + b"\x08\x06" + frames[0][14:],
        ]
        for frame in (*others, *frames):
            sender.send(frame)
        await heard.until(lambda: len(heard) >= 3)
        assert heard == frames


@needs_root
async def test_the_nic_is_asked_for_the_three_groups_as_long_as_somebody_listens(wire):
    near, _ = wire

    def asked_for() -> str:
        command = near.command("ip", "maddr", "show", "dev", "a0")
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    with listening(near):
        assert all(group.hex(":") in asked_for() for group in GROUPS)
    async with asyncio.timeout(10):
        while any(group.hex(":") in asked_for() for group in GROUPS):  # closed in a thread
            await asyncio.sleep(0.01)


@needs_root
@pytest.mark.parametrize("enslaved", [False, True])
async def test_own_transmissions_are_not_heard(wire, enslaved):
    near, far = wire
    with listening(near, enslaved=enslaved) as heard, near.raw("a0") as other_agent, far.raw("b0") as sender:
        assert heard.receiver.send(last(1))
        other_agent.send(last(2))
        sender.send(last(3))
        await heard.until(lambda: last(3) in heard)
        assert heard == [last(3)]


@needs_root
@pytest.mark.parametrize("enslaved", [False, True])
@pytest.mark.parametrize("vlan", [0, 100, 4095])
async def test_a_tagged_frame_is_heard_without_its_tag(wire, vlan, enslaved):
    near, far = wire
    with listening(near, enslaved=enslaved) as heard, far.raw("b0") as sender:
        sender.send(build_frame(GROUPS[0], SOURCE, PDU, (vlan,)))
        await heard.until(lambda: len(heard) >= 1)
        assert heard == [build_frame(GROUPS[0], SOURCE, PDU)]


@needs_root
async def test_a_port_of_a_bridge_that_forwards_lldp_is_heard(wire):
    near, far = wire
    near.ip("""link add br0 type bridge group_fwd_mask 0x4000
               link set br0 up
               link set a0 master br0""")
    with listening(near, enslaved=True) as heard, far.raw("b0") as sender:
        for group in GROUPS:
            sender.send(build_frame(group, SOURCE, PDU))
        await heard.until(lambda: len(heard) >= 3)


@needs_root
async def test_rename_and_admin_down_and_up_pass(wire):
    near, far = wire
    with listening(near) as heard, far.raw("b0") as sender:
        near.ip("""link set a0 down
                   link set a0 name swp1
                   link set swp1 up""")
        sender.send(last(1))
        await heard.until(lambda: last(1) in heard)
        assert heard.receiver.bound
        assert heard.lost == 0


@needs_root
async def test_a_netdev_that_moves_away_is_lost_once_and_never_taken_for_a_later_one(wire):
    near, far = wire
    with Netns() as pod, listening(near) as heard:
        index = heard.receiver.ifindex
        near.ip(f"link set a0 netns {pod.path}")
        await heard.until(lambda: heard.lost)
        assert not heard.receiver.bound
        near.ip(f"link add a0 index {index} type veth peer name b1 netns {far.path}")
        near.ip("link set a0 up")
        far.ip("link set b1 up")
        with listening(near) as again, far.raw("b1") as sender:
            assert again.receiver.ifindex == index
            sender.send(last(1))
            await again.until(lambda: last(1) in again)
        assert heard == []
        assert heard.lost == 1


@needs_root
def test_a_netdev_that_is_not_there_is_refused_by_its_number(wire):
    near, _ = wire
    with (
        near.entered(),
        pytest.raises(PacketError, match="netdev 4711 cannot be listened on: No such device"),
    ):
        open_on(4711)


def run_as_nobody(*arguments: str) -> subprocess.CompletedProcess[str]:
    code = """
from nodeagent.host.packet import PacketError, open_on
try:
    open_on(1).close()
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
def test_who_is_not_root_is_told_which_capability_is_missing():
    assert "True listening for LLDP needs CAP_NET_RAW" in run_as_nobody().stdout


@pytest.mark.needs("root", "setpriv")
def test_cap_net_raw_is_all_it_takes():
    only = ("--inh-caps", "-all,+net_raw", "--ambient-caps", "+net_raw", "--bounding-set", "-all,+net_raw")
    assert run_as_nobody(*only).stdout == "open\n"


@needs_root
async def test_a_flood_on_one_link_is_bounded_and_starves_no_other(wire):
    near, far = wire
    veth(near, "a1", far, "b1")
    frame = last(0) + b"\0" * 1000
    stop = threading.Event()

    def flood(hostile: socket.socket) -> int:
        """20,000 a second, in bursts that fit the queue: nothing but the receiver's own limit holds them."""
        began, sent = time.monotonic(), 0
        while not stop.is_set():
            while sent < (time.monotonic() - began) * 20_000:
                hostile.send(frame)
                sent += 1
            time.sleep(0.001)
        return sent

    with listening(near, "a0") as flooded, listening(near, "a1") as quiet:
        with far.raw("b0") as hostile, far.raw("b1") as switch:
            began, lags = time.monotonic(), []
            flooding = asyncio.create_task(asyncio.to_thread(flood, hostile))
            for number in range(50):
                sent_at = time.monotonic()
                switch.send(last(number))
                await quiet.until(lambda number=number: last(number) in quiet)
                lags.append(time.monotonic() - sent_at)
                await asyncio.sleep(0.02)
            stop.set()
            sent = await flooding
        took = time.monotonic() - began
        assert sent > 2 * len(flooded)
        assert len(flooded) <= RATE * took + BURST
        assert flooded.receiver.paused > 0
        assert max(lags) < 0.5
        # Nothing is lost uncounted: what was not heard was dropped, or waits in a queue of bounded size.
        waiting = sent - len(flooded) - flooded.receiver.count_drops()
        assert 0 <= waiting <= 2 * QUEUE / 700
        assert quiet.receiver.count_drops() == 0
