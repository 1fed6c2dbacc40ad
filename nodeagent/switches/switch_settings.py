"""The fabric's switches in the controller's file: whether they are asked what they hear, and how.

The law of this file: no secret stands here, only the folder where it lies. Addresses that nodes report are
asked for nothing outside ``networks``, for whoever is asked is shown a credential.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator
from typing import Annotated, Literal

import msgspec

from nodeagent.config import formats
from nodeagent.config.faults import Conflict, quote
from nodeagent.config.setting import AbsolutePath, Settings, SystemName, listed, setting
from nodeagent.fabric.uplinks import MANAGEMENT_PORTS


def _network_complaint(text: str) -> str | None:
    try:
        ipaddress.ip_network(text)
    except ValueError as error:
        return f"{quote(text)} is no network: {error}"
    return None


def _address_complaint(text: str) -> str | None:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return f"{quote(text)} is no IP address; names are not looked up"
    return None


def _name_pattern_complaint(text: str) -> str | None:
    try:
        re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        return f"{quote(text)} is no regular expression: {error}"
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
HostName = Annotated[str, formats.form(r"[A-Za-z0-9]([-A-Za-z0-9.]*[A-Za-z0-9])?", "a host name")]


class SwitchAddress(Settings, frozen=True, kw_only=True):
    """Where one switch is reached, in place of what nodes report."""

    switch: Annotated[SystemName, setting("The switch's system name.")]
    address: Annotated[IpAddress, setting("The address that is asked.")]


class SnmpSettings(Settings, frozen=True, kw_only=True):
    """SNMP: LLDP-MIB, read with GETBULK."""

    version: Annotated[
        Literal["v3", "v2c"],
        setting("v3 takes username, authPassword and privPassword from the credentials, v2c community."),
    ] = "v3"
    auth: Annotated[
        Literal["sha512", "sha384", "sha256", "sha224", "sha1", "md5"],
        setting("How v3 messages are authenticated; without authPassword they are not."),
    ] = "sha256"
    privacy: Annotated[
        Literal["aes256", "aes192", "aes128", "des"],
        setting("How v3 messages are encrypted; without privPassword they are not."),
    ] = "aes128"


class GnmiSettings(Settings, frozen=True, kw_only=True):
    """gNMI: openconfig-lldp, subscribed to once."""

    tls: Annotated[
        bool,
        setting(
            "Over TLS: ca.crt of the credentials vouches for the switches (without it the machine's own CAs do), "
            "tls.crt and tls.key are our own certificate where switches ask for one."
        ),
    ] = True
    server_name: Annotated[
        HostName | None,
        setting("The name that the switches' certificates are for, where that is not their address."),
    ] = None


class SwitchesSettings(Settings, frozen=True, kw_only=True):
    """The tiers above the leaves, from what the leaf switches themselves hear. The leader asks each switch."""

    method: Annotated[
        Literal["none", "snmp", "gnmi"],
        setting("How switches are asked. snmp needs the extra nodeagent[snmp]."),
    ] = "none"
    credentials: Annotated[
        AbsolutePath,
        setting(
            "The folder of a mounted Secret, read again for each round: community, username, password, authPassword, "
            "privPassword, ca.crt, tls.crt, tls.key; those that the method asks for."
        ),
    ] = "/etc/nodeagent-credentials"
    networks: Annotated[
        tuple[Network, ...],
        listed(
            "Where management addresses that nodes report may lie. Others are not asked: a credential is shown to "
            "whoever is, and a node may report anything."
        ),
    ] = ()
    addresses: Annotated[
        tuple[SwitchAddress, ...],
        setting("Switches whose address is told here; they need not lie in the networks.", max_length=4096),
    ] = ()
    port: Annotated[
        Annotated[int, msgspec.Meta(ge=1, le=65535)] | None,
        setting("The port; null is 161 for SNMP and 9339 for gNMI."),
    ] = None
    interval_seconds: Annotated[
        Annotated[float, msgspec.Meta(ge=1, le=86400)],
        setting("From one round to the next, a tenth more or less."),
    ] = 600.0
    timeout_seconds: Annotated[
        Annotated[float, msgspec.Meta(ge=0.5, le=600)],
        setting("What one switch may take, repetitions included."),
    ] = 20.0
    parallel: Annotated[
        Annotated[int, msgspec.Meta(ge=1, le=256)], setting("So many are asked at a time.")
    ] = 16
    upwards: Annotated[bool, setting("Ask the switches above the leaves too, for what is above them.")] = True
    name: Annotated[
        NamePattern | None,
        setting(
            "What the names of switches above must match, as a regular expression. Without it a neighbor counts that "
            "forwards as a bridge or a router and is no node of the cluster."
        ),
    ] = None
    management_ports: Annotated[
        tuple[PortGlob, ...],
        listed(
            "Globs on the switch's own ports whose neighbors are no uplinks: one switch would be above all."
        ),
    ] = MANAGEMENT_PORTS
    snmp: Annotated[SnmpSettings, setting("What SNMP needs besides.")] = SnmpSettings()
    gnmi: Annotated[GnmiSettings, setting("What gNMI needs besides.")] = GnmiSettings()


def switch_conflicts(switches: SwitchesSettings) -> Iterator[Conflict]:
    if switches.method != "none" and not switches.networks and not switches.addresses:
        message = (
            "no switch may be asked: give the networks of the switches' management addresses, or addresses"
        )
        yield Conflict((("method",),), message)
    known: set[str] = set()
    for i, entry in enumerate(switches.addresses):
        if entry.switch.lower() in known:
            yield Conflict((("addresses", i, "switch"),), f"{quote(entry.switch)} stands here twice")
        known.add(entry.switch.lower())
