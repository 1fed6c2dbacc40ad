"""The one judge of the node's NICs: facts and samples in, the health of every PF and VF out. Pure.

The law of this file:

* It reads no clock: every question comes with ``now`` (CLOCK_BOOTTIME in seconds), and ``due`` says when the
  next one is worth asking. A clock that steps back stands still here.
* A PF's reasons are those of all its rules that stand, the gravest first; its state is the worst of them. A VF
  is as its PF, and worse where its own facts are (``nodeagent.health.structural``).
* What is not known changes nothing that is allocatable.
* The gate: a link that never was, that nobody expects, on a PF most of whose like have none either, is no fault.
* The guard: most of the node's devices do not go within a minute on the word of one witness. A fault that has
  stood for so long is a witness of itself: the guard delays, it never forbids.
* Equal facts give equal answers, to the second and to the byte.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase

from nodeagent.health import cabling
from nodeagent.health.measures import Seen
from nodeagent.health.nic_state import STRUCTURAL, Pf, Remembered
from nodeagent.health.rules import DEFAULTS, Rule, windows
from nodeagent.health.structural import NO_FAULTS, Fault, Faults
from nodeagent.measurements.sample import Sample
from nodeagent.model import HEALTHY, Function, Health, Link, Neighbor, Reason, State

ROLE_SHARE = 0.75
"""Of a role's links; gpud and NVSentinel have no such gate and alarm for ports that nobody ever plugged in."""
_ORDER = (State.HEALTHY, State.UNUSED, State.UNKNOWN, State.MISCABLED, State.DEGRADED, State.DOWN)
"""The later outweighs the earlier."""


@dataclass(frozen=True, slots=True)
class Expected:
    """Links (globs on netdevs or PCI addresses) that must be up, and how fast."""

    links: tuple[str, ...]
    speed_mbps: float | None = None


@dataclass(frozen=True, slots=True)
class Terms:
    """What is judged by. ``guard_share`` of the devices may go within ``guard_s`` on one word."""

    rules: tuple[Rule, ...] = DEFAULTS
    expected: tuple[Expected, ...] = ()
    unused: tuple[str, ...] = ()
    guard_share: float = 0.5
    guard_s: float = 60.0


@dataclass(slots=True)
class _Withdrawn:
    at: float
    devices: int


