"""Measures of the link: is it there, is it up, how fast, and are its bits right. Pure."""

from __future__ import annotations

import math

from nodeagent.health.history import total
from nodeagent.health.nic_view import SYSFS, NicView, by, count_in_window, per_second, yes_or_no
from nodeagent.health.rule import Measured
from nodeagent.measurements.sample import Source

# --- is it there, and does it have a link -----------------------------------------------------------------


def device_missing(view: NicView) -> Measured | None:
    """The PF is not on the PCI bus.

    At once, for devices are only kept from new pods; NVSentinel, too, condemns a device that vanished.
    """
    agree = {Source.LINK.value} if not view.present and Source.LINK in view.history.stale() else set()
    return yes_or_no(not view.present, "not there", "there", by(SYSFS, *agree))


def driver_unbound(view: NicView) -> Measured | None:
    """The PF has no driver.

    Somebody did that on purpose or an update failed; either way nothing works on it. Both ways at once.
    """
    return yes_or_no(None if not view.present else not view.bound, "no driver", "bound", by(SYSFS))


def admin_down(view: NicView) -> Measured | None:
    """The link is set down.

    An administrator's will, and taken as such: both ways at once.
    """
    bad = None if view.admin_up is None or view.infiniband else not view.admin_up
    told = view.history.level("admin_up")
    agree = {Source.LINK.value} if bad is not None and told is not None and (told == 0) == bad else set()
    return yes_or_no(bad, "set down", "set up", by(SYSFS, *agree))


def carrier_down(view: NicView) -> Measured | None:
    """The link has no carrier while it is set up; on InfiniBand: its port is not active.

    Entered at once, as NVSentinel does (gpud waits 4 min), and cleared after 60 s with carrier, so that a link
    that comes and goes is given back once (our own choice).
    """
    return yes_or_no(
        None if view.carrier is None else not view.carrier, "no carrier", "carrier", view.carrier_witnesses
    )


def firmware_fatal(view: NicView) -> Measured | None:
    """The NIC's firmware has failed: devlink's fw_fatal reporter, or the driver's last words in the kernel's log.

    The kernel patterns are mlx5's and NVSentinel's. It clears when the reporter is healthy and the log has been
    quiet for the window.
    """
    told = view.history.levels("devlink_error")
    events = view.history.each("kernel_events", view.window_s)
    lines = total(told for pattern, told in events.items() if pattern.startswith(FATAL_PATTERNS))
    if "fw_fatal" not in told and not events:
        return None
    witnesses = by(Source.DEVLINK.value) if told.get("fw_fatal") else by(Source.KERNEL.value)
    if told.get("fw_fatal") and lines:
        witnesses = by(Source.DEVLINK.value, Source.KERNEL.value)
    bad = bool(told.get("fw_fatal")) or lines > 0
    if not bad and "fw_fatal" not in told and max(seconds for _, seconds in events.values()) < view.window_s:
        return None  # only the log would know, and since a restart it has not been heard for so long
    return yes_or_no(bad, "the firmware reports a fatal error", "no fatal error", witnesses)


FATAL_PATTERNS = ("firmware_fatal", "health_compromised", "unrecoverable", "command_leak")
"""Of ``kernel_events``: those after which the NIC does no more."""


def flapping(view: NicView) -> Measured | None:
    """The link loses its carrier again and again: 1000 penalty points each time, which halve every window.

    The shape is RFC 2439's and IP event dampening's: suppressed from 2500 on, that is three losses in short
    order (gpud and NVSentinel: three), reused at 1000, after an hour at the latest. Losses are counted by the
    kernel's carrier_down_count, never by events.
    """
    if Source.LINK in view.history.stale():
        return None  # whether it flapped meanwhile is not known
    return Measured(view.penalty, f"penalty {view.penalty:.0f}", by(Source.LINK.value))


def flapping_daily(view: NicView) -> Measured | None:
    """The link has lost its carrier too often within a day.

    Azure NHC's check_ib_link_flapping: 5 in 24 h.
    """
    if Source.LINK in view.history.stale():
        return None
    return Measured(float(view.losses), f"{view.losses} losses", by(Source.LINK.value))


