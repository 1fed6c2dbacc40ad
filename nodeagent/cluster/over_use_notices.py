"""Events about pods that use more GPU memory than they were granted, and about processes outside of pods.

The numbers in a notice are those of its beginning. Its end is the Event ``Recovered``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from nodeagent.cluster.event_writer import EventTarget, Notice
from nodeagent.cluster.notice_board import NoticeBoard
from nodeagent.facts.inventory import Inventory
from nodeagent.facts.model import Gpu
from nodeagent.sharing.over_use import OverUse

GIB = 1 << 30
POD_REASON, OUTSIDE_REASON = "GpuMemoryExceeded", "GpuUsedOutsidePods"


class OverUseSource(Protocol):
    """The pods that exceed their share. ``enabled``: whether they are looked for. ``grace_s`` and ``evict_s``: how long
    each of them lasts before it is reported, and before the pod may be evicted. ``revision`` grows with each change."""

    enabled: bool
    grace_s: float
    evict_s: float
    revision: int

    @property
    def over_uses(self) -> tuple[OverUse, ...]: ...
    async def changed(self, revision: int) -> None:
        """Return when ``revision`` is no longer the present one."""


def notices(over_uses: Iterable[OverUse], gpus: Sequence[Gpu], node: str, grace_s: float) -> Iterator[Notice]:
    """Yield a notice on the Node for each over-use, and one on the pod."""
    on_node = EventTarget("Node", "", node)
    indexes = {gpu.uuid: gpu.index for gpu in gpus}
    for over in over_uses:
        title = f"GPU {indexes.get(over.uuid, '?')} ({over.uuid})"
        used = f"{over.used_bytes / GIB:.1f} GiB"
        if not over.pod:
            message = f"{title}: {used} are used outside of pods for {grace_s:g} s, by {over.processes}"
            yield Notice(on_node, f"{over.uuid} outside", OUTSIDE_REASON, message, title=title)
            continue
        fact = f"{used} of {title} for {grace_s:g} s, and its share is {over.granted_bytes / GIB:.1f} GiB"
        # Without a namespace the kubelet's folder does not name the pod: its UID alone is known.
        name = f"{over.namespace}/{over.pod}" if over.namespace else f"with UID {over.pod}"
        about = f"{over.uuid} {over.namespace}/{over.pod}"
        yield Notice(on_node, about, POD_REASON, f"Pod {name} uses {fact}", title=f"Pod {name} on {title}")
        if over.namespace:
            target = EventTarget("Pod", over.namespace, over.pod)
            yield Notice(target, over.uuid, POD_REASON, f"The pod uses {fact}", title=title)


async def follow(source: OverUseSource, inventory: Inventory, node: str, board: NoticeBoard) -> None:
    """Post the notices at each change, until cancelled."""
    while True:
        revision = source.revision
        board.post("accounting", *notices(source.over_uses, inventory.snapshot.gpus, node, source.grace_s))
        await source.changed(revision)
