"""Access to the machine under a root folder: kernel events and GPU driver, live or recorded.

A root with ``/.nodeagent/gpus.json`` is a captured or simulated machine. Changes in its folder ``/.nodeagent``
take the place of rtnetlink messages and uevents.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import PurePosixPath

from nodeagent.facts.model import Function, Link
from nodeagent.host.gpu_driver import DriverError, GpuReading, GpuVitals
from nodeagent.host.inotify import CONTENT, FolderWatch
from nodeagent.host.netlink.kernel_events import LinkEvents, NetlinkError, Uevents
from nodeagent.host.netlink.netdevs import Netdevs
from nodeagent.host.recorded_gpus import PATH
from nodeagent.host.sysfs import Tree
from nodeagent.sources.scan_hints import ScanHint
from nodeagent.sources.source_settings import LinkSelect

log = logging.getLogger(__name__)

_DRIVER_FILE = PurePosixPath(PATH).name


class NoDriver:
    """A driver without GPUs, for ``gpu.driver: none``."""

    def open(self) -> None:
        raise DriverError("gpu.driver is none", absent=True)

    def close(self) -> None:
        """Do nothing: ``open`` always fails."""

    def version(self) -> str | None:
        return None

    def gpus(self) -> tuple[GpuReading, ...]:
        return ()

    def excluded(self) -> frozenset[str]:
        return frozenset()

    def vitals(self) -> tuple[GpuVitals, ...]:
        return ()

    def any_lost(self) -> bool:
        return False

    def has_events(self) -> bool:
        return False

    def wait(self, timeout_s: float) -> tuple[()]:
        raise DriverError(f"there is no driver to wait {timeout_s} s for", absent=True)


class FolderHint:
    """Wakes at a change in one folder. A simulated machine has this in place of uevents. The file of the GPU driver
    wakes its own reader alone, as the events of NVML do."""

    def __init__(self, watch: FolderWatch) -> None:
        self._watch = watch

    async def wait(self) -> None:
        while all(change.name == _DRIVER_FILE for change in await self._watch.changes()):
            continue


@contextmanager
def hints(tree: Tree, known: Callable[[], Iterable[Function]] | None = None) -> Iterator[list[ScanHint]]:
    """Open what wakes a scan before its timer. If nothing can be opened, log it: the timer alone remains.

    With ``known`` functions an event wakes if it is about one of their netdevs or about hardware; otherwise every
    event does.
    """
    with ExitStack() as stack:
        opened: list[ScanHint] = []
        if tree.recorded:
            watch = stack.enter_context(FolderWatch())
            watch.add(tree.path("/.nodeagent"), CONTENT)
            opened.append(FolderHint(watch))
        else:
            matters = None if known is None else partial(is_netdev_of, known)
            makers: tuple[Callable[[], LinkEvents | Uevents], ...] = (
                partial(LinkEvents, matters),
                partial(Uevents, hardware=known is not None),
            )
            for make in makers:
                try:
                    events = stack.enter_context(make())
                except NetlinkError as error:
                    log.warning("Kernel events are not available. reason=%r", str(error))
                    continue
                opened.append(events)
        yield opened


def is_netdev_of(functions: Callable[[], Iterable[Function]], name: str) -> bool:
    """Whether a netdev with this name belongs to one of the functions."""
    return any(function.netdev == name for function in functions())


def has_netdevs(tree: Tree, wanted: LinkSelect) -> bool:
    """Whether the links are netdevs of this host. Those of a captured or simulated machine are not, unless the settings
    name netdevs."""
    return not tree.recorded or bool(wanted.netdevs)


def permanent_macs(tree: Tree, links: Iterable[Link] = ()) -> dict[str, str | None]:
    """Return the permanent MAC addresses by PCI address, for the NICs of this network namespace.

    The result is empty if the kernel does not answer. A captured or simulated machine has the current addresses of its
    ``links`` alone.
    """
    if tree.recorded:
        return {link.pci_address: link.mac for link in links}
    try:
        with Netdevs() as netdevs:
            entries = netdevs.read()
    except NetlinkError:
        return {}
    return {
        netdev.pci_address: netdev.permanent_mac.hex(":") if netdev.permanent_mac else None
        for netdev in entries
        if netdev.pci_address is not None
    }
