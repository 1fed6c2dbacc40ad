"""NVSentinel as a feature of the agent: it gets the health of NICs and GPUs if the configuration has its socket."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

from nodeagent.features.nvsentinel.sentinel_settings import NvSentinelSettings
from nodeagent.features.seam import AgentCore, AgentPart


def start_sentinel(core: AgentCore, settings: NvSentinelSettings) -> AgentPart:
    if settings.socket is None:
        return AgentPart()
    return AgentPart(tasks={"nvsentinel": partial(_tell, core, settings, settings.socket)})


async def _tell(core: AgentCore, settings: NvSentinelSettings, path: str, node: str | None) -> None:
    """Send health events until cancelled. gRPC is loaded when the kubelet has the devices: 35 ms and 1.3 MiB."""
    await core.settled.wait()
    delivery = core.deliveries.of("nvsentinel", "NVSentinel")
    if node is None:
        delivery.missed("the name of this Node is not known. Set NODE_NAME or --node-name", refused=False)
        await asyncio.Event().wait()
        return
    from nodeagent.features.nvsentinel.platform_connector import PlatformConnector  # noqa: PLC0415

    await PlatformConnector(
        core.inventory,
        partial(core.tree.path, path),
        node,
        delivery,
        store_only=settings.store_only,
        token_file=Path(settings.token_file) if settings.token_file is not None else None,
    ).run()
