"""Every metric family of the agent, declared once: ``family`` defines a row, each imported module holds one topic."""

from nodeagent.metrics import agent_metrics, gpu_metrics, health_metrics, info, link_metrics, nic_metrics
from nodeagent.metrics.family import CATALOG, Family, Feed

__all__ = [
    "CATALOG",
    "Family",
    "Feed",
    "agent_metrics",
    "gpu_metrics",
    "health_metrics",
    "info",
    "link_metrics",
    "nic_metrics",
]
