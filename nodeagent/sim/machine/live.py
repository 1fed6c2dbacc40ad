"""The simulated machine, alive: what happens to a machine, and what the kernel then shows of it.

Every mutation changes the state, then the files in the order of the kernel, then the facts of the GPU
driver, and then ``/.nodeagent/uevent``, which stands for the kernel's announcements. What would be measured
comes last: nothing announces that, and to replace the file is an announcement of its own. Orders worth
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
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec.structs import replace

from nodeagent.host.inotify import IN_CLOSE_WRITE, NAMES, FolderWatch, InotifyError
from nodeagent.sim.machine import sample_files, sysfs_files
from nodeagent.sim.machine.blueprint import Model, NicPart, load
from nodeagent.sim.machine.driver_events import GpuDriver
from nodeagent.sim.machine.files import Files
from nodeagent.sim.machine.gpu_faults import GpuActions
from nodeagent.sim.machine.kernel import Kernel, MachineError, refuse
from nodeagent.sim.machine.state import VFIO, Device, Netdev

log = logging.getLogger(__name__)

FACTS = "/.nodeagent/gpus.json"
UEVENT = "/.nodeagent/uevent"


class Machine(GpuActions):
    """One machine. GPUs are named by index, UUID or PCI address; NICs by netdev or PCI address, and PFs with
    SR-IOV by their place in PCI order too. What ``gpu`` and ``nic`` give is for reading. What happens to
    GPUs is in ``GpuActions``.
    """

    def __init__(self, model: Model) -> None:
        self.model = model
        self._kernel = Kernel(model)
        self._driver = GpuDriver(model.driver)
        self._root: Path | None = None
        self._uevents = 0

    @classmethod
    def load(cls, model: str | Path) -> Machine:
        """A machine of the package by name (``dgx-h100``), or a model file. Raises ``ModelError``."""
        return cls(load(model))

    def without_rdma(self) -> Machine:
        """The same machine with NICs that know no RDMA: no pod on it is given a node of /dev."""
        parts = {
            name: replace(part, rdma=False) if isinstance(part, NicPart) else part
            for name, part in self.model.parts.items()
        }
        return Machine(replace(self.model, parts=parts))

    def write(self, root: Path) -> None:
        """Write the whole tree under ``root``; what happens from now on is shown there."""
        if (root / "sys").exists() or (root / ".nodeagent").exists():
            raise MachineError(f"{root} holds a machine already; take an empty folder")
        root.mkdir(parents=True, exist_ok=True)
        self._root = root
        files = Files(root)
        self._kernel.show_in(files)
        marker = f"kind: simulated\nmodel: {json.dumps(self.model.name)}\n"
        self._kernel.publish("marker", {"/.nodeagent/machine.yaml": marker})
        self._settle()
        files.live()

    # What is there

    @property
    def gpus(self) -> tuple[Device, ...]:
        """In the driver's order, absent ones too."""
        return tuple(self._kernel.gpus)

    @property
    def pfs(self) -> tuple[Device, ...]:
        """Every PF, with SR-IOV or not, in PCI order, absent ones too."""
        return tuple(self._kernel.nics)

    def gpu(self, which: int | str) -> Device:
        return self._kernel.gpu(which)

    def nic(self, which: int | str) -> Device:
        """A PF or a VF."""
        return self._kernel.nic(which)

    # NICs

    def set_vfs(self, pf: int | str, count: int) -> None:
        """Make or remove VFs, by way of none as an operator has to."""
        device = self.nic(pf)
        self._kernel.check_vfs(device, count)
        if count != device.num_vfs:
            self._kernel.disable(device)
            self._kernel.enable(device, count)
        self._settle()

    def set_link(self, nic: int | str, up: bool) -> None:
        """The cable of a PF, for its VFs too; of a VF, its link state at the PF (auto or disable)."""
        device = self.nic(nic)

        def act() -> None:
            device.cable = up

        self._kernel.with_carrier([device, *device.vfs.values()], act)
        self._settle()

    def set_admin(self, nic: int | str, up: bool) -> None:
        """``ip link set <netdev> up`` or ``down``."""
        device = self.nic(nic)
        netdev = self._kernel.netdev_here(device)

        def act() -> None:
            netdev.admin_up = up

        self._kernel.with_carrier([device], act)
        self._settle()

    def move_netdev(self, nic: int | str, rdma: bool = True) -> None:
        """Into a pod's network namespace; the RDMA device as well where those are exclusive."""
        device = self.nic(nic)
        self._kernel.netdev_here(device).here = False
        if device.rdma is not None and rdma:
            device.rdma.here = False
        self._kernel.show(device)
        self._settle()

    def return_netdev(self, nic: int | str) -> None:
        """The pod's network namespace is gone, and what was in it is the host's again."""
        device = self.nic(nic)
        if device.netdev is None or device.netdev.here:
            refuse(f"the netdev of {device.address} is in no pod")
        device.netdev.here = True
        if device.rdma is not None:
            device.rdma.here = True
        self._kernel.show(device)
        self._settle()

    # What a NIC measures

    def flap(self, nic: int | str, times: int = 1) -> None:
        """The carrier goes and comes back so often, faster than anybody looks."""
        device = self.nic(nic)
        if not device.carrier:
            refuse(f"{device.address} has no carrier that could flap; set_link first")
        for one in (device, *device.vfs.values()):
            if one.netdev is not None and one.carrier:
                one.netdev.carrier_downs += times
                one.netdev.carrier_ups += times
        device.hardware.add("link_down_events", times)
        device.hardware.add("ext_down", times)
        self._measured(device)

    def count(self, nic: int | str, name: str, by: float = 1) -> None:
        """A counter of the recorded samples grows: ``symbol_errors``, ``lane_errors/2``, ``rdma_ack_timeouts``.

        A negative number takes it back, as a driver that is loaded anew does.
        """
        device = self.nic(nic)
        if not device.hardware.add(name, by):
            refuse(f"{device.address} has no counter {name!r}; see docs/samples.md")
        self._measured(device)

    def light(self, nic: int | str, lane: int, watts: float) -> None:
        """What the transceiver receives on a lane."""
        self._measure(nic, f"rx_power_watts/{lane}", watts)

    def heat(self, nic: int | str, celsius: float) -> None:
        """The temperature of the transceiver."""
        self._measure(nic, "module_celsius", celsius)

    def set_speed(self, nic: int | str, mbps: int | None) -> None:
        """What the link has negotiated; ``None`` is the port's best."""
        device = self.nic(nic)
        device.hardware.speed_mbps = mbps
        self._measured(device)

    def downtrain(self, which: int | str, gts: str | None = None, width: int | None = None) -> None:
        """The PCIe link of a NIC or GPU trains to less (``gts`` as sysfs words it: 16.0); without any it is
        as good as new."""
        device = self._kernel.function(which)
        device.hardware.gts, device.hardware.width = gts, width
        self._measured(device)

    def count_aer(self, which: int | str, severity: str, name: str, by: int = 1) -> None:
        """AER counts errors: ``correctable``, ``nonfatal`` or ``fatal``, by the kernel's name, ``BadTLP``."""
        device = self._kernel.function(which)
        if name not in sysfs_files.AER.get(severity, ((), ""))[0]:
            refuse(f"AER counts no {severity} {name!r}")
        device.hardware.aer[severity, name] = device.hardware.aer.get((severity, name), 0) + by
        self._measured(device)

    def fail_reporter(self, nic: int | str, reporter: str = "fw_fatal") -> None:
        """A devlink health reporter reports an error and does not recover from it."""
        self.count(nic, f"devlink_errors/{reporter}")
        device = self.nic(nic)
        device.hardware.failing.add(reporter)
        self._measured(device)

    def recover_reporter(self, nic: int | str, reporter: str = "fw_fatal") -> None:
        device = self.nic(nic)
        if reporter not in device.hardware.failing:
            refuse(f"{device.address}: the reporter {reporter} has not failed")
        device.hardware.failing.discard(reporter)
        self.count(nic, f"devlink_recoveries/{reporter}")

    def set_gids(self, nic: int | str, there: bool) -> None:
        """The GIDs of the RDMA port."""
        device = self.nic(nic)
        device.hardware.gids = there
        self._measured(device)

    def _measure(self, nic: int | str, name: str, value: float) -> None:
        device = self.nic(nic)
        if name not in device.hardware.module:
            refuse(f"{device.address} does not measure {name!r}; see docs/samples.md")
        device.hardware.module[name] = value
        self._measured(device)

    def _measured(self, device: Device) -> None:
        self._kernel.show(device)
        self._settle()

    # PCI functions of any sort

    def bind(self, which: int | str, driver: str | None) -> None:
        """Give the function to another driver, or to none, whatever its ``driver_override`` says."""
        device = self._kernel.function(which)
        self._kernel.check_present(device)
        if driver is not None and driver not in (device.natural, VFIO):
            refuse(f"{driver} does not know {device.address}; {device.natural} and {VFIO} do (ENODEV)")
        if driver != device.driver:
            self._kernel.detach(device)
            self._kernel.attach(device, driver)
        self._settle()

    def unplug(self, which: int | str) -> None:
        """Pull a function out; a PF takes its VFs along. The GPU driver loses its GPU."""
        device = self._kernel.function(which)
        self._kernel.check_present(device)
        if device.gpu is not None and device.driver == device.natural:
            device.gpu.lost = True
        self._kernel.detach(device)
        self._kernel.vanish(device)
        self._settle()

    def plug(self, which: int | str, vfs: int | None = None) -> None:
        """Put it back, with its own driver and with ``vfs`` VFs: by default what the model gives it at boot."""
        device = self._kernel.function(which)
        if device.present:
            refuse(f"{device.address} is plugged in already")
        if vfs is None:
            vfs = device.nic_line.num_vfs if device.may_have_vfs and device.nic_line else 0
        self._kernel.check_count(device, vfs)
        self._kernel.appear(device)
        self._kernel.attach(device, device.natural)
        if device.gpu is not None:
            device.gpu.lost = False
        if vfs:
            self._kernel.enable(device, vfs)
        self._settle()

    # What someone else writes

    def apply_writes(self) -> tuple[str, ...]:
        """React to what others wrote into sysfs since the last look, as the kernel would have.

        Answers what the kernel would have refused, in sentences; the file then shows the old value again.
        The writer is not told, and the last of several writes to one file is the one that is seen: he has
        to look whether what he asked for has happened.
        """
        outcomes = self._kernel.take_writes()
        if None in outcomes:
            self._settle()
        return tuple(refusal for refusal in outcomes if refusal is not None)

    async def follow(self) -> None:
        """``apply_writes`` whenever something has been written, until cancelled. Needs ``write`` before."""
        if self._root is None:
            refuse("write the machine first")
        root = str(self._root)
        with FolderWatch() as watch:
            watch.add(f"{root}/.nodeagent", NAMES)
            watched: set[str] = set()
            while True:
                folders = {root + folder for folder in self._kernel.writable_folders()}
                for folder in folders - watched:
                    # It may go in this moment, by a mutation from another thread; the next look knows.
                    with suppress(InotifyError):
                        watch.add(folder, IN_CLOSE_WRITE)
                        watched.add(folder)
                for refusal in self.apply_writes():
                    log.warning("The kernel would refuse this. reason=%r", refusal)
                changes = await watch.changes()
                watched -= {change.folder for change in changes if change.gone}

    # The end of every mutation

    def _settle(self) -> None:
        if self._root is None:
            return
        self._kernel.publish("routes", sysfs_files.routes(self._default_route()))
        facts = self._driver.facts(self._kernel.gpus)
        self._kernel.publish("facts", {FACTS: _text(msgspec.json.format(msgspec.json.encode(facts)))})
        self._uevents += 1
        self._kernel.publish("uevent", {UEVENT: f"{self._uevents}\n"})
        taken = msgspec.json.encode(sample_files.samples(self._kernel.nics))
        self._kernel.publish("samples", {sample_files.PATH: _text(taken)})

    def _default_route(self) -> Netdev | None:
        for device in self._kernel.nics:
            netdev = device.netdev
            if netdev is not None and netdev.name == self.model.default_route:
                return netdev if netdev.here and netdev.admin_up else None
        return None


def _text(document: bytes) -> str:
    return document.decode() + "\n"
