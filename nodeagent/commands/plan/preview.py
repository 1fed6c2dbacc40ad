"""The one reader of a fabric for verbs: reports, Nodes and HyperNodes of files or of a cluster, and their plan.

A preview writes nothing and does not wait: every move takes effect at once. Of a cluster an object with errors is
refused alone, as in a file. A kind that the cluster does not have counts as empty, with a note. Any other error ends
the reading, because half of the reports would make another fabric. Without the controller's configuration a preview
takes nothing away from what is published.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import structs

from nodeagent.base.rfc3339 import rfc3339
from nodeagent.commands.plan import objects
from nodeagent.commands.plan.controller_settings import (
    CABLING_PLAN,
    ConfigMap,
    FabricRead,
    from_cluster,
    of_config_maps,
)
from nodeagent.commands.plan.kept_tree import keep_published
from nodeagent.commands.plan.objects import Objects, store_object
from nodeagent.console import user_files
from nodeagent.console.terminal import note
from nodeagent.console.user_files import UserFileError
from nodeagent.controller_config import FabricConfig, read_fabric
from nodeagent.fabric import IMMEDIATE, HyperNode, Planner, PlanOutcome
from nodeagent.fabric.agent_pods import AGENT_PODS, AgentPod, SeenAgents
from nodeagent.fabric.away_nodes import WatchedNode, away_node
from nodeagent.fabric.fabric_settings import FabricRules, HysteresisSettings
from nodeagent.fabric.hypernode import LEAF
from nodeagent.fabric.jobs import ListedPod, held_links, job_pod
from nodeagent.fabric.nodelinks import NodeLinks, VfHolder
from nodeagent.fabric.planner import Plan
from nodeagent.fabric.rail_anomalies import RailJudge
from nodeagent.fabric.rail_suspects import AGREE_S
from nodeagent.fabric.topology_file import NO_TOPOLOGY, Topology
from nodeagent.fabric.traffic_figures import PodFigures
from nodeagent.kube.access import Access, AccessError, in_cluster, kubeconfig
from nodeagent.kube.client import ApiClient, ApiError
from nodeagent.kube.resource import HYPERNODES, NODELINKS, NODES, PODS, RAIL_PARTNERS, Resource

NAME_A_CLUSTER = "name a cluster with --kubeconfig FILE"
OR_READ_FILES = " or read reports with --from FILE (`nodeagent demo --nodes 64 --write DIR` makes some)"
NAMESPACES_MAX = 8
"""Namespaces whose Pods are read to name the jobs of troubles."""


class SourceError(Exception):
    """The input of the plan cannot be read. The message contains the remedy."""


@dataclass(frozen=True, slots=True)
class Preview:
    """A plan, the ``published`` HyperNodes and the ``nodes`` that were read."""

    plan: Plan
    published: dict[str, HyperNode]
    nodes: frozenset[str]
    reports: Mapping[str, NodeLinks]
    """The reports as the planner takes them, if ``Objects.reports`` was a dict."""
    holders: Mapping[str, tuple[VfHolder, ...]]
    """The pods with VFs by node, if ``Objects.holders`` was a dict."""
    pods: tuple[ListedPod, ...] = ()
    """The Pods, if ``Objects.pods`` was a list."""
    figures: Mapping[tuple[str, str, str], PodFigures] = field(default_factory=dict)
    """The traffic of pods, by node, namespace and pod, where the input has it."""
    plans: tuple[ConfigMap, ...] = ()
    """The ConfigMaps with a cabling plan."""
    cluster: str | None = None
    """The address of the API server that was read."""

    @property
    def outcome(self) -> PlanOutcome:
        return self.plan.outcome

    def held(self, node: str) -> Mapping[str, tuple[str, ...]]:
        """The links of each pod with VFs of a node, if the reports or the holders were kept."""
        report = self.reports.get(node)
        return held_links(self.holders.get(node, ()) if report is None else report.holders)

    @property
    def wanted(self) -> dict[str, HyperNode]:
        return {hypernode.name: hypernode for hypernode in self.outcome.hypernodes}

    def origin(self, source: str | None, now: float) -> dict[str, Any]:
        """The first keys of each document of `--json`: what was read and when. ``source``: the file of `--from`."""
        return {
            "cluster": self.cluster,
            "fabric": self.plan.rules.fabric,
            "time": rfc3339(now),
            "source": source or "cluster",
        }


def read_preview(
    options: argparse.Namespace,
    *,
    whole_reports: bool = False,
    with_holders: bool = False,
    with_pods: bool = False,
    with_agents: bool = False,
) -> Preview:
    """The plan for the input that the options of ``source_options`` name, with notes on stderr.

    ``whole_reports``: keep the reports too, which take a gigabyte for 100,000 nodes; ``with_holders``: keep the pods
    that they name; ``with_pods``: read Pods too; ``with_agents``: read the pods of the agents, so that a node without
    a running one is away. Raises ``UserFileError``, ``SourceError``, ``ConfigError`` and
    ``ApiError``."""

    def nothing_read(fabric: FabricRead) -> Objects:
        read = make_objects(fabric.config, fabric.topology)
        if whole_reports:
            read.reports = {}
        if with_holders:
            read.holders = {}
        if with_pods:
            read.pods = []
        if with_agents:
            read.agents = SeenAgents()
        return read

    if options.current == options.source == "-":
        raise SourceError("the standard input can be read only once: give a file to --from or --current")
    given = None if options.fabric is None else FabricRead(*read_fabric(options.fabric))
    cluster = None
    if options.source is not None:
        fabric, read = _read_files([options.source, *filter(None, (options.current,))], given, nothing_read)
    else:
        namespace = options.namespace if with_pods else None
        access = cluster_access(options.kubeconfig, options.context, f"{NAME_A_CLUSTER},{OR_READ_FILES}")
        fabric = given or asyncio.run(_fabric_of_cluster(access))
        read = nothing_read(fabric)
        asyncio.run(read_cluster(access, read, namespace))
        cluster = access.server
        if options.current is not None:
            objects.read_objects(options.current, read)
    preview = replace(make_preview(read), cluster=cluster)
    if fabric.unknown:
        read.notes.append(fabric.unknown)
        preview = replace(preview, plan=keep_published(preview.plan))
    elif "hypernodes" not in fabric.config.outputs and preview.outcome.writes:
        read.notes.append("`outputs` of the controller's configuration has no hypernodes: it writes none")
        preview = replace(preview, plan=replace(preview.plan, outcome=replace(preview.outcome, writes=())))
    for sentence in (*read.notes, *_notes(preview.plan, fabric.config.hysteresis)):
        note(sentence)
    return preview


def jobs_of_pods(options: argparse.Namespace, preview: Preview, named: Iterable[str]) -> Mapping[str, str]:
    """The jobs of these pods (``namespace/pod``), as far as they can be read: of a file its Pods, of a cluster those of
    the ``NAMESPACES_MAX`` namespaces that most of them are in. A note says why jobs are not known."""
    pods, wanted = list(preview.pods), Counter(pod.partition("/")[0] for pod in named)
    if options.namespace is not None:
        wanted = Counter({options.namespace: 1}) if options.namespace in wanted else Counter()
    if options.source is None and wanted:
        access = cluster_access(options.kubeconfig, options.context)
        try:
            for namespace, _ in wanted.most_common(NAMESPACES_MAX):
                pods += asyncio.run(_pods_of(access, namespace))
        except ApiError as error:
            note(f"the jobs of the pods are not known: {error}")
    made = (job_pod(pod) for pod in pods)
    return {f"{pod.job.namespace}/{pod.name}": str(pod.job) for pod in made if pod is not None}


async def _pods_of(access: Access, namespace: str) -> list[ListedPod]:
    client = ApiClient(access)
    try:
        return (await client.list(PODS.typed(ListedPod), namespace=namespace)).items
    finally:
        await client.close()


def _read_files(
    sources: Sequence[str], given: FabricRead | None, nothing_read: Callable[[FabricRead], Objects]
) -> tuple[FabricRead, Objects]:
    """Read all sources, and again if the controller's configuration is among their objects: the planner keeps reports
    in the form that its rules ask for. Raises ``UserFileError``."""
    stdin = user_files.kept_stdin() if given is None and "-" in sources else None

    def read_all(fabric: FabricRead) -> Objects:
        read = nothing_read(fabric)
        for source in sources:
            objects.read_objects(source, read, stdin)
        return read

    with stdin or nullcontext():
        if given is not None:
            return given, read_all(given)
        first = read_all(FabricRead(FabricConfig()))
        fabric = of_config_maps(first.config_maps, user_files.source_name(sources[0]))
        return fabric, first if fabric.unknown else read_all(fabric)


async def _fabric_of_cluster(cluster: Access) -> FabricRead:
    """Raises ``ApiError``."""
    client = ApiClient(cluster)
    try:
        return await from_cluster(client)
    finally:
        await client.close()


def make_objects(rules: FabricRules, topology: Topology = NO_TOPOLOGY) -> Objects:
    """No objects yet; they are read for a plan with these rules, without waiting."""
    return Objects(Planner(structs.replace(rules, hysteresis=IMMEDIATE), topology))


def make_preview(read: Objects) -> Preview:
    """Plan for all objects that were read."""
    read.complete(time.time())
    plan = read.planner.prepare(0.0)()
    if read.partners:
        watch = RailJudge()
        watch.adopt(plan, read.partners.values())
        for now in (0.0, AGREE_S):  # two judgements agree
            read.planner.rails(watch.judge(plan.levels.reports, now, plan.levels.faults))
        plan = read.planner.prepare(0.0)()
    reports, holders, pods = read.reports or {}, read.holders or {}, tuple(read.pods or ())
    plans = tuple(one for one in read.config_maps if one.metadata.name == CABLING_PLAN)
    return Preview(plan, read.hypernodes, frozenset(read.nodes), reports, holders, pods, read.figures, plans)


def _notes(plan: Plan, times: HysteresisSettings) -> Iterable[str]:
    if not plan.levels.reports and not plan.levels.refused:
        yield "no NodeLinks found: the published tree stays as it is"
    moves, placed = len(plan.nodes.pending), len(plan.published.tiers[LEAF].placed)
    if moves > max(times.hold_nodes, times.hold_share * placed):
        hold_s = times.hold_seconds
        yield f"{moves} of {placed} placed nodes would move: the controller first holds them for {hold_s:g} s"


def cluster_access(file: Path | None, context: str | None = None, remedy: str = NAME_A_CLUSTER) -> Access:
    """The access of the given kubeconfig and context, of the pod's service account, or of the kubeconfig that kubectl
    uses.

    Raises ``UserFileError`` for the given file, ``SourceError`` with the ``remedy`` for the others.
    """
    if file is None:
        try:
            return (in_cluster() if context is None else None) or kubeconfig(None, context)
        except (AccessError, OSError) as error:
            why = str(error) if isinstance(error, AccessError) else f"{error.filename}: {error.strerror}"
            raise SourceError(f"{why}: {remedy}") from error
    try:
        return kubeconfig(file, context)
    except AccessError as error:
        fault = str(error).removeprefix(f"{file}: ")
        raise UserFileError(
            str(file), fault, "a kubeconfig, as `kubectl config view --raw` prints it"
        ) from error


async def read_cluster(cluster: Access, read: Objects, namespace: str | None = None) -> None:
    """Read all objects of all namespaces, one page at a time; Pods of ``namespace`` alone if it is given. Raises
    ``ApiError`` and ``SourceError``."""
    client = ApiClient(cluster)

    def take_node(node: WatchedNode) -> None:
        read.stored += 1
        meta, away = node.metadata, away_node(node.spec, node.status)
        read.add_node(meta.name, dict(meta.labels or {}), meta.annotations or {}, away)

    def store(document: dict[str, Any], kind: str) -> None:
        store_object({"kind": kind, **document}, read)

    takes: tuple[tuple[Resource[Any], Callable[[Any], None], Callable[[], None]], ...] = (
        (NODELINKS, partial(store, kind=NODELINKS.kind), read.drop_reports),
        (HYPERNODES, partial(store, kind=HYPERNODES.kind), read.hypernodes.clear),
        (NODES.typed(WatchedNode), take_node, read.nodes.clear),
    )
    takes += ((RAIL_PARTNERS, partial(store, kind=RAIL_PARTNERS.kind), read.partners.clear),)
    if read.pods is not None:
        takes += ((PODS.typed(ListedPod), read.pods.append, read.pods.clear),)
    try:
        for resource, take, forget in takes:
            if resource is RAIL_PARTNERS and not read.planner.has_legs:
                continue
            try:
                of = namespace if resource.kind == PODS.kind else None
                await client.list_each(resource, take, forget, namespace=of)
            except ApiError as error:
                if resource.kind == PODS.kind and namespace is None:
                    raise SourceError(f"{error}; -n NAMESPACE reads the pods of one namespace") from None
                if resource is RAIL_PARTNERS:
                    read.notes.append(f"where rails lose packets is not known: {error}")
                    continue
                if not error.missing:
                    raise
                read.notes.append(f"the cluster has no kind {resource.kind}: is its CRD installed?")
        if read.agents is not None:
            await _read_agents(client, read, read.agents)
    finally:
        await client.close()


async def _read_agents(client: ApiClient, read: Objects, agents: SeenAgents) -> None:
    """The pods of the agents, in the namespaces of their reports; a note where they may not be read."""
    try:
        for space in sorted(agents.spaces):
            for pod in (await client.list(PODS.typed(AgentPod), namespace=space, labels=AGENT_PODS)).items:
                agents.add(pod)
    except ApiError as error:
        read.agents = None
        read.notes.append(f"on which nodes no agent runs is not known: {error}")
