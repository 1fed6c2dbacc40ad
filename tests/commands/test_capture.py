"""A capture shows the same machine, and hides identifiers if it is scrambled."""

import errno
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from nodeagent import discovery
from nodeagent.agent_config import Config
from nodeagent.cli import main
from nodeagent.commands.capture.machine_capture import CaptureError, RecordingTree, capture
from nodeagent.commands.capture.scrambler import Scrambler
from nodeagent.commands.vfs import apply
from nodeagent.facts.model import Function
from nodeagent.host.recorded_gpus import RecordedGpuDriver
from nodeagent.host.sysfs import SysfsError, Tree
from nodeagent.kinds.resource_settings import PfSelect, VfsEntry
from nodeagent.sources import host_paths, nvml_session, pci_source
from nodeagent_lab.sim.machine import Machine
from tests.support import drawn_trees

CDI = "/var/run/cdi"
SPEC = """\
cdiVersion: 0.6.0
kind: nvidia.com/gpu
devices:
  - {name: UUID, containerEdits: {deviceNodes: [{path: /dev/nvidia0}]}}
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A simulated machine with the vendor's CDI spec and driver, and a VF in a pod."""
    machine = Machine.load("two-gpu-two-nic")
    root = tmp_path / "machine"
    machine.write(root)
    machine.bind("0000:18:00.1", "vfio-pci")
    machine.move_netdev("0000:18:00.2")
    uuid = json.loads((root / ".nodeagent/gpus.json").read_text())["gpus"][0]["uuid"]
    drawn_trees.grow(
        root,
        {
            "run/cdi/nvidia.yaml": SPEC.replace("UUID", uuid),
            "var/run": drawn_trees.Link("../run"),
            "usr/lib/x86_64-linux-gnu": {
                "libcuda.so.1": drawn_trees.Link("libcuda.so.580.1"),
                "libcuda.so.580.1": "a library",
                "libnvidia-ml.so.1": drawn_trees.Link("/opt/libnvidia-ml.so.1"),
                "libsecret.so.1": "of no concern",
            },
            "opt/libnvidia-ml.so.1": "another",
        },
    )
    return root


def facts(root: Path) -> object:
    """All facts of a machine, and the version of its driver."""
    tree = Tree(root)
    driver = discovery.driver(tree, Config().gpu)
    driver.open()
    try:
        readings = driver.gpus()
        version = driver.version()
    finally:
        driver.close()
    places = [nvml_session.place(tree, reading.pci_address or "") for reading in readings]
    return pci_source.scan(tree), host_paths.find(tree, CDI), readings, version, places


def test_a_capture_shows_the_same_facts_as_the_machine(root: Path, tmp_path: Path) -> None:
    summary = capture(root, tmp_path / "c", scramble=False)
    assert facts(tmp_path / "c") == facts(root)
    assert re.fullmatch(
        rf"{tmp_path}/c: 2 GPUs, 3 PFs and 8 VFs in \d+ files\n"
        rf"To show it: nodeagent scan --root {tmp_path}/c",
        summary,
    )


def test_vfs_show_gives_the_same_result_on_a_capture(root: Path, tmp_path: Path) -> None:
    (root / "sys/class/net/enp154s0v1/upper_bond0").symlink_to("../bond0")
    capture(root, tmp_path / "c", scramble=False)
    config = Config(vfs=(VfsEntry(select=PfSelect(vendors=("15b3",)), count=8),))
    shown = apply.show(config, tmp_path / "c")
    assert shown == apply.show(config, root)
    assert [pf.state for pf in shown.pfs] == [apply.PfState.REFUSED] * 2


def test_a_capture_can_be_captured(root: Path, tmp_path: Path) -> None:
    (root / ".nodeagent/unreadable").write_text("EIO /sys/devices/virtual/dmi/id/product_name\n")
    capture(root, tmp_path / "one", scramble=False)
    capture(tmp_path / "one", tmp_path / "two", scramble=False)
    assert facts(tmp_path / "two") == facts(root)
    assert "cannot be read: Input/output error" in pci_source.scan(Tree(tmp_path / "two")).unreadable[0]


