"""The kernel of the simulated machine: its devices, its steps on them, and the published entries.

Each step changes the state and then publishes it, so that a reader sees the steps one after the other.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import NoReturn

from nodeagent_lab.sim.machine import state, sysfs_files
from nodeagent_lab.sim.machine.blueprint import Model
from nodeagent_lab.sim.machine.files import Entries, Entry, MachineFiles
from nodeagent_lab.sim.machine.state import VFIO, Device, Numbers, SimulatedNetdev, SimulatedRdma
from nodeagent_lab.sim.machine.sysfs_writes import WRITE_ONLY, SysfsWrite, find_writes

_MTU_MIN = 68
_GUID = re.compile(r"[0-9a-f]{2}(:[0-9a-f]{2}){7}")
_POLICY = re.compile("Down|Up|Follow")


class MachineError(Exception):
    """An action that is impossible now; the message has the reason, and the kernel's error if there is one."""


class Kernel:
    """Publishes nothing before ``show_in``."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.gpus = state.gpus(model)
        self.nics = state.nics(model)
        self._bridges = state.bridges(model)
        self._numbers = Numbers()
        self._files: MachineFiles | None = None
        known = [device.natural for device in (*self._bridges, *self.gpus, *self.nics)]
        known += [nic.nic.vf_driver for nic in self.nics if nic.nic]
        self._drivers = tuple(sorted({VFIO, *filter(None, known)}))
        for device in (*self._bridges, *self.gpus, *self.nics):
            self.appear(device)
            self.attach(device, device.natural)
        for nic in self.nics:
            assert nic.nic_line is not None
            self.enable(nic, nic.nic_line.num_vfs, guids=nic.nic_line.vf_guids)

    def show_in(self, files: MachineFiles) -> None:
        """Publish everything now, and every change from now on."""
        self._files = files
        self.publish("host", sysfs_files.host(self.model, self._drivers))
        for device in self.present():
            self.show(device)

    # The steps of the kernel

    def appear(self, device: Device) -> None:
        device.present = True
        if self.model.iommu:
            device.group = self._numbers.take("group")
        self.show(device)

    def vanish(self, device: Device) -> None:
        device.present = False
        device.override, device.autoprobe = None, True
        self.show(device)
        if device.group is not None:
            self._numbers.give("group", device.group)
            device.group = None

    def attach(self, device: Device, driver: str | None) -> None:
        device.driver = driver
        if driver == VFIO:
            device.vfio = self._numbers.take("group") if device.group is None else device.group
        elif driver is not None and device.nic is not None:
            self._make_netdev(device)
        self.show(device)

    def _make_netdev(self, device: Device) -> None:
        assert device.nic is not None
        assert device.nic_line is not None
        is_pf = device.pf is None
        device.netdev = SimulatedNetdev(
            name=state.netdev_name(device),
            mac=device.mac or state.octets(self.model, device).hex(":"),
            ifindex=self._numbers.take("ifindex", 2),
            mtu=device.nic_line.mtu if is_pf else 1500,
            admin_up=is_pf and device.nic_line.admin_up,
        )
        device.netdev.carrier_ups = int(device.carrier)
        if device.nic.rdma:
            prefix = device.nic.driver.removesuffix("_core")
            number = self._numbers.take(prefix)
            verbs, mad = self._numbers.take("uverbs"), self._numbers.take("umad")
            guid = device.context.node if device.context else None
            device.rdma = SimulatedRdma(f"{prefix}_{number}", number, verbs, mad, guid=guid)

    def detach(self, device: Device) -> None:
        if device.num_vfs:
            self.disable(device)
        if device.rdma is not None and device.nic is not None:
            self._numbers.give(device.nic.driver.removesuffix("_core"), device.rdma.number)
            self._numbers.give("uverbs", device.rdma.verbs)
            self._numbers.give("umad", device.rdma.mad)
        if device.netdev is not None:
            self._numbers.give("ifindex", device.netdev.ifindex)
        if device.vfio is not None and device.group is None:
            self._numbers.give("group", device.vfio)
        device.driver = device.netdev = device.rdma = device.vfio = None
        self.show(device)

    def enable(self, pf: Device, count: int, *, guids: bool = False) -> None:
        for index in range(count):
            vf = state.vf(pf, index)
            if guids and vf.context is not None:
                guid = f"02:{state.octets(self.model, vf).hex(':')}:01"
                vf.context = state.VfContext(guid, guid, "Follow")
            self.appear(vf)
            pf.vfs[index] = vf
            self.show(pf)
            self.show(vf)
            if pf.autoprobe:
                self.attach(vf, _match(vf))
        pf.num_vfs = count
        self.show(pf)

    def disable(self, pf: Device) -> None:
        for index in sorted(pf.vfs, reverse=True):
            vf = pf.vfs.pop(index)
            self.show(pf)
            if vf.present:
                self.detach(vf)
                self.vanish(vf)
        pf.num_vfs = 0
        self.show(pf)

    def with_carrier(self, devices: list[Device], act: Callable[[], None]) -> None:
        before = [device.carrier for device in devices]
        act()
        for device, had in zip(devices, before, strict=True):
            if device.netdev is not None and device.carrier != had:
                device.netdev.carrier_ups += device.carrier
                device.netdev.carrier_downs += not device.carrier
            self.show(device)

    # Finding and checking

    def gpu(self, which: int | str) -> Device:
        for gpu in self.gpus:
            assert gpu.gpu is not None
            if which in (gpu.gpu.index, gpu.gpu.uuid, gpu.address):
                return gpu
        refuse(f"there is no GPU {which!r}; there are {len(self.gpus)}, numbered from 0")

    def nic(self, which: int | str) -> Device:
        """A PF or a VF."""
        sriov = [nic for nic in self.nics if nic.may_have_vfs]
        if isinstance(which, int):
            if 0 <= which < len(sriov):
                return sriov[which]
            refuse(f"there is no NIC {which}; {len(sriov)} have SR-IOV, numbered from 0")
        for device in self.functions():
            if which == device.address or which == state.netdev_name(device):
                return device
        refuse(f"there is no NIC {which!r}; name it by netdev or PCI address")

    def functions(self) -> Iterator[Device]:
        for nic in self.nics:
            yield nic
            yield from nic.vfs.values()

    def present(self) -> list[Device]:
        everything = (*self._bridges, *self.gpus, *self.functions())
        return [device for device in everything if device.present]

    def function(self, which: int | str) -> Device:
        for gpu in self.gpus:
            if gpu.gpu is not None and which in (gpu.address, gpu.gpu.uuid):
                return gpu
        return self.nic(which)

    def netdev_here(self, device: Device) -> SimulatedNetdev:
        if device.netdev is None:
            refuse(f"{device.address} has no netdev (its driver is {device.driver or 'none'})")
        if not device.netdev.here:
            refuse(f"{device.netdev.name} is in a pod's network namespace; return_netdev first")
        return device.netdev

    def check_present(self, device: Device) -> None:
        if not device.present:
            refuse(f"{device.address} is unplugged; plug it first (ENODEV)")

    def check_vfs(self, pf: Device, count: int) -> None:
        self.check_present(pf)
        if not pf.may_have_vfs:
            refuse(f"{pf.address} has no SR-IOV capability")
        self.check_count(pf, count)
        if pf.driver != pf.natural:
            refuse(f"{pf.address} needs its driver {pf.natural} for VFs, not {pf.driver or 'none'} (ENOENT)")

    def check_count(self, pf: Device, count: int) -> None:
        total = pf.nic.totalvfs if pf.nic is not None and pf.may_have_vfs else 0
        if not 0 <= count <= total:
            refuse(f"{pf.address} can have 0 to {total} VFs, not {count} (ERANGE)")

    # Writes of other programs

    def take_writes(self) -> list[str | None]:
        """React to the writes of other programs: for each write ``None``, or the reason of its refusal."""
        if self._files is None:
            return []
        outcomes: list[str | None] = []
        for write in find_writes(self._files, self.present(), self._drivers):
            undo = self._files.accept(write.owner, write.path, write.value)
            if write.attribute in WRITE_ONLY:
                undo()  # before the effect: a program that sees the effect may write again at once
            try:
                self._take(write)
                outcomes.append(None)
            except MachineError as error:
                outcomes.append(str(error))
                undo()
        return outcomes

    def writable_folders(self) -> Iterator[str]:
        yield sysfs_files.BUS
        for driver in self._drivers:
            yield f"{sysfs_files.BUS}/drivers/{driver}"
        for device in self.present():
            yield device.folder
            if device.nic is not None and device.nic.vf_files:
                yield from (f"{device.folder}/sriov/{n}" for n, vf in device.vfs.items() if vf.context)
            if device.netdev is not None and device.netdev.here:
                yield f"{device.folder}/net/{device.netdev.name}"

    def _take(self, write: SysfsWrite) -> None:
        device, value = write.device, write.value
        if device is not None:
            self.check_present(device)
        if write.attribute == "bind":
            self._write_bind(write.driver or "", value)
        elif write.attribute == "unbind":
            self._write_unbind(write.driver or "", value)
        elif write.attribute == "drivers_probe":
            self._probe(self.function(value))
        elif device is None:
            refuse(f"{write.path} is not writable")
        elif write.attribute == "driver_override":
            device.override = value or None
            self.show(device)
        elif write.attribute == "sriov_drivers_autoprobe":
            device.autoprobe = bool(_number(write.path, value))
            self.show(device)
        elif write.attribute == "sriov_numvfs":
            self._write_numvfs(device, _number(write.path, value))
        elif write.attribute == "mtu":
            self._write_mtu(device, _number(write.path, value))
        elif write.attribute in sysfs_files.VF_FILES and device.context is not None:
            self._write_context(device, write.attribute, value)

    def _write_numvfs(self, pf: Device, count: int) -> None:
        self.check_vfs(pf, count)
        if count == pf.num_vfs:
            return
        if count and pf.num_vfs:
            refuse(f"{pf.address} has {pf.num_vfs} VFs; write 0 before {count} (EBUSY)")
        if count:
            self.enable(pf, count)
        else:
            self.disable(pf)

    def _write_mtu(self, device: Device, mtu: int) -> None:
        assert device.nic is not None
        netdev = self.netdev_here(device)
        if not _MTU_MIN <= mtu <= device.nic.mtu_max:
            refuse(f"{netdev.name}: the MTU is {_MTU_MIN} to {device.nic.mtu_max}, not {mtu} (EINVAL)")
        netdev.mtu = mtu
        self.show(device)

    def _write_context(self, vf: Device, name: str, value: str) -> None:
        """The port follows its policy at once; its GUIDs are read when the driver is bound."""
        assert vf.context is not None
        assert vf.pf is not None
        known = _POLICY if name == "policy" else _GUID
        if not known.fullmatch(value):
            refuse(f"{vf.address}: {name} is not {value!r} (EINVAL)")
        setattr(vf.context, name, value)
        self.show(vf)
        self.show(vf.pf)

    def _write_bind(self, driver: str, address: str) -> None:
        device = self.function(address)
        self.check_present(device)
        if not _matches(device, driver):
            refuse(f"{address} does not match {driver}; set its driver_override first (ENODEV)")
        if device.driver is not None:
            refuse(f"{address} belongs to {device.driver}; unbind it first (EBUSY)")
        self.attach(device, driver)

    def _write_unbind(self, driver: str, address: str) -> None:
        device = self.function(address)
        if device.driver != driver:
            refuse(f"{address} does not belong to {driver} (ENODEV)")
        self.detach(device)

    def _probe(self, device: Device) -> None:
        self.check_present(device)
        if device.driver is None:
            self.attach(device, _match(device))

    # Showing

    def show(self, device: Device) -> None:
        """Publish all entries of this function in sysfs and /dev: removals first, then additions."""
        if self._files is None:
            return
        shown = self._shown(device) if device.present else {}
        for kind in ("rdma", "verbs", "net", "vfio", "pci"):
            if kind not in shown:
                self._files.retract(f"{kind}:{device.address}")
        for kind, entries in shown.items():
            self.publish(f"{kind}:{device.address}", entries)

    def _shown(self, device: Device) -> dict[str, dict[str, Entry]]:
        model = self.model
        shown = {"pci": sysfs_files.pci(device, sysfs_files.cpulist(model, device.numa_node))}
        if device.vfio is not None:
            shown["vfio"] = sysfs_files.vfio(device, device.vfio, iommu=device.group is not None)
        if device.netdev is not None and device.netdev.here:
            shown["net"] = sysfs_files.net(device, device.netdev, model)
        if device.rdma is not None:
            if device.rdma.here:
                shown["rdma"] = sysfs_files.rdma(device, device.rdma, model)
            shown["verbs"] = sysfs_files.verbs(device, device.rdma)
        return shown

    def publish(self, owner: str, entries: Entries) -> None:
        if self._files is not None:
            self._files.publish(owner, entries)


def refuse(reason: str) -> NoReturn:
    raise MachineError(reason)


def _matches(device: Device, driver: str) -> bool:
    """drivers/pci/pci-driver.c, pci_match_device: with an override only that driver matches."""
    return driver == (device.override or device.natural)


def _match(device: Device) -> str | None:
    known = device.override in (None, device.natural, VFIO)
    return (device.override or device.natural) if known else None


def _number(path: str, text: str) -> int:
    try:
        return int(text, 0)
    except ValueError:
        refuse(f"{path} takes a number, not {text!r} (EINVAL)")
