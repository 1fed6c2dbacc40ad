"""Judge what the VFs of pods carry, from readings of their counters and of the load of GPUs. Pure: time is given.

* A VF moves if it carries ``MOVES_BPS``, and from then on if it carries ``STAYS_BPS``. A job without collectives still
  sends some ARP and keep-alive.
* A pod is silent if none of its VFs has moved for ``SAY_S``, and for longer than its own longest pause: checkpoints and
  evaluations pause the rails of each job, and no level changes for them.
* A pod whose VFs have never moved is ``unused``: it starts, or it has no traffic by nature. It is never silent.
* While a pod moves, a VF of it that does not move is silent by itself; one that carries less than ``BELOW`` of the
  median of the others is below them. Both must hold for ``SAY_S``, and the second ends at ``NOT_BELOW``.
* GPUs wait if a kernel runs all the time and the memory of the GPU is not used: so do those of a collective whose
  partner is not there. A GPU that computes uses its memory (docs/reference/verified.md). They wait after
  ``GPUS_WAIT_S``: each collective waits for its slowest rank for some time.
* A VF whose driver does not count all bytes is ``unmeasured``, and takes no part in this.
* A counter that falls was reset: the reading is a new beginning. But zeros alone are no reading at first: the kernel
  answers them when the driver refuses, as during a reset of the VF (``rtnl_fill_vfinfo`` drops the error).
* Changes of levels have a budget for the node (``LevelBudget``). Without it the newest state waits; none is lost.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from statistics import median
from typing import NamedTuple

from nodeagent.facts.model import PodTraffic, RailTraffic

MOVES_BPS = 125_000.0
"""Bytes a second, both directions together: 1 Mbit/s."""
STAYS_BPS = MOVES_BPS / 4
COMPARED_BPS = 4 * MOVES_BPS
"""VFs are compared if the median of the others carries so much."""
SAY_S = 120.0
BELOW, NOT_BELOW = 0.5, 0.75
READINGS = 4
"""Readings of a mean; at 30 s each they are ``SAY_S``."""
FEWEST_VFS = 3
"""With two VFs, which of them is odd is not known."""
PAUSE_LEAST_S, PAUSE_STEP = 60.0, 1.5
"""A longest pause is reported as the next of these steps, so that it changes seldom."""
THERE_BEFORE_S = 60.0
"""Pods that are there so soon after the judge began were there before it."""
ZEROS = 3
"""After so many readings of zeros alone the counters were reset."""
BURST, EACH_S = 6, 300.0
"""Changes of levels of one node: 6 at once, and 12 an hour."""
BUSY_LOAD, IDLE_LOAD = 0.99, 0.05
MEMORY_USED = 0.01
LOADS = 4
"""Readings of the load of a GPU."""
GPUS_WAIT_S = 300.0
MOVING, SILENT, BELOW_PEERS, NEVER_MOVED, UNMEASURED = "moving", "silent", "below", "unused", "unmeasured"
WAITING, WORKING, IDLING = "waiting", "working", "idle"
COUNTS_ALL = frozenset(("mlx5_core", "ixgbe"))
"""The drivers whose IFLA_VF_STATS contain every byte of a VF: mlx5 adds RoCE, ixgbe has no RDMA."""


class VfCounters(NamedTuple):
    """A reading of one VF. ``at`` is CLOCK_BOOTTIME. Bytes and packets are those that the VF receives and sends."""

    at: float
    received: float
    sent: float
    received_packets: float = 0.0
    sent_packets: float = 0.0


class GpuLoad(NamedTuple):
    """``memory``: part of the time in which the memory was used; ``None`` if it is not measured."""

    at: float
    utilization: float
    memory: float | None


class PodVf(NamedTuple):
    """A VF of a pod: its PCI address, that of its PF, and the driver of the PF."""

    address: str
    pf: str
    driver: str | None


class PodNow(NamedTuple):
    """The devices that a pod holds. ``claims`` gave them by name; without one ``allocated`` is when the last VF was
    allocated, CLOCK_BOOTTIME, 0 before this agent: the next pod of a name may hold the same VFs."""

    vfs: tuple[PodVf, ...]
    gpus: tuple[int, ...] = ()
    claims: frozenset[str] = frozenset()
    allocated: float = 0.0

    @property
    def identity(self) -> tuple[frozenset[str], float]:
        return self.claims, self.allocated


class VfRate(NamedTuple):
    """The traffic of a VF between its last two readings, per second, both ways: bytes and packets."""

    seconds: float
    received: float
    sent: float
    received_packets: float
    sent_packets: float


class _Vf:
    def __init__(self) -> None:
        self.last: VfCounters | None = None
        self.rate: VfRate | None = None
        self.moved_at: float | None = None
        self.first_at = 0.0
        self.rates: deque[float] = deque(maxlen=READINGS)
        self.level = ""
        self.since = 0.0
        self.odd_for = 0
        self.even_for = 0
        self.zeros = 0
        self.zeros_at = 0.0

    def take(self, now: VfCounters) -> bool:
        """Return whether this was a new reading."""
        last = self.last
        if last is not None and now.at <= last.at:
            return False
        if last is not None and any(last[1:]) and not any(now[1:]):
            if self.zeros_at != now.at:
                self.zeros, self.zeros_at = self.zeros + 1, now.at
            if self.zeros < ZEROS:
                return False
        self.zeros = 0
        self.last = now
        if last is None:
            self.first_at = now.at
            return True
        seconds = now.at - last.at
        grown = [after - before for before, after in zip(last[1:], now[1:], strict=True)]
        if min(grown[:2]) < 0:
            self.rate = None
            return True
        self.rate = VfRate(seconds, *(one / seconds for one in grown))
        carried = self.rate.received + self.rate.sent
        self.rates.append(carried)
        if carried >= (MOVES_BPS if self.moved_at is None else STAYS_BPS):
            self.moved_at = now.at
        return True

    @property
    def moves(self) -> bool:
        return self.last is not None and self.moved_at == self.last.at

    @property
    def mean(self) -> float | None:
        return sum(self.rates) / len(self.rates) if len(self.rates) == READINGS else None


class _Pod:
    def __init__(self, held: PodNow, *, at_start: bool) -> None:
        self.identity = held.identity
        self.vfs: dict[str, _Vf] = {}
        self.quiet_since: float | None = None
        self.begun = False
        self.longest = 0.0
        self.at_start = at_start


class LevelBudget:
    """How many changes of levels a node may still write. Refills with time."""

    def __init__(self) -> None:
        self._left, self._at = float(BURST), 0.0

    def take(self, now: float) -> bool:
        self._left = min(BURST, self._left + (now - self._at) / EACH_S)
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True


class TrafficJudge:
    """Keeps what is known of each pod, by ``namespace/pod``. ``unix`` is the Unix time of CLOCK_BOOTTIME 0."""

    def __init__(self) -> None:
        self._pods: dict[str, _Pod] = {}
        self._loads: dict[int, deque[GpuLoad]] = {}
        self._worked_at: dict[int, float] = {}
        """When each GPU was seen last without a kernel that only waits, or was read first."""
        self._budget = LevelBudget()
        self._published: dict[str, PodTraffic] = {}
        self._began: float | None = None

    def take(
        self,
        now: float,
        pods: Mapping[str, PodNow],
        counters: Mapping[str, VfCounters],
        loads: Mapping[int, GpuLoad],
        unix: float = 0.0,
    ) -> tuple[PodTraffic, ...]:
        """Judge the newest readings, of VFs by PCI address and of GPUs by index. Return the levels to publish."""
        if self._began is None:
            self._began = now
        for index, load in loads.items():
            known = self._loads.setdefault(index, deque(maxlen=LOADS))
            if not known or known[-1].at < load.at:
                known.append(load)
                if not _only_waits(load):
                    self._worked_at[index] = load.at
                self._worked_at.setdefault(index, load.at)
        at_start = now - self._began <= THERE_BEFORE_S
        same = {
            name: pod
            for name, held in pods.items()
            if (pod := self._pods.get(name)) is not None and pod.identity == held.identity
        }
        self._published = {name: level for name, level in self._published.items() if name in same}
        self._pods = {
            name: same.get(name) or _Pod(held, at_start=at_start and not held.allocated)
            for name, held in pods.items()
        }
        for name, held in pods.items():
            self._read(self._pods[name], held, counters)
        wanted = {
            name: level
            for name, held in pods.items()
            if (level := self._level(name, held, now, unix)) is not None
        }
        self._published = self._affordable(wanted, now)
        return tuple(self._published[name] for name in sorted(self._published))

    def rates(self) -> dict[str, tuple[VfRate | None, float | None]]:
        """Of each VF what it carried last, and when it moved last."""
        return {
            address: (vf.rate, vf.moved_at) for pod in self._pods.values() for address, vf in pod.vfs.items()
        }

    def is_measured(self, vf: PodVf) -> bool:
        """Whether silence of this VF would be seen: its driver counts all bytes, or it carries some now."""
        state = next((pod.vfs[vf.address] for pod in self._pods.values() if vf.address in pod.vfs), None)
        return state is not None and state.last is not None and (vf.driver in COUNTS_ALL or state.moves)

    def quiet(self, name: str) -> tuple[float | None, float]:
        """Since when no VF of the pod moves, and its longest pause in seconds."""
        pod = self._pods.get(name)
        return (None, 0.0) if pod is None else (pod.quiet_since, pod.longest)

    def _affordable(self, wanted: Mapping[str, PodTraffic], now: float) -> dict[str, PodTraffic]:
        """A pod that comes or goes changes the report anyhow. Every other change needs the budget, all of one moment
        together."""
        before = self._published
        changed = [name for name in wanted.keys() & before.keys() if wanted[name] != before[name]]
        if not changed or self._budget.take(now):
            return dict(wanted)
        return {name: before.get(name, level) for name, level in wanted.items()}

    def _read(self, pod: _Pod, held: PodNow, counters: Mapping[str, VfCounters]) -> None:
        pod.vfs = {vf.address: pod.vfs.get(vf.address) or _Vf() for vf in held.vfs}
        news = {
            address for address, vf in pod.vfs.items() if address in counters and vf.take(counters[address])
        }
        judged = {vf.address: pod.vfs[vf.address] for vf in held.vfs if vf.driver in COUNTS_ALL}
        new = [vf for address, vf in judged.items() if address in news]
        if not any(vf.rate for vf in new):
            return
        moved = [vf.moved_at for vf in judged.values() if vf.moved_at is not None]
        if any(vf.moves for vf in new):
            if pod.quiet_since is not None:
                pod.longest = max(pod.longest, max(moved) - pod.quiet_since)
            pod.begun, pod.quiet_since = True, None
        elif pod.begun and pod.quiet_since is None:
            pod.quiet_since = max(moved)
        if pod.begun and pod.quiet_since is None:
            _compare(judged)

    def _level(self, name: str, held: PodNow, now: float, unix: float) -> PodTraffic | None:
        """The level of a pod; ``None`` until there are two readings of it, or of one whose VFs are not measured."""
        pod, namespace = self._pods[name], name.partition("/")[0]
        read = [vf for vf in pod.vfs.values() if vf.rate is not None]
        unmeasured = [
            vf.pf for vf in held.vfs if vf.driver not in COUNTS_ALL or pod.vfs[vf.address].last is None
        ]
        known = self._published.get(name)
        if not read and not (len(unmeasured) == len(held.vfs) and now - (self._began or now) >= SAY_S):
            return known
        if len(unmeasured) == len(held.vfs):
            level, since = UNMEASURED, None
        elif not pod.begun:
            level, since = NEVER_MOVED, min(vf.first_at for vf in read)
        elif pod.quiet_since is not None and now - pod.quiet_since > max(SAY_S, pod.longest):
            level, since = SILENT, pod.quiet_since
        else:
            level, since = MOVING, None
        rails = [
            RailTraffic(vf.pf, vf.address, state.level, round(state.since + unix))
            for vf in held.vfs
            if (state := pod.vfs[vf.address]).level
        ]
        if level != UNMEASURED:
            rails += [RailTraffic(vf.pf, vf.address, UNMEASURED) for vf in held.vfs if vf.pf in unmeasured]
        stamp = None if since is None else round(since + unix)
        if known is not None and known.level == level and known.since is not None and stamp is not None:
            stamp = known.since if abs(known.since - stamp) <= 1 else stamp  # the clocks drift
        shown = level == SILENT or (level == NEVER_MOVED and pod.at_start)
        gpus, idle = self._gpus(held.gpus) if shown else ("", ())
        return PodTraffic(
            namespace=namespace,
            pod=name.partition("/")[2],
            level=level,
            since=stamp,
            longest_pause=stepped(pod.longest),
            gpus=gpus,
            idle_gpus=idle,
            rails=tuple(sorted(rails, key=lambda one: (one.pf, one.vf))),
            at_start=pod.at_start,
        )

    def _gpus(self, indexes: Iterable[int]) -> tuple[str, tuple[int, ...]]:
        """The word for most GPUs of a pod, and the idle ones if not all are. Empty: it is not known, or not yet."""
        words = {index: self._word(index) for index in indexes}
        most = max((WAITING, WORKING, IDLING, ""), key=[*words.values()].count)
        if not words or not most:
            return "", ()
        idle = tuple(index for index, word in words.items() if word == IDLING)
        return most, idle if len(idle) < len(words) else ()

    def _word(self, index: int) -> str:
        """The word for a GPU; empty while it has not waited for long enough."""
        loads = self._loads.get(index)
        word = load_word(loads or ())
        waited_s = loads[-1].at - self._worked_at[index] if loads else 0.0
        return "" if word == WAITING and waited_s < GPUS_WAIT_S else word


def load_word(loads: Iterable[GpuLoad]) -> str:
    """The word for a GPU by its last ``LOADS`` readings; empty: it is not known."""
    loads = tuple(loads)
    if len(loads) < LOADS:
        return ""
    if all(load.utilization <= IDLE_LOAD for load in loads):
        return IDLING
    return WAITING if all(map(_only_waits, loads)) else WORKING


def _only_waits(load: GpuLoad) -> bool:
    return load.utilization >= BUSY_LOAD and (load.memory or 0.0) < MEMORY_USED


def stepped(seconds: float) -> int:
    """The longest pause as reported: the next step above it; 0 below the first.

    >>> [stepped(seconds) for seconds in (0, 59, 60, 100, 200)]
    [0, 0, 60, 135, 203]
    """
    if seconds < PAUSE_LEAST_S:
        return 0
    step = PAUSE_LEAST_S
    while step < seconds:
        step *= PAUSE_STEP
    return round(step + 0.001)


def _compare(vfs: Mapping[str, _Vf]) -> None:
    """The VFs of a pod that moves against each other."""
    for address, vf in vfs.items():
        if vf.last is None or vf.rate is None:
            continue
        if vf.moves:
            quiet = False
        else:
            since = vf.first_at if vf.moved_at is None else vf.moved_at
            quiet = vf.last.at - since >= SAY_S
        if quiet:
            if not _carry(vfs, address):
                continue
            if vf.level != SILENT:
                vf.level, vf.since = SILENT, vf.first_at if vf.moved_at is None else vf.moved_at
            continue
        if vf.level == SILENT and vf.moves:
            vf.level = ""
        others = [
            other.mean
            for name, other in vfs.items()
            if name != address and other.mean is not None and other.level != SILENT
        ]
        if vf.mean is None or len(others) < FEWEST_VFS - 1 or vf.level == SILENT:
            continue
        usual = median(others)
        if usual < COMPARED_BPS:
            continue
        vf.odd_for = vf.odd_for + 1 if vf.mean < BELOW * usual else 0
        vf.even_for = vf.even_for + 1 if vf.mean > NOT_BELOW * usual else 0
        if vf.level == "" and vf.odd_for >= READINGS:
            vf.level, vf.since = BELOW_PEERS, vf.last.at
        elif vf.level == BELOW_PEERS and vf.even_for >= READINGS:
            vf.level = ""


def _carry(vfs: Mapping[str, _Vf], address: str) -> bool:
    """Whether other VFs carry enough to compare this one with them."""
    return any(vf.rates and vf.rates[-1] >= COMPARED_BPS for name, vf in vfs.items() if name != address)
