"""The leaf switches that a simulated node is cabled to, as an lldpd on the node would report them.

Each rail of each unit of nodes has a leaf switch, ``su1-leaf0`` … The number of a node decides its unit. No frame is
sent: the neighbors are text in the json0 format of lldpcli, for nodes without rights to namespaces and sockets.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence

UNIT_NODES = 2
_NUMBER = re.compile(r"(control-plane)?([0-9]{0,9})$", re.ASCII)


def node_number(name: str) -> int:
    """The number at the end of a node's name, 1 without one. kind names its nodes ``control-plane``, ``worker``,
    ``worker2``, …: control planes count from 0, all others from 1."""
    found = _NUMBER.search(name)
    assert found is not None
    return int(found[2] or 1) - (1 if found[1] else 0)


class SimulatedLeaves:
    """The cables of one node. ``netdevs`` are those of its rails, in order."""

    def __init__(self, node: str, netdevs: Sequence[str], unit_nodes: int = UNIT_NODES) -> None:
        self._node, self._netdevs = node, tuple(netdevs)
        self._unit = node_number(node) // unit_nodes

    def answer(self, without_frames: Collection[int] = (), foreign: Collection[int] = ()) -> str:
        """The answer of ``lldpcli -f json0 show neighbors details``. Rails ``without_frames`` have no neighbor; the
        cable of a rail in ``foreign`` is in the leaf switch of the next unit."""
        interfaces = [
            self._interface(rail, netdev, self._unit + (rail in foreign))
            for rail, netdev in enumerate(self._netdevs)
            if rail not in without_frames
        ]
        return json.dumps({"lldp": [{"interface": interfaces}]}, indent=1) + "\n"

    def _interface(self, rail: int, netdev: str, unit: int) -> Mapping[str, object]:
        return {
            "name": netdev,
            "via": "LLDP",
            "rid": "1",
            "age": "0 day, 00:01:00",
            "chassis": [
                {
                    "id": [
                        {
                            "type": "mac",
                            "value": f"02:5e:{unit >> 8 & 0xFF:02x}:{unit & 0xFF:02x}:{rail:02x}:00",
                        }
                    ],
                    "name": [{"value": f"su{unit + 1}-leaf{rail}"}],
                    "descr": [{"value": "simulated leaf switch"}],
                    "capability": [{"type": "Bridge", "enabled": True}, {"type": "Router", "enabled": True}],
                }
            ],
            "port": [
                {
                    # The node's name makes the port unique on its switch, whatever nodes there are.
                    "id": [{"type": "ifname", "value": f"port-{self._node}"}],
                    "descr": [{"value": f"rail {rail} of {self._node}"}],
                    "ttl": [{"value": "120"}],
                    "mfs": [{"value": "9216"}],
                }
            ],
        }
