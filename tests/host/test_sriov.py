"""VF writes and requests on the kernel that runs the tests."""

import ctypes
import fcntl
import os
import struct
import termios
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg

from nodeagent.host import sriov
from nodeagent.host.sriov import SriovError, VfNetlink, VfSettings, is_open, vf_guids, vf_settings
from nodeagent.host.sysfs import Tree, is_live
from tests.support.drawn_trees import grow
from tests.support.namespaces import NamespaceThread

PF = "0000:18:00.0"


@pytest.fixture
def namespace() -> Iterator[NamespaceThread]:
    """A namespace with a pair of veths; ``pf0`` is one of them."""
    try:
        namespace = NamespaceThread()
    except PermissionError:
        pytest.skip("needs root: only root may make a network namespace")
    with closing(namespace):
        namespace.ip("link add pf0 type veth peer name far0")
        yield namespace


@pytest.fixture
def live(namespace: NamespaceThread, tmp_path: Path) -> Iterator[Tree]:
    """The sysfs of the namespace."""
    libc = ctypes.CDLL(None, use_errno=True)
    (tmp_path / "sys").mkdir()
    mounted = namespace.run(libc.mount, b"sysfs", bytes(tmp_path / "sys"), b"sysfs", 0, None)
    assert mounted == 0, os.strerror(ctypes.get_errno())
    yield Tree(tmp_path)
    libc.umount2(bytes(tmp_path / "sys"), 2)


@pytest.mark.needs("root")
@pytest.mark.needs("ip")
def test_set_mtu_changes_the_kernels_mtu(namespace: NamespaceThread, live: Tree) -> None:
    sriov.set_mtu(live, PF, "pf0", 4000)
    assert live.integer("/sys/class/net/pf0/mtu") == 4000


@pytest.mark.needs("root")
@pytest.mark.needs("ip")
def test_an_unsupported_mtu_is_an_error_with_file_and_errno(live: Tree) -> None:
    with pytest.raises(SriovError) as caught:
        sriov.set_mtu(live, PF, "pf0", 3)
    assert str(caught.value) == (
        "0000:18:00.0: /sys/class/net/pf0/mtu did not take 3: Invalid argument (EINVAL); "
        "the device does not support that MTU"
    )


@pytest.mark.needs("root")
@pytest.mark.needs("ip")
def test_a_netdev_without_vfs_has_no_settings_and_accepts_none(
    namespace: NamespaceThread, live: Tree
) -> None:
    def ask() -> None:
        with VfNetlink(live) as links:
            assert links.vfs("pf0") == {}
            with pytest.raises(SriovError) as caught:
                links.set_vf(PF, "pf0", 2, VfSettings(trust=True))
            assert str(caught.value) == (
                "0000:18:00.0: trust of VF 2 of pf0 did not take true: Operation not supported (ENOTSUP); "
                "the PF's driver does not support it; remove the setting from the configuration"
            )
            for settings in (
                VfSettings(spoof_check=False),
                VfSettings(link_state="disable"),
                VfSettings(min_tx_rate_mbps=0, max_tx_rate_mbps=100),
            ):
                with pytest.raises(SriovError, match="ENOTSUP"):
                    links.set_vf(PF, "pf0", 0, settings)

    namespace.run(ask)


@pytest.mark.needs("root")
@pytest.mark.needs("ip")
def test_addresses_exclude_the_kernels_own(namespace: NamespaceThread, live: Tree) -> None:
    namespace.ip("link set far0 up")
    namespace.ip("link set pf0 up")  # and now it has a link-local one

    def ask() -> tuple[str, ...]:
        with VfNetlink(live) as links:
            return links.addresses("pf0")

    assert namespace.run(ask) == ()
    namespace.ip("addr add 192.0.2.1/32 dev pf0")
    namespace.ip("addr add 2001:db8::1/64 dev pf0 nodad")
    assert set(namespace.run(ask)) == {"192.0.2.1/32", "2001:db8::1/64"}


@pytest.mark.needs("root")
@pytest.mark.needs("ip")
def test_a_netdev_of_the_same_name_in_another_namespace_is_an_error(
    namespace: NamespaceThread, live: Tree
) -> None:
    with closing(NamespaceThread()) as other:

        def ask() -> None:
            with VfNetlink(live) as links, pytest.raises(SriovError, match="hostNetwork: true"):
                links.set_vf(PF, "pf0", 0, VfSettings(trust=True))

        other.run(ask)
        other.ip("link add pf0 type veth peer name far0")
        other.run(ask)


@pytest.mark.needs("root")
@pytest.mark.needs("ip")
def test_the_long_address_of_infiniband_matches_its_netdev(
    namespace: NamespaceThread, live: Tree, tmp_path: Path
) -> None:
    index, mac = live.text("/sys/class/net/pf0/ifindex"), live.text("/sys/class/net/pf0/address")
    shown = {"ifindex": f"{index}", "address": f"{mac}" + ":00" * 14}
    drawn = Tree(grow(tmp_path / "drawn", {"sys/class/net/pf0": shown}))

    def ask() -> dict[int, VfSettings]:
        with VfNetlink(drawn) as links:
            return links.vfs("pf0")

    assert namespace.run(ask) == {}


@pytest.mark.needs("root")
@pytest.mark.needs("ip")
def test_only_a_kernels_own_sysfs_is_live(live: Tree, tmp_path: Path) -> None:
    assert is_live(live)
    assert is_live(Tree("/"))
    assert not is_live(Tree(grow(tmp_path / "drawn", {"sys/class/net": {}})))
    assert not is_live(Tree(tmp_path / "absent"))