def test_the_real_machine_can_be_captured(tmp_path: Path) -> None:
    capture(Path("/"), tmp_path / "c", scramble=False)
    assert pci_source.scan(Tree(tmp_path / "c")) == pci_source.scan(Tree("/"))
    assert host_paths.find(Tree(tmp_path / "c"), CDI) == host_paths.find(Tree("/"), CDI)
    assert Tree(tmp_path / "c").recorded, "else a replay would query the local driver"


def test_a_file_that_could_not_be_read_fails_again_in_the_capture(tmp_path: Path) -> None:
    machine = drawn_trees.Machine(tmp_path / "m")
    machine.function("0000:18:00.0", numa_node=drawn_trees.BROKEN)
    machine.netdev("pf0", "0000:18:00.0", speed=drawn_trees.BROKEN, carrier="1")
    machine.draw("/sys/class/dmi/id/product_name", "A machine")
    (tmp_path / "m/.nodeagent").mkdir()
    (tmp_path / "m/.nodeagent/unreadable").write_text(
        "EINVAL /sys/devices/pci0000:15/0000:15:01.0/0000:18:00.0/net/pf0/carrier\n"
        "EACCES /sys/class/dmi/id/product_name\n"
    )
    before = pci_source.scan(Tree(tmp_path / "m"))
    assert before.product is None
    assert before.links[0].carrier is None, "the kernel answers EINVAL for a link that is down"
    assert len(before.unreadable) == 3
    summary = capture(tmp_path / "m", tmp_path / "c", scramble=False)
    assert pci_source.scan(Tree(tmp_path / "c")) == before
    assert "4 files could not be read" in summary


def test_a_folder_that_cannot_be_listed_cannot_be_listed_in_the_capture(tmp_path: Path) -> None:
    drawn_trees.grow(
        tmp_path / "c", {".nodeagent/unreadable": "EACCES /etc/cdi", "etc/cdi": {"a.json": "{}"}}
    )
    with pytest.raises(SysfsError, match="/etc/cdi cannot be read: Permission denied"):
        Tree(tmp_path / "c").names("/etc/cdi")
    with pytest.raises(SysfsError) as caught:
        RecordingTree(tmp_path / "c").names("/etc/cdi")
    assert isinstance(caught.value.__cause__, OSError)
    assert caught.value.__cause__.errno == errno.EACCES


def test_a_capture_has_contents_only_of_files_that_were_read(root: Path, tmp_path: Path) -> None:
    capture(root, tmp_path / "c", scramble=False)
    library = tmp_path / "c/usr/lib/x86_64-linux-gnu"
    assert sorted(path.name for path in library.iterdir()) == [
        "libcuda.so.1",
        "libcuda.so.580.1",
        "libnvidia-ml.so.1",
        "libnvidia-ptxjitcompiler.so.1",
        "libnvidia-ptxjitcompiler.so.580.95.05",
    ]
    assert (library / "libcuda.so.580.1").read_bytes() == b""
    assert (tmp_path / "c/dev/nvidia0").read_bytes() == b""
    assert (tmp_path / "c/sys/bus/pci/devices/0000:18:00.0/sriov_totalvfs").read_bytes() == b"16\n"
    assert not (tmp_path / "c/sys/bus/pci/devices/0000:18:00.0/modalias").exists(), (
        "the scan does not read it"
    )


def test_every_link_stays_inside_the_capture(root: Path, tmp_path: Path) -> None:
    capture(root, tmp_path / "c", scramble=False)
    links = [path for path in (tmp_path / "c").rglob("*") if path.is_symlink()]
    assert len(links) > 20
    for link in links:
        assert not link.readlink().is_absolute()
        assert os.path.normpath(link.parent / link.readlink()).startswith(f"{tmp_path}/c/")


