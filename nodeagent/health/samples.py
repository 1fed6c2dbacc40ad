"""The former place of ``measurements``; to be removed."""

from nodeagent.measurements.sample import Sample, Source
from nodeagent.measurements.table import MEASUREMENTS as DATA
from nodeagent.measurements.table import TEXTS
from nodeagent.measurements.table import measurement as known

__all__ = ["DATA", "TEXTS", "Sample", "Source", "known"]
