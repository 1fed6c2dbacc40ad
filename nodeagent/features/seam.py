"""The seam between the daemons and their features: a core, as a feature receives it, and what a feature gives back.

A feature of the controller gives back a ``nodeagent/topology/parts.py:ControllerPart``. Nothing is imported here when a
daemon runs: each of the two would load the rooms of the other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Iterable

    from nodeagent.cluster.agent_tasks import AgentOffer, Task, Writing
    from nodeagent.cluster.deliveries import Deliveries
    from nodeagent.fabric import Planner
    from nodeagent.facts.inventory import Inventory
    from nodeagent.host.sysfs import Tree
    from nodeagent.kube.client import ApiClient
    from nodeagent.measurements.sample import Sample
    from nodeagent.topology.mirrors import ClusterMirror
    from nodeagent.topology.plans import Plans
    from nodeagent.topology.write_log import WriteLog
    from nodeagent.web.server import FolderHandler, PageHandler

_NOTHING: Mapping[str, Any] = MappingProxyType({})


class AgentCore(NamedTuple):
    """``deliveries`` take failed writes: for metrics, Events and `/readyz`. ``take_samples`` hands measurements to
    the rules of health. ``tree`` is the machine. ``settled`` is set when the kubelet has the devices: what
    registration does not need is imported after it."""

    inventory: Inventory
    offer: AgentOffer
    deliveries: Deliveries
    take_samples: Callable[[Iterable[Sample]], object]
    tree: Tree
    settled: asyncio.Event


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


class ControllerCore(NamedTuple):
    """``writer`` writes only while this replica leads. ``plans`` has a plan only then."""

    namespace: str
    reader: ApiClient
    writer: ApiClient
    write_log: WriteLog
    planner: Planner
    mirror: ClusterMirror
    plans: Plans
