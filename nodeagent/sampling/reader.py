"""What all readers of samples have in common: whom they read, what they leave out, and what may go wrong."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from nodeagent.host.ethtool import EthtoolError
from nodeagent.host.kmsg import KernelLogError
from nodeagent.host.netlink.message import NetlinkError
from nodeagent.host.sysfs import OpenAttributes, SysfsError
from nodeagent.measurements.sample import Sample, Source
from nodeagent.model import Function

log = logging.getLogger(__name__)

TROUBLES = (NetlinkError, SysfsError, EthtoolError, KernelLogError, OSError)
"""What a source may fail with: it is silent then, and the others are not."""

RETRY_S = 600.0
"""After so long a port that was left out is tried again."""


def boottime() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(slots=True)
class LeftOut:
    """Ports that one source fails on. Each is said once, counted, and tried again after ``RETRY_S``."""

    source: Source
    reasons: dict[str, str] = field(default_factory=dict)
    count: int = 0
    _again_at: dict[str, float] = field(default_factory=dict)

    def skips(self, device: str, now: float) -> bool:
        return now < self._again_at.get(device, now)

    def add(self, device: str, reason: str, now: float) -> None:
        if device not in self.reasons:
            self.count += 1
            log.warning(
                "A port is left out of a source. source=%s device=%s again_in_s=%.0f reason=%r",
                self.source,
                device,
                RETRY_S,
                reason,
            )
        self.reasons[device] = reason
        self._again_at[device] = now + RETRY_S

    def take_back(self, device: str) -> None:
        if self.reasons.pop(device, None) is not None:
            self._again_at.pop(device, None)
            log.info("A port is back in a source. source=%s device=%s", self.source, device)

    def keep(self, devices: set[str]) -> None:
        for device in self.reasons.keys() - devices:
            del self.reasons[device]
            self._again_at.pop(device, None)


@dataclass(slots=True)
class Ports:
    """Which netdev each PF has just now: a name may change hands, an ifindex does not.

    Written by the reader of links, read by those after it.
    """

    ifindex: dict[str, int] = field(default_factory=dict)
    netdev: dict[str, str] = field(default_factory=dict)

    def device(self) -> dict[int, str]:
        return {ifindex: device for device, ifindex in self.ifindex.items()}


class Reader(Protocol):
    """One source, read in a thread. ``read`` raises one of ``TROUBLES`` where the whole source fails."""

    @property
    def source(self) -> Source: ...

    @property
    def left_out(self) -> LeftOut: ...

    def read(self, pfs: Sequence[Function]) -> list[Sample]: ...

    def close(self) -> None: ...

    @property
    def overruns(self) -> int: ...


class Plain:
    """A reader without a socket."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.left_out = LeftOut(source)

    @property
    def overruns(self) -> int:
        return 0

    def close(self) -> None:
        """Nothing is open."""


class FromSysfs(Plain):
    """A reader of attributes that it keeps open."""

    def __init__(self, source: Source, attributes: OpenAttributes) -> None:
        super().__init__(source)
        self.attributes = attributes

    def close(self) -> None:
        self.attributes.close()


def known(**values: float | None) -> dict[str, float]:
    """Those that are not ``None``."""
    return {name: value for name, value in values.items() if value is not None}
