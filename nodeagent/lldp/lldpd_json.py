"""Decode the neighbors of a running lldpd from ``lldpcli -f json0 show neighbors details``.

In json0 every value is a list, even a single one. It has no DCBX; TTLs and sizes are texts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

from msgspec.structs import replace

from nodeagent.facts.model import Identifier, Neighbor
from nodeagent.lldp.escaping import printable
from nodeagent.lldp.lldpdu import CAPABILITY_WORDS

_AGE = re.compile(r"(\d{1,9}) days?, (\d\d):(\d\d):(\d\d)")
_ID_SUBTYPES = {"ip": "network", "unhandled": "local"}
_CAPABILITIES = {"wlan": "wlan-access-point", "tel": "telephone"}


class LldpdError(Exception):
    """lldpd cannot be reached, or its answer is invalid; the message has the remedy."""


def neighbors_of(answer: bytes) -> tuple[Neighbor, ...]:
    """The neighbors received over LLDP by link, those of a link by age, the oldest first. Raises ``LldpdError``.

    lldpd tells no source MAC, and keeps one name for each chassis and port: the last one. A contender is another
    chassis.
    """
    try:
        document = json.loads(answer.decode("utf-8", "surrogateescape"))
        interfaces = [
            interface
            for top in document["lldp"]
            for interface in top.get("interface", ())
            if interface.get("via", "LLDP") == "LLDP"
        ]
        neighbors = [(_age_s(interface), _neighbor(interface)) for interface in interfaces]
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError) as error:
        start = answer[:60].decode("utf-8", "backslashreplace")
        raise LldpdError(
            f"the answer is not lldpcli's json0 ({type(error).__name__}): it begins with {start!r}; "
            "the command must be like `lldpcli -f json0 show neighbors details`"
        ) from error
    first: dict[str, Neighbor] = {}
    return tuple(
        replace(
            neighbor, contender=neighbor.chassis_id != first.setdefault(neighbor.link, neighbor).chassis_id
        )
        for _, neighbor in sorted(neighbors, key=_order)
    )


def keep_stale(before: Iterable[Neighbor], now: Iterable[Neighbor]) -> tuple[Neighbor, ...]:
    """``now``, with the last known neighbors of links that have none any more, as stale."""
    now = tuple(now)
    live = {neighbor.link for neighbor in now}
    stale = (
        neighbor if neighbor.stale else replace(neighbor, stale=True)
        for neighbor in before
        if neighbor.link not in live
    )
    return tuple(sorted((*now, *stale), key=lambda neighbor: neighbor.link))


def _order(aged: tuple[int, Neighbor]) -> tuple[str, int, str, str]:
    age_s, neighbor = aged
    return (neighbor.link, -age_s, neighbor.chassis_id.value, neighbor.port_id.value)


def _age_s(interface: dict[str, Any]) -> int:
    """The seconds since the first frame of the neighbor, ``0 day, 00:12:34`` in lldpd's form; 0 if it has another."""
    found = _AGE.fullmatch(str(interface.get("age", "")))
    if found is None:
        return 0
    days, hours, minutes, seconds = map(int, found.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def _neighbor(interface: dict[str, Any]) -> Neighbor:
    chassis, port = interface["chassis"][0], interface["port"][0]
    size = _text(port, "mfs")
    pvids = [vlan["vlan-id"] for vlan in interface.get("vlan", ()) if vlan.get("pvid")]
    return Neighbor(
        link=str(interface["name"]),
        chassis_id=_identifier(chassis),
        port_id=_identifier(port),
        system_name=_text(chassis, "name"),
        system_description=_text(chassis, "descr"),
        port_description=_text(port, "descr"),
        management_addresses=tuple(
            printable(str(address["value"])) for address in chassis.get("mgmt-ip", ())
        ),
        capabilities=_capabilities(chassis.get("capability", ())),
        pvid=int(pvids[0]) or None if pvids else None,
        maximum_frame_size=int(size) if size else None,
        confirmed=True,  # lldpd does not report a count of frames
    )


def _identifier(holder: dict[str, Any]) -> Identifier:
    identifier = holder["id"][0]
    subtype = str(identifier["type"])
    return Identifier(_ID_SUBTYPES.get(subtype, subtype), printable(str(identifier["value"])))


def _text(holder: dict[str, Any], name: str) -> str | None:
    values = holder.get(name, ())
    return printable(str(values[0].get("value", ""))) or None if values else None


def _capabilities(listed: Iterable[dict[str, Any]]) -> tuple[str, ...]:
    names = {str(capability["type"]).lower() for capability in listed if capability.get("enabled")}
    names = {_CAPABILITIES.get(name, name) for name in names}
    return tuple(name for name in CAPABILITY_WORDS if name in names)
