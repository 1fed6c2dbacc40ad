"""The cabling plan: the planned switch port of each link, compared with its LLDP neighbors. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import msgspec

from nodeagent.facts.model import Neighbor

_ADDRESS = re.compile(r"[0-9.]+")
_INTERFACE = re.compile(r"((?:\d+ge)|[a-z-]*[a-z])\s*(\d.*)")
"""A type and a number. In Junos a hyphen is between them, and its types are other ones."""
_GIGABIT = re.compile(r"(x|[a-z]*?)gig(?:e|eth|ethernet|abitethernet)?")
"""The long form of a type with a speed: ``FourHundredGigE`` (IOS XR, Comware), ``TenGigabitEthernet``."""
_TYPES = {
    "ethernet": "eth et",
    "fastethernet": "fa fas fe",
    "gigabitethernet": "gi ge",
    "tengigabitethernet": "te xge xgigabitethernet 10ge",
    "twentyfivegigabitethernet": "twe tf tfgigabitethernet wge 25ge",
    "fortygigabitethernet": "fo fge 40ge",
    "fiftygigabitethernet": "fi 50ge",
    "hundredgigabitethernet": "hu hge 100ge",
    "twohundredgigabitethernet": "th 200ge",
    "fourhundredgigabitethernet": "f fh fhgigabitethernet 400ge",
    "management": "ma mgmt",
    "portchannel": "po",
}
"""The types of interfaces in their long form without hyphens, with other forms of each: of IOS XR, IOS XE, NX-OS, EOS,
of Comware (``XGE``, ``WGE``, ``FGE``, ``HGE``, ``200GE``, ``400GE``), VRP (``XGigabitEthernet``) and RGOS
(``TFGigabitEthernet``, ``FHGigabitEthernet``)."""
_LONG_TYPES = {form: long for long, forms in _TYPES.items() for form in forms.split()}


class PlanError(Exception):
    """The plan cannot be read; the message names the place and the cause."""


class Port(msgspec.Struct, frozen=True):
    """A switch by its system name (or its chassis ID) and a port by its ID or description: see ``same_switch`` and
    ``same_port``."""

    switch: str
    port: str


Plan = Mapping[str, Port]
"""Of one node, by netdev or PCI address."""

EMPTY: Plan = {}


def of_node(document: object, node: str | None) -> dict[str, Port]:
    """Return the part of a plan document for this node. Raises ``PlanError``.

    A document maps nodes to links to ``{switch: …, port: …}``. The node may be there with its domain or without
    it, if no other node is meant.
    """
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise PlanError("it must map nodes to links to {switch: …, port: …}")
    if node not in document and node is not None:
        forms = [key for key in document if same_name(str(key), node)]
        node = forms[0] if len(forms) == 1 else node
    links = document.get(node)
    if links is None:
        return {}
    if not isinstance(links, dict):
        raise PlanError(f"{node}: must map links to {{switch: …, port: …}}")
    ports = {}
    for link, port in links.items():
        known = port if isinstance(port, dict) else {}
        switch, name = known.get("switch"), known.get("port")
        if not isinstance(switch, str) or not isinstance(name, str | int) or len(known) != 2:
            raise PlanError(f"{node}: {link}: must be {{switch: NAME, port: NAME}}")
        ports[str(link)] = Port(switch, str(name))
    return ports


def compare(planned: Port, neighbors: Iterable[Neighbor]) -> tuple[bool | None, str | None]:
    """Return whether the link is at its planned port, and its neighbor in words. ``None``: no fresh neighbor."""
    fresh = [neighbor for neighbor in neighbors if not neighbor.stale]
    if not fresh:
        return None, None
    right = next((neighbor for neighbor in fresh if is_port(planned, neighbor)), None)
    actual = right or fresh[0]
    return right is not None, f"{actual.place}, planned {planned.switch} {planned.port}"


def is_port(planned: Port, neighbor: Neighbor) -> bool:
    return is_switch(planned.switch, neighbor) and same_port(
        planned.port, neighbor.port_id.value, neighbor.port_description
    )


def is_switch(name: str, neighbor: Neighbor) -> bool:
    return same_switch(name, neighbor.system_name, neighbor.chassis_id.value)


def same_switch(planned: str, system_name: str | None, chassis_id: str) -> bool:
    """A plan names a switch by its system name or its chassis ID."""
    return same_name(planned, system_name or "") or planned.lower() == chassis_id.lower()


def same_name(one: str, other: str) -> bool:
    """Two names of one device, in any case: the whole domain, or a part of it, may be missing in either."""
    less, more = sorted((one.lower().rstrip("."), other.lower().rstrip(".")), key=len)
    if not less or less == more:
        return bool(less)
    return more.startswith(f"{less}.") and _ADDRESS.fullmatch(more) is None


def same_port(planned: str, port_id: str, description: str | None) -> bool:
    """A plan names a port by its ID or its description, in the short or the long form."""
    return _long_form(planned) in (_long_form(port_id), _long_form(description or ""))


def _long_form(interface: str) -> str:
    """The name of an interface with its type in one spelling. Names with another type stay."""
    name = interface.strip().lower()
    parts = _INTERFACE.fullmatch(name)
    if parts is None:
        return name
    kind = parts[1].replace("-", "")
    if gigabit := _GIGABIT.fullmatch(kind):
        kind = f"{gigabit[1]}gigabitethernet"
    return _LONG_TYPES.get(kind, kind) + parts[2]
