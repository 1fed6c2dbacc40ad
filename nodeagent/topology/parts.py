"""The parts of the controller that depend on its configuration: a change replaces all of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from nodeagent.fabric import Planner
from nodeagent.topology.cluster_jobs import ClusterJobs
from nodeagent.topology.hypernodes import OverlapMarker
from nodeagent.topology.kept_objects import KeptObjects
from nodeagent.topology.min_links_marks import MinLinksMarker
from nodeagent.topology.mirrors import ClusterMirror
from nodeagent.topology.rail_keeper import RailKeeper
from nodeagent.topology.startup_taint import StartupTaints
from nodeagent.topology.switches.switch_poller import SwitchPoller


class FabricParts(NamedTuple):
    """``marks``, ``startup``, ``switches``, ``jobs`` and ``rails`` exist if configured."""

    outputs: Collection[str]
    planner: Planner
    mirror: ClusterMirror
    overlaps: OverlapMarker
    marks: MinLinksMarker | None
    startup: StartupTaints | None
    switches: SwitchPoller | None
    kept: Mapping[str, KeptObjects]
    """By output."""
    jobs: ClusterJobs | None
    rails: RailKeeper | None
