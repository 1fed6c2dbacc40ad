"""The core as a feature receives it. A feature gives back a ``nodeagent/topology/parts.py:ControllerPart``."""

from __future__ import annotations

from typing import NamedTuple

from nodeagent.fabric import Planner
from nodeagent.kube.client import ApiClient
from nodeagent.topology.mirrors import ClusterMirror
from nodeagent.topology.plans import Plans
from nodeagent.topology.write_log import WriteLog


class ControllerCore(NamedTuple):
    """``writer`` writes only while this replica leads. ``plans`` has a plan only then."""

    namespace: str
    reader: ApiClient
    writer: ApiClient
    write_log: WriteLog
    planner: Planner
    mirror: ClusterMirror
    plans: Plans
