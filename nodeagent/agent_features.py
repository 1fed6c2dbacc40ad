"""The features of the agent: the only place where a feature meets the core and the whole configuration.

A row makes the part of a feature from its own settings, and has its metric families. A feature is its folder or file
in ``features/``, its row here, and its section of the settings.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from nodeagent import __version__
from nodeagent.agent_config import Config, by_volcano, config_digest
from nodeagent.features.gpu_labels import labels_task
from nodeagent.features.gpu_labels.nfd_settings import OfferedGpus
from nodeagent.features.netdevs_in_pods import netdevs_task
from nodeagent.features.nvsentinel import sentinel_task
from nodeagent.features.peer_values import compare_task
from nodeagent.features.pod_traffic import traffic_task
from nodeagent.features.rail_probing import probe_task
from nodeagent.features.seam import AgentCore, AgentPart
from nodeagent.features.volcano_deviceshare import deviceshare_task
from nodeagent.kinds.resource_settings import memory_entries, mig_entries
from nodeagent.measurements.family import Family
from nodeagent.measurements.table import SAMPLED
from nodeagent.metrics.agent_metrics import AGENT_FAMILIES
from nodeagent.metrics.computed_family import ComputedFamily
from nodeagent.metrics.fact_metrics import FACT_FAMILIES
from nodeagent.metrics.scrape_input import ScrapeInput


class AgentRow(NamedTuple):
    """``start`` takes a function that returns the configuration in force."""

    name: str
    start: Callable[[AgentCore, Callable[[], Config]], AgentPart]
    families: tuple[ComputedFamily[ScrapeInput], ...] = ()


def _gpus(config: Config) -> OfferedGpus:
    return OfferedGpus(
        mps=any(entry.enforcement == "mps" for entry in memory_entries(config.resources)),
        by_profile=bool(mig_entries(config.resources)),
    )


AGENT = (
    AgentRow(
        "rails",
        lambda core, now: probe_task.start_probes(core, now().rails),
        probe_task.PROBE_FAMILIES,
    ),
    AgentRow(
        "attach",
        lambda core, now: netdevs_task.start_netdevs(core, now().attach),
        netdevs_task.ATTACH_FAMILIES,
    ),
    AgentRow("nvsentinel", lambda core, now: sentinel_task.start_sentinel(core, now().nv_sentinel)),
    AgentRow(
        "peers",
        lambda core, now: compare_task.start_compare(
            core, now().peers, lambda: (__version__, config_digest(now())[:8])
        ),
    ),
    AgentRow("gpu-labels", lambda core, now: labels_task.start_labels(core, now().nfd, lambda: _gpus(now()))),
    AgentRow("traffic", lambda core, now: traffic_task.start_traffic(core, now().traffic)),
    AgentRow(
        "volcano",
        lambda core, now: deviceshare_task.start_deviceshare(core, lambda: by_volcano(now())),
    ),
)


def families_of_agent() -> tuple[Family, ...]:
    """The families that samples feed, those of the core, then those of each feature: in the order of the page."""
    of_features = (one.family for row in AGENT for one in row.families)
    return (
        *SAMPLED,
        *(one.family for one in FACT_FAMILIES),
        *(one.family for one in AGENT_FAMILIES),
        *of_features,
    )
