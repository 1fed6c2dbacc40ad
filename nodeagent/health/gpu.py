"""The GPUs of a node under their rules: events, readings and measured values in, the health of every GPU out. Pure.

* Evidence is about one GPU. An error of the whole driver, or no answer from it, makes no GPU Unhealthy.
* A GPU that was once known stays known until another GPU is in its slot, or a command drops it: a pod may hold it.
* While a known GPU is missing, the others keep their indexes, although NVML counts without it: a selection by index
  would otherwise move GPUs from one resource to another. One on the bus that the driver has never listed counts too.
* A lost GPU recovers when the driver lists it again, a recovery action when the driver no longer asks for it. Both show
  a reset, and a reset ends XIDs.
* Equal facts give equal answers: a reason contains nothing that counts or ages.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec
from msgspec import structs

from nodeagent.base.duration import duration
from nodeagent.facts.model import GpuFunction, Health, Reason, State
from nodeagent.health.cordons import with_cordon
from nodeagent.health.device_failure import failed_since
from nodeagent.health.gpu_settings import GpuSettings
from nodeagent.health.guard import Guard
from nodeagent.health.health_settings import GuardSettings
from nodeagent.health.history import Counter, is_ones
from nodeagent.health.hold import Hold
from nodeagent.health.judge import DeviceFigures, Judge, JudgedDevice
from nodeagent.health.record import GpuRecord, MeasuredHold, MeasuredRecord, XidFault
from nodeagent.health.rule import Measured, Rule
from nodeagent.health.rules.gpu_rules import (
    EXCLUDED,
    FABRIC_NOT_READY,
    LOST,
    MIG_ENABLED,
    MISMATCH,
    NVIDIA_DRIVER,
    NVLINK_ERRORS,
    NVLINK_SYMBOL_ERRORS,
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
from nodeagent.health.rules.xids import (
    NO_EVENT,
    Severity,
    measured_event,
    measured_repeats,
    needs_reset,
    repeated_rule,
    severity,
    xid_rule,
)
from nodeagent.health.xid_history import XidHistory
from nodeagent.host.gpu_driver import DriverMessage, GpuEvent, GpuReading, GpuVitals

KNOWN_MAX = 64
"""New UUIDs in the life of one agent. A driver with another UUID at each reading would make the device list grow. GPUs
of earlier agents do not count: they must not take the place of a GPU that the driver lists."""
_INDEX_MAX = 1023
_ERRORS_MAX_PER_S = 1e12
"""More than the 18 NVLinks of a GPU can carry: each has 2e11 bits per second in each direction."""


class GpuRules:
    """The rules that all GPUs of a node share."""

    def __init__(self, settings: GpuSettings) -> None:
        self.settings = settings
        self.measured = measured_rules(settings.health)
        self.measured_in_mig_mode = measured_rules(settings.health, mig=True)
        self.repeated = repeated_rule(settings)
        self.switch_error: DriverMessage | None = None
        """The last fatal error of an NVSwitch, while it is new."""
        self.switch_error_at = 0.0


class GpuState(JudgedDevice):
    """One GPU under rules: the last readings of its driver, and its faults by events, readings and measured values."""

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
        self.xid_history = XidHistory()
        self._nvlink_errors: dict[str, tuple[Counter, float]] = {}
        """Each counter, and the time of its last reading."""
        self._nvlink_errors_per_s: Mapping[str, float] = {}
        self._reset = False
        """The GPU was reset, and its measured values were not read since."""
        self.failed_since: float | None = None

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
        if xid is not None:
            self.xid_history.add(xid, now, self._shared.settings)
            self._step_repeats(now)
        effect = severity(xid, self._shared.settings)
        if effect is Severity.IGNORE or (
            effect is Severity.ACTION and self.reading.recovery_action is not None
        ):
            return
        self._latch(xid, now)

    def _step_repeats(self, now: float) -> None:
        settings = self._shared.settings
        self.step_rule(
            self._shared.repeated, measured_repeats(self.xid_history.repeated(now, settings), settings), now
        )

    def take_message(self, message: DriverMessage, now: float) -> None:
        """Decode an XID by its line in the kernel log, which may come before or after the event. A line alone is no
        fault."""
        self.xid_history.take_line(message, now)
        rule = self._xids.get(message.number)
        hold = None if rule is None else self.holds[rule.key]
        if hold is not None and self.xid_history.line(message.number, hold.since or 0.0) is not None:
            sentence = measured_event(message.number, message).sentence
            self._decode(message.number, needs_reset(message), sentence)

    def _decode(self, xid: int | None, fatal: bool, sentence: str | None) -> None:
        """Let the kernel log decide about an active XID. The text changes once, and again if the error is graver."""
        rule = self._xids[xid]
        hold, graver = self.holds[rule.key], fatal and not rule.withdraws
        if graver:
            self._xids[xid] = xid_rule(xid, self._shared.settings, fatal=True)
        if sentence and (graver or hold.text == measured_event(xid).sentence):
            hold.text = sentence

    def _latch(self, xid: int | None, at: float) -> None:
        message = self.xid_history.line(xid, at)
        if xid not in self._xids:
            known = {**self._xids, xid: xid_rule(xid, self._shared.settings)}
            self._xids = {
                key: known[key] for key in sorted(known, key=lambda xid: -1 if xid is None else xid)
            }
        self.step_rule(self._xids[xid], measured_event(xid), at)
        if message is not None:
            self._decode(xid, needs_reset(message), measured_event(xid, message).sentence)

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
            # An event after the reading that still asked for the action is newer than the reset.
            for hold in (self.holds[rule.key] for rule in self._xids.values()):
                if hold.since is not None and hold.since <= last_read_at:
                    hold.end()
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

    def _step_reading(self, now: float) -> None:
        rules = (*self._announced(), UNREADABLE, MIG_ENABLED)
        keys = {rule.key for rule in rules}
        for key in [key for key in self.holds if key.startswith(RECOVERY_PREFIX) and key not in keys]:
            del self.holds[key]
        view = self._view()
        for rule in rules:
            self.step_rule(rule, rule.measure(view), now)
        self._step_repeats(now)
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
        rates: dict[str, float] = {}
        for name in (*NVLINK_ERRORS, NVLINK_SYMBOL_ERRORS):
            count = values.get(name)
            if count is None or is_ones(count):
                continue
            counter, read_at = self._nvlink_errors.get(name) or (Counter(count, now, 0.0), now)
            self._nvlink_errors[name] = counter, now
            added, seconds = counter.take(count, now, _ERRORS_MAX_PER_S), now - read_at
            if added is not None and 0 < seconds <= self._shared.settings.health.gap_s:
                rates[name] = added / seconds
        self._nvlink_errors_per_s = rates

    def _view(self) -> GpuView:
        return GpuView(
            self.reading,
            self.measured_values,
            self.links,
            self._shared.settings.health,
            self.whereabouts,
            self.mismatch,
            self._nvlink_errors_per_s,
            self._shared.switch_error,
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
            self._shared.repeated,
            *(rule for rule in measured if not rule.withdraws),
            MIG_ENABLED,
        )

    def _announced(self) -> Iterator[Rule]:
        yield from (MISMATCH, LOST, PASSTHROUGH, EXCLUDED)
        if (action := wanted_action(self.reading)) is not None:
            yield recovery_rule(action)

    def measure_all(self) -> Iterator[tuple[Rule, Measured | None]]:
        """Of events and readings only the active rules appear."""
        for rule in (*self._announced(), *self._xids.values(), self._shared.repeated):
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

    def guard_sentence(self, seconds: float) -> str:
        why = "only one source reports faults of most GPUs of this node; the devices stay Healthy"
        return f"{why} until a second source confirms them, or for {duration(seconds)}"

    def remark(self, state: State, reasons: list[Reason]) -> State:
        if not self.in_doubt:
            return state
        slight = sum(fault.rule.withdraws for fault in self.active)
        sentence = f"The driver cannot read this GPU: {self.reading.fault}."
        reasons.insert(slight, Reason(UNREADABLE.key, sentence))
        return State.UNHEALTHY if state is State.UNHEALTHY else State.UNKNOWN

    def figures(self) -> DeviceFigures:
        return DeviceFigures(self.changed_at, None, dict(self.transitions), dict(self.values))

    # --- over a restart -------------------------------------------------------------------------------

    def record(self) -> GpuRecord:
        holds = [
            MeasuredHold(rule.key, detail=hold.text, since=hold.since)
            for rule in self.measured_rules
            if (hold := self.holds.get(rule.key)) is not None and hold.active
        ]
        faults = []
        for xid, rule in self._xids.items():
            graver = rule.withdraws and not xid_rule(xid, self._shared.settings).withdraws
            faults.append(XidFault(xid, self.holds[rule.key].since or 0.0, graver, self.holds[rule.key].text))
        return GpuRecord(
            self.reading,
            self.read_at,
            tuple(faults),
            self.lost,
            self._unreadable_since(),
            MeasuredRecord(tuple(holds), tuple(sorted(self.links))),
            self._reset,
            dict(self.xid_history.times),
            self.failed_since,
        )

    def _unreadable_since(self) -> float | None:
        hold = self.holds.get(UNREADABLE.key)
        if hold is None or hold.since is None:
            return None
        return max(0.0, hold.since - UNREADABLE.enter_for_s) if hold.active else hold.since

    @classmethod
    def restore(cls, record: GpuRecord, rules: GpuRules) -> GpuState:
        gpu = cls(structs.replace(record.reading, lost=record.lost), record.read_at, rules)
        gpu.links, gpu._reset = frozenset(record.measured.links), record.reset
        gpu.failed_since = record.failed_since
        for fault in record.faults:
            if severity(fault.xid, rules.settings) is not Severity.IGNORE:
                gpu._latch(fault.xid, fault.at)
                gpu._decode(fault.xid, fault.fatal, fault.detail)
        gpu.xid_history = XidHistory(record.xid_times)
        for hold in record.measured.holds:
            gpu.holds[hold.fault] = Hold(active=True, since=hold.since, text=hold.detail)
        if record.unreadable_since is not None:
            gpu.holds[UNREADABLE.key] = Hold(since=record.unreadable_since)
        gpu._step_reading(record.read_at)
        return gpu


def _merge(old: GpuReading, new: GpuReading) -> GpuReading:
    """Keep the last value of each field that could not be read. In a reading without errors ``None`` is a value, except
    for the places of MIG devices, whose errors are not a fault of the GPU."""
    if new.fault is None and not new.lost:
        return structs.replace(
            new,
            mig_profiles=old.mig_profiles if new.mig_profiles is None else new.mig_profiles,
            mig_instances=old.mig_instances if new.mig_instances is None else new.mig_instances,
        )
    kept = {
        field.name: getattr(old, field.name)
        for field in structs.fields(GpuReading)
        if field.name != "fault" and getattr(new, field.name) is None
    }
    return structs.replace(new, **kept, mig=new.mig or old.mig)


class JudgedGpu(msgspec.Struct, frozen=True):
    """A GPU with its health. ``reading`` holds the UUID, and of every other field the last value that the driver
    reported. ``listed``: the last reading of the driver contained it. ``lost``: nobody has kept it from the driver."""

    reading: GpuReading
    index: int
    listed: bool
    lost: bool
    health: Health


class JudgedGpus(msgspec.Struct, frozen=True):
    """The GPUs by UUID, in their order. ``unnamed`` are the readings of the last list that name none of them."""

    gpus: Mapping[str, JudgedGpu] = {}
    unnamed: tuple[GpuReading, ...] = ()


class GpuJudge(Judge[GpuState]):
    least = 1.0  # a single GPU, whatever its share of the node

    def __init__(self, settings: GpuSettings | None = None, guard: GuardSettings | None = None) -> None:
        super().__init__(guard or GuardSettings())
        self.settings = settings or GpuSettings()
        self.replaced: list[tuple[str, str]] = []
        """The UUIDs of GPUs that were replaced in their slot, each with the new one; the caller empties the list."""
        self._known = 0
        self._rules = GpuRules(self.settings)
        self._unnamed: tuple[GpuReading, ...] = ()
        self._hidden: tuple[str, ...] | None = None
        """The PCI addresses of GPUs that the driver should list and never did; ``None``: the bus is not known."""
        self._recalled: dict[str, int] = {}
        """The indexes that an earlier agent has published, by UUID."""
        self._health: dict[str, Health] = {}
        self._driver_failure: str | None = None

    def take_events(self, events: Iterable[GpuEvent], now: float) -> None:
        """An event of a GPU that was never read is dropped."""
        for event in events:
            gpu = self.devices.get(event.uuid or "")
            if gpu is not None and (event.xid is not None or event.unavailable):
                gpu.take_event(event.xid, now)
                for other in self.devices.values():
                    if other is not gpu and event.xid is not None:
                        other.xid_history.forgive(event.xid)

    def take_messages(self, messages: Iterable[DriverMessage], now: float) -> None:
        """Take new lines of the kernel log about NVLinks and NVSwitches."""
        for message in messages:
            if message.switch:
                if message.fatal:
                    self._rules.switch_error, self._rules.switch_error_at = message, now
                continue
            for gpu in self.devices.values():
                if (gpu.reading.pci_address or "").partition(".")[0] == message.pci_address:
                    gpu.take_message(message, now)

    def take_readings(
        self,
        readings: Sequence[GpuReading],
        now: float,
        bus: Mapping[str, GpuFunction] | None = None,
        mismatch: str | None = None,
    ) -> None:
        """Take one reading of all GPUs. A GPU that it does not contain is lost.

        ``bus`` has the GPUs on the PCI bus, by address; ``None``: it was not read yet.
        ``mismatch`` is a sentence if library and kernel module of the driver differ.
        """
        by_uuid = self._identify(readings)
        for uuid, reading in tuple(by_uuid.items()):
            if uuid not in self.devices and not self._add(reading, by_uuid, now):
                del by_uuid[uuid]
        used = {id(reading) for reading in by_uuid.values()}
        self._unnamed = tuple(reading for reading in readings if id(reading) not in used)
        for uuid, gpu in self.devices.items():
            gpu.take_mismatch(mismatch, now)
            gpu.take_reading(self._with_uuid(by_uuid, uuid), now, self._whereabouts(gpu, bus))
        self._look_for_hidden(bus)
        self._number()

    def _add(self, reading: GpuReading, by_uuid: Mapping[str, GpuReading], now: float) -> bool:
        """Take a new GPU; the one that was in its slot is forgotten. ``False``: there were too many."""
        uuid, address = reading.uuid or "", reading.pci_address
        if self._known >= KNOWN_MAX:
            return False
        for old, gpu in tuple(self.devices.items()):
            if address is not None and gpu.reading.pci_address == address and old not in by_uuid:
                self.forget(old)
                self.replaced.append((old, uuid))
        self.devices[uuid] = GpuState(reading, now, self._rules)
        self._known += 1
        return True

    def locate(self, bus: Mapping[str, GpuFunction], now: float) -> None:
        """Take the GPUs on the PCI bus, which are known for the first time: they explain why a GPU is not listed."""
        for gpu in self.devices.values():
            if not gpu.listed:
                gpu.take_reading(None, now, self._whereabouts(gpu, bus))
        self._look_for_hidden(bus)
        self._number()

    def _look_for_hidden(self, bus: Mapping[str, GpuFunction] | None) -> None:
        """Find the GPUs that the driver should list and does not name. The first look makes the numbers again that were
        given without it."""
        if bus is None:
            return
        named = {gpu.reading.pci_address for gpu in self.devices.values()}
        named |= {reading.pci_address for reading in self._unnamed}
        hidden = [
            address
            for address, function in sorted(bus.items())
            if address not in named
            and function.driver == NVIDIA_DRIVER
            and Whereabouts(True, function).intended is None
        ]
        first, self._hidden = self._hidden is None, tuple(hidden)
        if first and self._hidden:
            for uuid, gpu in self.devices.items():
                gpu.number = self._recalled.get(uuid)

    @staticmethod
    def _with_uuid(by_uuid: Mapping[str, GpuReading], uuid: str) -> GpuReading | None:
        reading = by_uuid.get(uuid)
        return None if reading is None else structs.replace(reading, uuid=uuid)

    @staticmethod
    def _whereabouts(gpu: GpuState, bus: Mapping[str, GpuFunction] | None) -> Whereabouts:
        address = gpu.reading.pci_address
        if bus is None or address is None:
            return Whereabouts()
        return Whereabouts.on(bus, address)

    def recall(self, readings: Iterable[GpuReading], now: float) -> None:
        """Take the GPUs of an earlier agent, each with its last known values. They are lost until they are read."""
        for reading in readings:
            uuid = reading.uuid or ""
            if uuid not in self.devices:
                self.devices[uuid] = GpuState(reading, now, self._rules)
                self.devices[uuid].listed = False
            self.devices[uuid].number = self._recalled[uuid] = reading.index
        self._number()

    def forget(self, uuid: str) -> None:
        """Forget a GPU that is gone for good."""
        self.devices.pop(uuid, None)
        self._health.pop(uuid, None)

    def take_mismatch(self, sentence: str, now: float) -> None:
        """Library and kernel module of the driver have different versions, so that it does not answer."""
        for gpu in self.devices.values():
            gpu.take_mismatch(sentence, now)

    def take_vitals(self, vitals: Iterable[GpuVitals], now: float) -> None:
        """Take the measured values of some GPUs."""
        if now - self._rules.switch_error_at > self.settings.health.gap_s:  # each GPU has been measured since
            self._rules.switch_error = None
        for values in vitals:
            if (gpu := self.devices.get(values.uuid)) is not None:
                gpu.take_vitals(values, now)

    def _identify(self, readings: Sequence[GpuReading]) -> dict[str, GpuReading]:
        """Return the readings by UUID. A reading without one is of the known GPU at its PCI address, or without an
        address of the one that was last at its index, unless that GPU has a reading of its own."""
        by_uuid: dict[str, GpuReading] = {}
        for reading in readings:
            if reading.uuid is not None:
                by_uuid.setdefault(reading.uuid, reading)
        at_address = {gpu.reading.pci_address: uuid for uuid, gpu in self.devices.items()}
        at_index = self._at_index(readings, by_uuid)
        for reading in readings:
            if reading.uuid is None:
                known = at_index.get(reading.index)
                if reading.pci_address is not None:
                    known = at_address.get(reading.pci_address)
                if known is not None and known not in by_uuid:
                    by_uuid[known] = reading
        return by_uuid

    def _at_index(self, readings: Sequence[GpuReading], by_uuid: Mapping[str, GpuReading]) -> dict[int, str]:
        """The known GPUs by their index in the last reading, or as an earlier agent knew them. Empty if the count has
        changed: NVML counts those that it lists, so each index behind one that is gone is that of another GPU."""
        last = {gpu.reading.index: uuid for uuid, gpu in self.devices.items() if gpu.listed}
        last = last or {gpu.reading.index: uuid for uuid, gpu in self.devices.items()}
        as_many = len(readings) == len(last) + len(self._unnamed)
        in_place = all(last.get(reading.index) == uuid for uuid, reading in by_uuid.items())
        return last if as_many and in_place else {}

    def _number(self) -> None:
        """Number the GPUs and sort them: by NVML's index, or by the last number while one is not listed. NVML counts in
        the order of the bus, so a new GPU comes behind those before it that are not listed."""
        uncounted = self._uncounted()
        if not uncounted and all(gpu.listed for gpu in self.devices.values()):
            for gpu in self.devices.values():
                gpu.number = None
        taken: set[int] = set()
        order = sorted(
            self.devices.items(), key=lambda entry: (entry[1].number is None, entry[1].index, entry[0])
        )
        for _, gpu in order:
            number = gpu.index
            if gpu.number is None and gpu.reading.pci_address is not None:
                number += sum(address < gpu.reading.pci_address for address in uncounted)
            free = number not in taken and 0 <= number <= _INDEX_MAX
            gpu.number = number if free else min(set(range(len(taken) + 1)) - taken)
            taken.add(gpu.number)
        self.devices = dict(sorted(self.devices.items(), key=lambda entry: (entry[1].index, entry[0])))

    def _uncounted(self) -> list[str]:
        """The PCI addresses of the GPUs that NVML does not count. It counts one without a name, which is behind the
        last one with an address."""
        counted = [gpu.reading for gpu in self.devices.values() if gpu.listed] + list(self._unnamed)
        lost = [gpu.reading.pci_address or "" for gpu in self.devices.values() if not gpu.listed]
        left = sorted(filter(None, (*lost, *(self._hidden or ()))))
        last = ""
        for one in sorted(counted, key=lambda one: one.index):
            last = one.pci_address or next((address for address in left if address > last), last)
            left = [address for address in left if address != last]
        return left

    # --- evaluation -----------------------------------------------------------------------------------

    def judge(self, now: float) -> dict[str, Health]:
        """Return the health of every GPU, by UUID. The driver answers."""
        self._driver_failure = None
        judged = self._judge_devices(now)
        for uuid, health in judged.items():
            gpu = self.devices[uuid]
            gpu.failed_since = failed_since(gpu.failed_since, health, now)
        self._health |= judged
        return judged

    def lose_driver(self, why: str, now: float) -> None:
        """The driver does not answer."""
        self._driver_failure = why
        for gpu in self.devices.values():
            gpu.set_state(State.UNKNOWN, now)

    def judged(self) -> JudgedGpus:
        """Return every GPU with its last health."""
        return JudgedGpus(
            {
                uuid: JudgedGpu(gpu.reading, gpu.index, gpu.listed, gpu.lost, self.health(uuid))
                for uuid, gpu in self.devices.items()
            },
            self._unnamed,
        )

    def health(self, uuid: str) -> Health:
        """Return the last health. A GPU from the state file without one has its recorded faults."""
        health = self._health.get(uuid) or self.devices[uuid].health(Guard(), uuid)
        health = with_cordon(health, self.cordons.get(uuid))
        return health if self._driver_failure is None else with_unknown(health, self._driver_failure)

    # --- over a restart -------------------------------------------------------------------------------

    def restore(self, records: Iterable[GpuRecord]) -> None:
        for record in records:
            self.devices[record.uuid] = GpuState.restore(record, self._rules)
        self._number()

    def records(self) -> Mapping[str, GpuRecord]:
        return {uuid: gpu.record() for uuid, gpu in self.devices.items()}


def with_unknown(health: Health, why: str) -> Health:
    """Return the health of a GPU while its driver does not answer. ``allocatable`` does not change."""
    return Health(State.UNKNOWN, (Reason("driver_silent", why), *health.reasons), health.allocatable)
