"""The cluster as the API server has it, told to a planner: reports, Nodes and HyperNodes.

The law of this file:

* What is kept here of an object is the little that tells whether it has changed; what it says is the planner's,
  told as it is read. A hundred thousand reports would be most of a gigabyte as objects.
* One object that cannot be read is refused by its name and takes nothing else along.
* Of a Node only its metadata is asked for, and only labels that we may write are passed on.
* A watch can fall silent without ending, and the picture with it. What is to be written on it is worth a list of
  the versions first: each write names the version of one object, and the tree's rules are about all of them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Protocol

import msgspec

from nodeagent.fabric.hypernode import HyperNode, HyperNodeError, of
from nodeagent.fabric.nodelinks import Metadata, NodeLink, NodeLinks
from nodeagent.kube.client import Client
from nodeagent.kube.reflector import Reflector
from nodeagent.kube.resource import HYPERNODES, NODELINKS, NODES, Meta, Partial

log = logging.getLogger(__name__)


class Listener(Protocol):
    """``fabric.Planner``, as far as it is told what is."""

    def report(self, name: str, links: NodeLinks | None) -> None: ...
    def refuse(self, name: str, why: str) -> None: ...
    def node(self, name: str, labels: Mapping[str, str] | None) -> None: ...
    def hypernode(self, name: str, hypernode: HyperNode | None) -> None: ...


class RawReport(msgspec.Struct, rename="camel"):
    """A NodeLinks whose parts may be anything."""

    metadata: Meta
    node_name: msgspec.Raw = msgspec.Raw(b'""')
    links: msgspec.Raw = msgspec.Raw(b"[]")


class RawHyperNode(msgspec.Struct):
    metadata: Meta
    spec: msgspec.Raw = msgspec.Raw(b"{}")


SeenNode = tuple[tuple[str, str], ...]
"""The labels of a Node that we may write, by key."""

_NAME = msgspec.json.Decoder(str)
_LINKS = msgspec.json.Decoder(tuple[NodeLink, ...])


class Cluster:
    """The three copies. ``revision`` grows with each difference."""

    def __init__(self, client: Client, namespace: str, listener: Listener, label_keys: Iterable[str]) -> None:
        self.revision = 0
        self._client = client
        self._waiters: list[asyncio.Future[None]] = []
        self._listener = listener
        self._prefixes = tuple(key.partition("{")[0] for key in label_keys)
        self._marks: dict[str, int] = {}
        self._hypernodes: dict[str, HyperNode | None] = {}
        self.reports: Reflector[bool] = Reflector(
            client,
            NODELINKS.typed(RawReport),
            namespace=namespace,
            take=self._take_report,
            changed=self._report,
        )
        self.nodes: Reflector[SeenNode] = Reflector(
            client, NODES.partial, take=self._take_node, changed=self._node
        )
        self.hypernodes: Reflector[str] = Reflector(
            client, HYPERNODES.typed(RawHyperNode), take=self._take_hypernode, changed=self._hypernode
        )

    def parts(self) -> dict[str, Reflector[bool] | Reflector[SeenNode] | Reflector[str]]:
        return {"nodelinks": self.reports, "nodes": self.nodes, "hypernodes": self.hypernodes}

    def jobs(self) -> dict[str, Callable[[], Awaitable[None]]]:
        """What keeps the copies, by name. Nodes come last: their labels say what the HyperNodes have said."""

        async def nodes() -> None:
            await self.hypernodes.synced.wait()
            await self.nodes.run()

        return {"nodelinks": self.reports.run, "nodes": nodes, "hypernodes": self.hypernodes.run}

    async def synced(self) -> None:
        """Return when each copy has been whole once: what is absent before that is only unknown."""
        for part in self.parts().values():
            await part.synced.wait()

    async def caught_up(self, versions: Mapping[str, str | None], timeout_s: float) -> bool:
        """Return when the copy shows these HyperNodes at these versions (``None``: gone), or after the time."""
        try:
            async with asyncio.timeout(timeout_s):
                while any(self.hypernodes.objects.get(name) != version for name, version in versions.items()):
                    await self.changed(self.revision)
        except TimeoutError:
            return False
        return True

    async def confirmed(self, timeout_s: float) -> bool:
        """The copy shows the HyperNodes as they are now. False: it does now, or soon will, but did not; plan
        again. Raises ``ApiError``."""
        found: dict[str, str | None] = {}

        def take(one: Partial) -> None:
            found[one.metadata.name] = one.metadata.resource_version

        await self._client.list_each(HYPERNODES.partial, take, found.clear)
        copy = self.hypernodes.objects
        wrong = {
            name: found.get(name) for name in found.keys() | copy.keys() if found.get(name) != copy.get(name)
        }
        if not wrong:
            return True
        if not await self.caught_up(wrong, timeout_s):
            log.info("What is known of hypernodes is not what the API server has; it is read again.")
            self.hypernodes.doubt()
        return False

    async def changed(self, revision: int) -> None:
        """Return when something differs from what was there at this revision."""
        while self.revision == revision:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter

    def stir(self) -> None:
        """Something else than an object is new: whoever waits for a change is woken."""
        self.revision += 1
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    # --- reports ------------------------------------------------------------------------------------------

    def _take_report(self, raw: RawReport) -> bool:
        """Told at once, so that no two pages of decoded reports are there at a time; a list that fails half-way
        has told what is true all the same."""
        name = raw.metadata.name
        mark = hash((bytes(raw.links), bytes(raw.node_name)))
        if self._marks.get(name) != mark:
            self._marks[name] = mark
            decoded = _report_of(raw)
            if isinstance(decoded, str):
                self._listener.refuse(name, decoded)
            else:
                self._listener.report(name, decoded)
            self.stir()
        return True

    def _report(self, name: str, _was: bool | None, now: bool | None) -> None:
        if now is None:
            self._marks.pop(name, None)
            self._listener.report(name, None)
            self.stir()

    # --- Nodes --------------------------------------------------------------------------------------------

    def _take_node(self, node: Partial) -> SeenNode:
        labels = node.metadata.labels or {}
        kept = sorted((key, value) for key, value in labels.items() if key.startswith(self._prefixes))
        return tuple(kept)

    def _node(self, name: str, _was: SeenNode | None, now: SeenNode | None) -> None:
        self.stir()
        self._listener.node(name, None if now is None else dict(now))

    # --- HyperNodes ---------------------------------------------------------------------------------------

    def _take_hypernode(self, raw: RawHyperNode) -> str:
        meta = raw.metadata
        try:
            self._hypernodes[meta.name] = of(
                meta.name, meta.labels, meta.annotations, meta.resource_version, bytes(raw.spec)
            )
        except HyperNodeError:
            # One that Volcano could not read either: it holds nobody, and it is not ours to mend.
            self._hypernodes[meta.name] = None
        return meta.resource_version or ""

    def _hypernode(self, name: str, _was: str | None, now: str | None) -> None:
        self.stir()
        found = self._hypernodes.pop(name, None)
        self._listener.hypernode(name, found if now is not None else None)


def _report_of(raw: RawReport) -> NodeLinks | str:
    """The report, or why it is none."""
    try:
        return NodeLinks(
            metadata=Metadata(name=raw.metadata.name),
            node_name=_NAME.decode(raw.node_name),
            links=_LINKS.decode(raw.links),
        )
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        return str(error)
