"""A simulated machine of two NICs and two GPUs for tests: its tree, its facts, and what is true of it at any time."""

import json
import os
import re
from pathlib import Path

from nodeagent.host.sysfs import Tree
from nodeagent.sources.pci_source import PciFacts, scan
from nodeagent_lab.sim.machine import Machine
from nodeagent_lab.sim.machine.files import relative

SMALL = "two-gpu-two-nic"
PF, VF2 = "0000:18:00.0", "0000:18:00.3"
GPU = "0000:1b:00.0"


def small(tmp_path: Path) -> tuple[Machine, Path]:
    machine = Machine.load(SMALL)
    machine.write(tmp_path / "m")
    return machine, tmp_path / "m"


def tree_of(root: Path, *, but: str = r"/\.nodeagent/uevent") -> dict[str, str | bytes | None]:
    """Every path with its content, its link text, or ``None`` for a folder."""
    found: dict[str, str | bytes | None] = {}
    for folder, folders, files in os.walk(root):
        for name in folders + files:
            path = Path(folder, name)
            shown = f"/{path.relative_to(root)}"
            if not re.fullmatch(but, shown):
                link = path.is_symlink()
                found[shown] = os.readlink(path) if link else path.read_bytes() if path.is_file() else None
    return found


def facts(root: Path) -> dict:
    return json.loads((root / ".nodeagent/gpus.json").read_text())


def look(root: Path) -> PciFacts:
    return scan(Tree(root))


def function(root: Path, address: str):
    return next((one for one in look(root).functions if one.pci_address == address), None)


def link(root: Path, netdev: str = "enp24s0np0"):
    return next((one for one in look(root).links if one.netdev == netdev), None)


def check_invariants(machine: Machine, root: Path) -> None:
    """Check the invariants of a machine between two mutations."""
    pulled_vfs = {vf.address for pf in machine.pfs for vf in pf.vfs.values() if not vf.present}
    devices = root / "sys/bus/pci/devices"
    for path, shown in tree_of(root).items():
        if isinstance(shown, str):
            assert not shown.startswith("/"), path
            target = os.path.normpath(os.path.join(os.path.dirname(root / path[1:]), shown))
            assert target.startswith(f"{root}/{path.split('/')[1]}/"), path
            assert Path(target).exists() or Path(target).name in pulled_vfs, path
            assert shown == relative(path, target.removeprefix(str(root))), path
    for device in devices.iterdir():
        here = device.resolve()
        assert here.name == device.name
        for one in device.glob("virtfn*"):
            if one.exists():
                assert (one / "physfn").resolve() == here
        if (device / "physfn").exists():
            assert any(one.resolve() == here for one in (device / "physfn").glob("virtfn*"))
            assert (device / "numa_node").read_text() == (device / "physfn/numa_node").read_text()
        if (device / "sriov_numvfs").exists():
            assert int((device / "sriov_numvfs").read_text()) == len(list(device.glob("virtfn*")))
        if (device / "driver").exists():
            assert (device / "driver" / device.name).resolve() == here
        for class_ in ("net", "infiniband", "infiniband_verbs", "infiniband_mad"):
            for one in device.glob(f"{class_}/*"):
                assert (root / "sys/class" / class_ / one.name).resolve() == one.resolve()
                assert (one / "device").resolve() == here
    # The reverse: no entry of a removed object is left.
    for class_ in ("net", "infiniband", "infiniband_verbs", "infiniband_mad"):
        for one in (root / "sys/class" / class_).iterdir():
            if one.is_symlink() and one.name != "lo":
                assert (devices / one.resolve().parents[1].name / class_ / one.name).exists()
    for driver in (root / "sys/bus/pci/drivers").iterdir():
        for one in driver.glob("*:*"):
            assert os.readlink(devices / one.name / "driver").endswith(f"/{driver.name}")
    groups = sorted((root / "sys/kernel/iommu_groups").glob("*/devices/*"))
    assert len(groups) == len({group.name for group in groups})
    shown = {path.name for path in (root / "dev/infiniband").iterdir()} - {"rdma_cm"}
    assert shown == {
        path.name
        for class_ in ("infiniband_verbs", "infiniband_mad")
        for path in (root / "sys/class" / class_).iterdir()
        if path.is_symlink()
    }
    assert not list((root / ".nodeagent/tmp").iterdir())
