"""Write a machine's files from a nested dictionary (a drawing).

``grow(root, {...})`` writes a dict: a string is a file's text (a newline is added, as sysfs does), a dict
a folder, ``Link("../x")`` a symbolic link, ``BROKEN`` an attribute that cannot be read. sysfs is drawn as
the kernel lays it out: the real folders under ``/sys/devices``, and relative links to them elsewhere.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Link:
    target: str


BROKEN: dict[str, Any] = {}
"""A folder in place of a file: reading it fails (EISDIR) for root too, like EIO."""

Drawing = Mapping[str, Any]


def grow(root: Path, drawing: Drawing) -> Path:
    """Write the drawing under ``root``; a name may be a path. Drawing again changes what is drawn."""
    root.mkdir(parents=True, exist_ok=True)
    for name, what in drawing.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(what, Link):
            path.unlink(missing_ok=True)
            path.symlink_to(what.target)
        elif isinstance(what, str):
            # In one step: a reader of sysfs never sees half a value.
            part = path.with_name(path.name + ".part")
            part.write_text(what + "\n", "utf-8", "surrogateescape")
            part.rename(path)
        else:
            grow(path, what)
    return root


def to(link: str, target: str) -> Link:
    """The relative link at ``link`` to ``target``, both absolute paths of the machine."""
    return Link(os.path.relpath(target, os.path.dirname(link)))


NETDEV: Drawing = {
    "type": "1",
    "flags": "0x1003",
    "carrier": "1",
    "operstate": "up",
    "speed": "400000",
    "mtu": "9000",
    "address": "a0:88:c2:00:00:01",
    "phys_port_name": "p0",
}


class Machine:
    """A small machine under ``root`` with the sysfs files of a ConnectX-7 under mlx5."""

    def __init__(self, root: Path) -> None:
        self.root = grow(root, {"sys/class/net": {}, "sys/bus/pci/devices": {}, "proc/net": {}})
        self.folders: dict[str, str] = {}

    def draw(self, path: str, what: Any) -> None:
        grow(self.root, {path.lstrip("/"): what})

    def unlink(self, path: str) -> None:
        (self.root / path.lstrip("/")).unlink()

    def function(self, address: str, above: str = "pci0000:15/0000:15:01.0", **files: Any) -> str:
        """Add a PCI function. Returns its folder."""
        folder = f"/sys/devices/{above}/{address}"
        self.folders[address] = folder
        attributes = {"class": "0x020000", "vendor": "0x15b3", "device": "0x1021", "numa_node": "0"} | files
        self.draw(folder, attributes)
        bus = f"/sys/bus/pci/devices/{address}"
        self.draw(bus, to(bus, folder))
        self.draw("/sys/bus/pci/drivers/mlx5_core", {"module": Link("../../../../module/mlx5_core")})
        self.drive(address, "mlx5_core")
        return folder

    def drive(self, address: str, driver: str | None) -> None:
        path = f"{self.folders[address]}/driver"
        if driver is None:
            self.unlink(path)
        else:
            self.draw(path, to(path, f"/sys/bus/pci/drivers/{driver}"))

    def netdev(self, name: str, function: str | None = None, **files: Any) -> str:
        """Add a netdev of a PCI function, or a virtual one."""
        above = self.folders[function] if function else "/sys/devices/virtual"
        folder = f"{above}/net/{name}"
        self.draw(folder, {**NETDEV, **files})
        if function:
            self.draw(f"{folder}/device", Link("../.."))
        self.draw(f"/sys/class/net/{name}", to(f"/sys/class/net/{name}", folder))
        return folder

    def lower(self, upper: str, lower: str) -> None:
        """Put ``lower`` below ``upper`` with the kernel's links."""
        for here, way, there in ((upper, "lower", lower), (lower, "upper", upper)):
            folder = os.path.realpath(self.root / f"sys/class/net/{here}")
            target = os.path.realpath(self.root / f"sys/class/net/{there}")
            link = Path(folder) / f"{way}_{there}"
            link.symlink_to(os.path.relpath(target, folder))

    def move_away(self, name: str) -> None:
        """Move a netdev into another network namespace: this sysfs does not show it."""
        import shutil

        shutil.rmtree(os.path.realpath(self.root / f"sys/class/net/{name}"))
        self.unlink(f"/sys/class/net/{name}")

    def rdma(self, address: str, n: int, device: str | None = None, **port: str) -> None:
        device = device or f"mlx5_{n}"
        self.draw(
            self.folders[address],
            {
                f"infiniband/{device}/ports/1": {"state": "4: ACTIVE", "rate": "400 Gb/sec (4X NDR)"} | port,
                f"infiniband_verbs/uverbs{n}/ibdev": device,
                f"infiniband_mad/umad{n}/ibdev": device,
                f"infiniband_mad/issm{n}/ibdev": device,
            },
        )

    def vf(self, pf: str, index: int, **files: Any) -> str:
        """Add VF ``index`` of a PF. Returns its address."""
        domain, bus, rest = pf.split(":")
        number = int(rest[-1]) + 1 + index
        address = f"{domain}:{bus}:{number // 8:02x}.{number % 8}"
        above = os.path.dirname(self.folders[pf]).removeprefix("/sys/devices/")
        folder = self.function(address, above, device="0x101e", **files)
        self.draw(f"{folder}/physfn", Link(f"../{pf}"))
        self.draw(f"{self.folders[pf]}/virtfn{index}", Link(f"../{address}"))
        return address

    def vanish(self, address: str) -> None:
        import shutil

        self.unlink(f"/sys/bus/pci/devices/{address}")
        shutil.rmtree(self.root / self.folders[address].lstrip("/"))


ROUTE = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT"


def routes(*default: str) -> str:
    """``/proc/net/route`` with a default route by each netdev, and an unrelated route."""
    rows = [f"{name}\t00000000\t0101A8C0\t0003\t0\t0\t0\t00000000\t0\t0\t0" for name in default]
    return "\n".join([ROUTE, *rows, "eth9\t0001A8C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0"])
