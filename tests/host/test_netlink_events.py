"""Events of the kernel that runs the tests, in a network namespace of the test."""

import asyncio
import fcntl
import os
import socket
import struct
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from nodeagent.health.structural import Fault
from nodeagent.host.netlink.kernel_events import LinkEvents, NetlinkError, Uevents, subsystem
from nodeagent.host.netlink.message import attribute, request
from nodeagent.host.sysfs import Tree
from nodeagent.sources.pci_source import PciFacts, watch_pci
from tests.support.drawn_trees import Link, Machine
from tests.support.namespaces import NamespaceThread
from tests.support.needs import lack, need
from tests.support.waiting import LIMIT_S


@pytest.fixture
def namespace() -> Iterator[NamespaceThread]:
    need("root", "ip")
    with closing(NamespaceThread()) as namespace:
        yield namespace


async def woken(events: LinkEvents | Uevents) -> bool:
    try:
        async with asyncio.timeout(60):
            await events.wait()
    except TimeoutError:
        return False
    return True


async def quiet(events: LinkEvents | Uevents) -> bool:
    try:
        async with asyncio.timeout(0.1):
            await events.wait()
    except TimeoutError:
        return True
    return False


async def calm(events: LinkEvents) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not await quiet(events):
            pass


async def test_a_link_that_is_added_changed_or_removed_wakes(namespace: NamespaceThread) -> None:
    with namespace.run(LinkEvents) as events:
        for command in (
            "link add d0 type veth peer name p0",
            "link set d0 up",
            "link set d0 mtu 1400",
            "link del d0",
        ):
            namespace.ip(command)
            assert await woken(events), command
            await calm(events)  # linkwatch follows up within a second
        assert events.resyncs == 0


async def test_the_netdevs_of_a_pod_do_not_wake_and_a_known_link_does(namespace: NamespaceThread) -> None:
    namespace.ip("link add v0 type veth peer name v1")
    with (
        namespace.run(LinkEvents, lambda name: name == "v0") as events,
        namespace.run(Uevents) as all_devices,
    ):
        for command in (
            "link add pod0 type veth peer name pod1",
            "link set pod0 up",
            "link set pod1 up",
            "link set pod0 mtu 1400",
            "link del pod0",
        ):
            namespace.ip(command)
        assert await woken(all_devices)
        assert await quiet(events)
        namespace.ip("link set v0 up")
        assert await woken(events)


async def test_device_events_of_software_netdevs_do_not_wake_where_hardware_is_wanted(
    namespace: NamespaceThread,
) -> None:
    with namespace.run(lambda: Uevents(hardware=True)) as hardware, namespace.run(Uevents) as all_devices:
        namespace.ip("link add pod0 type veth peer name pod1")
        assert await woken(all_devices)
        assert await quiet(hardware)


async def test_an_event_of_a_netdev_with_a_parent_device_wakes_whatever_its_name() -> None:
    """As the kernel sends it for a VF that a pod has given back."""
    parent = attribute(56, b"0000:18:00.2\0")
    message = request(16, 0, 1, bytes(16) + attribute(3, b"eth7\0") + parent)
    with LinkEvents(lambda _name: False) as events:
        assert events._matches(message)
        assert not events._matches(request(16, 0, 1, bytes(16) + attribute(3, b"eth7\0")))
        assert events._matches(b"\x20" + bytes(17)), "a message that cannot be read"


async def test_carrier_lost_at_the_other_end_wakes(namespace: NamespaceThread) -> None:
    namespace.ip("link add v0 type veth peer name v1")
    namespace.ip("link set v0 up")
    namespace.ip("link set v1 up")
    with namespace.run(LinkEvents) as events:
        waiting = asyncio.create_task(woken(events))
        await asyncio.sleep(0)
        namespace.ip("link set v1 down")
        assert await waiting


async def test_a_burst_of_events_wakes_once(namespace: NamespaceThread) -> None:
    with namespace.run(LinkEvents) as events:
        for n in range(10):
            namespace.ip(f"link add d{n} type veth peer name p{n}")
        assert await woken(events)
        assert await quiet(events)


async def test_events_of_another_namespace_do_not_wake(namespace: NamespaceThread) -> None:
    with closing(NamespaceThread()) as other, other.run(LinkEvents) as events:
        namespace.ip("link add d0 type veth peer name p0")
        assert await quiet(events)
        other.ip("link add d0 type veth peer name p0")
        assert await woken(events)


async def test_addresses_and_routes_do_not_wake(namespace: NamespaceThread) -> None:
    namespace.ip("link set lo up")
    with namespace.run(LinkEvents) as events:
        namespace.ip("address add 192.0.2.1/32 dev lo")
        namespace.ip("route add 192.0.2.2/32 dev lo")
        assert await quiet(events)


async def test_dropped_messages_wake_and_are_counted(namespace: NamespaceThread) -> None:
    with namespace.run(LinkEvents) as events:
        events.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)  # the kernel makes it its least
        namespace.ip("link add d0 type veth peer name p0")
        for mtu in range(1000, 1020):
            namespace.ip(f"link set d0 mtu {mtu}")
        assert await woken(events)
        assert events.resyncs == 1
        await calm(events)
        namespace.ip("link del d0")
        assert await woken(events), "the socket continues after an overrun"


async def test_device_events_wake_by_subsystem(namespace: NamespaceThread) -> None:
    with namespace.run(Uevents) as net, namespace.run(Uevents, frozenset({"infiniband"})) as infiniband:
        namespace.ip("link add d0 type veth peer name p0")
        assert await woken(net)
        assert await quiet(infiniband)


