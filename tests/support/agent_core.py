"""The core of an agent without devices, for the tests of its features."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from nodeagent.cluster.deliveries import Deliveries
from nodeagent.facts.inventory import Inventory
from nodeagent.features.seam import AgentCore
from nodeagent.host.sysfs import Tree


class NoOffer:
    """Nothing is offered, and no PF has a rail."""

    def __init__(self) -> None:
        self.offered: tuple[Any, ...] = ()
        self.rails: dict[str, int] = {}
        self.dra: Any = None


def agent_core() -> AgentCore:
    return AgentCore(
        Inventory(), NoOffer(), Deliveries(), list, Tree("/"), asyncio.Event(), Path("/nowhere"), tuple
    )
