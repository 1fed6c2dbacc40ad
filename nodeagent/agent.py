"""The agent of one node: sources publish facts, the offer makes kinds of them, the sinks pass them on.

Each part runs under its own supervision. On SIGTERM everything stops and nothing is unpublished: the end of the
agent does not concern the hardware, and pods keep running.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from nodeagent import discovery
from nodeagent.agent_config import Config, load
from nodeagent.cluster import agent_tasks
from nodeagent.config.faults import ConfigError, ConfigFault
from nodeagent.host.inotify import CONTENT, InotifyError, Watch
from nodeagent.host.sysfs import Tree
from nodeagent.inventory import Inventory
from nodeagent.kinds.gpu_memory import Slices
from nodeagent.kinds.resource_settings import VfResource
from nodeagent.kinds.vf import VfPool
from nodeagent.kubelet.cdi_files import CdiSpecs
from nodeagent.kubelet.device_info import DEVICE_INFO, DeviceInfoFiles
from nodeagent.kubelet.registration import DevicePlugins
from nodeagent.kubelet.rpc_stats import RpcStats
from nodeagent.kubelet.slice_sizes import Sizes
from nodeagent.model import Allocation, Snapshot
from nodeagent.offer import Kind, Offer, prefix
from nodeagent.sources import gpu_source
from nodeagent.supervise import Fatal, either, keep
from nodeagent.web.pages import Pages

if TYPE_CHECKING:
    from nodeagent.sampling.sampler import Sampler
    from nodeagent.sources.lldp_receiver import LldpReceiver

log = logging.getLogger(__name__)

SETTLE_S = 5.0
"""A kubelet that is not there by then is waited for with everything loaded."""
SETTLE_LOOK_S = 0.05

SWITCH_S = 0.0005
"""A thread that reads the machine holds the interpreter up to so long while the loop has news for the kubelet;
Python's own 5 ms are half of what a lost carrier may take. Threads are seldom at work, so it costs nothing."""

FLUSH_S = 1.0
"""A local file is written in a millisecond; a disk that takes longer hangs."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where the agent runs: what is no setting but a matter of the command line."""

    root: Path
    kubelet_dir: Path
    config_file: Path | None = None
    listen: str | None = None
    node_name: str | None = None


class _Files:
    """What must be on the disk before the kubelet has its answer."""

    def __init__(self, device_info: DeviceInfoFiles, specs: CdiSpecs) -> None:
        self._device_info = device_info
        self._specs = specs

    def due(self, allocation: Allocation) -> bool:
        return bool(allocation.device_info) or self._specs.behind(allocation)

    def write(self, allocation: Allocation) -> None:
        """In a thread. Raises ``OSError`` with the name of the file that cannot be written."""
        self._device_info.write(allocation)
        if self._specs.behind(allocation) and (failure := self._specs.flush()) is not None:
            raise failure


