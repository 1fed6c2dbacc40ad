"""Hints that wake a source to scan again; they carry no facts. ``Sweep`` is what the PCI source does after one."""

from __future__ import annotations

import asyncio
from typing import Protocol

from msgspec import Struct


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


class Sweep(Struct, frozen=True):
    """How the links are read again after a hint.

    The kernel announces the first carrier change at once and delays further ones by up to a second (linkwatch),
    but sysfs shows them immediately: so the sweep continues for ``for_s``. ``gap_s`` is the least time between two
    readings of the links, ``scan_gap_s`` between two scans, for any number of hints. After a change of the links the
    scan waits for ``news_s``: its thread would take the interpreter from the message to the kubelet. While changes
    follow each other, it waits for ``for_s`` after the first hint at most.
    """

    every_s: float = 0.02
    for_s: float = 1.2
    gap_s: float = 0.002
    scan_gap_s: float = 0.1
    news_s: float = 0.05


SWEEP = Sweep()
