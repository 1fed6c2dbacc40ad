"""The comparison of nodes as a feature of the agent: its values stand in the report of the node."""

from __future__ import annotations

from collections.abc import Callable

from nodeagent.features.peer_values.peers_settings import PeersSettings
from nodeagent.features.seam import AgentCore, AgentPart


def start_compare(
    core: AgentCore, settings: PeersSettings, agent: Callable[[], tuple[str, str]]
) -> AgentPart:
    """``agent``: its version, and a digest of the settings in force."""
    if not settings.compare:
        return AgentPart()
    from nodeagent.features.peer_values.value_table import RunningAgent  # noqa: PLC0415
    from nodeagent.features.peer_values.value_watch import ValueWatch  # noqa: PLC0415

    return AgentPart(tasks={"peers": ValueWatch(core, lambda: RunningAgent(*agent())).run})
