"""The PFs of a node under their rules: facts and samples in, the health of every PF and VF out. Pure.

* It reads no clock: every call brings ``now`` (CLOCK_BOOTTIME in seconds), and ``due`` is the time of the next useful
  call. A clock that steps back stands still here.
* A VF has the health of its PF, and is worse where it has structural faults of its own.
* An unknown value changes nothing that is allocatable.
* The gate: a link that was never up and is not expected is not a fault, unless most links of the same role were up.
* A sample of the same thing as a fact is the second witness. A fact from sysfs has priority over it, because sysfs is
  read at once after every event. A sample replaces a missing fact (in a replay) and an older fact (when a scan hangs).
* Equal facts give equal answers, to the second and to the byte.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase

from msgspec.structs import replace

from nodeagent.base.duration import duration
from nodeagent.facts.affinity import root_port
from nodeagent.facts.model import (
    CORDONED,
    HEALTHY,
    MAINTENANCE,
    Function,
    Gpu,
    GpuFunction,
    Health,
    Link,
    Neighbor,
    Reason,
    State,
)
from nodeagent.health import cabling
from nodeagent.health.carrier_losses import (
    COUNTERS,
    DAY_S,
    KERNEL_COUNTER,
    LINK_SETTLE_S,
    PHY_COUNTERS,
    CarrierLosses,
    CarrierSettings,
    Loss,
)
from nodeagent.health.cordons import NO_WORK, PlannedWork, with_cordon, with_planned_work
from nodeagent.health.device_failure import failed_since
from nodeagent.health.health_settings import ExpectedLinks, HealthSettings, effective
from nodeagent.health.history import STALE_MIN_S, History
from nodeagent.health.hold import Hold, Penalty
from nodeagent.health.judge import ActiveFault, DeviceFigures, Judge, JudgedDevice
from nodeagent.health.nic_view import SYSFS, NicContext, NicView
from nodeagent.health.record import SPEED_MAX_MBPS, NicFault, NicRecord
from nodeagent.health.rule import WARNING, Measured, Rule, gravest
from nodeagent.health.rules import damping, settling, windows
from nodeagent.health.rules.links import QUIET_S
from nodeagent.health.structural import NO_FAULTS, Fault, Faults, function_name, sentence
from nodeagent.measurements.sample import Sample, Source

ROLE_SHARE = 0.75
"""Of the links of a role. gpud and NVSentinel have no such gate and report ports that were never connected."""

LEAVES_WITHIN_S = 5.0
"""A netdev that is to go into a pod is set down and then moved, by one program, within milliseconds. Our own choice: a
machine under load starts the second of two programs within this time."""

TRAINS_WITHIN_S = 20.0
"""The time that a port may take to have carrier after it is set up, when a pod has given its netdev back. Our own
choice: a port of 400G trains for some seconds."""

_OLDER_S = 2.0
"""Facts that are older than a sample by more than this were not read after the event that the sample shows."""
_LEVELS = ("admin_up", "carrier", "rdma_port_active", "speed_mbps")
LINK_SOURCES = frozenset({Source.LINK, Source.MODES, Source.RDMA})
"""The sources of these levels."""


class NicState(JudgedDevice):
    """One PF under rules: its facts and samples, its link, its damping."""

    kind = "nic"

    def __init__(self, function: Function, rules: Sequence[Rule], settle_s: float = LINK_SETTLE_S) -> None:
        super().__init__()
        self.function = function
        self.link: Link | None = None
        self.reasons: tuple[Reason, ...] = ()
        """Its structural faults."""
        self.has_news = True
        """A fact, news of its link by a sample, or another context came after the last evaluation of its rules."""
        self._facts_at: float | None = None
        """When the facts were last published, new or not."""
        self._faults: frozenset[str] = frozenset()
        """The keys of its structural faults."""
        self.netdev: str | None = None
        """The last known name of its netdev."""
        self._rules = rules
        self.history = History(windows(rules))
        self.context = NicContext()
        self.expected_mbps: float | None = None
        self.losses = CarrierLosses(damping(rules), settle_s)
        self._had_carrier: bool | None = None
        self._seen_up = False
        """This agent has seen it set up."""
        self._now = 0.0
        self.once_up = False
        self.best_mbps: float | None = None
        self.unused = False
        """Unused by configuration."""
        self._back_at = -math.inf
        """When its netdev was set up for the first time after a pod had it; infinite: not yet."""
        self.failed_since: dict[str, float] = {}
        """Since when the PF, and each VF by a fault of its own, has failed; by PCI address."""

    # --- facts and samples ----------------------------------------------------------------------------

    def take_facts(
        self, function: Function, link: Link | None, faults: tuple[Reason, ...], now: float
    ) -> None:
        known = (self.function, self.link, self.reasons) if self._facts_at is not None else None
        before, self._facts_at = self._up, now
        if known == (function, link, faults):
            # A scan that is newer than the last sample has priority again.
            self.has_news |= self._up != before
            return
        self.has_news = True
        self.function, self.link, self.reasons = function, link, faults
        self._faults = frozenset(reason.key for reason in faults)
        self.netdev = link.netdev if link is not None else self.netdev
        if self.away:
            self._back_at = math.inf
        elif self._back_at == math.inf and link is not None and link.admin_up:
            self._back_at = now
        if self._back_at == math.inf:
            self.losses.explain(now)
        self._note_settings(now)

    def take_sample(self, sample: Sample) -> bool:
        """Return whether the sample has news of the link, which is evaluated at once. Counters can wait."""
        on_link = sample.source in LINK_SOURCES
        before = self._link_state if on_link else None
        counted = {name: self.history.counted_at(name) for name in COUNTERS if name in sample.values}
        added = self.history.take(sample)
        if on_link:
            self._note_settings(sample.at)
        lost = self.losses.take(sample, added, counted, self.history, self._now)
        if self._back_at == math.inf:
            self.losses.explain(max(sample.at, self._now))
        if lost or added.get(KERNEL_COUNTER, 0.0) > 0:
            lost = True
            self._train_again(sample.at)
            if (hold := self.holds.get(Fault.CARRIER_DOWN)) is not None:
                hold.interrupt()
        news = lost or (on_link and self._link_state != before)
        self.has_news |= news
        return news

    def _note_settings(self, now: float) -> None:
        """Note what an administrator may have changed."""
        mtu = self.history.level("mtu_bytes") or (self.link.mtu if self.link is not None else None)
        settings = CarrierSettings(mtu, self.function.num_vfs, self.function.driver or "", self.admin_up)
        self.losses.compare(settings, now)

    def _follow_carrier(self, now: float) -> None:
        """Let the windows of bit errors begin again after the carrier returned. A link that has carrier at the start of
        the agent may still train: a node boots."""
        carrier = bool(self.carrier)
        if carrier != self._had_carrier:
            self._train_again(now)
            self._had_carrier = carrier

    def _train_again(self, at: float) -> None:
        self.history.begin(settling(self._rules), at + self.losses.settle_s if self.carrier else math.inf)

    def follow_rules(self, rules: Sequence[Rule], settle_s: float) -> None:
        self._rules = rules
        self.losses.follow(damping(rules), settle_s)
        self.history.follow(windows(rules))
        self.has_news = True

    # --- its present state ----------------------------------------------------------------------------

    @property
    def rules(self) -> Sequence[Rule]:
        return self._rules

    @property
    def _up(self) -> tuple[bool | None, bool | None]:
        """Whether the link has carrier, and whether it is admin up."""
        if self.away or self._has_fault(Fault.DEVICE_MISSING, Fault.DRIVER_UNBOUND):
            return None, None
        read = self._sampled if self._has_fault(Fault.LINK_UNSEEN) else self._not_overruled
        admin_up = False if self._has_fault(Fault.ADMIN_DOWN) else read("admin_up")
        if admin_up is False:
            return None, None if self._back_at == math.inf else admin_up
        return False if self._has_fault(Fault.CARRIER_DOWN) else read("carrier"), admin_up

    @property
    def _link_state(self) -> tuple[float | bool | None, ...]:
        """The values whose change is news of the link."""
        return *self._up, *map(self.history.level, _LEVELS)

    def _has_fault(self, *faults: Fault) -> bool:
        """Whether the facts have one of these structural faults."""
        return not self._faults.isdisjoint(faults)

    def _sampled(self, name: str) -> bool | None:
        """Whether the level is not 0; ``None``: unknown."""
        value = self.history.level(name)
        return None if value is None else value != 0

    def _not_overruled(self, name: str) -> bool:
        """Whether no sample after the last scan has the value 0. IPoIB may be down while its port works."""
        is_off = self.history.level(name) == 0 and self.function.link_type != "infiniband"
        at = self.history.at(Source.LINK) if is_off else None
        return at is None or at <= (self._facts_at or 0.0) + _OLDER_S

    @property
    def address(self) -> str:
        return self.function.pci_address

    @property
    def name(self) -> str:
        return function_name(self.function, self.netdev)

    def structural_reason(self, fault: Fault) -> Reason | None:
        return next((reason for reason in self.reasons if reason.key == fault.value), None)

    @property
    def gone(self) -> bool:
        return self._has_fault(Fault.DEVICE_MISSING)

    @property
    def carrier(self) -> bool | None:
        return self._up[0]

    @property
    def admin_up(self) -> bool | None:
        return self._up[1]

    @property
    def default_route(self) -> bool:
        return self.link is not None and self.link.default_route

    @property
    def speed_mbps(self) -> float | None:
        """The sample has priority here, unlike for the carrier: sysfs is read again only at a scan."""
        speeds = (self.history.level("speed_mbps"), self.link.speed_mbps if self.link is not None else None)
        return next((speed for speed in speeds if speed is not None and 0 < speed <= SPEED_MAX_MBPS), None)

    @property
    def idle(self) -> bool:
        """It has no link, and none is expected."""
        return not self.watched and (not self.once_up or self.unused) and False in self._up

    @property
    def away(self) -> bool:
        """Its netdev is in another network namespace: a pod has the NIC as a whole. Who moves a netdev sets it down, so
        the last values tell nothing."""
        return self.link is None and self.function.netdev is None and not self.gone

    @property
    def link_unknown(self) -> bool:
        """The state of its link is unknown."""
        gone = self._has_fault(Fault.DEVICE_MISSING, Fault.DRIVER_UNBOUND)
        return not gone and self._up in ((None, None), (None, True))

    @property
    def lacks_verbs(self) -> bool | None:
        """Whether its RDMA device has no ``uverbs`` device. One with VFs is not used itself; ``None``: it has no RDMA
        device now, which a pod may have taken along."""
        rdma = self.function.rdma
        return None if rdma is None else rdma.uverbs is None and not self.function.num_vfs

    def set_time(self, now: float) -> None:
        """Read the history as of ``now``."""
        self._now = now
        self.history.set_time(now)

    def refresh(self, now: float) -> None:
        """As ``set_time``, and keep the best values of this boot."""
        self.set_time(now)
        self._follow_carrier(now)
        speed_mbps = self.speed_mbps or 0.0
        self.history.line_mbps = max(speed_mbps, self.history.level("supported_mbps") or 0.0) or None
        if self._had_carrier:
            self.once_up = True
            self.best_mbps = max(self.best_mbps or 0.0, speed_mbps) or None

    def view(self, context: NicContext) -> NicView:
        carrier, admin_up = self._up
        return NicView(
            history=self.history,
            infiniband=self.function.link_type == "infiniband",
            present=not self._has_fault(Fault.DEVICE_MISSING),
            answers=not self._has_fault(Fault.NOT_ANSWERING),
            bound=not self._has_fault(Fault.DRIVER_UNBOUND),
            admin_up=admin_up,
            carrier=carrier,
            carrier_witnesses=self._carrier_witnesses(),
            speed_mbps=self.speed_mbps,
            expected_mbps=context.expected_mbps or self.best_mbps,
            losses=self.losses.within_day(self._now) if self._counts_losses() else None,
            since_loss_s=self.losses.since_last(self._now),
            cabling=context.cabling,
            cabled_right=context.cabled_right,
            verbs_missing=context.verbs_missing,
        )

    def _counts_losses(self) -> bool:
        """A counter of losses is read, or earlier losses are a fault by themselves, which ends by time alone."""
        if self.losses.known(self.history):
            return True
        rule = damping(self._rules)
        return self.losses.penalty.now(self._now, rule.window_s or 600.0) >= rule.enter or any(
            rule.decays and rule.key in self.holds and self.holds[rule.key].active for rule in self._rules
        )

    def _carrier_witnesses(self) -> frozenset[str]:
        witnesses = {SYSFS} if self._has_fault(Fault.CARRIER_DOWN) else set()
        if self._sampled("carrier") is False:
            witnesses.add(Source.LINK.value)
        if self._sampled("rdma_port_active") is False:
            witnesses.add(Source.RDMA.value)
        return frozenset(witnesses)

    # --- evaluation -----------------------------------------------------------------------------------

    def take_context(self, context: NicContext) -> None:
        self.has_news |= context != self.context
        self.context = context

    def step(self) -> None:
        """Apply all rules."""
        context = self.context
        self.expected_mbps = context.expected_mbps or self.best_mbps
        if self._back_at == math.inf:
            self.holds.pop(Fault.ADMIN_DOWN, None)
        if self.gone:  # it cannot have another fault
            self.holds = {key: hold for key, hold in self.holds.items() if key == Fault.DEVICE_MISSING}
        self.losses.end_explained(self._rules, self.holds)
        view, now = self.view(context), self._now
        for rule in self._rules:
            if not (rule.enabled and self.applies(rule)):
                self.holds.pop(rule.key, None)
                self.values.pop(rule.key, None)
                continue
            measured = self.measure(rule, view)
            if measured is None:
                self.values.pop(rule.key, None)
            else:
                self.values[rule.key] = measured.value
            if rule.by_losses and now < self.losses.uncounted_until and self.is_active(rule.key):
                continue
            sampled_at = None if rule.source is None else self.history.at(rule.source)
            self.step_rule(self._in_time(rule), measured, now if sampled_at is None else sampled_at)
        self._seen_up |= view.admin_up is True
        self.has_news = False

    def _in_time(self, rule: Rule) -> Rule:
        """Return the rule as it is for this PF. One without VFs may be set down only to be moved into a pod as a whole:
        it is withdrawn if it has not left after ``LEAVES_WITHIN_S``. One that a pod gave back has no carrier for
        ``TRAINS_WITHIN_S`` after it is set up."""
        if rule.key == Fault.CARRIER_DOWN and self._back_at <= self._now < self._back_at + TRAINS_WITHIN_S:
            return replace(rule, enter_for_s=max(rule.enter_for_s, TRAINS_WITHIN_S))
        if rule.key != Fault.ADMIN_DOWN or self.function.num_vfs or not self._seen_up:
            return rule
        return replace(rule, enter_for_s=max(rule.enter_for_s, LEAVES_WITHIN_S))

    def measure(self, rule: Rule, view: NicView) -> Measured | None:
        view.window_s = rule.window_s or 0.0
        if rule.decays == "penalty":
            view.penalty = self.losses.penalty.now(self._now, view.window_s or 1.0)
        return rule.measure(view)

    def measure_all(self) -> Iterator[tuple[Rule, Measured | None]]:
        view = self.view(self.context)
        for rule in self._rules:
            applies = rule.enabled and self.applies(rule)
            yield rule, self.measure(rule, view) if applies else None

    def applies(self, rule: Rule) -> bool:
        if rule.ungated:
            return True
        if rule.on_facts:
            return self.watched or (self.once_up and not self.unused)
        # Default routes come and go: a fault that is active when the route arrives stays until it clears.
        stays = self.default_route and not self.unused and self.is_active(rule.key)
        return self.watched or stays

    def witnesses(self) -> frozenset[str]:
        """The sources that report the faults that withdraw it, of one fault or of several."""
        view = self.view(NicContext())
        measured = [self.measure(fault.rule, view) for fault in self.active if fault.rule.withdraws]
        return frozenset().union(*(value.witnesses for value in measured if value is not None))

    @property
    def withdraws(self) -> bool:
        return self.idle or super().withdraws

    @property
    def over(self) -> bool:
        return super().over and not self.idle

    def reason(self, fault: ActiveFault) -> Reason:
        rule, hold = fault
        detail = f"{self.name}: {hold.text}"
        if rule.on_facts:
            detail = sentence(Fault(rule.key), self.function, self.netdev)
            if rule.clear_for_s:
                detail += f" (held until {duration(rule.clear_for_s)} after its end)"
        return Reason(rule.key, detail, warning=rule.state is WARNING)

    def guard_sentence(self, seconds: float) -> str:
        why = "its devices stay Healthy until a second source confirms the fault or it has lasted"
        return f"{self.name}: {why} for {duration(seconds)}"

    def remark(self, state: State, reasons: list[Reason]) -> State:
        if self.idle and not self.active:
            reasons.append(
                Reason("unused", f"{self.name} has had no link since the boot, and none is expected")
            )
            return State.UNUSED
        if self.link_unknown:
            reason = self.structural_reason(Fault.LINK_UNSEEN)
            why = reason.detail if reason else sentence(Fault.LINK_UNSEEN, self.function, self.netdev)
            reasons.append(Reason(Fault.LINK_UNSEEN.value, why))
            return gravest((state, State.UNKNOWN))
        if self.watched and not self.gone and (stale := self.history.stale()):
            names = ", ".join(stale)
            reasons.append(Reason("data_stale", f"{self.name}: no new samples from {names}", warning=True))
        return state

    def due(self) -> Iterator[float | None]:
        """The times at which the health may change without news."""
        yield self.history.stale_at()
        yield self.losses.uncounted_until
        for rule in self._rules:
            if (hold := self.holds.get(rule.key)) is None:
                continue
            yield hold.due(self._in_time(rule))
            if hold.active and rule.decays == "penalty":
                yield self.losses.penalty.reaches(rule.clear, rule.window_s or 1.0)
            if hold.active and rule.decays == "losses":
                yield from (loss.at + DAY_S for loss in self.losses.times)
                yield from (loss.at + QUIET_S for loss in self.losses.times[-1:])

    def figures(self, now: float) -> DeviceFigures:
        keys = (rule.key for rule in self._rules if rule.has_threshold)  # the state shows the others
        values = {key: self.values[key] for key in keys if key in self.values}
        if self.expected_mbps is not None:
            values["expected_speed_mbps"] = self.expected_mbps
        penalty = None
        if self.losses.known(self.history) or self.losses.penalty.points:
            penalty = self.losses.penalty.now(now, damping(self._rules).window_s or 600.0)
        return DeviceFigures(
            self.changed_at, penalty, dict(self.transitions), values, self.history.implausible
        )

    def note_failure(self, function: Function, now: float) -> None:
        """Note since when this PF or its VF has failed. The failure of the PF is that of its VFs."""
        address = function.pci_address
        before = self.failed_since.get(address)
        if before is None and (function.health.allocatable or self.address in self.failed_since):
            return  # the usual case
        since = failed_since(before, function.health, now)
        if since is None:
            self.failed_since.pop(address, None)
        else:
            self.failed_since[address] = since

    # --- over a restart -------------------------------------------------------------------------------

    def record(self) -> NicRecord:
        faults = [
            NicFault(key, hold.since or 0.0, hold.good_since, hold.text)
            for key, hold in self.holds.items()
            if hold.active
        ]
        penalty, counter = self.losses.penalty, self.losses.counter(self.history, self._now)
        others = {name: self._counted(name) for name in PHY_COUNTERS if name != counter}
        phy = self._counted(counter) if counter in PHY_COUNTERS else None
        return NicRecord(
            penalty.points,
            penalty.at,
            self._counted(KERNEL_COUNTER),
            tuple((loss.at, loss.number) for loss in self.losses.times),
            self.once_up,
            self.best_mbps,
            tuple(faults),
            (counter, phy) if phy is not None else None,
            self.losses.settings,
            self.losses.changed_at,
            self.history.counted_at(counter),
            tuple(loss.latest for loss in self.losses.times)
            if any(loss.latest > loss.at for loss in self.losses.times)
            else (),
            dict(self.failed_since),
            {
                name: (count, self.history.counted_at(name) or 0.0)
                for name, count in others.items()
                if count is not None
            },
            {name: count for name in COUNTERS if (count := self.losses.ahead(name))},
            self._back_at == math.inf,
        )

    def _counted(self, counter: str) -> float | None:
        """Return the value up to which the events of this counter are counted."""
        highest = self.history.highest(counter)
        return None if highest is None else highest + self.losses.ahead(counter)

    def _resume(self, counter: str, counted: float, at: float) -> None:
        """Continue from the value of the counter itself: after a reset it counts from 0 what is counted already."""
        self.history.resume(counter, max(0.0, counted - self.losses.ahead(counter)), at)

    def restore(self, record: NicRecord, now: float) -> None:
        penalty = Penalty(record.penalty, record.penalty_at)
        latest = record.losses_latest or tuple(at for at, _ in record.losses)
        times = [Loss(*loss, end) for loss, end in zip(record.losses, latest, strict=True)]
        self.losses.restore(penalty, times, record.settings, record.changed_at, record.ahead)
        self.once_up, self.best_mbps = record.once_up, record.best_mbps
        self._back_at = math.inf if record.was_away else -math.inf
        self.failed_since = dict(record.failed_since)
        read_at = now if record.read_at is None else record.read_at
        if record.downs is not None:
            self._resume(KERNEL_COUNTER, record.downs, read_at)
            self.losses.uncounted_until = now + STALE_MIN_S
        if record.phy_downs is not None:
            self._resume(*record.phy_downs, read_at)
            self.losses.uncounted_until, self.losses.awaited = now + STALE_MIN_S, record.phy_downs[0]
        for name, (count, at) in record.other_downs.items():
            self._resume(name, count, at)
        for fault in record.faults:
            self.holds[fault.rule] = Hold(True, fault.since, fault.good_since, fault.text)


class NicJudge(Judge[NicState]):
    def __init__(self, settings: HealthSettings | None = None) -> None:
        self.settings = settings or HealthSettings()
        super().__init__(self.settings.guard)
        self.rules = effective(self.settings.rules)
        self.now = 0.0
        self.role_of: Mapping[str, str] = {}
        self._functions: tuple[Function, ...] = ()
        self._faults: Faults = NO_FAULTS
        self._neighbors: dict[str, list[Neighbor]] = {}
        self._plan: cabling.CablesOfNode = {}
        self._records: dict[str, NicRecord] = {}
        self.planned: Mapping[str, PlannedWork] = {}
        """Work on NICs, by PCI address."""

    # --- inputs ---------------------------------------------------------------------------------------

    def adopt(self, settings: HealthSettings) -> None:
        """Apply changed settings. An active fault stays until its rule clears it or is gone."""
        self.settings, self.rules = settings, effective(settings.rules)
        self.adopt_guard(settings.guard)
        for nic in self.devices.values():
            nic.follow_rules(self.rules, settings.settle_seconds)

    def take_facts(
        self, functions: Iterable[Function], links: Iterable[Link], faults: Faults = NO_FAULTS
    ) -> None:
        """All functions, the missing ones too, and their faults as ``structural.find_faults`` returns them."""
        self._functions, self._faults = tuple(functions), faults
        by_pf = {link.pci_address: link for link in links}
        for function in self._functions:
            if function.parent is None:
                address = function.pci_address
                nic = self._nic(function)
                nic.take_facts(function, by_pf.get(address), faults.get(address, ()), self.now)

    def _nic(self, function: Function) -> NicState:
        nic = self.devices.get(function.pci_address)
        if nic is None:
            nic = NicState(function, self.rules, self.settings.settle_seconds)
            self.devices = dict(sorted({**self.devices, function.pci_address: nic}.items()))
            if (record := self._records.pop(function.pci_address, None)) is not None:
                nic.restore(record, self.now)
            self._excuse(nic)
        return nic

    def take_planned(self, planned: Mapping[str, PlannedWork]) -> None:
        """Work on NICs, by PCI address: no loss of the carrier in its time is a flap."""
        self.planned = planned
        for nic in self.devices.values():
            self._excuse(nic)

    def _excuse(self, nic: NicState) -> None:
        work = self.planned.get(nic.address, NO_WORK)
        nic.losses.excuse(work.begin, work.end)
        nic.has_news = True

    def take_samples(self, samples: Iterable[Sample]) -> bool:
        """Return whether any has news of a link, which is evaluated at once. Only samples of PFs are used."""
        urgent = False
        for sample in samples:
            if (nic := self.devices.get(sample.device)) is not None:
                urgent |= nic.take_sample(sample)
        return urgent

    def take_roles(self, roles: Mapping[str, str]) -> None:
        """PFs of one role are compared with each other. By PCI address."""
        self.role_of = roles

    def take_neighbors(self, neighbors: Iterable[Neighbor]) -> None:
        self._neighbors = {}
        for neighbor in neighbors:
            self._neighbors.setdefault(neighbor.link, []).append(neighbor)

    def take_plan(self, plan: cabling.CablesOfNode) -> None:
        self._plan = plan

    def restore(self, records: Mapping[str, NicRecord]) -> None:
        """Records by PCI address, before the first facts."""
        self._records = dict(records)

    def records(self) -> dict[str, NicRecord]:
        """The record of each PF, and restored records of PFs that have not appeared since."""
        return {**self._records, **{address: nic.record() for address, nic in self.devices.items()}}

    # --- evaluation -----------------------------------------------------------------------------------

    def judge(self, now: float, *, only_news: bool = False) -> tuple[Function, ...]:
        """Return all functions with their health, in the order of the facts.

        ``only_news``: a PF without news waits for the next evaluation, so that a lost carrier waits for no other PF.
        """
        self.now = now = max(now, self.now)
        for nic in self.devices.values():
            nic.refresh(now)
        self._apply_gate()
        speeds = self._expected_speeds()
        with_verbs = any(function.rdma is not None and function.rdma.uverbs for function in self._functions)
        for address, nic in self.devices.items():
            verbs_missing = nic.lacks_verbs and with_verbs
            nic.take_context(NicContext(speeds.get(address), *self._compare_cabling(nic), verbs_missing))
            if nic.has_news or not only_news:
                nic.step()
        devices = Counter(function.parent for function in self._functions if function.parent is not None)
        weights = {address: max(1, devices[address]) for address in self.devices}
        health = self._judge_devices(now, weights)
        judged = tuple(self._with_health(function, health) for function in self._functions)
        for function in judged:
            if (pf := self.devices.get(function.parent or function.pci_address)) is not None:
                pf.note_failure(function, now)
        return judged

    def due(self) -> float | None:
        """Return the time of the next evaluation if there is no news before."""
        moments = [*self._guard.due(), *(moment for nic in self.devices.values() for moment in nic.due())]
        moments += (work.end for work in self.planned.values())
        return min((moment for moment in moments if moment is not None and moment > self.now), default=None)

    # --- the gate and the majority --------------------------------------------------------------------

    def _matches(self, nic: NicState, globs: Iterable[str]) -> bool:
        names = [nic.address, *([nic.link.netdev] if nic.link else [])]
        return any(fnmatchcase(name, glob) for glob in globs for name in names)

    def _expected(self, nic: NicState) -> ExpectedLinks | None:
        return next(
            (expected for expected in self.settings.expected if self._matches(nic, expected.links)), None
        )

    def _by_role(self) -> dict[str, list[NicState]]:
        """The PFs of each role. The NIC with the default route is not compared with others."""
        roles: dict[str, list[NicState]] = {}
        for nic in self.devices.values():
            if not nic.default_route and not nic.unused:
                roles.setdefault(self._role(nic), []).append(nic)
        return roles

    def _role(self, nic: NicState) -> str:
        return self.role_of.get(nic.address, "")

    def _apply_gate(self) -> None:
        for nic in self.devices.values():
            nic.unused = self._matches(nic, self.settings.unused)
        # Count links that have ever been up, so that a mass failure does not turn the rest into unused ones.
        present = {
            role: len(nics) > 1 and sum(nic.once_up for nic in nics) >= ROLE_SHARE * len(nics)
            for role, nics in self._by_role().items()
        }
        for nic in self.devices.values():
            before = nic.watched
            if nic.unused:
                nic.watched = False
            elif self._expected(nic) is not None:
                nic.watched = True
            elif nic.default_route:
                nic.watched = False
            else:
                nic.watched = nic.once_up or present[self._role(nic)]
            nic.has_news |= nic.watched != before

    def _expected_speeds(self) -> dict[str, float]:
        """The configured speed, or the speed of more than half of three or more links of the same role."""
        majority = {role: _majority(nics) for role, nics in self._by_role().items()}
        speeds: dict[str, float] = {}
        for nic in self.devices.values():
            expected = self._expected(nic)
            speed: float | None = expected.speed_mbps if expected is not None else None
            if speed is None:
                speed = majority.get(self._role(nic))
            if speed is not None:
                speeds[nic.address] = speed
        return speeds

    def _compare_cabling(self, nic: NicState) -> tuple[bool | None, str | None]:
        netdev = nic.link.netdev if nic.link else None
        planned = self._plan.get(nic.address) or self._plan.get(netdev or "")
        if planned is None or netdev is None:
            return None, None
        return cabling.compare(planned, self._neighbors.get(netdev, ()))

    # --- the health of PFs and VFs --------------------------------------------------------------------

    def _with_health(self, function: Function, health: Mapping[str, Health]) -> Function:
        if function.parent is None:
            judged = health[function.pci_address]
        else:
            judged = self._health_of_vf(function, health.get(function.parent))
        pf = function.parent or function.pci_address
        judged = with_cordon(judged, self.cordons.get(pf))
        judged = with_planned_work(judged, self.planned.get(pf), self.now)
        return function if function.health == judged else replace(function, health=judged)

    def _health_of_vf(self, vf: Function, pf: Health | None) -> Health:
        """The health of its PF, and worse where it has faults of its own."""
        own = self._faults.get(vf.pci_address, ())
        if self.settings.vf_guids == "fromCni":
            own = tuple(reason for reason in own if reason.key != Fault.GUID_MISSING)
        if pf is None or vf.parent is None:
            return Health(State.DOWN, own, allocatable=False) if own else HEALTHY
        if self._guard.holds_back(vf.parent) and self.devices[vf.parent].gone:
            # It disappeared with its PF: this is no second witness.
            own = tuple(reason for reason in own if reason.key != Fault.DEVICE_MISSING)
        return Health(State.DOWN, (*own, *pf.reasons), allocatable=False) if own else pf


def _majority(nics: Iterable[NicState]) -> float | None:
    speeds = [speed for nic in nics if (speed := nic.speed_mbps) and nic.carrier]
    if len(speeds) < 3:
        return None
    speed, votes = Counter(speeds).most_common(1)[0]
    return speed if 2 * votes > len(speeds) else None


def roles(functions: Iterable[Function], gpus: Iterable[Gpu | GpuFunction]) -> dict[str, str]:
    """Return the role of each PF: its model, and whether it is behind the PCIe switch of a GPU (compute) or not
    (storage, frontend)."""
    of_gpus = {root_port(gpu.pci_path) for gpu in gpus} - {None}
    return {
        pf.pci_address: (
            f"{pf.vendor}:{pf.device} {'compute' if root_port(pf.pci_path) in of_gpus else 'other'}"
        )
        for pf in functions
        if pf.parent is None
    }


def keys(rules: Sequence[Rule]) -> frozenset[str]:
    """Return every key that a reason of a PF may have."""
    return frozenset(
        {rule.key for rule in rules} | {"guard", "unused", "link_unseen", "data_stale", CORDONED, MAINTENANCE}
    )
