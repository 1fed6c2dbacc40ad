"""What the agent's web server shows of the running agent: the view for a scrape, and whether it lives and is ready.

Everything here is read off what others keep; nothing is asked of the machine. The composition root gives the
parts and this file puts them side by side.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Protocol

from nodeagent import supervise
from nodeagent.config.formats import host_port
from nodeagent.inventory import Inventory
from nodeagent.kinds import DeviceKind
from nodeagent.kinds.gpu_memory import Slices
from nodeagent.kubelet.rpc_stats import ResourceStatus, RpcStats
from nodeagent.measurements.sample import Sample
from nodeagent.metrics.scrape_input import DeviceCount, HealthFigures, ScrapeInput
from nodeagent.model import Snapshot
from nodeagent.sampling.reader_status import ReaderStatus
from nodeagent.web.auth import Door
from nodeagent.web.server import Answer, Page, Web
from nodeagent.web.web_settings import WebSettings

if TYPE_CHECKING:
    from nodeagent.web.metrics_page import MetricsPage

MIB = 1024 * 1024


class Measured(Protocol):
    """What the sampler of the NICs keeps."""

    def samples(self) -> Iterable[Sample]: ...
    def reader_statuses(self) -> Iterable[ReaderStatus]: ...
    def overruns(self) -> Mapping[str, int]: ...


class GpuLedger(Protocol):
    """What is known of the GPUs beside the snapshot, by UUID and XID; times are CLOCK_BOOTTIME."""

    @property
    def xids(self) -> Mapping[tuple[str, int], int]: ...
    @property
    def xid_times(self) -> Mapping[tuple[str, int], float]: ...
    def samples(self) -> Iterable[Sample]: ...
    def reader_statuses(self) -> Iterable[ReaderStatus]: ...


class Pages:
    """``offered`` are the kinds that the kubelet is told of, ``withheld`` why others are not; ``remarks`` are what
    is offered otherwise than configured, which is no reason not to be ready."""

    def __init__(self, settings: WebSettings, inventory: Inventory, stats: RpcStats) -> None:
        self._settings = settings
        self._inventory = inventory
        self._stats = stats
        self._counted: tuple[Snapshot | None, tuple[DeviceKind, ...], tuple[DeviceCount, ...]] = (
            None,
            (),
            (),
        )
        self._metrics: MetricsPage | None = None
        self.door = Door(settings)
        self.offered: tuple[DeviceKind, ...] = ()
        self.withheld: tuple[str, ...] = ()
        self.remarks: tuple[str, ...] = ()
        self.rails: Mapping[str, int] = {}
        self.statuses: Callable[[], tuple[ResourceStatus, ...]] = lambda: ()
        self.measured: Measured | None = None
        self.judged: Callable[[], Mapping[str, HealthFigures]] = dict
        self.explained: Callable[[], bytes] = lambda: b"[]\n"
        self.gpus: GpuLedger | None = None
        self.stuck_threads: Callable[[], int] = lambda: 0
        self.heard_at: Callable[[], Mapping[str, float]] = dict

    async def serve(self, listen: str, listening: Callable[[int], None]) -> None:
        """Until cancelled."""
        probes: dict[str, Answer] = {"/healthz": self._healthz, "/readyz": self._readyz}
        web = Web({"/metrics": self._scrape, "/health": self._health, **probes}, self.door)
        async with asyncio.TaskGroup() as group:
            group.create_task(web.run(*host_port(listen), listening))
            if self._settings.probe_listen is not None:
                group.create_task(Web(probes).run(*host_port(self._settings.probe_listen)))

    def _scrape(self, accept: str) -> Page:
        if self._metrics is None:
            # The catalog takes 15 ms to load, and the kubelet waits for nothing else while the agent starts.
            from nodeagent.web.metrics_page import MetricsPage  # noqa: PLC0415

            self._metrics = MetricsPage(self.view, self._settings.series_max)
        return self._metrics.page(accept)

    def view(self) -> ScrapeInput:
        snapshot, measured, gpus = self._inventory.snapshot, self.measured, self.gpus
        return ScrapeInput(
            snapshot=snapshot,
            samples=(*(measured.samples() if measured else ()), *(gpus.samples() if gpus else ())),
            device_counts=self._device_counts(snapshot),
            reader_statuses=(
                *(measured.reader_statuses() if measured else ()),
                *(gpus.reader_statuses() if gpus else ()),
            ),
            health_figures=self.judged(),
            statuses=self.statuses(),
            rpc_stats=self._stats,
            restarts=supervise.restarts,
            xids=gpus.xids if gpus else {},
            xid_times=gpus.xid_times if gpus else {},
            overruns=measured.overruns() if measured else {},
            last_lldp=self.heard_at(),
            stuck_threads=self.stuck_threads(),
            boot_unix=time.time() - time.clock_gettime(time.CLOCK_BOOTTIME),
            certificate=(self.door.ends_at or 0.0, self.door.fresh)
            if self._settings.certificate_file
            else None,
            rails=self.rails,
        )

    def _device_counts(self, snapshot: Snapshot) -> tuple[DeviceCount, ...]:
        """Count only when the snapshot or the offer changes: a node may have 80,000 slices."""
        if self._counted[0] is not snapshot or self._counted[1] is not self.offered:
            self._counted = (snapshot, self.offered, tuple(device_counts(self.offered, snapshot)))
        return self._counted[2]

    def _health(self, _accept: str) -> Page:
        return Page(200, self.explained(), "application/json")

    def _healthz(self, _accept: str) -> Page:
        """The loop answers, or nobody would: that is all there is to say."""
        return Page(200, b"ok\n")

    def _readyz(self, _accept: str) -> Page:
        statuses = self.statuses()
        missing = [status for status in statuses if not status.registered]
        lines = [
            f"{status.resource}: "
            + (
                f"{status.healthy} of {status.devices} healthy"
                if status.registered
                else f"not registered: {status.reason}"
            )
            for status in statuses
        ]
        lines += [f"{one} (not registered)" for one in self.withheld]
        lines += self.remarks
        good = bool(statuses) and not missing and not self.withheld
        return Page(
            200 if good else 503, "".join(f"{line}\n" for line in lines or ["nothing offered yet"]).encode()
        )


def device_counts(kinds: Iterable[DeviceKind], snapshot: Snapshot) -> Iterable[DeviceCount]:
    """Count the devices of each resource on each PF or GPU, and those that are free."""
    held: dict[str, set[str]] = {}
    for holding in snapshot.holdings or ():
        held.setdefault(holding.resource, set()).update(holding.device_ids)
    for kind in kinds:
        slices = kind.free(snapshot) if isinstance(kind, Slices) else None
        size = kind.slice_mib * MIB if isinstance(kind, Slices) else None
        taken = held.get(kind.resource, set())
        counts: dict[str, list[int]] = {}
        for entry in kind.devices(snapshot):
            count = counts.setdefault(entry.parent, [0, 0, 0])
            count[0] += len(entry.ids)
            if entry.health.allocatable:
                count[1] += len(entry.ids)
                count[2] += sum(one not in taken for one in entry.ids) if slices is None else 0
        for parent, (devices, allocatable, left) in counts.items():
            free = None if snapshot.holdings is None else left if slices is None else slices.get(parent, 0)
            yield DeviceCount(kind.resource, parent, devices, allocatable, free, size)
