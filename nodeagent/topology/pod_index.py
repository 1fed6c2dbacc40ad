"""The names of the pods that reports list as holders of VFs, for the search of the fabric map.

It keeps one text for each node that reports holders, and nothing for the others: 10,000 nodes with one pod each take
less than 2 MiB. The rest of a holder is asked of the API server when its node is selected.
"""

from __future__ import annotations

import msgspec

from nodeagent.base.bounded_calls import in_thread
from nodeagent.base.plain_text import one_line

PODS_MAX = 128
"""Of one node, as in the definition of NodeLinks."""
NAME_MAX = 63 + 1 + 253
"""``namespace/pod``, by RFC 1123."""


class FoundPod(msgspec.Struct, frozen=True):
    """``pod`` is ``namespace/name``."""

    pod: str
    node: str


class _Holder(msgspec.Struct):
    namespace: str
    pod: str


_HOLDERS = msgspec.json.Decoder(tuple[_Holder, ...])


class PodIndex:
    def __init__(self) -> None:
        self._pods: dict[str, str] = {}
        """``namespace/pod`` on lines of their own, by node."""

    def take(self, node: str, holders: bytes) -> None:
        """Replace the pods of a node by those in the JSON of ``holders``. Unreadable ones count as none."""
        try:
            found = _HOLDERS.decode(holders)[:PODS_MAX]
        except (msgspec.MsgspecError, UnicodeDecodeError):
            found = ()
        if found:
            names = (f"{holder.namespace}/{holder.pod}" for holder in found)
            self._pods[node] = "\n".join(one_line(name, NAME_MAX, ascii_only=True) for name in names)
        else:
            self.forget(node)

    def forget(self, node: str) -> None:
        self._pods.pop(node, None)

    async def find(self, text: str, limit: int) -> tuple[FoundPod, ...]:
        """At most ``limit`` pods whose ``namespace/name`` contains ``text``."""
        wanted, pods = text.lower(), tuple(self._pods.items())

        def search() -> tuple[FoundPod, ...]:
            found: list[FoundPod] = []
            for node, names in pods:
                if wanted in names:
                    found += (FoundPod(name, node) for name in names.split("\n") if wanted in name)
                if len(found) >= limit:
                    break
            return tuple(found[:limit])

        return await in_thread(search)
