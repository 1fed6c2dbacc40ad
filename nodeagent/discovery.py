"""The sources of one node put together: they state what the machine is to an inventory.

A root with ``/.nodeagent/gpus.json`` is a captured or simulated machine: its GPU facts are the recorded
ones, and the folder ``/.nodeagent`` is watched in place of the kernel's own announcements. Everywhere else
the kernel announces (rtnetlink and uevents of this network namespace) and NVML is asked.
"""

from __future__ import annotations

import asyncio
import logging
import math
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from nodeagent.config import Config, GpuSettings, HealthSettings, override
from nodeagent.health.engine import Expected, Terms
from nodeagent.health.gpu_rules import Limits, Mark
from nodeagent.health.gpuguard import Guard
from nodeagent.health.rules import effective
from nodeagent.health.xids import Rules
from nodeagent.host.driver import DriverError, GpuReading, GpuVitals
from nodeagent.host.inotify import CONTENT, Watch
from nodeagent.host.netlink.events import LinkEvents, NetlinkError, Uevents
from nodeagent.host.netlink.netdevs import Netdevs
from nodeagent.host.nvml import Nvml
from nodeagent.host.recorded_gpus import PATH as RECORDED
from nodeagent.host.recorded_gpus import Recorded
from nodeagent.host.sysfs import SysfsError, Tree
from nodeagent.inventory import Inventory
from nodeagent.model import Finding, Gpu, Neighbor
from nodeagent.sources import cabling_plan, gpu_source, host_paths, nvml_session, pci
from nodeagent.sources.gpu_health_service import Ledger
from nodeagent.sources.nic_health_service import Verdicts
from nodeagent.sources.state_file import Memory
from nodeagent.supervise import keep

if TYPE_CHECKING:  # a neighbor can wait, a device cannot: see watch_lldp
    from nodeagent.link_selection import LinkSelect
    from nodeagent.sampling.collectors import Rates
    from nodeagent.sampling.sampler import Sampler
    from nodeagent.sources.lldp_receiver import Ear
    from nodeagent.sources.lldp_source import LldpSettings

log = logging.getLogger(__name__)

SOURCES = ("pci", "gpus", "paths")
"""Those that speak at once. LLDP does not: a switch may take 30 s to speak again."""
SPEAKING = frozenset({"pci", "gpus", "paths", "lldp"})
"""What states its facts at each start: whoever else is called silent is so for ever."""
LLDP_LATER_S = 0.5
"""After the first word: its modules are not to be loaded while the devices are registered."""
FIRST_WORD_S = 10.0
"""How long the first facts are waited for; a driver that hangs must not keep the NICs from the kubelet."""


class NoDriver:
    """The driver of a machine whose GPUs are to be left alone (``gpu.driver: none``)."""

    def open(self) -> None:
        raise DriverError("gpu.driver is none", absent=True)

    def close(self) -> None:
        """Nothing was opened."""

    def version(self) -> str | None:
        return None

    def gpus(self) -> tuple[GpuReading, ...]:
        return ()

    def vitals(self) -> tuple[GpuVitals, ...]:
        return ()

    def wait(self, timeout_s: float) -> tuple[()]:
        raise DriverError(f"there is no driver to wait {timeout_s} s for", absent=True)


