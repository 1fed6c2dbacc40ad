"""Hints that wake a source to scan again; they carry no facts."""

from __future__ import annotations

import asyncio
from typing import Protocol


class ScanHint(Protocol):
    """An object that can wake a source: ``LinkEvents``, ``Uevents``, ``ScanRequest``."""

    async def wait(self) -> object: ...


class ScanRequest:
    """A hint from the agent itself."""

    def __init__(self) -> None:
        self._requested = asyncio.Event()

    def request(self) -> None:
        self._requested.set()

    async def wait(self) -> None:
        await self._requested.wait()
        self._requested.clear()


async def forward(hint: ScanHint, woken: asyncio.Event) -> None:
    """Set the event after each hint, until cancelled."""
    while True:
        await hint.wait()
        woken.set()
