"""The controller's copies of NodeLinks, Nodes and HyperNodes, kept by watches; every change goes to the planner.

Rules:

* A copy holds just enough of each object to detect a change. The planner receives the content while it is read: a
  hundred thousand reports as objects would take most of a gigabyte.
* An object that cannot be decoded is refused by name and does not affect the others.
* The pods in reports are kept for the search of the map and the list of troubles: a pod that starts or ends makes no
  plan, unless a link of its node has a fault.
* Of a Node the labels that the controller may write are kept, and the annotation with planned work; one that cannot be
  read is logged once. Taints and the condition Ready are read too, and kept while it is not True.
* A watch can stop without ending, and its copy is then outdated. Before a plan is written, the versions of all
  HyperNodes are listed: a write names the version of one object, but the rules of the tree concern all of them.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from itertools import starmap
from typing import TypeVar

import msgspec

from nodeagent.base.bounded_calls import in_thread
from nodeagent.base.change_log import CONTROLLER_MAX, Change, ChangeLog
from nodeagent.base.plain_text import one_line
from nodeagent.fabric import Planner
from nodeagent.fabric.away_nodes import AwayNode, WatchedNode, away_node
from nodeagent.fabric.gpu_troubles import gpu_changes
from nodeagent.fabric.hypernode import HyperNode, HyperNodeError, of
from nodeagent.fabric.jobs import HeldLinks, held_links
from nodeagent.fabric.maintenance import MAINTENANCE_LABEL, standing
from nodeagent.fabric.nodelinks import (
    GPUS_MAX,
    ComparedValues,
    Metadata,
    NodeLink,
    NodeLinks,
    ReportedDomain,
    ReportedGpu,
    TrafficLevel,
    VfHolder,
)
from nodeagent.fabric.report_changes import report_changes
from nodeagent.fabric.reports import InternPool, only_legs_differ
from nodeagent.fabric.troubles import JobOf, of_no_job
from nodeagent.kube.client import ApiClient
from nodeagent.kube.reflector import Reflector
from nodeagent.kube.resource import HYPERNODES, NODELINKS, NODES, Meta, Partial

log = logging.getLogger(__name__)
T = TypeVar("T")


PODS_MAX = 128
"""Of one node, as in the definition of NodeLinks."""
NAME_MAX = 63 + 1 + 253
"""``namespace/pod``, by RFC 1123."""
TRAFFIC_BYTES_MAX = 1 << 17
"""Of one node: 128 pods with eight rails that differ."""
_LINKS_TEXT_MAX = 2048
"""Of one pod: the names of 128 links."""


class FoundPod(msgspec.Struct, frozen=True):
    """``pod`` is ``namespace/name``."""

    pod: str
    node: str


_HOLDERS = msgspec.json.Decoder(tuple[VfHolder, ...])


class PodIndex:
    """The pods that reports list as holders of VFs, with their links: for the search of the fabric map, the list of
    troubles and the metrics of jobs.

    It keeps one text for each node that reports holders, and nothing for the others: 10,000 nodes with one pod each
    take less than 4 MiB. The rest of a holder is asked of the API server when its node is selected.
    """

    def __init__(self) -> None:
        self._pods: dict[str, str] = {}
        """``namespace/pod``, a tab and its links with commas, on lines of their own, by node."""
        self._traffic: dict[str, bytes] = {}
        self.job_of: JobOf = of_no_job
        """The job of ``namespace/pod``, if the feature of jobs knows it."""

    def take(self, node: str, holders: bytes) -> bool:
        """Replace the pods of a node by those in the JSON of ``holders``. Unreadable ones count as none. Return whether
        they changed."""
        before = self._pods.get(node)
        try:
            found = _HOLDERS.decode(holders)[:PODS_MAX]
        except (msgspec.MsgspecError, UnicodeDecodeError):
            found = ()
        if found:
            self._pods[node] = "\n".join(starmap(_line, held_links(found).items()))
        else:
            self.forget(node)
        return self._pods.get(node) != before

    def forget(self, node: str) -> None:
        self._pods.pop(node, None)

    def take_traffic(self, node: str, traffic: bytes) -> None:
        """Keep the levels of a node as their JSON: they are read when the metrics of jobs are computed."""
        self._traffic.pop(node, None)
        if len(b"null") < len(traffic) <= TRAFFIC_BYTES_MAX:
            self._traffic[node] = traffic

    def traffic_now(self) -> Callable[[], dict[tuple[str, str], TrafficLevel]]:
        """A function that makes the level of each pod by node and ``namespace/pod``, of this moment. It may run in a
        thread."""
        kept = self._traffic.copy()
        return lambda: {
            (node, f"{level.namespace}/{level.pod}"): level
            for node, raw in kept.items()
            for level in _if_readable(_TRAFFIC, msgspec.Raw(raw))[:PODS_MAX]
        }

    def held(self, node: str) -> Mapping[str, tuple[str, ...]]:
        """The links of each pod on a node, by ``namespace/pod``."""
        return _held(self._pods.get(node, ""))

    def held_now(self) -> Callable[[], HeldLinks]:
        """A function that makes the links of each pod by node, of this moment. It may run in a thread."""
        pods = self._pods.copy()
        return lambda: {node: _held(text) for node, text in pods.items()}

    async def find(self, text: str, limit: int) -> tuple[FoundPod, ...]:
        """At most ``limit`` pods whose ``namespace/name`` contains ``text``."""
        wanted, pods = text.lower(), tuple(self._pods.items())

        def search() -> tuple[FoundPod, ...]:
            found: list[FoundPod] = []
            for node, names in pods:
                if wanted in names:
                    found += (FoundPod(name, node) for name in _held(names) if wanted in name)
                if len(found) >= limit:
                    break
            return tuple(found[:limit])

        return await in_thread(search)


def _line(pod: str, links: tuple[str, ...]) -> str:
    held = one_line(",".join(links), _LINKS_TEXT_MAX, ascii_only=True)
    return f"{one_line(pod, NAME_MAX, ascii_only=True)}\t{held}"


def _held(text: str) -> dict[str, tuple[str, ...]]:
    lines = (line.partition("\t") for line in text.split("\n") if line)
    return {pod: tuple(links.split(",")) for pod, _, links in lines}


class RawReport(msgspec.Struct, rename="camel"):
    """A NodeLinks object whose fields are not decoded yet."""

    metadata: Meta
    node_name: msgspec.Raw = msgspec.Raw(b'""')
    links: msgspec.Raw = msgspec.Raw(b"[]")
    nvlink_domains: msgspec.Raw = msgspec.Raw(b"[]")
    gpus: msgspec.Raw = msgspec.Raw(b"[]")
    holders: msgspec.Raw = msgspec.Raw(b"[]")
    compared: msgspec.Raw = msgspec.Raw(b"null")
    traffic: msgspec.Raw = msgspec.Raw(b"[]")


class RawHyperNode(msgspec.Struct):
    metadata: Meta
    spec: msgspec.Raw = msgspec.Raw(b"{}")


OurLabels = tuple[tuple[str, str], ...]
"""The labels of a Node that the controller may write, sorted by key."""


_NAME = msgspec.json.Decoder(str)
_LINKS = msgspec.json.Decoder(tuple[NodeLink, ...])
_VF_HOLDERS = msgspec.json.Decoder(tuple[VfHolder, ...])
_VALUES: msgspec.json.Decoder[ComparedValues | None] = msgspec.json.Decoder(ComparedValues | None)
_TRAFFIC = msgspec.json.Decoder(tuple[TrafficLevel, ...])
_DOMAINS = msgspec.json.Decoder(tuple[ReportedDomain, ...])
_GPUS = msgspec.json.Decoder(tuple[ReportedGpu, ...])


class ClusterMirror:
    """The three copies. ``revision`` increases with each change, and ``changes`` has those of reports.

    ``label_keys`` are the labels of Nodes that the controller may write."""

    def __init__(
        self,
        client: ApiClient,
        namespace: str,
        listener: Planner,
        label_keys: Iterable[str],
        changes: ChangeLog | None = None,
    ) -> None:
        self.revision = 0
        self.changes = changes or ChangeLog(CONTROLLER_MAX)
        self.pods = PodIndex()
        self._client = client
        self._waiters: list[asyncio.Future[None]] = []
        self._listener = listener
        self._label_keys = tuple(sorted(set(label_keys)))
        self._shared_labels = InternPool()
        self._passed_on: dict[str, int] = {}
        """Reports that the planner has and the copy has not yet: those of a list that has not ended, or has failed."""
        self._decoded: dict[str, HyperNode | None] = {}
        self.uids: dict[str, str] = {}
        """The UID of each Node, for the objects that it owns."""
        self.reports: Reflector[int] = Reflector(
            client,
            NODELINKS.typed(RawReport),
            namespace=namespace,
            take=self._take_report,
            changed=self._report_changed,
            listed=self._reports_listed,
        )
        self.nodes: Reflector[OurLabels] = Reflector(
            client,
            NODES.typed(WatchedNode),
            take=self._take_node,
            changed=self._node_changed,
        )
        self.hypernodes: Reflector[str] = Reflector(
            client,
            HYPERNODES.typed(RawHyperNode),
            take=self._take_hypernode,
            changed=self._hypernode_changed,
            optional=self.stir,
            listed=self._decoded.clear,
        )

    def parts(self) -> dict[str, Reflector[int] | Reflector[OurLabels] | Reflector[str]]:
        """The copies by resource."""
        return {"nodelinks": self.reports, "nodes": self.nodes, "hypernodes": self.hypernodes}

    def jobs(self) -> dict[str, Callable[[], Awaitable[None]]]:
        """The tasks that keep the copies, by name. Nodes are read after the HyperNodes that their labels repeat."""

        async def nodes() -> None:
            await self.hypernodes.synced.wait()
            await self.nodes.run()

        return {"nodelinks": self.reports.run, "nodes": nodes, "hypernodes": self.hypernodes.run}

    async def synced(self) -> None:
        """Return when each copy has been complete once: an object that is absent before that is only unknown."""
        for part in self.parts().values():
            await part.synced.wait()

    async def caught_up(self, versions: Mapping[str, str | None], timeout_s: float) -> bool:
        """Wait until the copy has these HyperNodes at these versions (``None``: deleted). False: it timed out."""
        try:
            async with asyncio.timeout(timeout_s):
                while any(self.hypernodes.objects.get(name) != version for name, version in versions.items()):
                    await self.changed(self.revision)
        except TimeoutError:
            return False
        return True

    async def confirmed(self, timeout_s: float) -> bool:
        """Compare the copy of the HyperNodes with a list from the API server.

        False: they differed, so the plan is outdated; the copy is right now or is being read again. Raises
        ``ApiError``.
        """
        listed: dict[str, str | None] = {}

        def take(hypernode: Partial) -> None:
            listed[hypernode.metadata.name] = hypernode.metadata.resource_version

        await self._client.list_each(HYPERNODES.partial, take, listed.clear)
        copy = self.hypernodes.objects
        outdated = {
            name: listed.get(name)
            for name in listed.keys() | copy.keys()
            if listed.get(name) != copy.get(name)
        }
        if not outdated:
            return True
        if not await self.caught_up(outdated, timeout_s):
            log.info("The copy of the HyperNodes is outdated and is read again.")
            self.hypernodes.doubt()
        return False

    async def changed(self, revision: int) -> None:
        """Return when something has changed since this revision."""
        while self.revision == revision:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter

    def stir(self) -> None:
        """Increase the revision and wake ``changed``: an object has changed, or another input of the plan."""
        self.revision += 1
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    # --- reports ------------------------------------------------------------------------------------------

    def _take_report(self, raw: RawReport) -> int:
        """Pass a changed report on at once, so that at most one page of decoded reports exists.

        A list that fails half-way has still passed on what is true. The copy has a hash of each report.
        """
        name = raw.metadata.name
        other_pods = self.pods.take(name, bytes(raw.holders))
        self.pods.take_traffic(name, bytes(raw.traffic))
        parts = (raw.links, raw.node_name, raw.nvlink_domains, raw.gpus, raw.compared)
        content = hash(tuple(map(bytes, parts)))
        known = self._passed_on.get(name)
        faulty = self._listener.has_fault(name)
        if content != (self.reports.objects.get(name) if known is None else known) or (other_pods and faulty):
            self._passed_on[name] = content
            try:
                report = _decoded(raw)
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                self._listener.refuse(name, str(error))
            else:
                inputs = self._listener.inputs
                before, faults = inputs.reports.get(name), inputs.faults.of_node.get(name)
                gpus = inputs.gpu_faults.of_node.get(name, ())
                self._listener.report(name, report)
                after = inputs.reports.get(name)
                if before is not None and after is not None:
                    self.changes.add(report_changes(before, after, report, time.time()))
                    gpus_now = inputs.gpu_faults.of_node.get(name, ())
                    self.changes.add(gpu_changes(name, gpus, gpus_now, time.time()))
                    same_faults = faults == inputs.faults.of_node.get(name) and gpus == gpus_now
                    if same_faults and only_legs_differ(before, after):
                        return content  # legs of a spine come and go by the thousand, and make no plan; so do values
            self.stir()
        return content

    def _report_changed(self, name: str, _before: int | None, now: int | None) -> None:
        self._passed_on.pop(name, None)
        if now is None:
            self.pods.forget(name)
            self.pods.take_traffic(name, b"")
            self._listener.report(name, None)
            self.stir()

    def _reports_listed(self) -> None:
        deleted = self._passed_on.keys() - self.reports.objects.keys()  # since an attempt that failed
        for name in deleted:
            self._report_changed(name, None, None)
        self._passed_on.clear()  # which frees its memory

    # --- Nodes --------------------------------------------------------------------------------------------

    def _take_node(self, node: WatchedNode) -> OurLabels:
        """The labels that the controller may write: a Node has fifty others. Equal labels are one value."""
        self._take_away(node.metadata.name, away_node(node.spec, node.status))
        self._take_maintenance(node.metadata.name, (node.metadata.annotations or {}).get(MAINTENANCE_LABEL))
        labels = node.metadata.labels or {}
        self.uids[node.metadata.name] = node.metadata.uid or ""
        return self._shared_labels(tuple((key, labels[key]) for key in self._label_keys if key in labels))

    def _take_away(self, name: str, away: AwayNode | None) -> None:
        inputs = self._listener.inputs
        before = inputs.away.get(name)
        if not inputs.take_away(name, away):
            return
        self.stir()
        words = ["ready" if one is None else one.word for one in (before, away)]
        if inputs.is_of_fabric(name) and words[0] != words[1]:
            details = () if away is None else (away.detail,)
            self.changes.add([Change(time.time(), "node", name, words[0], words[1], details, node=name)])

    def _take_maintenance(self, node: str, text: str | None) -> None:
        book = self._listener.inputs.maintenance
        if not book.take(node, text):
            return
        if fault := book.faults.get(node):
            log.warning(
                "The annotation %s of a Node is wrong. node=%s fault=%r", MAINTENANCE_LABEL, node, fault
            )
        self.stir()
        now, loop = time.time(), asyncio.get_running_loop()
        for _, entry in standing({node: book.of_node.get(node, ())}, now):
            loop.call_later(entry.end - now, self.stir)

    def _node_changed(self, name: str, _before: OurLabels | None, now: OurLabels | None) -> None:
        self.stir()
        if now is None:
            self.uids.pop(name, None)
        self._listener.node(name, None if now is None else dict(now))
        if now is None:
            self._take_maintenance(name, None)
            self._take_away(name, None)

    # --- HyperNodes ---------------------------------------------------------------------------------------

    def _take_hypernode(self, raw: RawHyperNode) -> str:
        meta = raw.metadata
        try:
            self._decoded[meta.name] = of(
                meta.name, meta.labels, meta.annotations, meta.resource_version, bytes(raw.spec)
            )
        except HyperNodeError:
            # Volcano cannot read it either: it has no members, and another owner must correct it.
            self._decoded[meta.name] = None
        return meta.resource_version or ""

    def _hypernode_changed(self, name: str, _before: str | None, now: str | None) -> None:
        self.stir()
        hypernode = self._decoded.pop(name, None)
        self._listener.hypernode(name, hypernode if now is not None else None)


def _decoded(raw: RawReport) -> NodeLinks:
    return NodeLinks(
        metadata=Metadata(name=raw.metadata.name),
        node_name=_NAME.decode(raw.node_name),
        links=_LINKS.decode(raw.links),
        nvlink_domains=_DOMAINS.decode(raw.nvlink_domains),
        gpus=_if_readable(_GPUS, raw.gpus)[:GPUS_MAX],
        holders=_if_readable(_VF_HOLDERS, raw.holders)[:PODS_MAX],
        compared=_compared(raw.compared),
    )


def _if_readable(decoder: msgspec.json.Decoder[tuple[T, ...]], raw: msgspec.Raw) -> tuple[T, ...]:
    """None if they are unreadable: the links of the report hold nevertheless."""
    try:
        return decoder.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return ()


def _compared(raw: msgspec.Raw) -> ComparedValues | None:
    """None if they are unreadable, as above."""
    try:
        return _VALUES.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
