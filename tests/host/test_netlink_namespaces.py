"""Netdevs of other network namespaces: moved, named, configured. The kernel is the judge, `ip` the second reader."""

from __future__ import annotations

import errno
import json
import os
import subprocess
from collections.abc import Iterator
from ipaddress import ip_interface
from pathlib import Path
from typing import Any

import pytest

from nodeagent.host.netlink.message import NetlinkError, NetlinkRefusedError
from nodeagent.host.netlink.namespaces import ARP_ANNOUNCE, ARP_IGNORE, NamespaceNetdevs
from nodeagent.host.netlink.netdevs import Netdev
from nodeagent_lab.sim.netns import Netns

pytestmark = pytest.mark.needs("root", "ip")


class Spaces:
    """A host and a pod, each a namespace of its own, with a socket in each."""

    def __init__(self, host: Netns, pod: Netns) -> None:
        self.host_ns, self.pod_ns = host, pod
        self.host, self.pod = NamespaceNetdevs(host.fd), NamespaceNetdevs(pod.fd)

    def ifindex(self, netdevs: NamespaceNetdevs, name: str) -> int:
        return named(netdevs, name).ifindex


def named(netdevs: NamespaceNetdevs, name: str) -> Netdev:
    return next(netdev for netdev in netdevs.read() if netdev.name == name)


def ip_json(ns: Netns, *arguments: str) -> list[Any]:
    said = subprocess.run(
        ns.command("ip", "-json", *arguments), check=True, capture_output=True, text=True, timeout=30
    )
    return list(json.loads(said.stdout or "[]"))


@pytest.fixture
def spaces() -> Iterator[Spaces]:
    with Netns() as host, Netns() as pod:
        made = Spaces(host, pod)
        host.ip(
            "link add v0 type veth peer name far0\nlink add v1 type veth peer name far1\nlink set far0 up"
        )
        yield made
        made.host.close()
        made.pod.close()


def test_a_netdev_goes_to_a_pod_under_its_name_and_back(spaces: Spaces) -> None:
    spaces.host_ns.ip("link set v0 up")
    before = named(spaces.host, "v0")
    spaces.host.move(before.ifindex, spaces.pod_ns.fd, "rail0")
    moved = named(spaces.pod, "rail0")
    assert (moved.mac, moved.admin_up) == (before.mac, False)
    assert "v0" not in {netdev.name for netdev in spaces.host.read()}

    spaces.pod.set_up(moved.ifindex, None, {})
    spaces.pod.move(moved.ifindex, spaces.host_ns.fd, "v0")
    back = named(spaces.host, "v0")
    assert (back.mac, back.admin_up) == (before.mac, False)
    assert {netdev.name for netdev in spaces.pod.read()} == {"lo"}


def test_a_netdev_is_set_up_with_its_mtu_and_sysctls(spaces: Spaces) -> None:
    """Where /proc/sys is read-only, as in a container, a sysctl of a netdev is set by netlink."""
    spaces.host.move(spaces.ifindex(spaces.host, "v0"), spaces.pod_ns.fd, "rail0")
    ifindex = spaces.ifindex(spaces.pod, "rail0")
    spaces.pod.set_up(ifindex, 4200, {ARP_IGNORE: 1, ARP_ANNOUNCE: 2})
    rail = named(spaces.pod, "rail0")
    assert (rail.mtu, rail.admin_up) == (4200, True)
    values = {
        name: subprocess.run(
            spaces.pod_ns.command("cat", f"/proc/sys/net/ipv4/conf/rail0/{name}"),
            check=True, capture_output=True, text=True,
        ).stdout.strip()
        for name in ("arp_ignore", "arp_announce", "arp_filter")
    }  # fmt: skip
    assert values == {"arp_ignore": "1", "arp_announce": "2", "arp_filter": "0"}


@pytest.mark.parametrize("address", ["10.103.16.7/16", "fd00:3::1/64"])
def test_what_has_a_source_address_leaves_through_its_own_netdev(spaces: Spaces, address: str) -> None:
    first = ip_interface(address)
    own = [ip_interface((first.ip + offset, first.network.prefixlen)) for offset in range(2)]
    for name, table in (("v0", 1000), ("v1", 1001)):
        spaces.host.move(spaces.ifindex(spaces.host, name), spaces.pod_ns.fd, name)
        ifindex = spaces.ifindex(spaces.pod, name)
        spaces.pod.set_up(ifindex, None, {})
        for _ in range(2):  # the second time changes nothing
            spaces.pod.add_address(ifindex, own[table - 1000])
            spaces.pod.route_by_source(ifindex, own[table - 1000], table)
    # Both netdevs are in one prefix: the table of main alone would choose the first for both.
    for offset, name in ((0, "v0"), (1, "v1")):
        source = str(own[offset].ip)
        table = str(1000 + offset)
        (route,) = ip_json(spaces.pod_ns, f"-{first.version}", "route", "show", "table", table)
        assert (route["dst"], route["dev"]) == (str(first.network), name)
        rules = ip_json(spaces.pod_ns, f"-{first.version}", "rule", "show")
        assert [rule["priority"] for rule in rules if rule.get("src") == source] == [1000 + offset]
    if first.version == 4:
        (out,) = ip_json(spaces.pod_ns, "route", "get", "10.103.9.9", "from", str(own[1].ip))
        assert out["dev"] == "v1"


def test_of_a_name_that_is_taken_the_netdev_moves_under_its_old_one(spaces: Spaces) -> None:
    """So a refusal does not tell where the netdev is."""
    spaces.pod_ns.ip("link add rail0 type veth peer name other")
    ifindex = spaces.ifindex(spaces.host, "v0")
    with pytest.raises(NetlinkRefusedError) as refused:
        spaces.host.move(ifindex, spaces.pod_ns.fd, "rail0")
    assert refused.value.code == errno.EEXIST
    there = named(spaces.pod, "v0").ifindex
    assert "v0" not in {netdev.name for netdev in spaces.host.read()}
    spaces.host_ns.ip("link add v0 type veth peer name far9")
    spaces.pod.move(there, spaces.host_ns.fd, "dev%d")
    assert any(netdev.name.startswith("dev") for netdev in spaces.host.read())


def test_a_netdev_that_is_up_is_renamed(spaces: Spaces) -> None:
    spaces.host_ns.ip("link set v0 up")
    spaces.host.rename(spaces.ifindex(spaces.host, "v0"), "ens1f0v0")
    assert not named(spaces.host, "ens1f0v0").admin_up


def test_a_socket_that_is_made_again_is_in_the_same_namespace(spaces: Spaces) -> None:
    """After an answer that did not come, the next change must not happen to the host."""
    spaces.pod._failed(OSError(errno.ENOBUFS, "no buffer"))
    assert {netdev.name for netdev in spaces.pod.read()} == {"lo"}


def test_a_file_that_is_no_namespace_is_refused(tmp_path: Path) -> None:
    """The file of a namespace that is gone, or that was made after our mounts were copied."""
    path = tmp_path / "cni-1"
    path.touch()
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with pytest.raises(NetlinkError, match="cannot enter the network namespace: Invalid argument"):
            NamespaceNetdevs(descriptor)
    finally:
        os.close(descriptor)