def test_the_marker_names_the_origin(root: Path, tmp_path: Path) -> None:
    capture(root, tmp_path / "c", scramble=True)
    marker = yaml.safe_load((tmp_path / "c/.nodeagent/machine.yaml").read_text())
    assert marker["kind"] == "captured"
    assert marker["kernel"] == (root / "proc/sys/kernel/osrelease").read_text().strip()
    assert marker["source"] == str(root)
    assert marker["scrambled"] is True
    assert set(marker) == {"kind", "nodeagent", "date", "kernel", "source", "scrambled"}


def test_a_failing_driver_fails_again_in_the_capture(root: Path, tmp_path: Path) -> None:
    machine = Machine.load("two-gpu-two-nic")
    machine.write(tmp_path / "failing")
    machine.fail_driver("init", "NVML: driver/library version mismatch")
    summary = capture(tmp_path / "failing", tmp_path / "c", scramble=False)
    assert "records that: NVML: driver/library version mismatch" in summary
    with pytest.raises(Exception, match="version mismatch"):
        RecordedGpuDriver(tmp_path / "c").open()


# Scrambling


def test_a_scrambled_capture_is_the_same_machine_with_other_identifiers(root: Path, tmp_path: Path) -> None:
    capture(root, tmp_path / "c", scramble=True)
    before, after = pci_source.scan(Tree(root)), pci_source.scan(Tree(tmp_path / "c"))
    assert [without_mac(one) for one in after.functions] == [without_mac(one) for one in before.functions]
    pairs = [
        *zip(before.links, after.links, strict=True),
        *(
            (old, new)
            for old, new in zip(before.functions, after.functions, strict=True)
            if old.mac is not None
        ),
    ]
    assert len(pairs) > len(before.links)
    for old, new in pairs:
        assert old.mac is not None
        assert new.mac is not None
        assert new.mac != old.mac
        assert new.mac[:8] == old.mac[:8], "the vendor part stays"
    everything = b"".join(path.read_bytes() for path in (tmp_path / "c").rglob("*") if path.is_file())
    for secret in secrets_of(root):
        assert secret.encode() not in everything


def without_mac(function: Function) -> Function:
    return msgspec.structs.replace(function, mac=None)


def secrets_of(root: Path) -> list[str]:
    recording = json.loads((root / ".nodeagent/gpus.json").read_text())
    found = [gpu["uuid"] for gpu in recording["gpus"]]
    facts = pci_source.scan(Tree(root))
    found += [one.mac for one in (*facts.links, *facts.functions) if one.mac is not None]
    return [*found, (root / "proc/sys/kernel/random/boot_id").read_text().strip()]


def test_a_gpu_has_one_new_uuid_everywhere(root: Path, tmp_path: Path) -> None:
    capture(root, tmp_path / "c", scramble=True)
    uuids = [gpu["uuid"] for gpu in json.loads((tmp_path / "c/.nodeagent/gpus.json").read_text())["gpus"]]
    assert host_paths.find(Tree(tmp_path / "c"), CDI).vendor_gpus == {uuids[0]}
    assert len(set(uuids)) == 2


def test_two_captures_scramble_differently(root: Path, tmp_path: Path) -> None:
    capture(root, tmp_path / "one", scramble=True)
    capture(root, tmp_path / "two", scramble=True)
    one, two = (pci_source.scan(Tree(tmp_path / name)).links for name in ("one", "two"))
    assert [link.mac for link in one] != [link.mac for link in two]


def test_all_forms_of_a_mac_are_scrambled_alike() -> None:
    scramble = Scrambler().text
    mac = scramble("a0:88:c2:12:34:56\n").strip()
    assert mac.startswith("a0:88:c2:")
    last = mac[9:].replace(":", "")
    assert last != "123456"
    assert scramble("enxa088c2123456") == f"enxa088c2{last}"
    assert scramble("a088:c203:0012:3456") == f"a088:c203:00{last[:2]}:{last[2:]}"
    # IPoIB: queue pair, subnet prefix, GUID.
    infiniband = "00:00:10:49:fe:80:00:00:00:00:00:00:a0:88:c2:03:00:12:34:56"
    assert scramble(infiniband) == infiniband[:-8] + mac[9:]
    route = "fe80000000000000a288c2fffe123456 80 " + "0" * 32
    assert scramble(route) == f"fe80000000000000a288c2fffe{last} 80 " + "0" * 32


