"""The simulated machine, alive: what happens to a machine, and what the kernel then shows of it.

Every mutation changes the state, then the files in the order of the kernel, then the facts of the GPU
driver, and at last ``/.nodeagent/uevent``, which stands for the kernel's announcements. Orders worth
knowing (drivers/pci/iov.c, drivers/base/{core,dd}.c, net/core/dev.c):

* VFs appear one by one, each with its links before its driver, and ``sriov_numvfs`` tells the new count
  after the last. They go last one first, ``virtfn<n>`` before the function, and the count again at the end.
* A class or bus link comes before most of what it leads to, and goes before it: a reader may find a netdev
  half there.
* ``driver`` is there before the driver has made a netdev, and goes after the netdev has.
* A driver that lets go of a PF takes its VFs away with it.
* A netdev in a pod leaves an empty ``net`` folder; the RDMA device leaves an empty ``infiniband``, its
  character devices stay (they know no network namespace).

What the host's own services would do at once is done: a PF's netdev comes back as the model configures it.
"""

from __future__ import annotations

import json
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Literal, NoReturn

from nodeagent.host.inotify import IN_CLOSE_WRITE, NAMES, Watch
from nodeagent.sim.machine import state, sysfs
from nodeagent.sim.machine.files import Entry, Files
from nodeagent.sim.machine.model import Model, load
from nodeagent.sim.machine.state import VFIO, Device, Netdev, Numbers, Rdma
from nodeagent.sim.machine.writes import Write, writes

log = logging.getLogger(__name__)

FACTS = "/.nodeagent/gpus.json"
UEVENT = "/.nodeagent/uevent"
_EVENTS_KEPT = 64
_MTU_MIN = 68

RecoveryAction = Literal["none", "gpu_reset", "node_reboot", "drain_p2p", "drain_and_reset"]
Call = Literal["init", "wait", "list"]


class MachineError(Exception):
    """What cannot happen to this machine now; the message says why, with the kernel's error where it has one."""