@pytest.mark.needs("root")
def test_a_refused_write_is_an_error_with_the_remedy(tmp_path: Path) -> None:
    """The attribute is ``/dev/full``: every write fails with ENOSPC."""
    folder = grow(tmp_path, {f"sys/bus/pci/devices/{PF}": {}}) / f"sys/bus/pci/devices/{PF}"
    os.mknod(folder / "sriov_numvfs", 0o20600, os.makedev(1, 7))
    with pytest.raises(SriovError) as caught:
        sriov.set_num_vfs(Tree(tmp_path), PF, 64)
    assert str(caught.value) == (
        f"{PF}: /sys/bus/pci/devices/{PF}/sriov_numvfs did not take 64: No space left on device (ENOSPC); "
        "the device has no resources for that many VFs"
    )


def test_a_missing_attribute_is_not_created(tmp_path: Path) -> None:
    tree = Tree(grow(tmp_path, {f"sys/bus/pci/devices/{PF}": {}, "sys/bus/pci/drivers": {}}))
    with pytest.raises(SriovError, match=r"sriov_numvfs did not take 4: .*ENOENT.*the PF has no driver"):
        sriov.set_num_vfs(tree, PF, 4)
    with pytest.raises(SriovError, match=r"vfio-pci/bind did not take .*ENOENT.*modprobe it on the host"):
        sriov.bind(tree, PF, "vfio-pci")
    assert not tree.names(f"/sys/bus/pci/devices/{PF}")


@pytest.mark.needs("root")
def test_a_node_held_by_a_program_is_open() -> None:
    """A terminal in exclusive mode returns EBUSY to users other than root, as a VFIO group does."""
    ours, theirs = os.openpty()
    node = os.ttyname(theirs)
    try:
        os.chmod(node, 0o666)  # noqa: PTH101
        fcntl.ioctl(theirs, termios.TIOCEXCL)
        os.seteuid(65534)
        try:
            assert is_open(Tree("/"), node) is True
        finally:
            os.seteuid(0)
    finally:
        os.close(theirs)
        os.close(ours)


def test_a_node_that_opens_is_free_and_one_that_fails_otherwise_is_unknown(tmp_path: Path) -> None:
    tree = Tree(grow(tmp_path, {"dev/vfio/45": "", "dev/vfio/46": {}}))
    assert is_open(tree, "/dev/vfio/45") is False
    assert is_open(tree, "/dev/vfio/46") is None
    assert is_open(tree, "/dev/vfio/47") is None


def attribute(number: int, payload: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(payload), number) + payload + b"\0" * (-len(payload) % 4)


def newlink(*vfs: bytes) -> ifinfmsg:
    """include/uapi/linux/{netlink,rtnetlink,if_link}.h; IFLA_VFINFO_LIST is 22, IFLA_VF_INFO 1."""
    body = struct.pack("=BxHiII", 0, 1, 7, 0, 0) + attribute(22, b"".join(attribute(1, vf) for vf in vfs))
    message = ifinfmsg(struct.pack("=IHHII", 16 + len(body), 16, 0, 1, 0) + body)
    message.decode()
    return message


def vf(index: int, *, trust: int, spoof: int, state: int, low: int, high: int) -> bytes:
    """In the order of net/core/rtnetlink.c, rtnl_fill_vfinfo, with an attribute unknown to pyroute2."""
    return b"".join(
        (
            attribute(1, struct.pack("=I32s", index, b"\x02\0\0\0\0\1")),
            attribute(13, b"\xff" * 6 + b"\0" * 26),
            attribute(2, struct.pack("=III", index, 0, 0)),
            attribute(6, struct.pack("=III", index, low, high)),
            attribute(3, struct.pack("=II", index, high)),
            attribute(4, struct.pack("=II", index, spoof)),
            attribute(5, struct.pack("=II", index, state)),
            attribute(7, struct.pack("=II", index, 0)),
            attribute(9, struct.pack("=II", index, trust)),
        )
    )


def guid(index: int, value: int) -> bytes:
    """``struct ifla_vf_guid``: the number is aligned to eight octets, in the order of the host."""
    node, port = (attribute(kind, struct.pack("@IQ", index, value)) for kind in (10, 11))
    return attribute(1, struct.pack("=I32s", index, bytes(32))) + node + port


def test_the_guids_of_vfs_are_decoded() -> None:
    message = newlink(guid(0, 0), guid(1, 0x0E42A1030216054C))
    assert vf_guids(message) == {0: "00:00:00:00:00:00:00:00", 1: "0e:42:a1:03:02:16:05:4c"}
    assert vf_guids(newlink(vf(0, trust=1, spoof=0, state=2, low=10, high=1000))) == {}


def test_the_guid_of_a_vf_is_sent_as_the_kernel_reads_it() -> None:
    given = ("IFLA_VF_IB_NODE_GUID", {"vf": 3, "ib_node_guid": "0e:42:a1:03:02:16:05:4c"})
    message = ifinfmsg()
    message["attrs"] = [("IFLA_VFINFO_LIST", {"attrs": [("IFLA_VF_INFO", {"attrs": [given]})]})]
    message.encode()
    assert struct.pack("@IQ", 3, 0x0E42A1030216054C) in bytes(message.data)


def test_the_kernels_list_of_vfs_is_decoded() -> None:
    unknown = 0xFFFF_FFFF
    message = newlink(
        vf(0, trust=1, spoof=0, state=2, low=10, high=1000),
        vf(1, trust=unknown, spoof=unknown, state=0, low=0, high=0),
    )
    assert vf_settings(message) == {
        0: VfSettings(
            trust=True, spoof_check=False, link_state="disable", min_tx_rate_mbps=10, max_tx_rate_mbps=1000
        ),
        1: VfSettings(link_state="auto", min_tx_rate_mbps=0, max_tx_rate_mbps=0),
    }
