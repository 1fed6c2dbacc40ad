"""Volcano's deviceshare as a feature of the agent: it takes part while an entry of the resources has ``volcano``."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from nodeagent.base.supervise import either
from nodeagent.features.seam import AgentCore, AgentPart
from nodeagent.kinds.gpu_memory import GpuMemory
from nodeagent.kinds.volcano_vgpus import placed_memory

if TYPE_CHECKING:  # loaded with an API server
    from nodeagent.cluster.agent_tasks import Task, Writing


def start_deviceshare(core: AgentCore, configured: Callable[[], bool]) -> AgentPart:
    """``configured``: an entry in force has `volcano`. That may change while the agent runs."""

    def serving(to: Writing) -> Task:
        return partial(_serve, core, configured, to)

    return AgentPart(writers={"volcano": serving})


async def _serve(core: AgentCore, configured: Callable[[], bool], to: Writing) -> None:
    """Take part while it is configured, until cancelled."""

    def placed() -> GpuMemory | None:
        return placed_memory(core.offer.offered)

    async def until(wanted: bool) -> None:
        offer = core.offer.dra
        while configured() is not wanted:
            await offer.changed(offer.revision)

    while True:
        await until(True)
        from nodeagent.features.volcano_deviceshare.deviceshare_node import (  # noqa: PLC0415
            VolcanoDeviceshare,
        )

        delivery = core.deliveries.of("volcano")
        await either(VolcanoDeviceshare(*to.node_facts, placed, delivery=delivery).run(), until(False))
        delivery.ended()