def speed_reduced(view: NicView) -> Measured | None:
    """The link runs slower than expected: than configured, than most of its like, or than itself in this boot.

    gpud and Azure NHC expect 400G of each port of a DGX H100; here the node's majority says it.
    """
    if not view.carrier or not view.speed_mbps or not view.expected_mbps:
        return None
    return Measured(
        view.speed_mbps / view.expected_mbps,
        gigabits(view.speed_mbps),
        by(SYSFS),
        gigabits(view.expected_mbps),
    )


def gigabits(mbps: float) -> str:
    return f"{mbps / 1000:g}G"


# --- bits on the wire -------------------------------------------------------------------------------------


def _line_bits(view: NicView) -> float | None:
    """Bits received per second, as the PHY counts them, or as fast as the line is."""
    rate = view.history.rate("phy_rx_bits", view.window_s)
    return rate if rate else 1e6 * view.speed_mbps if view.speed_mbps else None


def _pre_fec(view: NicView) -> Measured | None:
    rate, bits = view.history.rate("fec_corrected_bits", view.window_s), _line_bits(view)
    if rate is None or bits is None:
        return None
    return Measured(rate / bits, f"{rate / bits:.1e}", by(Source.FEC.value))


def pre_fec_ber(view: NicView) -> Measured | None:
    """Bits that FEC had to correct, as a share of all.

    IEEE 802.3 allows 2.4e-4 on PAM4 before FEC gives up (Dell KB 286734); the margin is our own choice.
    """
    return _pre_fec(view)


def pre_fec_ber_warning(view: NicView) -> Measured | None:
    """Bits that FEC had to correct, as a share of all: still far from a fault.

    A 24th of what IEEE 802.3 allows on PAM4 (our own choice).
    """
    return _pre_fec(view)


POST_FEC_LEAST = 10


def post_fec_errors(view: NicView) -> Measured | None:
    """Symbols that FEC could not correct, as a share of all bits; fewer than ten are no fault.

    IBTA and Dell: 1e-12, which is 1530 an hour at 400G.
    """
    told, bits = view.history.over("symbol_errors", view.window_s), _line_bits(view)
    if told is None or bits is None:
        return None
    errors, seconds = told
    ratio = errors / seconds / bits
    said = f"{ratio:.1e} ({errors:.0f} errors in {seconds:.0f} s)"
    return Measured(ratio, said, by(Source.DRIVER.value), enough=errors >= POST_FEC_LEAST)


def fec_uncorrectable(view: NicView) -> Measured | None:
    """Blocks that FEC could not correct.

    Ten in 5 min (our own choice; ROCm's device-metrics-exporter issue 393 asks for them).
    """
    return count_in_window("fec_uncorrectable_blocks", Source.FEC, view)


LANE_LEAST = 100
LANE_DB = 2.0


def lane_imbalance(view: NicView) -> Measured | None:
    """One lane has many times the errors of the next worst, and more than 2 dB less light than the best.

    NVIDIA's Cable Validation Tool: ten times, which means dirty optics.
    """
    errors = {lane: told[0] for lane, told in view.history.each("lane_errors", view.window_s).items()}
    power = {lane: watts for lane, watts in view.history.levels("rx_power_watts").items() if watts > 0}
    if len(errors) < 2 or not power:
        return None
    worst, second = sorted(errors, key=lambda lane: errors[lane], reverse=True)[:2]
    ratio = errors[worst] / max(errors[second], 1.0)
    light = power.get(worst)
    below = math.inf if light is None else 10 * math.log10(max(power.values()) / light)
    dim = errors[worst] >= LANE_LEAST and below > LANE_DB
    return Measured(
        ratio, f"lane {worst} has {ratio:.1f} times the next", by(Source.DRIVER.value), enough=dim
    )


def crc_errors(view: NicView) -> Measured | None:
    """Frames that arrived broken.

    NVSentinel's port_rcv_errors: 10/s.
    """
    return per_second("crc_errors", Source.LINK, view)
