"""The cabling plan: which switch port each link should meet, held against what LLDP hears. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from nodeagent.model import Neighbor


class PlanError(Exception):
    """The plan cannot be read; the message says where and what is wrong."""


@dataclass(frozen=True, slots=True)
class Port:
    """A switch by its system name (or its chassis ID) and a port by its ID or description, in any case."""

    switch: str
    port: str


Plan = Mapping[str, Port]
"""Of one node, by netdev or PCI address."""

EMPTY: Plan = {}


def of_node(document: object, node: str | None) -> dict[str, Port]:
    """The part of a plan document that is this node's. Raises ``PlanError``.

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
    """Whether the link meets its port, and what it meets. ``None``: nobody fresh speaks there."""
    fresh = [neighbor for neighbor in neighbors if not neighbor.stale]
    if not fresh:
        return None, None
    right = next((neighbor for neighbor in fresh if meets(planned, neighbor)), None)
    met = right or fresh[0]
    said = f"{met.system_name or met.chassis_id.value} {met.port_id.value}"
    return right is not None, f"{said}, planned {planned.switch} {planned.port}"


def meets(planned: Port, neighbor: Neighbor) -> bool:
    ports = {neighbor.port_id.value.lower(), (neighbor.port_description or "").lower()}
    return is_switch(planned.switch, neighbor) and planned.port.lower() in ports


def is_switch(name: str, neighbor: Neighbor) -> bool:
    """A switch may announce itself with its domain, and the plan may leave that out."""
    system = (neighbor.system_name or "").lower()
    return name.lower() in (system, system.partition(".")[0], neighbor.chassis_id.value.lower())
