"""The controller: reports in, the tree and the labels out, by one leader of several replicas.

What happens, and where:

1. ``sources/cluster`` keeps copies of the reports, the Nodes and the HyperNodes and tells the planner of every
   difference, in every replica: who takes over need not read first.
2. The leader asks the planner for a plan once the cluster has been quiet for ``debounceSeconds``, and no later than
   ten times that; earlier where the planner itself has said that time alone will change the answer.
3. Before it writes it asks for the versions of all HyperNodes, and plans again where its copy has others: a watch may
   have fallen silent, an answer been lost, or another have led until now. Then ``sinks/hypernodes`` sends the plan's
   writes, and ``sinks/nodelabels`` labels for a while. Then the leader waits until its copy shows what it has
   written: a plan on an older picture would say it again.
4. Where the configuration asks for it the leader also asks switches what they hear (``sources/switches``), and
   marks nodes that have too few links (``sinks/nodemarks``); neither holds up the tree.

Nothing is kept here that the API server does not have. A new leader makes the same tree of the same reports; all
that it forgets is for how long a move has stood, and moves wait a little longer then.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from nodeagent import supervise
from nodeagent.backoff import JITTER, Backoff
from nodeagent.cluster.fabric_events import FabricEvents
from nodeagent.cluster.hypernodes import HyperNodeWriter, OverlapMarker, TreeResult
from nodeagent.cluster.min_links_marks import MinLinksMarker
from nodeagent.cluster.mirrors import ClusterMirror
from nodeagent.cluster.node_labels import LabelResult, NodeLabeler
from nodeagent.config.formats import host_port
from nodeagent.controller_config import FabricConfig
from nodeagent.fabric import Outcome, Planner, Rules
from nodeagent.kube.access import Access
from nodeagent.kube.client import ApiClient, ApiError
from nodeagent.kube.lease import Lease, NotLeading, lead
from nodeagent.metrics.controller_metrics import ControllerInput, render
from nodeagent.metrics.text_format import PLAIN, negotiate
from nodeagent.supervise import Fatal, keep
from nodeagent.switches.switch_poller import SwitchPoller, SwitchReader
from nodeagent.switches.switch_settings import SwitchesSettings
from nodeagent.web.server import Page, WebServer

log = logging.getLogger(__name__)
T = TypeVar("T")

LEASE = "nodeagent-controller"
RETRY_FIRST_S, RETRY_MAX_S = 2.0, 60.0
PAUSE_S = 1.0
"""Between two rounds of labels, in which the copy of the Nodes comes to show the first."""


@dataclass(frozen=True, slots=True)
class Place:
    """``identity`` names this replica in the Lease: the pod's name. ``listen`` is where metrics are served.

    ``catch_up_s`` is how long the copy may take to show what has been written, ``label_s`` how long labels are
    written before the tree is looked at again.
    """

    namespace: str
    identity: str
    listen: str | None
    debounce_s: float = 10.0
    duration_s: float = 15.0
    renew_s: float = 10.0
    retry_s: float = 2.0
    catch_up_s: float = 15.0
    label_s: float = 10.0


def identity() -> str:
    """As the pod is called; the lease makes it another one for each process."""
    return os.environ.get("POD_NAME") or socket.gethostname()


@dataclass(slots=True)
class Progress:
    """What the metrics and the probes show of the work; plain numbers, written by the leader."""

    outcome: Outcome | None = None
    plans: int = 0
    plan_s: float = 0.0
    suppressed: int = 0
    held: bool = False


class Controller:
    """One replica. ``listening`` is told the port of the web server."""

    def __init__(
        self, rules: Rules, access: Access, place: Place, config: FabricConfig | None = None
    ) -> None:
        config = config or FabricConfig()
        self.planner = Planner(rules)
        self.progress = Progress()
        self._rules, self._place = rules, place
        # Two clients: that of the lease must not stand in line behind two hundred pages of reports.
        self._elector = ApiClient(access, manager="nodeagent-controller", timeout_s=place.renew_s / 2)
        self.lease = Lease(
            self._elector,
            namespace=place.namespace,
            name=LEASE,
            identity=place.identity,
            duration_s=place.duration_s,
            renew_s=place.renew_s,
            retry_s=place.retry_s,
        )
        self._reader = ApiClient(access, manager="nodeagent-controller")
        self._writer = ApiClient(access, manager="nodeagent-controller", guard=self.lease.check)
        self.cluster = ClusterMirror(self._reader, place.namespace, self.planner, rules.label_keys)
        self.hypernodes = HyperNodeWriter(self._writer)
        self.labels = NodeLabeler(self._writer)
        self.events = FabricEvents(self._writer, place.namespace, place.identity, LEASE)
        self.marks = _marks(config, self._writer)
        self.overlaps = OverlapMarker(self._writer, enabled=config.overlap_condition)
        self.switches = _switch_poller(config, self.planner, self.cluster.stir)
        self._planned = asyncio.Event()
        self._alone_until = float("-inf")
        self.port: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def run(self) -> None:
        """Until cancelled."""
        jobs = self.cluster.jobs()
        jobs |= {"lead": lambda: lead(self.lease, self._lead), "web": self._serve}
        try:
            async with asyncio.TaskGroup() as group:
                for name, job in jobs.items():
                    group.create_task(keep(name, job), name=name)
        finally:
            for client in (self._elector, self._reader, self._writer):
                await client.close()

    # --- the leader's work ----------------------------------------------------------------------------------

    async def _lead(self) -> None:
        """The tree, and beside it what may take its time."""
        await self.cluster.synced()
        # What was read lives as long as this process, and is not looked through for garbage.
        gc.freeze()
        self._planned.clear()
        self.overlaps.forget()
        beside = {"switches": self._ask_switches, "marks": self._mark}
        tasks = [asyncio.create_task(keep(name, job), name=name) for name, job in beside.items()]
        try:
            await self._work()
        finally:
            pending = set(tasks)
            while pending:
                # More than once: asyncio.wait_for, which libraries use, may swallow a cancellation on Python 3.11.
                for task in pending:
                    task.cancel()
                _, pending = await asyncio.wait(pending, timeout=1.0)
            # Whoever leads now shows the tree; two would double every sum.
            self.progress.outcome, self.progress.held = None, False

    async def _work(self) -> None:
        backoff, full, loop = _backoff(), True, asyncio.get_running_loop()
        while True:
            revision = self.cluster.revision
            outcome = self._plan(full=full)
            full = False
            result = await self._write(outcome)
            self.progress.held = outcome.breaker is not None
            event_s = await self.events.tell(outcome)
            labelled = LabelResult(left_out=len(outcome.relabel))
            if loop.time() >= self._alone_until:
                label_s = min(_left_s(outcome, self._place.label_s), self._place.label_s)
                labelled = await self.labels.label(outcome.relabel, label_s)
            if result.versions:
                await self.cluster.caught_up(result.versions, self._place.catch_up_s)
            again_s = await self.overlaps.mark(outcome.overlapping, self.cluster.hypernodes.objects)
            waits = (_left_s(outcome, None), again_s, event_s)
            wake_s = min((wait_s for wait_s in waits if wait_s is not None), default=None)
            if not (result.failed or result.left_out or labelled.failed):
                backoff.reset()
                if labelled.left_out:
                    wake_s = min(PAUSE_S, wake_s) if wake_s is not None else PAUSE_S
            else:
                alone_s = max(result.retry_after_s, labelled.retry_after_s)
                self._alone_until = max(self._alone_until, loop.time() + alone_s)
                wait_s = max(alone_s, backoff.next_s())
                wake_s = wait_s if wake_s is None else min(wake_s, wait_s)
                await asyncio.sleep(min(wait_s, RETRY_FIRST_S))
            if revision == self.cluster.revision or not result.versions:
                await self._quiet(revision, wake_s)

    async def _write(self, outcome: Outcome) -> TreeResult:
        """The tree's writes, if the plan was made on what is there and the server may be asked."""
        writes = outcome.writes
        if not writes:
            return TreeResult()
        if asyncio.get_running_loop().time() < self._alone_until:
            return TreeResult(left_out=len(writes))
        try:
            if not await self.cluster.confirmed(self._place.catch_up_s):
                return TreeResult(left_out=len(writes))
        except ApiError as error:
            return TreeResult(left_out=len(writes), retry_after_s=error.retry_after_s or 0.0)
        return await self.hypernodes.write(writes)

    def _plan(self, *, full: bool) -> Outcome:
        began = time.perf_counter()
        outcome = self.planner.plan(time.monotonic(), full=full)
        progress = self.progress
        progress.plan_s = time.perf_counter() - began
        progress.plans += 1
        progress.suppressed += len(outcome.hypernodes) - len({write.object.name for write in outcome.writes})
        progress.outcome = outcome
        self._planned.set()
        return outcome

    async def _ask_switches(self) -> None:
        await self._planned.wait()
        if self.switches is None:
            await asyncio.Event().wait()
            return
        await self.switches.run()

    async def _mark(self) -> None:
        """Mark nodes with too few links, after each plan and when it is time."""
        await self._planned.wait()
        if self.marks is None:
            await asyncio.Event().wait()
            return
        self.marks.forget()
        backoff = _backoff()
        while True:
            self._planned.clear()
            outcome = self.progress.outcome
            assert outcome is not None
            try:
                good = await self.marks.mark(outcome.below_min_links, len(self.cluster.nodes.objects))
            except NotLeading:
                await asyncio.Event().wait()  # until whoever leads no more is told so
                return
            wait_s = self.marks.next_s()
            if good:
                backoff.reset()
            else:
                await asyncio.sleep(backoff.next_s())
                wait_s = 0.0
            try:
                async with asyncio.timeout(wait_s):
                    await self._planned.wait()
            except TimeoutError:
                pass

    async def _quiet(self, revision: int, wake_s: float | None) -> None:
        """Return when something has changed and then nothing for a while, or when it is time."""
        loop = asyncio.get_running_loop()
        wake_at = None if wake_s is None else loop.time() + wake_s
        try:
            async with asyncio.timeout_at(wake_at):
                await self.cluster.changed(revision)
        except TimeoutError:
            return
        latest = loop.time() + 10 * self._place.debounce_s
        if wake_at is not None:
            latest = min(latest, wake_at)
        while loop.time() < latest:
            revision = self.cluster.revision
            try:
                async with asyncio.timeout_at(min(latest, loop.time() + self._place.debounce_s)):
                    await self.cluster.changed(revision)
            except TimeoutError:
                return

    # --- the web --------------------------------------------------------------------------------------------

    async def _serve(self) -> None:
        if not self._place.listen:
            await asyncio.Event().wait()
            return
        pages = {"/metrics": self._metrics, "/healthz": self._healthz, "/readyz": self._readyz}

        def listening(port: int) -> None:
            if not self.port.done():
                self.port.set_result(port)

        await WebServer(pages).run(*host_port(self._place.listen), listening)

    def _metrics(self, accept: str) -> Page:
        shown = ControllerInput(
            self.progress,
            self.cluster.parts(),
            self.hypernodes.writes,
            self.labels.writes,
            supervise.restarts,
            leading=self.lease.leading,
            switches=self.switches,
            marks=self.marks,
        )
        content_type = negotiate(accept)
        return Page(200, render(shown, content_type != PLAIN).encode(), content_type)

    def _healthz(self, _accept: str) -> Page:
        return Page(200, b"ok\n")

    def _readyz(self, _accept: str) -> Page:
        """Ready to lead: every copy has been whole once. Who does not lead is ready all the same."""
        lines, good = [], True
        for name, part in self.cluster.parts().items():
            good &= part.synced.is_set()
            state = "known" if part.synced.is_set() else "not read yet"
            lines.append(
                f"{name}: {len(part.objects)} {state}" + (f"; {part.trouble}" if part.trouble else "")
            )
        lines.append(f"leader: {self.lease.holder or 'none'}{' (this one)' if self.lease.leading else ''}")
        return Page(200 if good else 503, "".join(f"{line}\n" for line in lines).encode())


