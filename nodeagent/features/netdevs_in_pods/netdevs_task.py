"""The plan for `nodeagent attach` as a feature of the agent."""

from __future__ import annotations

import asyncio
from functools import partial

from nodeagent.attach.attach_settings import AttachSettings
from nodeagent.base.bounded_calls import in_thread
from nodeagent.features.seam import AgentCore, AgentPart


def start_netdevs(core: AgentCore, settings: AttachSettings) -> AgentPart:
    """A plan that is there although the settings no longer ask for one is switched off."""
    if settings.interface is not None:
        return AgentPart(tasks={"attach": partial(_plan, core, settings)})
    from nodeagent.attach.attach_files import ATTACH_FOLDER  # noqa: PLC0415

    if (core.state / ATTACH_FOLDER).exists():
        return AgentPart(tasks={"attach": partial(_switch_off, core)})
    return AgentPart()


async def _plan(core: AgentCore, settings: AttachSettings, _node: str | None) -> None:
    await core.settled.wait()
    from nodeagent.features.netdevs_in_pods.plan_writer import PlanWriter  # noqa: PLC0415

    await PlanWriter(settings, core.inventory, lambda: core.offer.rails, core.state).run()


async def _switch_off(core: AgentCore, _node: str | None) -> None:
    from nodeagent.attach.plan_file import switch_off  # noqa: PLC0415

    await in_thread(partial(switch_off, core.state))
    await asyncio.Event().wait()
