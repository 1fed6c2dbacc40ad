"""The agent of one node, composed: sources publish facts, the offer makes kinds of them, the sinks pass them on.

    sources    discovery: the facts of this machine                        → inventory
    pods       what pods hold, read from the kubelet                       → inventory
    offer      inventory and configuration → kinds                         → kubelet, our CDI specs
    kubelet    sockets and registrations
    config     the configuration file, read again when it changes and at SIGHUP
    dra        claims that the scheduler has allocated: prepared for the kubelet
    cluster    what the agent writes to the API server, if there is one
    features   each in tasks of its own, if it is configured (``agent_features``)
    web        /metrics, /health, /healthz, /readyz

Each task is supervised alone. On SIGTERM all of them stop and nothing is unpublished: the end of the agent does not
concern the hardware, and pods keep running.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from nodeagent import __version__, agent_features, discovery
from nodeagent.agent_config import Config, load
from nodeagent.attach.attach_stamps import AttachStamps
from nodeagent.base.c_heap import return_free_memory, use_one_heap
from nodeagent.base.change_log import AGENT_MAX, Change, ChangeLog
from nodeagent.base.ending import end_at
from nodeagent.base.kept_changes import ChangesKeeper
from nodeagent.base.stored_file import StoredFile, keep_files, unwritable
from nodeagent.base.supervise import ending_signals, first_cause, keep
from nodeagent.cluster import agent_tasks
from nodeagent.cluster.deliveries import Deliveries
from nodeagent.config.config_files import watched_folders
from nodeagent.config.file_errors import ConfigError
from nodeagent.config.followed_configuration import FollowedConfiguration, configuration_files
from nodeagent.config.in_force import adopted
from nodeagent.dra.offered import DraOffer
from nodeagent.facts.changes import NodeChanges
from nodeagent.facts.inventory import Inventory
from nodeagent.facts.model import ClaimUser, Holding
from nodeagent.features.seam import AgentCore, AgentPart
from nodeagent.health.state_file import StateFile
from nodeagent.host.clock import boottime
from nodeagent.host.sysfs import Tree
from nodeagent.kinds.mps_clients import MPS_FOLDER
from nodeagent.kinds.rail_numbers import nic_names
from nodeagent.kinds.tell_script import SCRIPT_NAME
from nodeagent.kinds.volcano_vgpus import NUMBER, next_waiting
from nodeagent.kubelet import counted_devices
from nodeagent.kubelet.cdi_files import CdiSpecFiles
from nodeagent.kubelet.device_info import DEVICE_INFO, DeviceInfoFiles
from nodeagent.kubelet.grown_requests import RequestNotes
from nodeagent.kubelet.offer_files import OfferFiles
from nodeagent.kubelet.rail_memory import CHECKPOINT, RailMemory
from nodeagent.kubelet.registration import DevicePlugins
from nodeagent.kubelet.rpc_stats import RpcStats
from nodeagent.kubelet.slice_sizes import SliceSizes
from nodeagent.offering.claim_driver import ClaimDriver
from nodeagent.offering.device_offering import DeviceOffering
from nodeagent.sharing.cgroup_limits import CgroupLimits
from nodeagent.sharing.gpu_accounting import GpuAccounting
from nodeagent.sharing.gpu_sharing import GpuSharing
from nodeagent.sharing.mps_watch import MpsWatch
from nodeagent.sharing.shares import HARD_LEVELS, shares_of
from nodeagent.sources.cordons_file import CORDONS_FORM as CORDONS
from nodeagent.sources.cordons_file import CordonsFile
from nodeagent.sources.gpu_publisher import GpuPublisher
from nodeagent.sources.remembered_gpus import RememberedGpus
from nodeagent.web.pages import FeaturePages, Pages, ShownAgent
from nodeagent.web.web_settings import FILE_NAME

log = logging.getLogger(__name__)

LATE_IMPORTS = (
    "nodeagent.kubelet.messages",
    "nodeagent.kubelet.holdings",
    "h11",
)
"""Protobuf and the parser of HTTP: imported before registration they would delay it by half."""
_SETTLE_S = 5.0
"""After this time the late modules are imported without a kubelet."""
SETTLE_LOOK_S = 0.05

SWITCH_S = 0.0005
"""How long a thread that reads the machine may hold the interpreter while the loop has news for the kubelet. Python's
default of 5 ms is half of the time that a lost carrier may take. Threads seldom run, so this costs nothing."""


class AgentOptions(msgspec.Struct, frozen=True):
    """The options of the command line that are not in the configuration."""

    root: Path
    kubelet_dir: Path
    config_file: Path | None = None
    listen: str | None = None
    node_name: str | None = None
    log_level: str | None = None
    """Instead of ``log.level`` of the configuration."""
    own_pod: tuple[str, str] | None = None
    """Namespace and name of the agent's pod."""
    device_plugins_dir: Path | None = None

    @property
    def device_plugins(self) -> Path:
        """The folder of kubelet.sock, which is no part of a kubelet's ``--root-dir``."""
        return self.device_plugins_dir or self.kubelet_dir / "device-plugins"