@dataclass(slots=True)
class Engine:
    terms: Terms = field(default_factory=Terms)
    pfs: dict[str, Pf] = field(default_factory=dict)
    now: float = 0.0
    _functions: tuple[Function, ...] = ()
    _faults: Faults = field(default_factory=dict)
    role_of: Mapping[str, str] = field(default_factory=dict)
    _neighbors: dict[str, list[Neighbor]] = field(default_factory=dict)
    _plan: cabling.Plan = field(default_factory=dict)
    _withdrawn: dict[str, _Withdrawn] = field(default_factory=dict)
    _memories: dict[str, Remembered] = field(default_factory=dict)
    _about: dict[str, tuple[float | None, bool | None, str | None, bool, bool]] = field(default_factory=dict)
    """What of the node each PF was last judged by: one that nothing has stirred is not judged again."""
    _finals: dict[str, tuple[Function, Health, Function]] = field(default_factory=dict)

    # --- what comes in --------------------------------------------------------------------------------

    def adopt(self, terms: Terms) -> None:
        """Judge by these from now on. What stands keeps standing until its rule clears it, or is gone."""
        self.terms = terms
        damping = self._damping()
        for pf in self.pfs.values():
            pf.penalty.cap(damping.window_s or 1.0, damping.clear)
            pf.history.follow(windows(terms.rules))
            pf.stirred = True

    def facts(self, functions: Iterable[Function], links: Iterable[Link], faults: Faults = NO_FAULTS) -> None:
        """All functions, the missing ones too, and their faults as ``structural.find_faults`` gives them."""
        self._functions, self._faults = tuple(functions), faults
        by_pf = {link.pci_address: link for link in links}
        for function in self._functions:
            if function.parent is None:
                address = function.pci_address
                self._pf(function).facts(function, by_pf.get(address), faults.get(address, ()), self.now)

    def _pf(self, function: Function) -> Pf:
        pf = self.pfs.get(function.pci_address)
        if pf is None:
            pf = self.pfs[function.pci_address] = Pf(function, self.terms.rules)
            if (kept := self._memories.pop(function.pci_address, None)) is not None:
                pf.recall(kept, self.now)
                pf.penalty.cap(self._damping().window_s or 1.0, self._damping().clear)
        return pf

    def samples(self, samples: Iterable[Sample]) -> bool:
        """Whether any should be judged at once. Those of other devices than PFs are not looked at."""
        damping = self._damping()
        pressing = False
        for sample in samples:
            if (pf := self.pfs.get(sample.device)) is not None:
                pressing |= pf.take(sample, damping.window_s or 1.0, damping.clear)
        return pressing

    def _damping(self) -> Rule:
        return next(rule for rule in self.terms.rules if rule.key == "flapping")

    @property
    def news(self) -> bool:
        """Whether samples that were not judged yet may change a verdict. Time is ``due``'s."""
        return any(pf.stirred or pf.history.changed or pf.history.counted for pf in self.pfs.values())

    def roles(self, roles: Mapping[str, str]) -> None:
        """PFs of one role are compared with each other: by PCI address, any word."""
        self.role_of = roles

    def neighbors(self, neighbors: Iterable[Neighbor]) -> None:
        self._neighbors = {}
        for neighbor in neighbors:
            self._neighbors.setdefault(neighbor.link, []).append(neighbor)

    def plan(self, plan: cabling.Plan) -> None:
        self._plan = plan

    def recall(self, memories: Mapping[str, Remembered]) -> None:
        """By PCI address, before the first facts."""
        self._memories = dict(memories)

    def memories(self) -> dict[str, Remembered]:
        """Of each PF; those that were recalled and have not been seen since are kept."""
        return {**self._memories, **{address: pf.remember() for address, pf in self.pfs.items()}}

    # --- what comes out -------------------------------------------------------------------------------

    def judge(self, now: float) -> tuple[Function, ...]:
        """All functions with their health, in the order of the facts."""
        self.now = now = max(now, self.now)
        for pf in self.pfs.values():
            pf.look(now)
        self._gate()
        speeds = self._expected_speeds()
        for pf in self.pfs.values():
            about = (speeds.get(pf.address), *self._cabling(pf), pf.watched, pf.unused)
            whole = pf.stirred or about != self._about.get(pf.address)
            if whole or pf.sampled or _due(pf.next_at, now):
                pf.step(self.terms.rules, pf.seen(*about[:3], now), now, whole=whole)
                pf.judged(pf.due(self.terms.rules, now))
                self._about[pf.address] = about
        self._guard(now)
        health = {address: self._health(pf) for address, pf in self.pfs.items()}
        return tuple(self._final(function, health) for function in self._functions)

    def seen(self, pf: Pf, now: float) -> Seen:
        """The PF as its rules see it now."""
        return pf.seen(self._expected_speeds().get(pf.address), *self._cabling(pf), now)

    def due(self) -> float | None:
        """When to judge again, if nothing happens before."""
        moments = [pf.next_at for pf in self.pfs.values()]
        if any(pf.held_since is not None for pf in self.pfs.values()):
            moments += [one.at + self.terms.guard_s for one in self._withdrawn.values()]
            moments += [
                pf.held_since + self.terms.guard_s for pf in self.pfs.values() if pf.held_since is not None
            ]
        return min((one for one in moments if one is not None and one > self.now), default=None)

    # --- the gate and the majority --------------------------------------------------------------------

    def matches(self, pf: Pf, globs: Iterable[str]) -> bool:
        names = [pf.address, *([pf.link.netdev] if pf.link else [])]
        return any(fnmatchcase(name, glob) for glob in globs for name in names)

    def expected(self, pf: Pf) -> Expected | None:
        return next((one for one in self.terms.expected if self.matches(pf, one.links)), None)

    def _roles(self) -> dict[str, list[Pf]]:
        """The PFs of each role. The way to the world is nobody's like."""
        found: dict[str, list[Pf]] = {}
        for pf in self.pfs.values():
            if not pf.default_route and not pf.unused:
                found.setdefault(self._role(pf), []).append(pf)
        return found

    def _role(self, pf: Pf) -> str:
        return self.role_of.get(pf.address, "")

    def _gate(self) -> None:
        for pf in self.pfs.values():
            pf.unused = self.matches(pf, self.terms.unused)
        # Those that were up count, not those that are: when most fail, the rest is not unused for it.
        present = {
            role: len(peers) > 1 and sum(peer.once_up for peer in peers) >= ROLE_SHARE * len(peers)
            for role, peers in self._roles().items()
        }
        for pf in self.pfs.values():
            if pf.unused:
                pf.watched = False
            elif self.expected(pf) is not None:
                pf.watched = True
            elif pf.default_route:
                pf.watched = False
            else:
                pf.watched = pf.once_up or present[self._role(pf)]

    def _expected_speeds(self) -> dict[str, float]:
        """As configured, or what more than half of three or more of a kind agree about."""
        agreed = {role: _majority(peers) for role, peers in self._roles().items()}
        speeds = {}
        for pf in self.pfs.values():
            wanted = self.expected(pf)
            speed = wanted.speed_mbps if wanted is not None else None
            if speed is None:
                speed = agreed.get(self._role(pf))
            if speed is not None:
                speeds[pf.address] = speed
        return speeds

    def _cabling(self, pf: Pf) -> tuple[bool | None, str | None]:
        netdev = pf.link.netdev if pf.link else None
        planned = self._plan.get(pf.address) or self._plan.get(netdev or "")
        if planned is None or netdev is None:
            return None, None
        return cabling.compare(planned, self._neighbors.get(netdev, ()))

    # --- the guard ------------------------------------------------------------------------------------

    def _guard(self, now: float) -> None:
        """Say of each PF whether its devices may be withdrawn, as far as that is new."""
        devices = Counter(function.parent for function in self._functions if function.parent is not None)
        weights = {address: max(1, devices[address]) for address in self.pfs}
        budget = self.terms.guard_share * sum(weights.values())
        self._withdrawn = {
            address: one
            for address, one in self._withdrawn.items()
            if one.at + self.terms.guard_s > now and self._withdraws(self.pfs[address])
        }
        for address, pf in sorted(self.pfs.items()):
            if not self._withdraws(pf):
                pf.held_since, pf.told = None, True
                continue
            if pf.told is not False:
                spent = sum(one.devices for one in self._withdrawn.values())
                free = pf.told is None or spent + weights[address] <= budget
                if not free and not self._agreed(pf) and not self._stood(pf, now):
                    continue
                if pf.told is not None:
                    self._withdrawn[address] = _Withdrawn(now, weights[address])
            pf.held_since, pf.told = None, False

    def _stood(self, pf: Pf, now: float) -> bool:
        """A fault that is over already, and only waits to be cleared, does not stand."""
        over = all(
            hold.good_since is not None for rule, hold in pf.active(self.terms.rules) if rule.withdraws
        )
        if pf.held_since is None or (over and not self._idle(pf)):
            pf.held_since = now
        return now >= pf.held_since + self.terms.guard_s

    def _withdraws(self, pf: Pf) -> bool:
        return self._idle(pf) or any(rule.withdraws for rule, _ in pf.active(self.terms.rules))

    def _agreed(self, pf: Pf) -> bool:
        """Whether two witnesses speak against it, of one fault or of several."""
        seen = pf.seen(None, None, None, self.now)
        witnesses: set[str] = set()
        for rule, _ in pf.active(self.terms.rules):
            if rule.withdraws:
                measured = pf.measure(rule, seen, self.now)
                witnesses |= measured.witnesses if measured is not None else set()
        return len(witnesses) > 1

    # --- the verdict ----------------------------------------------------------------------------------

    def _idle(self, pf: Pf) -> bool:
        """Has no link, and none is missed."""
        down = pf.structural(Fault.CARRIER_DOWN) is not None or pf.structural(Fault.ADMIN_DOWN) is not None
        return down and not pf.watched and (not pf.once_up or pf.unused)

    def _health(self, pf: Pf) -> Health:
        active = pf.active(self.terms.rules)
        reasons = [pf.reason(rule, hold) for rule, hold in active]
        state = max((rule.state for rule, _ in active), key=_ORDER.index, default=State.HEALTHY)
        if pf.held_since is not None:
            why = "its devices stay Healthy until a second source agrees or the fault has stood"
            reasons.append(Reason("guard", f"{pf.name}: {why} for {self.terms.guard_s:g} s", warning=True))
        if self._idle(pf) and not active:
            state = State.UNUSED
            reasons.append(
                Reason("unused", f"{pf.name} has had no link since the boot, and none is expected")
            )
        elif self._unseen(pf):
            state = max(state, State.UNKNOWN, key=_ORDER.index)
            told = pf.structural(Fault.LINK_UNSEEN)
            why = told.detail if told else f"{pf.name} does not report whether it has carrier"
            reasons.append(Reason("link_unseen", why))
        elif pf.watched and (silent := pf.history.stale()):
            names = ", ".join(silent)
            reasons.append(Reason("data_stale", f"{pf.name}: nothing new from {names}", warning=True))
        if state is not pf.state or pf.changed_at is None:
            pf.state, pf.changed_at = state, self.now
        return Health(state, tuple(reasons), allocatable=pf.told is not False) if reasons else HEALTHY

    @staticmethod
    def _unseen(pf: Pf) -> bool:
        gone = pf.structural(Fault.DEVICE_MISSING) or pf.structural(Fault.DRIVER_UNBOUND)
        return gone is None and pf.admin_up is not False and pf.carrier is None

    def _final(self, function: Function, health: Mapping[str, Health]) -> Function:
        address = function.pci_address
        verdict = (
            health[address] if function.parent is None else self._vf(function, health.get(function.parent))
        )
        before = self._finals.get(address)
        if before is not None and before[1] == verdict and (before[0] is function or before[0] == function):
            return before[2]
        final = function if function.health == verdict else replace(function, health=verdict)
        self._finals[address] = (function, verdict, final)
        return final

    def _vf(self, vf: Function, pf: Health | None) -> Health:
        """Its PF's health, and worse where its own facts are."""
        own = self._faults.get(vf.pci_address, ())
        if pf is None or vf.parent is None:
            return Health(State.DOWN, own, allocatable=False) if own else HEALTHY
        if self.pfs[vf.parent].held_since is not None and self.pfs[vf.parent].gone:
            # It went with its PF, on the same word.
            own = tuple(reason for reason in own if reason.key != Fault.DEVICE_MISSING)
        return Health(State.DOWN, (*own, *pf.reasons), allocatable=False) if own else pf


def _majority(peers: Iterable[Pf]) -> float | None:
    told = [speed for peer in peers if (speed := peer.speed_mbps) and peer.carrier]
    if len(told) < 3:
        return None
    speed, votes = Counter(told).most_common(1)[0]
    return speed if 2 * votes > len(told) else None


def _due(moment: float | None, now: float) -> bool:
    return moment is not None and now >= moment


def order(state: State) -> int:
    """How grave, for sorting."""
    return _ORDER.index(state) if state in _ORDER else len(_ORDER)


def keys(rules: Sequence[Rule]) -> frozenset[str]:
    """Every reason that a PF may have, the structural ones and ours among them."""
    return frozenset(
        {rule.key for rule in rules} | STRUCTURAL | {"guard", "unused", "link_unseen", "data_stale"}
    )