class Machine:
    """One machine. GPUs are named by index, UUID or PCI address; NICs by netdev or PCI address, and PFs with
    SR-IOV by their place in PCI order too. What ``gpu`` and ``nic`` give is for reading.
    """

    def __init__(self, model: Model) -> None:
        self.model = model
        self._files: Files | None = None
        self._numbers = Numbers()
        self._bridges = state.bridges(model)
        self._gpus = state.gpus(model)
        self._nics = state.nics(model)
        self._failure: dict[str, str] | None = None
        self._events: deque[dict[str, str | int]] = deque(maxlen=_EVENTS_KEPT)
        self._sequence = 0
        self._uevents = 0
        natural = (device.natural for device in (*self._bridges, *self._gpus, *self._nics))
        vf_drivers = (nic.nic.vf_driver for nic in self._nics if nic.nic)
        self._drivers = tuple(sorted({VFIO, *filter(None, natural), *filter(None, vf_drivers)}))
        for device in (*self._bridges, *self._gpus, *self._nics):
            self._appear(device)
            self._attach(device, device.natural)
        for nic in self._nics:
            assert nic.nic_line is not None
            self._enable(nic, nic.nic_line.num_vfs)

    @classmethod
    def load(cls, model: str | Path) -> Machine:
        """A machine of the package by name (``dgx-h100``), or a model file. Raises ``ModelError``."""
        return cls(load(model))

    def write(self, root: Path) -> None:
        """Write the whole tree under ``root``; what happens from now on is shown there."""
        if (root / "sys").exists() or (root / ".nodeagent").exists():
            raise MachineError(f"{root} holds a machine already; take an empty folder")
        root.mkdir(parents=True, exist_ok=True)
        self._files = Files(root)
        marker = f"kind: simulated\nmodel: {json.dumps(self.model.name)}\n"
        self._publish("marker", {"/.nodeagent/machine.yaml": marker})
        self._publish("host", sysfs.host(self.model, self._drivers))
        for device in self._present():
            self._show(device)
        self._settle()
        self._files.live()

    # What is there

    @property
    def gpus(self) -> tuple[Device, ...]:
        """In the driver's order, absent ones too."""
        return tuple(self._gpus)

    @property
    def pfs(self) -> tuple[Device, ...]:
        """Every PF, with SR-IOV or not, in PCI order, absent ones too."""
        return tuple(self._nics)

    def gpu(self, which: int | str) -> Device:
        for gpu in self._gpus:
            assert gpu.gpu is not None
            if which in (gpu.gpu.index, gpu.gpu.uuid, gpu.address):
                return gpu
        _refuse(f"there is no GPU {which!r}; there are {len(self._gpus)}, numbered from 0")

    def nic(self, which: int | str) -> Device:
        """A PF or a VF."""
        sriov = [nic for nic in self._nics if nic.may_have_vfs]
        if isinstance(which, int):
            if 0 <= which < len(sriov):
                return sriov[which]
            _refuse(f"there is no NIC {which}; {len(sriov)} have SR-IOV, numbered from 0")
        for device in self._functions():
            if which == device.address or which == state.netdev_name(device):
                return device
        _refuse(f"there is no NIC {which!r}; name it by netdev or PCI address")

    # NICs

    def set_vfs(self, pf: int | str, count: int) -> None:
        """Make or remove VFs, by way of none as an operator has to."""
        device = self.nic(pf)
        self._check_vfs(device, count)
        if count != device.num_vfs:
            self._disable(device)
            self._enable(device, count)
        self._settle()

    def set_link(self, nic: int | str, up: bool) -> None:
        """The cable of a PF, for its VFs too; of a VF, its link state at the PF (auto or disable)."""
        device = self.nic(nic)

        def act() -> None:
            device.cable = up

        self._with_carrier([device, *device.vfs.values()], act)
        self._settle()

    def set_admin(self, nic: int | str, up: bool) -> None:
        """``ip link set <netdev> up`` or ``down``."""
        device = self.nic(nic)
        netdev = self._netdev_here(device)

        def act() -> None:
            netdev.admin_up = up

        self._with_carrier([device], act)
        self._settle()

    def move_netdev(self, nic: int | str, rdma: bool = True) -> None:
        """Into a pod's network namespace; the RDMA device as well where those are exclusive."""
        device = self.nic(nic)
        self._netdev_here(device).here = False
        if device.rdma is not None and rdma:
            device.rdma.here = False
        self._show(device)
        self._settle()

    def return_netdev(self, nic: int | str) -> None:
        """The pod's network namespace is gone, and what was in it is the host's again."""
        device = self.nic(nic)
        if device.netdev is None or device.netdev.here:
            _refuse(f"the netdev of {device.address} is in no pod")
        device.netdev.here = True
        if device.rdma is not None:
            device.rdma.here = True
        self._show(device)
        self._settle()

    # PCI functions of any sort

    def bind(self, which: int | str, driver: str | None) -> None:
        """Give the function to another driver, or to none, whatever its ``driver_override`` says."""
        device = self._function(which)
        self._check_present(device)
        if driver is not None and driver not in (device.natural, VFIO):
            _refuse(
                f"{device.address}: {driver} does not know this device ({device.natural} and {VFIO} do; ENODEV)"
            )
        if driver != device.driver:
            self._detach(device)
            self._attach(device, driver)
        self._settle()

    def unplug(self, which: int | str) -> None:
        """Pull a function out; a PF takes its VFs along. The GPU driver loses its GPU."""
        device = self._function(which)
        self._check_present(device)
        if device.gpu is not None and device.driver == device.natural:
            device.gpu.lost = True
        self._detach(device)
        self._vanish(device)
        self._settle()

    def plug(self, which: int | str, vfs: int | None = None) -> None:
        """Put it back, with its own driver and with ``vfs`` VFs: by default what the model gives it at boot."""
        device = self._function(which)
        if device.present:
            _refuse(f"{device.address} is plugged in already")
        if device.pf is not None and not device.pf.present:
            _refuse(f"{device.address} is a VF of {device.pf.address}, which is not there; plug that first")
        count = 0
        if device.may_have_vfs and device.nic_line is not None:
            count = device.nic_line.num_vfs if vfs is None else vfs
        self._appear(device)
        self._attach(device, device.natural)
        if device.gpu is not None:
            device.gpu.lost = False
        if device.may_have_vfs:
            self._check_vfs(device, count)
            self._enable(device, count)
        self._settle()

    # The GPU driver

    def raise_xid(self, gpu: int | str, xid: int) -> None:
        facts = self.gpu(gpu).gpu
        assert facts is not None
        self._sequence += 1
        self._events.append({"sequence": self._sequence, "uuid": facts.uuid, "xid": xid})
        self._settle()

    def set_recovery_action(self, gpu: int | str, action: RecoveryAction) -> None:
        facts = self.gpu(gpu).gpu
        assert facts is not None
        facts.recovery_action = action
        self._settle()

    def lose_gpu(self, gpu: int | str) -> None:
        """It has fallen off the bus for the driver. The driver reports XID 79 with that: ``raise_xid``."""
        facts = self.gpu(gpu).gpu
        assert facts is not None
        facts.lost = True
        self._settle()

    def find_gpu(self, gpu: int | str) -> None:
        device = self.gpu(gpu)
        self._check_present(device)
        assert device.gpu is not None
        device.gpu.lost = False
        self._settle()

    def fail_driver(self, call: Call, error: str) -> None:
        """From now on this call of the GPU driver fails."""
        self._failure = {"call": call, "error": error}
        self._settle()

    def heal_driver(self) -> None:
        self._failure = None
        self._settle()

    # What someone else writes

    def apply_writes(self) -> tuple[str, ...]:
        """React to what others wrote into sysfs since the last look, as the kernel would have.

        Answers what the kernel would have refused, in sentences; the file then shows the old value again.
        The writer is not told, and the last of several writes to one file is the one that is seen: he has
        to look whether what he asked for has happened.
        """
        if self._files is None:
            return ()
        refused = []
        for write in writes(self._files, self._present(), self._drivers):
            # First, for what was written is not what the kernel shows, and a writer who has seen the effect
            # may write again at once.
            self._files.restore(write.owner, write.path)
            try:
                self._apply(write)
            except MachineError as error:
                refused.append(str(error))
        return tuple(refused)

    async def follow(self) -> None:
        """``apply_writes`` whenever something has been written, until cancelled. Needs ``write`` before."""
        if self._files is None:
            _refuse("write the machine first")
        root = str(self._files.root)
        with Watch() as watch:
            watch.add(f"{root}/.nodeagent", NAMES)
            watched: set[str] = set()
            while True:
                folders = {root + folder for folder in self._writable_folders()}
                for folder in folders - watched:
                    watch.add(folder, IN_CLOSE_WRITE)
                watched |= folders
                for refusal in self.apply_writes():
                    log.warning("The kernel would refuse this. reason=%r", refusal)
                changes = await watch.changes()
                watched -= {change.folder for change in changes if change.gone}

    def _apply(self, write: Write) -> None:
        device, value = write.device, write.value
        if write.attribute == "bind":
            self._write_bind(write.driver or "", value)
        elif write.attribute == "unbind":
            self._write_unbind(write.driver or "", value)
        elif write.attribute == "drivers_probe":
            self._probe(self._function(value))
        elif device is None:
            _refuse(f"{write.path} takes no writes")
        elif write.attribute == "driver_override":
            device.override = value or None
            self._show(device)
        elif write.attribute == "sriov_drivers_autoprobe":
            device.autoprobe = bool(_number(write.path, value))
            self._show(device)
        elif write.attribute == "sriov_numvfs":
            self._write_numvfs(device, _number(write.path, value))
        elif write.attribute == "mtu":
            self._write_mtu(device, _number(write.path, value))
        self._settle()

    def _write_numvfs(self, pf: Device, count: int) -> None:
        self._check_vfs(pf, count)
        if count == pf.num_vfs:
            return
        if count and pf.num_vfs:
            _refuse(f"{pf.address} has {pf.num_vfs} VFs; write 0 before {count} (EBUSY)")
        if count:
            self._enable(pf, count)
        else:
            self._disable(pf)

    def _write_mtu(self, device: Device, mtu: int) -> None:
        assert device.nic is not None
        netdev = self._netdev_here(device)
        if not _MTU_MIN <= mtu <= device.nic.mtu_max:
            _refuse(f"{netdev.name}: the MTU is {_MTU_MIN} to {device.nic.mtu_max}, not {mtu} (EINVAL)")
        netdev.mtu = mtu
        self._show(device)

    def _write_bind(self, driver: str, address: str) -> None:
        device = self._function(address)
        self._check_present(device)
        if not _matches(device, driver):
            _refuse(f"{address} does not match {driver}; set its driver_override first (ENODEV)")
        if device.driver is not None:
            _refuse(f"{address} belongs to {device.driver}; unbind it first (EBUSY)")
        self._attach(device, driver)

    def _write_unbind(self, driver: str, address: str) -> None:
        device = self._function(address)
        if device.driver != driver:
            _refuse(f"{address} does not belong to {driver} (ENODEV)")
        self._detach(device)

    def _probe(self, device: Device) -> None:
        self._check_present(device)
        if device.driver is None:
            self._attach(device, _match(device))

    def _writable_folders(self) -> Iterator[str]:
        yield sysfs.BUS
        for driver in self._drivers:
            yield f"{sysfs.BUS}/drivers/{driver}"
        for device in self._present():
            yield device.folder
            if device.netdev is not None and device.netdev.here:
                yield f"{device.folder}/net/{device.netdev.name}"

    # The steps of the kernel

    def _appear(self, device: Device) -> None:
        device.present = True
        if self.model.iommu:
            device.group = self._numbers.take("group")
        self._show(device)

    def _vanish(self, device: Device) -> None:
        device.present = False
        device.override = None
        self._show(device)
        if device.group is not None:
            self._numbers.give("group", device.group)
            device.group = None

    def _attach(self, device: Device, driver: str | None) -> None:
        device.driver = driver
        if driver == VFIO:
            device.vfio = self._numbers.take("group") if device.group is None else device.group
        elif driver is not None and device.nic is not None:
            self._make_netdev(device)
        self._show(device)

    def _make_netdev(self, device: Device) -> None:
        assert device.nic is not None
        assert device.nic_line is not None
        is_pf = device.pf is None
        device.netdev = Netdev(
            name=state.netdev_name(device),
            mac=state.octets(self.model, device).hex(":"),
            ifindex=self._numbers.take("ifindex", 2),
            mtu=device.nic_line.mtu if is_pf else 1500,
            admin_up=is_pf and device.nic_line.admin_up,
        )
        device.netdev.carrier_ups = int(device.carrier)
        if device.nic.rdma:
            prefix = device.nic.driver.removesuffix("_core")
            number = self._numbers.take(prefix)
            verbs, mad = self._numbers.take("uverbs"), self._numbers.take("umad")
            device.rdma = Rdma(f"{prefix}_{number}", number, verbs, mad)

    def _detach(self, device: Device) -> None:
        if device.num_vfs:
            self._disable(device)
        if device.rdma is not None and device.nic is not None:
            self._numbers.give(device.nic.driver.removesuffix("_core"), device.rdma.number)
            self._numbers.give("uverbs", device.rdma.verbs)
            self._numbers.give("umad", device.rdma.mad)
        if device.netdev is not None:
            self._numbers.give("ifindex", device.netdev.ifindex)
        if device.vfio is not None and device.group is None:
            self._numbers.give("group", device.vfio)
        device.driver = device.netdev = device.rdma = device.vfio = None
        self._show(device)

    def _enable(self, pf: Device, count: int) -> None:
        for index in range(count):
            vf = state.vf(pf, index)
            self._appear(vf)
            pf.vfs[index] = vf
            self._show(pf)
            self._show(vf)
            if pf.autoprobe:
                self._attach(vf, _match(vf))
        pf.num_vfs = count
        self._show(pf)

    def _disable(self, pf: Device) -> None:
        for index in sorted(pf.vfs, reverse=True):
            vf = pf.vfs.pop(index)
            self._show(pf)
            if vf.present:
                self._detach(vf)
                self._vanish(vf)
        pf.num_vfs = 0
        self._show(pf)

    def _with_carrier(self, devices: list[Device], act: Callable[[], None]) -> None:
        before = [device.carrier for device in devices]
        act()
        for device, had in zip(devices, before, strict=True):
            if device.netdev is not None and device.carrier != had:
                device.netdev.carrier_ups += device.carrier
                device.netdev.carrier_downs += not device.carrier
            self._show(device)

    # Showing

    def _show(self, device: Device) -> None:
        """All that sysfs and /dev show of this function: what goes first, then what comes."""
        if self._files is None:
            return
        shown = self._shown(device) if device.present else {}
        for kind in ("rdma", "verbs", "net", "vfio", "pci"):
            if kind not in shown:
                self._files.retract(f"{kind}:{device.address}")
        for kind, entries in shown.items():
            self._publish(f"{kind}:{device.address}", entries)

    def _shown(self, device: Device) -> dict[str, dict[str, Entry]]:
        model = self.model
        shown = {"pci": sysfs.pci(device, sysfs.cpulist(model, device.numa_node))}
        if device.vfio is not None:
            shown["vfio"] = sysfs.vfio(device, device.vfio, iommu=device.group is not None)
        if device.netdev is not None and device.netdev.here:
            shown["net"] = sysfs.net(device, device.netdev, model)
        if device.rdma is not None:
            if device.rdma.here:
                shown["rdma"] = sysfs.rdma(device, device.rdma, model)
            shown["verbs"] = sysfs.verbs(device, device.rdma)
        return shown

    def _settle(self) -> None:
        """The end of every mutation: routes, the GPU driver's facts, the announcement."""
        if self._files is None:
            return
        self._publish("routes", sysfs.routes(self._default_route()))
        self._publish("facts", {FACTS: json.dumps(self._facts(), indent=2) + "\n"})
        self._uevents += 1
        self._publish("uevent", {UEVENT: f"{self._uevents}\n"})

    def _publish(self, owner: str, entries: dict[str, Entry] | dict[str, str]) -> None:
        if self._files is not None:
            self._files.publish(owner, entries)

    def _default_route(self) -> Netdev | None:
        for device in self._nics:
            netdev = device.netdev
            if netdev is not None and netdev.name == self.model.default_route:
                return netdev if netdev.here and netdev.admin_up else None
        return None

    def _facts(self) -> dict[str, object]:
        driver = self.model.driver
        gpus = []
        for device in self._gpus:
            facts = device.gpu
            assert facts is not None
            # One that another driver has is none of this driver's; one that has gone still is, as lost.
            if device.driver == device.natural or (not device.present and facts.lost):
                gpus.append(
                    {
                        "uuid": facts.uuid,
                        "index": facts.index,
                        "minor": facts.index,
                        "name": facts.part.name,
                        "pci_address": device.address,
                        "memory_mib": facts.part.memory_mib,
                        "mig": facts.mig,
                        "lost": facts.lost,
                        "recovery_action": facts.recovery_action,
                    }
                )
        return {
            "driver_version": driver.version if driver else None,
            "cuda_version": driver.cuda_version if driver else None,
            "failure": self._failure,
            "gpus": gpus,
            "events": list(self._events),
        }

    # Finding

    def _functions(self) -> Iterator[Device]:
        for nic in self._nics:
            yield nic
            yield from nic.vfs.values()

    def _present(self) -> Iterable[Device]:
        everything = (*self._bridges, *self._gpus, *self._functions())
        return [device for device in everything if device.present]

    def _function(self, which: int | str) -> Device:
        for gpu in self._gpus:
            if gpu.gpu is not None and which in (gpu.address, gpu.gpu.uuid):
                return gpu
        return self.nic(which)

    def _netdev_here(self, device: Device) -> Netdev:
        if device.netdev is None:
            _refuse(f"{device.address} has no netdev (its driver is {device.driver or 'none'})")
        if not device.netdev.here:
            _refuse(f"{device.netdev.name} is in a pod's network namespace; return_netdev first")
        return device.netdev

    def _check_present(self, device: Device) -> None:
        if not device.present:
            _refuse(f"{device.address} is unplugged; plug it first (ENODEV)")

    def _check_vfs(self, pf: Device, count: int) -> None:
        self._check_present(pf)
        if not pf.may_have_vfs or pf.nic is None:
            _refuse(f"{pf.address} has no SR-IOV capability")
        if not 0 <= count <= pf.nic.totalvfs:
            _refuse(f"{pf.address} can have 0 to {pf.nic.totalvfs} VFs, not {count} (ERANGE)")
        if pf.driver != pf.natural:
            _refuse(f"{pf.address} has no driver that could make VFs, but {pf.driver or 'none'} (ENOENT)")


def _refuse(why: str) -> NoReturn:
    raise MachineError(why)


def _matches(device: Device, driver: str) -> bool:
    """drivers/pci/pci-driver.c, pci_match_device: an override is the only one that may."""
    return driver == (device.override or device.natural)


def _match(device: Device) -> str | None:
    known = device.override in (None, device.natural, VFIO)
    return (device.override or device.natural) if known else None


def _number(path: str, text: str) -> int:
    try:
        return int(text, 0)
    except ValueError:
        _refuse(f"{path} takes a number, not {text!r} (EINVAL)")
