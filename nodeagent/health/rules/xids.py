"""The XID errors of NVIDIA's driver, and the latched rules that they start. Pure.

An XID ends with a reset (the driver asked for a recovery action and no longer does), or ``xidClearSeconds`` after the
last such event, while the driver asks for no action and reads the GPU without errors.
"""

from __future__ import annotations

from enum import StrEnum

from nodeagent.base.duration import duration
from nodeagent.facts.model import State
from nodeagent.health.gpu_settings import GpuSettings
from nodeagent.health.rule import Measured, Rule
from nodeagent.host.gpu_driver import DriverMessage


class Severity(StrEnum):
    """The effect of an XID on the GPU that reports it."""

    IGNORE = "ignore"
    """The application caused it, or it is not an error; the GPU serves the next application."""
    WATCH = "watch"
    """A person should look at it; the GPU still works."""
    FATAL = "fatal"
    """The GPU does not work correctly until it is reset."""
    ACTION = "recovery action"
    """The recovery action that the driver asks for decides. A driver that does not report it: as fatal."""


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
    **{
        xid: f"The unit {unit} of an NVLink (fifth generation) reported an error."
        for xid, unit in enumerate(("SAW", "RLW", "TLW", "TREX", "NVLPW_CTRL", "NETIR", "MSE"), 144)
    },
}
"""Catalog: IGNORE, CHECK_MECHANICALS, UPDATE_SWFW or nothing as immediate action, yet worth a look. For 144-150 the
action stands in registers that NVML's event does not carry: where the kernel log is read, its line decides
(``needs_reset``). Everywhere the driver's own recovery action does too, as for newer XIDs without an action."""

_LINK_DOWN = "NETIR_LINK_EVT"
_LINK_DOWN_CAUSES = {
    1: "report it if it comes more than once a day",
    **dict.fromkeys((2, 4, 10), "check the signal of the link"),
    **dict.fromkeys((42, 43), "check the signal and the cables of the link"),
    **dict.fromkeys((21, 32, 33, 34, 35, 36, 37), "look at the device at its other end"),
    **dict.fromkeys((15, 17, 22, 38), "software or a person took it down"),
    **dict.fromkeys((16, 18), "software or a person took it down, or check its signal"),
    40: "look at the host",
}
"""Catalog, NVLink 5, by the sub-code in bits 20 to 25 of ``intrinfo``: the investigatory action."""
_NO_RESET = frozenset({38, 40})
"""Sub-codes of a link that went down, fatal to it, whose immediate action is IGNORE."""

APPLICATION = frozenset({13, 31})
"""Applications cause them. Catalog: on one GPU again and again they need its diagnosis (WORKFLOW_XID_13 and _31)."""
REPEATED = APPLICATION | {94}
"""XIDs of ``IGNORE`` that count as repeated, beside all others."""

RECOVERY_ACTION_CHANGED = 154
"""Catalog: its message sums up the action that other XIDs require; NVML's event does not carry it. The reading that
follows each event has it (``NVML_FI_DEV_GET_GPU_RECOVERY_ACTION``). Where the driver does not support that field, the
XID itself counts: the driver starts with the action "None", so its first change always asks for one."""

IGNORE = frozenset(
    {8, 11, 13, 14, 25, 31, 32, 37, 38, 39, 40, 41, 43, 44, 45, 60, 66, 67, 68, 69, 70, 71, 72, 75, 76, 77}
    | {80, 82, 83, 84, 85, 86, 88, 89, 94, *range(96, 108), *range(126, 136), 139, 152, 153}
)
"""Catalog: RESTART_APP (13, 31, 94: contained to one application), or IGNORE without an effect on the GPU's
hardware (43, 45 follow another fault).
NVIDIA's device plugin ignores 109 and not 94; the catalog has RESET_GPU for 109 and RESTART_APP for 94. This table
follows the catalog in both (k8s-device-plugin issue 1974)."""


