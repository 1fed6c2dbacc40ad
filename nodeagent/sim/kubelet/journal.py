"""What has happened to the stand-in kubelet, and waiting for it without a sleep."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from nodeagent.sim.kubelet.pods import Call, KubeletPanic, Registration, StreamEnd, Update


class Journal:
    """Lists that only grow, and a pulse at every change."""

    def __init__(self) -> None:
        self.registrations: list[Registration] = []
        self.updates: list[Update] = []
        self.calls: list[Call] = []
        self.ends: list[StreamEnd] = []
        self.panics: list[KubeletPanic] = []
        self._pulse = asyncio.Event()

    def changed(self) -> None:
        pulse, self._pulse = self._pulse, asyncio.Event()
        pulse.set()

    async def until(self, predicate: Callable[[], bool], timeout_s: float) -> None:
        """Return once the predicate holds, asked at every change. Raises ``TimeoutError`` with the state."""
        try:
            async with asyncio.timeout(timeout_s):
                while not predicate():
                    await self._pulse.wait()
        except TimeoutError:
            raise TimeoutError(
                f"the stand-in kubelet did not get there in {timeout_s:g} s; last of each: "
                f"{self.registrations[-1:]} {self.updates[-1:]} {self.ends[-1:]} {self.panics[-1:]}"
            ) from None
