"""The PCI source on drawn sysfs trees of real machines."""

import asyncio
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path

import pytest
from msgspec.structs import replace

from nodeagent.facts.model import Function, Rdma
from nodeagent.health.structural import Fault, find_faults
from nodeagent.host.sysfs import SysfsError, SysfsScan, Tree
from nodeagent.sources import pci_source
from nodeagent.sources.host_netdevs import HostNetdevs
from nodeagent.sources.pci_source import PciFacts, keep_pod_values, read_links, scan, sweep_links, watch_pci
from nodeagent.sources.scan_hints import ScanHint, ScanRequest, Sweep
from tests.support.dead_files import dead
from tests.support.drawn_trees import BROKEN, Link, Machine, grow, routes
from tests.support.manifests import ROOT

PF = "0000:1a:00.0"


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """A PF with two VFs, one for containers and one for virtual machines; beside it a bridge and a GPU."""
    machine = Machine(tmp_path)
    machine.draw("/sys/class/dmi/id/product_name", "DGXH100")
    machine.function("0000:15:01.0", "pci0000:15", **{"class": "0x060400"})
    machine.function("0000:1b:00.0", **{"class": "0x030200"})
    machine.function(PF, sriov_numvfs="2", sriov_totalvfs="16")
    machine.netdev("enp26s0f0np0", PF)
    machine.rdma(PF, 0)
    container = machine.vf(PF, 0)
    machine.netdev("enp26s0f0v0", container, address="02:00:00:00:00:01", phys_port_name="")
    machine.rdma(container, 3)
    guest = machine.vf(PF, 1)
    machine.drive(guest, "vfio-pci")
    machine.draw(f"{machine.folders[guest]}/iommu_group", Link("../../../../kernel/iommu_groups/45"))
    machine.draw("/sys/kernel/iommu_groups/45/type", "DMA")
    return machine


def scanned(machine: Machine) -> PciFacts:
    return scan(Tree(machine.root))


def test_an_infiniband_pf_without_a_netdev_has_a_link_only_as_rdma_device(machine: Machine) -> None:
    (pf,) = (function for function in scanned(machine).functions if function.pci_address == PF)
    dark = replace(pf, netdev=None, link_type="infiniband", rdma=None)
    assert read_links(SysfsScan(Tree(machine.root)), (dark,), HostNetdevs({})) == ()


def test_the_port_name_of_a_vf_does_not_hide_its_netdev(machine: Machine) -> None:
    """A representor has such a name; only that of a PF tells the uplink from them."""
    machine.draw("/sys/class/net/enp26s0f0v0/phys_port_name", "pf0vf0")
    vf = next(function for function in scanned(machine).functions if function.vf_index == 0)
    assert vf.netdev == "enp26s0f0v0"


def test_all_values_of_a_pf_are_read(machine: Machine) -> None:
    facts = scanned(machine)
    pf = facts.functions[0]
    assert facts.product == "DGXH100"
    assert facts.unreadable == ()
    assert (pf.pci_address, pf.vendor, pf.device, pf.driver) == (PF, "15b3", "1021", "mlx5_core")
    assert (pf.netdev, pf.link_type, pf.parent, pf.vf_index) == ("enp26s0f0np0", "ethernet", None, None)
    assert (pf.numa_node, pf.num_vfs, pf.total_vfs) == (0, 2, 16)
    assert pf.pci_path == ("pci0000:15", "0000:15:01.0", PF)
    assert pf.rdma == Rdma(
        "mlx5_0", "/dev/infiniband/uverbs0", "/dev/infiniband/umad0", "/dev/infiniband/issm0"
    )


def test_vfs_have_their_pf_their_index_and_their_use(machine: Machine) -> None:
    _, container, guest = scanned(machine).functions
    assert [(vf.parent, vf.vf_index, vf.link_type) for vf in (container, guest)] == [
        (PF, 0, "ethernet"),
        (PF, 1, "ethernet"),
    ]
    assert (container.netdev, container.vfio_group, container.num_vfs) == ("enp26s0f0v0", None, None)
    assert container.rdma is not None
    assert container.rdma.uverbs == "/dev/infiniband/uverbs3"
    assert (guest.driver, guest.netdev, guest.rdma, guest.vfio_group) == ("vfio-pci", None, None, "45")