def severity(xid: int | None, settings: GpuSettings) -> Severity:
    """Return the severity of an XID, or with ``None`` of an unavailable GPU.

    An XID that is not in the table is watched: a new number in a driver must not withdraw a GPU. A grave error also
    shows as a lost GPU or as a recovery action.
    """
    if xid is None or xid in settings.fatal_xids:
        return Severity.FATAL
    if xid in settings.ignore_xids or xid in IGNORE:
        return Severity.IGNORE
    if xid == RECOVERY_ACTION_CHANGED:
        return Severity.ACTION
    return Severity.FATAL if xid in FATAL else Severity.WATCH


def needs_reset(message: DriverMessage) -> bool:
    """Whether the GPU needs a reset after this error of an NVLink."""
    return message.fatal and not (message.unit == _LINK_DOWN and message.subcode in _NO_RESET)


def xid_rule(xid: int | None, settings: GpuSettings, *, fatal: bool = False) -> Rule:
    """Return the rule that an XID starts, or with ``None`` an unavailable GPU. ``fatal``: the kernel log says so."""
    fatal = fatal or severity(xid, settings) in (Severity.FATAL, Severity.ACTION)
    never = settings.xid_clear_s == float("inf")
    return Rule(
        "gpu_unavailable" if xid is None else f"xid_{xid}",
        State.UNHEALTHY if fatal else State.DEGRADED,
        lambda _view: None,  # an event has no present value
        withdraws=fatal,
        clear_for_s=settings.xid_clear_s,
        limit="any",
        clears="a reset" if never else f"a reset, or {duration(settings.xid_clear_s)} without another",
        latched=True,
        witnesses=frozenset({"event", "GPU"}),  # an event names one GPU, so the guard lets it pass
    )


def repeated_rule(settings: GpuSettings) -> Rule:
    """Return the rule on XIDs that come again and again on one GPU."""
    times, window = settings.xid_repeats, duration(settings.xid_repeat_seconds)
    return Rule(
        "repeated_xid",
        State.DEGRADED,
        lambda _view: None,
        limit=f"{times} times within {window}, at least 5 min apart",
        clears=f"not so often within {window}",
        follows=True,
        witnesses=frozenset({"event", "GPU"}),
    )


def measured_repeats(xids: tuple[int, ...], settings: GpuSettings) -> Measured:
    """Return the value of that rule: ``xids`` came too often."""
    names = " and ".join(map(str, xids))
    often = f"at least {settings.xid_repeats} times within {duration(settings.xid_repeat_seconds)}"
    return Measured(float(bool(xids)), "", sentence=f"XID {names} came {often}.")


def _decoded(message: DriverMessage) -> str:
    """Return in words what the kernel log says about an error of an NVLink."""
    link = "" if message.link is None else f" of NVLink {message.link}"
    grave = "fatal" if message.fatal else "not fatal"
    cause = _LINK_DOWN_CAUSES.get(message.subcode) if message.unit == _LINK_DOWN else None
    sub = f", sub-code {message.subcode}" if message.subcode else ""
    end = f": {cause}" if cause else ""
    return f"XID {message.number}: {message.unit}{link} reported an error ({grave}{sub}){end}."


def measured_event(xid: int | None, message: DriverMessage | None = None) -> Measured:
    """Return the value that an event of this XID gives to its rule, with what the kernel log says about it."""
    if message is not None:
        sentence = _decoded(message)
    elif xid is None:
        sentence = "The driver has given this GPU up as unavailable; reset it or reboot the node."
    elif xid == RECOVERY_ACTION_CHANGED:
        sentence = (
            "XID 154: The driver asks for a recovery action and does not report which: look for this XID in the kernel "
            "log (NVRM), then reset the GPU or reboot the node."
        )
    else:
        meaning = FATAL.get(xid) or WATCH.get(xid) or "NVIDIA's Xid catalog has its meaning."
        sentence = f"XID {xid}: {meaning}"
    return Measured(1.0, "", sentence=sentence)


NO_EVENT = Measured(0.0, "")
"""The value of a reading without errors."""
