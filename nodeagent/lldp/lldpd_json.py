"""What a running lldpd knows, from the JSON of ``lldpcli -f json0 show neighbors details``.

json0 is the form of lldpcli in which every value is a list, however many there are. lldpd has no DCBX in it,
and writes TTLs and sizes as text.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from nodeagent.lldp.escaping import printable
from nodeagent.lldp.values import CAPABILITY_WORDS
from nodeagent.model import Identifier, Neighbor

_ID_WORDS = {"ip": "network", "unhandled": "local"}
_CAPABILITIES = {"wlan": "wlan-access-point", "tel": "telephone"}


class LldpdError(Exception):
    """lldpd cannot be asked, or gave an answer that is not one; the message says what would help."""


def neighbors_of(answer: bytes) -> tuple[Neighbor, ...]:
    """Those heard over LLDP, sorted by link and ID. Raises ``LldpdError``."""
    try:
        told = json.loads(answer.decode("utf-8", "surrogateescape"))
        found = [
            _neighbor(interface)
            for top in told["lldp"]
            for interface in top.get("interface", ())
            if interface.get("via", "LLDP") == "LLDP"
        ]
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError) as error:
        start = answer[:60].decode("utf-8", "backslashreplace")
        raise LldpdError(
            f"the answer is not lldpcli's json0 ({type(error).__name__}): it begins with {start!r}; "
            "the command has to be like `lldpcli -f json0 show neighbors details`"
        ) from error
    return tuple(sorted(found, key=lambda one: (one.link, one.chassis_id.value, one.port_id.value)))


def kept(before: Iterable[Neighbor], now: Iterable[Neighbor]) -> tuple[Neighbor, ...]:
    """``now``, with the last known neighbors of links where nobody speaks any more: they are stale."""
    now = tuple(now)
    spoken = {neighbor.link for neighbor in now}
    return tuple(
        sorted(
            (*now, *(_stale(one) for one in before if one.link not in spoken)),
            key=lambda one: (one.link, one.chassis_id.value, one.port_id.value),
        )
    )


def _stale(one: Neighbor) -> Neighbor:
    return one if one.stale else replace(one, stale=True)


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
        management_addresses=tuple(printable(str(each["value"])) for each in chassis.get("mgmt-ip", ())),
        capabilities=_capabilities(chassis.get("capability", ())),
        pvid=int(pvids[0]) or None if pvids else None,
        maximum_frame_size=int(size) if size else None,
        confirmed=True,  # lldpd does not count; what it shows it has stood by
    )


def _identifier(holder: dict[str, Any]) -> Identifier:
    one = holder["id"][0]
    word = str(one["type"])
    return Identifier(_ID_WORDS.get(word, word), printable(str(one["value"])))


def _text(holder: dict[str, Any], name: str) -> str | None:
    values = holder.get(name, ())
    return printable(str(values[0].get("value", ""))) or None if values else None


def _capabilities(listed: Iterable[dict[str, Any]]) -> tuple[str, ...]:
    words = {str(one["type"]).lower() for one in listed if one.get("enabled")}
    words = {_CAPABILITIES.get(word, word) for word in words}
    return tuple(word for word in CAPABILITY_WORDS if word in words)
