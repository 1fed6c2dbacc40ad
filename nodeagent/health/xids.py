"""When a GPU may be handed out, from what its driver says. Pure.

The law of this file:

* Whatever condemns a GPU also has a way back: a lost GPU is found again, a recovery action is no longer
  asked for, an XID is followed by a reset (the driver asked for an action and no longer does) or by
  ``clear_after_s`` without another, while no action is asked for. What is measured: ``health/gpu_rules.py``.
* Evidence is about one GPU. An error of the driver as a whole, and its silence, condemn nobody.
* A GPU that was once known is never forgotten while the agent lives: the kubelet may have given it away.
* Nothing here counts or ages in what is said: the same fault gives the same reasons, second for second.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from enum import StrEnum

from nodeagent.health.gpu_rules import LIMITS, NO_CHART, Chart, Limits, Mark, note, reasons
from nodeagent.host.gpu_driver import GpuEvent, GpuReading, GpuVitals
from nodeagent.model import Health, Reason, State


class Severity(StrEnum):
    """What an XID says of the GPU that reports it."""

    IGNORE = "ignore"
    """the application's fault, or no fault: the GPU serves the next one"""
    WATCH = "watch"
    """worth a person's eye; the GPU still serves"""
    FATAL = "fatal"
    """nothing more runs on it, or runs right, until it is reset"""


FATAL = {
    46: "The GPU stopped processing and timed out.",
    48: "The GPU met an uncorrectable (double bit) memory error.",
    62: "The GPU's power management controller halted.",
    64: "The GPU could not retire or remap a bad row of its memory.",
    74: "An NVLink of the GPU failed.",
    79: "The GPU has fallen off the bus.",
    95: "The GPU met an uncorrectable memory error that reaches beyond one application.",
    109: "The GPU timed out while switching contexts.",
    110: "The GPU met a security fault.",
    119: "The GPU's system processor did not answer in time.",
    120: "The GPU's system processor failed.",
    136: "The training of an NVLink failed.",
    140: "The GPU met an uncorrectable memory error that was not contained.",
    143: "The GPU could not be initialized.",
    151: "The GPU's encryption keys could not be rotated.",
    155: "An NVLink reported a software-defined error.",
    156: "A part of the GPU was retired and is replaced at the next reset.",
    158: "The GPU met a fatal time-out.",
}
"""NVIDIA's Xid catalog (docs.nvidia.com/deploy/xid-errors), immediate action RESET_GPU, RESTART_VM (151) or
RESTART_BM (79), and the two whose workflows end in a reset on Ampere and Hopper: 48 and 74."""

WATCH = {
    54: "The GPU's power is reduced; its auxiliary power may not be connected.",
    63: "The GPU retired a row of its memory; the remapping takes effect at the next reset.",
    78: "A virtual GPU did not start; driver and firmware may not fit.",
    92: "The GPU corrects unusually many single-bit memory errors.",
    93: "The GPU's InfoROM has been erased too often.",
    108: "A remote NVLink translation failed.",
    121: "The link between CPU and GPU reported a corrected error.",
    137: "An NVLink met an access to memory that is not allowed.",
    141: "The GPU met an error on its fast path.",
    157: "A part of the GPU could not be retired.",
    160: "A memory channel of the GPU was retired.",
    161: "A memory channel of the GPU could not be retired.",
    167: "A PCIe transaction of the GPU timed out for good.",
    168: "The GPU offers less memory than it has.",
    169: "The GPU's security processor halted.",
    171: "The GPU met an uncorrectable DRAM error.",
    172: "The GPU met an uncorrectable SRAM error.",
} | dict.fromkeys(range(144, 151), "An NVLink (fifth generation) reported an error.")
"""Catalog: IGNORE, CHECK_MECHANICALS, UPDATE_SWFW or nothing as immediate action, yet something for a person
to look at. For 144-150 the action stands in registers that NVML's event does not carry: there the driver's
own recovery action decides, as it does for the younger ones without an action."""

IGNORE = frozenset(
    {8, 11, 13, 14, 25, 31, 32, 37, 38, 39, 40, 41, 43, 44, 45, 60, 66, 67, 68, 69, 70, 71, 72, 75, 76, 77}
    | {80, 82, 83, 84, 85, 86, 88, 89, 94, *range(96, 108), *range(126, 136), 139, 152, 153, 154}
)
"""Catalog: RESTART_APP (13, 31, 94: contained to one application), or IGNORE without anything about the GPU's
hardware (43, 45 follow another fault). 154 says that the recovery action changed, which is read anyway.
109 is ignored by NVIDIA's device plugin and RESET_GPU in the catalog; 94 the other way round: the catalog
is followed in both (k8s-device-plugin issue 1974)."""


