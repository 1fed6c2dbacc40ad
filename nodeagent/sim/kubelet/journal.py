"""The records of the stand-in kubelet, and a wait for changes without sleeps."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from nodeagent.sim.kubelet.pods import (
    DeviceListUpdate,
    KubeletPanic,
    PluginCall,
    RegistrationAttempt,
    StreamEnd,
)


class Journal:
    """Lists that only grow, and an event at every change."""

    def __init__(self) -> None:
        self.registrations: list[RegistrationAttempt] = []
        self.updates: list[DeviceListUpdate] = []
        self.calls: list[PluginCall] = []
        self.ends: list[StreamEnd] = []
        self.panics: list[KubeletPanic] = []
        self._pulse = asyncio.Event()

    def changed(self) -> None:
        pulse, self._pulse = self._pulse, asyncio.Event()
        pulse.set()

    async def until(self, predicate: Callable[[], bool], timeout_s: float) -> None:
        """Return once the predicate holds; it is called at every change. Raises ``TimeoutError`` with the state."""
        try:
            async with asyncio.timeout(timeout_s):
                while not predicate():
                    await self._pulse.wait()
        except TimeoutError:
            raise TimeoutError(
                f"the stand-in kubelet did not get there in {timeout_s:g} s; last of each: "
                f"{self.registrations[-1:]} {self.updates[-1:]} {self.ends[-1:]} {self.panics[-1:]}"
            ) from None
