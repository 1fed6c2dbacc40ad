"""The features of the controller: the only place where a feature meets the core and the whole configuration.

A row makes the part of a feature from its own settings, and has its metric families. A feature is its folder or file
in ``features/``, its row here, and its section of the settings.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from nodeagent.controller_config import FabricConfig
from nodeagent.features import cluster_jobs, min_links_marks, silent_agents, startup_taint
from nodeagent.features.other_programs import keeping
from nodeagent.features.rail_probing import rail_keeping
from nodeagent.features.switches import switch_asking
from nodeagent.measurements.family import Family
from nodeagent.metrics.computed_family import ComputedFamily
from nodeagent.metrics.controller_metrics import CONTROLLER_FAMILIES
from nodeagent.topology.parts import ControllerCore, ControllerPart


class ControllerRow(NamedTuple):
    """``start`` may raise ``Fatal`` if this installation cannot do what is configured. ``families`` show
    ``ControllerPart.shown``."""

    name: str
    start: Callable[[ControllerCore, FabricConfig], ControllerPart]
    families: tuple[ComputedFamily[Any], ...] = ()


CONTROLLER = (
    ControllerRow(
        "marks",
        lambda core, config: min_links_marks.start_marks(core, config.nodes, config.min_links),
        min_links_marks.MARK_FAMILIES,
    ),
    ControllerRow(
        "rails",
        lambda core, config: rail_keeping.start_rails(core, config.rails),
        rail_keeping.RAIL_FAMILIES,
    ),
    ControllerRow(
        "switches",
        lambda core, config: switch_asking.start_switches(core, config.switches, config.generic_names),
        switch_asking.SWITCH_FAMILIES,
    ),
    ControllerRow(
        "startup taints",
        lambda core, config: startup_taint.start_taints(core, wanted=config.nodes.startup_taint),
    ),
    ControllerRow(
        "silent agents",
        lambda core, config: silent_agents.start_agent_watch(core, wanted=config.watch_agents),
    ),
    ControllerRow(
        "other programs",
        lambda core, config: keeping.start_kept(
            core,
            config.fabric,
            slurm=config.slurm if "slurm" in config.outputs else None,
            groups=config.node_feature_groups if "nodefeaturegroups" in config.outputs else None,
            trouble=config.trouble_annotation and "hypernodes" in config.outputs,
        ),
    ),
    ControllerRow(
        "jobs",
        lambda core, config: cluster_jobs.start_jobs(core, wanted=config.jobs),
        cluster_jobs.JOB_FAMILIES,
    ),
)


def families_of_controller() -> tuple[Family, ...]:
    """The families of the core, then those of each feature: in the order of the page."""
    rows = (CONTROLLER_FAMILIES, *(row.families for row in CONTROLLER))
    return tuple(one.family for families in rows for one in families)