async def test_dropped_device_events_wake_for_any_subsystem(namespace: NamespaceThread) -> None:
    with namespace.run(Uevents, frozenset({"infiniband"})) as events:
        events.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        for n in range(5):
            namespace.ip(f"link add d{n} type veth peer name p{n}")
        assert await woken(events)
        assert events.resyncs == 1


async def test_messages_of_another_process_do_not_wake() -> None:
    with (
        Uevents(frozenset({"pci"})) as events,
        socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 15) as sender,
    ):
        message = b"add@/devices/pci0000:00\0ACTION=add\0SUBSYSTEM=pci\0"
        try:
            sender.sendto(message, (events.socket.getsockname()[0], 0))
        except PermissionError:
            return  # an ordinary user's message does not even leave
        assert await quiet(events)


class Tap:
    """A tap device: the kernel treats its carrier like a physical NIC's, unlike that of a veth."""

    _SET_INTERFACE, _SET_CARRIER = 0x400454CA, 0x400454E2  # TUNSETIFF, TUNSETCARRIER

    def __init__(self, name: str) -> None:
        self._fd = os.open("/dev/net/tun", os.O_RDWR)
        fcntl.ioctl(self._fd, self._SET_INTERFACE, struct.pack("16sH22x", name.encode(), 0x1002))

    def carrier(self, on: bool) -> None:
        fcntl.ioctl(self._fd, self._SET_CARRIER, struct.pack("i", on))

    def close(self) -> None:
        os.close(self._fd)


@pytest.fixture
def taps(namespace: NamespaceThread, tmp_path: Path) -> Iterator[list[Tap]]:
    """Two taps as the links of two PFs, on a machine whose netdevs are the kernel's own."""
    need("tun")
    machine = Machine(tmp_path)
    taps = []
    for n in range(2):
        taps.append(namespace.run(Tap, f"tap{n}"))
        namespace.ip(f"link set tap{n} up")
        folder = machine.function(f"0000:{n}a:00.0")
        machine.draw(f"{folder}/net/tap{n}", {})
        machine.draw(f"/sys/class/net/tap{n}", Link(f"/real/class/net/tap{n}"))
    machine.draw("/real", {})
    # sysfs shows the netdevs of the namespace that mounted it.
    mount = ["mount", "-t", "sysfs", "sysfs", str(tmp_path / "real")]
    if namespace.run(lambda: subprocess.run(mount, check=False)).returncode:
        lack("root", "root, who may mount sysfs")
    try:
        yield taps
    finally:
        subprocess.run(["umount", str(tmp_path / "real")], check=True)
        for tap in taps:
            tap.close()


async def test_a_second_lost_link_is_published_before_the_kernel_announces_it(
    namespace: NamespaceThread, taps: list[Tap], tmp_path: Path
) -> None:
    """Linkwatch holds the second announcement back until a second after the first (0.91 s measured).

    A busy machine may be late by as much; the fastest of several attempts shows that nothing waits for linkwatch.
    """
    published: asyncio.Queue[PciFacts] = asyncio.Queue()
    with namespace.run(LinkEvents) as events:
        watching = asyncio.create_task(watch_pci(Tree(tmp_path), [events], published.put_nowait))

        async def until(*carrier: bool) -> None:
            async with asyncio.timeout(LIMIT_S):
                down = None
                while down != [not up for up in carrier]:
                    facts = await published.get()
                    down = [
                        [fault.key for fault in facts.faults.get(pf.pci_address, ())] == [Fault.CARRIER_DOWN]
                        for pf in facts.functions
                    ]

        lost, returned = [], []
        try:
            await until(True, True)
            while not lost or (max(min(lost), min(returned)) > 0.5 and len(lost) < 20):
                taps[0].carrier(False)
                await until(False, True)
                await asyncio.sleep(0.1)
                began = time.monotonic()
                taps[1].carrier(False)
                await until(False, False)
                lost.append(time.monotonic() - began)
                began = time.monotonic()
                taps[0].carrier(True)
                await until(True, False)
                returned.append(time.monotonic() - began)
                taps[1].carrier(True)
                await until(True, True)
            assert max(min(lost), min(returned)) < 0.5, (lost, returned)
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)


@pytest.mark.parametrize(
    ("message", "name"),
    [
        (b"bind@/devices/pci0000:15/0000:1a:00.1\0ACTION=bind\0SUBSYSTEM=pci\0SEQNUM=7\0", "pci"),
        (b"add@/devices/virtual/net/d0\0ACTION=add\0SUBSYSTEM=net\0INTERFACE=SUBSYSTEM=pci\0", "net"),
        (b"add@/module/x\0ACTION=add\0DEVPATH=/module/x\0", None),
        (b"libudev\0\xfe\xed\xca\xfe\0SUBSYSTEM=pci\0", None),
        (b"", None),
        (b"\xff@\0SUBSYSTEM=\xff\0", "\ufffd"),
    ],
)
def test_the_subsystem_of_a_uevent_is_decoded(message: bytes, name: str | None) -> None:
    assert subsystem(message) == name


def test_a_closed_socket_frees_its_descriptor() -> None:
    before = set(Path("/proc/self/fd").iterdir())
    with LinkEvents(), Uevents():
        assert len(set(Path("/proc/self/fd").iterdir())) == len(before) + 2
    assert set(Path("/proc/self/fd").iterdir()) == before


def test_a_socket_that_cannot_be_made_is_an_error() -> None:
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        with pytest.raises(NetlinkError, match="no netlink socket for link events"):
            LinkEvents()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
