"""The pages of the agent's web server: metrics, health with its reasons, and the probes of the kubelet."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import msgspec

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
from nodeagent.health.service import HealthService
from nodeagent.host.clock import boottime
from nodeagent.kinds import DeviceKind
from nodeagent.kinds.rail_numbers import nic_names
from nodeagent.kubelet.registration import DevicePlugins
from nodeagent.kubelet.rpc_stats import ResourceStatus
from nodeagent.measurements.reader_status import ReaderStatus
from nodeagent.measurements.sample import Sample
from nodeagent.metrics.computed_family import ComputedFamily
from nodeagent.metrics.scrape_input import ClusterWrites, DeviceCount, ScrapeInput
from nodeagent.sharing.gpu_sharing import GpuSharing
from nodeagent.sources import gpu_source
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

if TYPE_CHECKING:
    from nodeagent.sources.neighbor_view import NeighborListing

MIB = 1024 * 1024
NOTHING_CONFIGURED = "resources is empty: no device is configured to be offered"


class MachineSources(Protocol):
    """The sources of this machine: the latest readings of NICs and GPUs, and the neighbors."""

    @property
    def gpus(self) -> GpuPublisher: ...
    def samples(self) -> Iterable[Sample]: ...
    def reader_statuses(self) -> Iterable[ReaderStatus]: ...
    def overruns(self) -> Mapping[str, int]: ...
    def last_lldp(self) -> Mapping[str, float]: ...
    def neighbor_view(self) -> NeighborListing: ...


class ShownOffer(Protocol):
    """The devices that the kubelet and claims are offered. ``devices`` are the PFs and GPUs of new pods."""

    @property
    def rails(self) -> Mapping[str, int]: ...
    def shown(self) -> OfferView: ...
    def view(self) -> MachineView: ...
    def devices(self) -> frozenset[str]: ...


class ShownClaims(Protocol):
    """The claims of this node, and the pools of devices that they allocate."""

    def figures(self) -> ClaimFigures | None: ...
    def pools(self) -> tuple[PoolStatus, ...]: ...


class WriteResults(Protocol):
    """The writes to the API server. A remark is a line about a part whose writes fail or are incomplete."""

    def writes(self) -> tuple[ClusterWrites, ...]: ...
    def remarks(self) -> tuple[str, ...]: ...


class ShownAgent(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of the agent that the pages read.

    ``unwritable`` are the files of the state folder that cannot be written. ``lost_history``: why a restart loses the
    ``changes`` although ``history.file`` names a file. ``configuration``: ``None`` if the agent has no file of it.
    """

    inventory: Inventory
    sources: MachineSources
    health: HealthService
    offer: ShownOffer
    plugins: DevicePlugins
    claims: ShownClaims
    sharing: GpuSharing
    deliveries: WriteResults
    changes: ChangeLog
    unwritable: Callable[[], tuple[UnwritableMemory, ...]]
    lost_history: Callable[[], str | None]
    configuration: FollowedConfiguration[Any] | None


class FeaturePages(NamedTuple):
    """Pages of features: samples and families on the page of metrics; ``pages`` and ``folders`` by path, for the verbs
    of this node."""

    samples: Callable[[], Iterable[Sample]] = tuple
    families: Iterable[ComputedFamily[ScrapeInput]] = ()
    pages: Mapping[str, PageHandler] = MappingProxyType({})
    folders: Mapping[str, FolderHandler] = MappingProxyType({})


