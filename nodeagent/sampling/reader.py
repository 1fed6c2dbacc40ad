"""The interface of a reader, and the parts that readers share: netdevs of PFs, skipped devices, expected errors."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Generic, TypeVar

import msgspec

from nodeagent.facts.model import Function
from nodeagent.host.clock import boottime
from nodeagent.host.ethtool import EthtoolError
from nodeagent.host.kmsg import KernelLogError, KernelLogForbiddenError
from nodeagent.host.netlink.message import NetlinkError, NetlinkForbiddenError
from nodeagent.host.netlink.socket import NetlinkSocket
from nodeagent.host.sysfs import OpenAttributes, SysfsError
from nodeagent.measurements.sample import Sample, Source

log = logging.getLogger(__name__)

S = TypeVar("S", bound=NetlinkSocket)

READ_ERRORS = (NetlinkError, SysfsError, EthtoolError, KernelLogError, OSError)
"""Errors that end one reading of one reader. Other readers continue."""

FORBIDDEN_ERRORS = (NetlinkForbiddenError, KernelLogForbiddenError)
"""Errors for want of a capability, which the shipped manifests withhold on purpose."""

RETRY_S = 600.0
"""A skipped device is tried again after this time."""


class SkippedDevices:
    """Devices on which a reader failed. Each is logged once, counted, and tried again after ``RETRY_S``."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.reasons: dict[str, str] = {}
        self.count = 0
        self._retry_at: dict[str, float] = {}

    def skips(self, device: str, now: float) -> bool:
        return now < self._retry_at.get(device, now)

    def add(self, device: str, reason: str, now: float) -> None:
        if device not in self.reasons:
            self.count += 1
            log.warning(
                "A reader skips a device on which it failed. source=%s device=%s again_in_s=%.0f reason=%r",
                self.source,
                device,
                RETRY_S,
                reason,
            )
        self.reasons[device] = reason
        self._retry_at[device] = now + RETRY_S

    def remove(self, device: str) -> None:
        if self.reasons.pop(device, None) is not None:
            self._retry_at.pop(device, None)
            log.info("A reader reads a device again. source=%s device=%s", self.source, device)

    def keep(self, devices: set[str]) -> None:
        """Forget all other devices."""
        for device in self.reasons.keys() - devices:
            del self.reasons[device]
            self._retry_at.pop(device, None)


class PfNetdevs(msgspec.Struct):
    """The current netdev of each PF, by PCI address. Another netdev may take over a name, but never an ifindex.

    The link reader writes it; the readers after it use it.
    """

    ifindex: dict[str, int] = {}
    name: dict[str, str] = {}

    def devices(self) -> dict[int, str]:
        """PCI address by ifindex."""
        return {ifindex: device for device, ifindex in self.ifindex.items()}


class SampleReader:
    """Measures one kind of values, in a thread. The form without open files or sockets."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.skipped = SkippedDevices(source)

    def read(self, pfs: Sequence[Function]) -> list[Sample]:
        """Raises one of ``READ_ERRORS`` if the reading fails as a whole."""
        raise NotImplementedError

    @property
    def overruns(self) -> int:
        """Messages that the kernel dropped because a socket was full."""
        return 0

    def close(self) -> None:
        """Nothing is open."""

    def read_each(
        self,
        pfs: Iterable[Function],
        read_pf: Callable[[Function, float], Sample | None],
        errors: type[Exception] | tuple[type[Exception], ...],
        absent: frozenset[int] = frozenset(),
    ) -> list[Sample]:
        """One sample per PF, as ``read_pf(pf, now)`` returns it. A PF that fails with one of ``errors`` is skipped.

        An errno among ``absent`` means that the PF has no such values, which is no failure.
        """
        samples = []
        for pf in pfs:
            now, device = boottime(), pf.pci_address
            if self.skipped.skips(device, now):
                continue
            try:
                sample = read_pf(pf, now)
            except errors as error:
                if getattr(error, "code", None) not in absent:
                    self.skipped.add(device, str(error), now)
                continue
            self.skipped.remove(device)
            if sample is not None:
                samples.append(sample)
        return samples


class SysfsReader(SampleReader):
    """A reader that keeps attributes of sysfs open."""

    def __init__(self, source: Source, attributes: OpenAttributes) -> None:
        super().__init__(source)
        self.attributes = attributes

    def close(self) -> None:
        self.attributes.close()


class LazySocket(Generic[S]):
    """A netlink socket that opens at its first use. Readers that share one run in one thread."""

    def __init__(self, connect: Callable[[], S]) -> None:
        self._connect = connect
        self._socket: S | None = None

    def get(self) -> S:
        if self._socket is None:
            self._socket = self._connect()
        return self._socket

    @property
    def overruns(self) -> int:
        return self._socket.overruns if self._socket else 0

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


class NetlinkReader(SampleReader, Generic[S]):
    """A reader of one netlink socket."""

    def __init__(self, source: Source, socket: LazySocket[S]) -> None:
        super().__init__(source)
        self._socket = socket

    @property
    def overruns(self) -> int:
        return self._socket.overruns

    def close(self) -> None:
        self._socket.close()


def measured(**values: float | None) -> dict[str, float]:
    """The values that are not ``None``."""
    return {name: value for name, value in values.items() if value is not None}
