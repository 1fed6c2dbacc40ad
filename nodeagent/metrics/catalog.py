"""Every metric family of the agent, in the order of the page."""

from nodeagent.measurements.family import Family
from nodeagent.measurements.gpu_rows import GPU_ROWS
from nodeagent.measurements.table import NIC_ROWS, by_name

# Importing a module declares its families.
from nodeagent.metrics import agent_metrics, gpu_metrics, health_metrics, info_metrics
from nodeagent.metrics.computed_family import FACT_FAMILIES, LIVE_FAMILIES

__all__ = ["CATALOG", "SAMPLED", "agent_metrics", "gpu_metrics", "health_metrics", "info_metrics"]

SAMPLED: tuple[Family, ...] = (
    *GPU_ROWS,
    *health_metrics.GPU_FIGURES,
    *health_metrics.LINK_FIGURES,
    *NIC_ROWS,
)
"""The families that samples and health figures feed."""

CATALOG: dict[str, Family] = by_name((*SAMPLED, *FACT_FAMILIES.families(), *LIVE_FAMILIES.families()))
