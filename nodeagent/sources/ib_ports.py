"""Find the InfiniBand ports of this machine, and the umad device of each, in sysfs.

* Only PFs count: the far end of a VF's cable is that of its PF, and a VF has no subnet management interface (SMI).
* The number of a umad device has nothing to do with that of the RDMA device: its files ``ibdev`` and ``port`` decide.
* A port has an SMI exactly if it has an ``issm`` device, which is never opened: this would announce a subnet manager.
* The main device of an adapter with planes (ConnectX-8) has no SMI. A sub-device of the type SMI with the same port
  GUID has one, if an administrator has made it (``rdma dev add``); the agent makes none.

Sources: drivers/infiniband/core/user_mad.c (ib_umad_init_port) and sysfs.c of Linux 6.12; rdma-dev(8).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from nodeagent.facts.model import Function, Link
from nodeagent.host.sysfs import SysfsScan, Tree, naturally_sorted
from nodeagent.infiniband.asking import IbPortState

IB_CLASS = "/sys/class/infiniband"
MAD_CLASS = "/sys/class/infiniband_mad"
_INFINIBAND = "InfiniBand"


@dataclass(frozen=True, slots=True)
class IbPort:
    """One port of a PF. ``umad`` is the device to ask through, and ``umad_port`` the number of the port there.

    ``umad`` of ``None``: the port has no device (the module ib_umad is not loaded), or none with an SMI: then
    ``has_mads`` is true."""

    link: str
    pci_address: str
    device: str
    number: int
    state: IbPortState
    umad: str | None = None
    umad_port: int = 1
    has_mads: bool = False


def read_ib_ports(tree: Tree, functions: Iterable[Function], links: Iterable[Link]) -> tuple[IbPort, ...]:
    """The InfiniBand ports of the PFs on the bus. Files that cannot be read count as absent."""
    sysfs = SysfsScan(tree)
    pfs = [
        function
        for function in functions
        if function.parent is None and function.link_type == "infiniband" and not function.missing
    ]
    if not pfs:
        return ()
    names = {link.pci_address: link.netdev for link in links}
    devices = _MadDevices(sysfs)
    return tuple(port for pf in pfs for port in _of_function(sysfs, pf, names, devices))


def _of_function(
    sysfs: SysfsScan, pf: Function, names: Mapping[str, str], devices: _MadDevices
) -> Iterator[IbPort]:
    if pf.rdma is None:
        return
    device = pf.rdma.device
    for name in naturally_sorted(sysfs.names(f"{IB_CLASS}/{device}/ports")):
        folder = f"{IB_CLASS}/{device}/ports/{name}"
        if not name.isdecimal() or sysfs.read(sysfs.tree.text, f"{folder}/link_layer") != _INFINIBAND:
            continue
        port = int(name)
        link = names.get(pf.pci_address) if port == 1 else None
        umad, umad_port = devices.of(device, port)
        yield IbPort(
            link=link or (device if port == 1 else f"{device}/{port}"),
            pci_address=pf.pci_address,
            device=device,
            number=port,
            state=read_state(sysfs, folder),
            umad=umad,
            umad_port=umad_port,
            has_mads=(device, port) in devices.umads,
        )


def read_state(sysfs: SysfsScan, folder: str) -> IbPortState:
    return IbPortState(
        state=_number(sysfs, f"{folder}/state"),
        phys_state=_number(sysfs, f"{folder}/phys_state"),
        lid=_number(sysfs, f"{folder}/lid"),
        sm_lid=_number(sysfs, f"{folder}/sm_lid"),
    )


class _MadDevices:
    """The umad devices by RDMA device and port, and which of these ports have an SMI."""

    def __init__(self, sysfs: SysfsScan) -> None:
        self._sysfs = sysfs
        self.umads: dict[tuple[str, int], str] = {}
        self._with_smi: set[tuple[str, int]] = set()
        for name in sysfs.names(MAD_CLASS):
            device = sysfs.read(sysfs.tree.text, f"{MAD_CLASS}/{name}/ibdev")
            port = _number(sysfs, f"{MAD_CLASS}/{name}/port")
            if device is None or port is None:
                continue
            if name.startswith("umad"):
                self.umads[device.strip(), port] = f"/dev/infiniband/{name}"
            elif name.startswith("issm"):
                self._with_smi.add((device.strip(), port))

    def of(self, device: str, port: int) -> tuple[str | None, int]:
        """The umad device for a port, and the number of the port there."""
        if (device, port) in self._with_smi:
            return self.umads.get((device, port)), port
        if guid := self._guid(device, port):
            for other in sorted(self._with_smi):
                if other[0] != device and self._guid(*other) == guid and other in self.umads:
                    return self.umads[other], other[1]
        return None, port

    def _guid(self, device: str, port: int) -> str | None:
        """The port GUID: the lower half of GID 0."""
        gid = self._sysfs.read(self._sysfs.tree.text, f"{IB_CLASS}/{device}/ports/{port}/gids/0") or ""
        guid = gid.strip()[-19:]
        return guid if guid.strip("0:") else None


def _number(sysfs: SysfsScan, path: str) -> int | None:
    """The number in ``4: ACTIVE``, ``0x1f`` or ``7``."""
    text = (sysfs.read(sysfs.tree.text, path) or "").partition(":")[0].strip()
    try:
        return int(text, 0)
    except ValueError:
        return None