class Pages:
    """``/metrics``, ``/health``, ``/ui/``, ``/healthz`` and ``/readyz`` of the agent. They read memory, never the
    machine."""

    def __init__(
        self,
        settings: WebSettings,
        node: str,
        agent: ShownAgent,
        features: FeaturePages,
    ) -> None:
        """``node``: the name of this node, for people."""
        self._settings = settings
        self._agent, self._features = agent, features
        self._counted: tuple[Snapshot | None, tuple[DeviceKind, ...], tuple[DeviceCount, ...]] = (
            None,
            (),
            (),
        )
        self._metrics_page = MetricsPage(self.scrape_input, settings, features.families)
        self._history = SampleHistory()
        page_sources = NodePageSources(
            node,
            agent.inventory,
            agent.offer.view,
            self._explained_health,
            self._gpu_statuses,
            agent.plugins.statuses,
            lambda: agent.offer.rails,
            self._history,
            agent.changes,
            settings.runbook,
        )
        self._ui = NodePage(page_sources).folder()
        self.access = AccessControl(settings, (node, socket.gethostname()))

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

    async def serve_locally(self, folder: Path) -> None:
        """Serve the verbs of this node on a socket in this folder, until cancelled."""
        pages: dict[str, PageHandler] = {
            "/health": self._health,
            "/scan": self._scan,
            "/gpus": self._gpus,
            "/neighbors": self._neighbors,
            "/configuration": self._configuration,
            **self._features.pages,
        }
        async with asyncio.TaskGroup() as group:
            group.create_task(local_socket.serve(folder, pages, {"/ui/": self._ui, **self._features.folders}))
            if self._settings.ui:
                group.create_task(self._record())

    async def _record(self) -> None:
        """Record the values whose curves the node page shows."""
        while True:
            await asyncio.sleep(SAMPLE_EVERY_S)
            self._history.take(self._samples(), boottime())

    def _samples(self) -> tuple[Sample, ...]:
        sources = self._agent.sources
        return (*sources.samples(), *self._features.samples(), *sources.gpus.samples())

    def scrape_input(self) -> ScrapeInput:
        """Return the values of one scrape."""
        agent, sources, sharing = self._agent, self._agent.sources, self._agent.sharing
        snapshot, gpus, offering = agent.inventory.snapshot, sources.gpus, agent.offer.shown()
        return ScrapeInput(
            snapshot=snapshot,
            samples=self._samples(),
            device_counts=self._device_counts(snapshot),
            reader_statuses=(*sources.reader_statuses(), *gpus.reader_statuses()),
            health_figures=agent.health.figures(),
            statuses=agent.plugins.statuses(),
            withheld=offering.withheld,
            unwritable=offering.unwritable,
            unwritable_state=agent.unwritable(),
            rpc_stats=agent.plugins.stats,
            claims=agent.claims.figures(),
            restarts=supervise.restarts,
            xids=gpus.xids,
            xid_times=gpus.xid_times,
            sxids=gpus.sxids,
            overruns=sources.overruns(),
            last_lldp=sources.last_lldp(),
            configuration_fault=agent.configuration.error if agent.configuration is not None else "",
            stuck_threads=gpu_source.stuck_threads(),
            hanging={call.source: call.seconds for call in hanging_calls()},
            boot_unix=time.time() - boottime(),
            certificate=(self.access.ends_at or 0.0, self.access.fresh)
            if self._settings.certificate_file
            else None,
            cluster_writes=agent.deliveries.writes(),
            rails=offering.rails,
            gpu_accounts=sharing.accounting.accounts() if sharing.accounting.obstacle is None else (),
            accounting_obstacle=sharing.accounting.obstacle,
            limit_counts=sharing.limits.counts(),
            limit_writes=sharing.limits.writes,
            mps_ends=sharing.mps.ends,
        )

    def _device_counts(self, snapshot: Snapshot) -> tuple[DeviceCount, ...]:
        """Count only when the snapshot or the offer changes: a node may have 80,000 slices."""
        offered = self._agent.offer.shown().offered
        if self._counted[0] is not snapshot or self._counted[1] is not offered:
            self._counted = (snapshot, offered, tuple(device_counts(offered, snapshot)))
        return self._counted[2]

    def _explained_health(self) -> bytes:
        """The health of every PF and GPU with its rules and values, as JSON."""
        offer, snapshot = self._agent.offer, self._agent.inventory.snapshot
        return self._agent.health.explain_json(nic_names(offer.rails), offer.devices(), snapshot)

    def _health(self, _accept: str) -> Page:
        return Page(200, self._explained_health(), "application/json")

    def _scan(self, _accept: str) -> Page:
        return json_page(self._agent.offer.view())

    def _neighbors(self, _accept: str) -> Page:
        found = self._agent.sources.neighbor_view()
        return json_page(found.named(nic_names(self._agent.offer.rails)))

    def _configuration(self, _accept: str) -> Page:
        file = self._agent.configuration
        return json_page({"waiting": file.waiting if file is not None else ()})

    def _gpus(self, _accept: str) -> Page:
        return json_page(self._gpu_statuses())

    def _gpu_statuses(self) -> GpuStatuses:
        snapshot, accounting = self._agent.inventory.snapshot, self._agent.sharing.accounting
        counts, samples = self._device_counts(snapshot), self._agent.sources.gpus.samples()
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
        agent = self._agent
        offering, statuses, pools = agent.offer.shown(), agent.plugins.statuses(), agent.claims.pools()
        lines = [_readiness(status) for status in statuses]
        lines += [_pool_readiness(pool) for pool in pools]
        lines += [f"{entry.resource}: {entry.reason} (not registered)" for entry in offering.withheld]
        if not lines and not offering.troubles:
            lines.append(NOTHING_CONFIGURED if offering.examined else "nothing offered yet")
        short = [trouble.message for trouble in offering.troubles if not trouble.ready]
        lines += [f"{message} (not ready)" for message in short]
        lines += [*offering.remarks, *(trouble.message for trouble in offering.troubles if trouble.ready)]
        if state := agent.unwritable():
            lines.append(unwritable_remark(state))
        if (lost := agent.lost_history()) is not None:
            lines.append(lost)
        lines += agent.deliveries.remarks()
        lines += agent.configuration.remarks() if agent.configuration is not None else ()
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
