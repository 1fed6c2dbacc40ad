"""Measures of the link: is it there, is it up, how fast, and are its bits right. Pure."""

from __future__ import annotations

import math

from nodeagent.health.history import total
from nodeagent.health.measures import SYSFS, Measured, Seen, added, by, per_second, yes
from nodeagent.measurements.sample import Source

# --- is it there, and does it have a link -----------------------------------------------------------------


def device_missing(seen: Seen) -> Measured | None:
    """The PF is not on the PCI bus.

    At once, for devices are only kept from new pods; NVSentinel, too, condemns a device that vanished.
    """
    agree = {Source.LINK.value} if not seen.present and Source.LINK in seen.history.stale() else set()
    return yes(not seen.present, "not there", "there", by(SYSFS, *agree))


def driver_unbound(seen: Seen) -> Measured | None:
    """The PF has no driver.

    Somebody did that on purpose or an update failed; either way nothing works on it. Both ways at once.
    """
    return yes(None if not seen.present else not seen.bound, "no driver", "bound", by(SYSFS))


def admin_down(seen: Seen) -> Measured | None:
    """The link is set down.

    An administrator's will, and taken as such: both ways at once.
    """
    bad = None if seen.admin_up is None or seen.infiniband else not seen.admin_up
    told = seen.history.level("admin_up")
    agree = {Source.LINK.value} if bad is not None and told is not None and (told == 0) == bad else set()
    return yes(bad, "set down", "set up", by(SYSFS, *agree))


def carrier_down(seen: Seen) -> Measured | None:
    """The link has no carrier while it is set up; on InfiniBand: its port is not active.

    Entered at once, as NVSentinel does (gpud waits 4 min), and cleared after 60 s with carrier, so that a link
    that comes and goes is given back once (our own choice).
    """
    return yes(
        None if seen.carrier is None else not seen.carrier, "no carrier", "carrier", seen.carrier_witnesses
    )


def firmware_fatal(seen: Seen) -> Measured | None:
    """The NIC's firmware has failed: devlink's fw_fatal reporter, or the driver's last words in the kernel's log.

    The kernel patterns are mlx5's and NVSentinel's. It clears when the reporter is healthy and the log has been
    quiet for the window.
    """
    told = seen.history.levels("devlink_error")
    events = seen.history.each("kernel_events", seen.window_s)
    lines = total(told for pattern, told in events.items() if pattern.startswith(FATAL_PATTERNS))
    if "fw_fatal" not in told and not events:
        return None
    witnesses = by(Source.DEVLINK.value) if told.get("fw_fatal") else by(Source.KERNEL.value)
    if told.get("fw_fatal") and lines:
        witnesses = by(Source.DEVLINK.value, Source.KERNEL.value)
    bad = bool(told.get("fw_fatal")) or lines > 0
    if not bad and "fw_fatal" not in told and max(seconds for _, seconds in events.values()) < seen.window_s:
        return None  # only the log would know, and since a restart it has not been heard for so long
    return yes(bad, "the firmware reports a fatal error", "no fatal error", witnesses)


FATAL_PATTERNS = ("firmware_fatal", "health_compromised", "unrecoverable", "command_leak")
"""Of ``kernel_events``: those after which the NIC does no more."""


def flapping(seen: Seen) -> Measured | None:
    """The link loses its carrier again and again: 1000 penalty points each time, which halve every window.

    The shape is RFC 2439's and IP event dampening's: suppressed from 2500 on, that is three losses in short
    order (gpud and NVSentinel: three), reused at 1000, after an hour at the latest. Losses are counted by the
    kernel's carrier_down_count, never by events.
    """
    if Source.LINK in seen.history.stale():
        return None  # whether it flapped meanwhile is not known
    return Measured(seen.penalty, f"penalty {seen.penalty:.0f}", by(Source.LINK.value))


def flapping_daily(seen: Seen) -> Measured | None:
    """The link has lost its carrier too often within a day.

    Azure NHC's check_ib_link_flapping: 5 in 24 h.
    """
    if Source.LINK in seen.history.stale():
        return None
    return Measured(float(seen.losses), f"{seen.losses} losses", by(Source.LINK.value))


def speed_reduced(seen: Seen) -> Measured | None:
    """The link runs slower than expected: than configured, than most of its like, or than itself in this boot.

    gpud and Azure NHC expect 400G of each port of a DGX H100; here the node's majority says it.
    """
    if not seen.carrier or not seen.speed_mbps or not seen.expected_mbps:
        return None
    return Measured(
        seen.speed_mbps / seen.expected_mbps,
        gigabits(seen.speed_mbps),
        by(SYSFS),
        gigabits(seen.expected_mbps),
    )


def gigabits(mbps: float) -> str:
    return f"{mbps / 1000:g}G"


# --- bits on the wire -------------------------------------------------------------------------------------


def _line_bits(seen: Seen) -> float | None:
    """Bits received per second, as the PHY counts them, or as fast as the line is."""
    rate = seen.history.rate("phy_rx_bits", seen.window_s)
    return rate if rate else 1e6 * seen.speed_mbps if seen.speed_mbps else None


def _pre_fec(seen: Seen) -> Measured | None:
    rate, bits = seen.history.rate("fec_corrected_bits", seen.window_s), _line_bits(seen)
    if rate is None or bits is None:
        return None
    return Measured(rate / bits, f"{rate / bits:.1e}", by(Source.FEC.value))


def pre_fec_ber(seen: Seen) -> Measured | None:
    """Bits that FEC had to correct, as a share of all.

    IEEE 802.3 allows 2.4e-4 on PAM4 before FEC gives up (Dell KB 286734); the margin is our own choice.
    """
    return _pre_fec(seen)


def pre_fec_ber_warning(seen: Seen) -> Measured | None:
    """Bits that FEC had to correct, as a share of all: still far from a fault.

    A 24th of what IEEE 802.3 allows on PAM4 (our own choice).
    """
    return _pre_fec(seen)


POST_FEC_LEAST = 10


def post_fec_errors(seen: Seen) -> Measured | None:
    """Symbols that FEC could not correct, as a share of all bits; fewer than ten are no fault.

    IBTA and Dell: 1e-12, which is 1530 an hour at 400G.
    """
    told, bits = seen.history.over("symbol_errors", seen.window_s), _line_bits(seen)
    if told is None or bits is None:
        return None
    errors, seconds = told
    ratio = errors / seconds / bits
    said = f"{ratio:.1e} ({errors:.0f} errors in {seconds:.0f} s)"
    return Measured(ratio, said, by(Source.DRIVER.value), enough=errors >= POST_FEC_LEAST)


def fec_uncorrectable(seen: Seen) -> Measured | None:
    """Blocks that FEC could not correct.

    Ten in 5 min (our own choice; ROCm's device-metrics-exporter issue 393 asks for them).
    """
    return added("fec_uncorrectable_blocks", Source.FEC, seen)


LANE_LEAST = 100
LANE_DB = 2.0


def lane_imbalance(seen: Seen) -> Measured | None:
    """One lane has many times the errors of the next worst, and more than 2 dB less light than the best.

    NVIDIA's Cable Validation Tool: ten times, which means dirty optics.
    """
    errors = {lane: told[0] for lane, told in seen.history.each("lane_errors", seen.window_s).items()}
    power = {lane: watts for lane, watts in seen.history.levels("rx_power_watts").items() if watts > 0}
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


def crc_errors(seen: Seen) -> Measured | None:
    """Frames that arrived broken.

    NVSentinel's port_rcv_errors: 10/s.
    """
    return per_second("crc_errors", Source.LINK, seen)