class FolderHint:
    """Wakes at any change in one folder: the stand-in for uevents of a simulated machine."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch

    async def wait(self) -> None:
        await self._watch.changes()


def recorded(tree: Tree) -> bool:
    return tree.exists(RECORDED)


def driver(tree: Tree, settings: GpuSettings) -> nvml_session.Driver:
    """A fresh driver for one session."""
    if settings.driver == "none":
        return NoDriver()
    return Recorded(tree.root) if recorded(tree) else Nvml(processes=settings.health.processes)


def rules(settings: GpuSettings) -> Rules:
    health = settings.health
    return Rules(
        fatal=frozenset(settings.fatal_xids),
        ignore=frozenset(settings.ignore_xids),
        clear_after_s=math.inf if settings.xid_clear_seconds is None else settings.xid_clear_seconds,
        limits=Limits(
            remapped_rows=health.remapped_rows,
            sram_uncorrectable=health.sram_uncorrectable,
            nvlinks=health.nvlinks,
            nvlink_down_s=health.nvlink_down_seconds,
            fabric_s=health.fabric_seconds,
            pcie_width_s=health.pcie_width_seconds,
            pcie_speed_s=health.pcie_speed_seconds,
            pcie_clear_s=health.pcie_clear_seconds,
            clear_s=health.clear_seconds,
            gap_s=4 * health.read_seconds,
            grave=frozenset(map(Mark, health.unhealthy)),
            ignore=frozenset(map(Mark, health.ignore)),
        ),
    )


def terms(settings: HealthSettings) -> Terms:
    """What NICs are judged by."""
    return Terms(
        effective(map(override, settings.rules)),
        tuple(Expected(one.links, one.speed_mbps) for one in settings.expected),
        settings.unused,
        settings.guard.share,
        settings.guard.seconds,
    )


def memory(settings: HealthSettings, root: Path) -> Memory:
    """What outlives the agent: one file for the judge of the NICs and the ledger of the GPUs."""
    return Memory.open(Tree(root).path(settings.state_directory))


def verdicts(settings: HealthSettings, memory: Memory) -> Verdicts:
    """A judge that remembers over a restart."""
    return Verdicts(terms(settings), memory)


def adopt(judge: Verdicts, begun: HealthSettings, now: HealthSettings) -> None:
    """Judge by a changed configuration; ``begun`` is the one that the agent was started with."""
    for setting in ("cabling_plan", "state_directory"):
        if getattr(now, setting) != getattr(begun, setting):
            log.warning(
                "A changed setting takes effect when the agent is restarted. setting=health.%s", setting
            )
    judge.adopt(terms(now))


def explained(judge: Verdicts, ledger: Ledger) -> bytes:
    """Every PF and GPU with what stands behind its health: a JSON array of ``DeviceView``."""
    return msgspec.json.encode((*judge.explained(), *ledger.explained())) + b"\n"


def permanent_macs() -> dict[str, str | None]:
    """Of the NICs in this network namespace, by PCI address; empty where the kernel does not say."""
    try:
        with Netdevs() as netdevs:
            found = netdevs.read()
    except NetlinkError:
        return {}
    return {
        one.pci_address: one.permanent_mac.hex(":") if one.permanent_mac else None
        for one in found
        if one.pci_address is not None
    }


def gpus_ledger(config: Config, memory: Memory | None = None) -> Ledger:
    """What stands against the GPUs. Those that are to be left alone are not those that were remembered."""
    guard = Guard(config.health.guard.share, config.health.guard.seconds)
    return Ledger(rules(config.gpu), memory if config.gpu.driver != "none" else None, guard)


@contextmanager
def hints(tree: Tree) -> Iterator[list[pci.Hint]]:
    """What wakes the look at the machine. Without any, the timer alone does, and that is said."""
    opened: list[Watch | LinkEvents | Uevents] = []
    found: list[pci.Hint] = []
    try:
        if recorded(tree):
            watch = Watch()
            opened.append(watch)
            watch.add(tree.path("/.nodeagent"), CONTENT)
            found.append(FolderHint(watch))
        else:
            for make in (LinkEvents, Uevents):
                try:
                    events = make()
                except NetlinkError as error:
                    log.warning("The kernel's announcements are not heard. reason=%r", str(error))
                    continue
                opened.append(events)
                found.append(events)
        yield found
    finally:
        for one in opened:
            one.close()


def link_select(config: Config) -> LinkSelect:
    from nodeagent.link_selection import LinkSelect  # noqa: PLC0415

    wanted = config.links.select
    return LinkSelect(wanted.netdevs, wanted.drivers, wanted.pci_addresses, wanted.exclude)


def lldp_settings(config: Config, node_name: str | None = None) -> LldpSettings:
    from nodeagent.sources.lldp_source import LldpSettings  # noqa: PLC0415

    settings = config.lldp
    return LldpSettings(
        source="lldpd" if settings.source == "lldpd" else "socket",
        command=settings.command,
        transmit=settings.transmit,
        system_name=node_name,
    )


def rates(config: Config) -> Rates:
    from nodeagent.sampling.collectors import Rates  # noqa: PLC0415

    wanted = config.samples
    return Rates(
        link=wanted.link_seconds,
        driver=wanted.driver_seconds,
        rdma=wanted.rdma_seconds,
        pcie=wanted.pcie_seconds,
        devlink=wanted.devlink_seconds,
        vf=wanted.vf_seconds,
        module=wanted.module_seconds,
        kernel=wanted.kernel_log,
        hangs_s=wanted.hang_seconds,
    )


def hears(config: Config, tree: Tree) -> bool:
    """Whether LLDP is listened to. The netdevs of this host are not those of a captured or simulated machine,
    unless they are named."""
    return config.lldp.source != "none" and (not recorded(tree) or bool(config.links.select.netdevs))


async def watch(
    inventory: Inventory,
    config: Config,
    root: Path,
    node_name: str | None = None,
    judge: Verdicts | None = None,
    gpu_ledger: Ledger | None = None,
    sampling: Callable[[Sampler], object] | None = None,
    hearing: Callable[[Ear], object] = lambda _ear: None,
) -> None:
    """State everything, for ever. ``node_name`` is how this node calls itself to switches. Without a ``judge``
    or a ``gpu_ledger``, one that remembers nothing. ``sampling`` is given the sampler, and each that follows one
    that failed; without it nothing is sampled."""
    tree = Tree(root)
    if not tree.exists("/sys"):
        raise SysfsError(f"{root} has no /sys: --root takes the root of a machine, a capture or a simulation")
    judging = judge if judge is not None else Verdicts(terms(config.health))
    judging.tell(lambda functions: inventory.state("health", functions=functions))
    asked = asyncio.Event()
    looked = pci.Request()
    last: pci.PciFacts | None = None

    async def watch_pci() -> None:
        if not recorded(tree):
            judging.identify(await asyncio.to_thread(permanent_macs))
        with hints(tree) as waking:
            await pci.watch(tree, waking, stated, interval_s=config.scan_seconds, before=last)

    def stated(facts: pci.PciFacts) -> None:
        nonlocal last
        last = facts
        inventory.state(
            "pci",
            # A machine does not change its name: one that cannot be read just now would rename every resource.
            product=facts.product or inventory.snapshot.product,
            functions=judging.facts(facts.functions, facts.links, inventory.snapshot.gpus),
            links=facts.links,
            unreadable=facts.unreadable,
        )
        asked.set()
        looked.make()

    ledger = gpu_ledger if gpu_ledger is not None else gpus_ledger(config)

    def found_gpus(found: tuple[Gpu, ...]) -> None:
        inventory.state("gpus", gpus=found)
        judging.gpus(found)

    ledger.tell(found_gpus)

    async def watch_gpus() -> None:
        await gpu_source.watch(
            lambda: driver(tree, config.gpu),
            tree,
            ledger,
            lambda why: inventory.silence("gpus", why),
            pace=gpu_source.Pace(
                timeout_s=config.gpu.timeout_seconds, vitals_s=config.gpu.health.read_seconds
            ),
            hints=asked,
        )

    async def watch_paths() -> None:
        while True:
            inventory.state(
                "paths", paths=await asyncio.to_thread(host_paths.look, tree, config.cdi.directory)
            )
            await asyncio.sleep(config.scan_seconds)

    async def watch_lldp() -> None:
        await first_word(inventory)
        await asyncio.sleep(LLDP_LATER_S)
        from nodeagent.sources import lldp_source  # noqa: PLC0415

        with LinkEvents() as events:
            await lldp_source.watch(
                lldp_settings(config, node_name),
                link_select(config),
                lambda: inventory.snapshot.functions,
                [events, looked],
                heard,
                hearing,
            )

    def heard(neighbors: tuple[Neighbor, ...], findings: tuple[Finding, ...]) -> None:
        inventory.state("lldp", neighbors=neighbors, findings=findings)
        judging.neighbors(neighbors)

    async def watch_plan() -> None:
        plan = config.health.cabling_plan
        assert plan is not None
        await cabling_plan.watch(
            Path(plan), node_name or socket.gethostname(), judging.plan, config.scan_seconds
        )

    async def watch_samples() -> None:
        await first_word(inventory)
        await asyncio.sleep(LLDP_LATER_S)
        from nodeagent.sampling.sampler import Sampler  # noqa: PLC0415

        sampler = Sampler(tree, lambda: inventory.snapshot.functions, judging.samples, rates(config))
        assert sampling is not None
        sampling(sampler)
        with hints(tree) as waking:
            await sampler.watch(waking)

    works = {"pci": watch_pci, "gpus": watch_gpus, "paths": watch_paths, "health": judging.run}
    works["memory"] = judging.memory.run
    if sampling is not None:
        works["samples"] = watch_samples
    if config.health.cabling_plan is not None:
        works["cabling"] = watch_plan
    if hears(config, tree):
        works["lldp"] = watch_lldp
    async with asyncio.TaskGroup() as group:
        for name, work in works.items():

            def silence(why: str, name: str = name) -> None:
                if name in SPEAKING:
                    inventory.silence(name, why)

            group.create_task(keep(name, work, failed=silence), name=name)


async def first_word(inventory: Inventory, timeout_s: float = FIRST_WORD_S) -> None:
    """Return when every source has spoken or said that it cannot, or after ``timeout_s``."""
    try:
        async with asyncio.timeout(timeout_s):
            while True:
                snapshot = inventory.snapshot
                silent = {entry.source for entry in snapshot.silent}
                if all(inventory.heard(source) or source in silent for source in SOURCES):
                    return
                await inventory.changed(snapshot.revision)
    except TimeoutError:
        return
