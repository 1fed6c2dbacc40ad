"""The pages of the controller's web server: metrics, probes, and the fabric map below ``/ui/``.

The map shows what this replica has: its copies of the cluster, planned once more for each document and not accepted,
so that looking changes no move. Only the leader has the times of waiting moves and the last writes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any, Protocol

import msgspec

from nodeagent.base import supervise
from nodeagent.base.bounded_calls import in_thread
from nodeagent.config.formats import host_port
from nodeagent.fabric.away_nodes import away_series
from nodeagent.fabric.fabric_view import ViewReport, fabric_view
from nodeagent.fabric.gpu_troubles import gpu_series
from nodeagent.fabric.hypernode import LEAF, tier_name
from nodeagent.fabric.maintenance import ends
from nodeagent.fabric.nodelinks import NodeLink, ReportedGpu, VfHolder
from nodeagent.fabric.odd_nodes import odd_counts
from nodeagent.fabric.troubles import odd_of
from nodeagent.facts.remedies import runbook_links
from nodeagent.health.rules import rule_words
from nodeagent.kube.client import ApiClient, ApiError
from nodeagent.kube.lease import Lease
from nodeagent.kube.resource import NODELINKS
from nodeagent.metrics.computed_family import ComputedFamily
from nodeagent.metrics.controller_metrics import ControllerInput, PlanProgress, render_page
from nodeagent.metrics.text_format import PLAIN_TYPE, negotiate
from nodeagent.topology.hypernodes import HyperNodeWriter
from nodeagent.topology.mirrors import NAME_MAX
from nodeagent.topology.node_labels import NodeLabeler
from nodeagent.topology.parts import FabricParts
from nodeagent.topology.write_log import WriteLog
from nodeagent.web.auth import AccessControl
from nodeagent.web.history_page import history_page
from nodeagent.web.live_document import JSON_TYPE, LiveDocument
from nodeagent.web.server import Page, PageHandler, WebServer
from nodeagent.web.ui_pages import UI_PREFIX, UiPages
from nodeagent.web.web_settings import AccessSettings, MapSettings

NODE_NAME_MAX = 253
PODS_FOUND_MAX = 12
"""Results of a search, as many as the page shows."""
_ODD_S = 60.0
"""Odd nodes are counted again after so long: 10,000 nodes take 20 ms, and 400 if no two have the same values."""


class InForce(Protocol):
    """``FabricInForce``: the parts, the first error of the file, empty while its content is in force, and the lines
    about the file."""

    @property
    def parts(self) -> FabricParts: ...

    @property
    def error(self) -> str: ...

    def remarks(self) -> Iterable[str]: ...


class ReplicaWrites(msgspec.Struct, frozen=True):
    """The writers of this replica, and their last writes."""

    hypernodes: HyperNodeWriter
    labels: NodeLabeler
    log: WriteLog


class _ReportedLinks(msgspec.Struct):
    links: tuple[NodeLink, ...] = ()
    holders: tuple[VfHolder, ...] = ()
    gpus: tuple[ReportedGpu, ...] = ()


_REPORT = NODELINKS.typed(_ReportedLinks)


class ControllerPages:
    """``reader`` asks the API server for the report of a selected node. ``families`` are those of each feature."""

    def __init__(
        self,
        settings: MapSettings,
        fabric: InForce,
        lease: Lease,
        progress: PlanProgress,
        writes: ReplicaWrites,
        reader: ApiClient,
        namespace: str,
        replica: str,
        families: Mapping[str, Sequence[ComputedFamily[Any]]],
    ) -> None:
        self._families = families
        self._settings = settings
        self._fabric, self._lease, self._progress, self._writes = fabric, lease, progress, writes
        self._reader, self._namespace, self._replica = reader, namespace, replica
        self._planned = asyncio.Event()
        self._odd_counts: tuple[float, dict[str, int]] = 0.0, {}
        self._changes = history_page(fabric.parts.mirror.changes, f"the controller {replica}")
        self.live = LiveDocument(self._document, self._changed, self._state)

    def planned(self) -> None:
        """The leader has planned or written: viewers get a new document."""
        planned, self._planned = self._planned, asyncio.Event()
        planned.set()

    async def serve(self, listen: str, listening: Callable[[int], None]) -> None:
        """Serve until cancelled. ``listening`` takes the port."""
        probes: dict[str, PageHandler] = {"/healthz": self._healthz, "/readyz": self._readyz}
        folders = {}
        if self._settings.ui:
            folders[UI_PREFIX] = UiPages(
                "fabric",
                self.live,
                {
                    "node.json": self._node,
                    "pods.json": self._pods,
                    "history.json": self._changes,
                    # No name for the features: it would hold these parts when others have replaced them.
                    **{
                        name: partial(self._of_feature, name)
                        for part in self._fabric.parts.features.values()
                        for name in part.pages
                    },
                },
            ).answer
        access = AccessControl(self._settings)
        server = WebServer({"/metrics": self.metrics, **probes}, access, folders)
        async with asyncio.TaskGroup() as group:
            group.create_task(server.run(*host_port(listen), listening))
            if self._settings.probe_listen is not None:
                plain = AccessControl(AccessSettings(host_names=tuple(access.names)))
                group.create_task(WebServer(probes, plain).run(*host_port(self._settings.probe_listen)))

    # --- the map --------------------------------------------------------------------------------------------

    async def _document(self) -> bytes:
        plan_at, taken = time.monotonic(), time.time()
        prepared = self._fabric.parts.planner.prepare(plan_at)
        view = partial(
            fabric_view,
            held=self._fabric.parts.mirror.pods.held,
            job_of=self._fabric.parts.mirror.pods.job_of,
            writes=self._writes.log.recent(),
            changes=self._fabric.parts.mirror.changes.newest(),
            runbook=self._settings.runbook,
            node_page=self._settings.node_page,
        )
        return await in_thread(lambda: msgspec.json.encode(view(prepared(), plan_at, taken)))

    def _changed(self) -> Awaitable[object]:
        mirror = self._fabric.parts.mirror
        return supervise.either(mirror.changed(mirror.revision), self._planned.wait())

    def _state(self) -> dict[str, object]:
        state: dict[str, object] = {
            "replica": self._replica,
            "leading": self._lease.leading,
            "leader": (self._lease.holder or "").rpartition("_")[0],
        }
        for part in self._fabric.parts.features.values():
            state.update(part.state)
        return state

    async def _node(self, parameters: Mapping[str, str]) -> Page:
        """The whole report of a node. A list of one needs no right that the controller lacks."""
        name = parameters.get("name", "")
        if not name or len(name) > NODE_NAME_MAX or not name.isascii() or any(char in name for char in ",=!"):
            return Page(400, b"name a node\n")
        try:
            listed = await self._reader.list(
                _REPORT, namespace=self._namespace, fields=f"metadata.name={name}"
            )
        except ApiError as error:
            return Page(503, f"the API server does not give it: {error}\n".encode())
        if not listed.items:
            return Page(404, b"the node has no report now\n")
        known = self._fabric.parts.planner.inputs.known_neighbors
        links = known.complete_links(name, listed.items[0].links)
        listed_gpus = listed.items[0].gpus
        keys = {reason for link in links for reason in link.reasons}
        keys.update(reason for gpu in listed_gpus for reason in gpu.reasons)
        links_of = runbook_links(self._settings.runbook, keys)
        view = ViewReport(links, rule_words(keys), listed.items[0].holders, listed_gpus, links_of)
        return Page(200, msgspec.json.encode(view), JSON_TYPE)

    async def _pods(self, parameters: Mapping[str, str]) -> Page:
        """The pods whose ``namespace/name`` contains a text, with their nodes."""
        text = parameters.get("text", "").strip()
        if not text or len(text) > NAME_MAX:
            return Page(400, b"give a part of the name\n")
        found = await self._fabric.parts.mirror.pods.find(text, PODS_FOUND_MAX)
        return Page(200, msgspec.json.encode(found), JSON_TYPE)

    async def _of_feature(self, name: str, parameters: Mapping[str, str]) -> Page:
        """The answer of the feature in force: its part is replaced with the configuration."""
        for part in self._fabric.parts.features.values():
            if (question := part.pages.get(name)) is not None:
                return await question(parameters)
        return Page(404, b"this controller has no such page\n")

    # --- metrics and probes -----------------------------------------------------------------------------------

    def metrics(self, accept: str) -> Page:
        parts = self._fabric.parts
        features = parts.features.values()
        shown = ControllerInput(
            self._progress,
            {
                **parts.mirror.parts(),
                **{name: copy for one in features for name, copy in one.mirrors.items()},
            },
            self._writes.hypernodes.writes,
            self._writes.labels.writes,
            supervise.restarts,
            leading=self._lease.leading,
            feature_writes=chain.from_iterable(one.writes() for one in features),
            configuration_fault=self._fabric.error,
            maintenance=ends(parts.planner.inputs.maintenance.of_node, time.time()),
            **self._start_times(),
            odd=self._odd(),
        )
        shown_features = [
            (self._families.get(name, ()), one.shown)
            for name, one in parts.features.items()
            if one.shown is not None
        ]
        return Page(200, *render_page(shown, negotiate(accept) != PLAIN_TYPE, shown_features))

    def _start_times(self) -> dict[str, Any]:
        """Since when nodes are away and GPUs in trouble. Of the leader alone: only it has a plan, so the leaf groups of
        nodes."""
        outcome, inputs = self._progress.outcome, self._fabric.parts.planner.inputs
        levels_away = inputs.no_agent | inputs.away
        if outcome is None or not (levels_away or inputs.gpu_faults.of_node):
            return {}
        groups = {
            node: one.name
            for one in outcome.hypernodes
            if one.tier_name == tier_name(LEAF)
            for node in one.nodes
        }
        away = {node: one for node, one in levels_away.items() if inputs.is_of_fabric(node)}
        gpus = {node: those for node, those in inputs.gpu_faults.of_node.items() if node not in away}
        return {"away": away_series(away, groups), "gpus": gpu_series(gpus, groups)}

    def _odd(self) -> dict[str, int]:
        """Of the leader alone: replicas that say the same would double each sum."""
        planner = self._fabric.parts.planner
        values, maintained = planner.inputs.values, planner.inputs.maintenance.of_node
        if self._progress.outcome is None or not values:
            return {}
        counted_at, counts = self._odd_counts
        if (now := time.time()) >= counted_at + _ODD_S:
            counts = odd_counts(odd_of(planner.rules, values, maintained, now))
            self._odd_counts = now, counts
        return counts

    def _healthz(self, _accept: str) -> Page:
        return Page(200, b"ok\n")

    def _readyz(self, _accept: str) -> Page:
        """Ready to lead: every mirror has been complete once. Followers are ready too."""
        lines, ready = [], True
        for name, part in self._fabric.parts.mirror.parts().items():
            ready &= part.synced.is_set()
            state = "known" if part.synced.is_set() else "not read yet"
            lines.append(
                f"{name}: {len(part.objects)} {state}" + (f"; {part.trouble}" if part.trouble else "")
            )
        lines += self._fabric.remarks()
        holder = self._lease.holder or "none"
        lines.append(f"leader: {holder}{' (this one)' if self._lease.leading else ''}")
        return Page(200 if ready else 503, "".join(f"{line}\n" for line in lines).encode())