def test_only_the_pf_has_a_link(machine: Machine) -> None:
    (link,) = scanned(machine).links
    assert (link.netdev, link.pci_address, link.mac) == ("enp26s0f0np0", PF, "a0:88:c2:00:00:01")
    assert (link.admin_up, link.carrier, link.operstate) == (True, True, "up")
    assert (link.speed_mbps, link.mtu, link.default_route) == (400_000, 9000, False)


def test_two_scans_of_the_same_machine_are_equal(machine: Machine) -> None:
    assert scanned(machine) == scanned(machine)


def test_without_an_iommu_the_group_has_the_prefix_of_its_device_node(machine: Machine) -> None:
    machine.draw("/sys/kernel/iommu_groups/45/name", "vfio-noiommu")
    assert scanned(machine).functions[2].vfio_group == "noiommu-45"


def test_representors_are_not_the_link_of_their_pf(machine: Machine) -> None:
    machine.netdev("eth0", PF, phys_port_name="pf0vf0")
    machine.netdev("eth1", PF, phys_port_name="c1pf0sf88")
    machine.netdev("eth2", PF, phys_port_name="7")
    assert scanned(machine).functions[0].netdev == "enp26s0f0np0"
    machine.move_away("enp26s0f0np0")
    facts = scanned(machine)
    assert facts.functions[0].netdev is None
    assert facts.links == ()


def test_a_partition_of_ipoib_is_not_the_link_of_its_pf(machine: Machine) -> None:
    machine.function("0000:3a:00.0", **{"class": "0x020700"})
    machine.netdev("ibp58s0.8001", "0000:3a:00.0", type="32")
    machine.netdev("ibp58s0", "0000:3a:00.0", type="32")
    assert scanned(machine).functions[-1].netdev == "ibp58s0"


def test_a_virtio_nic_has_its_netdev_one_level_below(machine: Machine) -> None:
    folder = machine.function("0000:00:03.0", "pci0000:00", vendor="0x1af4", device="0x1041")
    machine.folders["virtio2"] = f"{folder}/virtio2"
    machine.netdev("eth0", "virtio2", speed="-1")
    facts = scanned(machine)
    assert facts.functions[0].netdev == "eth0"
    assert [link.speed_mbps for link in facts.links] == [400_000, None]


def test_on_infiniband_the_port_defines_the_link_and_not_ipoib(machine: Machine) -> None:
    machine.function("0000:3a:00.0", **{"class": "0x020700"})
    machine.netdev("ibp58s0", "0000:3a:00.0", type="32", flags="0x1002", operstate="down", mtu="4092")
    machine.rdma("0000:3a:00.0", 4)
    facts = scanned(machine)
    link = facts.links[-1]
    assert facts.functions[-1].link_type == "infiniband"
    assert (link.netdev, link.admin_up, link.carrier, link.speed_mbps) == ("ibp58s0", False, True, 400_000)
    machine.draw(
        f"{machine.folders['0000:3a:00.0']}/infiniband/mlx5_4/ports/1", {"state": "2: INIT", "rate": "odd"}
    )
    link = scanned(machine).links[-1]
    assert (link.carrier, link.speed_mbps) == (False, None)


def test_an_infiniband_pf_without_ipoib_has_a_link_named_by_its_rdma_device(machine: Machine) -> None:
    machine.function("0000:3a:00.0", **{"class": "0x020700"})
    machine.rdma("0000:3a:00.0", 4, rate="2.5 Gb/sec (1X SDR)")
    link = scanned(machine).links[-1]
    assert (link.netdev, link.carrier, link.mac, link.speed_mbps) == ("mlx5_4", True, None, 2500)


def test_an_efa_has_the_link_of_its_port_and_by_design_no_netdev(machine: Machine) -> None:
    """As ``efa_query_port`` and ``efa_port_link_layer`` make the files: link_layer is "Unknown"."""
    efa = "0000:3a:00.0"
    machine.function(efa, vendor="0x1d0f", device="0xefa2")
    machine.rdma(
        efa, 4, "rdmap58s0", link_layer="Unknown", phys_state="5: LinkUp", rate="100 Gb/sec (4X EDR)"
    )
    machine.draw(f"{machine.folders[efa]}/driver", Link("../../../../bus/pci/drivers/efa"))
    facts = scanned(machine)
    link = facts.links[-1]
    assert (link.netdev, link.admin_up, link.carrier, link.speed_mbps) == ("rdmap58s0", True, True, 100_000)
    assert efa not in find_faults(facts.functions, facts.links)[1], "it was unknown for ever"
    assert sweep_links(Tree(machine.root), facts.functions, facts.links) == facts.links
    machine.unlink(f"{machine.folders[efa]}/driver")
    facts = scanned(machine)
    assert [reason.key for reason in find_faults(facts.functions, facts.links)[1][efa]] == ["driver_unbound"]