class Stored(NamedTuple):
    """The files that an earlier agent left, and their folder."""

    folder: Path
    faults: StateFile
    gpus: RememberedGpus
    rails: RailMemory
    sizes: SliceSizes
    requests: RequestNotes
    cordons: StoredFile[CordonsFile]

    @classmethod
    def open(cls, config: Config, options: AgentOptions, read_holdings: Callable[[], object]) -> Stored:
        """Blocks. ``read_holdings`` makes the kubelet be asked what pods hold."""
        folder = Tree(options.root).path(config.health.state_directory)
        rails = RailMemory(
            folder,
            options.device_plugins / CHECKPOINT,
            pod_resources=config.kubelet.pod_resources,
            read_holdings=read_holdings,
        )
        return cls(
            folder,
            StateFile.open(folder),
            RememberedGpus(folder),
            rails,
            SliceSizes(folder),
            RequestNotes(folder),
            StoredFile(folder, CORDONS),
        )

    @property
    def files(self) -> tuple[StoredFile[Any], ...]:
        """The files whose loss is reported."""
        return self.rails.file, self.sizes.file, self.gpus.file, self.faults.file, self.cordons


class Agent:
    """One node's agent, in layers: what is stored, the sources, the offer, the shares of GPUs, the outputs.

    Each part is whole when it is made, from parts above it. ``on_listen`` takes the port of the web server.
    """

    def __init__(
        self, config: Config, options: AgentOptions, on_listen: Callable[[int], None] = lambda _port: None
    ) -> None:
        self._config, self._options, self._on_listen = config, options, on_listen
        """``_config`` is the configuration in force."""
        self._tree = Tree(options.root)
        self.settled = asyncio.Event()
        """Set when the kubelet has the devices and everything is imported."""
        self.inventory = Inventory()
        self.deliveries = Deliveries()
        self._read_pods = asyncio.Event()
        self._allocated_at: dict[str, float] = {}
        self.stored = Stored.open(config, options, self._read_pods.set)
        self.changes = ChangeLog(AGENT_MAX)
        self.history = self._kept_changes()
        self.health = discovery.health_service(config, self.stored.faults)
        self._gpus = GpuPublisher(self.health, self.stored.gpus)
        self.sources = discovery.Discovery(
            self.inventory,
            lambda: self._config,
            options.root,
            node_name=options.node_name,
            gpu_publisher=self._gpus,
            sampled=True,
            stores=True,
            rails=self.stored.rails,
            cordons=self.stored.cordons,
        )
        self._make_offer()
        self._follow_changes()
        self.sharing = self._sharing()
        self._gpus.publish_usage_to(self.sharing.accounting.take_usage)
        self.features = self._features()
        """The parts of features, by the name of their row."""
        self.file = self._configuration_file()
        self.pages = self._pages()

    def _kept_changes(self) -> ChangesKeeper | None:
        if (name := self._config.history.file) is None:
            return None
        own_root = self._tree.root == Path("/") or self._tree.recorded
        return ChangesKeeper(name, self.stored.folder, instead=FILE_NAME, in_pod=not own_root)

    def _make_offer(self) -> None:
        tree, options = self._tree, self._options
        cdi_folder = tree.path(self._config.cdi.directory)
        files = OfferFiles(
            DeviceInfoFiles(tree.path(DEVICE_INFO)),
            CdiSpecFiles(cdi_folder),
            AttachStamps(self.stored.folder),
            tell_script=self.stored.folder / SCRIPT_NAME,
        )
        stats, dra_offer, news = RpcStats(), DraOffer(), asyncio.Event()
        self.plugins = DevicePlugins(
            options.device_plugins,
            files=files,
            stats=stats,
            requests=self.stored.requests,
            on_allocate=self._take_allocation,
        )
        self.claims = ClaimDriver(
            self.inventory,
            dra_offer,
            news.set,
            kubelet_dir=options.kubelet_dir,
            records=self.stored.folder / "claims",
            cdi_folder=cdi_folder,
            device_info=files.device_info,
            stats=stats,
            deliveries=self.deliveries,
            metadata=self._config.cdi.device_metadata,
            tree=self._tree,
        )
        self.offering = DeviceOffering(
            self._config,
            self.inventory,
            self.plugins,
            files,
            self.stored.sizes,
            self.stored.rails,
            self.sources.forget_nics,
            self.claims.holdings,
            dra_offer,
            news,
            self.claims.unwritable,
        )

    def _follow_changes(self) -> None:
        of_node, started = (
            NodeChanges(lambda: nic_names(self.offering.rails)),
            f"started, version {__version__}",
        )
        self.inventory.listener = lambda now: self.changes.add(of_node.take(now, time.time()))
        self.changes.add([Change(time.time(), "agent", "agent", "", started)])

    def _sharing(self) -> GpuSharing:
        config, inventory, offering = self._config, self.inventory, self.offering
        return GpuSharing(
            GpuAccounting(
                config.gpu, lambda: inventory.snapshot, offering.device_bytes, folder=self.stored.folder
            ),
            CgroupLimits(
                self._tree,
                config.gpu.accounting.pod_logs,
                inventory,
                lambda: shares_of(offering.share_kinds(), inventory.snapshot, *HARD_LEVELS),
            ),
            MpsWatch(
                self.stored.folder / MPS_FOLDER,
                inventory,
                offering.mps_kinds,
                exclusive_process=config.gpu.mps.exclusive_process,
            ),
        )

    def _features(self) -> dict[str, AgentPart]:
        take = self.health.take_samples
        core = AgentCore(
            self.inventory,
            self.offering,
            self.deliveries,
            take,
            self._tree,
            self.settled,
            self.stored.folder,
            lambda: (*self.sources.samples(), *self.sources.gpus.samples()),
            lambda id_: self._allocated_at.get(id_, 0.0),
        )
        return {row.name: row.start(core, lambda: self._config) for row in agent_features.AGENT}

    def _configuration_file(self) -> FollowedConfiguration[Config] | None:
        if (path := self._options.config_file) is None:
            return None
        return FollowedConfiguration(
            self._config,
            lambda: load(configuration_files(path), name=str(path)),
            self._adopt,
            partial(watched_folders, path),
        )

    def _pages(self) -> Pages:
        history, parts = self.history, self.features.values()
        return Pages(
            self._config.web,
            self._options.node_name or socket.gethostname(),
            ShownAgent(
                inventory=self.inventory,
                sources=self.sources,
                health=self.health,
                offer=self.offering,
                plugins=self.plugins,
                claims=self.claims,
                sharing=self.sharing,
                deliveries=self.deliveries,
                changes=self.changes,
                unwritable=partial(unwritable, self.stored.files),
                lost_history=lambda: None if history is None else history.remark(),
                configuration=self.file,
            ),
            FeaturePages(
                samples=lambda: [sample for part in parts for sample in part.samples()],
                families=[family for row in agent_features.AGENT for family in row.families],
                pages={path: page for part in parts for path, page in part.pages.items()},
                folders={path: folder for part in parts for path, folder in part.folders.items()},
            ),
        )

    async def run(self) -> None:
        """Run until cancelled. Raises ``Fatal`` or ``ConfigError`` for what cannot work on this machine."""
        try:
            async with asyncio.TaskGroup() as group:
                sources = group.create_task(self.sources.run())
                await discovery.first_facts(self.inventory)
                access = agent_tasks.node_access(self._config.cluster, self._options.node_name)
                if access is not None and self.stored.rails.lost:
                    self.offering.recall(await agent_tasks.reported_rails(access, self._config.resources))
                self.offering.check(str(self._options.config_file or "the default configuration"))
                for name, task in self._tasks(access).items():
                    group.create_task(keep(name, task), name=name)
                group.create_task(self._settle(), name="settle")
                await sources
        except ExceptionGroup as errors:
            raise first_cause(errors, ConfigError) from None

    def _tasks(self, access: agent_tasks.NodeAccess | None) -> dict[str, Callable[[], Awaitable[object]]]:
        config = self._config
        tasks: dict[str, Callable[[], Awaitable[object]]] = {
            "offer": self.offering.run,
            "rails": self.offering.follow_rails,
            "mps": self.sharing.mps.run,
            "kubelet": self.plugins.run,
            "requests": self.stored.requests.run,
            "over-uses": self.sharing.accounting.keep,
            "stored": partial(keep_files, self.stored.files),
            "local": partial(self.pages.serve_locally, self.stored.folder),
        }
        if self.file is not None:
            tasks["config"] = self.file.run
        if self.history is not None:
            tasks["history"] = partial(self.history.keep, self.changes)
        if config.kubelet.pod_resources:
            tasks["pods"] = self._watch_pods
            tasks["counted"] = self._watch_counted
            if not self._tree.recorded:
                tasks["limits"] = self.sharing.limits.run
        if listen := config.listen if self._options.listen is None else self._options.listen:
            tasks["web"] = partial(self.pages.serve, listen, self._on_listen)
        self.claims.recover(access)
        tasks["dra"] = partial(self._serve_claims, access)
        if access is not None:
            tasks["cluster"] = partial(self._write, access)
        node = self._options.node_name or (access.node if access is not None else None)
        for part in self.features.values():
            tasks |= {name: partial(task, node) for name, task in part.tasks.items()}
        return tasks

    async def _write(self, access: agent_tasks.NodeAccess) -> None:
        """Write to the API server until cancelled."""
        writers = {name: make for part in self.features.values() for name, make in part.writers.items()}
        await agent_tasks.run_agent_tasks(self._state(), access, self.settled, writers)

    def _state(self) -> agent_tasks.AgentState:
        """The parts of the agent that the cluster is told of."""
        return agent_tasks.AgentState(
            settings=self._config.cluster,
            inventory=self.inventory,
            health=self.health,
            offer=self.offering,
            plugins=self.plugins,
            claims=self.claims,
            sharing=self.sharing,
            deliveries=self.deliveries,
            tree=self._tree,
            unwritable=partial(unwritable, self.stored.files),
            read_holdings=self._read_holdings,
        )

    def reload(self) -> None:
        """Read the configuration file now (SIGHUP)."""
        if self.file is not None:
            self.file.reload()

    async def _settle(self) -> None:
        """Wait until the kubelet lists our devices, then import what registration does not need: not in a thread, whose
        memory arena would keep 3 MiB for good."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_SETTLE_S):
                await self.offering.begun.wait()
                while not all(status.streams for status in self.plugins.statuses()):  # noqa: ASYNC110 - streams set no event
                    await asyncio.sleep(SETTLE_LOOK_S)
        for name in LATE_IMPORTS:
            import_module(name)
            await asyncio.sleep(0)
        self.settled.set()

    @property
    def _podresources(self) -> Path:
        return self._options.kubelet_dir / "pod-resources" / "kubelet.sock"

    async def _read_holdings(self) -> tuple[Holding, ...] | None:
        """The present holdings of pods, by plugins and by claims; ``None`` if the kubelet does not answer."""
        from nodeagent.kubelet import holdings  # noqa: PLC0415 - as below

        try:
            of_plugins = await holdings.once(self._podresources)
        except holdings.PodResourcesError:
            return None
        return *of_plugins, *(self.claims.holdings() or ())

    async def _watch_pods(self) -> None:
        await self.settled.wait()
        from nodeagent.kubelet import holdings  # noqa: PLC0415 - protobuf: 24 ms and 1.2 MiB

        await holdings.watch_holdings(
            self._podresources,
            self._publish_holdings,
            partial(self.inventory.mark_stale, "pods"),
            self._read_pods,
            own_pod=self._options.own_pod,
        )

    async def _watch_counted(self) -> None:
        await self.settled.wait()
        await counted_devices.watch_counts(self._podresources, self.plugins)

    def _take_allocation(self, resource: str, ids: Sequence[str]) -> None:
        self._allocated_at |= dict.fromkeys(ids, boottime())
        self._read_pods.set()
        if resource == NUMBER:
            snapshot = self.inventory.snapshot
            granted = snapshot.vgpu_granted | {next_waiting(snapshot, len(ids)).key}
            self.inventory.publish("volcano", vgpu_granted=granted)
            self.offering.refresh()

    def _publish_holdings(self, holdings: tuple[Holding, ...], users: tuple[ClaimUser, ...]) -> None:
        self.claims.publish_holdings(holdings, users)
        self.offering.holdings_read()

    async def _serve_claims(self, access: agent_tasks.NodeAccess | None) -> None:
        await self.settled.wait()
        await self.claims.run(access)

    def _adopt(self, config: Config) -> tuple[str, ...]:
        """Apply a changed configuration, and return the settings that wait for a restart. Raises ``ConfigError``."""
        in_force, waiting = adopted(self._config, config)
        self.offering.replace(in_force, str(self._options.config_file))
        self._config = in_force
        for path in waiting:
            log.warning("A changed setting takes effect when the agent is restarted. setting=%s", path)
        logging.getLogger().setLevel((self._options.log_level or in_force.log.level).upper())
        self.health.adopt(in_force.health)
        self.offering.dra.wake()
        self.changes.add([Change(time.time(), "agent", "configuration", "", "another one is in force")])
        return waiting


async def run_agent(config: Config, options: AgentOptions) -> None:
    """Run an agent until SIGTERM or SIGINT."""
    sys.setswitchinterval(SWITCH_S)
    use_one_heap()
    end_at(ending_signals(signal.SIGINT))
    agent = Agent(config, options)
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, agent.reload)
    freezing = asyncio.ensure_future(_freeze(agent))
    try:
        await agent.run()
    except asyncio.CancelledError:
        log.info("Stopped. Devices and pods stay as they are.")
    finally:
        freezing.cancel()


async def _freeze(agent: Agent) -> None:
    """Exclude the objects of the start from garbage collection: a search stops the loop for about ten milliseconds."""
    await agent.settled.wait()
    gc.collect()
    return_free_memory()
    gc.freeze()
    gc.enable()
