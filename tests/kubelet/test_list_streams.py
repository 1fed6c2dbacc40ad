"""A ListAndWatch stream whose list changes faster than it has its turn."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, cast

from nodeagent.facts.model import Health, Snapshot, State
from nodeagent.kinds import Devices
from nodeagent.kubelet.plugin import Plugin

HEALTHY, DOWN = Health(), Health(state=State.DOWN, allocatable=False)


@dataclass
class Scripted:
    """A kind whose one device has the health that the test sets."""

    resource: str = "nodeagent.io/nic0"
    health: Health = HEALTHY

    def devices(self, _snapshot: Snapshot) -> tuple[Devices, ...]:
        return (Devices("0000:01:00.0", ("0000:01:00.1",), (0,), self.health),)

    def made_of(self, _snapshot: Snapshot) -> object:
        return self.health


async def test_a_list_that_changed_and_changed_back_before_it_was_sent_is_not_sent_again() -> None:
    kind, none = Scripted(), cast("Any", None)
    plugin = Plugin(cast("Any", kind), none, none, none, none, lambda: None)

    def change(health: Health) -> None:
        kind.health = health
        assert plugin.update(cast("Any", kind), Snapshot())

    change(HEALTHY)
    stream = plugin._list_and_watch(b"", None)
    sent = [await anext(stream)]
    waiting = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    change(DOWN)
    change(HEALTHY)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not waiting.done(), "the kubelet has this list"
    change(DOWN)
    sent.append(await waiting)
    assert sent[1] == plugin.device_list.message != sent[0]
    await stream.aclose()
