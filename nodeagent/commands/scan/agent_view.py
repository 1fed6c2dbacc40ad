"""The machine as its agent shows it: the facts, the health that it has derived, the devices that it offers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec

from nodeagent import discovery
from nodeagent.agent_config import Config, digest
from nodeagent.base.bounded_calls import in_thread
from nodeagent.commands.agent_query import AgentQueryError, ask_for
from nodeagent.commands.running_sources import view_of
from nodeagent.commands.scan.listing import without_neighbor
from nodeagent.host.sysfs import Tree
from nodeagent.offering.offer import Offer
from nodeagent.web.machine_view import MachineView

ALONE = "this is a look of the command itself, without the samples, holds and penalties of an agent"
AGAIN_S = 1.0
_VIEW = msgspec.json.Decoder(MachineView)


class AgentView(NamedTuple):
    """``view`` and ``place``, the agent's socket, are ``None`` if no agent serves this root. ``sentence`` shows which
    answer it is."""

    config: Config
    config_file: Path | None
    root: Path
    view: MachineView | None
    place: str | None
    sentence: str


def fetch(config: Config, config_file: Path | None, root: Path) -> AgentView:
    """Ask the agent. With a file that differs from the agent's configuration, the agent's facts and the resources of
    that file. Raises ``AgentQueryError``."""
    answer = ask_for(_VIEW, "/scan", config, root)
    view, source = answer
    if view is None:
        sentence = f"no agent runs here ({source}); {ALONE}"
        return AgentView(config, config_file, root, None, None, sentence)
    sentence = f"the agent at {source} answers"
    if config_file is not None and view.configuration != digest(config):
        view = view_of(Offer(config), view.snapshot)
        sentence += f"; its configuration is not {config_file}, and the resources are those of that file"
    return AgentView(config, config_file, root, view, source, sentence)


async def once(agent: AgentView, wait_s: float) -> AsyncIterator[MachineView]:
    """Yield the view; with ``wait_s`` after that time, or as soon as every link with carrier has a neighbor."""
    assert agent.view is not None
    waits = wait_s > 0 and discovery.finds_neighbors(agent.config, Tree(agent.root))
    end = asyncio.get_running_loop().time() + wait_s
    view = agent.view
    while waits and asyncio.get_running_loop().time() < end and without_neighbor(agent.config, view.snapshot):
        await asyncio.sleep(AGAIN_S)
        view = await _again(agent)
    yield view


async def watch(agent: AgentView) -> AsyncIterator[MachineView]:
    """Yield the view now and at every change. Raises ``AgentQueryError`` when the agent ends."""
    view = agent.view
    while view is not None:
        yield view
        before = view
        while view == before:
            await asyncio.sleep(AGAIN_S)
            view = await _again(agent)


async def _again(agent: AgentView) -> MachineView:
    view = (await in_thread(partial(fetch, agent.config, agent.config_file, agent.root))).view
    if view is None:
        raise AgentQueryError("the agent has ended")
    return view