def _backoff() -> Backoff:
    return Backoff(RETRY_FIRST_S, RETRY_MAX_S, jitter=JITTER)


def _left_s(outcome: Outcome, never: T) -> float | T:
    """Until time alone changes the answer."""
    return never if outcome.next_at is None else max(0.0, outcome.next_at - time.monotonic())


def _marks(config: FabricConfig, client: ApiClient) -> MinLinksMarker | None:
    nodes = config.nodes
    if not (nodes.min_links_condition or nodes.min_links_taint):
        return None
    return MinLinksMarker(client, nodes, config.min_links)


def _switch_poller(
    config: FabricConfig, planner: Planner, changed: Callable[[], object]
) -> SwitchPoller | None:
    settings = config.switches
    if settings.method == "none":
        return None
    return SwitchPoller(settings, _switch_reader(settings), planner, changed, config.generic_names)


def _switch_reader(settings: SwitchesSettings) -> SwitchReader:
    """Load only the protocol in use: gRPC costs 10 MiB, and SNMP is an extra."""
    if settings.method == "gnmi":
        from nodeagent.switches import gnmi  # noqa: PLC0415

        return gnmi.GnmiReader(settings.gnmi, settings.port or gnmi.PORT)
    from nodeagent.switches import snmp  # noqa: PLC0415

    reader = snmp.SnmpReader(settings.snmp, settings.port or snmp.PORT, timeout_s=settings.timeout_seconds)
    try:
        reader.check()
    except snmp.SnmpMissingError as error:
        raise Fatal(str(error)) from None
    return reader


async def run(rules: Rules, access: Access, place: Place, config: FabricConfig | None = None) -> None:
    """Run a controller until SIGTERM or SIGINT; the lease is released then."""
    controller = Controller(rules, access, place, config)
    task = asyncio.ensure_future(controller.run())
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    try:
        await task
    except asyncio.CancelledError:
        log.info("Stopped. The tree and the labels stay as they are.")
