"""Measures of a link: presence, carrier, speed, and the errors of its bits. Pure."""

from __future__ import annotations

import math

from nodeagent.health.history import total
from nodeagent.health.nic_view import SYSFS, NicView, by, count_in_window, per_second, yes_or_no
from nodeagent.health.rule import Measured
from nodeagent.measurements.sample import Source

# --- presence and carrier ---------------------------------------------------------------------------------


def device_missing(view: NicView) -> Measured | None:
    """The PF is not on the PCI bus.

    At once, because it only keeps new pods away. NVSentinel also reports a missing device as a fault.
    """
    agree = {Source.LINK.value} if not view.present and Source.LINK in view.history.stale() else set()
    return yes_or_no(not view.present, "missing", "present", by(SYSFS, *agree))


def not_answering(view: NicView) -> Measured | None:
    """Reading the files of the PF in sysfs hangs: its driver or its firmware does not answer.

    For 30 s, because a driver that creates VFs holds the lock of its device for seconds (our own choice).
    """
    return yes_or_no(not view.answers, "does not answer", "answers", by(SYSFS))


def driver_unbound(view: NicView) -> Measured | None:
    """The PF has no driver.

    It was unbound on purpose, or an update failed. Nothing works without a driver, so the fault starts and ends
    at once.
    """
    return yes_or_no(None if not view.present else not view.bound, "no driver", "bound", by(SYSFS))


def admin_down(view: NicView) -> Measured | None:
    """The link is set down.

    An administrator decides this, so the fault starts and ends at once.
    """
    bad = None if view.admin_up is None or view.infiniband else not view.admin_up
    up = view.history.level("admin_up")
    agree = {Source.LINK.value} if bad is not None and up is not None and (up == 0) == bad else set()
    return yes_or_no(bad, "set down", "set up", by(SYSFS, *agree))


def carrier_down(view: NicView) -> Measured | None:
    """The link has no carrier while it is set up; on InfiniBand: its port is not active.

    The fault starts at once, as in NVSentinel (gpud waits 4 min). It ends after 60 s with carrier, so that an
    unstable link returns only once (our own choice).
    """
    return yes_or_no(
        None if view.carrier is None else not view.carrier, "no carrier", "carrier", view.carrier_witnesses
    )


def firmware_fatal(view: NicView) -> Measured | None:
    """The firmware of the NIC has failed, by devlink's fw_fatal reporter or by the driver's messages in the kernel log.

    The kernel patterns are those of mlx5 and NVSentinel. The fault ends when the reporter is healthy and the log has
    no such message for the window.
    """
    errors = view.history.levels("devlink_error")
    events = view.history.each("kernel_events", view.window_s)
    lines = total(counted for pattern, counted in events.items() if pattern.startswith(FATAL_PATTERNS))
    if "fw_fatal" not in errors and not events:
        return None
    witnesses = by(Source.DEVLINK.value) if errors.get("fw_fatal") else by(Source.KERNEL.value)
    if errors.get("fw_fatal") and lines:
        witnesses = by(Source.DEVLINK.value, Source.KERNEL.value)
    bad = bool(errors.get("fw_fatal")) or lines > 0
    if (
        not bad
        and "fw_fatal" not in errors
        and max(seconds for _, seconds in events.values()) < view.window_s
    ):
        return None  # only the log has the answer, and since a restart it was not read for the whole window
    return yes_or_no(bad, "the firmware reports a fatal error", "no fatal error", witnesses)


FATAL_PATTERNS = ("firmware_fatal", "health_compromised", "unrecoverable", "command_leak")
"""Of ``kernel_events``: those after which the NIC no longer works."""


def flapping(view: NicView) -> Measured | None:
    """The link loses its carrier repeatedly: each loss adds 1000 penalty points, which halve every window.

    The form is that of RFC 2439 and IP event dampening: suppressed from 2500 on, which is three losses in short
    succession (gpud and NVSentinel: three), reused at 1000, after an hour at the latest. The kernel's
    carrier_down_count counts the losses, not events.
    """
    if Source.LINK in view.history.stale():
        return None  # losses in the meantime are unknown
    return Measured(view.penalty, f"penalty {view.penalty:.0f}", by(Source.LINK.value))


def flapping_daily(view: NicView) -> Measured | None:
    """The link has lost its carrier too often within a day; an hour without a loss ends the fault.

    Azure NHC's check_ib_link_flapping: 5 in 24 h. The hour is our own choice.
    """
    if Source.LINK in view.history.stale():
        return None
    losses = view.losses if view.since_loss_s < QUIET_S else 0
    return Measured(float(losses), f"{view.losses} losses", by(Source.LINK.value))


QUIET_S = 3600.0
"""A link without a loss for so long is used again, however many losses its day has."""


def speed_reduced(view: NicView) -> Measured | None:
    """The link is slower than configured, than most links of its role, or than its own best in this boot.

    gpud and Azure NHC expect 400G of each port of a DGX H100; here the majority of the node decides.
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


# --- bit errors -------------------------------------------------------------------------------------------


def _line_bits(view: NicView) -> float | None:
    """The bits received per second: the count of the PHY, or the speed of the line."""
    rate = view.history.rate("phy_rx_bits", view.window_s)
    return rate if rate else 1e6 * view.speed_mbps if view.speed_mbps else None


def _pre_fec(view: NicView) -> Measured | None:
    rate, bits = view.history.rate("fec_corrected_bits", view.window_s), _line_bits(view)
    if rate is None or bits is None:
        return None
    return Measured(rate / bits, f"{rate / bits:.1e}", by(Source.FEC.value))


def pre_fec_ber(view: NicView) -> Measured | None:
    """The share of bits that FEC corrected.

    IEEE 802.3 allows 2.4e-4 on PAM4 before FEC fails (Dell KB 286734); the margin is our own choice.
    """
    return _pre_fec(view)


def pre_fec_ber_warning(view: NicView) -> Measured | None:
    """The share of bits that FEC corrected, at a warning level.

    A 24th of what IEEE 802.3 allows on PAM4 (our own choice).
    """
    return _pre_fec(view)


POST_FEC_LEAST = 10


def post_fec_errors(view: NicView) -> Measured | None:
    """Symbols that FEC could not correct, as a share of all bits; fewer than ten symbols are no fault.

    IBTA and Dell: 1e-12, which is 1530 an hour at 400G.
    """
    counted, bits = view.history.over("symbol_errors", view.window_s), _line_bits(view)
    if counted is None or bits is None:
        return None
    errors, seconds = counted
    ratio = errors / seconds / bits
    text = f"{ratio:.1e} ({errors:.0f} errors in {seconds:.0f} s)"
    return Measured(ratio, text, by(Source.DRIVER.value), enough=errors >= POST_FEC_LEAST)


def fec_uncorrectable(view: NicView) -> Measured | None:
    """Blocks that FEC could not correct.

    Ten in 5 min (our own choice; ROCm's device-metrics-exporter issue 393 asks for them).
    """
    return count_in_window("fec_uncorrectable_blocks", Source.FEC, view)


LANE_LEAST = 100
LANE_DB = 2.0


def lane_imbalance(view: NicView) -> Measured | None:
    """One lane has many times the errors of the next lane, and more than 2 dB less light than the best lane.

    NVIDIA's Cable Validation Tool: ten times, which indicates dirty optics.
    """
    errors = {lane: counted[0] for lane, counted in view.history.each("lane_errors", view.window_s).items()}
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
    """Received frames with a wrong checksum.

    NVSentinel's port_rcv_errors: 10/s.
    """
    return per_second("crc_errors", Source.LINK, view)
