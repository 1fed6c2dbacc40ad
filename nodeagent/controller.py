"""The controller: reads node reports, and writes the HyperNode tree and node labels, as one leader of several replicas.

1. ``topology/mirrors`` mirrors the reports, the Nodes and the HyperNodes in every replica and passes each change to the
   planner. A new leader therefore need not read first.
2. The leader plans after the cluster has been quiet for ``debounceSeconds``, and at most ten times that after a change.
   It plans earlier if the last plan named a time at which the result changes. A plan runs in a thread.
3. Before it writes, the leader lists the versions of all HyperNodes. It plans again if its mirror has other versions: a
   watch may have stalled, an answer may be lost, or another replica may have led. ``topology/hypernodes`` then sends
   the plan's writes, and ``topology/node_labels`` writes labels for a limited time. The leader waits until the mirror
   shows its writes, because a plan on an older state would repeat them.
4. Beside it the leader runs the tasks of the features that are configured (``controller_features``). None delays the
   tree.

The controller keeps no state that the API server does not have. A new leader makes the same tree from the same reports,
but moves wait for their full time again.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import socket
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from nodeagent import controller_features
from nodeagent.base.backoff import JITTER, Backoff
from nodeagent.base.bounded_calls import in_thread
from nodeagent.base.c_heap import return_free_memory, use_one_heap
from nodeagent.base.change_log import CONTROLLER_MAX, Change, ChangeLog
from nodeagent.base.ending import end_at
from nodeagent.base.kept_changes import ChangesKeeper
from nodeagent.base.supervise import end_tasks, ending_signals, first_cause, keep
from nodeagent.controller_config import FabricConfig
from nodeagent.fabric import Planner, PlanOutcome
from nodeagent.fabric.topology_file import NO_TOPOLOGY, Topology
from nodeagent.fabric_in_force import FabricInForce
from nodeagent.features.seam import ControllerCore
from nodeagent.kube.access import Access
from nodeagent.kube.client import ApiClient, ApiError
from nodeagent.kube.lease import Lease, lead
from nodeagent.topology.controller_pages import ControllerPages, ReplicaWrites
from nodeagent.topology.hypernodes import FabricEvents, HyperNodeWriter, OverlapMarker, TreeResult
from nodeagent.topology.mirrors import ClusterMirror
from nodeagent.topology.node_labels import IN_FLIGHT, LabelResult, NodeLabeler
from nodeagent.topology.parts import FabricParts
from nodeagent.topology.plans import Plans
from nodeagent.topology.write_log import WriteLog

log = logging.getLogger(__name__)
T = TypeVar("T")

LEASE = "nodeagent-controller"
CONTROLLER_RETRY_FIRST_S, _RETRY_MAX_S = 2.0, 60.0
_PAUSE_S = 1.0
"""Between two rounds of labels, so that the mirror shows the first round."""


@dataclass(frozen=True, slots=True)
class ReplicaSettings:
    """``identity`` names this replica in the Lease: the pod's name. ``listen`` is the address of the web server.

    ``debounce_s`` overrides the configuration. ``catch_up_s`` limits the wait for the mirror to show writes.
    ``label_s`` limits a round of labels, so that the tree is planned again in between.
    """

    namespace: str
    identity: str
    listen: str | None
    debounce_s: float | None = None
    duration_s: float = 15.0
    renew_s: float = 10.0
    retry_s: float = 2.0
    catch_up_s: float = 15.0
    label_s: float = 10.0


def identity() -> str:
    """The pod's name. The lease extends it, so that every process has its own."""
    return os.environ.get("POD_NAME") or socket.gethostname()


