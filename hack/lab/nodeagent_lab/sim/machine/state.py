"""The state of the simulated machine: its PCI functions and the devices of their drivers."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field

from nodeagent_lab.sim.machine.blueprint import (
    PCIE,
    GpuLine,
    GpuPart,
    Model,
    NicLine,
    NicPart,
    Pcie,
    addresses,
    vf_address,
)
from nodeagent_lab.sim.machine.hardware_values import Hardware, healthy_gpu_values

VFIO = "vfio-pci"
ZERO_GUID = ":".join(["00"] * 8)

# include/linux/pci_ids.h, with the interface byte
CLASS_ETHERNET = 0x020000
CLASS_INFINIBAND = 0x020700
CLASS_3D = 0x030200
CLASS_BRIDGE = 0x060400


class Numbers:
    """Numbered names: the lowest free number is taken next, as by the kernel's ``ida_alloc``."""

    def __init__(self) -> None:
        self._taken: dict[str, set[int]] = defaultdict(set)

    def take(self, name: str, first: int = 0) -> int:
        taken, number = self._taken[name], first
        while number in taken:
            number += 1
        taken.add(number)
        return number

    def give(self, name: str, number: int) -> None:
        self._taken[name].discard(number)


@dataclass(slots=True)
class SimulatedNetdev:
    """``here`` is false while the netdev is in a pod's network namespace."""

    name: str
    mac: str
    ifindex: int
    mtu: int
    admin_up: bool
    carrier_ups: int = 0
    carrier_downs: int = 1  # a driver starts with the carrier off
    here: bool = True


@dataclass(slots=True)
class SubnetPort:
    """The values that a subnet manager gives an InfiniBand port whose link is up, in the notation of sysfs."""

    state: str = "4: ACTIVE"
    lid: int = 1
    sm_lid: int = 1


@dataclass(slots=True)
class VfContext:
    """The values that the firmware keeps of an InfiniBand VF, as mlx5 makes it (``mlx5_hca_vport_context``): no GUID,
    and a port that is down whatever the cable does. ``policy`` is ``Down``, ``Up`` or ``Follow``."""

    node: str = ZERO_GUID
    port: str = ZERO_GUID
    policy: str = "Down"


@dataclass(slots=True)
class SimulatedRdma:
    """``mad`` is the number of both ``umad`` and ``issm``. ``disabled``: a subnet manager has disabled the port.
    ``guid`` is that of an InfiniBand VF when its driver was bound: it shows no later one."""

    name: str
    number: int
    verbs: int
    mad: int
    here: bool = True
    port: SubnetPort = field(default_factory=SubnetPort)
    disabled: bool = False
    guid: str | None = None

    def port_files(self, *, active: bool, infiniband: bool, shut: bool = False) -> dict[str, str]:
        """The files of port 1 that follow its link. ``shut``: the PF has the link state disable for this VF."""
        up = active and not self.disabled and not shut
        port = self.port if up and infiniband else SubnetPort(lid=0, sm_lid=0)
        dark = "2: Polling" if infiniband and not self.disabled and not shut else "3: Disabled"
        return {
            "state": port.state if up else "1: DOWN",
            "phys_state": "5: LinkUp" if up else dark,
            "lid": f"0x{port.lid:x}",
            "sm_lid": f"0x{port.sm_lid:x}",
        }


@dataclass(slots=True, eq=False)
class Device:
    """A PCI function. ``cable`` is true if the far end sends a signal; for a VF it is the link state at the PF."""

    address: str
    above: tuple[str, ...]
    vendor: str
    device: str
    code: int
    numa_node: int
    natural: str | None
    subsystem: tuple[str, str]
    revision: int = 0
    pcie: Pcie = PCIE
    present: bool = True
    driver: str | None = None
    override: str | None = None
    group: int | None = None
    vfio: int | None = None  # the group under /dev/vfio while vfio-pci has the function
    netdev: SimulatedNetdev | None = None
    rdma: SimulatedRdma | None = None
    nic: NicPart | None = None
    nic_line: NicLine | None = None
    mac: str | None = None  # the permanent one of another card than the model's
    cable: bool = True
    pf: Device | None = None
    vf_index: int = 0
    context: VfContext | None = None
    num_vfs: int = 0
    autoprobe: bool = True
    vfs: dict[int, Device] = field(default_factory=dict)
    gpu: SimulatedGpu | None = None
    hardware: Hardware = field(default_factory=Hardware)

    @property
    def folder(self) -> str:
        return "/sys/devices/" + "/".join((*self.above, self.address))

    @property
    def signal(self) -> bool:
        """A VF has its PF's signal, unless its link state at the PF is disable."""
        return self.cable and (self.pf is None or self.pf.cable)

    @property
    def carrier(self) -> bool:
        return self.netdev is not None and self.netdev.admin_up and self.signal

    @property
    def speed_mbps(self) -> int:
        assert self.nic is not None
        return (self.pf or self).hardware.speed_mbps or self.nic.speed_mbps

    @property
    def may_have_vfs(self) -> bool:
        return self.pf is None and self.nic is not None and self.nic.totalvfs > 0


