"""The simulated machine: events and faults, and the files that the kernel publishes after them.

Every mutation changes the state, then the files in the order of the kernel, then the facts of the GPU driver, and
then ``/.nodeagent/uevent``, which stands for the kernel's events. Measured values come last: the kernel sends no
event for them, and replacing their file is an event of its own. An event or a fault of a GPU changes the facts of its
driver alone: the kernel announces nothing. Important orders (drivers/pci/iov.c,
drivers/base/{core,dd}.c, net/core/dev.c):

* VFs appear one by one, each with its links before its driver; ``sriov_numvfs`` changes after the last one. They
  disappear in reverse order, ``virtfn<n>`` before the function, and the count changes at the end.
* A class or bus link appears before most of its target's files and disappears before them: a reader may find an
  incomplete netdev.
* ``driver`` appears before the driver has made a netdev, and disappears after the netdev.
* A driver that unbinds from a PF removes its VFs.
* A netdev in a pod leaves an empty ``net`` folder; the RDMA device leaves an empty ``infiniband``. Its character
  devices stay, because they do not belong to a network namespace.

The host's own services are included: a returning PF's netdev is configured as in the model.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec.structs import replace

from nodeagent.host.inotify import IN_CLOSE_WRITE, NAMES, FolderWatch, InotifyError
from nodeagent_lab.sim.machine import sample_files, sysfs_files
from nodeagent_lab.sim.machine.blueprint import Model, NicPart, load
from nodeagent_lab.sim.machine.files import MachineFiles
from nodeagent_lab.sim.machine.gpu_faults import GpuActions, GpuDriver
from nodeagent_lab.sim.machine.kernel import Kernel, MachineError, refuse
from nodeagent_lab.sim.machine.state import VFIO, Device, SimulatedNetdev, SubnetPort

log = logging.getLogger(__name__)

FACTS = "/.nodeagent/gpus.json"
UEVENT = "/.nodeagent/uevent"
NEIGHBORS = "/.nodeagent/lldp.json"


class Machine(GpuActions):
    """One machine. GPUs are named by index, UUID or PCI address; NICs by netdev or PCI address, and PFs with
    SR-IOV also by their place in PCI order. The results of ``gpu`` and ``nic`` are for reading only. ``GpuActions``
    has the events of GPUs.
    """

    def __init__(self, model: Model) -> None:
        self.model = model
        self._kernel = Kernel(model)
        self._driver = GpuDriver(model.driver)
        self._root: Path | None = None
        self._uevents = 0
        self.announced: Callable[[], object] = lambda: None
        """Called when the facts of the GPU driver, and when the kernel's event can be read."""

    @classmethod
    def load(cls, model: str | Path) -> Machine:
        """A machine of the package by name (``dgx-h100``), or a model file. Raises ``ModelError``."""
        return cls(load(model))

    def without_rdma(self) -> Machine:
        """The same machine with NICs without RDMA: pods on it get no node of /dev."""
        parts = {
            name: replace(part, rdma=False) if isinstance(part, NicPart) else part
            for name, part in self.model.parts.items()
        }
        return Machine(replace(self.model, parts=parts))

    def write(self, root: Path, *, again: bool = False) -> None:
        """Write the whole tree under ``root``, and every change from now on. ``again``: over the files of the same
        machine, whose readers continue; without VFs that only the earlier one had."""
        if again:
            self._driver.continue_after(root / FACTS.lstrip("/"))
        elif (root / "sys").exists() or (root / ".nodeagent").exists():
            raise MachineError(f"{root} already has a machine; use an empty folder")
        root.mkdir(parents=True, exist_ok=True)
        self._root = root
        files = MachineFiles(root, again=again)
        self._kernel.show_in(files)
        marker = f"kind: simulated\nmodel: {json.dumps(self.model.name)}\n"
        self._kernel.publish("marker", {"/.nodeagent/machine.yaml": marker})
        self._settle()
        files.live()

    # Devices

    @property
    def gpus(self) -> tuple[Device, ...]:
        """In the driver's order, including absent ones."""
        return tuple(self._kernel.gpus)

    @property
    def pfs(self) -> tuple[Device, ...]:
        """All PFs, with or without SR-IOV, in PCI order, including absent ones."""
        return tuple(self._kernel.nics)

    def gpu(self, which: int | str) -> Device:
        return self._kernel.gpu(which)

    def nic(self, which: int | str) -> Device:
        """A PF or a VF."""
        return self._kernel.nic(which)

    # NICs

    def set_vfs(self, pf: int | str, count: int) -> None:
        """Create or remove VFs. The number first becomes 0, as the kernel requires."""
        device = self.nic(pf)
        self._kernel.check_vfs(device, count)
        if count != device.num_vfs:
            self._kernel.disable(device)
            self._kernel.enable(device, count)
        self._settle()

    def set_link(self, nic: int | str, up: bool) -> None:
        """Set the cable of a PF, which its VFs share; for a VF its link state at the PF (auto or disable)."""
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
        """Move the netdev into a pod's network namespace; with ``rdma`` (exclusive mode) the RDMA device too."""
        device = self.nic(nic)
        self._kernel.netdev_here(device).here = False
        if device.rdma is not None and rdma:
            device.rdma.here = False
        self._kernel.show(device)
        self._settle()

    def return_netdev(self, nic: int | str) -> None:
        """End the pod's network namespace: its devices return to the host."""
        device = self.nic(nic)
        if device.netdev is None or device.netdev.here:
            refuse(f"the netdev of {device.address} is not in a pod")
        device.netdev.here = True
        if device.rdma is not None:
            device.rdma.here = True
        self._kernel.show(device)
        self._settle()

    # Counters and measured values of NICs

    def flap(self, nic: int | str, times: int = 1) -> None:
        """Lose and restore the carrier several times, faster than any reader notices."""
        device = self.nic(nic)
        infiniband = device.nic is not None and device.nic.link_type == "infiniband"
        if not (device.signal if infiniband else device.carrier):
            refuse(f"{device.address} has no carrier to flap; set_link first")
        for function in (device, *device.vfs.values()):
            if function.netdev is not None and function.carrier:
                function.netdev.carrier_downs += times
                function.netdev.carrier_ups += times
        device.hardware.add("link_down_events", times)
        device.hardware.add("ext_down", times)
        if infiniband:
            device.hardware.add("ib_link_downed", times)
        self._measured(device)

    def count(self, nic: int | str, name: str, by: float = 1) -> None:
        """Add to a counter of the recorded samples: ``symbol_errors``, ``lane_errors/2``, ``rdma_ack_timeouts``.

        A negative number lowers it, as reloading a driver does.
        """
        device = self.nic(nic)
        if not device.hardware.add(name, by):
            refuse(f"{device.address} has no counter {name!r}; see docs/reference/samples.md")
        self._measured(device)

    def light(self, nic: int | str, lane: int, watts: float) -> None:
        """Set the optical power that the transceiver receives on a lane."""
        self._measure(nic, f"rx_power_watts/{lane}", watts)

    def heat(self, nic: int | str, celsius: float) -> None:
        """Set the temperature of the transceiver."""
        self._measure(nic, "module_celsius", celsius)

    def set_speed(self, nic: int | str, mbps: int | None) -> None:
        """Set the negotiated speed; ``None`` is the port's highest."""
        device = self.nic(nic)
        device.hardware.speed_mbps = mbps
        self._measured(device)

    def downtrain(self, which: int | str, gts: str | None = None, width: int | None = None) -> None:
        """Train the PCIe link of a NIC or GPU to lower values (``gts`` as in sysfs: 16.0); without arguments to its
        full capability."""
        device = self._kernel.function(which)
        device.hardware.gts, device.hardware.width = gts, width
        self._measured(device)

    def count_aer(self, which: int | str, severity: str, name: str, by: int = 1) -> None:
        """Add AER errors: ``correctable``, ``nonfatal`` or ``fatal``, by the kernel's name, ``BadTLP``."""
        device = self._kernel.function(which)
        if name not in sysfs_files.AER.get(severity, ((), ""))[0]:
            refuse(f"AER has no {severity} error {name!r}")
        device.hardware.aer[severity, name] = device.hardware.aer.get((severity, name), 0) + by
        self._measured(device)

    def fail_reporter(self, nic: int | str, reporter: str = "fw_fatal") -> None:
        """Let a devlink health reporter report an error without recovery."""
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
        """Add or remove the GIDs of the RDMA port."""
        device = self.nic(nic)
        device.hardware.gids = there
        self._measured(device)

    def set_subnet(
        self,
        nic: int | str,
        *,
        state: str = "4: ACTIVE",
        lid: int = 1,
        sm_lid: int = 1,
        disabled: bool = False,
    ) -> None:
        """Set what the subnet manager gives an InfiniBand port; ``2: INIT`` with zeros is a port without one."""
        device = self.nic(nic)
        if device.rdma is None:
            refuse(f"{device.address} has no RDMA device")
        device.rdma.port = SubnetPort(state, lid, sm_lid)
        device.rdma.disabled = disabled
        self._measured(device)

    def _measure(self, nic: int | str, name: str, value: float) -> None:
        device = self.nic(nic)
        if name not in device.hardware.module:
            refuse(f"{device.address} does not measure {name!r}; see docs/reference/samples.md")
        device.hardware.module[name] = value
        self._measured(device)

    def _measured(self, device: Device) -> None:
        self._kernel.show(device)
        self._settle()

    # PCI functions

    def bind(self, which: int | str, driver: str | None) -> None:
        """Bind the function to another driver, or to none, regardless of its ``driver_override``."""
        device = self._kernel.function(which)
        self._kernel.check_present(device)
        if driver is not None and driver not in (device.natural, VFIO):
            refuse(f"{driver} does not support {device.address}; {device.natural} and {VFIO} do (ENODEV)")
        if driver != device.driver:
            self._kernel.detach(device)
            self._kernel.attach(device, driver)
        self._settle()

    def unplug(self, which: int | str) -> None:
        """Remove a function, and the VFs of a PF. For the GPU driver the GPU is lost."""
        device = self._kernel.function(which)
        self._kernel.check_present(device)
        if device.gpu is not None and device.driver == device.natural:
            device.gpu.lost = True
        self._kernel.detach(device)
        self._kernel.vanish(device)
        self._settle()

    def plug(self, which: int | str, vfs: int | None = None) -> None:
        """Add the function again, with its own driver and ``vfs`` VFs (default: the number in the model)."""
        device = self._kernel.function(which)
        if device.present:
            refuse(f"{device.address} is already plugged in")
        if vfs is None:
            vfs = device.nic_line.num_vfs if device.may_have_vfs and device.nic_line else 0
        self._kernel.check_count(device, vfs)
        self._kernel.appear(device)
        self._kernel.attach(device, device.natural)
        if device.gpu is not None:
            self._list_again(device.gpu)
        if vfs:
            self._kernel.enable(device, vfs)
        self._settle()

    def insert_card(self, nic: int | str, mac: str) -> None:
        """Put a card with this permanent MAC address, and the node GUID of it, into the slot of a PF that is unplugged;
        ``plug`` adds it."""
        device = self.nic(nic)
        if device.present:
            refuse(f"the slot of {device.address} is in use; unplug it first")
        device.mac = mac

    def set_neighbors(self, answer: str) -> None:
        """Set the answer of an lldpd on this machine, in the json0 format of lldpcli."""
        self._kernel.publish("neighbors", {NEIGHBORS: answer})
        self._settle()

    # Writes of other programs

    def apply_writes(self) -> tuple[str, ...]:
        """React like the kernel to the writes of other programs into sysfs since the last call.

        Returns a sentence for each write that the kernel would have refused; the file has the old value again. The
        writer gets no error, and of several writes to one file only the last one counts: the writer must check the
        result.
        """
        outcomes = self._kernel.take_writes()
        if None in outcomes:
            self._settle()
        return tuple(refusal for refusal in outcomes if refusal is not None)

    async def follow(self) -> None:
        """Call ``apply_writes`` after every write of another program, until cancelled. Call ``write`` first."""
        if self._root is None:
            refuse("write the machine first")
        root = str(self._root)
        with FolderWatch() as watch:
            watch.add(f"{root}/.nodeagent", NAMES)
            watched: set[str] = set()
            while True:
                folders = {root + folder for folder in self._kernel.writable_folders()}
                for folder in folders - watched:
                    # A mutation in another thread may just have removed the folder; the next round skips it.
                    with suppress(InotifyError):
                        watch.add(folder, IN_CLOSE_WRITE)
                        watched.add(folder)
                for refusal in self.apply_writes():
                    log.warning("A real kernel would refuse this write. reason=%r", refusal)
                changes = await watch.changes()
                watched -= {change.folder for change in changes if change.gone}

    # The end of every mutation

    def _settle(self) -> None:
        if self._root is None:
            return
        self._kernel.publish("routes", sysfs_files.routes(self._default_route()))
        self._publish_driver()
        self._uevents += 1
        self._kernel.publish("uevent", {UEVENT: f"{self._uevents}\n"})
        self.announced()
        taken = msgspec.json.encode(sample_files.samples(self._kernel.nics))
        self._kernel.publish("samples", {sample_files.PATH: _text(taken)})

    def _publish_driver(self) -> None:
        facts = self._driver.facts(self._kernel.gpus)
        self._kernel.publish("facts", {FACTS: _text(msgspec.json.format(msgspec.json.encode(facts)))})
        self.announced()

    def _default_route(self) -> SimulatedNetdev | None:
        for device in self._kernel.nics:
            netdev = device.netdev
            if netdev is not None and netdev.name == self.model.default_route:
                return netdev if netdev.here and netdev.admin_up else None
        return None


def _text(document: bytes) -> str:
    return document.decode() + "\n"