def test_an_ethernet_pf_whose_netdev_is_away_has_no_link_by_its_rdma_device(machine: Machine) -> None:
    machine.rdma(PF, 4)
    machine.move_away("enp26s0f0np0")
    assert scanned(machine).links == ()


def test_the_rdma_device_with_verbs_is_used(machine: Machine) -> None:
    pf = "0000:0b:00.0"
    machine.function(pf, **{"class": "0x020700"})
    machine.rdma(pf, 10, "mlx5_0")
    machine.draw(machine.folders[pf], {"infiniband/a_smi1/ports/1/state": "4: ACTIVE"})
    machine.draw(machine.folders[pf], {"infiniband_mad": {"umad9/ibdev": "a_smi1", "issm9/ibdev": "a_smi1"}})
    assert scanned(machine).functions[0].rdma == Rdma(
        "mlx5_0", "/dev/infiniband/uverbs10", "/dev/infiniband/umad10", "/dev/infiniband/issm10"
    )


def test_a_vdpa_device_belongs_to_its_parent_function(machine: Machine) -> None:
    vf = scanned(machine).functions[1].pci_address
    folder = f"{machine.folders[vf]}/vdpa0"
    machine.draw(f"{folder}/vhost-vdpa-2/dev", "511:2")
    machine.draw("/sys/bus/vdpa/devices/vdpa0", Link("../../../.." + folder))
    machine.draw("/sys/devices/virtual/vdpasim/vdpa1/vhost-vdpa-3/dev", "511:3")
    machine.draw("/sys/bus/vdpa/devices/vdpa1", Link("../../../devices/virtual/vdpasim/vdpa1"))
    assert [function.vdpa for function in scanned(machine).functions] == [None, "/dev/vhost-vdpa-2", None]


@pytest.mark.parametrize("speed", ["-1", "4294967295", "0", BROKEN])
def test_an_unknown_speed_is_none(machine: Machine, speed: object) -> None:
    path = f"{machine.folders[PF]}/net/enp26s0f0np0/speed"
    machine.unlink(path)
    machine.draw(path, speed)
    assert scanned(machine).links[0].speed_mbps is None


def test_the_carrier_of_an_admin_down_link_is_not_read(machine: Machine) -> None:
    path = f"{machine.folders[PF]}/net/enp26s0f0np0"
    for name in ("carrier", "speed"):
        machine.unlink(f"{path}/{name}")
        machine.draw(f"{path}/{name}", BROKEN)  # EINVAL on the real machine
    machine.draw(path, {"flags": "0x1002", "operstate": "down"})
    facts = scanned(machine)
    assert (facts.links[0].admin_up, facts.links[0].carrier, facts.unreadable) == (False, None, ())


def test_no_numa_node_is_none(machine: Machine) -> None:
    machine.draw(f"{machine.folders[PF]}/numa_node", "-1")
    assert scanned(machine).functions[0].numa_node is None


# The host's default route


@pytest.mark.parametrize("upper", ["bond0", "br0", "bond0.100"])
def test_the_default_route_is_followed_down_to_the_nic(machine: Machine, upper: str) -> None:
    machine.netdev(upper)
    machine.lower(upper, "enp26s0f0np0")
    machine.draw("/proc/net/route", routes(upper))
    assert scanned(machine).links[0].default_route


def test_a_vlan_on_a_bridge_on_a_bond_is_followed_all_the_way(machine: Machine) -> None:
    for upper, lower in (("bond0", "enp26s0f0np0"), ("br0", "bond0"), ("br0.7", "br0")):
        machine.netdev(upper)
        machine.lower(upper, lower)
    machine.draw("/proc/net/route", routes("br0.7"))
    assert scanned(machine).links[0].default_route