@dataclass(slots=True)
class SimulatedGpu:
    """The GPU driver's values of one GPU. ``listed``: it answered when the driver was loaded. ``excluded``: a setting
    of the driver leaves it out. ``counted`` is its index in the driver's list, if the driver was loaded while another
    GPU did not answer. ``nvlink_domain`` is ``None`` while its registration with the NVSwitch fabric is in progress."""

    index: int
    uuid: str
    part: GpuPart
    mig: bool
    lost: bool = False
    mig_devices: list[dict[str, object]] = field(default_factory=list)
    listed: bool = True
    excluded: bool = False
    counted: int | None = None
    recovery_action: str = "none"
    nvlink_domain: str | None = None
    values: dict[str, float] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)

    @property
    def fabric_pending(self) -> bool | None:
        value = self.values.get("gpu_fabric_not_ready")
        return None if value is None else value == 1


def bridges(model: Model) -> list[Device]:
    """Parents first."""
    bridges_by_address: dict[str, Device] = {}
    for path in [*(gpu.path for gpu in model.gpus), *(nic.path for nic in model.nics)]:
        complex_, chain = addresses(path)
        for depth, address in enumerate(chain[:-1]):
            root = depth == 0
            bridges_by_address.setdefault(
                address,
                Device(
                    address=address,
                    above=(complex_, *chain[:depth]),
                    # A root port of Sapphire Rapids; a port of a Broadcom PEX890xx switch.
                    vendor="8086" if root else "1000",
                    device="352a" if root else "c030",
                    code=CLASS_BRIDGE,
                    numa_node=model.complexes[complex_],
                    natural="pcieport",
                    subsystem=("8086", "0000") if root else ("1000", "100b"),
                ),
            )
    return sorted(
        bridges_by_address.values(), key=lambda bridge: (bridge.above[0], len(bridge.above), bridge.address)
    )


def gpus(model: Model) -> list[Device]:
    """In PCI order, which is also the driver's order."""
    lines = sorted(model.gpus, key=lambda gpu: addresses(gpu.path)[1][-1])
    return [_gpu(model, line, index) for index, line in enumerate(lines)]


def nics(model: Model) -> list[Device]:
    return [_nic(model, line) for line in sorted(model.nics, key=lambda nic: addresses(nic.path)[1][-1])]


def vf(pf: Device, index: int) -> Device:
    """A VF directly after its creation."""
    part = pf.nic
    assert part is not None
    assert part.vf_device is not None
    return Device(
        address=vf_address(pf.address, part.vf_offset, part.vf_stride, index),
        above=pf.above,
        vendor=pf.vendor,
        device=part.vf_device,
        code=pf.code,
        numa_node=pf.numa_node,
        natural=part.vf_driver or part.driver,
        subsystem=pf.subsystem,
        revision=pf.revision,
        pcie=pf.pcie,
        nic=part,
        nic_line=pf.nic_line,
        pf=pf,
        vf_index=index,
        context=VfContext() if part.link_type == "infiniband" else None,
    )


def netdev_name(device: Device) -> str:
    """The name by udev: a VF of ``enp24s0np0`` is ``enp24s0v3``."""
    assert device.nic_line is not None
    name = device.nic_line.netdev
    if device.pf is None:
        return name
    suffix = f"v{device.vf_index}"
    return re.sub(r"(?<=\d)np\d+$", "", name)[: 15 - len(suffix)] + suffix


def octets(model: Model, device: Device) -> bytes:
    """The six octets of a unique MAC, locally administered, so that it belongs to no vendor."""
    drawn = bytearray(model.draw(f"mac/{device.address}").bytes[:6])
    drawn[0] = drawn[0] & 0xFC | 0x02
    return bytes(drawn)


def _gpu(model: Model, line: GpuLine, index: int) -> Device:
    part, fabric = model.gpu_part(line), model.nvlink_fabric
    complex_, chain = addresses(line.path)
    return Device(
        address=chain[-1],
        above=(complex_, *chain[:-1]),
        vendor=part.vendor,
        device=part.device,
        code=CLASS_3D,
        numa_node=model.complexes[complex_],
        natural=part.driver,
        subsystem=(part.subsystem_vendor or part.vendor, part.subsystem_device),
        revision=part.revision,
        pcie=part.pcie,
        gpu=SimulatedGpu(
            index,
            line.uuid or f"GPU-{model.draw(f'gpu/{index}')}",
            part,
            line.mig,
            nvlink_domain=f"{fabric.cluster_uuid}.{fabric.clique_id}" if fabric else "",
            values=healthy_gpu_values(part),
            texts={
                "gpu_serial": f"16549{index:08d}",
                "gpu_vbios": "96.00.74.00.01",
                "gpu_compute_capability": part.compute_capability,
                "gpu_cuda_version": model.driver.cuda_version if model.driver else "",
                "gpu_mig_capable": "yes" if part.mig_capable else "no",
            },
        ),
    )


def _nic(model: Model, line: NicLine) -> Device:
    part = model.nic_part(line)
    complex_, chain = addresses(line.path)
    return Device(
        address=chain[-1],
        above=(complex_, *chain[:-1]),
        vendor=part.vendor,
        device=part.device,
        code=CLASS_INFINIBAND if part.link_type == "infiniband" else CLASS_ETHERNET,
        numa_node=model.complexes[complex_],
        natural=part.driver,
        subsystem=(part.subsystem_vendor or part.vendor, part.subsystem_device),
        revision=part.revision,
        pcie=part.pcie,
        nic=part,
        nic_line=line,
        cable=line.carrier,
    )
