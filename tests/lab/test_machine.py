"""The simulated machine: it has the files of a real machine, and every event can be undone."""

import asyncio
import os
import re
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nodeagent.facts.affinity import Affinity, affinity
from nodeagent.host.inotify import CONTENT, FolderWatch
from nodeagent.host.recorded_gpus import RecordedGpuDriver
from nodeagent_lab.sim.machine import Machine, MachineError, ModelError
from nodeagent_lab.sim.machine.blueprint import MACHINES, parse, vf_address
from nodeagent_lab.sim.machine.files import relative
from tests.lab.small_machine import (
    GPU,
    PF,
    VF2,
    check_invariants,
    facts,
    function,
    link,
    look,
    small,
    tree_of,
)
from tests.support.examples import examples
from tests.support.waiting import LIMIT_S

TINY = """
name: tiny
product: {sys_vendor: test, product_name: tiny}
driver: {version: "1.0", cuda_version: "1"}
default_route: eno1
numa: {0: "0-3,8", 1: "4-7"}
complexes: {pci0000:00: -1, pci0000:15: 1}
parts:
  gpu: {kind: gpu, vendor: 10de, device: "2330", driver: nvidia, name: G, memory_mib: 1000}
  nic: {kind: nic, vendor: 15b3, device: "1021", driver: mlx5_core, rdma: true, speed_mbps: 400000,
        totalvfs: 3, vf_device: 101e}
  plain: {kind: nic, vendor: "8086", device: "1563", driver: ixgbe, speed_mbps: 10000}
gpus:
  - {part: gpu, path: "pci0000:15/15:01.0/1b:00.0"}
nics:
  - {part: nic, path: "pci0000:15/15:02.0/18:00.0", netdev: enp24s0np0, num_vfs: 2}
  - {part: plain, path: "pci0000:00/00:1c.0/0b:00.0", netdev: eno1}
"""


# The machines of the package


@pytest.fixture(scope="module")
def dgx(tmp_path_factory) -> tuple[Machine, Path]:
    machine = Machine.load("dgx-h100")
    root = tmp_path_factory.mktemp("dgx") / "m"
    machine.write(root)
    return machine, root


def test_each_gpu_of_a_dgx_shares_a_switch_with_its_nic(dgx):
    machine, root = dgx
    found = {one.pci_address: one for one in look(root).functions}
    for rail, gpu in enumerate(machine.gpus):
        nic = found[machine.nic(rail).address]
        path = (*gpu.above, gpu.address)
        assert affinity(path, gpu.numa_node, nic.pci_path, nic.numa_node) is Affinity.PIX
        assert gpu.numa_node == nic.numa_node == rail // 4
        other = found[machine.nic((rail + 1) % 8).address]
        assert affinity(path, gpu.numa_node, other.pci_path, other.numa_node) in (Affinity.NODE, Affinity.SYS)
    assert [gpu.address[5:7] for gpu in machine.gpus] == ["1b", "43", "52", "61", "9d", "c3", "d1", "df"]
    assert [machine.nic(rail).address[5:7] for rail in range(8)] == [
        "18",
        "40",
        "4f",
        "5e",
        "9a",
        "c0",
        "ce",
        "dc",
    ]


def test_the_scan_of_a_dgx_has_no_unreadable_file(dgx):
    _, root = dgx
    found = look(root)
    assert found.unreadable == ()
    assert found.product == "DGXH100"
    assert [one.netdev for one in found.links if one.default_route] == ["eno3"]
    vfs = [one for one in found.functions if one.parent is not None]
    assert len(vfs) == 64
    assert all(vf.rdma and vf.netdev and vf.driver == "mlx5_core" for vf in vfs)
    assert [vf.pci_address for vf in vfs[:8]] == [f"0000:18:00.{n}" for n in range(1, 8)] + ["0000:18:01.0"]
    assert [vf.vf_index for vf in vfs[:8]] == list(range(8))
    # As the product's own guide lists them.
    rdma = {one.netdev: one.rdma.device for one in found.functions if one.rdma}
    assert rdma["enp24s0np0"] == "mlx5_0"
    assert rdma["enp170s0f1np1"] == "mlx5_8"
    assert rdma["enp220s0np0"] == "mlx5_11"
    macs = {(root / f"sys/class/net/{one.netdev}/address").read_text() for one in found.functions}
    assert len(macs) == len(found.functions)


