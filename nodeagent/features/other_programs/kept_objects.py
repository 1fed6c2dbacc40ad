"""Objects for other programs that follow the tree: a ConfigMap with Slurm's topology, NFD's groups of nodes, and an
annotation of our HyperNodes with the nodes in trouble.

Rules:

* Each change makes slurmctld read its configuration again, or NFD match all nodes. So an object is written only when
  its content differs, and the objects of a kind at most once in ``KEPT_PAUSE_S``. A text that comes and goes with the
  health of links is in none of them.
* Of the HyperNodes at most ``AT_ONCE`` get another annotation in this time, those first that have waited for longest:
  Volcano rebuilds a part of its tree at each write, and links of all nodes may flap.
* A tree without nodes changes nothing: it is more often an error than the wish to empty another program's file.
* What is no longer kept stays, because the right to the former namespace may be gone. A line names its removal.
* What another one has edited or deleted is restored within ``KEPT_CHECK_S``. Objects of another owner stay as they are.
* A kind that cannot be written delays neither the tree nor the other kind, and costs one call in ``KEPT_PAUSE_S``.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from nodeagent.base.bounded_calls import in_thread
from nodeagent.cluster.retry import FailureLog
from nodeagent.fabric.fabric_settings import FabricName
from nodeagent.fabric.hypernode import LEAF, OURS, OWNER_LABEL, labels_of
from nodeagent.fabric.node_lists import NodeLists, NoDomainsError, expanded
from nodeagent.fabric.outcome import PlanOutcome, in_trouble
from nodeagent.features.other_programs.kept_settings import SlurmSettings
from nodeagent.kube.client import ApiClient, ApiError
from nodeagent.kube.lease import NotLeading
from nodeagent.kube.resource import HYPERNODES, Json, Resource, metadata
from nodeagent.topology.write_log import WriteLog

log = logging.getLogger(__name__)

KEPT_PAUSE_S, KEPT_CHECK_S = 60.0, 600.0
AT_ONCE = 10
TROUBLE = "nodeagent.io/trouble"
SLURM_CONFIG_MAP = "nodeagent-slurm-topology"
CONFIG_MAP_MAX = 1024 * 1024
"""Bytes of all values of a ConfigMap: the API server refuses more."""
_FORMS = {
    "tree": ("slurm", "topology.conf"),
    "block": ("slurm-block", "topology.conf"),
    "yaml": ("slurm-yaml", "topology.yaml"),
}
"""The form of ``NodeLists`` and the name of Slurm's file, by ``slurm.format``."""


CONFIG_MAPS: Resource[Json] = Resource("", "v1", "configmaps", "ConfigMap", True, dict)
NODE_FEATURE_GROUPS: Resource[Json] = Resource(
    "nfd.k8s-sigs.io", "v1alpha1", "nodefeaturegroups", "NodeFeatureGroup", True, dict
)
ANNOTATED = replace(HYPERNODES, metadata_only=True)
BOTH = (CONFIG_MAPS, NODE_FEATURE_GROUPS)
WRITTEN = {"create": BOTH, "patch": (*BOTH, ANNOTATED), "delete": (NODE_FEATURE_GROUPS,)}
"""By verb. The one ConfigMap is never deleted."""

Wanted = Callable[[PlanOutcome], Mapping[str, Json] | None]
"""The objects that a plan leads to, by name; ``None``: what there is stays."""


def slurm_topology(
    settings: SlurmSettings, fabric: FabricName, outcome: PlanOutcome
) -> dict[str, Json] | None:
    """The ConfigMap with Slurm's file. Raises ``ApiError`` for one that the API server would refuse in any case."""
    lists = NodeLists(outcome, fabric, frozenset(expanded(settings.nodes)) if settings.nodes else None)
    form, file = _FORMS[settings.format]
    if lists.is_empty:
        return None
    try:
        text = lists.written(form, comments=False)
    except NoDomainsError:
        log.warning("Slurm's blocks are not written: no NVLink domain is known. setting=tiers.nvlink")
        return None
    if (size := len(text.encode()) + 1) > CONFIG_MAP_MAX:
        message = f"Slurm's topology has {size} bytes, a ConfigMap holds {CONFIG_MAP_MAX}"
        remedy = (
            f"name the nodes that Slurm knows in slurm.nodes, or take slurm out of outputs and write {file} beside "
            f"slurmctld with nodeagent topology --format {form}"
        )
        raise ApiError("write", SLURM_CONFIG_MAP, None, "TooLarge", message, remedy=remedy)
    labels = {OWNER_LABEL: OURS}
    return {SLURM_CONFIG_MAP: {"metadata": {"labels": labels}, "data": {file: f"{text}\n"}}}


def node_feature_groups(fabric: FabricName, outcome: PlanOutcome) -> dict[str, Json] | None:
    """A NodeFeatureGroup for each leaf group. Its rule lists the nodes by the name that NFD's worker reports."""

    def group(name: str, nodes: tuple[str, ...]) -> Json:
        terms = {"nodename": {"op": "In", "value": [*nodes]}}
        rule = {
            "name": f"nodes of {name}",
            "matchFeatures": [{"feature": "system.name", "matchExpressions": terms}],
        }
        return {"metadata": {"labels": dict(labels_of(fabric, LEAF))}, "spec": {"featureGroupRules": [rule]}}

    leaves = NodeLists(outcome, fabric).leaves()
    return {name: group(name, nodes) for name, nodes in leaves.items() if nodes} or None


