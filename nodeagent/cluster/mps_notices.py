"""Events about pods whose programs have lost their GPU because its MPS daemon has ended."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from nodeagent.cluster.event_writer import EventTarget, Notice
from nodeagent.cluster.notice_board import NoticeBoard
from nodeagent.facts.inventory import Inventory
from nodeagent.facts.model import Gpu
from nodeagent.sharing.mps_watch import MpsHit

REASON = "MpsDaemonEnded"


class MpsSource(Protocol):
    """The pods that were hit. ``revision`` grows with each change."""

    revision: int
    hits: tuple[MpsHit, ...]

    async def changed(self, revision: int) -> None:
        """Return when ``revision`` is no longer the present one."""


def notices(hits: Iterable[MpsHit], gpus: Sequence[Gpu], node: str) -> Iterator[Notice]:
    indexes = {gpu.uuid: gpu.index for gpu in gpus}
    for hit in hits:
        title = f"GPU {indexes.get(hit.uuid, '?')} ({hit.uuid})"
        fact = f"the MPS daemon of {title} has ended ({hit.how})"
        remedy = "its programs have lost the GPU; those that do not end by themselves must be started again"
        about = f"{hit.uuid} {hit.namespace}/{hit.pod}"
        message = f"Pod {hit.namespace}/{hit.pod}: {fact}, and {remedy}"
        yield Notice(EventTarget("Node", "", node), about, REASON, message, recovers=False, title=title)
        target = EventTarget("Pod", hit.namespace, hit.pod)
        yield Notice(
            target, hit.uuid, REASON, f"{fact[0].upper()}{fact[1:]}; {remedy}", recovers=False, title=title
        )


async def follow(source: MpsSource, inventory: Inventory, node: str, board: NoticeBoard) -> None:
    """Post the notices at each change, until cancelled."""
    while True:
        revision = source.revision
        board.post("mps", *notices(source.hits, inventory.snapshot.gpus, node))
        await source.changed(revision)
