"""The judgement of traffic as a feature of the agent: levels in the report, figures for the verbs of this node."""

from __future__ import annotations

from nodeagent.features.pod_traffic.traffic_settings import TrafficSettings
from nodeagent.features.seam import AgentCore, AgentPart


def start_traffic(core: AgentCore, settings: TrafficSettings) -> AgentPart:
    if not settings.report:
        return AgentPart()
    from nodeagent.features.pod_traffic.traffic_watch import TrafficWatch  # noqa: PLC0415

    watch = TrafficWatch(core)
    return AgentPart(tasks={"traffic": watch.run}, pages={"/traffic": watch.page})