def trouble_annotations(outcome: PlanOutcome) -> dict[str, Json]:
    """The annotation of each HyperNode: how many of its nodes are in trouble, and why; names change too often."""
    wanted = {hypernode.name: hypernode for hypernode in outcome.hypernodes}

    def text(name: str) -> str | None:
        count, found = in_trouble(wanted, outcome.reports, name)
        several = {node for nodes in found.values() for node in nodes}
        why = ", ".join(f"{state} {len(nodes)}" for state, nodes in sorted(found.items()))
        return f"{len(several)} of {count} nodes: {why}" if several else None

    return {name: {"metadata": {"annotations": {TROUBLE: text(name)}}} for name in wanted}


class KeptObjects:
    """Keeps the objects of one kind, in one ``namespace`` if they have any. ``only``: the name, if there is one object.

    HyperNodes are only annotated."""

    def __init__(
        self, client: ApiClient, write_log: WriteLog, resource: Resource[Json], namespace: str | None, wanted: Wanted,
        only: str = "",
    ) -> None:  # fmt: skip
        self._client, self._resource, self._namespace = client, resource, namespace
        self._wanted, self._write_log, self._only = wanted, write_log, only
        self._failures = FailureLog(f"A {resource.kind} for another program cannot be kept")
        self._written: dict[str, float] = {}

    @property
    def removal(self) -> str:
        """The command that removes all that this one has written."""
        if self._resource is ANNOTATED:
            return f"kubectl annotate hypernodes --selector {OWNER_LABEL}={OURS} {TROUBLE}-"
        which = self._only or f"--selector {OWNER_LABEL}={OURS}"
        return f"kubectl delete {self._resource.plural} --namespace {self._namespace} {which}"

    async def run(self, latest: Callable[[], PlanOutcome | None]) -> None:
        """Keep the objects of the ``latest`` plan until cancelled."""
        loop, kept, checked_at = asyncio.get_running_loop(), None, 0.0
        while True:
            outcome = latest()
            if outcome is not None and (outcome is not kept or loop.time() >= checked_at + KEPT_CHECK_S):
                try:
                    if await self._keep(outcome):
                        kept, checked_at = outcome, loop.time()
                    self._failures.succeeded()
                except ApiError as error:
                    self._failures.failed(error, namespace=self._namespace or "")
                except NotLeading:
                    await asyncio.Event().wait()  # until this task is cancelled
            await asyncio.sleep(KEPT_PAUSE_S)

    async def _keep(self, outcome: PlanOutcome) -> bool:
        """False: the rest must wait. Raises ``ApiError``, after the writes that are possible."""
        wanted = await in_thread(partial(self._wanted, outcome))
        if wanted is None:
            return True
        stored = await self._read()
        names = wanted.keys() | stored.keys()
        if self._resource is ANNOTATED:
            names = wanted.keys() & stored.keys()
        due = [name for name in sorted(names) if not _same(wanted.get(name), stored.get(name))]
        due.sort(key=lambda name: self._written.get(name, 0.0))
        failed: ApiError | None = None
        for name in due[:AT_ONCE] if self._resource is ANNOTATED else due:
            body, known = wanted.get(name), stored.get(name)
            verb = "delete" if body is None else "create" if known is None else "patch"
            self._written[name], result = time.monotonic(), "ok"
            try:
                await self._write(name, body, known)
            except ApiError as error:
                failed, result = error, str(error)
            place = "/".join(filter(None, (self._namespace, name)))
            self._write_log.add(verb, f"{self._resource.kind} {place}", "it follows the tree", result)
            if failed is not None and not failed.conflict:
                break  # the others mostly fail as well; those that wait come first in the next round
        if failed is not None:
            raise failed
        return self._resource is not ANNOTATED or len(due) <= AT_ONCE

    async def _read(self) -> dict[str, Json]:
        """Our objects by name."""
        try:
            if self._only:
                found = [await self._client.get(self._resource, self._only, namespace=self._namespace)]
            else:
                labels = f"{OWNER_LABEL}={OURS}"
                found = (
                    await self._client.list(self._resource, namespace=self._namespace, labels=labels)
                ).items
        except ApiError as error:
            if not (error.missing and self._only):
                raise
            return {}
        every = [(metadata(one), one) for one in found]
        return {meta.name: one for meta, one in every if (meta.labels or {}).get(OWNER_LABEL) == OURS}

    async def _write(self, name: str, body: Json | None, stored: Json | None) -> None:
        """An object of another owner is refused as existing already."""
        if body is None:
            await self._client.delete(self._resource, name, namespace=self._namespace)
        elif stored is None:
            named = body | {"metadata": body["metadata"] | {"name": name}}
            await self._client.create(self._resource, named, namespace=self._namespace)
        else:
            if "data" in body:
                body = body | {"data": dict.fromkeys(stored.get("data") or ()) | body["data"]}
            await self._client.patch(self._resource, name, body, namespace=self._namespace)
        log.info("An object for another program is written. kind=%s name=%s", self._resource.kind, name)


def _same(body: Json | None, stored: Json | None) -> bool:
    """The stored object has all fields of the body, and in ``data`` no other ones."""
    if body is None or stored is None:
        return False
    if "data" in body:
        return bool(stored.get("data") == body["data"])
    return all(
        _same(value, stored.get(part) or {}) if isinstance(value, dict) else stored.get(part) == value
        for part, value in body.items()
    )
