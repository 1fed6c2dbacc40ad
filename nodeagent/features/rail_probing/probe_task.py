"""Probes over the rails as a feature of the agent."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from nodeagent.features.rail_probing.rail_settings import RailsSettings
from nodeagent.features.seam import AgentCore, AgentPart
from nodeagent.measurements.sample import Source
from nodeagent.metrics.computed_family import ComputedFamily, computed
from nodeagent.metrics.scrape_input import ScrapeInput
from nodeagent.metrics.text_format import Series
from nodeagent.web.server import Page, PageRequest, json_page

if TYPE_CHECKING:
    from nodeagent.cluster.agent_tasks import Task, Writing
    from nodeagent.features.rail_probing.rail_watch import RailWatch

RAIL_CHECK = "/rails/check/"


def start_probes(core: AgentCore, settings: RailsSettings) -> AgentPart:
    """The verb `rails` gets an answer even if the probes are off."""
    if not settings.probe:
        return AgentPart(
            pages={"/rails": lambda _: json_page({"probes": False})},
            folders={RAIL_CHECK: partial(_check, None)},
        )
    from nodeagent.features.rail_probing.rail_watch import RailWatch  # noqa: PLC0415

    watch = RailWatch(settings, core.inventory, lambda: core.offer.rails, core.take_samples)

    def probing(to: Writing) -> Task:
        return partial(watch.run, to.client, to.node, to.namespace, core.deliveries.of("rails"))

    return AgentPart(
        writers={"rail-probes": probing},
        samples=watch.samples,
        pages={"/rails": lambda _: json_page(watch.listing())},
        folders={RAIL_CHECK: partial(_check, watch)},
    )


async def _check(watch: RailWatch | None, request: PageRequest) -> Page:
    """Send a burst from this node to another for some seconds."""
    match request.path.removeprefix(RAIL_CHECK).split("/"):
        case [node, to, seconds] if node and to and seconds.isdecimal():
            if watch is None:
                return json_page({"to": to, "why": "this agent does not probe: set rails.probe"})
            return json_page(await watch.check(node, to, float(seconds)))
    return Page(404, f"try {RAIL_CHECK}NODE/NODE/SECONDS\n".encode())


def _round_trip(shown: ScrapeInput) -> Iterator[Series]:
    names = {link.pci_address: link.netdev for link in shown.snapshot.links}
    for sample in shown.samples:
        if sample.source == Source.RAILS:
            device = names.get(sample.device, sample.device)
            for name, count in sample.values.items():
                head, _, bound = name.partition("/")
                if head == "rail_rtt":
                    yield (device, bound), count
            yield (device, "count"), sample.values.get("rail_rtt/+Inf", 0)


PROBE_FAMILIES: tuple[ComputedFamily[ScrapeInput], ...] = (
    computed("rail_round_trip_seconds", "device,le", "Round trips of small probes, without the time in the hosts.",
        _round_trip, histogram=True),
)  # fmt: skip