@pytest.mark.parametrize(
    ("lowers", "bonded"),
    [
        ({"bond0": "enp26s0f0np0"}, True),
        ({"bond0.100": "bond0", "bond0": "enp26s0f0np0"}, True),
        ({"br0": "bond0", "bond0": "enp26s0f0np0"}, True),
        ({"br0": "enp26s0f0np0"}, False),
        ({"enp26s0f0np0.7": "enp26s0f0np0"}, False),
    ],
)
def test_a_port_of_a_bond_with_the_default_route_is_told_from_a_nic_of_its_own(
    machine: Machine, lowers: dict[str, str], bonded: bool
) -> None:
    for upper in lowers:
        machine.netdev(upper, **({"bonding/mode": "802.3ad 4"} if upper == "bond0" else {}))
    for upper, lower in lowers.items():
        machine.lower(upper, lower)
    machine.draw("/proc/net/route", routes(next(iter(lowers))))
    facts = scanned(machine)
    (link,) = facts.links
    assert (link.default_route, link.bonded) == (True, bonded)
    assert sweep_links(Tree(machine.root), facts.functions, (replace(link, carrier=None),)) == (link,)
    machine.draw("/proc/net/route", routes("enp26s0f0np0", next(iter(lowers))))
    (link,) = scanned(machine).links
    assert not link.bonded, "a route of its own too"


@pytest.mark.parametrize("upper", [{"bonding/slaves": "eth7 enp26s0f0np0"}, {"brif/enp26s0f0np0": {}}])
def test_without_links_to_lower_netdevs_the_files_of_bond_and_bridge_are_read(
    machine: Machine, upper: dict[str, str]
) -> None:
    machine.netdev("upper0", **upper)
    machine.draw("/proc/net/route", routes("upper0"))
    assert scanned(machine).links[0].default_route


def test_an_open_vswitch_bridge_leads_to_the_port_with_its_mac_address(machine: Machine) -> None:
    machine.function("0000:2a:00.0")
    machine.netdev("eth5", "0000:2a:00.0", address="a0:88:c2:00:00:05")
    machine.netdev("ovs-system", address="fe:00:00:00:00:00")
    for port in ("enp26s0f0np0", "eth5"):
        machine.lower("ovs-system", port)
    machine.netdev("br-ex", address="a0:88:c2:00:00:05")
    machine.draw("/proc/net/route", routes("br-ex"))
    assert {link.netdev: link.default_route for link in scanned(machine).links} == {
        "enp26s0f0np0": False,
        "eth5": True,
    }


def test_an_ipv6_default_route_counts_but_a_reject_route_does_not(machine: Machine) -> None:
    zero = "0" * 32
    row = zero + " 00 " + zero + " 00 fe80000000000000000000000000fffe 00000400 00000001 00000000 {} {:>8}"
    machine.draw("/proc/net/ipv6_route", row.format("00200200", "enp26s0f0np0"))
    assert not scanned(machine).links[0].default_route
    machine.draw("/proc/net/ipv6_route", row.format("00450003", "enp26s0f0np0"))
    assert scanned(machine).links[0].default_route


@pytest.mark.parametrize("table", ["", "Iface", "a b", "eth0 00000000 x no 0 0 0 00000000", "\n\n"])
def test_a_malformed_route_table_names_no_netdev(machine: Machine, table: str) -> None:
    machine.draw("/proc/net/route", table)
    machine.draw("/proc/net/ipv6_route", table)
    assert not scanned(machine).links[0].default_route


def test_a_route_to_half_of_all_addresses_is_not_a_default_route(machine: Machine) -> None:
    """VPNs set such routes: 0.0.0.0/1."""
    machine.draw(
        "/proc/net/route", routes("enp26s0f0np0").replace("\t00000000\t0\t0\t0", "\t00000080\t0\t0\t0")
    )
    assert not scanned(machine).links[0].default_route


def test_a_loop_of_lower_netdevs_does_not_hang_the_scan(machine: Machine) -> None:
    for name in ("a0", "b0"):
        machine.netdev(name)
    machine.lower("a0", "b0")
    machine.lower("b0", "a0")
    machine.draw("/proc/net/route", routes("a0"))
    assert not scanned(machine).links[0].default_route


# Errors


def test_a_root_without_sys_is_an_error_with_its_path(tmp_path: Path) -> None:
    with pytest.raises(SysfsError, match=f"{tmp_path} has no /sys"):
        scan(Tree(tmp_path))


def test_a_machine_without_pci_has_no_functions(tmp_path: Path) -> None:
    assert scan(Tree(grow(tmp_path, {"sys": {}}))) == PciFacts()


def test_an_unreadable_list_of_devices_is_an_error_and_not_an_empty_machine(tmp_path: Path) -> None:
    grow(tmp_path, {"sys/bus/pci": {"devices": Link("devices")}})
    with pytest.raises(SysfsError, match="/sys/bus/pci/devices"):
        scan(Tree(tmp_path))


