"""What the controller writes on objects of others: labels on Nodes, and on a report that its Node owns it.

The law of this file:

* A Node is seen by every scheduler and every agent that watches Nodes, so it is written once per move, and no
  more than ``PER_SECOND`` are.
* Only the labels handed in are touched. A Node that has gone meanwhile is no fault.
* Agents may not read Nodes, so the owner of a report is set here, by a field manager of its own: when the Node
  is deleted, the report goes with it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Mapping

from nodeagent.kube.client import ApiError, Client
from nodeagent.kube.resource import NODELINKS, NODES, Partial

log = logging.getLogger(__name__)

PER_SECOND = 20.0

_NODE = NODES.typed(Partial)
_REPORT = NODELINKS.typed(Partial)


class NodeLabels:
    def __init__(self, client: Client, per_second: float = PER_SECOND) -> None:
        self._client = client
        self._gap_s = 1.0 / per_second
        self.writes: Counter[tuple[str, str]] = Counter()
        """By what (``label``, ``owner``) and result (``ok``, ``gone``, ``failed``)."""
        self._trouble: str | None = None

    async def label(self, relabel: Mapping[str, Mapping[str, str | None]]) -> bool:
        """Patch the labels of these Nodes. False when something failed and is worth another try."""
        good = True
        for name in sorted(relabel):
            body = {"metadata": {"labels": dict(relabel[name])}}
            good &= await self._send("label", name, self._client.patch(_NODE, name, body))
        return good

    async def own(self, namespace: str, uids: Mapping[str, str]) -> bool:
        """Make each report the property of its Node, given by name and UID."""
        good = True
        for name in sorted(uids):
            owner = {"apiVersion": "v1", "kind": "Node", "name": name, "uid": uids[name]}
            body = {"metadata": {"ownerReferences": [owner]}}
            good &= await self._send(
                "owner", name, self._client.patch(_REPORT, name, body, namespace=namespace)
            )
        return good

    async def _send(self, what: str, name: str, call: Awaitable[object]) -> bool:
        result, good = "ok", True
        try:
            await call
            self._trouble = None
        except ApiError as error:
            good = error.missing
            result = "gone" if good else "failed"
            if not good and self._trouble != error.reason:
                self._trouble = error.reason
                log.warning("A Node cannot be written. what=%s node=%s reason=%r", what, name, str(error))
        self.writes[what, result] += 1
        await asyncio.sleep(self._gap_s)
        return good
