"""An adapter in sysfs: RDMA ports, GIDs and counters, the PCIe link, AER; and the driver's ioctls."""

from __future__ import annotations

import errno
import os
from collections import Counter

import pytest

from nodeagent.host import pcie_link
from nodeagent.host.ethtool import Ethtool, EthtoolError
from nodeagent.host.pcie_link import PcieLinks
from nodeagent.host.rdma_ports import RdmaPorts
from nodeagent.host.sysfs import UNREADABLE_PATHS, OpenAttributes, SysfsError, Tree
from tests.support.drawn_trees import Machine
from tests.support.namespaces import Netns, veth

PF = "0000:18:00.0"
PATH = ("pci0000:15", "0000:15:01.0", PF)
PORT = f"/sys/devices/pci0000:15/0000:15:01.0/{PF}/infiniband/mlx5_0"


def machine(tmp_path, **port: str) -> Machine:
    made = Machine(tmp_path / "root")
    made.function(
        PF,
        current_link_speed="16.0 GT/s PCIe",
        current_link_width="8",
        max_link_speed="32.0 GT/s PCIe",
        max_link_width="16",
        aer_dev_correctable="RxErr 3\nBadTLP 0\nTOTAL_ERR_COR 3",
    )
    made.function(
        "0000:15:01.0",
        "pci0000:15",
        max_link_speed="32.0 GT/s PCIe",
        max_link_width="16",
        **{"class": "0x060400"},
    )
    made.rdma(PF, 0, **port)
    made.draw("/sys/class/infiniband/mlx5_0", "x")
    made.unlink("/sys/class/infiniband/mlx5_0")
    (made.root / "sys/class/infiniband/mlx5_0").symlink_to(
        os.path.relpath(made.root / PORT.lstrip("/"), made.root / "sys/class/infiniband")
    )
    return made


def test_the_pcie_link_is_read_with_its_expected_values(tmp_path):
    made = machine(tmp_path)
    reading = PcieLinks(OpenAttributes(Tree(made.root))).read(PATH)
    assert (reading.gts, reading.width) == (16, 8)
    assert (reading.expected_gts, reading.expected_width) == (32, 16)
    assert reading.errors == {"aer_correctable/RxErr": 3, "aer_correctable/BadTLP": 0}


def test_a_slower_slot_lowers_the_expected_speed(tmp_path):
    made = machine(tmp_path)
    made.draw("/sys/devices/pci0000:15/0000:15:01.0/max_link_speed", "16.0 GT/s PCIe")
    made.draw("/sys/devices/pci0000:15/0000:15:01.0/max_link_width", "8")
    reading = PcieLinks(OpenAttributes(Tree(made.root))).read(PATH)
    assert (reading.expected_gts, reading.expected_width) == (16, 8)


class CountedTree(Tree):
    """Counts the readings of each file."""

    def __init__(self, root) -> None:
        self.readings: Counter[str] = Counter()
        super().__init__(root)

    def data(self, path: str) -> bytes | None:
        self.readings[path] += 1
        return super().data(path)


def test_the_port_above_several_functions_is_read_once_in_each_reading(tmp_path):
    made = machine(tmp_path)
    second = PF.replace(".0", ".1")
    made.function(second, max_link_speed="32.0 GT/s PCIe", max_link_width="16")
    tree = CountedTree(made.root)
    for turn in (1, 2):
        links = PcieLinks(OpenAttributes(tree))
        readings = [links.read((*PATH[:2], function)) for function in (PF, second)]
        assert [reading.expected_gts for reading in readings] == [32, 32]
        port = "/sys/bus/pci/devices/0000:15:01.0"
        assert {path: count for path, count in tree.readings.items() if path.startswith(port)} == {
            f"{port}/max_link_speed": turn,
            f"{port}/max_link_width": turn,
        }


def test_an_unknown_speed_and_an_impossible_width_are_none(tmp_path):
    made = machine(tmp_path)
    made.draw(f"{made.folders[PF]}/current_link_speed", "Unknown")
    made.draw(f"{made.folders[PF]}/current_link_width", "255")
    reading = PcieLinks(OpenAttributes(Tree(made.root))).read(PATH)
    assert (reading.gts, reading.width) == (None, None)
    made.draw(f"{made.folders[PF]}/current_link_width", "wide")
    with pytest.raises(SysfsError, match="wide"):
        PcieLinks(OpenAttributes(Tree(made.root))).read(PATH)


def test_aer_is_read_line_by_line():
    assert pcie_link.aer("RxErr 1\nTOTAL_ERR_COR 1\nhostile\n\x1b[2J\nBad TLP 5\nX -1") == {
        "RxErr": 1,
        "Bad TLP": 5,
    }


def test_a_refused_counter_does_not_affect_the_others(tmp_path):
    made = machine(tmp_path)
    for name, text in {"port_rcv_data": "25", "port_xmit_data": "N/A (no PMA)", "VL15_dropped": "0"}.items():
        made.draw(f"{PORT}/ports/1/counters/{name}", text)
    made.draw(UNREADABLE_PATHS, f"EINVAL {PORT}/ports/1/counters/VL15_dropped")
    ports = RdmaPorts(OpenAttributes(Tree(made.root)))
    names = ("VL15_dropped", "port_rcv_data", "port_xmit_data", "absent")
    assert ports.counters("mlx5_0", names) == {"port_rcv_data": 25}
    assert [path.rpartition("/")[2] for path in ports.refused] == ["VL15_dropped"]
    made.draw(UNREADABLE_PATHS, "")
    assert ports.counters("mlx5_0", names) == {"port_rcv_data": 25}, "it is not asked again"
    ports.forget("mlx5_0")
    assert not ports.refused