class Controller:
    """One replica. ``port`` is the port of the web server."""

    def __init__(
        self,
        config: FabricConfig,
        access: Access,
        settings: ReplicaSettings,
        topology: Topology = NO_TOPOLOGY,
    ) -> None:
        self._plans = Plans()
        self.progress = self._plans.progress
        self._settings = settings
        # The lease has its own client, so that it never waits behind two hundred pages of reports.
        self._elector = ApiClient(access, manager="nodeagent-controller", timeout_s=settings.renew_s / 2)
        self.lease = Lease(
            self._elector,
            namespace=settings.namespace,
            name=LEASE,
            identity=settings.identity,
            duration_s=settings.duration_s,
            renew_s=settings.renew_s,
            retry_s=settings.retry_s,
        )
        self._reader = ApiClient(access, manager="nodeagent-controller")
        self._writer = ApiClient(access, manager="nodeagent-controller", guard=self.lease.check)
        self.changes, self._history = ChangeLog(CONTROLLER_MAX), config.history
        self._write_log = WriteLog()
        self.fabric = FabricInForce(config, topology, self._make_parts)
        self._parts = self.fabric.parts
        self._exempt: FabricParts | None = None
        """The parts that garbage collection leaves out."""
        self.hypernodes = HyperNodeWriter(self._writer, self._write_log)
        self._labeler = ApiClient(
            access, manager="nodeagent-controller", guard=self.lease.check, threads=IN_FLIGHT
        )
        self.labels = NodeLabeler(self._labeler, self._write_log)
        self.events = FabricEvents(self._writer, settings.namespace, settings.identity, LEASE)
        self._pause_until = float("-inf")
        self.pages = ControllerPages(
            config.web,
            self.fabric,
            self.lease,
            self.progress,
            ReplicaWrites(self.hypernodes, self.labels, self._write_log),
            self._reader,
            settings.namespace,
            settings.identity,
            {row.name: row.families for row in controller_features.CONTROLLER},
        )
        self.port: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def _make_parts(self, config: FabricConfig, topology: Topology) -> FabricParts:
        """Raises ``Fatal`` if this installation cannot do what is configured."""
        namespace, reader, writer = self._settings.namespace, self._reader, self._writer
        planner = Planner(config, topology)
        mirror = ClusterMirror(reader, namespace, planner, config.label_keys, self.changes)
        core = ControllerCore(namespace, reader, writer, self._write_log, planner, mirror, self._plans)
        overlaps = OverlapMarker(writer, enabled=config.overlap_condition)
        features = {row.name: row.start(core, config) for row in controller_features.CONTROLLER}
        return FabricParts(config.outputs, planner, mirror, overlaps, features)

    async def run(self) -> None:
        """Run until cancelled."""
        self.changes.add([Change(time.time(), "controller", self._settings.identity, "", "started")])
        jobs: dict[str, Callable[[], Awaitable[object]]] = {
            "mirror": self.fabric.mirror,
            "lead": lambda: lead(self.lease, partial(self.fabric.until_replaced, self._lead)),
            "web": self._serve,
        }
        if self._history.file is not None:
            jobs["history"] = partial(ChangesKeeper(self._history.file).keep, self.changes)
        if self.fabric.file is not None:
            jobs["config"] = self.fabric.file.run
        try:
            async with asyncio.TaskGroup() as group:
                for name, job in jobs.items():
                    group.create_task(keep(name, job), name=name)
        except ExceptionGroup as errors:
            raise first_cause(errors) from None
        finally:
            for client in (self._elector, self._reader, self._writer, self._labeler):
                await client.close()

    @property
    def planner(self) -> Planner:
        return self._parts.planner

    @property
    def cluster(self) -> ClusterMirror:
        return self._parts.mirror

    # --- the leader's work ----------------------------------------------------------------------------------

    async def _lead(self, parts: FabricParts) -> None:
        """Lead with these parts: keep the tree, and beside it run the tasks of the features."""
        self._parts = parts
        await self.cluster.synced()
        self._exempt_from_garbage_collection(parts)
        self.planner.forget_times()
        self._parts.overlaps.forget()
        others = [task for part in parts.features.values() for task in part.lead.items()]
        tasks = [asyncio.create_task(keep(name, job), name=name) for name, job in others]
        try:
            await self._work()
        finally:
            try:
                await end_tasks(tasks)
            finally:
                self._plans.forget()

    def _exempt_from_garbage_collection(self, parts: FabricParts) -> None:
        """Exempt the objects that live as long as the parts. Once for all parts, because a search stops the loop."""
        former, self._exempt = self._exempt, parts
        if former is parts:
            return
        if former is not None:
            gc.unfreeze()  # the former parts are garbage in cycles
        del former
        gc.collect()
        gc.freeze()
        return_free_memory()

    @property
    def _writes_tree(self) -> bool:
        return "hypernodes" in self._parts.outputs and not self.cluster.hypernodes.lacking

    async def _work(self) -> None:
        backoff, loop = _backoff(), asyncio.get_running_loop()
        while True:
            revision = self.cluster.revision
            versions = dict(self.cluster.hypernodes.objects)
            outcome = await self._plan()
            self.pages.planned()
            result = await self._write(outcome, versions)
            self.progress.held = outcome.breaker is not None
            event_s = await self.events.write(outcome)
            labelled = LabelResult(left_out=len(outcome.relabel) if "labels" in self._parts.outputs else 0)
            if loop.time() >= self._pause_until and labelled.left_out:
                label_s = min(_left_s(outcome, self._settings.label_s), self._settings.label_s)
                labelled = await self.labels.label(outcome.relabel, label_s)
            self.pages.planned()
            if result.versions:
                await self.cluster.caught_up(result.versions, self._settings.catch_up_s)
            again_s = None
            if self._writes_tree:
                again_s = await self._parts.overlaps.mark(
                    outcome.overlapping, self.cluster.hypernodes.objects
                )
            waits = (_left_s(outcome, None), again_s, event_s)
            wake_s = min((wait_s for wait_s in waits if wait_s is not None), default=None)
            if not (result.failed or result.left_out or labelled.failed):
                backoff.reset()
                if labelled.left_out:
                    wake_s = min(_PAUSE_S, wake_s) if wake_s is not None else _PAUSE_S
            else:
                asked_s = max(result.retry_after_s, labelled.retry_after_s)
                wait_s = backoff.next_s(asked_s)
                if asked_s:
                    self._pause_until = max(self._pause_until, loop.time() + wait_s)
                wake_s = wait_s if wake_s is None else min(wake_s, wait_s)
                await asyncio.sleep(min(wait_s, CONTROLLER_RETRY_FIRST_S))
            if revision == self.cluster.revision or not result.versions:
                await self._quiet(revision, wake_s)

    async def _write(self, outcome: PlanOutcome, versions: dict[str, str]) -> TreeResult:
        """Write the tree, unless the plan is outdated or the server asked for a pause.

        ``versions`` are the versions of the HyperNodes when the plan began.
        """
        writes = outcome.writes
        if not writes or not self._writes_tree:
            return TreeResult()
        if asyncio.get_running_loop().time() < self._pause_until:
            return TreeResult(left_out=len(writes))
        try:
            confirmed = await self.cluster.confirmed(self._settings.catch_up_s)
            if not confirmed or versions != self.cluster.hypernodes.objects:
                return TreeResult(left_out=len(writes))
        except ApiError as error:
            return TreeResult(left_out=len(writes), retry_after_s=error.retry_after_s or 0.0)
        return await self.hypernodes.write(writes)

    async def _plan(self) -> PlanOutcome:
        """Plan in a thread, because 100,000 nodes take about a second and the lease must be renewed meanwhile."""
        began = time.perf_counter()
        plan = await in_thread(self.planner.prepare(time.monotonic()))
        self.planner.accept(plan)
        self._plans.add(plan, time.perf_counter() - began)
        return plan.outcome

    async def _quiet(self, revision: int, wake_s: float | None) -> None:
        """Return when the cluster has changed and then been quiet for the debounce time, or after ``wake_s``."""
        loop = asyncio.get_running_loop()
        wake_at = None if wake_s is None else loop.time() + wake_s
        try:
            async with asyncio.timeout_at(wake_at):
                await self.cluster.changed(revision)
        except TimeoutError:
            return
        debounce_s = self._settings.debounce_s
        if debounce_s is None:
            debounce_s = self.fabric.debounce_s
        latest = loop.time() + 10 * debounce_s
        if wake_at is not None:
            latest = min(latest, wake_at)
        while loop.time() < latest:
            revision = self.cluster.revision
            try:
                async with asyncio.timeout_at(min(latest, loop.time() + debounce_s)):
                    await self.cluster.changed(revision)
            except TimeoutError:
                return

    async def _serve(self) -> None:
        if not self._settings.listen:
            await asyncio.Event().wait()
            return

        def listening(port: int) -> None:
            if not self.port.done():
                self.port.set_result(port)

        await self.pages.serve(self._settings.listen, listening)


def _backoff() -> Backoff:
    return Backoff(CONTROLLER_RETRY_FIRST_S, _RETRY_MAX_S, jitter=JITTER)


def _left_s(outcome: PlanOutcome, never: T) -> float | T:
    """The time until the result of the plan changes by itself."""
    return never if outcome.next_at is None else max(0.0, outcome.next_at - time.monotonic())


async def run_controller(
    config: FabricConfig,
    access: Access,
    settings: ReplicaSettings,
    topology: Topology = NO_TOPOLOGY,
    file: Path | None = None,
) -> None:
    """Run a controller until SIGTERM or SIGINT, then release the lease. ``file`` is followed."""
    use_one_heap()
    end_at(ending_signals(signal.SIGINT))
    controller = Controller(config, access, settings, topology)
    if file is not None:
        reload = controller.fabric.follow(file)
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reload)
    try:
        await controller.run()
    except asyncio.CancelledError:
        log.info("Stopped. The tree and the labels stay as they are.")