@pytest.mark.parametrize(
    ("name", "left"),
    [("numa_node", "numa_node"), ("sriov_numvfs", "num_vfs"), ("sriov_totalvfs", "total_vfs")],
)
def test_an_unreadable_attribute_is_reported_and_the_rest_is_kept(
    machine: Machine, name: str, left: str
) -> None:
    whole = scanned(machine).functions[0]
    machine.unlink(f"{machine.folders[PF]}/{name}")
    machine.draw(f"{machine.folders[PF]}/{name}", BROKEN)
    facts = scanned(machine)
    assert facts.functions[0] == replace(whole, **{left: None})
    assert facts.unreadable == (f"/sys/bus/pci/devices/{PF}/{name} cannot be read: Is a directory",)


@pytest.mark.parametrize("name", ["flags", "carrier", "operstate", "mtu", "address"])
def test_an_unreadable_attribute_of_a_link_is_reported(machine: Machine, name: str) -> None:
    path = f"{machine.folders[PF]}/net/enp26s0f0np0/{name}"
    machine.unlink(path)
    machine.draw(path, BROKEN)
    facts = scanned(machine)
    assert len(facts.functions) == 3
    assert facts.unreadable == (f"/sys/class/net/enp26s0f0np0/{name} cannot be read: Is a directory",)


@pytest.mark.parametrize("name", ["class", "vendor", "device"])
def test_a_function_without_an_identity_is_left_out_and_reported(machine: Machine, name: str) -> None:
    vf = scanned(machine).functions[1].pci_address
    machine.unlink(f"{machine.folders[vf]}/{name}")
    facts = scanned(machine)
    assert vf not in [function.pci_address for function in facts.functions]
    assert len(facts.functions) == 2
    assert [sentence for sentence in facts.unreadable if sentence.startswith(vf)]


def test_a_vf_without_its_pf_stays_and_is_reported(machine: Machine) -> None:
    machine.vanish(PF)
    facts = scanned(machine)
    assert [function.parent for function in facts.functions] == [PF, PF]
    assert all(f"is a VF of {PF}, which does not exist" in sentence for sentence in facts.unreadable)
    assert len(facts.unreadable) == 2


def test_vfs_that_their_pf_does_not_list_yet_have_no_index(machine: Machine) -> None:
    before = scanned(machine)
    machine.unlink(f"{machine.folders[PF]}/virtfn1")
    facts = scanned(machine)
    assert [function.vf_index for function in facts.functions] == [None, 0, None]
    assert len(facts.unreadable) == 1
    assert "does not list it" in facts.unreadable[0]
    assert keep_pod_values(before.functions, facts.functions) == before.functions


def test_dangling_links_to_removed_devices_are_not_an_error(machine: Machine) -> None:
    machine.draw(f"{machine.folders[PF]}/virtfn7", Link("../0000:1a:00.7"))
    machine.draw("/sys/bus/pci/devices/0000:77:00.0", Link("../../../devices/pci0000:77/0000:77:00.0"))
    facts = scanned(machine)
    assert len(facts.functions) == 3
    assert facts.unreadable == ("0000:77:00.0 is left out: it has no class that can be read",)


def test_the_machine_that_runs_the_tests_can_be_read() -> None:
    facts = scan(Tree("/"))
    netdevs = {path.name for path in Path("/sys/class/net").iterdir()}
    assert {link.netdev for link in facts.links} <= netdevs
    assert all(Path("/sys/bus/pci/devices", function.pci_address).exists() for function in facts.functions)
    assert all(function.pci_path[-1] == function.pci_address for function in facts.functions)


# Values that moved into a pod


def test_a_vf_in_a_pod_keeps_its_rdma_nodes(machine: Machine) -> None:
    before = scanned(machine).functions
    assert [
        f.rdma for f in keep_pod_values(before, [replace(f, rdma=None, netdev=None) for f in before])
    ] == [f.rdma for f in before]


def test_a_pf_whose_netdev_was_moved_away_keeps_its_link_type() -> None:
    """For class 0x0280 only the netdev has the link type."""
    pf = Function("0000:5e:00.0", "1bb5", "1103", "ionic", None, "ethernet", None, None, None, None, ())
    assert keep_pod_values([pf], [replace(pf, link_type=None)]) == (pf,)


