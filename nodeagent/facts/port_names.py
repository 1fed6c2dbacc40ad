"""Which port of a switch an LLDP neighbor is: its port ID, unless that is the MAC address of the switch."""

from __future__ import annotations

from typing import Protocol

MAC = "mac"


class PortOrChassisId(Protocol):
    """A chassis or port ID as LLDP has it."""

    @property
    def subtype(self) -> str: ...
    @property
    def value(self) -> str: ...


def port_name(chassis: PortOrChassisId, port: PortOrChassisId, description: str | None) -> str:
    """The port ID, or the port's description if the ID is the MAC address that is the chassis ID too; empty if then
    nothing names the port.

    A switch with one MAC address for all of its ports, such as SONiC without lldpmgrd, announces this address as the
    ID of each: lldpd's default port ID is the MAC address of the interface, and its description the interface's name
    (lldpcli(8), "configure lldp portidsubtype").
    """
    is_own = port.subtype == chassis.subtype == MAC and port.value == chassis.value
    return description or "" if is_own else port.value
