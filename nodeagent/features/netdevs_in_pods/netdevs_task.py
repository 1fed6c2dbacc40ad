"""The plan for `nodeagent attach` as a feature of the agent."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from nodeagent.attach.attach_settings import AttachSettings
from nodeagent.base.bounded_calls import in_thread
from nodeagent.facts.allocation import Devices
from nodeagent.features.seam import AgentCore, AgentPart
from nodeagent.measurements.sample import Source
from nodeagent.metrics.computed_family import ComputedFamily, computed
from nodeagent.metrics.scrape_input import ScrapeInput
from nodeagent.metrics.text_format import Series

if TYPE_CHECKING:
    from nodeagent.cluster.agent_tasks import Task, Writing
    from nodeagent.features.netdevs_in_pods.attach_watch import AttachWatch


def start_netdevs(core: AgentCore, settings: AttachSettings) -> AgentPart:
    """A plan that is there although the settings no longer ask for one is switched off."""
    if settings.interface is not None:
        from nodeagent.features.netdevs_in_pods.attach_watch import AttachWatch  # noqa: PLC0415

        watch = AttachWatch(core.state, core.inventory)

        def numbers(to: Writing) -> Task:
            return partial(_follow_numbers, core, to)

        return AgentPart(
            tasks={"attach": partial(_plan, core, settings), "netdevs": partial(_watch, core, watch)},
            writers={"attach-numbers": numbers} if settings.numbers else {},
            samples=watch.samples,
        )
    return AgentPart(tasks={"attach": partial(_switch_off, core)})


async def _plan(core: AgentCore, settings: AttachSettings, node: str | None) -> None:
    await core.settled.wait()
    from nodeagent.features.netdevs_in_pods.plan_writer import PlanWriter  # noqa: PLC0415

    def offered() -> Iterator[Devices]:
        snapshot = core.inventory.snapshot
        return (one for kind in core.offer.offered if kind.attaches for one in kind.devices(snapshot))

    await PlanWriter(
        settings,
        core.inventory,
        lambda: core.offer.rails,
        core.state,
        offered=offered,
        node=node or "",
        whole=lambda: core.offer.whole,
    ).run()


async def _watch(core: AgentCore, watch: AttachWatch, _node: str | None) -> None:
    await core.settled.wait()
    await watch.run()


async def _follow_numbers(core: AgentCore, to: Writing) -> None:
    await core.settled.wait()
    from nodeagent.features.netdevs_in_pods.number_keeper import keep_numbers  # noqa: PLC0415

    await keep_numbers(core.state, to.client, to.node, core.deliveries.of("attach-numbers"), to.owner)


async def _switch_off(core: AgentCore, _node: str | None) -> None:
    await in_thread(partial(_switch_off_plan, core.state))
    await asyncio.Event().wait()


def _switch_off_plan(state: Path) -> None:
    """Blocks: the state directory may be on a disk that does not answer."""
    from nodeagent.attach.attach_files import ATTACH_FOLDER  # noqa: PLC0415

    if (state / ATTACH_FOLDER).exists():
        from nodeagent.attach.plan_file import switch_off  # noqa: PLC0415

        switch_off(state)


def _numbers(shown: ScrapeInput, name: str) -> Iterator[tuple[str, float]]:
    """The values ``name/key``, by their keys; that of ``name`` has an empty one."""
    for sample in shown.samples:
        if sample.source == Source.ATTACH:
            for full, number in sample.values.items():
                head, _, key = full.partition("/")
                if head == name:
                    yield key, number


def _single(name: str, shown: ScrapeInput) -> Iterator[Series]:
    return (((), number) for _, number in _numbers(shown, name))


def _keyed(name: str, shown: ScrapeInput) -> Iterator[Series]:
    return (((key,), number) for key, number in sorted(_numbers(shown, name)))


def _seconds(shown: ScrapeInput) -> Iterator[Series]:
    for bound, number in _numbers(shown, "attach_seconds"):
        yield (bound,), number
        if bound == "+Inf":
            yield ("count",), number


ATTACH_FAMILIES: tuple[ComputedFamily[ScrapeInput], ...] = (
    computed("attach_connected", "", "1 while `nodeagent attach` runs and a container runtime tells it of new pods.",
        partial(_single, "attach_connected")),
    computed("attach_waiting_pods", "", "Pods that lack the netdevs of their VFs.",
        partial(_single, "attach_waiting")),
    computed("attach_seconds", "le",
        "Time in which all netdevs of a pod came, from the kubelet's list to the CDI spec.", _seconds, histogram=True),
    computed("attach_failures_total", "step", "Attempts to give a pod its netdevs that failed, by step.",
        partial(_keyed, "attach_failures")),
)  # fmt: skip
