"""The NVLink domain of each GPU over several readings of the driver. Pure.

A domain that differs from the last one counts when two readings in succession report it: while the fabric is divided
again, the driver reports other IDs for a moment. A reading without a domain, of a driver that does not know it, changes
nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

from nodeagent.host.gpu_driver import GpuReading


class NvlinkDomains:
    """By the UUID of the GPU."""

    def __init__(self) -> None:
        self._domains: dict[str, str] = {}
        self._differing: dict[str, str] = {}

    def take(self, readings: Iterable[GpuReading]) -> None:
        for reading in readings:
            uuid, domain = reading.uuid, reading.nvlink_domain
            if uuid is None or domain is None:
                continue
            differing = self._differing.pop(uuid, None)
            if domain == self._domains.setdefault(uuid, domain):
                continue
            if domain == differing:
                self._domains[uuid] = domain
            else:
                self._differing[uuid] = domain

    def of(self, uuid: str) -> str | None:
        """The domain; ``None`` if no reading had one."""
        return self._domains.get(uuid)
