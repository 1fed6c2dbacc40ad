"""Read the output of ``ibnetdiscover``: the switch and port of each adapter of an InfiniBand fabric, and the cables
between switches. Pure.

For fabrics whose management keys keep switches from answering a node, and for the tiers above the leaves: an operator
with the key writes the file where the subnet manager runs. ::

    Ca	1 "H-0000000000100000"		# "gpu-001 mlx5_0"
    [1](100001) 	"S-b83fd20300aa0000"[1]		# lid 1 lmc 0 "MF0;su1-leaf0:MQM9700/U1" lid 2 4xNDR

    Switch	64 "S-b83fd20300aa0000"		# "MF0;su1-leaf0:MQM9700/U1" base port 0 lid 2 lmc 0
    [1]	"H-0000000000100000"[1](100001) 		# "gpu-001 mlx5_0" lid 1 4xNDR
    [33]	"S-b83fd20300bb0000"[1]		# "MF0;spine0:MQM9700/U1" lid 9 4xNDR

Source: infiniband-diags/ibnetdiscover.c of rdma-core 44 (dump_topology).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from nodeagent.fabric.known_neighbors import KnownNeighbors
from nodeagent.fabric.nodelinks import LinkNeighbor, ReportedId
from nodeagent.infiniband.node_names import switch_name
from nodeagent.infiniband.peer import PORT_NUMBER, SUBTYPES
from nodeagent.infiniband.smp import NodeType
from nodeagent.lldp.escaping import raw_of

_NODE = re.compile(r'(Ca|Switch|Rt)\s+\d+ "(?:[A-Z]-)?([^"]*)"\s*(?:# "(.*)")?')
_SWITCH_PORT = re.compile(r'\[\d+\](?:\[ext \d+\])?\s*"([HS])-([0-9a-f]{16})"\[\d+\][^#]*(?:# "(.*)")?')
_AGGREGATION = "Mellanox Technologies Aggregation Node"
"""The adapter inside a switch that reduces data (SHARP): no host."""
LEAF_SHARE = 8
"""A leaf has at least an eighth as many adapters as cables to switches. A spine may have the subnet manager's host."""
_ADAPTER_PORT = re.compile(
    r'\[\d+\]\(([0-9a-f]{1,16})\)\s*"S-([0-9a-f]{16})"\[(\d+)\](?:\([0-9a-f]+\))?'
    r'(?:\s*#\s*lid \d+ lmc \d+ "(.*)" lid .*)?'
)


class DiscoveredCablesError(ValueError):
    """The text is no output of ibnetdiscover, or two lines contradict each other."""


def parse_ibnetdiscover(text: str) -> KnownNeighbors:
    """Raises ``DiscoveredCablesError``."""
    by_guid: dict[str, LinkNeighbor] = {}
    by_device: dict[tuple[str, str], LinkNeighbor] = {}
    shared: set[tuple[str, str]] = set()
    for number, guid, description, neighbor in _adapters(text):
        if by_guid.setdefault(guid, neighbor) != neighbor:
            raise DiscoveredCablesError(f"line {number}: the port GUID {guid} has another switch port above")
        host, _, device = description.partition(" ")
        key = (host.partition(".")[0], device.strip())
        if by_device.setdefault(key, neighbor) != neighbor:
            shared.add(key)  # names of hosts are free text: two hosts with one name have none
    if not by_guid:
        raise DiscoveredCablesError(
            'no adapter with a switch was found; the output of ibnetdiscover has lines "Ca …"'
        )
    by_device = {key: found for key, found in by_device.items() if key not in shared}
    return KnownNeighbors(by_guid, by_device, _uplinks(text))


def _uplinks(text: str) -> dict[str, tuple[str, ...]]:
    """The switches that each switch is cabled to, without leaf switches: which of them is above is known where the
    leaves of the nodes are known."""
    cables: dict[str, Counter[str]] = {}
    adapters: Counter[str] = Counter()
    switch = ""
    for line in text.splitlines():
        if (node := _NODE.match(line)) is not None:
            switch = node[2] if node[1] == "Switch" else ""
            if switch:
                cables.setdefault(switch, Counter())
        elif switch and (port := _SWITCH_PORT.match(line)) is not None:
            if port[1] == "S":
                cables[switch][port[2]] += 1
            elif port[3] != _AGGREGATION:
                adapters[switch] += 1
    leaves = {one for one, count in adapters.items() if LEAF_SHARE * count >= cables[one].total()}
    subtype = SUBTYPES[NodeType.SWITCH]
    return {
        f"{subtype}={one}": tuple(f"{subtype}={other}" for other in sorted(others.keys() - leaves))
        for one, others in cables.items()
    }


def _adapters(text: str) -> Iterator[tuple[int, str, str, LinkNeighbor]]:
    """Line, port GUID, description and neighbor of each adapter port with a switch."""
    adapter: str | None = None
    for number, line in enumerate(text.splitlines(), 1):
        if (node := _NODE.match(line)) is not None:
            adapter = node[3] or "" if node[1] == "Ca" else None
        elif adapter is not None and (port := _ADAPTER_PORT.match(line)) is not None:
            guid, switch, switch_port, description = port.groups()
            neighbor = LinkNeighbor(
                chassis_id=ReportedId(subtype=SUBTYPES[NodeType.SWITCH], value=switch),
                port_id=ReportedId(subtype=PORT_NUMBER, value=switch_port),
                system_name=switch_name(raw_of(description)) if description else None,
            )
            yield number, guid.rjust(16, "0"), adapter, neighbor
