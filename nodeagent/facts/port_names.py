"""Which port of a switch an LLDP neighbor is: its port ID, unless that is a MAC address and the description names the
port."""

from __future__ import annotations

import re
from typing import Protocol

MAC = "mac"
_INTERFACE = re.compile(r"\S*\d\S*")
"""One word with a number."""


class PortOrChassisId(Protocol):
    """A chassis or port ID as LLDP has it."""

    @property
    def subtype(self) -> str: ...
    @property
    def value(self) -> str: ...


def port_name(chassis: PortOrChassisId, port: PortOrChassisId, description: str | None) -> str:
    """The port ID. If it is a MAC address, the description in its place if that reads as the name of an interface, and
    in any case where the address is the chassis ID too; empty if then nothing names the port.

    A switch with one MAC address for all of its ports, such as SONiC without lldpmgrd, announces this address as the
    ID of each: lldpd's default port ID is the MAC address of the interface, and its description the interface's name
    (lldpcli(8), "configure lldp portidsubtype"). The chassis ID is the same address, or that of the management port
    (sonic-buildimage 11008 and 1457).
    """
    if port.subtype != MAC:
        return port.value
    if chassis.subtype == MAC and port.value == chassis.value:
        return description or ""
    return description if description and _INTERFACE.fullmatch(description) else port.value
