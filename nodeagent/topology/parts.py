"""The parts of the controller that depend on its configuration: a change replaces all of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from nodeagent.fabric import Planner
from nodeagent.features.cluster_jobs import ClusterJobs
from nodeagent.features.min_links_marks import MinLinksMarker
from nodeagent.features.other_programs.kept_objects import KeptObjects
from nodeagent.features.rail_probes.rail_keeper import RailKeeper
from nodeagent.features.startup_taint import StartupTaints
from nodeagent.features.switches.switch_poller import SwitchPoller
from nodeagent.topology.hypernodes import OverlapMarker
from nodeagent.topology.mirrors import ClusterMirror


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
