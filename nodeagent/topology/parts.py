"""The controller's core, as a feature receives it, and its parts that depend on the configuration."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from nodeagent.fabric import Planner
from nodeagent.kube.client import ApiClient
from nodeagent.kube.reflector import Reflector
from nodeagent.metrics.text_format import Series
from nodeagent.topology.hypernodes import OverlapMarker
from nodeagent.topology.mirrors import ClusterMirror
from nodeagent.topology.plans import Plans
from nodeagent.topology.write_log import WriteLog
from nodeagent.web.ui_pages import PageQuestion

_NOTHING: Mapping[str, Any] = MappingProxyType({})


class ControllerCore(NamedTuple):
    """``writer`` writes only while this replica leads. ``plans`` has a plan only then."""

    namespace: str
    reader: ApiClient
    writer: ApiClient
    write_log: WriteLog
    planner: Planner
    mirror: ClusterMirror
    plans: Plans


class ControllerPart(NamedTuple):
    """A feature's part of the controller: empty, if it is off."""

    lead: Mapping[str, Callable[[], Awaitable[object]]] = _NOTHING
    """Tasks by name, which run while this replica leads."""
    mirrors: Mapping[str, Reflector[Any]] = _NOTHING
    """Further copies by resource, which each replica keeps. Neither the tree nor being ready waits for them."""
    pages: Mapping[str, PageQuestion] = _NOTHING
    """Answers to questions of the map, by name."""
    state: Mapping[str, object] = _NOTHING
    """Fields of the map's state."""
    shown: Any = None
    """The object that the families of the feature show; ``None``: they have no series."""
    writes: Callable[[], Iterable[Series]] = tuple
    """The counts of its writes by verb, object and result."""
    stays: Mapping[str, str] = _NOTHING
    """A sentence for the log about objects that stay once the feature is off, by the command that removes them."""


class FabricParts(NamedTuple):
    """``features`` are by the name of their row."""

    outputs: Collection[str]
    planner: Planner
    mirror: ClusterMirror
    overlaps: OverlapMarker
    features: Mapping[str, ControllerPart]
