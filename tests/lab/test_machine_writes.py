"""Writes of other programs into a simulated machine: its kernel reacts as a real one does."""

import asyncio
from pathlib import Path

import pytest

from nodeagent.host.inotify import CONTENT, FolderWatch
from tests.lab.small_machine import PF, VF2, check_invariants, function, link, look, small, tree_of


def put(root: Path, path: str, text: str) -> None:
    """Write like ``echo`` into the existing file."""
    with (root / path.lstrip("/")).open("r+") as file:
        file.truncate()
        file.write(text)


def test_a_write_to_sriov_numvfs_creates_and_removes_vfs(tmp_path):
    machine, root = small(tmp_path)
    numvfs = f"/sys/bus/pci/devices/{PF}/sriov_numvfs"
    assert machine.apply_writes() == ()
    put(root, numvfs, "2\n")
    (refusal,) = machine.apply_writes()
    assert "EBUSY" in refusal
    assert function(root, PF).num_vfs == 4
    put(root, numvfs, "0")
    assert machine.apply_writes() == ()
    put(root, numvfs, "16")
    assert machine.apply_writes() == ()
    check_invariants(machine, root)
    assert sum(one.parent == PF for one in look(root).functions) == 16


@pytest.mark.parametrize(
    ("path", "text", "why"),
    [
        (f"/sys/bus/pci/devices/{PF}/sriov_numvfs", "17", "ERANGE"),
        (f"/sys/bus/pci/devices/{PF}/sriov_numvfs", "many", "EINVAL"),
        ("/sys/class/net/eno1/mtu", "67", "EINVAL"),
        ("/sys/bus/pci/drivers/vfio-pci/bind", VF2, "ENODEV"),
        ("/sys/bus/pci/drivers/mlx5_core/bind", VF2, "EBUSY"),
        ("/sys/bus/pci/drivers/vfio-pci/unbind", VF2, "ENODEV"),
        ("/sys/bus/pci/drivers_probe", "0000:ff:00.0", "no NIC"),
    ],
)
def test_a_write_that_the_kernel_refuses_changes_nothing(path, text, why, tmp_path):
    machine, root = small(tmp_path)
    before = tree_of(root)
    put(root, path, text)
    (refusal,) = machine.apply_writes()
    assert why in refusal
    assert tree_of(root) == before


def test_an_override_an_unbind_and_a_probe_bind_a_vf_to_vfio(tmp_path):
    machine, root = small(tmp_path)
    put(root, f"/sys/bus/pci/devices/{VF2}/driver_override", "vfio-pci\n")
    put(root, f"/sys/bus/pci/devices/{VF2}/driver/unbind", VF2)
    put(root, "/sys/bus/pci/drivers_probe", VF2)
    assert machine.apply_writes() == ()
    assert function(root, VF2).driver == "vfio-pci"
    assert (root / "sys/bus/pci/drivers_probe").read_text() == ""
    put(root, f"/sys/bus/pci/devices/{VF2}/driver_override", "\n")
    put(root, f"/sys/bus/pci/devices/{VF2}/driver/unbind", VF2)
    put(root, "/sys/bus/pci/drivers/mlx5_core/bind", VF2)
    assert machine.apply_writes() == ()
    assert function(root, VF2).driver == "mlx5_core"


def test_vfs_without_autoprobe_have_no_driver_and_an_mtu_is_accepted(tmp_path):
    machine, root = small(tmp_path)
    put(root, f"/sys/bus/pci/devices/{PF}/sriov_drivers_autoprobe", "0")
    put(root, f"/sys/bus/pci/devices/{PF}/sriov_numvfs", "0")
    put(root, "/sys/class/net/enp24s0np0/mtu", "4200")
    assert machine.apply_writes() == ()
    machine.set_vfs(PF, 3)
    assert {one.driver for one in look(root).functions if one.parent == PF} == {None}
    assert link(root).mtu == 4200


def test_an_open_file_that_is_not_written_yet_is_ignored(tmp_path):
    machine, root = small(tmp_path)
    with (root / f"sys/bus/pci/devices/{PF}/sriov_numvfs").open("w") as file:
        machine.set_link("eno1", False)
        assert machine.apply_writes() == ()
        file.write("0")
    assert machine.apply_writes() == ()
    assert function(root, PF).num_vfs == 0


def test_without_a_write_there_is_no_event(tmp_path):
    machine, root = small(tmp_path)
    before = tree_of(root, but="")
    assert machine.apply_writes() == ()
    assert tree_of(root, but="") == before


async def test_a_followed_machine_reacts_to_writes(tmp_path):
    machine, root = small(tmp_path)
    following = asyncio.create_task(machine.follow())
    with FolderWatch() as watch:
        watch.add(root / ".nodeagent", CONTENT)
        async with asyncio.timeout(20):
            for count in (0, 3):
                await asyncio.sleep(0)
                put(root, f"/sys/bus/pci/devices/{PF}/sriov_numvfs", str(count))
                while function(root, PF).num_vfs != count:
                    await watch.changes()
            # A VF made since is followed too.
            put(root, f"/sys/bus/pci/devices/{VF2}/driver/unbind", VF2)
            while function(root, VF2).driver is not None:
                await watch.changes()
    following.cancel()
    with pytest.raises(asyncio.CancelledError):
        await following
