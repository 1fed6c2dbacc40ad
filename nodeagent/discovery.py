"""Run the sources of one node: each publishes facts about the machine to the inventory.

The modules of LLDP and of the samplers are imported by their tasks, after the devices are registered.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from nodeagent.agent_config import Config
from nodeagent.base.bounded_calls import BoundedCalls, Unanswered, within
from nodeagent.base.stored_file import StoredFile
from nodeagent.base.supervise import keep
from nodeagent.facts.inventory import Inventory
from nodeagent.facts.model import Function, Gpu, Link, Neighbor, Remark
from nodeagent.health.cordons import Cordon
from nodeagent.health.gpu_settings import GpuSettings
from nodeagent.health.service import HealthService
from nodeagent.health.state_file import StateFile
from nodeagent.host.netlink.kernel_events import LinkEvents
from nodeagent.host.nvml import Nvml
from nodeagent.host.recorded_gpus import RecordedGpuDriver
from nodeagent.host.sysfs import SysfsError, Tree, no_machine
from nodeagent.kubelet.rail_memory import RailMemory
from nodeagent.measurements.reader_status import ReaderStatus
from nodeagent.measurements.sample import Sample
from nodeagent.sources import cabling_plan, gpu_source, host_paths, nvml_session, pci_source
from nodeagent.sources.bounded_scan import BoundedScan
from nodeagent.sources.cordons_file import CordonsFile, follow_cordons
from nodeagent.sources.gpu_publisher import GpuPublisher
from nodeagent.sources.machine_access import NoDriver, has_netdevs, hints, permanent_macs
from nodeagent.sources.nic_identity import NicIdentities
from nodeagent.sources.remembered_gpus import RememberedGpus
from nodeagent.sources.scan_hints import ScanRequest

if TYPE_CHECKING:  # loaded after registration; the figures stand where each is imported
    from nodeagent.sampling.sampler import Sampler
    from nodeagent.sources.link_selection import SelectedLink
    from nodeagent.sources.lldp_receiver import LldpReceiver
    from nodeagent.sources.neighbor_view import NeighborListing

log = logging.getLogger(__name__)

FIRST_SOURCES = ("pci", "gpus", "paths")
"""The sources that publish at once. LLDP is not among them: a switch sends a frame every 30 s."""
FACT_SOURCES = frozenset({"pci", "gpus", "paths", "lldp", "infiniband"})
"""The sources that publish at every start. If one fails, its facts are marked as old until it publishes again."""
START_S = 10.0
"""How long the start waits for a sysfs that does not answer."""
LATER_S = 0.5
"""Between the first facts and the import of what registration does not need."""
_NETLINK_S = 2.0
"""The kernel answers in a millisecond, unless a driver holds the RTNL lock."""
FIRST_FACTS_S = 10.0
"""A driver that hangs must not keep the NICs from the kubelet for longer."""


def driver(tree: Tree, settings: GpuSettings) -> nvml_session.Driver:
    """Make a new driver for one session."""
    if settings.driver == "none":
        return NoDriver()
    if tree.recorded:
        return RecordedGpuDriver(tree.root)
    return Nvml(processes=settings.health.processes, profiling=settings.profiling)


def health_service(config: Config, state_file: StateFile | None = None) -> HealthService:
    return HealthService(config.health, config.gpu, state_file)


def receives_lldp(config: Config, tree: Tree) -> bool:
    """Whether the LLDP source runs. A captured or simulated machine does not have the netdevs of this host:
    there the source runs only if the settings name netdevs, or if a command answers in place of lldpd."""
    source = config.lldp.source
    return source != "none" and (has_netdevs(tree, config.links.select) or source == "lldpd")


def finds_neighbors(config: Config, tree: Tree) -> bool:
    return receives_lldp(config, tree) or config.infiniband.asks


class Discovery:
    """The sources of one machine. Each is a supervised task that publishes facts to the inventory.

    Without ``gpu_publisher`` this object makes its own, with a health service without a state file.
    """

    def __init__(
        self,
        inventory: Inventory,
        settings: Callable[[], Config],
        root: Path,
        *,
        node_name: str | None = None,
        gpu_publisher: GpuPublisher | None = None,
        sampled: bool = False,
        stores: bool = False,
        rails: RailMemory | None = None,
        cordons: StoredFile[CordonsFile] | None = None,
    ) -> None:
        """``settings`` returns the configuration in force. ``node_name`` is the system name that this node sends to
        switches. ``sampled``: run the samplers too. ``stores``: keep the GPUs for the next start; a single look reads
        them only. ``rails`` has the NICs that an earlier agent offered; those that are gone are missing. ``cordons`` is
        read here and followed.
        """
        self._tree = Tree(root)
        if not within("sysfs", START_S, partial(self._tree.exists, "/sys")):
            raise SysfsError(no_machine(root))
        self._inventory = inventory
        self._settings, config = settings, settings()
        self._node_name = node_name
        self._node_addresses = tuple(filter(None, os.environ.get("NODE_IPS", "").split(",")))
        self._sampled = sampled
        self._sampler: Sampler | None = None
        self._lldp_receiver: LldpReceiver | None = None
        self._lldpd_links: tuple[SelectedLink, ...] = ()
        if gpu_publisher is None:
            gpu_publisher = GpuPublisher(
                health_service(config), RememberedGpus(self._tree.path(config.health.state_directory))
            )
        self.gpus = gpu_publisher
        self._stores = stores
        self._health = self.gpus.health
        self._health.publish_functions(lambda functions: inventory.publish("health", functions=functions))
        self.gpus.publish_to(self._publish_gpus)
        self._last_scan = rails.known_nics(config.resources) if rails is not None else None
        """The scan that a restarted PCI source continues from."""
        self._cordons = cordons
        if cordons is not None and (stored := cordons.read()) is not None:
            self._health.take_cordons(stored.cordons)
        self._gpu_hint = asyncio.Event()
        self._scan_request = ScanRequest()
        self._pci_reads = BoundedScan("pci", self._tree, self._scan_request.request)
        self._path_reads = BoundedScan("paths", self._tree)
        self._netlink = BoundedCalls("netlink", _NETLINK_S)
        self._nics = NicIdentities(None if self._tree.recorded else self._read_macs)
        self._lldp_hint = ScanRequest()
        self._infiniband_hint = ScanRequest()
        self._neighbors: dict[str, tuple[tuple[Neighbor, ...], tuple[Remark, ...]]] = {}
        """Neighbors and remarks by their source."""

    # --- for metrics --------------------------------------------------------------------------------

    def samples(self) -> Iterable[Sample]:
        """Return the latest samples of the NICs; none before the sampler has started."""
        return self._sampler.samples() if self._sampler is not None else ()

    def reader_statuses(self) -> Iterable[ReaderStatus]:
        return self._sampler.reader_statuses() if self._sampler is not None else ()

    def overruns(self) -> Mapping[str, int]:
        return self._sampler.overruns() if self._sampler is not None else {}

    def last_lldp(self) -> Mapping[str, float]:
        """Return the CLOCK_BOOTTIME of the latest LLDP frame, by netdev."""
        return self._lldp_receiver.last_received() if self._lldp_receiver is not None else {}

    def neighbor_view(self) -> NeighborListing:
        """Return the links with their neighbors, for ``nodeagent neighbors``."""
        from nodeagent.sources import neighbor_view  # noqa: PLC0415 - 21 ms of the agent's start

        snapshot = self._inventory.snapshot
        runs = receives_lldp(self._settings(), self._tree)
        fault = neighbor_view.lldp_fault(snapshot, self._settings().lldp, runs=runs)
        lldpd = self._lldpd_links, *self._neighbors.get("lldp", ((), ()))
        receiver, asks = self._lldp_receiver, self._settings().infiniband.asks
        view = (
            neighbor_view.of_receiver(receiver, fault) if receiver else neighbor_view.of_lldpd(*lldpd, fault)
        )
        return neighbor_view.with_infiniband_facts(view, snapshot, asks=asks)

    def forget_nics(self, addresses: Iterable[str]) -> None:
        """Do not keep these PFs or VFs as missing, by PCI address."""
        self._nics.forgotten.update(addresses)
        self._scan_request.request()

    # --- the sources --------------------------------------------------------------------------------

    async def run(self) -> None:
        """Run every source until cancelled."""
        async with asyncio.TaskGroup() as group:
            for name, source in self._sources().items():
                failed = partial(self._inventory.mark_stale, name) if name in FACT_SOURCES else None
                group.create_task(keep(name, source, failed=failed), name=name)

    def _sources(self) -> dict[str, Callable[[], Awaitable[None]]]:
        """The tasks by name, those that the kubelet's devices depend on first."""
        config = self._settings()
        table: tuple[tuple[str, bool, Callable[[], Awaitable[None]]], ...] = (
            ("pci", True, self._watch_pci),
            ("gpus", True, self._watch_gpus),
            ("paths", True, self._watch_paths),
            ("health", True, self._health.run),
            ("memory", True, self._health.state_file.run),
            ("gpu-memory", self._stores, self._keep_gpus),
            ("cordons", self._cordons is not None, self._follow_cordons),
            ("samples", self._sampled, self._sample),
            ("cabling", config.health.cabling_plan is not None, self._watch_cabling_plan),
            ("lldp", receives_lldp(config, self._tree), self._watch_lldp),
            ("infiniband", config.infiniband.asks, self._watch_infiniband),
        )
        return {name: source for name, enabled, source in table if enabled}

    async def _watch_pci(self) -> None:
        with hints(self._tree, self._known_functions) as opened:
            await pci_source.watch_pci(
                self._tree,
                [*opened, self._scan_request],
                self._publish_pci,
                interval_s=self._settings().scan_seconds,
                before=self._last_scan,
                reads=self._pci_reads,
                nics=self._nics,
                node_addresses=self._node_addresses,
            )

    async def _read_macs(self) -> Mapping[str, str | None]:
        try:
            return await self._netlink.run(permanent_macs, self._tree)
        except Unanswered:
            return {}

    def _publish_pci(self, facts: pci_source.PciFacts) -> None:
        self._last_scan = facts
        present = [function.pci_address for function in facts.functions if not function.missing]
        self._nics.forgotten.difference_update(present)
        snapshot = self._inventory.snapshot
        self._inventory.publish(
            "pci",
            # A product name that cannot be read for a moment would rename every resource.
            product=facts.product or snapshot.product,
            guest=facts.guest or snapshot.guest,
            functions=self._health.judge_functions(facts.functions, facts.links, facts.faults, snapshot.gpus),
            links=facts.links,
            gpu_functions=facts.gpus,
            unreadable=facts.unreadable,
            unread=facts.unread,
        )
        if self._settings().gpu.driver != "none":
            self.gpus.take_functions(facts.gpus)
        self._gpu_hint.set()
        self._lldp_hint.request()
        self._infiniband_hint.request()

    async def _watch_gpus(self) -> None:
        settings = self._settings().gpu
        await gpu_source.watch_gpus(
            lambda: driver(self._tree, settings),
            self._tree,
            self.gpus,
            partial(self._inventory.mark_stale, "gpus"),
            pace=gpu_source.Pace(timeout_s=settings.timeout_seconds, vitals_s=settings.health.read_seconds),
            hints=self._gpu_hint,
            pod_logs=settings.accounting.pod_logs,
            driver_root=settings.driver_root,
        )

    def _publish_gpus(self, gpus: tuple[Gpu, ...]) -> None:
        facts = self.gpus
        self._inventory.publish("gpus", gpus=gpus, unusable_gpus=facts.unusable, gpu_driver=facts.version)
        self._health.take_gpus(gpus)

    async def _keep_gpus(self) -> None:
        facts = self.gpus
        await facts.remembered.run(facts.forget, self._settings().scan_seconds)

    async def _follow_cordons(self) -> None:
        def take(cordons: tuple[Cordon, ...]) -> None:
            self._health.take_cordons(cordons)
            self.gpus.publish_again()

        assert self._cordons is not None
        await follow_cordons(self._cordons, take)

    async def _watch_paths(self) -> None:
        pause_s = self._settings().scan_seconds / 2  # not together with the scans of the PCI source
        while True:
            paths = await self._path_reads.run(
                host_paths.find, self._tree, self._settings().cdi.directory, self._settings().gpu.driver_root
            )
            logs = self._settings().gpu.accounting.pod_logs
            support = await self._path_reads.run(host_paths.limit_support, self._tree, logs)
            self._inventory.publish("paths", paths=paths, limit_support=support)
            await asyncio.sleep(pause_s)
            pause_s = self._settings().scan_seconds

    async def _watch_lldp(self) -> None:
        await self._after_registration()
        from nodeagent.sources import lldp_source  # noqa: PLC0415 - 29 ms of the agent's start, 0.5 MiB

        with LinkEvents(self._may_be_lldp_link()) as events:
            await lldp_source.watch_lldp(
                self._settings().lldp,
                self._settings().links.select,
                lambda: self._inventory.snapshot.functions,
                [events, self._lldp_hint],
                partial(self._publish_neighbors, "lldp"),
                self._keep_lldp_receiver,
                self._node_name,
                self._keep_lldpd_links,
                self._tree.path(self._settings().health.state_directory) if self._stores else None,
                None if has_netdevs(self._tree, self._settings().links.select) else self._recorded_links,
            )

    def _recorded_links(self) -> tuple[Link, ...]:
        return self._inventory.snapshot.links

    def _known_functions(self) -> tuple[Function, ...]:
        return self._inventory.snapshot.functions

    def _may_be_lldp_link(self) -> Callable[[str], bool] | None:
        """Return whether a software netdev with a name may be a link; ``None``: by its driver, any may be."""
        wanted = self._settings().links.select
        if wanted.drivers and not wanted.netdevs:
            return None
        return lambda name: any(fnmatchcase(name, glob) for glob in wanted.netdevs)

    def _keep_lldp_receiver(self, receiver: LldpReceiver) -> None:
        self._lldp_receiver = receiver

    def _keep_lldpd_links(self, links: tuple[SelectedLink, ...]) -> None:
        self._lldpd_links = links

    async def _watch_infiniband(self) -> None:
        await self._after_registration()
        from nodeagent.sources import infiniband_source  # noqa: PLC0415 - 16 ms of the agent's start

        names = self._settings().infiniband.node_names
        folder = self._tree.path(self._settings().health.state_directory)
        await infiniband_source.watch_infiniband(
            self._tree,
            lambda: self._inventory.snapshot.functions,
            lambda: self._inventory.snapshot.links,
            [self._infiniband_hint],
            partial(self._publish_neighbors, "infiniband"),
            node_names=Path(names) if names is not None else None,
            unanswered=infiniband_source.UnansweredPorts(folder if self._stores else None),
        )

    def _publish_neighbors(
        self, source: str, neighbors: tuple[Neighbor, ...], remarks: tuple[Remark, ...]
    ) -> None:
        self._neighbors[source] = (neighbors, remarks)
        parts = self._neighbors.values()
        # The sort is stable: the neighbors of one link keep the order of their source.
        every = tuple(sorted((n for found, _ in parts for n in found), key=lambda n: n.link))
        odd = tuple(sorted((r for _, found in parts for r in found), key=lambda r: (r.link, r.key)))
        self._inventory.publish(source, neighbors=every, remarks=odd)
        self._health.take_neighbors(every)

    async def _watch_cabling_plan(self) -> None:
        plan = self._settings().health.cabling_plan
        assert plan is not None
        node_name = self._node_name or socket.gethostname()
        await cabling_plan.watch_plan(
            Path(plan), node_name, self._health.take_cabling_plan, self._settings().scan_seconds
        )

    async def _sample(self) -> None:
        await self._after_registration()
        from nodeagent.sampling.sampler import Sampler  # noqa: PLC0415 - 25 ms of the agent's start, 0.4 MiB

        self._sampler = Sampler(
            self._tree,
            lambda: self._inventory.snapshot.functions,
            self._health.take_samples,
            self._settings().samples,
            take_messages=self.gpus.take_messages,
        )
        with hints(self._tree, self._known_functions) as opened:
            await self._sampler.watch(opened)

    async def _after_registration(self) -> None:
        """Wait until the devices are known and the kubelet has had time to list them."""
        await first_facts(self._inventory)
        await asyncio.sleep(LATER_S)


async def first_facts(inventory: Inventory) -> None:
    """Return when every source of ``FIRST_SOURCES`` has published or failed, or after ``FIRST_FACTS_S``. A source that
    has done neither is marked as failed then: a list without an answer would be invented."""

    def awaited() -> set[str]:
        failed = {entry.source for entry in inventory.snapshot.stale_sources}
        return {it for it in FIRST_SOURCES if not inventory.has_published(it) and it not in failed}

    with suppress(TimeoutError):
        async with asyncio.timeout(FIRST_FACTS_S):
            while awaited():
                await inventory.changed(inventory.snapshot.revision)
    for source in awaited():
        inventory.mark_stale(source, f"it did not answer within {FIRST_FACTS_S:g} s")
