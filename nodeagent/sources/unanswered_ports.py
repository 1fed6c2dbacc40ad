"""The questions of InfiniBand ports that were not answered, kept over restarts of the agent.

A switch with a management key reports each question to its subnet manager as an attack. An agent that starts again and
again would otherwise raise three of these reports each time. The times are CLOCK_BOOTTIME: the file of another boot is
not used, as the ports were down.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

import msgspec
from msgspec import structs

from nodeagent.base.bounded_calls import in_thread
from nodeagent.host.clock import boottime
from nodeagent.host.stored_value import StoredValue
from nodeagent.infiniband.asking import UnansweredQuestions

NAME = "infiniband.json"

PortKey = tuple[str, int]
"""PCI address, and number of the port."""


class _UnansweredPort(msgspec.Struct, frozen=True):
    pci_address: str
    port: int
    asked: UnansweredQuestions


class _UnansweredPorts(msgspec.Struct, frozen=True):
    boot_id: str
    ports: tuple[_UnansweredPort, ...]


class UnansweredPorts:
    """The file of this boot. Times are those of the running event loop."""

    def __init__(self, folder: Path, boot_id: str) -> None:
        self._boot_id = boot_id
        self._stored = StoredValue(
            folder / NAME,
            _UnansweredPorts,
            content="unanswered InfiniBand questions",
            loss="switches that do not answer are asked again",
        )

    async def read(self) -> dict[PortKey, UnansweredQuestions]:
        found = await in_thread(self._stored.read)
        if found is None or found.boot_id != self._boot_id:
            return {}
        ahead = _boottime_ahead()
        return {
            (each.pci_address, each.port): structs.replace(each.asked, due_at=each.asked.due_at - ahead)
            for each in found.ports
        }

    async def save(self, ports: Mapping[PortKey, UnansweredQuestions]) -> None:
        ahead = _boottime_ahead()
        entries = [
            _UnansweredPort(address, port, structs.replace(asked, due_at=round(asked.due_at + ahead)))
            for (address, port), asked in sorted(ports.items())
        ]
        await self._stored.save(_UnansweredPorts(self._boot_id, tuple(entries)))


def _boottime_ahead() -> float:
    return boottime() - asyncio.get_running_loop().time()
