"""Notices of changes by an administrator, from the kernel that runs the tests."""

from __future__ import annotations

import asyncio
import fcntl
import socket
import struct
from array import array
from collections.abc import Iterator
from contextlib import closing

import pytest

from nodeagent.host.netlink.change_notices import ChangeNotices
from tests.support.namespaces import NamespaceThread
from tests.support.needs import need

_SIOCETHTOOL, _SCHANNELS = 0x8946, 0x3D  # include/uapi/linux/sockios.h and ethtool.h


@pytest.fixture
def namespace() -> Iterator[NamespaceThread]:
    need("root", "ip")
    with closing(NamespaceThread()) as namespace:
        yield namespace


async def settings(notices: ChangeNotices, ifindex: int, *expected: str) -> list[str]:
    """Read until these settings have appeared, or for five seconds."""
    read: list[str] = []
    for _ in range(100):
        read += [notice.setting for notice in notices.read(frozenset({ifindex}))]
        if set(expected) <= set(read):
            break
        await asyncio.sleep(0.05)
    return read


async def test_changed_flags_and_mtu_are_noticed(namespace: NamespaceThread) -> None:
    namespace.ip("link add d0 index 77 type veth peer name p0 index 78")
    with namespace.run(ChangeNotices) as notices:
        namespace.ip("link set d0 up")
        await settings(notices, 77)
        for command, setting in (
            ("link set d0 mtu 1400", "mtu"),
            ("link set d0 down", "admin"),
            ("link set d0 up", "admin"),
        ):
            namespace.ip(command)
            assert setting in await settings(notices, 77, setting), command
        namespace.ip("link set p0 mtu 1300")
        assert "mtu" not in [notice.setting for notice in notices.read(frozenset({77}))]


async def test_a_link_that_is_down_for_a_moment_is_noticed(namespace: NamespaceThread) -> None:
    namespace.ip("link add d0 index 77 type veth peer name p0")
    with namespace.run(ChangeNotices) as notices:
        namespace.ip("link set d0 up")
        await settings(notices, 77)
        namespace.ip("link set d0 down")
        namespace.ip("link set d0 up")
        assert (await settings(notices, 77, "admin")).count("admin") == 2


def set_channels(netdev: str, rx: int, tx: int) -> None:
    """As ``ethtool -L``, by the ioctl."""
    request = array("I", (_SCHANNELS, 0, 0, 0, 0, rx, tx, 0, 0))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, _SIOCETHTOOL, struct.pack("16sP", netdev.encode(), request.buffer_info()[0]))


async def test_a_change_by_ethtool_is_noticed(namespace: NamespaceThread) -> None:
    namespace.ip("link add d0 index 77 numrxqueues 4 numtxqueues 4 type veth peer name p0")
    with namespace.run(ChangeNotices) as notices:
        namespace.run(set_channels, "d0", 2, 2)
        assert await settings(notices, 77, "channels") == ["channels"]
        namespace.run(set_channels, "d0", 1, 1)
        assert list(notices.read(frozenset({78}))) == [], "another netdev"
