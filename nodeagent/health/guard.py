"""The guard: a single source cannot make most devices of a node Unhealthy at once. Pure.

* A device with two witnesses against it becomes Unhealthy at once, whatever its share.
* A fault that has lasted for the guard's time counts as a second witness. So the guard delays and never forbids.
* The first evaluation of a device after the agent's start is not guarded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

import msgspec


class GuardedDevice(Protocol):
    """A device as the guard reads it. ``withdraws``: a fault makes it Unhealthy. ``over``: such faults have ended and
    only wait for their time to clear. The witnesses are the sources that report them."""

    @property
    def withdraws(self) -> bool: ...

    @property
    def over(self) -> bool: ...

    def witnesses(self) -> frozenset[str]: ...


class Guard(msgspec.Struct):
    """``share`` of the weights may become Unhealthy within ``seconds`` with one witness each; 1 switches the guard
    off. ``least`` is allowed in any case."""

    share: float = 0.5
    seconds: float = 60.0
    least: float = 0.0
    _allocatable: dict[str, bool] = {}
    _withdrawn: dict[str, tuple[float, int]] = {}
    _held_since: dict[str, float] = {}

    def judge(self, devices: Mapping[str, GuardedDevice], weights: Mapping[str, int], now: float) -> None:
        """Decide for each device whether it is allocatable now. A device without a weight counts 1."""
        budget = max(self.least, self.share * sum(weights.get(key, 1) for key in devices))
        self._withdrawn = {
            key: (at, weight)
            for key, (at, weight) in self._withdrawn.items()
            if at + self.seconds > now and key in devices and devices[key].withdraws
        }
        for key, device in devices.items():
            if not device.withdraws:
                self._held_since.pop(key, None)
                self._allocatable[key] = True
                continue
            before = self._allocatable.get(key)
            if before is not False:
                weight = weights.get(key, 1)
                spent = sum(weight for _, weight in self._withdrawn.values())
                free = before is None or spent + weight <= budget
                if not (free or len(device.witnesses()) > 1 or self._has_lasted(key, device, now)):
                    continue
                if before is not None:
                    self._withdrawn[key] = now, weight
            self._held_since.pop(key, None)
            self._allocatable[key] = False

    def _has_lasted(self, key: str, device: GuardedDevice, now: float) -> bool:
        if device.over:
            self._held_since[key] = now
        return now >= self._held_since.setdefault(key, now) + self.seconds

    def allocatable(self, key: str) -> bool:
        return self._allocatable.get(key, True)

    def holds_back(self, key: str) -> bool:
        """Whether the device has a fault and stays allocatable."""
        return key in self._held_since

    def due(self) -> Iterator[float]:
        """The moments at which a device that is held back may become Unhealthy."""
        if self._held_since:
            yield from (at + self.seconds for at, _ in self._withdrawn.values())
            yield from (at + self.seconds for at in self._held_since.values())
