"""The controller's configuration in force, and the parts of the controller that depend on it.

A changed configuration replaces all these parts. The planner keeps reports in the form that its rules ask for, and the
mirror passes each report on once: so both are replaced, and the new mirror reads the cluster again. The lease stays.
The new planner starts from the published tree, with the times and the breaker of its configuration.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from nodeagent.base.change_log import ChangeLog
from nodeagent.base.supervise import Fatal, beside, keep
from nodeagent.config.followed_configuration import FollowedConfiguration
from nodeagent.config.in_force import adopted
from nodeagent.controller_config import FabricConfig, read_fabric
from nodeagent.fabric import Planner
from nodeagent.fabric.rail_anomalies import RailJudge
from nodeagent.fabric.topology_file import Topology
from nodeagent.features.cluster_jobs import ClusterJobs
from nodeagent.features.min_links_marks import MinLinksMarker
from nodeagent.features.other_programs.kept_objects import (
    ANNOTATED,
    CONFIG_MAPS,
    NODE_FEATURE_GROUPS,
    SLURM_CONFIG_MAP,
    KeptObjects,
    node_feature_groups,
    slurm_topology,
    trouble_annotations,
)
from nodeagent.features.rail_probes.rail_keeper import RailKeeper
from nodeagent.features.startup_taint import StartupTaints
from nodeagent.features.switches.switch_poller import SwitchPoller, SwitchReader
from nodeagent.features.switches.switch_settings import SwitchesSettings
from nodeagent.kube.client import ApiClient
from nodeagent.topology.hypernodes import OverlapMarker
from nodeagent.topology.mirrors import ClusterMirror, PodIndex
from nodeagent.topology.parts import FabricParts
from nodeagent.topology.write_log import WriteLog

log = logging.getLogger(__name__)


class FabricInForce:
    """``parts`` are made from the configuration in force, by ``make``, which may raise ``Fatal``."""

    def __init__(
        self, config: FabricConfig, topology: Topology, make: Callable[[FabricConfig, Topology], FabricParts]
    ) -> None:
        self._config = config
        self._make = make
        self._topology = topology
        self._replaced = asyncio.Event()
        self.parts = make(config, topology)
        self.file: FollowedConfiguration[tuple[FabricConfig, Topology]] | None = None

    @property
    def debounce_s(self) -> float:
        return self._config.hysteresis.debounce_seconds

    @property
    def fault(self) -> str:
        """The first fault of the file, and empty while its content is in force."""
        return self.file.fault if self.file is not None else ""

    def follow(self, file: Path) -> Callable[[], None]:
        """Apply changes of the configuration file and of the files that it names. Returns a function that reads now."""

        def folders() -> Iterator[Path]:
            yield file.parent
            for name in (self._config.topology, self._config.infiniband_cables):
                if name is not None:
                    yield (file.parent / name).parent

        self.file = FollowedConfiguration(
            (self._config, self._topology),
            partial(read_fabric, file),
            lambda read: self._adopt(*read),
            folders,
        )
        return self.file.reload

    def _adopt(self, config: FabricConfig, topology: Topology) -> None:
        """Raises ``Fatal`` and then changes nothing."""
        config, waiting = adopted(self._config, config)
        before, self.parts = self.parts, self._make(config, topology)
        removals = {kept.removal for kept in self.parts.kept.values()}
        for kept in before.kept.values():
            if kept.removal not in removals:
                log.warning(
                    "Objects for another program are no longer kept, and stay. remove=%r", kept.removal
                )
        if before.rails is not None and self.parts.rails is None:
            log.warning(
                "RailPartners are no longer kept, and agents that probe go on by them. remove=%r",
                "kubectl delete railpartners --all",
            )
        for path in waiting:
            log.warning("A changed setting takes effect when the controller is restarted. setting=%s", path)
        self._config, self._topology = config, topology
        self._replaced.set()
        self._replaced = asyncio.Event()

    async def mirror(self) -> None:
        """Keep the mirror's copies until cancelled."""

        async def copy(parts: FabricParts) -> None:
            copies = parts.mirror.jobs()
            if parts.jobs is not None:
                copies["pods"] = parts.jobs.pods.run
            async with asyncio.TaskGroup() as group:
                for name, job in copies.items():
                    group.create_task(keep(name, job), name=name)

        await self.until_replaced(copy)

    async def until_replaced(self, work: Callable[[FabricParts], Coroutine[Any, Any, object]]) -> None:
        """Do the work with the present parts. When others replace them, cancel it and start it with those."""
        while True:
            async with beside(work(self.parts), self._replaced.wait()) as working:
                if working.done():
                    await working
                    return
            del working  # its traceback holds the parts that were replaced


def make_parts(
    namespace: str,
    reader: ApiClient,
    writer: ApiClient,
    write_log: WriteLog,
    config: FabricConfig,
    topology: Topology,
    changes: ChangeLog,
) -> FabricParts:
    """Raises ``Fatal`` if this installation cannot do what is configured."""
    planner = Planner(config, topology)
    pods = PodIndex(with_links=config.jobs)
    mirror = ClusterMirror(reader, namespace, planner, config.label_keys, changes, pods)
    switches = None
    if config.switches.method != "none":
        asking = _switch_reader(config.switches)
        switches = SwitchPoller(config.switches, asking, planner, mirror.stir, config.generic_names)
    marks = None
    if config.nodes.min_links_condition or config.nodes.min_links_taint:
        marks = MinLinksMarker(writer, config.nodes, config.min_links)
    overlaps = OverlapMarker(writer, enabled=config.overlap_condition)
    startup = StartupTaints(writer, namespace) if config.nodes.startup_taint else None
    jobs = ClusterJobs(reader, pods) if config.jobs else None
    kept = {}
    if "slurm" in config.outputs:
        wanted = partial(slurm_topology, config.slurm, config.fabric)
        namespace = config.slurm.namespace
        kept["slurm"] = KeptObjects(writer, write_log, CONFIG_MAPS, namespace, wanted, SLURM_CONFIG_MAP)
    if "nodefeaturegroups" in config.outputs:
        groups, namespace = partial(node_feature_groups, config.fabric), config.node_feature_groups.namespace
        kept["nodefeaturegroups"] = KeptObjects(writer, write_log, NODE_FEATURE_GROUPS, namespace, groups)
    if config.trouble_annotation and "hypernodes" in config.outputs:
        kept["trouble"] = KeptObjects(writer, write_log, ANNOTATED, None, trouble_annotations)
    rails = None
    if config.rails.probe:
        watch = RailJudge(config.rails.per_second)
        rails = RailKeeper(writer, write_log, planner, watch, mirror.uids)
    return FabricParts(config.outputs, planner, mirror, overlaps, marks, startup, switches, kept, jobs, rails)


def _switch_reader(settings: SwitchesSettings) -> SwitchReader:
    """Load only the protocol in use: gRPC costs 10 MiB, and SNMP is an extra."""
    if settings.method == "gnmi":
        from nodeagent.features.switches import gnmi  # noqa: PLC0415

        return gnmi.GnmiReader(settings.gnmi, settings.port or gnmi.PORT)
    from nodeagent.features.switches import snmp  # noqa: PLC0415

    reader = snmp.SnmpReader(settings.snmp, settings.port or snmp.PORT, timeout_s=settings.timeout_seconds)
    try:
        reader.check()
    except snmp.SnmpMissingError as error:
        raise Fatal(str(error)) from None
    return reader
