"""The cabling plan: the planned switch port of each link, compared with its LLDP neighbors. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from nodeagent.facts.model import Neighbor


class PlanError(Exception):
    """The plan cannot be read; the message names the place and the cause."""


class Port(msgspec.Struct, frozen=True):
    """A switch by its system name (or its chassis ID) and a port by its ID or description, in any case."""

    switch: str
    port: str


Plan = Mapping[str, Port]
"""Of one node, by netdev or PCI address."""

EMPTY: Plan = {}


def of_node(document: object, node: str | None) -> dict[str, Port]:
    """Return the part of a plan document for this node. Raises ``PlanError``.

    A document maps nodes to links to ``{switch: …, port: …}``.
    """
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise PlanError("it must map nodes to links to {switch: …, port: …}")
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
    words = f"{actual.system_name or actual.chassis_id.value} {actual.port_id.value}"
    return right is not None, f"{words}, planned {planned.switch} {planned.port}"


def is_port(planned: Port, neighbor: Neighbor) -> bool:
    ports = {neighbor.port_id.value.lower(), (neighbor.port_description or "").lower()}
    return is_switch(planned.switch, neighbor) and planned.port.lower() in ports


def is_switch(name: str, neighbor: Neighbor) -> bool:
    """The plan may leave out the domain of the system name."""
    system = (neighbor.system_name or "").lower()
    return name.lower() in (system, system.partition(".")[0], neighbor.chassis_id.value.lower())
