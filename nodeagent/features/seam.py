"""The seam between the agent and its features: the core, as a feature receives it, and what a feature gives back.

The controller's is ``nodeagent/topology/parts.py``. Nothing is imported here when the agent runs: a feature that is off
loads no room.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Iterable
    from pathlib import Path

    from nodeagent.cluster.agent_tasks import AgentOffer, Task, Writing
    from nodeagent.cluster.deliveries import Deliveries
    from nodeagent.facts.inventory import Inventory
    from nodeagent.host.sysfs import Tree
    from nodeagent.measurements.sample import Sample
    from nodeagent.web.server import FolderHandler, PageHandler

_NOTHING: Mapping[str, Any] = MappingProxyType({})


class AgentCore(NamedTuple):
    """``deliveries`` take failed writes: for metrics, Events and `/readyz`. ``take_samples`` hands measurements to
    the rules of health. ``tree`` is the machine. ``settled`` is set when the kubelet has the devices: what
    registration does not need is imported after it. ``state`` is the state directory. ``samples`` returns the latest
    measurements of NICs and GPUs. ``allocated_at`` returns when this agent allocated a device last, CLOCK_BOOTTIME; 0:
    never."""

    inventory: Inventory
    offer: AgentOffer
    deliveries: Deliveries
    take_samples: Callable[[Iterable[Sample]], object]
    tree: Tree
    settled: asyncio.Event
    state: Path
    samples: Callable[[], Iterable[Sample]]
    allocated_at: Callable[[str], float] = lambda _id: 0.0


class AgentPart(NamedTuple):
    """A feature's part of the agent: empty, if it is off."""

    tasks: Mapping[str, Callable[[str | None], Awaitable[object]]] = _NOTHING
    """By name. Each takes the name of the Node, ``None`` if it is not known."""
    writers: Mapping[str, Callable[[Writing], Task]] = _NOTHING
    """Makers of further tasks by name, which run where there is an API server."""
    samples: Callable[[], Iterable[Sample]] = tuple
    """Its latest measurements, for metrics."""
    pages: Mapping[str, PageHandler] = _NOTHING
    """By path; for the verbs of this node alone."""
    folders: Mapping[str, FolderHandler] = _NOTHING
