"""A simulated fabric: nodes in scalable units, a leaf switch for each rail of each unit, and their cables.

No frames are sent. A node's LLDP neighbors and links are returned as facts of the model. A switch is a name and a
chassis ID; a replaced switch has the same name and another ID. There are no TTLs: a neighbor that
sends no frames is stale at once.

The fabric includes storage and management networks with switches that all units share, because these must not
affect the tree.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from msgspec.structs import replace

from nodeagent.facts.model import HEALTHY, Function, Gpu, Health, Identifier, Link, Neighbor, Reason, State
from nodeagent_lab.sim.machine import Machine
from nodeagent_lab.sim.machine.state import Device

UNIT = 32
"""Nodes of a scalable unit in the reference architecture of the DGX H100."""
UNITS_OF_HALL = 8
GPU_MIB = 81_559
"""Of an H100 with 80 GB, as NVML gives it."""
STORAGE_MBPS = 100_000
"""Links without a rail belong to the storage network from this speed on, slower ones to management."""
_DOWN = Health(State.DOWN, (Reason("carrier_down", "no carrier"),), allocatable=False)


@dataclass(frozen=True, slots=True)
class LeafPort:
    switch: str
    number: int


class Fabric:
    """Every node has the hardware of ``machine``. ``rails`` are the PCI addresses of its NICs with VFs, in order;
    its other NICs are for storage and management. Nodes are identified by name, links by PCI address.
    """

    def __init__(self, nodes: int, machine: Machine) -> None:
        pfs = [pf for pf in machine.pfs if pf.netdev is not None and pf.nic is not None]
        self._functions = {pf.address: _function(pf) for pf in pfs}
        self._links = {pf.address: _link(pf) for pf in pfs}
        self.rails = tuple(pf.address for pf in pfs if pf.num_vfs)
        self.units = max(2, -(-nodes // UNIT))
        self._width = max(3, len(str(nodes)))
        self._cables: dict[tuple[str, str], LeafPort] = {}
        self._used: Counter[str] = Counter()
        self._boxes: Counter[str] = Counter()
        self._without_frames: set[str] = set()
        self._cut: set[tuple[str, str]] = set()
        self._worn: dict[tuple[str, str], Health] = {}
        self._held: dict[str, dict[str, dict[str, str]]] = {}
        self._gpus = [(gpu.address, gpu.numa_node) for gpu in machine.gpus]
        self._failed: dict[str, dict[int, Health]] = {}
        self.nodes: list[str] = []
        for number in range(nodes):
            self.add(number * self.units // nodes)

    # --- cables and switches --------------------------------------------------------------------------

    def add(self, unit: int) -> str:
        """Add a node to a unit. Returns its name."""
        name = f"gpu-{len(self.nodes) + 1:0{self._width}}"
        self.nodes.append(name)
        self.rack(name, unit)
        others = [address for address in self._links if address not in self.rails]
        for i, address in enumerate(others):
            fast = (self._links[address].speed_mbps or 0) >= STORAGE_MBPS
            self._cables[name, address] = self._free(f"storage-leaf{i % 2}" if fast else "mgmt-leaf0")
        return name

    def rack(self, node: str, unit: int) -> None:
        """Connect a node's rails to free ports of a unit's leaf switches."""
        for rail in range(len(self.rails)):
            self.plug(node, rail, self.leaf(unit, rail))

    def plug(self, node: str, rail: int, switch: str) -> str:
        """Move one cable to a free port of a switch. Returns the switch before, or an empty text."""
        before = self._cables.get((node, self.rails[rail]))
        self._cables[node, self.rails[rail]] = self._free(switch)
        return before.switch if before else ""

    def cut(self, node: str, rail: int) -> None:
        """Break one cable."""
        self._cut.add((node, self.rails[rail]))

    def mend(self, node: str, rail: int) -> None:
        self._cut.discard((node, self.rails[rail]))

    def wear(self, node: str, rail: int, health: Health = HEALTHY) -> None:
        """Give one NIC a fault that leaves its link up, or take it back."""
        self._worn[node, self.rails[rail]] = health

    def hold(self, node: str, pod: str, rails: int) -> None:
        """Let a pod, ``namespace/name``, hold a VF of each of the first rails of a node."""
        index = 1 + len(self._held.get(node, ()))
        vfs = {address: f"{address.rpartition('.')[0]}.{index}" for address in self.rails[:rails]}
        self._held.setdefault(node, {})[pod] = vfs

    def fail_gpu(self, node: str, index: int, health: Health = HEALTHY) -> None:
        """Give one GPU of a node a fault, or take it back."""
        self._failed.setdefault(node, {})[index] = health

    def gpus(self, node: str) -> tuple[Gpu, ...]:
        """The GPUs of a node that has had a fault of one; none of another one."""
        failed = self._failed.get(node)
        if failed is None:
            return ()
        return tuple(
            Gpu(f"GPU-{node}-{i}", i, i, "GPU", address, GPU_MIB, numa_node, health=failed.get(i, HEALTHY))
            for i, (address, numa_node) in enumerate(self._gpus)
        )

    def held(self, node: str) -> dict[str, tuple[str, ...]]:
        """The PCI addresses of the VFs of each pod on a node."""
        return {pod: tuple(vfs.values()) for pod, vfs in self._held.get(node, {}).items()}

    def stop_frames(self, switch: str) -> None:
        """Turn a switch off, as in a reboot or power loss: no carrier, no LLDP."""
        self._without_frames.add(switch)

    def boot(self, switch: str) -> None:
        self._without_frames.discard(switch)

    def replace(self, switch: str) -> tuple[str, str]:
        """Replace a switch; the new one has its name and cables. Returns both chassis IDs."""
        old = self._chassis(switch)
        self._boxes[switch] += 1
        return old, self._chassis(switch)

    # --- facts ----------------------------------------------------------------------------------------

    def leaf(self, unit: int, rail: int) -> str:
        """The name of the switch of a unit's rail; units and rails count from 0."""
        number = f"{unit + 1:0{len(str(self.units))}}"
        return f"hall{1 + unit // UNITS_OF_HALL}-su{number}-leaf{rail}"

    def at(self, switch: str) -> list[str]:
        """The nodes with a cable to the switch."""
        return sorted({node for (node, _), port in self._cables.items() if port.switch == switch})

    def facts(self, node: str) -> dict[str, object]:
        """The facts of this node's agent: functions, links and neighbors."""
        number = self.nodes.index(node)
        functions: list[Function] = []
        links: list[Link] = []
        for place, (address, up) in enumerate(self._links.items()):
            down = self._is_dark(node, address)
            link = replace(up, carrier=False, operstate="down", speed_mbps=None) if down else up
            links.append(replace(link, mac=f"02:00:{number >> 8:02x}:{number & 0xFF:02x}:00:{place:02x}"))
            function = self._functions[address]
            health = _DOWN if down else self._worn.get((node, address), function.health)
            functions.append(replace(function, health=health))
            functions += (
                replace(
                    function, pci_address=vfs[address], parent=address, vf_index=i, netdev=None, num_vfs=None
                )
                for i, vfs in enumerate(self._held.get(node, {}).values())
                if address in vfs
            )
        return {
            "functions": tuple(functions),
            "links": tuple(sorted(links, key=lambda link: link.netdev)),
            "neighbors": tuple(sorted(self._neighbors(node), key=lambda neighbor: neighbor.link)),
        }

    def _neighbors(self, node: str) -> Iterator[Neighbor]:
        for address, link in self._links.items():
            port = self._cables[node, address]
            yield Neighbor(
                link=link.netdev,
                chassis_id=Identifier("mac", self._chassis(port.switch)),
                port_id=Identifier("ifname", f"swp{port.number}"),
                system_name=port.switch,
                port_description=f"to {node}",
                management_addresses=(self._address(port.switch),),
                stale=self._is_dark(node, address),
                confirmed=True,
            )

    def _is_dark(self, node: str, address: str) -> bool:
        """Whether nothing comes over the cable."""
        return (node, address) in self._cut or self._cables[node, address].switch in self._without_frames

    def _free(self, switch: str) -> LeafPort:
        self._used[switch] += 1
        return LeafPort(switch, self._used[switch])

    def _number(self, switch: str) -> int:
        """A unique number for each switch, the same in every run."""
        unit = int(switch.partition("-su")[2].partition("-")[0] or 0)
        return unit * 64 + int(switch.rpartition("leaf")[2]) + (32 if switch.startswith("storage") else 0)

    def _chassis(self, switch: str) -> str:
        number = self._number(switch)
        return f"02:5e:{self._boxes[switch]:02x}:{number >> 8:02x}:{number & 0xFF:02x}:00"

    def _address(self, switch: str) -> str:
        number = self._number(switch)
        return f"198.18.{number >> 8}.{number & 0xFF}"


def _function(pf: Device) -> Function:
    return Function(
        pci_address=pf.address,
        vendor=pf.vendor,
        device=pf.device,
        driver=pf.driver,
        netdev=pf.netdev.name if pf.netdev else None,
        link_type=pf.nic.link_type if pf.nic else None,
        rdma=None,
        vfio_group=None,
        vdpa=None,
        numa_node=pf.numa_node,
        pci_path=(*pf.above, pf.address),
        num_vfs=pf.num_vfs,
    )


def _link(pf: Device) -> Link:
    assert pf.netdev is not None
    return Link(
        netdev=pf.netdev.name,
        pci_address=pf.address,
        mac=pf.netdev.mac,
        admin_up=True,
        carrier=True,
        operstate="up",
        speed_mbps=pf.speed_mbps,
        mtu=pf.netdev.mtu,
    )
