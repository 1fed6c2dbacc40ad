"""Simulated leaf switches that send LLDP to a machine's NICs over veth pairs between network namespaces.

Each NIC has its own leaf, as on a rail-optimized node. The frames and netdevs are real; the switches, their names
and addresses are invented.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass

from nodeagent.lldp.ethernet import NEAREST_BRIDGE, build_frame
from nodeagent.lldp.lldpdu import Capabilities, ChassisId, Lldpdu, ManagementAddress, PortId
from nodeagent.lldp.lldpdu_codec import encode_lldpdu
from nodeagent_lab.sim.netns import Netns, veth

FAST_S = 1.0
FAST_COUNT = 4
INTERVAL_S = 30.0
"""Fast transmission to a new neighbor (txFastInit, IEEE 802.1AB 9.2.5.5), then msgTxInterval."""
TTL_S = 120
_BRIDGE_AND_ROUTER = 0b1_0100


class SwitchesError(Exception):
    """The switches cannot be simulated here; the message has the remedy."""


@dataclass(frozen=True, slots=True)
class SwitchPort:
    """One switch port and its cable: ``link`` is the NIC's netdev."""

    link: str
    switch: str
    number: int

    @property
    def mac(self) -> bytes:
        """Locally administered, with the number of the switch and of the port."""
        return bytes((0x02, 0x5E, 0, 0, sum(self.switch.encode()) & 0xFF, self.number))

    def announcement(self, ttl: int = TTL_S) -> bytes:
        """The whole Ethernet frame."""
        rail = int(self.switch.rpartition("leaf")[2])
        pdu = Lldpdu(
            chassis_id=ChassisId(4, self.mac[:5] + b"\0"),
            port_id=PortId(5, f"swp{self.number}".encode()),
            ttl=ttl,
            port_description=f"rail {rail}",
            system_name=self.switch,
            system_description="simulated leaf switch",
            capabilities=Capabilities(_BRIDGE_AND_ROUTER, _BRIDGE_AND_ROUTER),
            management_addresses=(ManagementAddress(1, bytes((192, 0, 2, rail))),),
            maximum_frame_size=9216,
        )
        return build_frame(NEAREST_BRIDGE, self.mac, encode_lldpdu(pdu))


def rails(netdevs: Mapping[int, str], port: int = 1) -> tuple[SwitchPort, ...]:
    """Connect the n-th link of the node to the n-th leaf, at the same port of each."""
    return tuple(SwitchPort(netdev, f"leaf{rail:02d}", port) for rail, netdev in sorted(netdevs.items()))


@contextlib.asynccontextmanager
async def sending(
    ports: tuple[SwitchPort, ...], lit: Callable[[str], bool] = lambda _link: True
) -> AsyncIterator[Netns]:
    """The node's namespace: each link is a netdev of its name with a sending switch at the other end. ``lit``: whether
    the cable of a link is in.

    Raises ``SwitchesError`` if namespaces are not allowed or a tool is missing.
    """
    for tool in ("ip", "nsenter"):
        if shutil.which(tool) is None:
            raise SwitchesError(f"needs {tool}")
    try:
        node, fabric = Netns(), Netns()
    except PermissionError as error:
        raise SwitchesError("needs root to create network namespaces") from error
    with node, fabric:
        node.ip("link set lo up")
        sockets: list[tuple[SwitchPort, socket.socket]] = []
        for i, port in enumerate(ports):
            veth(node, port.link, fabric, f"cable{i}")
            sockets.append((port, fabric.raw(f"cable{i}")))
        task = asyncio.create_task(_send(sockets, lit))
        try:
            yield node
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            for _, opened in sockets:
                opened.close()


async def _send(sockets: list[tuple[SwitchPort, socket.socket]], lit: Callable[[str], bool]) -> None:
    rounds = 0
    while True:
        for port, opened in sockets:
            if not lit(port.link):
                continue
            with contextlib.suppress(OSError):  # the link is down
                opened.send(port.announcement())
        rounds += 1
        await asyncio.sleep(FAST_S if rounds < FAST_COUNT else INTERVAL_S)
