"""The document of the node page for a machine without an agent, such as a capture."""

from __future__ import annotations

import asyncio
import socket
import time
from pathlib import Path

import msgspec

from nodeagent.agent_config import Config
from nodeagent.commands.running_sources import RunningSources, known_kinds, unanswered, view_of
from nodeagent.health.explain import DeviceView
from nodeagent.offering.offer import Offer
from nodeagent.web.gpu_statuses import gpu_statuses
from nodeagent.web.node_view import node_view
from nodeagent.web.pages import device_counts

_HEALTH = msgspec.json.Decoder(tuple[DeviceView, ...])
_HOSTNAME = "etc/hostname"


async def read_document(config: Config, root: Path) -> tuple[bytes, bool]:
    """Read the machine for a moment. Return the document as JSON, and whether a source has not answered."""
    async with RunningSources(config, root) as sources:
        snapshot = sources.inventory.snapshot
        offer = Offer(config, sources.rails.content.numbering)
        machine = view_of(offer, snapshot)
        counts = device_counts(known_kinds(offer, snapshot), snapshot)
        gpus = gpu_statuses(snapshot, counts, sources.gpu_publisher.samples(), (), "no agent runs here")
        health = _HEALTH.decode(sources.gpu_publisher.health.explain_json())
    view = node_view(
        machine,
        health,
        gpus,
        (),
        {},
        {},
        node=await asyncio.to_thread(_name, root),
        source="read once by `nodeagent health --html`",
        taken=time.time(),
    )
    return msgspec.json.encode(view), bool(unanswered(snapshot.stale_sources))


def _name(root: Path) -> str:
    """The name in the machine's file, or this host's for its own root."""
    try:
        return (root / _HOSTNAME).read_text().strip() or str(root)
    except (OSError, UnicodeDecodeError):
        return socket.gethostname() if root == Path("/") else str(root)