def test_the_driver_of_a_dgx_lists_eight_gpus(dgx):
    machine, root = dgx
    driver = RecordedGpuDriver(root)
    driver.open()
    readings = driver.gpus()
    driver.close()
    assert [reading.pci_address for reading in readings] == [gpu.address for gpu in machine.gpus]
    assert {reading.memory_mib for reading in readings} == {81559}
    assert len({reading.uuid for reading in readings}) == 8
    assert all(re.fullmatch(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", one.uuid) for one in readings)
    assert (root / ".nodeagent/machine.yaml").read_text() == 'kind: simulated\nmodel: "dgx-h100"\n'


@pytest.mark.parametrize("name", sorted(path.stem for path in MACHINES.glob("*.yaml")))
def test_every_machine_of_the_package_is_valid_and_reproducible(name, tmp_path):
    for copy in "ab":
        machine = Machine.load(name)
        machine.write(tmp_path / copy)
    check_invariants(machine, tmp_path / "b")
    assert tree_of(tmp_path / "a", but="") == tree_of(tmp_path / "b", but="")


# The kernel's formats, asked of the machine and of the host that runs this test alike

FORMATS = {
    "vendor": r"0x[0-9a-f]{4}\n",
    "device": r"0x[0-9a-f]{4}\n",
    "subsystem_vendor": r"0x[0-9a-f]{4}\n",
    "subsystem_device": r"0x[0-9a-f]{4}\n",
    "class": r"0x[0-9a-f]{6}\n",
    "revision": r"0x[0-9a-f]{2}\n",
    "numa_node": r"(-1|\d+)\n",
    "local_cpulist": r"\d+(-\d+)?(,\d+(-\d+)?)*\n",
    "enable": r"\d+\n",
    "driver_override": r"(\(null\)|[\w-]+)\n",
    "modalias": r"pci:v[0-9A-F]{8}d[0-9A-F]{8}sv[0-9A-F]{8}sd[0-9A-F]{8}bc[0-9A-F]{2}sc[0-9A-F]{2}i[0-9A-F]{2}\n",
    "uevent": r"(DRIVER=[\w-]+\n)?PCI_CLASS=[0-9A-F]{4,6}\nPCI_ID=[0-9A-F]{4}:[0-9A-F]{4}\n"
    r"PCI_SUBSYS_ID=[0-9A-F]{4}:[0-9A-F]{4}\nPCI_SLOT_NAME=[0-9a-f:.]+\nMODALIAS=pci:[\w]+\n",
    "current_link_speed": r"(Unknown|\d+\.\d GT/s PCIe)\n",
    "current_link_width": r"\d+\n",
    "sriov_numvfs": r"\d+\n",
    "sriov_vf_device": r"[0-9a-f]{1,4}\n",
    "aer_dev_fatal": r"(\w+ \d+\n)+TOTAL_ERR_FATAL \d+\n",
}
NET_FORMATS = {
    "address": r"[0-9a-f]{2}(:[0-9a-f]{2})*\n",
    "flags": r"0x[0-9a-f]+\n",
    "operstate": r"(up|down|unknown|dormant|lowerlayerdown|notpresent)\n",
    "carrier": r"[01]\n",
    "carrier_changes": r"\d+\n",
    "speed": r"-?\d+\n",
    "mtu": r"\d+\n",
    "type": r"\d+\n",
    "dev_id": r"0x[0-9a-f]+\n",
    "dev_port": r"\d+\n",
    "ifindex": r"\d+\n",
    "uevent": r"(DEVTYPE=\w+\n)?INTERFACE=\S+\nIFINDEX=\d+\n",
}


def check_formats(root: Path) -> int:
    """The number of compared attributes."""
    seen = 0

    def check(folder: Path, formats: dict[str, str]) -> None:
        nonlocal seen
        for name, pattern in formats.items():
            try:
                text = (folder / name).read_text()
            except OSError:
                continue
            assert re.fullmatch(pattern, text), f"{folder / name}: {text!r}"
            seen += 1

    for device in sorted((root / "sys/bus/pci/devices").glob("*:*")):
        check(device, FORMATS)
        assert os.readlink(device).startswith("../../../devices/pci")
        depth = len(device.resolve().relative_to(root).parts) - 1
        assert os.readlink(device / "subsystem") == "../" * depth + "bus/pci"
        if (device / "driver").exists():
            assert os.readlink(device / "driver").startswith("../" * depth + "bus/pci/drivers/")
    for netdev in sorted((root / "sys/class/net").iterdir()):
        if netdev.is_symlink():
            check(netdev, NET_FORMATS)
            assert os.readlink(netdev).startswith("../../devices/")
            if (netdev / "device").is_symlink():
                up = "../../../"
                assert os.readlink(netdev / "device") == up + netdev.resolve().parents[1].name
    header, *rows = (root / "proc/net/route").read_text().splitlines()
    assert header.split()[:8] == [
        "Iface",
        "Destination",
        "Gateway",
        "Flags",
        "RefCnt",
        "Use",
        "Metric",
        "Mask",
    ]
    assert all(len(row) == 127 and len(row.split()) == 11 for row in rows)
    assert all(len(row.split()) == 10 for row in (root / "proc/net/ipv6_route").read_text().splitlines())
    return seen


def test_attributes_have_the_form_of_this_hosts_kernel(tmp_path):
    _, root = small(tmp_path)
    check_formats(Path("/"))
    assert check_formats(root) > 200


def test_a_link_goes_up_to_the_nearest_common_folder():
    device = "/sys/devices/pci0000:00/0000:00:03.0"
    assert relative("/sys/bus/pci/devices/0000:00:03.0", device) == "../../../devices/pci0000:00/0000:00:03.0"
    assert relative(f"{device}/net/eth0/device", device) == "../../../0000:00:03.0"
    assert relative(f"{device}/physfn", "/sys/devices/pci0000:00/0000:00:02.0") == "../0000:00:02.0"


def test_vf_addresses_cross_functions_devices_and_buses():
    assert vf_address("0000:18:00.0", 1, 1, 6) == "0000:18:00.7"
    assert vf_address("0000:18:00.0", 1, 1, 7) == "0000:18:01.0"
    assert vf_address("0000:3b:00.1", 0x80, 2, 0) == "0000:3b:10.1"
    assert vf_address("0001:3b:00.0", 1, 1, 255) == "0001:3c:00.0"
    with pytest.raises(ValueError, match="beyond bus ff"):
        vf_address("0000:ff:00.0", 1, 1, 255)


# Events and their undoing


@pytest.mark.parametrize(
    ("do", "undo"),
    [
        (lambda m: m.set_vfs(0, 0), lambda m: m.set_vfs(0, 4)),
        (lambda m: m.set_vfs(0, 9), lambda m: m.set_vfs(0, 4)),
        (lambda m: m.unplug(PF), lambda m: m.plug(PF)),
        (lambda m: m.unplug(VF2), lambda m: m.plug(VF2)),
        (lambda m: m.unplug(GPU), lambda m: m.plug(GPU)),
        (lambda m: m.bind(VF2, None), lambda m: m.bind(VF2, "mlx5_core")),
        (lambda m: m.bind(VF2, "vfio-pci"), lambda m: m.bind(VF2, "mlx5_core")),
        (lambda m: m.bind(GPU, "vfio-pci"), lambda m: m.bind(GPU, "nvidia")),
        (lambda m: m.move_netdev(VF2), lambda m: m.return_netdev(VF2)),
        (lambda m: m.move_netdev("eno1"), lambda m: m.return_netdev("eno1")),
        (lambda m: m.set_recovery_action(0, "gpu_reset"), lambda m: m.set_recovery_action(0, "none")),
        (lambda m: m.lose_gpu(1), lambda m: m.find_gpu(1)),
        (lambda m: m.fail_driver("wait", "no"), lambda m: m.heal_driver()),
        (lambda m: m.set_link("enp24s0np0", False), lambda m: m.set_link("enp24s0np0", True)),
        (lambda m: m.set_link(VF2, False), lambda m: m.set_link(VF2, True)),
        (lambda m: m.set_admin("eno1", False), lambda m: m.set_admin("eno1", True)),
    ],
)
def test_an_undone_event_leaves_the_machine_unchanged(do, undo, tmp_path):
    machine, root = small(tmp_path)
    counters = r"/\.nodeagent/(uevent|samples\.json)|.*/net/.*/carrier_(changes|up_count|down_count)"
    before = tree_of(root, but=counters)
    do(machine)
    check_invariants(machine, root)
    after = tree_of(root, but=counters)
    undo(machine)
    assert tree_of(root, but=counters) == before
    changed = {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}
    only_the_driver = changed == {"/.nodeagent/gpus.json"}  # then the kernel announces nothing
    assert (root / ".nodeagent/uevent").read_text() == ("1\n" if only_the_driver else "3\n")
    # A VF without carrier has no entry; every other event must change one.
    assert after != before or link(root).carrier


def test_a_pulled_cable_ends_the_carrier_of_the_pf_and_its_vfs(tmp_path):
    machine, root = small(tmp_path)
    machine.set_admin("enp24s0v1", True)
    vf = root / "sys/class/net/enp24s0v1"
    assert (vf / "carrier").read_text() == "1\n"
    machine.set_link("enp24s0np0", False)
    pf = link(root)
    assert (pf.admin_up, pf.carrier, pf.operstate, pf.speed_mbps) == (True, False, "down", None)
    assert (vf / "carrier").read_text() == "0\n"
    machine.set_link(PF, True)
    assert link(root).speed_mbps == 400_000
    folder = root / "sys/class/net/enp24s0np0"
    counts = [(folder / f"carrier_{name}").read_text() for name in ("changes", "up_count", "down_count")]
    assert counts == ["4\n", "2\n", "2\n"]
    assert (root / "sys/class/infiniband/mlx5_0/ports/1/state").read_text() == "4: ACTIVE\n"


def test_an_admin_down_netdev_has_no_carrier_file(tmp_path):
    machine, root = small(tmp_path)
    machine.set_admin("enp24s0np0", False)
    folder = root / "sys/class/net/enp24s0np0"
    assert not (folder / "carrier").exists()
    assert (folder / "flags").read_text() == "0x1002\n"
    assert link(root).admin_up is False
    assert look(root).unreadable == ()


def test_the_default_route_goes_with_its_netdev(tmp_path):
    machine, root = small(tmp_path)
    machine.set_admin("eno1", False)
    assert not [one for one in look(root).links if one.default_route]
    assert len((root / "proc/net/route").read_text().splitlines()) == 1


def test_vfio_removes_the_netdev_and_adds_a_group(tmp_path):
    machine, root = small(tmp_path)
    machine.bind(VF2, "vfio-pci")
    vf = function(root, VF2)
    assert (vf.driver, vf.netdev, vf.rdma) == ("vfio-pci", None, None)
    assert (root / f"dev/vfio/{vf.vfio_group}").exists()
    machine.bind(VF2, None)
    assert sorted(path.name for path in (root / "dev/vfio").iterdir()) == ["vfio"]


def test_vfio_without_an_iommu_makes_a_group_of_its_own(tmp_path):
    machine = Machine(parse(TINY + "iommu: false\n"))
    root = tmp_path / "m"
    machine.write(root)
    assert not list((root / "sys/kernel/iommu_groups").iterdir())
    machine.bind("0000:18:00.1", "vfio-pci")
    check_invariants(machine, root)
    assert function(root, "0000:18:00.1").vfio_group == "noiommu-0"
    assert (root / "dev/vfio/noiommu-0").exists()


def test_a_netdev_in_a_pod_leaves_empty_folders_and_its_device_nodes(tmp_path):
    machine, root = small(tmp_path)
    before = function(root, VF2)
    machine.move_netdev(VF2)
    folder = root / "sys/bus/pci/devices" / VF2
    assert list((folder / "net").iterdir()) == list((folder / "infiniband").iterdir()) == []
    vf = function(root, VF2)
    assert (vf.driver, vf.netdev, vf.rdma) == ("mlx5_core", None, None)
    assert (root / before.rdma.uverbs[1:]).exists()
    with pytest.raises(MachineError, match="in a pod's network namespace"):
        machine.set_admin(VF2, True)
    machine.return_netdev(VF2)
    machine.move_netdev(VF2, rdma=False)
    assert function(root, VF2).rdma == before.rdma


def test_a_vf_removed_alone_leaves_a_dangling_link(tmp_path):
    machine, root = small(tmp_path)
    machine.unplug(VF2)
    dangling = root / "sys/bus/pci/devices" / PF / "virtfn2"
    assert dangling.is_symlink()
    assert not dangling.exists()
    assert function(root, VF2) is None
    machine.set_vfs(PF, 0)
    assert not dangling.is_symlink()


def test_a_driver_that_unbinds_from_a_pf_removes_its_vfs(tmp_path):
    machine, root = small(tmp_path)
    machine.bind(PF, None)
    assert [one.pci_address for one in look(root).functions if one.pci_address.startswith("0000:18")] == [PF]
    with pytest.raises(MachineError, match="ENOENT"):
        machine.set_vfs(PF, 2)
    machine.bind(PF, "mlx5_core")
    assert function(root, PF).num_vfs == 0


def test_an_unplugged_pf_may_return_without_vfs(tmp_path):
    machine, root = small(tmp_path)
    machine.unplug(0)
    machine.plug(0, vfs=0)
    assert function(root, PF).num_vfs == 0


def test_the_gpu_driver_lists_an_unplugged_gpu_as_lost_but_not_one_of_another_driver(tmp_path):
    machine, root = small(tmp_path)
    machine.unplug(GPU)
    assert [gpu["lost"] for gpu in facts(root)["gpus"]] == [True, False]
    assert (root / "dev/nvidia0").exists()
    with pytest.raises(MachineError, match="plug it first"):
        machine.find_gpu(0)
    machine.plug(machine.gpu(0).gpu.uuid)
    machine.bind(GPU, "vfio-pci")
    assert [gpu["index"] for gpu in facts(root)["gpus"]] == [1]


def test_events_are_numbered_and_the_last_64_are_kept(tmp_path):
    machine, root = small(tmp_path)
    driver = RecordedGpuDriver(root)
    driver.open()
    for number in range(70):
        machine.raise_xid(number % 2, 79)
    events = facts(root)["events"]
    assert [event["sequence"] for event in events] == list(range(7, 71))
    assert events[-1] == {"sequence": 70, "uuid": machine.gpu(1).gpu.uuid, "xid": 79}
    assert len(driver.wait(5)) == 64
    driver.close()


def test_the_gpu_driver_fails_in_the_requested_call(tmp_path):
    machine, root = small(tmp_path)
    machine.fail_driver("list", "GPU is lost")
    assert facts(root)["failure"] == {"call": "list", "error": "GPU is lost"}


@pytest.mark.parametrize(
    ("do", "why"),
    [
        (lambda m: m.set_vfs(0, 17), "0 to 16"),
        (lambda m: m.set_vfs("eno1", 1), "no SR-IOV"),
        (lambda m: m.set_link("eth9", True), "no NIC 'eth9'"),
        (lambda m: m.nic(2), "no NIC 2"),
        (lambda m: m.lose_gpu(2), "no GPU 2"),
        (lambda m: m.plug(PF), "already"),
        (lambda m: (m.unplug(PF), m.plug(PF, vfs=17)), "0 to 16"),
        (lambda m: (m.unplug(GPU), m.plug(GPU, vfs=1)), "0 to 0"),
        (lambda m: (m.unplug(PF), m.plug(VF2)), "no NIC"),
        (lambda m: m.return_netdev(VF2), "not in a pod"),
        (lambda m: m.bind(VF2, "nvidia"), "ENODEV"),
        (lambda m: (m.unplug(PF), m.unplug(PF)), "plug it first"),
        (lambda m: (m.unplug(VF2), m.set_admin(VF2, True)), "no netdev"),
    ],
)
def test_an_impossible_event_is_an_error_with_the_reason(do, why, tmp_path):
    machine, _ = small(tmp_path)
    with pytest.raises(MachineError, match=why):
        do(machine)


def test_a_folder_holds_one_machine(tmp_path):
    machine, root = small(tmp_path)
    with pytest.raises(MachineError, match="already has a machine"):
        machine.write(root)


def test_events_before_the_write_are_in_the_files_too(tmp_path):
    machine = Machine(parse(TINY))
    machine.set_vfs(0, 3)
    machine.lose_gpu(0)
    machine.write(tmp_path / "m")
    check_invariants(machine, tmp_path / "m")
    assert function(tmp_path / "m", PF).num_vfs == 3
    assert facts(tmp_path / "m")["gpus"][0]["lost"] is True


def test_an_infiniband_port_is_active_without_its_netdev(tmp_path):
    text = TINY.replace("rdma: true,", "rdma: true, link_type: infiniband,").replace("enp24s0np0", "ibp24s0")
    machine = Machine(parse(text))
    root = tmp_path / "m"
    machine.write(root)
    machine.set_admin("ibp24s0", False)
    check_invariants(machine, root)
    port = link(root, "ibp24s0")
    assert (port.admin_up, port.carrier, port.speed_mbps) == (False, True, 400_000)
    assert {one.link_type for one in look(root).functions if one.parent == PF} == {"infiniband"}
    assert (root / "sys/class/net/ibp24s0/type").read_text() == "32\n"
    assert len((root / "sys/class/net/ibp24s0/address").read_text().split(":")) == 20
    machine.set_link("ibp24s0", False)
    assert link(root, "ibp24s0").carrier is False


def test_an_unknown_numa_node_is_minus_one_and_has_every_cpu(tmp_path):
    root = tmp_path / "m"
    Machine(parse(TINY)).write(root)
    device = root / "sys/bus/pci/devices/0000:0b:00.0"
    assert (device / "numa_node").read_text() == "-1\n"
    assert (device / "local_cpulist").read_text() == "0-8\n"
    assert function(root, "0000:0b:00.0").numa_node is None


# The order in which it is seen


async def seen(watch: FolderWatch, last: str) -> list[str]:
    """Names in the order of their first change, until the one that ends the mutation."""
    names: list[str] = []
    async with asyncio.timeout(LIMIT_S):
        while last not in names:
            for change in await watch.changes():
                name = change.name
                names += [name] if name and name not in names else []
    return names


async def test_vfs_appear_one_by_one_and_the_count_changes_after_the_last(tmp_path):
    machine, root = small(tmp_path)
    machine.set_vfs(0, 0)
    pf = machine.nic(0)
    with FolderWatch() as watch:
        for folder in (
            pf.folder,
            os.path.dirname(pf.folder),
            "/sys/bus/pci/devices",
            "/sys/bus/pci/drivers/mlx5_core",
        ):
            watch.add(f"{root}{folder}", CONTENT)
        for folder in ("/sys/class/net", "/sys/class/infiniband", "/.nodeagent"):
            watch.add(f"{root}{folder}", CONTENT)
        machine.set_vfs(0, 2)
        names = await seen(watch, "samples.json")
        assert names == [
            *("0000:18:00.1", "virtfn0", "enp24s0v0", "mlx5_2"),
            *("0000:18:00.2", "virtfn1", "enp24s0v1", "mlx5_3"),
            *("sriov_numvfs", "uevent", "samples.json"),
        ]
        machine.set_vfs(0, 0)
        names = await seen(watch, "samples.json")
        assert names == [
            *("virtfn1", "mlx5_3", "enp24s0v1", "0000:18:00.2"),
            *("virtfn0", "mlx5_2", "enp24s0v0", "0000:18:00.1"),
            *("sriov_numvfs", "uevent", "samples.json"),
        ]


# Random events

NICS = ["enp24s0np0", "eno1", "0000:18:00.1", "0000:18:00.2"]
FUNCTIONS = [*NICS, GPU]
STEP = st.one_of(
    st.tuples(st.just("set_vfs"), st.sampled_from(NICS), st.integers(0, 4)),
    st.tuples(st.sampled_from(["set_link", "set_admin"]), st.sampled_from(NICS), st.booleans()),
    st.tuples(st.sampled_from(["move_netdev", "return_netdev"]), st.sampled_from(NICS)),
    st.tuples(st.sampled_from(["unplug", "plug"]), st.sampled_from(FUNCTIONS)),
    st.tuples(
        st.just("bind"),
        st.sampled_from(FUNCTIONS),
        st.sampled_from([None, "mlx5_core", "vfio-pci", "nvidia", "ixgbe"]),
    ),
    st.tuples(st.just("set_recovery_action"), st.just(0), st.sampled_from(["none", "gpu_reset"])),
    st.tuples(st.sampled_from(["lose_gpu", "find_gpu"]), st.just(0)),
)


@pytest.mark.slow
@settings(
    max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(steps=st.lists(STEP, max_size=12), iommu=st.booleans())
def test_any_sequence_of_events_can_be_undone(steps, iommu, tmp_path):
    model = parse(TINY + f"iommu: {str(iommu).lower()}\n")
    root = Path(tempfile.mkdtemp(dir=tmp_path)) / "m"
    machine = Machine(model)
    machine.write(root)
    new = tree_of(root)
    for name, *arguments in steps:
        with suppress(MachineError):
            getattr(machine, name)(*arguments)
        check_invariants(machine, root)
        assert look(root).unreadable == ()
    everything = [*machine.gpus, *machine.pfs]
    for device in everything:
        if device.present:
            machine.unplug(device.address)
    for device in machine.pfs:
        machine.set_link(device.address, True)
    machine.set_recovery_action(0, "none")
    for device in everything:
        machine.plug(device.address, vfs=0)
    machine.set_vfs(0, 2)
    assert tree_of(root) == new


# Models that are none


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("name: tiny", "name: [", r"bad\.yaml:\d+: not YAML"),
        ("name: tiny", "", "missing required field `name`"),
        ("rdma: true", "rmda: true", r"bad\.yaml:10: parts\.nic\.rmda: .*unknown field `rmda`"),
        ("totalvfs: 3", "totalvfs: -3", r"bad\.yaml:11: parts\.nic\.totalvfs: .*>= 0"),
        ("kind: gpu", "kind: fpga", r"bad\.yaml:9: parts\.gpu\.kind: .*fpga"),
        ("num_vfs: 2", "num_vfs: 4", r"bad\.yaml:16: nics\[0\]\.num_vfs: 4 is more than .* 3"),
        ("num_vfs: 2", "mtu: 99999", r"bad\.yaml:16: nics\[0\]\.mtu: 99999 .* 9978"),
        ("15:02.0/18:00.0", "15:02.0/18:00.9", r"bad\.yaml:16: nics\[0\]\.path: .* is not a PCI path"),
        ("pci0000:15/15:02.0", "pci0000:16/15:02.0", r"nics\[0\]\.path: pci0000:16 is not among"),
        ("0b:00.0", "0b:00.0/0c:00.0/15:01.0/0d:00.0", r"has another place in the tree"),
        ("00:1c.0/0b:00.0", "00:1c.0/18:00.2", r"0000:18:00\.2 is already one of pci0000:15/"),
        ("part: plain", "part: gpu", r"bad\.yaml:17: nics\[1\]\.part: there is no part 'gpu' of this kind"),
        ("netdev: eno1", "netdev: a name", r"'a name' is not a valid netdev name"),
        ("netdev: eno1", "netdev: enp24s0np0", r"the netdev of another NIC too"),
        ("default_route: eno1", "default_route: eth0", r"bad\.yaml:5: default_route: no NIC"),
        ('1: "4-7"', '1: "4-"', r"bad\.yaml:6: numa\[1\]: .* not a list of CPUs"),
        ("pci0000:15: 1", "pci0000:15: 2", r"bad\.yaml:7: complexes\.pci0000:15: there is no NUMA node 2"),
        ("pci0000:15: 1", "bus15: 1", r"complexes\.bus15: a root complex has its name"),
        ("vf_device: 101e", "firmware: x", r"totalvfs needs vf_device"),
        ('driver: {version: "1.0", cuda_version: "1"}', "", "GPUs need a driver"),
        ('device: "2330"', "device: 2330", r"parts\.gpu\.device: Expected `str`, got `int`; quote it"),
        ("numa:", "name: again\nnuma:", r"bad\.yaml:6: duplicate key name"),
    ],
)
def test_an_invalid_model_is_an_error_with_the_line(old, new, why):
    assert TINY.count(old) >= 1
    with pytest.raises(ModelError, match=why):
        parse(TINY.replace(old, new, 1), "bad.yaml")


@pytest.mark.parametrize("text", ["", "- a", "7", "\x00", "a: &a [*a]"])
def test_a_file_without_a_mapping_is_an_error(text):
    with pytest.raises(ModelError):
        parse(text)


def test_an_unknown_machine_is_an_error_that_lists_the_known_ones(tmp_path):
    with pytest.raises(
        ModelError,
        match=r"there is no machine 'dgx'; there are dgx-h100, dgx-h100-infiniband, gb200-nvl72-tray, two-gpu-two-nic",
    ):
        Machine.load("dgx")
    with pytest.raises(ModelError, match="cannot be read"):
        Machine.load(tmp_path / "none.yaml")
