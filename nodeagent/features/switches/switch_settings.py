"""Settings of the switches in the controller's file.

The settings have no secret, only the directory of the Secret. An address that a node reports is used only if it is in
``networks``, because each request carries a credential.
"""

import ipaddress
import re
from collections.abc import Iterator
from typing import Annotated, Literal

import msgspec

from nodeagent.config import formats
from nodeagent.config.file_errors import Conflict, quote
from nodeagent.config.setting import AbsolutePath, Settings, SystemName, listed, setting
from nodeagent.fabric.uplinks import MANAGEMENT_PORTS


def _network_complaint(text: str) -> str | None:
    try:
        ipaddress.ip_network(text)
    except ValueError as error:
        return f"{quote(text)} is not a network: {error}"
    return None


def _address_complaint(text: str) -> str | None:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return f"{quote(text)} is not an IP address; names are not resolved"
    return None


def _name_pattern_complaint(text: str) -> str | None:
    try:
        re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        return f"{quote(text)} is not a regular expression: {error}"
    return None


Network = Annotated[
    str,
    formats.form(r"[0-9a-f.:]+(/[0-9]{1,3})?", "a network such as 10.20.0.0/16", check=_network_complaint),
]
IpAddress = Annotated[
    str, formats.form(r"[0-9a-f.:]+", "an IP address such as 10.20.0.7", check=_address_complaint)
]
NamePattern = Annotated[
    str, formats.form(r"\S|\S.*\S", "a regular expression", at_most=1024, check=_name_pattern_complaint)
]
PortGlob = Annotated[str, formats.form(r"\S|\S.*\S", "a port's name or a glob, such as Management*")]


class SwitchAddress(Settings, frozen=True, kw_only=True):
    """Address of one switch. It replaces the addresses that nodes report."""

    switch: Annotated[SystemName, setting("System name of the switch.")]
    address: Annotated[IpAddress, setting("IP address of the switch.")]


class SnmpSettings(Settings, frozen=True, kw_only=True):
    """SNMP: reads LLDP-MIB with GETBULK."""

    version: Annotated[
        Literal["v3", "v2c"],
        setting("v3 uses username, authPassword and privPassword of the credentials; v2c uses community."),
    ] = "v3"
    auth: Annotated[
        Literal["sha512", "sha384", "sha256", "sha224", "sha1", "md5"],
        setting("Authentication of v3 messages; without authPassword there is none."),
    ] = "sha256"
    privacy: Annotated[
        Literal["aes256", "aes192", "aes128", "des"],
        setting("Encryption of v3 messages; without privPassword there is none."),
    ] = "aes128"


class SwitchesSettings(Settings, frozen=True, kw_only=True):
    """How the leader asks the leaf switches for their LLDP neighbors, to learn the tiers above the leaves."""

    method: Annotated[
        Literal["none", "snmp"],
        setting(
            "Protocol; none: switches are not asked. snmp needs the package gufo-snmp, which the image has."
        ),
    ] = "none"
    credentials: Annotated[
        AbsolutePath,
        setting(
            "Directory of the controller's container, a mounted Secret, read again in each round. Files: "
            "community for v2c; username, authPassword, privPassword for v3."
        ),
    ] = "/etc/nodeagent-credentials"
    networks: Annotated[
        tuple[Network, ...],
        listed(
            "Networks of the switches' management addresses. Addresses outside are not asked: each request "
            "carries a credential, and a node may report any address."
        ),
    ] = ()
    addresses: Annotated[
        tuple[SwitchAddress, ...],
        setting("Addresses of single switches; they may lie outside the networks.", max_length=4096),
    ] = ()
    port: Annotated[
        Annotated[int, msgspec.Meta(ge=1, le=65535)], setting("UDP port of the switches' SNMP agents.")
    ] = 161
    interval_seconds: Annotated[
        Annotated[float, msgspec.Meta(ge=1, le=86400)],
        setting(
            "Seconds between two rounds, varied by 10 percent. The default is ten minutes, because cabling "
            "changes seldom."
        ),
    ] = 600.0
    timeout_seconds: Annotated[
        Annotated[float, msgspec.Meta(ge=0.5, le=600)],
        setting("Seconds for one switch, with repetitions."),
    ] = 20.0
    parallel: Annotated[
        Annotated[int, msgspec.Meta(ge=1, le=256)], setting("Number of switches that are asked at a time.")
    ] = 16
    upwards: Annotated[
        bool, setting("Ask the switches above the leaves too, to learn the tiers above them.")
    ] = True
    name: Annotated[
        NamePattern | None,
        setting(
            "Regular expression for the names of switches above. null: a neighbor counts if it forwards as a "
            "bridge or router and is no node of the cluster."
        ),
    ] = None
    management_ports: Annotated[
        tuple[PortGlob, ...],
        listed(
            "Globs on ports of a switch whose neighbors are no uplinks. Otherwise one management switch would "
            "be above all switches."
        ),
    ] = MANAGEMENT_PORTS
    snmp: Annotated[SnmpSettings, setting("Settings of SNMP.")] = SnmpSettings()


def switch_conflicts(switches: SwitchesSettings) -> Iterator[Conflict]:
    if switches.method != "none" and not switches.networks and not switches.addresses:
        message = (
            "no switch may be asked: give the networks of the switches' management addresses, or addresses"
        )
        yield Conflict((("method",),), message)
    known: set[str] = set()
    for i, entry in enumerate(switches.addresses):
        if entry.switch.lower() in known:
            yield Conflict((("addresses", i, "switch"),), f"{quote(entry.switch)} is listed twice")
        known.add(entry.switch.lower())