@pytest.mark.parametrize(
    "text",
    [
        "0000:18:00.0",
        "../../../0000:15:01.0/0000:18:00.0/net/pf0",
        "00:00:00:00:00:00",
        "ff:ff:ff:ff:ff:ff",
        "eth0\t00000000\t0101A8C0\t0003\t0\t0\t100\t00000000\t0\t0\t0",
        "400 Gb/sec (4X NDR)",
        "12:34:56",
    ],
)
def test_text_that_identifies_no_hardware_stays(text: str) -> None:
    assert Scrambler().text(text) == text


@given(st.sets(st.binary(min_size=3, max_size=3), max_size=60))
def test_scrambled_macs_stay_distinct(nics: set[bytes]) -> None:
    scramble = Scrambler().text
    macs = ["a0:88:c2:" + nic.hex(":") for nic in sorted(nics)]
    assert len({scramble(mac) for mac in macs}) == len(macs)
    assert [scramble(mac) for mac in macs] == scramble("\n".join(macs)).split()


# Where it is written


def test_a_folder_that_is_not_empty_is_not_overwritten(root: Path, tmp_path: Path) -> None:
    (tmp_path / "c").mkdir()
    (tmp_path / "c/mine").touch()
    with pytest.raises(CaptureError, match="exists and is not an empty folder"):
        capture(root, tmp_path / "c", scramble=False)
    with pytest.raises(CaptureError, match="exists and is not an empty folder"):
        capture(root, tmp_path / "c/mine", scramble=False)
    assert os.listdir(tmp_path / "c") == ["mine"]


def test_an_empty_folder_is_used_and_a_missing_parent_is_an_error(root: Path, tmp_path: Path) -> None:
    (tmp_path / "c").mkdir()
    capture(root, tmp_path / "c", scramble=False)
    assert (tmp_path / "c/sys").is_dir()
    with pytest.raises(CaptureError, match=r"d/e cannot be made: No such file or directory"):
        capture(root, tmp_path / "d/e", scramble=False)


def test_a_root_without_a_machine_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    with pytest.raises(SysfsError, match="has no /sys"):
        capture(tmp_path / "m", tmp_path / "c", scramble=False)
    assert os.listdir(tmp_path) == ["m"]


@contextmanager
def small_disk(folder: Path, pages: int) -> Iterator[Path]:
    folder.mkdir()
    size = f"size={pages * 4096}"
    if subprocess.run(["mount", "-t", "tmpfs", "-o", size, "none", str(folder)], check=False).returncode:
        pytest.skip("needs root: only root may mount")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.needs("root")
def test_a_full_disk_is_an_error_and_nothing_is_left(root: Path, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 20) as disk:
        with pytest.raises(CaptureError, match="cannot be written: No space left on device; nothing is left"):
            capture(root, disk / "c", scramble=False)
        assert os.listdir(disk) == []


def test_the_verb_captures_and_names_the_next_step(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["capture", "--root", str(root), str(tmp_path / "c"), "--scramble"]) == 0
    assert "2 GPUs, 3 PFs and 8 VFs" in capsys.readouterr().out
    assert main(["capture", "--root", str(root), str(tmp_path / "c")]) == 1
    assert "exists and is not an empty folder" in capsys.readouterr().err
    scan = [sys.executable, "-m", "nodeagent", "scan", "--json", "--root", str(tmp_path / "c")]
    seen = json.loads(subprocess.check_output(scan))
    assert len(seen["gpus"]) == 2
