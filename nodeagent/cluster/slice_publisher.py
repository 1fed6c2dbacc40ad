"""Publish the GPUs and PFs that claims allocate as this node's ResourceSlices, and keep them there.

Rules:

* The slices are a level: own slices are listed and watched, compared with the facts, and written where they differ. In
  a steady state nothing is written, also after a restart of the agent.
* The kubelet deletes all slices of its node when it starts. A deleted slice is written again at once. After several
  deletions it is written every ``DELETED_GAP_S``.
* A slice of our driver on this node that no agent has made is another driver's with our name. It is told before it is
  deleted, once, and all of these together are deleted every ``DELETED_GAP_S``: that driver deletes ours, without end.
* Changes of one slice are at least ``GAP_S`` apart; the first one is written at once.
* Slices of a pool whose facts are not known yet stay as they are. SIGTERM deletes nothing.
* The server may lack a feature and drop its fields. This is logged once, and such a slice is not written again.
* Below Kubernetes ``FLOOR`` nothing is written.
* The last answer to an own write counts until the watch, or a list of this version or later, has shown it.
* No change of the facts is awaited while nothing may be written: it stays news until the next write looks at it, and
  the wait for it would end at once, again and again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress

from nodeagent.base.backoff import RateLimit, jittered
from nodeagent.base.supervise import either
from nodeagent.cluster.deliveries import Deliveries, Delivery
from nodeagent.cluster.node_marks import LEAF_GROUP_LABEL
from nodeagent.cluster.retry import ApiRetry
from nodeagent.dra import DRIVER
from nodeagent.dra.device_attributes import NUMA_NODES
from nodeagent.dra.published_pools import PublishedPools, SlicePools
from nodeagent.dra.slice_layout import (
    AnsweredDevices,
    SliceWrite,
    dropped_fields,
    generation_of,
    is_ours,
    members_of,
    wanted_slices,
    writes,
)
from nodeagent.kube.access import NodeClaim
from nodeagent.kube.client import ApiClient, ApiError
from nodeagent.kube.reflector import Reflector
from nodeagent.kube.resource import NODES, RESOURCE_SLICES, Json, Meta, metadata
from nodeagent.kube.server_version import server_version

log = logging.getLogger(__name__)

FLOOR = (1, 36)
"""The first version whose defaults have consumable capacity, taints and the mapping of resource names."""
FLOOR_CHECK_S = 600.0
GAP_S = 3.0
BURST = 2
DELETED_BURST, DELETED_GAP_S = 4, 30.0
LOOK_S = 300.0
"""How often the facts are compared without any change."""
CONFLICTS_MAX = 3
"""After so many in a row the reason is logged, and the next attempts wait longer: another client has the name."""
LACKING = "mode dra needs resource.k8s.io/v1, which the API server does not serve"
LEAF_GROUP_READ_S = 600.0
"""The controller damps the label."""
FOREIGN_S = 600.0
"""For how long slices of another driver are told of after the last one."""
REMEMBERED_S = 60.0
"""How long the answer to a write counts although the watch does not show it."""


class SlicePublisher:
    """Keep this node's slices. ``pools`` makes the devices. ``owner`` is the Node; ``None``: read it from the API."""

    def __init__(
        self,
        client: ApiClient,
        node: str,
        pools: PublishedPools,
        *,
        owner: NodeClaim | None = None,
        delivery: Delivery | None = None,
        gap_s: float = GAP_S,
        deleted_gap_s: float = DELETED_GAP_S,
        floor_check_s: float = FLOOR_CHECK_S,
    ) -> None:
        self._client, self._node, self._pools = client, node, pools
        self._owner = owner
        self._delivery = delivery or Deliveries().of("slices")
        self._retry = ApiRetry("The ResourceSlices do not reach the API server", self._delivery)
        self._gap_s, self._deleted_gap_s, self._floor_check_s = gap_s, deleted_gap_s, floor_check_s
        self._wake = asyncio.Event()
        self._changes: dict[str, RateLimit] = {}
        self._created: dict[str, RateLimit] = {}
        self._foreign = RateLimit(DELETED_BURST, 1 / deleted_gap_s)
        """One for all: another driver may give each of its slices a new name."""
        self._foreign_until = 0.0
        self._gone: dict[str, str] = {}
        """The UID of each slice that this agent has deleted, by name, until the watch has shown it."""
        self._answers: dict[str, tuple[Json, float]] = {}
        """The slices as the server has answered our last writes, and when, until the watch has shown them."""
        self._deleted: set[str] = set()
        """The UIDs of slices whose deletion the watch has shown, perhaps before the answer to their creation."""
        self._answered: dict[str, AnsweredDevices] = {}
        self._generations: dict[str, int] = {}
        self._dropped: frozenset[str] = frozenset()
        self._conflicts = 0
        """In a row."""
        self._reflector: Reflector[Json] = Reflector(
            client,
            RESOURCE_SLICES,
            fields=f"spec.nodeName={node},spec.driver={DRIVER}",
            changed=self._changed,
            optional=self._wake.set,
            listed=self._wake.set,
        )

    @property
    def stored(self) -> dict[str, Json]:
        """Our slices on the API server, by name, as far as they are known."""
        stored = {
            name: obj
            for name, obj in self._reflector.objects.items()
            if self._gone.get(name) != obj["metadata"].get("uid")
        }
        for name, (answer, _) in self._answers.items():
            if name not in stored or _version(stored[name]) < _version(answer):
                stored[name] = answer
        return stored

    async def run(self) -> None:
        """Publish until cancelled."""
        await self._wait_for_floor()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._reflector.run(), name="slices watch")
            await self._reflector.synced.wait()
            while True:
                await asyncio.sleep(self._retry.wait_s(time.monotonic()))
                self._wake.clear()
                if lacking := self._reflector.lacking:
                    self._delivery.unmet(LACKING)
                wait_s = LOOK_S if lacking else await self._publish()
                facts = () if lacking else (self._pools.changed(),)
                await either(self._wake.wait(), *facts, timeout_s=wait_s)

    async def _wait_for_floor(self) -> None:
        """Return when the API server is new enough. Otherwise the log has one line."""
        logged = False
        while True:
            try:
                version = await server_version(self._client)
            except ApiError as error:
                await asyncio.sleep(self._retry.failed(error, time.monotonic()))
                continue
            if version >= FLOOR:
                return
            if not logged:
                self._delivery.unmet(
                    f"mode dra needs Kubernetes {_dotted(FLOOR)}, and the API server has {_dotted(version)}"
                )
                log.error(
                    "No ResourceSlices: mode dra needs a newer Kubernetes; set mode devicePlugin. needed=%s found=%s",
                    _dotted(FLOOR),
                    _dotted(version),
                )
            logged = True
            await asyncio.sleep(jittered(self._floor_check_s))

    async def _publish(self) -> float:
        """Write what differs. Return the seconds until there is more to do."""
        now = time.monotonic()
        listed = _number(self._reflector.list_version)
        self._answers = {
            name: (answer, at)
            for name, (answer, at) in self._answers.items()
            if now - at < REMEMBERED_S and _version(answer) > listed
        }
        self._deleted.clear()
        stored = self.stored
        self._tell_of_foreign(stored, now)
        pools = self._pools.pools(tuple(stored.values()))
        by_pool: dict[str, list[SliceWrite]] = {}
        for write in self._planned(pools, stored):
            by_pool.setdefault(write.pool, []).append(write)
        complete = set(pools.devices.keys() - by_pool.keys())
        refused: set[str] = set()
        waits_s = [LOOK_S, *([REMEMBERED_S] if self._answers or by_pool else [])]
        wrote, failure = False, None
        for pool, due in by_pool.items():
            if (wait_s := max(self._wait_s(write, now) for write in due)) > 0:
                waits_s.append(wait_s)
                continue
            try:
                for write in due:
                    await self._write(write, stored)
                wrote = True
                complete.add(pool)
            except ApiError as error:
                if self._gave_up_lists(error):
                    return 0.0
                failure = error
                if error.refused or error.status == 403:
                    refused.add(pool)
                if error.conflict or error.missing:
                    self._answers.pop(write.name, None)
                if not error.refused:
                    break  # the other pool would meet the same
        self._delivery.published = (self._delivery.published | complete) - refused
        if failure is not None:
            return self._failed(failure, time.monotonic())
        self._conflicts = 0
        if wrote or self._retry.reason is not None:
            self._retry.succeeded(sorted(self._dropped))
        return min(waits_s)

    def _gave_up_lists(self, error: ApiError) -> bool:
        """Whether the server refuses the lists of NUMA nodes, and is to get one number from now on."""
        if not self._pools.near_nodes or not any(NUMA_NODES[0] in cause.field for cause in error.causes):
            return False
        self._pools.near_nodes = {}
        log.warning(
            "The API server stores no lists in ResourceSlices: its feature gate DRAListTypeAttributes is off. NUMA "
            "nodes are published as one number; set cluster.numaNodeList to false."
        )
        return True

    def _planned(self, pools: SlicePools, stored: Mapping[str, Json]) -> list[SliceWrite]:
        wanted = wanted_slices(self._node, pools.devices, pools.counters)
        planned = list(
            writes(
                self._node,
                wanted,
                stored,
                kept_pools=pools.unknown,
                generations=self._generations,
                answered=self._answered,
            )
        )
        names = {write.name for write in planned}
        disowned = (
            name for name in wanted if name in stored and name not in names and self._disowned(stored[name])
        )
        return [*planned, *(SliceWrite("patch", name, wanted[name].pool) for name in disowned)]

    def _wait_s(self, write: SliceWrite, now: float) -> float:
        return self._rate(write).wait_s(now)

    def _tell_of_foreign(self, stored: Mapping[str, Json], now: float) -> None:
        """Log the first slice of another driver that has our name, and remark it for ``FOREIGN_S`` after the last."""
        foreign = sorted(name for name in stored if not is_ours(name))
        if foreign:
            told = self._delivery.remark is not None
            self._foreign_until = now + FOREIGN_S
            self._delivery.remark = (
                f"another DRA driver publishes ResourceSlices of the driver {DRIVER} for this node, such as "
                f"{foreign[0]!r}: the agent deletes them, and that driver may delete the agent's; remove the other one"
            )
            if not told:
                log.error("The name of the DRA driver is taken. reason=%r", self._delivery.remark)
        elif self._delivery.remark is not None and now >= self._foreign_until:
            self._delivery.remark = None
            log.info("No other DRA driver publishes ResourceSlices of the name any more. driver=%s", DRIVER)

    def _rate(self, write: SliceWrite) -> RateLimit:
        if not is_ours(write.name):
            return self._foreign
        if write.verb == "create":
            return self._created.setdefault(write.name, RateLimit(DELETED_BURST, 1 / self._deleted_gap_s))
        return self._changes.setdefault(write.name, RateLimit(BURST, 1 / self._gap_s))

    async def _write(self, write: SliceWrite, stored: Mapping[str, Json]) -> None:
        """Send one write. Raises ``ApiError``."""
        name = write.name
        self._rate(write).take(time.monotonic())
        if write.verb == "delete":
            await self._delete(name, metadata(stored[name]))
            return
        body: Json = {"metadata": {"name": name} | await self._owners()}
        if write.spec:
            body["spec"] = write.spec
        if write.verb == "create":
            answer = await self._client.create(RESOURCE_SLICES, body)
        else:
            body["metadata"]["resourceVersion"] = metadata(stored[name]).resource_version
            answer = await self._client.patch(RESOURCE_SLICES, name, body)
        if answer["metadata"]["uid"] not in self._deleted:
            self._answers[name] = answer, time.monotonic()
        if write.spec:
            self._generations[write.pool] = generation_of(answer)
            self._answered[name] = AnsweredDevices(members_of(write.spec), members_of(answer["spec"]))
            self._log_dropped(dropped_fields(write.spec, answer["spec"]))

    async def _delete(self, name: str, meta: Meta) -> None:
        self._gone[name] = meta.uid or ""
        self._answers.pop(name, None)
        try:
            await self._client.delete(
                RESOURCE_SLICES, name, uid=meta.uid, resource_version=meta.resource_version
            )
        except ApiError as error:
            if not error.missing:
                del self._gone[name]
                raise

    def _log_dropped(self, dropped: set[str]) -> None:
        """Log the fields that the server does not store; they mean that one of its features is off."""
        if new := dropped - self._dropped:
            log.error(
                "The API server drops fields of the ResourceSlices: a feature gate of it is off. fields=%s",
                ",".join(sorted(new)),
            )
        self._dropped |= dropped

    def _failed(self, error: ApiError, now: float) -> float:
        """Return the seconds until the next attempt. After a conflict the slices are listed again at once."""
        if error.conflict or error.missing:
            self._delivery.results["conflict"] += 1
            self._reflector.doubt()
            self._conflicts += 1
            if self._conflicts <= CONFLICTS_MAX:
                return self._gap_s
        return self._retry.failed(error, now)

    async def _owners(self) -> Json:
        """The Node as the owner, so that the slices are deleted with it; nothing if the Node may not be read."""
        if self._owner is None:
            try:
                meta = metadata(await self._client.get(NODES.partial, self._node))
            except ApiError as error:
                if error.status not in (403, 404):
                    raise
                return {}
            self._owner = NodeClaim(self._node, meta.uid or "")
        return {"ownerReferences": [{
            "apiVersion": "v1", "kind": "Node", "name": self._owner.name, "uid": self._owner.uid,
            "controller": True,
        }]}  # fmt: skip

    def _disowned(self, obj: Json) -> bool:
        """Whether the stored slice belongs to an earlier Node of this name: it would be deleted with that."""
        owners = obj["metadata"].get("ownerReferences") or ()
        return self._owner is not None and all(owner.get("uid") != self._owner.uid for owner in owners)

    def _changed(self, name: str, before: Json | None, now: Json | None) -> None:
        """The watch has shown a change."""
        answer = self._answers[name][0] if name in self._answers else None
        if now is None:
            uid = (before or {}).get("metadata", {}).get("uid", "")
            self._deleted.add(uid)
            if self._gone.get(name) == uid:
                del self._gone[name]
            elif answer is None or answer["metadata"].get("uid") == uid:
                self._answers.pop(name, None)
                self._delivery.removed += 1
                log.info("A ResourceSlice was deleted by another client; it is written again. name=%s", name)
        elif answer is not None and _version(now) >= _version(answer):
            del self._answers[name]
        self._wake.set()


class LeafGroupLabel:
    """The leaf group of this node, from the label that the controller keeps on the Node: only the controller has the
    reports of all nodes, which show the leaf switches that belong together.

    ``value`` is ``None`` while it is not known. ``changed`` receives another one.
    """

    def __init__(
        self,
        client: ApiClient,
        node: str,
        changed: Callable[[str | None], None],
        read_s: float = LEAF_GROUP_READ_S,
    ) -> None:
        self.value: str | None = None
        self._client, self._node, self._changed, self._read_s = client, node, changed, read_s

    async def run(self) -> None:
        """Read it until cancelled. Without an answer, or without the right to read Nodes, the last value stays."""
        while True:
            with suppress(ApiError):
                labels = metadata(await self._client.get(NODES.partial, self._node)).labels or {}
                value = labels.get(LEAF_GROUP_LABEL)
                if value != self.value:
                    self.value = value
                    self._changed(value)
            await asyncio.sleep(jittered(self._read_s))


def _version(obj: Json) -> int:
    """The resource version as a number (KEP-5504: versions of one resource may be compared)."""
    return _number(str(obj["metadata"].get("resourceVersion", "")))


def _number(version: str) -> int:
    return int(version) if version.isdigit() else 0


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))