@pytest.mark.parametrize("driver", ["vfio-pci", None])
def test_a_vf_with_another_driver_loses_the_old_values(machine: Machine, driver: str | None) -> None:
    before = scanned(machine).functions
    now = tuple(replace(function, rdma=None, driver=driver) for function in before)
    assert keep_pod_values(before, now) == now
    assert keep_pod_values(now, now) == now


def test_a_removed_function_is_not_kept(machine: Machine) -> None:
    before = scanned(machine).functions
    assert keep_pod_values(before, before[:1]) == before[:1]


# The sweep of the links


def test_a_sweep_equals_the_scan_if_nothing_changed(machine: Machine) -> None:
    machine.draw("/proc/net/route", routes("enp26s0f0np0"))
    facts = scanned(machine)
    assert sweep_links(Tree(machine.root), facts.functions, facts.links) == facts.links


def test_a_sweep_of_a_renamed_netdev_keeps_neither_the_old_name_nor_its_permanent_address(
    machine: Machine,
) -> None:
    facts = scanned(machine)
    (link,) = facts.links
    old = replace(link, netdev="eth7", permanent_mac="02:00:00:00:00:07")
    assert sweep_links(Tree(machine.root), facts.functions, (old,)) == facts.links


def test_a_sweep_reads_carrier_admin_state_and_removed_netdevs(machine: Machine) -> None:
    facts, tree = scanned(machine), Tree(machine.root)
    path = f"{machine.folders[PF]}/net/enp26s0f0np0"
    machine.draw(path, {"carrier": "0", "operstate": "down"})
    (down,) = sweep_links(tree, facts.functions, facts.links)
    assert (down.carrier, down.operstate) == (False, "down")
    machine.draw(path, {"carrier": "1", "operstate": "up", "speed": "200000"})
    assert [link.speed_mbps for link in sweep_links(tree, facts.functions, (down,))] == [200_000]
    machine.draw(path, {"flags": "0x1002"})
    machine.unlink(f"{path}/carrier")  # the kernel refuses to read it
    assert [link.admin_up for link in sweep_links(tree, facts.functions, facts.links)] == [False]
    machine.move_away("enp26s0f0np0")
    assert sweep_links(tree, facts.functions, facts.links) == ()


_VETH = """
import subprocess
from nodeagent.host.sysfs import Tree
from nodeagent.facts.model import Function
from nodeagent.sources.pci_source import sweep_links

def run(command):
    subprocess.run(command.split(), check=True)

run("mount -t sysfs sysfs /sys")
run("ip link add v0 type veth peer name v1")
pf = Function("0000:01:00.0", "15b3", "1021", "veth", "v0", "ethernet", None, None, None, 0, ())
links = ()
for command in ("v1 up", "v0 up", "v1 down", "v1 up", "v0 down", "v0 up"):
    run(f"ip link set {command}")
    links = sweep_links(Tree("/"), (pf,), links)
    assert links == sweep_links(Tree("/"), (pf,), links)
    print(command, links[0].admin_up, links[0].carrier)
"""


