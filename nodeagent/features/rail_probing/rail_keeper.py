"""The rails of the hall: keeps a RailPartners object for each node, and names the places that lose packets.

An object has the partners of a node (``rails.probe``) and its numbers (``rails.numbers``).

Rules:

* An object is written only if its content differs, at most ``PER_SECOND`` of them a second. Lists depend on cabling,
  addresses and tiers, never on the health of links: a fault writes nothing.
* What another one has edited or deleted is restored within ``RAILS_CHECK_S``. An object goes with its Node, which owns
  it, and is deleted when its node has no partners; if none has any, that is more often an error, and they stay.
* Places are judged every ``JUDGE_S``, apart from the plan, whose debounce would double the time until a dead link is
  named. Another place is shown at once, and new numbers of the evidence within ``PAUSE_S``.
* A new leader continues with the lists of its predecessor: the partners across are read from the objects.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import islice
from typing import Any

import msgspec

from nodeagent.base.bounded_calls import in_thread
from nodeagent.cluster.node_marks import NodeWrites
from nodeagent.fabric.hypernode import OURS, OWNER_LABEL
from nodeagent.fabric.node_numbers import NumberBook, Numbers, with_numbers
from nodeagent.fabric.outcome import Anomaly
from nodeagent.fabric.planner import Plan
from nodeagent.fabric.rail_anomalies import RailJudge, RailLists
from nodeagent.fabric.rail_partners import ACROSS, RailPartners, RailPartnersSpec, rail_partners_object
from nodeagent.fabric.rail_suspects import RailEnd
from nodeagent.features.rail_probing.rail_keeping_settings import FabricRailsSettings
from nodeagent.kube.client import ApiError
from nodeagent.kube.lease import NotLeading
from nodeagent.kube.resource import RAIL_PARTNERS, Meta, Partial, Resource, metadata
from nodeagent.topology.parts import ControllerCore

JUDGE_S, RAILS_CHECK_S, PAUSE_S = 5.0, 600.0, 60.0
PER_SECOND = 50.0
_AT_ONCE = 200
"""Lists that are made in one call of a thread."""
BUSY = 10
"""A judgement takes at most one part in so many of the time."""
_REFUSED_MAX = 50
"""So many refused lists are left out; more are not a fault of single reports, such as a missing right."""
OK, _GONE = 200, 404
_REFUSALS = (400, 403, 422)


_NOTHING_NUMBERED: tuple[None, Numbers, int] = None, {}, 0


class _Owner(msgspec.Struct):
    uid: str = ""


class _OwnedMeta(Meta, rename="camel"):
    owner_references: tuple[_Owner, ...] = ()


class StoredPartners(msgspec.Struct):
    """A RailPartners object whose content is not decoded yet."""

    metadata: _OwnedMeta
    spec: msgspec.Raw = msgspec.Raw(b"{}")


class RailKeeper:
    """Keeps the objects and judges, as the leader. ``writes`` counts by verb and result."""

    def __init__(self, core: ControllerCore, settings: FabricRailsSettings) -> None:
        self._core, self._client, self._planner = core, core.writer, core.planner
        self._uids = core.mirror.uids
        self._settings = settings
        self.watch = RailJudge(settings.per_second)
        self._book = NumberBook()
        self._numbered: tuple[Plan | None, Numbers, int] = _NOTHING_NUMBERED
        """The numbers, the plan that they were given for, and a digest of the Nodes of then."""
        self._listed = asyncio.Event()
        """The lists are of a plan of the present leader."""
        self._leads = False
        self._writes = NodeWrites("RailPartners cannot be kept", PER_SECOND)
        self._stored: dict[str, tuple[int, str | None]] = {}
        """A digest of the content and its owner, and the version, of each object."""
        self._refused: dict[str, int] = {}
        """A digest of the content that the API server has refused: the same is sent again after ``RAILS_CHECK_S``."""
        self.writes: Counter[tuple[str, str]] = Counter()

    @property
    def legs(self) -> dict[str, int]:
        """The legs that the lists name, by state: good, or bad for those that lose packets. The leader's alone."""
        if not self._leads:
            return {}
        count, bad = len(self.watch.lists.checked.legs), self.watch.bad
        return {"good": max(0, count - bad), "bad": bad}

    async def lead(self) -> None:
        """Keep the lists and judge until cancelled."""
        self.watch.forget_times()
        self._leads, self._numbered = True, _NOTHING_NUMBERED
        self._listed.clear()
        try:
            while True:
                if await self._read():
                    break
                await asyncio.sleep(PAUSE_S)
            async with asyncio.TaskGroup() as group:
                if self._settings.probe:
                    group.create_task(self._judge())
                group.create_task(self._keep())
        finally:
            self._leads = False
            self._planner.rails(())

    def _show(self) -> None:
        """Show where rails lose packets without waiting for a plan, which follows."""
        if (outcome := self._core.plans.outcome) is not None:
            self._core.plans.show(self._planner.with_rails(outcome))
        self._core.mirror.stir()

    async def _judge(self) -> None:
        loop, known, shown_at = asyncio.get_running_loop(), None, 0.0
        texts: tuple[Anomaly, ...] = ()
        while True:
            began, plan = loop.time(), self._core.plans.last
            if plan is not None and plan is not known:
                await in_thread(partial(self.watch.plan, plan))
                known = plan
                self._listed.set()
            inputs = self._planner.inputs
            reports, faults = inputs.reports.copy(), inputs.faults.of_node.copy()
            anomalies = await in_thread(partial(self.watch.judge, reports, began, faults))
            others = self._planner.rails(anomalies)
            if others or (anomalies != texts and began >= shown_at + PAUSE_S):
                texts, shown_at = anomalies, began
                self._show()
            await asyncio.sleep(max(JUDGE_S, BUSY * (loop.time() - began)))

    # --- the objects --------------------------------------------------------------------------------------

    async def _keep(self) -> None:
        loop = asyncio.get_running_loop()
        kept: tuple[RailLists, Numbers, int] | None = self.watch.lists, {}, 0
        read_at = loop.time()
        # What is not known yet must not be taken from the objects.
        await (self._listed.wait() if self._settings.probe else self._core.plans.first())
        while True:
            try:
                if loop.time() >= read_at + RAILS_CHECK_S:
                    kept, read_at = None, loop.time()
                    await self._compare()
                numbers, owners = await self._numbers()
                lists = self.watch.lists
                done = kept is not None and kept[0] is lists and kept[1:] == (numbers, owners)
                if not done and await self._write(lists, numbers):
                    kept, done = (lists, numbers, owners), True
                await asyncio.sleep(JUDGE_S if done else PAUSE_S)
            except NotLeading:
                await asyncio.Event().wait()  # until this task is cancelled

    async def _numbers(self) -> tuple[Numbers, int]:
        """Those of the last plan, with a digest of the Nodes; none before the first, nor without the setting."""
        plan = self._core.plans.last
        if plan is not None and plan is not self._numbered[0]:
            reports, nodes, numbers = plan.levels.reports, self._uids.copy(), _NOTHING_NUMBERED[1]
            if self._settings.numbers:
                numbers = await in_thread(partial(self._book.assign, reports, nodes))
            self._numbered = plan, numbers, hash(frozenset(nodes.items()))
        return self._numbered[1:]

    async def _read(self) -> bool:
        """Read all objects, and the partners across in them. False: they cannot be read now."""

        def take(stored: StoredPartners) -> None:
            node, version = stored.metadata.name, stored.metadata.resource_version
            try:
                spec = _SPECS.decode(stored.spec)
            except msgspec.MsgspecError:
                self._stored[node] = 0, version  # it is written again
                return
            owner = next((one.uid for one in stored.metadata.owner_references), "") or self._uids.get(
                node, ""
            )
            self._stored[node] = _digest(spec, owner), version
            self._book.adopt(node, spec.numbers)
            for rail in spec.rails:
                far = (RailEnd(one.node, one.nic) for one in rail.probe if one.scope == ACROSS)
                self.watch.across.update((RailEnd(node, rail.rail), end) for end in far)

        def restart() -> None:
            self._stored.clear()
            self._book.clear()

        restart()
        return await self._list(RAIL_PARTNERS.typed(StoredPartners), take, restart)

    async def _compare(self) -> None:
        """Forget what differs from what was written, and what was refused."""
        self._refused.clear()
        found: dict[str, str | None] = {}

        def take(stored: Partial) -> None:
            found[stored.metadata.name] = stored.metadata.resource_version

        if await self._list(RAIL_PARTNERS.partial, take, found.clear):
            self._stored = {
                name: (self._stored[name][0] if self._stored.get(name, (0, ""))[1] == version else 0, version)
                for name, version in found.items()
            }

    async def _list(
        self, resource: Resource[Any], take: Callable[[Any], None], restart: Callable[[], None]
    ) -> bool:
        try:
            await self._client.list_each(resource, take, restart)
        except ApiError as error:
            self._writes.failures.failed(error, node="*")
            return False
        return True

    async def _write(self, lists: RailLists, numbers: Numbers) -> bool:
        """Write what differs. False: some writes failed, and the rest waits."""
        every, seen = iter(with_numbers(lists.each(), numbers)), set[str]()
        uids = self._uids

        def some() -> list[tuple[RailPartners, int]]:
            return [
                (one, _digest(one.spec, uids.get(one.metadata.name or "", "")))
                for one in islice(every, _AT_ONCE)
            ]

        while chunk := await in_thread(some):
            for partners, digest in chunk:
                name = partners.metadata.name or ""
                seen.add(name)
                if self._stored.get(name, (0, None))[0] == digest or name not in self._uids:
                    continue
                if self._refused.get(name) == digest:
                    continue
                status = await self._send("apply", name, partial(self._apply, partners, digest))
                if status in _REFUSALS and len(self._refused) < _REFUSED_MAX:
                    self._refused[name] = digest  # it must not keep the lists of the others back
                elif status != OK:
                    return False
        for name in [name for name in self._stored if seen and name not in seen]:
            if await self._send("delete", name, partial(self._client.delete, RAIL_PARTNERS, name)) not in (
                OK,
                _GONE,
            ):
                return False
            del self._stored[name]
        return True

    async def _send(self, verb: str, name: str, write: Callable[[], Awaitable[object]]) -> int | None:
        """Return the HTTP status; ``None``: there was no complete answer."""
        await self._writes.turn()
        result, error = await self._writes.send(name, write())
        self.writes[verb, result] += 1
        text = result if error is None else str(error)
        self._core.write_log.add(verb, f"RailPartners {name}", "it follows the reports", text)
        return error.status if error is not None else _GONE if result == "gone" else OK

    async def _apply(self, partners: RailPartners, digest: int) -> None:
        body = rail_partners_object(partners)
        name = body["metadata"]["name"]
        owner = {"apiVersion": "v1", "kind": "Node", "name": name, "uid": self._uids[name]}
        body["metadata"] = {"name": name, "labels": {OWNER_LABEL: OURS}, "ownerReferences": [owner]}
        written = await self._client.apply(RAIL_PARTNERS, body)
        self._stored[name] = digest, metadata(written).resource_version


_SPECS = msgspec.json.Decoder(RailPartnersSpec)


def _digest(spec: RailPartnersSpec, owner: str) -> int:
    """``owner`` is the UID of the Node: the object goes with a Node that is made again under its name."""
    return hash((msgspec.json.encode(spec), owner))
