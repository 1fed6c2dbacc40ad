"""One GPU under rules: the last readings of its driver, and the faults by events, readings and measured values. Pure.

A lost GPU recovers when the driver lists it again, a recovery action when the driver no longer asks for it. Both show
a reset, and a reset ends XIDs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from msgspec import structs

from nodeagent.facts.model import Health, Reason, State
from nodeagent.health.gpu_settings import GpuSettings
from nodeagent.health.history import Counter, is_ones
from nodeagent.health.hold import Hold
from nodeagent.health.judged_device import DeviceFigures, JudgedDevice, gravest
from nodeagent.health.record import GpuRecord, MeasuredHold, MeasuredRecord, XidFault
from nodeagent.health.rule import Measured, Rule
from nodeagent.health.rules.gpu_rules import (
    EXCLUDED,
    FABRIC_NOT_READY,
    LOST,
    MIG_ENABLED,
    MISMATCH,
    NVLINK_ERRORS,
    PASSTHROUGH,
    RECOVERY_PREFIX,
    UNREADABLE,
    GpuView,
    Whereabouts,
    measured_rules,
    nvlink_states,
    recovery_rule,
    wanted_action,
)
from nodeagent.health.rules.xids import NO_EVENT, Severity, event, severity, xid_rule
from nodeagent.host.gpu_driver import GpuReading, GpuVitals

_ERRORS_MAX_PER_S = 1e12
"""More than the 18 NVLinks of a GPU can carry: each has 2e11 bits per second in each direction."""


class GpuRules:
    """The rules that all GPUs of a node share."""

    def __init__(self, settings: GpuSettings) -> None:
        self.settings = settings
        self.measured = measured_rules(settings.health)
        self.measured_in_mig_mode = measured_rules(settings.health, mig=True)


class GpuState(JudgedDevice):
    kind = "gpu"
    watched = True

    def __init__(self, reading: GpuReading, now: float, rules: GpuRules) -> None:
        super().__init__()
        self.reading = reading
        """``uuid``, and of every other field the last value that the driver reported."""
        self.read_at = now
        self.measured_values: Mapping[str, float] = {}
        self.links: frozenset[int] = frozenset()
        """The NVLinks that were up in this boot."""
        self.number: int | None = None
        """The published index. It stays while a GPU is lost, when NVML counts without that GPU."""
        self.listed = True
        """Whether the last reading of the driver contained it."""
        self.whereabouts = Whereabouts()
        self.mismatch: str | None = None
        self._shared = rules
        self._xids: dict[int | None, Rule] = {}
        """The XIDs with a fault, in their order; ``None`` is an unavailable GPU."""
        self._nvlink_errors: dict[str, tuple[Counter, float]] = {}
        """Each counter, and the time of its last reading."""
        self._nvlink_errors_per_s: float | None = None
        self._reset = False
        """The GPU was reset, and its measured values were not read since."""

    @property
    def uuid(self) -> str:
        return self.reading.uuid or ""

    @property
    def index(self) -> int:
        return self.reading.index if self.number is None else self.number

    @property
    def lost(self) -> bool:
        return self.is_active(LOST.key)

    # --- events, readings, measured values ------------------------------------------------------------

    def take_event(self, xid: int | None, now: float) -> None:
        if severity(xid, self._shared.settings) is Severity.IGNORE:
            return
        self._latch(xid, now)

    def _latch(self, xid: int | None, at: float) -> None:
        if xid not in self._xids:
            known = {**self._xids, xid: xid_rule(xid, self._shared.settings)}
            self._xids = {
                key: known[key] for key in sorted(known, key=lambda xid: -1 if xid is None else xid)
            }
        self.step_rule(self._xids[xid], event(xid), at)

    def take_reading(
        self, reading: GpuReading | None, now: float, whereabouts: Whereabouts | None = None
    ) -> None:
        """``None``: the driver does not list this GPU, which is then at ``whereabouts``."""
        before, was_lost, last_read_at = wanted_action(self.reading), self.lost, self.read_at
        self.read_at = now
        self.listed, self.whereabouts = reading is not None, whereabouts or Whereabouts()
        if reading is None:
            self.reading = structs.replace(self.reading, lost=True)
            self._step_reading(now)
            return
        self.reading = _merge(self.reading, reading)
        action = wanted_action(self.reading)
        was_carried_out = before is not None and action is None
        if was_carried_out:
            self._end_xids(last_read_at)
        if reading.fault is None and not reading.lost and action is None:
            for rule in self._xids.values():
                self.step_rule(rule, NO_EVENT, now)
        self._xids = {xid: rule for xid, rule in self._xids.items() if self.is_active(rule.key)}
        self._step_reading(now)
        self._reset = self._reset or was_carried_out or (was_lost and not reading.lost)

    def take_mismatch(self, sentence: str | None, now: float) -> None:
        """``None``: library and kernel module of the driver have the same version, as far as is known."""
        self.mismatch = sentence
        self.step_rule(MISMATCH, MISMATCH.measure(self._view()), now)

    def _end_xids(self, until: float) -> None:
        """End the XIDs before a reset. An event after the reading that still asked for the action is newer."""
        for rule in self._xids.values():
            hold = self.holds[rule.key]
            if hold.since is not None and hold.since <= until:
                hold.end()

    def _step_reading(self, now: float) -> None:
        rules = (*self._announced(), UNREADABLE, MIG_ENABLED)
        keys = {rule.key for rule in rules}
        for key in [key for key in self.holds if key.startswith(RECOVERY_PREFIX) and key not in keys]:
            del self.holds[key]
        view = self._view()
        for rule in rules:
            self.step_rule(rule, rule.measure(view), now)
        if not self.measured_values:
            self._step_first_registration(view, now)

    def _step_first_registration(self, view: GpuView, now: float) -> None:
        """A GPU that is first seen without its fabric has not worked yet, and is not offered before it does. Its
        measured values may come a second later; the kubelet may have a pod for it by then."""
        for rule in self.measured_rules:
            if rule.key == FABRIC_NOT_READY and rule.enabled:
                self.step_rule(structs.replace(rule, enter_for_s=0.0), rule.measure(view), now)

    def take_vitals(self, vitals: GpuVitals, now: float) -> None:
        self.measured_values = vitals.values
        self.links |= {link for link, up in nvlink_states(vitals.values).items() if up}
        self._count_nvlink_errors(vitals.values, now)
        view = self._view()
        for rule in self.measured_rules:
            measured = rule.measure(view)
            if measured is None:
                self.values.pop(rule.key, None)
            else:
                self.values[rule.key] = measured.value
            if rule.enabled:
                self.step_rule(rule, measured, now, reset=self._reset)
            else:
                self.holds.pop(rule.key, None)
        self._reset = False

    def _count_nvlink_errors(self, values: Mapping[str, float], now: float) -> None:
        rates = []
        for name in NVLINK_ERRORS:
            count = values.get(name)
            if count is None or is_ones(count):
                continue
            counter, read_at = self._nvlink_errors.get(name) or (Counter(count, now, 0.0), now)
            self._nvlink_errors[name] = counter, now
            added, seconds = counter.take(count, now, _ERRORS_MAX_PER_S), now - read_at
            if added is not None and 0 < seconds <= self._shared.settings.health.gap_s:
                rates.append(added / seconds)
        self._nvlink_errors_per_s = sum(rates) if rates else None

    def _view(self) -> GpuView:
        return GpuView(
            self.reading,
            self.measured_values,
            self.links,
            self._shared.settings.health,
            self.whereabouts,
            self.mismatch,
            self._nvlink_errors_per_s,
        )

    # --- evaluation -----------------------------------------------------------------------------------

    @property
    def measured_rules(self) -> tuple[Rule, ...]:
        return self._shared.measured_in_mig_mode if self.reading.mig else self._shared.measured

    @property
    def rules(self) -> Sequence[Rule]:
        xids = tuple(self._xids.values())
        measured = tuple(rule for rule in self.measured_rules if rule.enabled)
        return (
            *self._announced(),
            *(rule for rule in xids if rule.withdraws),
            *(rule for rule in measured if rule.withdraws),
            UNREADABLE,
            *(rule for rule in xids if not rule.withdraws),
            *(rule for rule in measured if not rule.withdraws),
            MIG_ENABLED,
        )

    def _announced(self) -> Iterator[Rule]:
        yield from (MISMATCH, LOST, PASSTHROUGH, EXCLUDED)
        if (action := wanted_action(self.reading)) is not None:
            yield recovery_rule(action)

    def measure_all(self) -> Iterator[tuple[Rule, Measured | None]]:
        """Of events and readings only the active rules appear."""
        for rule in (*self._announced(), *self._xids.values()):
            if self.is_active(rule.key):
                yield rule, None
        if self.in_doubt or self.is_active(UNREADABLE.key):
            yield UNREADABLE, UNREADABLE.measure(self._view())
        view = self._view()
        for rule in self.measured_rules:
            yield rule, rule.measure(view)

    @property
    def in_doubt(self) -> bool:
        """Its calls fail, but not for long enough to make it Unhealthy."""
        hold = self.holds.get(UNREADABLE.key)
        return hold is not None and hold.since is not None and not hold.active

    def witnesses(self) -> frozenset[str]:
        rules = [fault.rule for fault in self.active]
        if self.in_doubt:
            rules.append(UNREADABLE)
        return frozenset().union(*(rule.witnesses for rule in rules))

    def health(self) -> Health:
        """Return the health before the guard. MIG is not a fault: such a GPU is healthy, and its MIG devices are."""
        reasons = [Reason(fault.rule.key, fault.hold.text) for fault in self.active]
        state = gravest(fault.rule.state for fault in self.active)
        if self.in_doubt:
            slight = sum(fault.rule.withdraws for fault in self.active)
            sentence = f"The driver cannot read this GPU: {self.reading.fault}."
            reasons.insert(slight, Reason(UNREADABLE.key, sentence))
            state = State.UNHEALTHY if state is State.UNHEALTHY else State.UNKNOWN
        return Health(state, tuple(reasons), allocatable=not self.withdraws)

    def figures(self) -> DeviceFigures:
        return DeviceFigures(self.changed_at, None, dict(self.transitions), dict(self.values))

    # --- over a restart -------------------------------------------------------------------------------

    def record(self) -> GpuRecord:
        holds = [
            MeasuredHold(rule.key, detail=hold.text, since=hold.since)
            for rule in self.measured_rules
            if (hold := self.holds.get(rule.key)) is not None and hold.active
        ]
        faults = [XidFault(xid, self.holds[rule.key].since or 0.0) for xid, rule in self._xids.items()]
        return GpuRecord(
            self.reading,
            self.read_at,
            tuple(faults),
            self.lost,
            self._unreadable_since(),
            MeasuredRecord(tuple(holds), tuple(sorted(self.links))),
            self._reset,
        )

    def _unreadable_since(self) -> float | None:
        rule = UNREADABLE
        hold = self.holds.get(rule.key)
        if hold is None or hold.since is None:
            return None
        return max(0.0, hold.since - rule.enter_for_s) if hold.active else hold.since

    @classmethod
    def restore(cls, record: GpuRecord, rules: GpuRules) -> GpuState:
        gpu = cls(structs.replace(record.reading, lost=record.lost), record.read_at, rules)
        gpu.links, gpu._reset = frozenset(record.measured.links), record.reset
        for fault in record.faults:
            if severity(fault.xid, rules.settings) is not Severity.IGNORE:
                gpu._latch(fault.xid, fault.at)
        for hold in record.measured.holds:
            gpu.holds[hold.fault] = Hold(active=True, since=hold.since, text=hold.detail)
        if record.unreadable_since is not None:
            gpu.holds[UNREADABLE.key] = Hold(since=record.unreadable_since)
        gpu._step_reading(record.read_at)
        return gpu


def _merge(old: GpuReading, new: GpuReading) -> GpuReading:
    """Keep the last value of each field that could not be read. In a reading without errors ``None`` is a value."""
    if new.fault is None and not new.lost:
        return new
    kept = {
        field.name: getattr(old, field.name)
        for field in structs.fields(GpuReading)
        if field.name != "fault" and getattr(new, field.name) is None
    }
    return structs.replace(new, **kept, mig=new.mig or old.mig)
