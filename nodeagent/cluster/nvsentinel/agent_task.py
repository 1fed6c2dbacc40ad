"""The task of the agent that reports to NVSentinel. gRPC is loaded when the kubelet has the devices."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

from nodeagent.cluster.deliveries import Deliveries
from nodeagent.cluster.nvsentinel.nvsentinel_settings import NvSentinelSettings
from nodeagent.facts.inventory import Inventory
from nodeagent.host.sysfs import Tree


async def run(
    settings: NvSentinelSettings,
    root: Path,
    node: str | None,
    inventory: Inventory,
    deliveries: Deliveries,
    settled: asyncio.Event,
) -> None:
    """Run until cancelled. The socket is looked for below ``root``. ``node``: the name of this Node."""
    await settled.wait()
    delivery = deliveries.of("nvsentinel", "NVSentinel")
    if settings.socket is None:
        return
    if node is None:
        delivery.missed("the name of this Node is not known. Set NODE_NAME or --node-name", refused=False)
        await asyncio.Event().wait()
        return
    from nodeagent.cluster.nvsentinel.platform_connector import PlatformConnector  # noqa: PLC0415

    await PlatformConnector(
        inventory,
        partial(Tree(root).path, settings.socket),
        node,
        delivery,
        store_only=settings.store_only,
        token_file=Path(settings.token_file) if settings.token_file is not None else None,
    ).run()
