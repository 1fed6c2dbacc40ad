"""A machine with InfiniBand NICs, whose umad devices are sockets of a simulated subnet."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from nodeagent_lab.sim.machine import Machine
from nodeagent_lab.sim.machine.blueprint import parse

HEAD = """\
name: infiniband
product: {sys_vendor: nodeagent, product_name: InfiniBand}
numa: {0: "0-3"}
complexes: {pci0000:00: 0}
parts:
  compute: {kind: nic, vendor: "15b3", device: "1021", subsystem_device: "0041", driver: mlx5_core, rdma: true,
            link_type: infiniband, speed_mbps: 400000, totalvfs: 8, vf_device: "101e"}
  storage: {kind: nic, vendor: "15b3", device: "1021", subsystem_device: "0041", driver: mlx5_core, rdma: true,
            link_type: infiniband, speed_mbps: 400000}
nics:
"""


def pci_address(slot: int) -> str:
    return f"0000:{0x20 + slot:02x}:00.0"


def machine(
    root: Path,
    compute: int = 2,
    storage: int = 0,
    *,
    seed: str = "",
    num_vfs: int = 0,
    vf_files: bool = False,
) -> Machine:
    """A machine under ``root``: NICs ``ibp0`` … with the RDMA devices ``mlx5_0`` …, compute first. ``vf_files``: its
    driver has files for VFs."""
    lines = []
    for slot in range(compute + storage):
        part, vfs = ("compute", num_vfs) if slot < compute else ("storage", 0)
        path = f"pci0000:00/00:{slot + 1:02x}.0/{pci_address(slot)[5:]}"
        lines.append(f'  - {{part: {part}, path: "{path}", netdev: ibp{slot}, num_vfs: {vfs}}}')
    head = HEAD.replace("totalvfs: 8", "totalvfs: 8, vf_files: true") if vf_files else HEAD
    made = Machine(parse(f'seed: "{seed}"\n' + head + "\n".join(lines) + "\n"))
    made.write(root)
    return made


def umads(root: Path) -> Sequence[Path]:
    """The places of the umad devices of the PFs, by RDMA device."""
    folders = sorted(root.glob("sys/class/infiniband_mad/umad*"), key=lambda path: int(path.name[4:]))
    return [
        root / "dev/infiniband" / folder.name
        for folder in folders
        if not (folder.resolve().parent.parent / "physfn").is_symlink()
    ]
