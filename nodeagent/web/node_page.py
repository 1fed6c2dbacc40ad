"""The node page of the agent: its live document and its files below ``/ui/``, on the port and on the local socket."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping

import msgspec

from nodeagent.base.bounded_calls import in_thread
from nodeagent.base.change_log import ChangeLog
from nodeagent.facts.inventory import Inventory
from nodeagent.health.explain import DeviceView
from nodeagent.host.clock import boottime
from nodeagent.kubelet.rpc_stats import ResourceStatus
from nodeagent.web.gpu_statuses import GpuStatuses
from nodeagent.web.history_page import history_page
from nodeagent.web.live_document import LiveDocument
from nodeagent.web.machine_view import MachineView
from nodeagent.web.node_view import node_view
from nodeagent.web.sample_history import SAMPLE_EVERY_S, SampleHistory
from nodeagent.web.server import FolderHandler
from nodeagent.web.ui_pages import UiPages

_AGENT = "the agent of this node"
_HEALTH = msgspec.json.Decoder(tuple[DeviceView, ...])


class NodePageSources(msgspec.Struct, frozen=True):
    node: str
    inventory: Inventory
    machine_view: Callable[[], MachineView]
    explained_health: Callable[[], bytes]
    gpus: Callable[[], GpuStatuses]
    statuses: Callable[[], tuple[ResourceStatus, ...]]
    rails: Callable[[], Mapping[str, int]]
    history: SampleHistory
    changes: ChangeLog
    runbook: str | None


class NodePage:
    def __init__(self, sources: NodePageSources) -> None:
        self._sources = sources
        self.live = LiveDocument(self._document, self._changed)

    def folder(self) -> FolderHandler:
        """The handler of the folder."""
        return UiPages(
            "node",
            self.live,
            {"history.json": history_page(self._sources.changes, _AGENT, self._sources.node)},
        ).answer

    async def _document(self) -> bytes:
        sources, taken = self._sources, time.time()
        machine, gpus, statuses = sources.machine_view(), sources.gpus(), sources.statuses()
        health, rails = sources.explained_health(), sources.rails()
        history = sources.history.curves(boottime(), taken)

        changes = sources.changes.newest()

        def make() -> bytes:
            view = node_view(
                machine,
                _HEALTH.decode(health),
                gpus,
                statuses,
                rails,
                history,
                node=sources.node,
                source=_AGENT,
                taken=taken,
                changes=changes,
                runbook=sources.runbook,
            )
            return msgspec.json.encode(view)

        return await in_thread(make)

    def _changed(self) -> Awaitable[object]:
        """New facts, or the time of the next samples."""
        revision = self._sources.inventory.snapshot.revision

        async def wait() -> None:
            try:
                async with asyncio.timeout(SAMPLE_EVERY_S):
                    await self._sources.inventory.changed(revision)
            except TimeoutError:
                pass

        return wait()
