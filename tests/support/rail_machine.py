"""A machine with five slots for NICs of two VFs each, for tests of rails. No GPU and no default route."""

from __future__ import annotations

from pathlib import Path

from nodeagent_lab.sim.machine import Machine

HEAD = "rails"
SLOTS = tuple(f"0000:{bus}:00.0" for bus in (20, 30, 40, 50, 60))
VFS = 2


def vfs_of(slot: str) -> set[str]:
    return {f"{slot[:-1]}{index + 1}" for index in range(VFS)}


def model(folder: Path, link_type: str = "ethernet") -> Path:
    lines = [
        "name: rails",
        "product: {sys_vendor: nodeagent, product_name: Rails}",
        "numa: {0: '0-3'}",
        "complexes: {pci0000:00: 0}",
        "parts:",
        "  nic: {kind: nic, vendor: '15b3', device: '1021', subsystem_device: '0041', driver: mlx5_core,",
        f"        link_type: {link_type}, rdma: {str(link_type == 'infiniband').lower()}, speed_mbps: 400000,",
        "        totalvfs: 8, vf_device: '101e'}",
        "nics:",
        *(
            f'  - {{part: nic, path: "pci0000:00/00:0{number}.0/{slot[5:]}", netdev: ens{number}np0, '
            f"num_vfs: {VFS}}}"
            for number, slot in enumerate(SLOTS, 1)
        ),
    ]
    path = folder / "rails.yaml"
    path.write_text("\n".join(lines) + "\n")
    return path


def machine(folder: Path, *, empty: tuple[int, ...] = (4,)) -> Machine:
    """A machine under ``folder/r``. The slots of ``empty`` have no card."""
    made = Machine.load(model(folder))
    made.write(folder / "r")
    for slot in empty:
        made.unplug(SLOTS[slot])
    return made