class Agent:
    """One node's agent. ``listening`` is told the port of the web server."""

    def __init__(
        self, config: Config, place: Place, listening: Callable[[int], None] = lambda _port: None
    ) -> None:
        self.inventory = Inventory()
        self.rpc_stats = RpcStats()
        self._config = config
        self._place = place
        self._listening = listening
        self._tree = Tree(place.root)
        self._offer = Offer(config)
        memory = discovery.memory(config.health, place.root)
        self._sizes = Sizes.open(self._tree.path(config.health.state_directory))
        self.verdicts = discovery.verdicts(config.health, memory)
        self.gpu_ledger = discovery.gpus_ledger(config, memory)
        self._device_info = DeviceInfoFiles(self._tree.path(DEVICE_INFO))
        self._cdi = CdiSpecs(self._tree.path(config.cdi.directory))
        self._ask_pods = asyncio.Event()
        self._reload = asyncio.Event()
        self.settled = asyncio.Event()
        self._retell = asyncio.Event()
        self._swept = False
        self.plugins = DevicePlugins(
            place.kubelet_dir,
            watched=config.kubelet.registration == "plugins_registry",
            files=_Files(self._device_info, self._cdi),
            stats=self.rpc_stats,
            on_allocate=self._ask_pods.set,
        )
        self.pages = Pages(config.web, self.inventory, self.rpc_stats)
        self.pages.statuses = self.plugins.statuses
        self.pages.judged = lambda: {**self.verdicts.figures(), **self.gpu_ledger.figures()}
        self.pages.explained = lambda: discovery.explained(self.verdicts, self.gpu_ledger)
        self.pages.gpus = self.gpu_ledger
        self.pages.stuck_threads = gpu_source.stuck_threads

    async def run(self) -> None:
        """Until cancelled. Raises ``Fatal`` or ``ConfigError`` for what cannot work on this machine."""
        try:
            async with asyncio.TaskGroup() as group:
                sources = discovery.Discovery(
                    self.inventory,
                    self._config,
                    self._place.root,
                    node_name=self._place.node_name,
                    nic_health=self.verdicts,
                    gpu_health=self.gpu_ledger,
                    on_sampler=self._sampled,
                    on_lldp_receiver=self._hears,
                )
                watching = group.create_task(sources.run())
                await discovery.first_facts(self.inventory)
                self._refuse_fatal()
                jobs = {
                    "offer": self._tell,
                    "kubelet": self.plugins.run,
                    "config": self._follow_config,
                    "pods": self._watch_pods,
                    "web": self._serve,
                }
                if (
                    access := agent_tasks.node_access(self._config.cluster, self._place.node_name)
                ) is not None:
                    arguments = (self._config.cluster, access, self.inventory, self.pages, self.settled)
                    jobs["cluster"] = partial(agent_tasks.run, *arguments)
                for name, job in jobs.items():
                    group.create_task(keep(name, job), name=name)
                group.create_task(self._settle(), name="settle")
                await watching
        except ExceptionGroup as errors:
            raise _innermost(errors) from None

    def _sampled(self, sampler: Sampler) -> None:
        self.pages.measured = sampler

    def _hears(self, receiver: LldpReceiver) -> None:
        self.pages.heard_at = receiver.last_received

    def reload(self) -> None:
        """Look at the configuration file now (SIGHUP)."""
        self._reload.set()

    async def _settle(self) -> None:
        """Load what can wait until the kubelet lists our devices and would make that half as late again:
        protobuf, the catalog of metrics. Not in a thread, whose memory arena would keep 3 MiB for good."""
        with suppress(TimeoutError):
            async with asyncio.timeout(SETTLE_S):
                while not all(status.streams for status in self.plugins.statuses()):  # noqa: ASYNC110
                    await asyncio.sleep(SETTLE_LOOK_S)
        for name in (
            "nodeagent.kubelet.messages",
            "nodeagent.kubelet.holdings",
            "nodeagent.web.metrics_page",
        ):
            import_module(name)
            await asyncio.sleep(0)
        self.settled.set()

    # --- the offer ------------------------------------------------------------------------------------

    def _refuse_fatal(self) -> None:
        name = str(self._place.config_file or "the default configuration")
        fatal = [trouble for trouble in self._offer.troubles(self.inventory.snapshot) if trouble.fatal]
        if fatal:
            raise ConfigError(
                name, [ConfigFault("resources", None, None, trouble.message) for trouble in fatal]
            )

    async def _tell(self) -> None:
        said: tuple[str, ...] = ()
        snapshot = self.inventory.snapshot
        while True:
            kinds = self._kinds(snapshot)
            await self._write_cdi(kinds, snapshot)
            await self._sizes.remember(kinds)
            self.plugins.update(kinds, snapshot)
            await asyncio.sleep(0)  # the streams send now; what follows can wait
            await self._sweep(snapshot)
            now = tuple(trouble.message for trouble in self._offer.troubles(snapshot))
            for message in now:
                if message not in said:
                    log.warning("Something configured cannot be offered. reason=%r", message)
            said = now
            # Now and then without a change too: a disk is no longer full, a file has been removed.
            with suppress(TimeoutError):
                async with asyncio.timeout(self._config.scan_seconds):
                    await either(self.inventory.changed(snapshot.revision), self._retell.wait())
            self._retell.clear()
            snapshot = self.inventory.snapshot

    def _kinds(self, snapshot: Snapshot) -> tuple[Kind, ...]:
        """Only of what a source has spoken, "no devices" before that would be a guess, and no list that the
        kubelet would refuse. The rest is withheld, and said to be so by ``/readyz``."""
        why = {entry.source: entry.reason for entry in snapshot.silent}
        refused = self._offer.withheld(snapshot)
        offered: list[Kind] = []
        withheld: list[str] = []
        for kind in self._offer.kinds(snapshot):
            # With "auto" the name of each resource is made from the product, which pci tells.
            needs = {"pci" if isinstance(kind, VfPool) else "gpus"}
            needs |= {"pci"} if self._offer.config.resource_prefix == "auto" else set()
            if source := next((one for one in sorted(needs) if not self.inventory.heard(one)), None):
                withheld.append(f"{kind.resource}: {why.get(source, f'{source} are not known yet')}")
            elif kind.resource in refused:
                withheld.append(f"{kind.resource}: {refused[kind.resource]}")
            elif isinstance(now := self._settled(kind, snapshot), str):
                withheld.append(f"{kind.resource}: {now}")
            else:
                offered.append(now)
        if not self.inventory.heard("pci"):
            unnamed = [
                e.name for e in self._offer.config.resources if isinstance(e, VfResource) and "{" in e.name
            ]
            withheld += [f"{name}: {why.get('pci', 'pci are not known yet')}" for name in unnamed]
        self.pages.withheld, self.pages.remarks = tuple(withheld), self._sizes.remarks
        self.pages.rails = self._offer.rails
        self.pages.offered = kinds = tuple(offered)
        return kinds

    def _settled(self, kind: Kind, snapshot: Snapshot) -> Kind | str:
        if not isinstance(kind, Slices):
            return kind
        return self._sizes.settle(kind, snapshot, asked=self._config.kubelet.pod_resources)

    async def _write_cdi(self, kinds: tuple[Kind, ...], snapshot: Snapshot) -> None:
        """Before the kubelet hears of a device, the runtime must know its name; a disk that hangs must not
        keep bad news from the kubelet."""
        if self._cdi.want(kinds, snapshot):
            with suppress(TimeoutError):
                async with asyncio.timeout(FLUSH_S):
                    await asyncio.to_thread(self._cdi.flush)

    async def _sweep(self, snapshot: Snapshot) -> None:
        """Remove the device-info files of an earlier life, once it is known what pods hold."""
        if snapshot.holdings is None or self._swept:
            return
        self._swept = True
        head = prefix(self._offer.config, snapshot.product).replace("/", "-")
        held = (
            f"{holding.resource.replace('/', '-')}-{id_}-device.json"
            for holding in snapshot.holdings
            for id_ in holding.device_ids
        )
        for name in await asyncio.to_thread(self._device_info.remove_stale, f"{head}-", held):
            log.info("A device-info file of an earlier life was removed. file=%s", name)

    async def _watch_pods(self) -> None:
        if not self._config.kubelet.pod_resources:
            await asyncio.Event().wait()
        await self.settled.wait()
        from nodeagent.kubelet import holdings  # noqa: PLC0415

        await holdings.watch(
            self._place.kubelet_dir / "pod-resources" / "kubelet.sock",
            lambda holdings: self.inventory.state("pods", holdings=holdings),
            lambda why: self.inventory.silence("pods", why),
            self._ask_pods,
        )

    # --- the configuration ----------------------------------------------------------------------------

    async def _follow_config(self) -> None:
        path = self._place.config_file
        if path is None:
            await asyncio.Event().wait()
            return
        try:
            with Watch() as watching:
                # A ConfigMap is swapped by renaming a link in the folder, so the folder is watched.
                watching.add(path.parent, CONTENT)
                before = None
                while True:
                    text = _read(path)  # at first too: it may have changed while the agent started
                    if text is not None and text != before:
                        before = text
                        self._take(text, str(path))
                    await either(watching.changes(), self._reload.wait())
                    self._reload.clear()
        except InotifyError as error:
            raise OSError(str(error)) from error

    def _take(self, text: str, name: str) -> None:
        """Go over to a changed configuration, or say why not and stay with the one that runs."""
        try:
            config = load(text, name=name)
            if config == self._offer.config:
                return
            offer = Offer(config, self._offer)
            snapshot = self.inventory.snapshot
            faults = [t.message for t in offer.troubles(snapshot) if t.fatal]
            faults += self._held_slices(offer, snapshot)
            if faults:
                raise ConfigError(name, [ConfigFault("resources", None, None, message) for message in faults])
        except ConfigError as error:
            for line in str(error).splitlines():
                log.error("The changed configuration is refused, the running one stays. fault=%r", line)
            return
        for setting in ("listen", "web", "kubelet", "gpu", "scan_seconds", "cdi", "links", "lldp", "cluster"):
            if getattr(config, setting) != getattr(self._config, setting):
                log.warning("A changed setting takes effect when the agent is restarted. setting=%s", setting)
        logging.getLogger().setLevel(config.log.level.upper())
        discovery.adopt(self.verdicts, self._config.health, config.health)
        self._offer = offer
        log.info("The changed configuration is in force. file=%s", name)
        self._retell.set()

    def _held_slices(self, offer: Offer, snapshot: Snapshot) -> Iterable[str]:
        """A slice that a pod holds must not come to mean another amount of memory."""
        kinds = (kind for kind in offer.kinds(snapshot) if isinstance(kind, Slices))
        return filter(None, (self._sizes.refusal(kind, snapshot) for kind in kinds))

    # --- the web --------------------------------------------------------------------------------------

    async def _serve(self) -> None:
        listen = self._place.listen if self._place.listen is not None else self._config.listen
        if not listen:
            await asyncio.Event().wait()
            return
        await self.pages.serve(listen, self._listening)