@dataclass(frozen=True, slots=True)
class Rules:
    """``fatal`` and ``ignore`` override the table, ``fatal`` first. Times are seconds."""

    fatal: frozenset[int] = frozenset()
    ignore: frozenset[int] = frozenset()
    clear_after_s: float = 600.0
    """An XID without a reset seen: so long without another (ten minutes, our own choice)."""
    unreadable_after_s: float = 30.0
    """A GPU that answers with errors is in doubt, and after this long it is condemned (our own choice)."""
    limits: Limits = LIMITS


def severity(xid: int, rules: Rules) -> Severity:
    """An XID that the table does not know is watched: a driver that adds a number should not cost a GPU,
    and what is really grave also shows as a lost GPU or as a recovery action."""
    if xid in rules.fatal:
        return Severity.FATAL
    if xid in rules.ignore or xid in IGNORE:
        return Severity.IGNORE
    return Severity.FATAL if xid in FATAL else Severity.WATCH


@dataclass(frozen=True, slots=True)
class Fault:
    """What was announced and stands: an XID, or with ``None`` that the GPU is unavailable. ``at`` is the last
    time that it was heard, in seconds since boot."""

    xid: int | None
    at: float


@dataclass(frozen=True, slots=True)
class Latch:
    """What is remembered of one GPU: the last it told of itself, and what stands against it.

    ``reading`` has ``uuid``, and of every other field the last value that could be read. ``reset``: the GPU was
    reset, and its vitals have not been read since.
    """

    reading: GpuReading
    read_at: float
    faults: tuple[Fault, ...] = ()
    lost: bool = False
    unreadable_since: float | None = None
    chart: Chart = NO_CHART
    reset: bool = False

    @property
    def uuid(self) -> str:
        return self.reading.uuid or ""


def judge(
    latches: tuple[Latch, ...],
    now: float,
    rules: Rules,
    *,
    events: Sequence[GpuEvent] = (),
    readings: Sequence[GpuReading] | None = None,
    vitals: Sequence[GpuVitals] = (),
) -> tuple[Latch, ...]:
    """The latches after these events, then this reading of all GPUs (``None``: there was no reading), then
    these vitals of some of them.

    Sorted by index. An event of a GPU that has never been read is dropped: there is nobody to condemn.
    """
    for event in events:
        if grade(event.xid, rules) is Severity.IGNORE or (event.xid is None and not event.unavailable):
            continue
        fault = Fault(event.xid, now)
        latches = tuple(
            replace(latch, faults=_with(latch.faults, fault)) if latch.uuid == event.uuid else latch
            for latch in latches
        )
    if readings is not None:
        latches = _hear(latches, readings, now, rules)
    told = {one.uuid: one for one in vitals}
    return tuple(
        _examine(latch, told[latch.uuid], now, rules) if latch.uuid in told else latch for latch in latches
    )


def _hear(
    latches: tuple[Latch, ...], readings: Sequence[GpuReading], now: float, rules: Rules
) -> tuple[Latch, ...]:
    told = _identify(latches, readings)
    known = {latch.uuid for latch in latches}
    judged = [_read(latch, told.get(latch.uuid), now, rules) for latch in latches]
    for uuid, reading in told.items():
        if uuid not in known:
            judged.append(_read(Latch(reading, now), reading, now, rules))
    return tuple(sorted(judged, key=lambda latch: (latch.reading.index, latch.uuid)))


def verdict(latch: Latch, rules: Rules) -> Health:
    """What stands against this GPU, the gravest first. MIG is no fault: such a GPU is healthy, but its
    memory is handed out by MIG and cannot be sliced as well."""
    reading = latch.reading
    unreadable = Reason("gpu_unreadable", f"The driver cannot read this GPU: {reading.fault}.")
    in_doubt = latch.unreadable_since is not None
    graded = [(fault, grade(fault.xid, rules)) for fault in latch.faults]
    measured_grave, measured_slight = reasons(latch.chart, limits_of(latch, rules))
    grave: list[Reason] = []
    if latch.lost:
        grave.append(
            Reason("gpu_lost", "The driver no longer reaches this GPU; reset it or reboot the node.")
        )
    if reading.recovery_action not in (None, "none"):
        action = reading.recovery_action or ""
        said = action.replace("_", " ")
        grave.append(Reason(f"recovery_{action}", f"The driver asks for a recovery action: {said}."))
    grave += [announced(fault.xid) for fault, weight in graded if weight is Severity.FATAL]
    grave += measured_grave
    if in_doubt and latch.read_at - (latch.unreadable_since or 0.0) >= rules.unreadable_after_s:
        grave.append(unreadable)
        in_doubt = False
    slight = [unreadable] if in_doubt else []
    mig = [Reason("mig_enabled", "MIG divides this GPU, so its memory is not sliced.")] if reading.mig else []
    watched = [announced(fault.xid) for fault, weight in graded if weight is Severity.WATCH]
    state = State.HEALTHY
    if grave:
        state = State.UNHEALTHY
    elif in_doubt:
        state = State.UNKNOWN
    elif watched or measured_slight:
        state = State.DEGRADED
    told = (*grave, *slight, *mig, *watched, *measured_slight)
    return Health(state, told, allocatable=not grave and not mig)


