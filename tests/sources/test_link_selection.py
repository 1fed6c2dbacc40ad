"""Select the netdevs that are links."""

from __future__ import annotations

import pytest

from nodeagent.facts.model import Function
from nodeagent.host.netlink.netdevs import Netdev
from nodeagent.sources.link_selection import select
from nodeagent.sources.source_settings import LinkSelect


def netdev(
    name: str, *, kind: str | None = None, bus: str | None = None, pci: str | None = None, hardware: int = 1
) -> Netdev:
    return Netdev(
        1, name, hardware, kind, b"\2\0\0\0\0\1", None, 1500, True, True, bus or ("pci" if pci else None), pci
    )


def function(
    pci: str, name: str | None, *, parent: str | None = None, driver="mlx5_core", link_type="ethernet"
):
    return Function(pci, "15b3", "1021", driver, name, link_type, None, None, None, 0, (), parent)


PF, VF, IB, ICE = "0000:1a:00.0", "0000:1a:00.3", "0000:3b:00.0", "0001:01:00.0"
FUNCTIONS = (
    function(PF, "ens1np0"),
    function(VF, "ens1v1", parent=PF),
    function(IB, "ibp59", link_type="infiniband"),
    function(ICE, "eno1", driver="ice"),
)
NETDEVS = (
    netdev("bond0", kind="bond"),
    netdev("br0", kind="bridge"),
    netdev("eno1", pci=ICE),
    netdev("ens1np0", pci=PF),
    netdev("ens1r0", pci=PF),  # the representor of the VF
    netdev("ens1v1", pci=VF),
    netdev("eth0", bus="virtio"),
    netdev("ibp59", pci=IB, hardware=32),
    netdev("lo", hardware=772),
    netdev("tap0", kind="tun"),
    netdev("usb0", bus="usb"),
    netdev("veth1", kind="veth"),
)
PHYSICAL = ["eno1", "ens1np0", "eth0"]


@pytest.mark.parametrize(
    ("wanted", "names"),
    [
        (LinkSelect(), PHYSICAL),
        (LinkSelect(exclude=("eno*",)), ["ens1np0", "eth0"]),
        (LinkSelect(exclude=(PF,)), ["eno1", "eth0"]),
        (LinkSelect(netdevs=("veth*", "tap0")), ["tap0", "veth1"]),
        (LinkSelect(netdevs=("usb0", "bond0", "lo")), ["bond0", "usb0"]),
        (LinkSelect(netdevs=("ens1*",)), ["ens1np0", "ens1r0", "ens1v1"]),
        (LinkSelect(netdevs=("ens1*",), exclude=("*v1", "*r0")), ["ens1np0"]),
        (LinkSelect(drivers=("mlx5_*",)), ["ens1np0"]),
        (LinkSelect(drivers=("mlx5_*", "veth")), ["ens1np0", "veth1"]),
        (LinkSelect(drivers=("ice",), netdevs=("ens*",)), []),
        (LinkSelect(pci_addresses=("0000:1a:00.*",)), ["ens1np0"]),
        (LinkSelect(pci_addresses=(VF,)), ["ens1v1"]),
        (LinkSelect(pci_addresses=("*",)), ["eno1", "ens1np0"]),
    ],
)
def test_the_selected_netdevs_are_the_links(wanted, names):
    assert [one.name for one in select(wanted, NETDEVS, FUNCTIONS)] == names


def test_a_link_has_its_function_and_a_software_netdev_its_kind():
    pf, veth = select(LinkSelect(netdevs=("ens1np0", "veth1")), NETDEVS, FUNCTIONS)
    assert (pf.pci_address, pf.driver) == (PF, "mlx5_core")
    assert (veth.pci_address, veth.driver) == (None, "veth")


def test_pfs_are_links_without_parent_information_too():
    bare = tuple(netdev(one.name, kind=one.kind, hardware=one.hardware) for one in NETDEVS)
    assert [one.name for one in select(LinkSelect(), bare, FUNCTIONS)] == ["eno1", "ens1np0"]