async def run(config: Config, place: Place) -> None:
    """Run an agent until SIGTERM or SIGINT."""
    sys.setswitchinterval(SWITCH_S)
    agent = Agent(config, place)
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(agent.run())
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, task.cancel)
    loop.add_signal_handler(signal.SIGHUP, agent.reload)
    freezing = asyncio.ensure_future(_freeze(agent))
    try:
        await task
    except asyncio.CancelledError:
        log.info("Stopped. Devices and pods stay as they are.")
    finally:
        freezing.cancel()


async def _freeze(agent: Agent) -> None:
    """What lives when the agent has started lives on: it is not looked through for garbage again and again,
    which would stop the loop for some ten milliseconds each time."""
    await agent.settled.wait()
    gc.freeze()


def _innermost(errors: ExceptionGroup[Exception]) -> Exception:
    """What ended the agent: the first error for a person, or simply the first."""
    flat: list[Exception] = []
    stack: list[Exception] = [errors]
    while stack:
        error = stack.pop()
        if isinstance(error, ExceptionGroup):
            stack.extend(reversed(error.exceptions))
        else:
            flat.append(error)
    return next((error for error in flat if isinstance(error, Fatal | ConfigError)), flat[0])


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError as error:
        log.warning(
            "The configuration cannot be read, the running one stays. file=%s reason=%r", path, str(error)
        )
        return None
