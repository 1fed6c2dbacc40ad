"""The pages of the agent's web server: metrics, health with its reasons, and the probes of the kubelet."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from nodeagent.base import supervise
from nodeagent.base.bounded_calls import hanging_calls
from nodeagent.base.change_log import ChangeLog
from nodeagent.base.unwritable_memory import UnwritableMemory, unwritable_remark
from nodeagent.config.followed_configuration import FollowedConfiguration
from nodeagent.config.formats import host_port
from nodeagent.dra.offered import PoolStatus
from nodeagent.dra.prepared_claim import ClaimFigures
from nodeagent.facts.inventory import Inventory
from nodeagent.facts.model import Snapshot
from nodeagent.health.judge import DeviceFigures
from nodeagent.host.clock import boottime
from nodeagent.kinds import DeviceKind
from nodeagent.kubelet.rpc_stats import ResourceStatus, RpcStats
from nodeagent.measurements.reader_status import ReaderStatus
from nodeagent.measurements.sample import Sample
from nodeagent.metrics.computed_family import ComputedFamily
from nodeagent.metrics.scrape_input import ClusterWrites, DeviceCount, ScrapeInput
from nodeagent.sharing.cgroup_limits import CgroupLimits
from nodeagent.sharing.gpu_accounting import GpuAccounting
from nodeagent.sharing.mps_watch import MpsWatch
from nodeagent.sources.gpu_publisher import GpuPublisher
from nodeagent.web import local_socket
from nodeagent.web.auth import AccessControl
from nodeagent.web.gpu_statuses import GpuStatuses, gpu_statuses
from nodeagent.web.machine_view import MachineView, OfferView
from nodeagent.web.metrics_page import MetricsPage
from nodeagent.web.node_page import NodePage, NodePageSources
from nodeagent.web.sample_history import SAMPLE_EVERY_S, SampleHistory
from nodeagent.web.server import FolderHandler, Page, PageHandler, WebServer, json_page
from nodeagent.web.web_settings import AccessSettings, WebSettings

MIB = 1024 * 1024
NOTHING_CONFIGURED = "resources is empty: no device is configured to be offered"


class PageSources(NamedTuple):
    """The parts of the agent that the pages read."""

    inventory: Inventory
    offering: Callable[[], OfferView]
    rpc_stats: RpcStats
    nic_samples: Callable[[], Iterable[Sample]]
    nic_readers: Callable[[], Iterable[ReaderStatus]]
    overruns: Callable[[], Mapping[str, int]]
    last_lldp: Callable[[], Mapping[str, float]]
    gpus: GpuPublisher
    statuses: Callable[[], tuple[ResourceStatus, ...]]
    health_figures: Callable[[], Mapping[str, DeviceFigures]]
    explained_health: Callable[[], bytes]
    """The health of every PF and GPU with its rules and values, as JSON."""
    machine_view: Callable[[], MachineView]
    """The facts and the offered devices."""
    neighbor_view: Callable[[], bytes]
    """The links with their neighbors, as JSON, for ``nodeagent neighbors``."""
    configuration: FollowedConfiguration[Any] | None
    """``None``: the agent has no configuration file."""
    stuck_threads: Callable[[], int]
    cluster_writes: Callable[[], tuple[ClusterWrites, ...]]
    cluster_remarks: Callable[[], tuple[str, ...]]
    """A line for each part whose writes to the API server fail or are incomplete."""
    accounting: GpuAccounting
    limits: CgroupLimits
    mps: MpsWatch
    changes: ChangeLog
    """The newest changes of this node."""
    node: str = ""
    """The name of this node, for people."""
    claims: Callable[[], ClaimFigures | None] = lambda: None
    unwritable_state: Callable[[], tuple[UnwritableMemory, ...]] = tuple
    """The files of the state folder that cannot be written."""
    lost_history: Callable[[], str | None] = lambda: None
    """Why a restart loses the changes although ``history.file`` names a file."""
    pools: Callable[[], tuple[PoolStatus, ...]] = tuple
    """The devices that claims allocate."""


class Pages:
    """``/metrics``, ``/health``, ``/ui/``, ``/healthz`` and ``/readyz`` of the agent. They read memory, never the
    machine."""

    def __init__(
        self,
        settings: WebSettings,
        sources: PageSources,
        further: Iterable[ComputedFamily[ScrapeInput]] = (),
    ) -> None:
        """``further`` families stand on the page of metrics after those of the core."""
        self._settings = settings
        self._sources = sources
        self._counted: tuple[Snapshot | None, tuple[DeviceKind, ...], tuple[DeviceCount, ...]] = (
            None,
            (),
            (),
        )
        self._metrics_page = MetricsPage(self.scrape_input, settings, further)
        self._history = SampleHistory()
        page_sources = NodePageSources(
            sources.node,
            sources.inventory,
            sources.machine_view,
            sources.explained_health,
            self._gpu_statuses,
            sources.statuses,
            lambda: sources.offering().rails,
            self._history,
            sources.changes,
            settings.runbook,
        )
        self._ui = NodePage(page_sources).folder()
        self.access = AccessControl(settings, (sources.node, socket.gethostname()))

    async def serve(self, listen: str, listening: Callable[[int], None]) -> None:
        """Serve until cancelled. ``listening`` takes the port."""
        probes: dict[str, PageHandler] = {"/healthz": self._healthz, "/readyz": self._readyz}
        folders = {"/ui/": self._ui} if self._settings.ui else {}
        server = WebServer(
            {"/metrics": self._metrics_page.page, "/health": self._health, **probes}, self.access, folders
        )
        async with asyncio.TaskGroup() as group:
            group.create_task(server.run(*host_port(listen), listening))
            if self._settings.probe_listen is not None:
                plain = AccessControl(AccessSettings(host_names=tuple(self.access.names)))
                group.create_task(WebServer(probes, plain).run(*host_port(self._settings.probe_listen)))

    async def serve_locally(
        self, folder: Path, further: Mapping[str, PageHandler], folders: Mapping[str, FolderHandler]
    ) -> None:
        """Serve the verbs of this node on a socket in this folder, until cancelled. ``further`` pages and ``folders``
        are by their path."""
        pages: dict[str, PageHandler] = {
            "/health": self._health,
            "/scan": self._scan,
            "/gpus": self._gpus,
            "/neighbors": self._neighbors,
            "/configuration": self._configuration,
            **further,
        }
        async with asyncio.TaskGroup() as group:
            group.create_task(local_socket.serve(folder, pages, {"/ui/": self._ui, **folders}))
            if self._settings.ui:
                group.create_task(self._record())

    async def _record(self) -> None:
        """Record the values whose curves the node page shows."""
        while True:
            await asyncio.sleep(SAMPLE_EVERY_S)
            sources = self._sources
            self._history.take((*sources.nic_samples(), *sources.gpus.samples()), boottime())

    def scrape_input(self) -> ScrapeInput:
        """Return the values of one scrape."""
        sources, settings = self._sources, self._settings
        snapshot, gpus, offering = sources.inventory.snapshot, sources.gpus, sources.offering()
        return ScrapeInput(
            snapshot=snapshot,
            samples=(*sources.nic_samples(), *gpus.samples()),
            device_counts=self._device_counts(snapshot),
            reader_statuses=(*sources.nic_readers(), *gpus.reader_statuses()),
            health_figures=sources.health_figures(),
            statuses=sources.statuses(),
            withheld=offering.withheld,
            unwritable=offering.unwritable,
            unwritable_state=sources.unwritable_state(),
            rpc_stats=sources.rpc_stats,
            claims=sources.claims(),
            restarts=supervise.restarts,
            xids=gpus.xids,
            xid_times=gpus.xid_times,
            sxids=gpus.sxids,
            overruns=sources.overruns(),
            last_lldp=sources.last_lldp(),
            configuration_fault=sources.configuration.fault if sources.configuration is not None else "",
            stuck_threads=sources.stuck_threads(),
            hanging={call.source: call.seconds for call in hanging_calls()},
            boot_unix=time.time() - boottime(),
            certificate=(self.access.ends_at or 0.0, self.access.fresh)
            if settings.certificate_file
            else None,
            cluster_writes=sources.cluster_writes(),
            rails=offering.rails,
            gpu_accounts=sources.accounting.accounts() if sources.accounting.obstacle is None else (),
            accounting_obstacle=sources.accounting.obstacle,
            limit_counts=sources.limits.counts(),
            limit_writes=sources.limits.writes,
            mps_ends=sources.mps.ends,
        )

    def _device_counts(self, snapshot: Snapshot) -> tuple[DeviceCount, ...]:
        """Count only when the snapshot or the offer changes: a node may have 80,000 slices."""
        offered = self._sources.offering().offered
        if self._counted[0] is not snapshot or self._counted[1] is not offered:
            self._counted = (snapshot, offered, tuple(device_counts(offered, snapshot)))
        return self._counted[2]

    def _health(self, _accept: str) -> Page:
        return Page(200, self._sources.explained_health(), "application/json")

    def _scan(self, _accept: str) -> Page:
        return json_page(self._sources.machine_view())

    def _neighbors(self, _accept: str) -> Page:
        return Page(200, self._sources.neighbor_view(), "application/json")

    def _configuration(self, _accept: str) -> Page:
        file = self._sources.configuration
        return json_page({"waiting": file.waiting if file is not None else ()})

    def _gpus(self, _accept: str) -> Page:
        return json_page(self._gpu_statuses())

    def _gpu_statuses(self) -> GpuStatuses:
        sources = self._sources
        snapshot, accounting = sources.inventory.snapshot, sources.accounting
        counts, samples = self._device_counts(snapshot), sources.gpus.samples()
        return gpu_statuses(
            snapshot,
            counts,
            samples,
            accounting.accounts(),
            accounting.obstacle,
            settings=accounting.settings,
            now=boottime(),
        )

    def _healthz(self, _accept: str) -> Page:
        """Answer: this proves that the event loop runs."""
        return Page(200, b"ok\n")

    def _readyz(self, _accept: str) -> Page:
        offering, statuses = self._sources.offering(), self._sources.statuses()
        pools = self._sources.pools()
        lines = [_readiness(status) for status in statuses]
        lines += [_pool_readiness(pool) for pool in pools]
        lines += [f"{entry.resource}: {entry.reason} (not registered)" for entry in offering.withheld]
        if not lines and not offering.troubles:
            lines.append(NOTHING_CONFIGURED if offering.examined else "nothing offered yet")
        short = [trouble.message for trouble in offering.troubles if not trouble.ready]
        lines += [f"{message} (not ready)" for message in short]
        lines += [*offering.remarks, *(trouble.message for trouble in offering.troubles if trouble.ready)]
        if state := self._sources.unwritable_state():
            lines.append(unwritable_remark(state))
        if (lost := self._sources.lost_history()) is not None:
            lines.append(lost)
        lines += self._sources.cluster_remarks()
        lines += self._sources.configuration.remarks() if self._sources.configuration is not None else ()
        lines += [
            f"{call.source}: no answer for {call.seconds:.0f} s{f' in {call.step}' if call.step else ''}"
            for call in hanging_calls()
        ]
        usable = all(status.registered for status in statuses) and all(
            pool.obstacle is None for pool in pools
        )
        ready = (bool(statuses) or offering.examined) and usable and not offering.withheld and not short
        text = "".join(f"{line}\n" for line in lines)
        return Page(200 if ready else 503, text.encode())


def _readiness(status: ResourceStatus) -> str:
    if status.registered:
        return f"{status.resource}: {status.healthy} of {status.devices} healthy"
    return f"{status.resource}: not registered: {status.reason}"


def _pool_readiness(pool: PoolStatus) -> str:
    state = f"{pool.healthy} of {pool.devices} healthy" if pool.obstacle is None else pool.obstacle
    return f"{pool.pool} (dra): {state}"


def device_counts(kinds: Iterable[DeviceKind], snapshot: Snapshot) -> Iterable[DeviceCount]:
    """Count the devices of each resource on each PF or GPU, and those that are free."""
    for kind in kinds:
        free = kind.free(snapshot)
        level = kind.level(snapshot)
        device_bytes = None if kind.device_mib is None else kind.device_mib * MIB
        counts: dict[str, list[int]] = {}
        for entry in kind.devices(snapshot):
            count = counts.setdefault(entry.parent, [0, 0])
            count[0] += len(entry.ids)
            count[1] += len(entry.ids) if entry.health.allocatable else 0
        for parent, (devices, allocatable) in counts.items():
            left = None if free is None else free.get(parent, 0)
            yield DeviceCount(kind.resource, parent, devices, allocatable, left, device_bytes, level)
