"""The leaf group of this node, from the label that the controller keeps on the Node.

Only the controller has the reports of all nodes, which show the leaf switches that belong together. It damps the label,
so it is read once in ten minutes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from nodeagent.base.backoff import jittered
from nodeagent.kube.client import ApiClient, ApiError
from nodeagent.kube.resource import NODES, metadata

LABEL = "topology.nodeagent.io/tier-1"
"""The default of ``labels`` in the configuration of the fabric, for the lowest tier."""
READ_S = 600.0


class LeafGroupLabel:
    """``value`` is ``None`` while it is not known. ``changed`` receives another one."""

    def __init__(
        self, client: ApiClient, node: str, changed: Callable[[str | None], None], read_s: float = READ_S
    ) -> None:
        self.value: str | None = None
        self._client, self._node, self._changed, self._read_s = client, node, changed, read_s

    async def run(self) -> None:
        """Read it until cancelled. Without an answer, or without the right to read Nodes, the last value stays."""
        while True:
            try:
                node = await self._client.get(NODES.partial, self._node)
            except ApiError:
                pass
            else:
                value = (metadata(node).labels or {}).get(LABEL)
                if value != self.value:
                    self.value = value
                    self._changed(value)
            await asyncio.sleep(jittered(self._read_s))