def unknown(health: Health, why: str) -> Health:
    """The same GPU while the driver as a whole is silent: what is allocatable does not change."""
    reasons = (Reason("driver_silent", why), *health.reasons)
    return Health(State.UNKNOWN, reasons, health.allocatable)


def _identify(latches: tuple[Latch, ...], readings: Sequence[GpuReading]) -> dict[str, GpuReading]:
    """Readings by UUID. One without is the GPU that was last at its index, unless that one spoke itself."""
    told: dict[str, GpuReading] = {}
    for reading in readings:
        if reading.uuid is not None:
            told.setdefault(reading.uuid, reading)
    at = {latch.reading.index: latch.uuid for latch in latches}
    for reading in readings:
        uuid = at.get(reading.index)
        if reading.uuid is None and uuid is not None and uuid not in told:
            told[uuid] = replace(reading, uuid=uuid)
    return told


def _read(latch: Latch, reading: GpuReading | None, now: float, rules: Rules) -> Latch:
    if reading is None:
        return replace(latch, read_at=now, lost=True, unreadable_since=None)
    merged = _merge(latch.reading, reading)
    wanted = latch.reading.recovery_action not in (None, "none")
    wants = merged.recovery_action not in (None, "none")
    clean = reading.fault is None and not reading.lost
    faults = latch.faults
    if wanted and not wants:
        # The action was carried out. What came after the reading that still asked for it is news.
        faults = tuple(fault for fault in faults if fault.at > latch.read_at)
    if clean and not wants:
        faults = tuple(fault for fault in faults if now - fault.at < rules.clear_after_s)
    since = latch.unreadable_since if latch.unreadable_since is not None else now
    in_doubt = reading.fault is not None and not reading.lost
    found = latch.lost and not reading.lost  # what has left the bus is reset before it answers again
    return replace(
        latch,
        reading=merged,
        read_at=now,
        faults=faults,
        lost=reading.lost,
        unreadable_since=since if in_doubt else None,
        reset=latch.reset or found or (wanted and not wants),
    )


def _examine(latch: Latch, vitals: GpuVitals, now: float, rules: Rules) -> Latch:
    chart = note(latch.chart, vitals, now, limits_of(latch, rules), reset=latch.reset)
    return replace(latch, chart=chart, reset=False)


def limits_of(latch: Latch, rules: Rules) -> Limits:
    """MIG switches a GPU's NVLinks off: that is no fault."""
    if not latch.reading.mig:
        return rules.limits
    off = {Mark.NVLINK_DOWN, Mark.FABRIC_UNHEALTHY, Mark.FABRIC_DEGRADED}
    return replace(rules.limits, ignore=rules.limits.ignore | off)


def grade(xid: int | None, rules: Rules) -> Severity:
    """As ``severity``; with ``None`` that of an unavailable GPU."""
    return Severity.FATAL if xid is None else severity(xid, rules)


def _merge(old: GpuReading, new: GpuReading) -> GpuReading:
    """What could not be read keeps its last value. Where all could be read, ``None`` is the answer."""
    if new.fault is None and not new.lost:
        return new
    kept = {
        field.name: getattr(old, field.name)
        for field in fields(GpuReading)
        if field.name != "fault" and getattr(new, field.name) is None
    }
    return replace(new, **kept, mig=new.mig or old.mig)


def _with(faults: tuple[Fault, ...], fault: Fault) -> tuple[Fault, ...]:
    others = [other for other in faults if other.xid != fault.xid]
    return tuple(sorted([*others, fault], key=lambda one: -1 if one.xid is None else one.xid))


def announced(xid: int | None) -> Reason:
    """The reason that an XID is, or with ``None`` an unavailable GPU."""
    if xid is None:
        said = "The driver has given this GPU up as unavailable; reset it or reboot the node."
        return Reason("gpu_unavailable", said)
    text = FATAL.get(xid) or WATCH.get(xid) or "NVIDIA's Xid catalog tells what it means."
    return Reason(f"xid_{xid}", f"XID {xid}: {text}")
