"""The device of a ResourceSlice, as JSON, for each GPU, place of a MIG device, and PF that claims allocate. Pure.

An attribute describes the hardware and its place: it changes when a person or a switch changes something, never with
traffic. A value that is not known at present keeps its last known value (``LinkMemory``), because a selector that
names a missing attribute is an error for the whole pod.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any

from nodeagent.dra.devices import Attributes, DraDevice, LinkEnds
from nodeagent.facts.model import Neighbor, Snapshot

_Json = dict[str, Any]

VALUE_MAX = 64
"""Bytes of a string attribute (types.go, DeviceAttributeMaxValueLength)."""
PCIE_ROOT, PCI_BUS_ID = "resource.kubernetes.io/pcieRoot", "resource.kubernetes.io/pciBusID"
NUMA_NODES = ("resource.kubernetes.io/numaNode", "dra.net/numaNode")
"""The name of KEP-6072, and the one that drivers of NICs use."""
COMPUTE = "compute"
LEAF, LEAF_GROUP, SPEED = "leaf", "leafGroup", "speedMbps"
PF_ADDRESS = "pfPciAddress"
CNI_DEVICE, CNI_RESOURCE = "k8s.cni.cncf.io/deviceID", "k8s.cni.cncf.io/resourceName"
"""The attributes by which Multus finds the device of a network. It fails the network of a pod that has one device
without them in any claim (multus-cni, pkg/draclient), so GPUs have them too."""


class LinkMemory:
    """The last known ``LinkEnds`` of each PF, by PCI address.

    A leaf is replaced only by a neighbor that has sent more than one frame; missing frames change nothing. So the
    restart of a switch writes no slice.
    """

    def __init__(self) -> None:
        self._places: dict[str, LinkEnds] = {}
        self.leaf_group: str | None = None
        """The last known leaf group of the node."""

    def adopt(self, slices: Sequence[_Json]) -> None:
        """Take the values that an earlier agent has published."""
        for obj in slices:
            for device in obj["spec"].get("devices") or ():
                attributes = device.get("attributes") or {}
                address = (attributes.get(PF_ADDRESS) or attributes.get(PCI_BUS_ID) or {}).get("string")
                leaf = (attributes.get(LEAF) or {}).get("string")
                self.leaf_group = self.leaf_group or (attributes.get(LEAF_GROUP) or {}).get("string")
                speed = (attributes.get(SPEED) or {}).get("int")
                if address and address not in self._places:
                    self._places[address] = LinkEnds(speed, leaf)

    def places(self, snapshot: Snapshot) -> Mapping[str, LinkEnds]:
        """The place of each PF now."""
        first: dict[str, Neighbor] = {}
        for neighbor in snapshot.neighbors:
            first.setdefault(neighbor.link, neighbor)
        for link in snapshot.links:
            last = self._places.get(link.pci_address, LinkEnds())
            self._places[link.pci_address] = LinkEnds(
                link.speed_mbps or last.speed_mbps, _leaf(first.get(link.netdev), last.leaf)
            )
        return self._places


def published(
    device: DraDevice,
    snapshot: Snapshot,
    places: Mapping[str, LinkEnds] = {},
    leaf_group: str | None = None,
    *,
    for_multus: bool = False,
    near_nodes: Mapping[int, tuple[int, ...]] = {},
) -> _Json:
    """The device as ResourceSlices have it, without taints. ``for_multus``: Multus reads the devices of this node.

    ``near_nodes`` are the NUMA nodes near each one, for a list in place of one number.
    """
    links = {link.pci_address: link for link in snapshot.links}
    ends = places.get(device.parent, LinkEnds())
    attributes = device.attributes(links.get(device.parent), ends, leaf_group)
    if for_multus:
        attributes |= {CNI_DEVICE: attributes[PCI_BUS_ID], CNI_RESOURCE: device.kind.resource}
    values = {name: _value(value) for name, value in attributes.items() if value is not None}
    if (near := near_nodes.get(values.get(NUMA_NODES[0], {}).get("int", -1))) is not None:
        values[NUMA_NODES[0]] = {"ints": list(near)}
    return {"name": device.name, "attributes": values} | device.consumption()


def pci_place(address: str, path: Sequence[str], numa_node: int | None) -> Attributes:
    """Return the attributes of a place in the PCI tree. A switch is named by its upstream port: path (root, port, up,
    down, function)."""
    return {
        PCIE_ROOT: path[0] if path else None,
        PCI_BUS_ID: address,
        "pcieSwitch": path[-3] if len(path) >= 5 else None,
        **dict.fromkeys(NUMA_NODES, numa_node),
    }


def _value(value: str | int | bool) -> _Json:
    if isinstance(value, bool):
        return {"bool": value}
    return {"int": value} if isinstance(value, int) else {"string": bounded(value)}


def bounded(text: str) -> str:
    """The text in at most ``VALUE_MAX`` bytes. A text that is cut ends with its digest: different texts stay different.

    >>> bounded("su1-leaf03")
    'su1-leaf03'
    """
    raw = text.encode("utf-8", "backslashreplace")
    if len(raw) <= VALUE_MAX:
        return raw.decode()
    digest = blake2b(raw, digest_size=4).hexdigest()
    return f"{raw[: VALUE_MAX - 1 - len(digest)].decode('utf-8', 'ignore')}~{digest}"


def _leaf(neighbor: Neighbor | None, last: str | None) -> str | None:
    """The name of the switch; its chassis ID if it has none."""
    if neighbor is None or (neighbor.stale and last is not None):
        return last
    name = bounded(neighbor.system_name or neighbor.chassis_id.value)
    return name if last is None or neighbor.confirmed else last
