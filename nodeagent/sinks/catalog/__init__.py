"""Every metric family of the agent, declared once. ``family`` says how; each other file is a topic."""

from nodeagent.sinks.catalog import facts, gpus, hardware, itself, links, verdicts
from nodeagent.sinks.catalog.family import CATALOG, Family, Feed

__all__ = ["CATALOG", "Family", "Feed", "facts", "gpus", "hardware", "itself", "links", "verdicts"]
