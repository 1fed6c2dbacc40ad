"""The rule engine of the node's NICs: facts and samples in, the health of every PF and VF out. Pure.

* It reads no clock: every call brings ``now`` (CLOCK_BOOTTIME in seconds), and ``due`` is the time of the next useful
  call. A clock that steps back stands still here.
* The reasons of a PF are all its active faults, the gravest first; its state is the gravest of theirs. A VF has the
  health of its PF, and is worse where it has structural faults of its own.
* An unknown value changes nothing that is allocatable.
* The gate: a link that was never up and is not expected is no fault, unless most links of the same role were up.
* The guard (``guard.py``) covers the devices of all PFs.
* Equal facts give equal answers, to the second and to the byte.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase

from msgspec.structs import replace

from nodeagent.facts.affinity import root_port
from nodeagent.facts.model import HEALTHY, Function, Gpu, Health, Link, Neighbor, Reason, State
from nodeagent.health import cabling
from nodeagent.health.guard import Guard
from nodeagent.health.health_settings import ExpectedLinks, HealthSettings
from nodeagent.health.judged_device import gravest
from nodeagent.health.nic_state import NicState
from nodeagent.health.nic_view import NicContext
from nodeagent.health.record import NicRecord
from nodeagent.health.rule import Rule
from nodeagent.health.rules import effective
from nodeagent.health.structural import NO_FAULTS, Fault, Faults, sentence
from nodeagent.measurements.sample import Sample

ROLE_SHARE = 0.75
"""Of the links of a role. gpud and NVSentinel have no such gate and report ports that were never connected."""


class NicJudge:
    def __init__(self, settings: HealthSettings | None = None) -> None:
        self.settings = settings or HealthSettings()
        self.rules = effective(self.settings.rules)
        self.nics: dict[str, NicState] = {}
        """The PFs by PCI address."""
        self.now = 0.0
        self.role_of: Mapping[str, str] = {}
        self._functions: tuple[Function, ...] = ()
        self._faults: Faults = NO_FAULTS
        self._neighbors: dict[str, list[Neighbor]] = {}
        self._plan: cabling.Plan = {}
        self._guard = Guard(self.settings.guard.share, self.settings.guard.seconds)
        self._records: dict[str, NicRecord] = {}
        self._judged: dict[str, tuple[Function, Health, Function]] = {}

    # --- inputs ---------------------------------------------------------------------------------------

    def adopt(self, settings: HealthSettings) -> None:
        """Apply changed settings. An active fault stays until its rule clears it or is gone."""
        self.settings, self.rules = settings, effective(settings.rules)
        self._guard.share, self._guard.seconds = settings.guard.share, settings.guard.seconds
        for nic in self.nics.values():
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
        nic = self.nics.get(function.pci_address)
        if nic is None:
            nic = NicState(function, self.rules, self.settings.settle_seconds)
            self.nics[function.pci_address] = nic
            if (record := self._records.pop(function.pci_address, None)) is not None:
                nic.restore(record, self.now)
        return nic

    def take_samples(self, samples: Iterable[Sample]) -> bool:
        """Return whether any has news of a link, which is evaluated at once. Only samples of PFs are used."""
        urgent = False
        for sample in samples:
            if (nic := self.nics.get(sample.device)) is not None:
                urgent |= nic.take_sample(sample)
        return urgent

    def take_roles(self, roles: Mapping[str, str]) -> None:
        """PFs of one role are compared with each other. By PCI address."""
        self.role_of = roles

    def take_neighbors(self, neighbors: Iterable[Neighbor]) -> None:
        self._neighbors = {}
        for neighbor in neighbors:
            self._neighbors.setdefault(neighbor.link, []).append(neighbor)

    def take_plan(self, plan: cabling.Plan) -> None:
        self._plan = plan

    def restore(self, records: Mapping[str, NicRecord]) -> None:
        """Records by PCI address, before the first facts."""
        self._records = dict(records)

    def records(self) -> dict[str, NicRecord]:
        """The record of each PF, and restored records of PFs that have not appeared since."""
        return {**self._records, **{address: nic.record() for address, nic in self.nics.items()}}

    # --- evaluation -----------------------------------------------------------------------------------

    def judge(self, now: float, *, only_news: bool = False) -> tuple[Function, ...]:
        """Return all functions with their health, in the order of the facts.

        ``only_news``: a PF without news waits for the next evaluation, so that a lost carrier waits for no other PF.
        """
        self.now = now = max(now, self.now)
        for nic in self.nics.values():
            nic.refresh(now)
        self._apply_gate()
        speeds = self._expected_speeds()
        for address, nic in self.nics.items():
            nic.take_context(NicContext(speeds.get(address), *self._compare_cabling(nic)))
            if nic.has_news or not only_news:
                nic.step()
        devices = Counter(function.parent for function in self._functions if function.parent is not None)
        weights = {address: max(1, devices[address]) for address in self.nics}
        self._guard.judge(dict(sorted(self.nics.items())), weights, now)
        health = {address: self._health_of_pf(nic) for address, nic in self.nics.items()}
        return tuple(self._with_health(function, health) for function in self._functions)

    def due(self) -> float | None:
        """Return the time of the next evaluation if there is no news before."""
        moments = [*self._guard.due(), *(moment for nic in self.nics.values() for moment in nic.due())]
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
        for nic in self.nics.values():
            if not nic.default_route and not nic.unused:
                roles.setdefault(self._role(nic), []).append(nic)
        return roles

    def _role(self, nic: NicState) -> str:
        return self.role_of.get(nic.address, "")

    def _apply_gate(self) -> None:
        for nic in self.nics.values():
            nic.unused = self._matches(nic, self.settings.unused)
        # Count links that have ever been up, so that a mass failure does not turn the rest into unused ones.
        present = {
            role: len(nics) > 1 and sum(nic.once_up for nic in nics) >= ROLE_SHARE * len(nics)
            for role, nics in self._by_role().items()
        }
        for nic in self.nics.values():
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
        for nic in self.nics.values():
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

    def _health_of_pf(self, nic: NicState) -> Health:
        active = nic.active
        reasons = [nic.reason(rule, hold) for rule, hold in active]
        state = gravest(rule.state for rule, _ in active)
        if self._guard.holds_back(nic.address):
            why = "its devices stay Healthy until a second source confirms the fault or it has lasted"
            reasons.append(
                Reason("guard", f"{nic.name}: {why} for {self.settings.guard.seconds:g} s", warning=True)
            )
        if nic.idle and not active:
            state = State.UNUSED
            reasons.append(
                Reason("unused", f"{nic.name} has had no link since the boot, and none is expected")
            )
        elif nic.link_unknown:
            state = gravest((state, State.UNKNOWN))
            reason = nic.structural_reason(Fault.LINK_UNSEEN)
            why = reason.detail if reason else sentence(Fault.LINK_UNSEEN, nic.function, nic.netdev)
            reasons.append(Reason(Fault.LINK_UNSEEN.value, why))
        elif nic.watched and not nic.gone and (stale := nic.history.stale()):
            names = ", ".join(stale)
            reasons.append(Reason("data_stale", f"{nic.name}: no new samples from {names}", warning=True))
        nic.set_state(state, self.now)
        if not reasons:
            return HEALTHY
        return Health(state, tuple(reasons), allocatable=self._guard.allocatable(nic.address))

    def _with_health(self, function: Function, health: Mapping[str, Health]) -> Function:
        address = function.pci_address
        if function.parent is None:
            new_health = health[address]
        else:
            new_health = self._health_of_vf(function, health.get(function.parent))
        before = self._judged.get(address)
        if (
            before is not None
            and before[1] == new_health
            and (before[0] is function or before[0] == function)
        ):
            return before[2]
        judged = function if function.health == new_health else replace(function, health=new_health)
        self._judged[address] = (function, new_health, judged)
        return judged

    def _health_of_vf(self, vf: Function, pf: Health | None) -> Health:
        """The health of its PF, and worse where it has faults of its own."""
        own = self._faults.get(vf.pci_address, ())
        if pf is None or vf.parent is None:
            return Health(State.DOWN, own, allocatable=False) if own else HEALTHY
        if self._guard.holds_back(vf.parent) and self.nics[vf.parent].gone:
            # It disappeared with its PF: this is no second witness.
            own = tuple(reason for reason in own if reason.key != Fault.DEVICE_MISSING)
        return Health(State.DOWN, (*own, *pf.reasons), allocatable=False) if own else pf


def _majority(nics: Iterable[NicState]) -> float | None:
    speeds = [speed for nic in nics if (speed := nic.speed_mbps) and nic.carrier]
    if len(speeds) < 3:
        return None
    speed, votes = Counter(speeds).most_common(1)[0]
    return speed if 2 * votes > len(speeds) else None


def roles(functions: Iterable[Function], gpus: Iterable[Gpu]) -> dict[str, str]:
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
    return frozenset({rule.key for rule in rules} | {"guard", "unused", "link_unseen", "data_stale"})
