"""Fetch the health page of the agent on this machine, or read the machine for a moment."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec

from nodeagent.agent_config import Config
from nodeagent.base.bounded_calls import in_thread
from nodeagent.commands.agent_query import AgentAnswer, AgentQueryError, ask, ask_address, ask_for
from nodeagent.commands.running_sources import RunningSources, sentences, unanswered
from nodeagent.facts.model import StaleSource
from nodeagent.health.explain import DeviceView

_VIEWS = msgspec.json.Decoder(tuple[DeviceView, ...])


class UnknownDeviceError(Exception):
    """No device has this name; the message lists the names."""


class DeviceHealth(NamedTuple):
    """The devices, and the sources without an answer, whose devices may be more."""

    views: tuple[DeviceView, ...]
    silent: tuple[StaleSource, ...] = ()


class _Facts(msgspec.Struct):
    stale_sources: tuple[StaleSource, ...] = ()


class _Scan(msgspec.Struct):
    """The part of the page ``/scan`` that ``/health`` lacks."""

    snapshot: _Facts


_SCAN = msgspec.json.Decoder(_Scan)


def fetch(config: Config, root: Path, listen: str | None) -> tuple[tuple[DeviceView, ...] | None, str]:
    """Return the answer of the agent that serves this root, and its place; or ``None``, and why none answers.

    Raises ``AgentQueryError``.
    """
    answer = fetch_page("/health", config, root, listen)
    if answer.body is None:
        return None, answer.source
    try:
        return _VIEWS.decode(answer.body), answer.source
    except msgspec.MsgspecError as error:
        raise AgentQueryError(
            f"the server at {answer.source} is not a nodeagent of this version: {error}"
        ) from error


def fetch_page(page: str, config: Config, root: Path, listen: str | None) -> AgentAnswer:
    """Return a page of the agent that serves this root. Raises ``AgentQueryError``."""
    answer = AgentAnswer(None, "") if listen else ask(page, config, root)
    if answer.body is None and (listen or root == Path("/")):
        other = ask_address(page, config, listen)
        reasons = "; ".join(filter(None, (answer.source, other.source)))
        answer = other if other.body is not None else AgentAnswer(None, reasons)
    return answer


def silent_of_agent(config: Config, root: Path) -> tuple[StaleSource, ...]:
    """The sources of which the agent has no answer; none where only its web server can be asked."""
    scan = ask_for(_SCAN, "/scan", config, root)[0]
    return () if scan is None else unanswered(scan.snapshot.stale_sources)


async def read_machine(config: Config, root: Path) -> DeviceHealth:
    """Read the machine for ``READ_S``, without the state file."""
    async with RunningSources(config, root) as sources:
        return _own(sources)


def _own(sources: RunningSources) -> DeviceHealth:
    views = _VIEWS.decode(sources.gpu_publisher.health.explain_json())
    return DeviceHealth(views, unanswered(sources.inventory.snapshot.stale_sources))


async def watch(
    config: Config, root: Path, listen: str | None, explain: Callable[[str | None, str], object]
) -> AsyncIterator[DeviceHealth]:
    """Yield the health once a second: from the agent, or from the machine if no agent answers.

    ``explain`` takes the place of the agent, or ``None`` and why none answers, once.
    """
    views, source = await in_thread(partial(fetch, config, root, listen))
    explain(None if views is None else source, source)
    while views is not None:
        silent = () if listen else await in_thread(partial(silent_of_agent, config, root))
        yield DeviceHealth(views, silent)
        await asyncio.sleep(1.0)
        views, source = await in_thread(partial(fetch, config, root, listen))
        if views is None:
            raise AgentQueryError("the agent has ended")
    async with RunningSources(config, root) as sources:
        while True:
            yield _own(sources)
            await asyncio.sleep(1.0)


def find(health: DeviceHealth, name: str) -> DeviceView:
    """Find a device by PCI address, netdev, UUID or name (GPU0). Raises ``UnknownDeviceError``."""
    for view in health.views:
        if name in (view.device, view.name):
            return view
    known = ", ".join(view.name for view in health.views) or "none"
    if health.silent:
        why = "; ".join(sentences(health.silent))
        raise UnknownDeviceError(f"no device is known as {name!r}; known are: {known}; {why}")
    raise UnknownDeviceError(f"no device is called {name!r} here; there are: {known}")
