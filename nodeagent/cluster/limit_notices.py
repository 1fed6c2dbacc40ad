"""Events about limits of GPU memory that cannot be set, on the pod and on the Node."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from nodeagent.cluster.event_writer import EventTarget, Notice
from nodeagent.cluster.notice_board import NoticeBoard
from nodeagent.facts.inventory import Inventory
from nodeagent.facts.model import Gpu
from nodeagent.sharing.cgroup_limits import LimitState

REASON = "GpuMemoryNotLimited"


class LimitSource(Protocol):
    """The limits of this node. ``revision`` grows with each change."""

    revision: int
    states: tuple[LimitState, ...]

    async def changed(self, revision: int) -> None:
        """Return when ``revision`` is no longer the present one."""


def notices(states: Iterable[LimitState], gpus: Sequence[Gpu], node: str) -> Iterator[Notice]:
    indexes = {gpu.uuid: gpu.index for gpu in gpus}
    for state in states:
        if state.failure is None:
            continue
        share = state.share
        title = f"GPU {indexes.get(share.uuid, '?')} ({share.uuid})"
        fact = f"{share.size_bytes >> 20} MiB of {title}, and no limit keeps it within them: {state.failure}"
        about = f"{share.uuid} {share.namespace}/{share.pod}/{share.container}"
        message = f"Container {share.container} of pod {share.namespace}/{share.pod} has {fact}"
        yield Notice(EventTarget("Node", "", node), about, REASON, message, title=title)
        target = EventTarget("Pod", share.namespace, share.pod)
        yield Notice(target, about, REASON, f"Container {share.container} has {fact}", title=title)


async def follow(source: LimitSource, inventory: Inventory, node: str, board: NoticeBoard) -> None:
    """Post the notices at each change, until cancelled."""
    while True:
        revision = source.revision
        board.post("limits", *notices(source.states, inventory.snapshot.gpus, node))
        await source.changed(revision)