def test_the_state_of_a_port_is_read(tmp_path):
    made = machine(tmp_path, link_layer="Ethernet", phys_state="5: LinkUp")
    state = RdmaPorts(OpenAttributes(Tree(made.root))).state("mlx5_0")
    assert (state.active, state.link_layer, state.phys_state, state.node_guid) == (
        True,
        "Ethernet",
        "LinkUp",
        None,
    )
    assert RdmaPorts(OpenAttributes(Tree(made.root))).state("mlx5_9").active is None


def test_gids_are_counted_at_any_index_of_the_table(tmp_path):
    made = machine(tmp_path)
    ports = RdmaPorts(OpenAttributes(Tree(made.root)))
    assert ports.roce_v2_gids("mlx5_0", again=False) is None, "there is no table"

    def gid(place: int, kind: str, value: str) -> None:
        made.draw(f"{PORT}/ports/1/gid_attrs/types/{place}", kind)
        made.draw(f"{PORT}/ports/1/gids/{place}", value)

    empty = ":".join(["0000"] * 8)
    for place in range(4):
        gid(place, "RoCE v2", empty)
    assert ports.roce_v2_gids("mlx5_0", again=False) == 0
    gid(0, "IB/RoCE v1", "fe80::1")
    gid(1, "RoCE v2", "fe80:0000:0000:0000:0000:0000:0000:0001")
    assert ports.roce_v2_gids("mlx5_0", again=False) == 1
    gid(1, "RoCE v2", empty)
    gid(3, "RoCE v2", "fe80:0000:0000:0000:0000:0000:0000:0001")
    assert ports.roce_v2_gids("mlx5_0", again=False) == 1, "after a flap it may be at another place"
    made.draw(UNREADABLE_PATHS, f"EINVAL {PORT}/ports/1/gids/3")
    assert RdmaPorts(OpenAttributes(Tree(made.root))).roce_v2_gids("mlx5_0", again=True) == 0


def test_attributes_of_the_kernel_stay_open():
    attributes = OpenAttributes(Tree("/"))
    try:
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(3):
            assert attributes.text("/sys/class/net/lo/mtu") == "65536"
        assert len(os.listdir("/proc/self/fd")) == before + 1
        assert attributes.text("/sys/class/net/lo/no-such") is None
        with pytest.raises(SysfsError, match=r"speed cannot be read"):
            attributes.text("/sys/class/net/lo/speed")
        attributes.forget("/sys/class/net/lo/")
        assert len(os.listdir("/proc/self/fd")) == before
    finally:
        attributes.close()


@pytest.mark.needs("root", "ip", "nsenter")
def test_the_statistics_and_the_information_of_a_driver_are_read():
    with Netns() as near, Netns() as far:
        veth(near, "v0", far, "w0")
        with near.entered():
            ethtool = Ethtool()
        with ethtool:
            index = near.ifindex("v0")
            statistics = ethtool.statistics("v0", index)
            assert statistics["peer_ifindex"] == far.ifindex("w0")
            assert ethtool.info("v0").driver == "veth"
            # More queues, more statistics: the names that are known no longer fit.
            far.ip("link set w0 down")
            near.ip("link delete v0")
            with pytest.raises(EthtoolError) as gone:
                ethtool.statistics("v0", index)
            assert gone.value.code == errno.ENODEV
            assert "v0" in str(gone.value)


class Growing(Ethtool):
    """A driver with more statistics at each request."""

    count = 2

    def _ioctl(self, netdev, buffer, what):
        import struct

        command = struct.unpack_from("=I", buffer)[0]
        if command == 0x37:
            struct.pack_into("=IIQI", buffer, 0, command, 0, 2, self.count)
        elif command == 0x1B:
            expected = struct.unpack_from("=III", buffer)[2]
            struct.pack_into("=III", buffer, 0, command, 1, self.count)
            for n in range(expected):
                struct.pack_into("32s", buffer, 12 + 32 * n, f"stat{n}".encode())
            self.count += self.grows
        else:
            struct.pack_into("=II", buffer, 0, command, self.count)
            for n in range(min(self.count, len(buffer) - 1)):
                buffer[n + 1] = 10 * n

    grows = 0


def test_names_and_numbers_of_different_counts_are_read_again():
    driver = Growing()
    assert driver.statistics("eth0", 1) == {"stat0": 0, "stat1": 10}
    driver.count = 3
    assert driver.statistics("eth0", 1) == {"stat0": 0, "stat1": 10, "stat2": 20}
    driver.close()


def test_a_driver_that_changes_its_count_each_time_is_an_error():
    driver = Growing()
    driver.grows = 1
    with pytest.raises(EthtoolError) as error:
        driver.statistics("eth0", 1)
    assert error.value.code == errno.EAGAIN
    driver.close()
