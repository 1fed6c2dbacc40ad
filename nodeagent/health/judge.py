"""The judge of the PFs or GPUs of a node: rules → holds → faults → health. Pure.

* A rule (``rule.py``) reads one value of a device, and its hold (``hold.py``) decides when a fault starts and ends.
* The reasons of a device are its active faults, the gravest first; its state is the gravest of theirs.
* The guard (``guard.py``) keeps most devices of a node Healthy while a single source reports their faults.

``nic.py`` and ``gpu.py`` have what the rules of PFs and of GPUs read, and the remarks that no rule makes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Generic, Literal, NamedTuple, TypeVar

import msgspec

from nodeagent.facts.model import Health, Reason, State
from nodeagent.health.guard import Guard
from nodeagent.health.health_settings import GuardSettings
from nodeagent.health.hold import Hold
from nodeagent.health.rule import Measured, Rule, gravest


class ActiveFault(NamedTuple):
    rule: Rule
    hold: Hold


class DeviceFigures(msgspec.Struct, frozen=True):
    """The figures of one PF or GPU for metrics. ``since`` is CLOCK_BOOTTIME. ``transitions`` counts changes of the
    state by (from, to). ``values`` are the last values of the rules, in their units, and ``expected_speed_mbps``.
    ``implausible`` counts dropped values of counters."""

    since: float | None
    penalty: float | None = None
    transitions: Mapping[tuple[str, str], int] = {}
    values: Mapping[str, float] = {}
    implausible: int | None = None


class JudgedDevice:
    """A PF or a GPU: its holds, its active faults, its state and the changes of that state."""

    kind: Literal["nic", "gpu"]
    watched = False
    """True once the link has been up, or is expected: from then on a missing link is a fault."""

    def __init__(self) -> None:
        self.holds: dict[str, Hold] = {}
        self.values: dict[str, float] = {}
        """The last value of each rule, in its unit."""
        self.state = State.UNKNOWN
        self.changed_at: float | None = None
        """When the state last changed."""
        self.transitions: Counter[tuple[str, str]] = Counter()

    @property
    def rules(self) -> Sequence[Rule]:
        """The rules of this device, the gravest first."""
        raise NotImplementedError

    def measure_all(self) -> Iterator[tuple[Rule, Measured | None]]:
        """Every rule to explain, with its present value."""
        raise NotImplementedError

    def witnesses(self) -> frozenset[str]:
        """The sources that report its faults."""
        raise NotImplementedError

    def reason(self, fault: ActiveFault) -> Reason:
        return Reason(fault.rule.key, fault.hold.text)

    def guard_sentence(self, seconds: float) -> str:
        """Return why the guard keeps it Healthy, which lasts for at most so many seconds."""
        raise NotImplementedError

    def remark(self, state: State, reasons: list[Reason]) -> State:
        """Add the reasons that no rule gives. Return the state with them."""
        raise NotImplementedError

    def health(self, guard: Guard, key: str) -> Health:
        """Return the health after the guard, which has the device by this key."""
        active = self.active
        reasons = [self.reason(fault) for fault in active]
        if guard.holds_back(key):
            reasons.append(Reason("guard", self.guard_sentence(guard.seconds), warning=True))
        state = self.remark(gravest(fault.rule.state for fault in active), reasons)
        return Health(state, tuple(reasons), allocatable=guard.holds_back(key) or not self.withdraws)

    def step_rule(self, rule: Rule, measured: Measured | None, now: float, *, reset: bool = False) -> None:
        """Apply one value of one rule."""
        hold = self.holds.get(rule.key)
        if hold is None:
            if measured is None:
                return
            hold = self.holds[rule.key] = Hold()
        hold.step(rule, measured, now, reset=reset)

    def is_active(self, key: str) -> bool:
        hold = self.holds.get(key)
        return hold is not None and hold.active

    @property
    def active(self) -> list[ActiveFault]:
        """The active faults, the gravest first."""
        if not [hold for hold in self.holds.values() if hold.active]:
            return []  # the usual case
        return [ActiveFault(rule, self.holds[rule.key]) for rule in self.rules if self.is_active(rule.key)]

    @property
    def withdraws(self) -> bool:
        """Whether a fault makes the device Unhealthy for the kubelet."""
        return any(fault.rule.withdraws for fault in self.active)

    @property
    def over(self) -> bool:
        """Whether the faults that withdraw the device have ended and only wait for their time to clear."""
        return all(fault.hold.good_since is not None for fault in self.active if fault.rule.withdraws)

    def set_state(self, state: State, now: float) -> None:
        if self.changed_at is not None and state is self.state:
            return
        if self.changed_at is not None:
            self.transitions[self.state.value, state.value] += 1
        self.state, self.changed_at = state, now


_Device = TypeVar("_Device", bound=JudgedDevice)


class Judge(Generic[_Device]):
    """The judge of all devices of one kind."""

    least = 0.0
    """The guard lets so many devices pass in any case."""

    def __init__(self, guard: GuardSettings) -> None:
        self.devices: dict[str, _Device] = {}
        """PFs by PCI address, GPUs by UUID in the order of the driver."""
        self._guard = Guard(guard.share, guard.seconds, self.least)
        self.cordons: Mapping[str, Reason] = {}
        """Of the devices that a person keeps from new pods. They change no state, and the guard counts none."""

    def adopt_guard(self, guard: GuardSettings) -> None:
        """Apply changed settings of the guard, from the next evaluation on."""
        self._guard.share, self._guard.seconds = guard.share, guard.seconds

    def _judge_devices(self, now: float, weights: Mapping[str, int] | None = None) -> dict[str, Health]:
        """Return the health of each device by its present faults. A device without a weight counts 1."""
        self._guard.judge(self.devices, weights or {}, now)
        judged = {key: device.health(self._guard, key) for key, device in self.devices.items()}
        for key, health in judged.items():
            self.devices[key].set_state(health.state, now)
        return judged