@pytest.mark.needs("root")
def test_a_sweep_of_a_real_link_sees_each_change_of_its_administrative_state_and_carrier() -> None:
    """The kernel must refuse to read the carrier of a link that is set down: the sweep relies on it."""
    unshare = ["unshare", "-n", "-m", "--propagation", "private"]
    done = subprocess.run(
        [*unshare, sys.executable, "-c", _VETH], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == [
        "v1 up False None",
        "v0 up True True",
        "v1 down True False",
        "v1 up True True",
        "v0 down False None",
        "v0 up True True",
    ]


# The loop


class Published(asyncio.Queue[PciFacts]):
    """The published facts; the time limit is much shorter than the scan interval."""

    async def get(self) -> PciFacts:
        return await asyncio.wait_for(super().get(), 5)


virtual = pytest.mark.usefixtures("virtual_time")

Start = Callable[..., Awaitable[tuple[Published, ScanRequest]]]


@pytest.fixture
async def start(machine: Machine):
    """Start a watch of the machine; the first publication is taken off the queue."""
    tasks = []

    async def started(
        *hints: ScanHint, interval_s: float = 60.0, sweep: Sweep | None = None
    ) -> tuple[Published, ScanRequest]:
        published = Published()
        request = ScanRequest()
        watching = watch_pci(
            Tree(machine.root), [request, *hints], published.put_nowait, interval_s, sweep or Sweep()
        )
        tasks.append(asyncio.create_task(watching))
        await published.get()
        return published, request

    yield started
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def faults(facts: PciFacts) -> list[list[str]]:
    """The keys of the structural faults of each function."""
    return [
        [fault.key for fault in facts.faults.get(function.pci_address, ())] for function in facts.functions
    ]


@virtual
async def test_the_first_scan_is_published_at_once_with_its_faults(machine: Machine) -> None:
    published = Published()
    machine.draw(f"{machine.folders[PF]}/net/enp26s0f0np0/carrier", "0")
    task = asyncio.create_task(watch_pci(Tree(machine.root), [], published.put_nowait))
    facts = await published.get()
    task.cancel()
    assert faults(facts) == [[Fault.CARRIER_DOWN], [], []]
    with pytest.raises(asyncio.CancelledError):
        await task


@virtual
async def test_a_scan_request_publishes_new_facts_before_the_interval_ends(
    machine: Machine, start: Start
) -> None:
    published, request = await start()
    machine.draw(f"{machine.folders[PF]}/sriov_numvfs", "5")
    request.request()
    assert (await published.get()).functions[0].num_vfs == 5


@virtual
async def test_the_interval_alone_publishes_new_facts(machine: Machine, start: Start) -> None:
    published, _ = await start(interval_s=0.01)
    machine.vanish("0000:1a:00.1")
    facts = await published.get()
    while not facts.faults:
        facts = await published.get()
    assert faults(facts)[1] == [Fault.DEVICE_MISSING]


@virtual
async def test_the_sweep_finds_a_carrier_lost_after_the_hint(machine: Machine, start: Start) -> None:
    published, request = await start(sweep=Sweep(scan_gap_s=3600.0))
    request.request()
    machine.draw(f"{machine.folders[PF]}/net/enp26s0f0np0/mtu", "1500")  # a sweep does not read this
    await asyncio.sleep(0.1)  # the hint is handled, and the second loss has no hint
    machine.draw(f"{machine.folders[PF]}/net/enp26s0f0np0/carrier", "0")
    facts = await published.get()
    assert faults(facts) == [[Fault.CARRIER_DOWN], [], []]
    machine.draw(f"{machine.folders[PF]}/net/enp26s0f0np0/carrier", "1")
    facts = await published.get()
    assert faults(facts) == [[], [], []]


async def test_a_carrier_lost_during_a_scan_does_not_wait_for_its_end(
    machine: Machine, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    published, request = await start(interval_s=0.05)
    read, go_on = threading.Event(), threading.Event()

    def slow(tree: Tree, node_addresses: Collection[str]) -> PciFacts:
        facts = scan(tree, node_addresses)
        read.set()
        assert go_on.wait(20)
        return facts

    monkeypatch.setattr(pci_source, "scan", slow)
    try:
        assert await asyncio.to_thread(read.wait, 20)
        while not published.empty():
            published.get_nowait()
        machine.draw(f"{machine.folders[PF]}/net/enp26s0f0np0/carrier", "0")
        request.request()
        assert faults(await published.get()) == [[Fault.CARRIER_DOWN], [], []]
    finally:
        go_on.set()
    assert faults(await published.get()) == [[Fault.CARRIER_DOWN], [], []], "the scan read it before its loss"


@virtual
async def test_a_scan_waits_after_a_lost_carrier(machine: Machine, start: Start) -> None:
    published, request = await start(sweep=Sweep(for_s=60.0, scan_gap_s=0.0, news_s=30.0))
    machine.draw(f"{machine.folders[PF]}/net/enp26s0f0np0/carrier", "0")
    request.request()
    assert faults(await published.get())[0] == [Fault.CARRIER_DOWN]
    await asyncio.sleep(0.3)  # a scan would be published
    assert published.empty()


@virtual
async def test_links_that_change_again_and_again_do_not_put_the_scan_off(
    machine: Machine, start: Start
) -> None:
    published, request = await start(sweep=Sweep(for_s=0.2, scan_gap_s=0.0, news_s=30.0))
    machine.draw(f"{machine.folders[PF]}/sriov_numvfs", "5")  # a sweep does not read this
    facts, carrier = None, "1"
    async with asyncio.timeout(30):
        while facts is None or facts.functions[0].num_vfs != 5:
            carrier = "0" if carrier == "1" else "1"
            machine.draw(f"{machine.folders[PF]}/net/enp26s0f0np0/carrier", carrier)
            request.request()
            facts = await published.get()


@virtual
async def test_a_missing_vf_stays_missing_when_a_sweep_finds_a_change(machine: Machine, start: Start) -> None:
    published, request = await start()
    machine.vanish("0000:1a:00.1")
    request.request()
    facts = await published.get()
    carrier = "1"
    for _ in range(3):
        carrier = "0" if carrier == "1" else "1"
        machine.draw(f"{machine.folders[PF]}/net/enp26s0f0np0/carrier", carrier)
        facts = await published.get()
        assert faults(facts)[1] == [Fault.DEVICE_MISSING]


@virtual
async def test_a_sweep_without_a_change_publishes_nothing(start: Start) -> None:
    published, request = await start(sweep=Sweep(scan_gap_s=3600.0))
    request.request()
    await asyncio.sleep(0.1)
    assert published.empty()


@virtual
async def test_a_burst_of_a_hundred_hints_causes_one_scan(start: Start) -> None:
    published, request = await start()
    for _ in range(100):
        request.request()
        await asyncio.sleep(0)
    await published.get()
    await asyncio.sleep(0.05)
    assert published.empty()


@virtual
async def test_a_pf_that_comes_back_has_no_fault(machine: Machine, start: Start) -> None:
    published, request = await start()
    link = machine.root / f"sys/bus/pci/devices/{PF}"
    target = link.readlink()
    link.unlink()
    request.request()
    facts = await published.get()
    while len(facts.unreadable) == 0:
        facts = await published.get()
    assert faults(facts) == [[Fault.DEVICE_MISSING], [], []]
    link.symlink_to(target)
    request.request()
    while faults(facts)[0]:
        facts = await published.get()
    assert faults(facts) == [[], [], []]


@virtual
async def test_a_watch_that_continues_an_earlier_one_keeps_its_facts(machine: Machine) -> None:
    before = scan(Tree(machine.root))
    machine.vanish("0000:1a:00.1")
    published = Published()
    task = asyncio.create_task(watch_pci(Tree(machine.root), [], published.put_nowait, before=before))
    facts = await published.get()
    task.cancel()
    assert faults(facts) == [[], [Fault.DEVICE_MISSING], []]
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.needs("root", "fuse")
async def test_a_hanging_driver_does_not_block_the_loop(machine: Machine, start: Start) -> None:
    published, request = await start()
    path = machine.root / f"{machine.folders[PF]}/sriov_numvfs".lstrip("/")
    path.write_text("3\n")
    with dead(path):
        request.request()
        ticks = 0
        while ticks < 50:
            await asyncio.sleep(0.01)
            request.request()
            ticks += 1
        assert published.empty()
    assert (await published.get()).functions[0].num_vfs == 3


@virtual
async def test_a_failing_hint_ends_the_watch_with_its_error(machine: Machine) -> None:
    class Broken:
        async def wait(self) -> None:
            raise SysfsError("no more hints")

    with pytest.raises(SysfsError, match="no more hints"):
        await watch_pci(Tree(machine.root), [Broken()], lambda _: None)


@virtual
async def test_a_machine_that_loses_its_sys_ends_the_watch(tmp_path: Path) -> None:
    with pytest.raises(SysfsError, match="has no /sys"):
        await watch_pci(Tree(tmp_path), [], lambda _: None)


def test_the_gpus_on_the_bus_are_facts_without_their_audio_functions_switches_and_virtual_gpus(
    machine: Machine,
) -> None:
    nvidia = {"vendor": "0x10de", "device": "0x2330"}
    machine.function("0000:1c:00.0", **nvidia, **{"class": "0x030200", "numa_node": "1"})
    machine.drive("0000:1c:00.0", None)
    machine.function("0000:1d:00.0", **nvidia, **{"class": "0x030000", "numa_node": "-1"})
    machine.drive("0000:1d:00.0", "nouveau")
    machine.function("0000:1d:00.1", **nvidia, **{"class": "0x040300"})
    machine.function("0000:1e:00.0", **nvidia, **{"class": "0x068000"})
    virtual = machine.function("0000:1c:00.4", **nvidia, **{"class": "0x030200"})
    machine.draw(f"{virtual}/physfn", Link("../0000:1c:00.0"))
    gpus = scanned(machine).gpus
    assert [(gpu.pci_address, gpu.driver, gpu.numa_node) for gpu in gpus] == [
        ("0000:1c:00.0", None, 1),
        ("0000:1d:00.0", "nouveau", None),
    ]
    assert gpus[0].pci_path[-1] == "0000:1c:00.0"
