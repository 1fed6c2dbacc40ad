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
from nodeagent.base.stored_file import StoredFile, StoredForm
from nodeagent.host.clock import boottime
from nodeagent.infiniband.asking import UnansweredQuestions

PortKey = tuple[str, int]
"""PCI address, and number of the port."""


class _UnansweredPort(msgspec.Struct, frozen=True):
    pci_address: str
    port: int
    asked: UnansweredQuestions


class _UnansweredPorts(msgspec.Struct, frozen=True):
    boot_id: str
    ports: tuple[_UnansweredPort, ...]


FORM = StoredForm(
    name="infiniband.json",
    type=_UnansweredPorts,
    content="unanswered InfiniBand questions",
    loss="switches that do not answer are asked again",
    of_boot=True,
)


class UnansweredPorts:
    """The file of this boot. Times are those of the running event loop."""

    def __init__(self, folder: Path | None, boot: str | None = None) -> None:
        """Without a folder nothing is kept. ``boot`` is the ID of the boot; ``None``: the present one."""
        self._file = StoredFile(folder, FORM, boot)

    async def read(self) -> dict[PortKey, UnansweredQuestions]:
        found = await in_thread(self._file.read)
        if found is None:
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
        await self._file.save(_UnansweredPorts(self._file.boot or "", tuple(entries)))


def _boottime_ahead() -> float:
    return boottime() - asyncio.get_running_loop().time()
