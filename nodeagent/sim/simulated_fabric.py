"""A fabric on paper: nodes in scalable units, a leaf switch for each rail of each unit, and who hears whom.

Nothing is sent here. What a node's LLDP agent would have in its table, and what its kernel would say of its
links, is told as facts of the model. A switch is its name and its chassis ID; a new box under an old name has
another ID. The time that silence takes (TTLs) is left out: who is silent is stale at once.

The storage and management networks are there too, with switches that all units share, for that is what a
tree must not be deceived by.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

from nodeagent.model import Function, Health, Identifier, Link, Neighbor, Reason, State
from nodeagent.sim.machine import Machine
from nodeagent.sim.machine.state import Device

UNIT = 32
"""Nodes of a scalable unit, as in the reference architecture of the DGX H100."""
UNITS_OF_HALL = 8
STORAGE_MBPS = 100_000
"""Links without a rail of at least this speed are the storage's, the others the management's."""
_DOWN = Health(State.DOWN, (Reason("carrier_down", "no carrier"),), allocatable=False)


@dataclass(frozen=True, slots=True)
class Port:
    switch: str
    number: int


class Fabric:
    """Every node is like the machine. ``rails`` are the PCI addresses of its NICs with VFs, in their order; its
    other NICs are for storage and management. Nodes are known by name, links by PCI address.
    """

    def __init__(self, nodes: int, machine: Machine) -> None:
        cards = [one for one in machine.pfs if one.netdev is not None and one.nic is not None]
        self._functions = {one.address: _function(one) for one in cards}
        self._links = {one.address: _link(one) for one in cards}
        self.rails = tuple(one.address for one in cards if one.num_vfs)
        self.units = max(2, -(-nodes // UNIT))
        self._width = max(3, len(str(nodes)))
        self._cables: dict[tuple[str, str], Port] = {}
        self._used: Counter[str] = Counter()
        self._boxes: Counter[str] = Counter()
        self._silent: set[str] = set()
        self.nodes: list[str] = []
        for number in range(nodes):
            self.add(number * self.units // nodes)

    # --- what is built --------------------------------------------------------------------------------

    def add(self, unit: int) -> str:
        """A node more, racked in a unit. Its name."""
        name = f"gpu-{len(self.nodes) + 1:0{self._width}}"
        self.nodes.append(name)
        self.rack(name, unit)
        others = [address for address in self._links if address not in self.rails]
        for i, address in enumerate(others):
            fast = (self._links[address].speed_mbps or 0) >= STORAGE_MBPS
            self._cables[name, address] = self._free(f"storage-leaf{i % 2}" if fast else "mgmt-leaf0")
        return name

    def rack(self, node: str, unit: int) -> None:
        """Cable a node's rails to the leaf switches of a unit, to a free port of each."""
        for rail in range(len(self.rails)):
            self.plug(node, rail, self.leaf(unit, rail))

    def plug(self, node: str, rail: int, switch: str) -> str:
        """Put one cable into a free port of a switch. The switch where it was, or nothing."""
        before = self._cables.get((node, self.rails[rail]))
        self._cables[node, self.rails[rail]] = self._free(switch)
        return before.switch if before else ""

    def silence(self, switch: str) -> None:
        """It reboots, or its power is gone: no carrier, no LLDP."""
        self._silent.add(switch)

    def boot(self, switch: str) -> None:
        self._silent.discard(switch)

    def replace(self, switch: str) -> tuple[str, str]:
        """Another box with the old one's name and cables. The chassis IDs of both."""
        old = self._chassis(switch)
        self._boxes[switch] += 1
        return old, self._chassis(switch)

    # --- what is so -----------------------------------------------------------------------------------

    def leaf(self, unit: int, rail: int) -> str:
        """The switch of a rail of a unit, units and rails from 0."""
        number = f"{unit + 1:0{len(str(self.units))}}"
        return f"hall{1 + unit // UNITS_OF_HALL}-su{number}-leaf{rail}"

    def at(self, switch: str) -> list[str]:
        """The nodes that have a cable in it."""
        return sorted({node for (node, _), port in self._cables.items() if port.switch == switch})

    def facts(self, node: str) -> dict[str, object]:
        """What this node's agent would know at present: functions, links and neighbors."""
        number = self.nodes.index(node)
        functions: list[Function] = []
        links: list[Link] = []
        for place, (address, up) in enumerate(self._links.items()):
            down = self._cables[node, address].switch in self._silent
            link = replace(up, carrier=False, operstate="down", speed_mbps=None) if down else up
            links.append(replace(link, mac=f"02:00:{number >> 8:02x}:{number & 0xFF:02x}:00:{place:02x}"))
            function = self._functions[address]
            functions.append(replace(function, health=_DOWN) if down else function)
        return {
            "functions": tuple(functions),
            "links": tuple(sorted(links, key=lambda link: link.netdev)),
            "neighbors": tuple(sorted(self._neighbors(node), key=lambda one: one.link)),
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
                stale=port.switch in self._silent,
                confirmed=True,
            )

    def _free(self, switch: str) -> Port:
        self._used[switch] += 1
        return Port(switch, self._used[switch])

    def _number(self, switch: str) -> int:
        """A number of its own for each switch, the same in every run."""
        unit = int(switch.partition("-su")[2].partition("-")[0] or 0)
        return unit * 64 + int(switch.rpartition("leaf")[2]) + (32 if switch.startswith("storage") else 0)

    def _chassis(self, switch: str) -> str:
        number = self._number(switch)
        return f"02:5e:{self._boxes[switch]:02x}:{number >> 8:02x}:{number & 0xFF:02x}:00"

    def _address(self, switch: str) -> str:
        number = self._number(switch)
        return f"198.18.{number >> 8}.{number & 0xFF}"


def _function(one: Device) -> Function:
    return Function(
        pci_address=one.address,
        vendor=one.vendor,
        device=one.device,
        driver=one.driver,
        netdev=one.netdev.name if one.netdev else None,
        link_type=one.nic.link_type if one.nic else None,
        rdma=None,
        vfio_group=None,
        vdpa=None,
        numa_node=one.numa_node,
        pci_path=(*one.above, one.address),
        num_vfs=one.num_vfs,
    )


def _link(one: Device) -> Link:
    assert one.netdev is not None
    return Link(
        netdev=one.netdev.name,
        pci_address=one.address,
        mac=one.netdev.mac,
        admin_up=True,
        carrier=True,
        operstate="up",
        speed_mbps=one.speed_mbps,
        mtu=one.netdev.mtu,
    )
