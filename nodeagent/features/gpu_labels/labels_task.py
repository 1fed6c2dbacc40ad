"""The labels of the GPUs as a feature of the agent: a file for Node Feature Discovery (NFD)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from nodeagent.base.bounded_calls import in_thread
from nodeagent.features.gpu_labels.nfd_settings import NfdSettings, OfferedGpus
from nodeagent.features.seam import AgentCore, AgentPart

if TYPE_CHECKING:
    from nodeagent.cluster.agent_tasks import Task, Writing
    from nodeagent.features.gpu_labels.label_keeper import LabelKeeper


def start_labels(core: AgentCore, settings: NfdSettings, offered: Callable[[], OfferedGpus]) -> AgentPart:
    """A file that is there although the settings no longer ask for one is removed."""
    if not settings.gpu_labels:
        return AgentPart(tasks={"gpu-labels": partial(_switch_off, core)})
    from nodeagent.features.gpu_labels.gpu_reader import gpus_now  # noqa: PLC0415
    from nodeagent.features.gpu_labels.label_keeper import LabelKeeper  # noqa: PLC0415

    delivery = core.deliveries.of("gpu-labels", "Node Feature Discovery")
    keeper = LabelKeeper(core.tree, lambda: gpus_now(core, offered()), delivery)

    def looking(to: Writing) -> Task:
        keeper.asking = True
        return partial(_look, keeper, to)

    return AgentPart(tasks={"gpu-labels": partial(_keep, core, keeper)}, writers={"gfd-object": looking})


async def _keep(core: AgentCore, keeper: LabelKeeper, _node: str | None) -> None:
    await core.settled.wait()
    await keeper.run()


async def _look(keeper: LabelKeeper, to: Writing) -> None:
    from nodeagent.features.gpu_labels.gfd_object import follow_gfd_object  # noqa: PLC0415

    await follow_gfd_object(to.client, to.node, keeper)


async def _switch_off(core: AgentCore, _node: str | None) -> None:
    await core.settled.wait()
    with suppress(OSError):  # without the folder, or with one that the agent may not write, the file expires
        await in_thread(partial(_remove, core))
    await asyncio.Event().wait()


def _remove(core: AgentCore) -> None:
    from nodeagent.features.gpu_labels.feature_file import FEATURES_FOLDER, FeatureFile  # noqa: PLC0415

    FeatureFile(core.tree.path(FEATURES_FOLDER)).remove()
