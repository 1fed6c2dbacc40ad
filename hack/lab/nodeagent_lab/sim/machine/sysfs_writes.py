"""Find the writes of other programs into the machine's sysfs since its files were published."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from nodeagent_lab.sim.machine.files import MachineFiles
from nodeagent_lab.sim.machine.state import Device
from nodeagent_lab.sim.machine.sysfs_files import BUS, VF_FILES

WRITE_ONLY = ("unbind", "bind", "drivers_probe")
# Settings before the actions that they affect, and unbind before bind.
_ORDER = (
    *("driver_override", "sriov_drivers_autoprobe", "mtu", "sriov_numvfs", *VF_FILES),
    *WRITE_ONLY,
)


@dataclass(frozen=True, slots=True)
class SysfsWrite:
    """``owner`` published the file; the attribute belongs to ``device`` or ``driver``."""

    owner: str
    path: str
    attribute: str
    value: str
    device: Device | None = None
    driver: str | None = None


def find_writes(files: MachineFiles, devices: Iterable[Device], drivers: Iterable[str]) -> list[SysfsWrite]:
    """The writes in a sensible order: plain files do not show which came first."""
    targets: dict[str, tuple[str, Device | None, str | None]] = {}
    for driver in drivers:
        for name in ("bind", "unbind"):
            targets[f"{BUS}/drivers/{driver}/{name}"] = ("host", None, driver)
    targets[f"{BUS}/drivers_probe"] = ("host", None, None)
    for device in devices:
        pci = f"pci:{device.address}"
        targets[f"{device.folder}/driver_override"] = (pci, device, None)
        if device.may_have_vfs:
            for name in ("sriov_numvfs", "sriov_drivers_autoprobe"):
                targets[f"{device.folder}/{name}"] = (pci, device, None)
            for index, vf in device.vfs.items():
                for name in VF_FILES if device.nic is not None and device.nic.vf_files and vf.context else ():
                    targets[f"{device.folder}/sriov/{index}/{name}"] = (pci, vf, None)
        if device.netdev is not None and device.netdev.here:
            mtu = f"{device.folder}/net/{device.netdev.name}/mtu"
            targets[mtu] = (f"net:{device.address}", device, None)
    writes = []
    for path, text in files.writes({path: owner for path, (owner, _, _) in targets.items()}):
        owner, target, driver_name = targets[path]
        attribute = path.rpartition("/")[2]
        # One write is one value; a file opened for appending may have several.
        values = text.split() if attribute in WRITE_ONLY else [text]
        writes += [SysfsWrite(owner, path, attribute, value, target, driver_name) for value in values or [""]]
    return sorted(writes, key=lambda write: _ORDER.index(write.attribute))
