"""What each rule measures, and where the default of its threshold comes from. Pure.

A measure answers with a value and its words, or ``None`` where it cannot tell: what is not known neither enters
nor clears a fault. The docstrings are the rule table's and are printed by ``nodeagent health rules``; their
second paragraph names the source of the default.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from nodeagent.health.history import History, total
from nodeagent.health.samples import Source

SYSFS = "sysfs"
LLDP = "lldp"
"""Witnesses besides the sources of samples."""


class Measured(NamedTuple):
    """``said``: the value for a person. ``limit``: the device's own, where it has one. ``witnesses``: who says
    so; two of them are more than one. ``enough``: false when there is too little of it for a fault."""

    value: float
    said: str
    witnesses: frozenset[str]
    limit: str | None = None
    enough: bool = True


@dataclass(slots=True)
class Seen:
    """One PF as its measures see it. What is ``None`` is not known.

    ``window_s`` is that of the rule that asks. ``witnesses`` of a carrier that is down are kept apart, as the
    engine gathers them.
    """

    history: History
    infiniband: bool = False
    present: bool = True
    bound: bool = True
    admin_up: bool | None = None
    carrier: bool | None = None
    carrier_witnesses: frozenset[str] = frozenset()
    speed_mbps: float | None = None
    expected_mbps: float | None = None
    penalty: float = 0.0
    losses: int = 0
    cabling: str | None = None
    cabled_right: bool | None = None
    window_s: float = 0.0


Measure = Callable[[Seen], Measured | None]


def _by(*witnesses: str) -> frozenset[str]:
    return frozenset(witnesses)


def _yes(bad: bool | None, words: str, good: str, witnesses: frozenset[str]) -> Measured | None:
    return None if bad is None else Measured(float(bad), words if bad else good, witnesses)


# --- is it there, and does it have a link -----------------------------------------------------------------


def device_missing(seen: Seen) -> Measured | None:
    """The PF is not on the PCI bus.

    At once, for devices are only kept from new pods; NVSentinel, too, condemns a device that vanished.
    """
    agree = {Source.LINK.value} if not seen.present and Source.LINK in seen.history.stale() else set()
    return _yes(not seen.present, "not there", "there", _by(SYSFS, *agree))


def driver_unbound(seen: Seen) -> Measured | None:
    """The PF has no driver.

    Somebody did that on purpose or an update failed; either way nothing works on it. Both ways at once.
    """
    return _yes(None if not seen.present else not seen.bound, "no driver", "bound", _by(SYSFS))


def admin_down(seen: Seen) -> Measured | None:
    """The link is set down.

    An administrator's will, and taken as such: both ways at once.
    """
    bad = None if seen.admin_up is None or seen.infiniband else not seen.admin_up
    told = seen.history.level("admin_up")
    agree = {Source.LINK.value} if bad is not None and told is not None and (told == 0) == bad else set()
    return _yes(bad, "set down", "set up", _by(SYSFS, *agree))


def carrier_down(seen: Seen) -> Measured | None:
    """The link has no carrier while it is set up; on InfiniBand: its port is not active.

    Entered at once, as NVSentinel does (gpud waits 4 min), and cleared after 60 s with carrier, so that a link
    that comes and goes is given back once (our own choice).
    """
    return _yes(
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
    witnesses = _by(Source.DEVLINK.value) if told.get("fw_fatal") else _by(Source.KERNEL.value)
    if told.get("fw_fatal") and lines:
        witnesses = _by(Source.DEVLINK.value, Source.KERNEL.value)
    bad = bool(told.get("fw_fatal")) or lines > 0
    return _yes(bad, "the firmware reports a fatal error", "no fatal error", witnesses)


FATAL_PATTERNS = ("firmware_fatal", "health_compromised", "unrecoverable", "command_leak")
"""Of ``kernel_events``: those after which the NIC does no more."""


def flapping(seen: Seen) -> Measured | None:
    """The link loses its carrier again and again: 1000 penalty points each time, which halve every window.

    The shape is RFC 2439's and IP event dampening's: suppressed from 2500 on, that is three losses in short
    order (gpud and NVSentinel: three), reused at 1000, after an hour at the latest. Losses are counted by the
    kernel's carrier_down_count, never by events.
    """
    return Measured(seen.penalty, f"penalty {seen.penalty:.0f}", _by(Source.LINK.value))


def flapping_daily(seen: Seen) -> Measured | None:
    """The link has lost its carrier too often within a day.

    Azure NHC's check_ib_link_flapping: 5 in 24 h.
    """
    return Measured(float(seen.losses), f"{seen.losses} losses", _by(Source.LINK.value))


def speed_reduced(seen: Seen) -> Measured | None:
    """The link runs slower than expected: than configured, than most of its like, or than itself in this boot.

    gpud and Azure NHC expect 400G of each port of a DGX H100; here the node's majority says it.
    """
    if not seen.carrier or not seen.speed_mbps or not seen.expected_mbps:
        return None
    return Measured(
        seen.speed_mbps / seen.expected_mbps,
        gigabits(seen.speed_mbps),
        _by(SYSFS),
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
    return Measured(rate / bits, f"{rate / bits:.1e}", _by(Source.FEC.value))


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
    return Measured(ratio, said, _by(Source.DRIVER.value), enough=errors >= POST_FEC_LEAST)


def _added(name: str, source: Source, seen: Seen) -> Measured | None:
    told = seen.history.over(name, seen.window_s)
    return None if told is None else Measured(told[0], f"{told[0]:.0f} in {told[1]:.0f} s", _by(source.value))


def _per_second(name: str, source: Source, seen: Seen) -> Measured | None:
    rate = seen.history.rate(name, seen.window_s)
    return None if rate is None else Measured(rate, f"{rate:.3g}/s", _by(source.value))


def fec_uncorrectable(seen: Seen) -> Measured | None:
    """Blocks that FEC could not correct.

    Ten in 5 min (our own choice; ROCm's device-metrics-exporter issue 393 asks for them).
    """
    return _added("fec_uncorrectable_blocks", Source.FEC, seen)


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
        ratio, f"lane {worst} has {ratio:.1f} times the next", _by(Source.DRIVER.value), enough=dim
    )


def crc_errors(seen: Seen) -> Measured | None:
    """Frames that arrived broken.

    NVSentinel's port_rcv_errors: 10/s.
    """
    return _per_second("crc_errors", Source.LINK, seen)


# --- the module -------------------------------------------------------------------------------------------


def _temperature(seen: Seen, limit: str, fallback: float) -> Measured | None:
    celsius, own = seen.history.level("module_celsius"), seen.history.level(limit)
    if celsius is None or not -128 < celsius < 128:  # what a module can state
        return None
    at = own or fallback
    return Measured(celsius - at, f"{celsius:.1f} °C", _by(Source.MODULE.value), f"{at:g} °C")


def optics_temperature(seen: Seen) -> Measured | None:
    """Degrees above the module's own high alarm.

    The module's limit; 75 °C where it has none (our own choice).
    """
    return _temperature(seen, "module_celsius_high_alarm", 75.0)


def optics_temperature_warning(seen: Seen) -> Measured | None:
    """Degrees above the module's own high warning.

    The module's limit; 70 °C where it has none (our own choice).
    """
    return _temperature(seen, "module_celsius_high_warning", 70.0)


_DARK_WATTS = 1e-7
"""0.1 µW, the least that an EEPROM can state but 0: -40 dBm."""


def _light(seen: Seen, limit: str) -> Measured | None:
    lanes, own = seen.history.levels("rx_power_watts"), seen.history.level(limit)
    if not lanes or not own or not seen.carrier:  # without carrier the other end may simply be dark
        return None
    lane = min(lanes, key=lambda lane: lanes[lane])
    watts = max(lanes[lane], _DARK_WATTS)
    margin = 10 * math.log10(watts / own)
    return Measured(
        margin, f"lane {lane} {decibels(watts)}", _by(Source.MODULE.value), decibels(max(own, _DARK_WATTS))
    )


def decibels(watts: float) -> str:
    return f"{10 * math.log10(watts * 1000):.1f} dBm"


def optics_rx_power(seen: Seen) -> Measured | None:
    """Decibels of light above the module's low alarm, on the darkest lane.

    The module's limit, for 5 min.
    """
    return _light(seen, "rx_power_watts_low_alarm")


def optics_rx_power_warning(seen: Seen) -> Measured | None:
    """Decibels of light above the module's low warning, on the darkest lane.

    The module's limit, for 5 min.
    """
    return _light(seen, "rx_power_watts_low_warning")


# --- PCIe -------------------------------------------------------------------------------------------------


def _of_expected(seen: Seen, now: str, expected: str, unit: str) -> Measured | None:
    is_, should = seen.history.level(now), seen.history.level(expected)
    if not is_ or not should:
        return None
    return Measured(is_ / should, f"{is_:g} {unit}", _by(Source.PCIE.value), f"{should:g} {unit}")


def pcie_width(seen: Seen) -> Measured | None:
    """PCIe lanes in use, as a share of what the function and the port above it can do.

    DGX firmware guides and ClusterMAX expect all of them.
    """
    return _of_expected(seen, "pcie_width", "pcie_expected_width", "lanes")


def pcie_speed(seen: Seen) -> Measured | None:
    """PCIe speed, as a share of what the function and the port above it can do.

    An idle link may rest at a lower speed, so only one that was never fast for 15 min is slow (our own choice).
    """
    return _of_expected(seen, "pcie_gts", "pcie_expected_gts", "GT/s")


def _aer(seen: Seen, name: str) -> Measured | None:
    told = seen.history.each(name, seen.window_s)
    if not told:
        return None
    errors = total(told.values())
    return Measured(errors, f"{errors:.0f} in {seen.window_s:.0f} s", _by(Source.PCIE.value))


def pcie_aer_fatal(seen: Seen) -> Measured | None:
    """Fatal PCIe errors (AER).

    One is one too many (our own choice).
    """
    return _aer(seen, "aer_fatal")


def pcie_aer_nonfatal(seen: Seen) -> Measured | None:
    """Uncorrectable PCIe errors that were not fatal (AER).

    One in 10 min (our own choice).
    """
    return _aer(seen, "aer_nonfatal")


def pcie_aer_correctable(seen: Seen) -> Measured | None:
    """Corrected PCIe errors (AER).

    1000 in an hour (our own choice).
    """
    return _aer(seen, "aer_correctable")


def pcie_stall(seen: Seen) -> Measured | None:
    """Share of seconds in which the host's PCIe stalled the NIC for more than 30 % of the time.

    NVIDIA's definition of a stalled second; a tenth of all is our own choice.
    """
    rates = [
        rate
        for name in ("pcie_stalled_read_seconds", "pcie_stalled_write_seconds")
        if (rate := seen.history.rate(name, seen.window_s)) is not None
    ]
    return None if not rates else Measured(max(rates), percent(max(rates)), _by(Source.DRIVER.value))


# --- flow control -----------------------------------------------------------------------------------------


def percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def pause_storm(seen: Seen) -> Measured | None:
    """The NIC has paused the network for so long that it switched pauses off: packets may be lost.

    mlx5's counter of them; one is one too many.
    """
    return _added("pause_storm_errors", Source.DRIVER, seen)


def _paused(seen: Seen, name: str) -> Measured | None:
    shares = {
        priority: told[0] / told[1] for priority, told in seen.history.each(name, seen.window_s).items()
    }
    if not shares:
        return None
    worst = max(shares, key=lambda priority: shares[priority])
    said = f"{percent(shares[worst])} of the time on priority {worst}"
    return Measured(shares[worst], said, _by(Source.DRIVER.value))


def host_stall(seen: Seen) -> Measured | None:
    """Share of time for which this host paused the network: it does not take what arrives.

    5 % for 10 min (our own choice).
    """
    return _paused(seen, "prio_tx_pause_seconds")


def network_paused(seen: Seen) -> Measured | None:
    """Share of time for which the network paused this host: congestion, and no fault of the device.

    25 % for 10 min (our own choice). Meta runs RoCE on PFC alone, so pauses as such are normal.
    """
    return _paused(seen, "prio_rx_pause_seconds")


# --- RDMA -------------------------------------------------------------------------------------------------


def rdma_timeouts(seen: Seen) -> Measured | None:
    """Acknowledgments that did not come in time; the fault may be at the other end.

    NVSentinel's local_ack_timeout_err: 1/s.
    """
    return _per_second("rdma_ack_timeouts", Source.RDMA, seen)


def slow_restart(seen: Seen) -> Measured | None:
    """RoCE slow restarts.

    NVSentinel's roce_slow_restart: 10/s.
    """
    return _per_second("rdma_slow_restarts", Source.RDMA, seen)


def out_of_sequence(seen: Seen) -> Measured | None:
    """RDMA packets out of sequence.

    100/s for 10 min (our own choice).
    """
    return _per_second("rdma_out_of_sequence", Source.RDMA, seen)


def gid_missing(seen: Seen) -> Measured | None:
    """The RDMA port is active but has no RoCE v2 GID: no connection can be made.

    NCCL issue 2183: after a flap GIDs come back late, elsewhere, or not at all.
    """
    active, gids = seen.history.level("rdma_port_active"), seen.history.level("roce_v2_gids")
    if seen.infiniband or active is None or gids is None:
        return None
    return _yes(active == 1 and gids == 0, "no RoCE v2 GID", f"{gids:.0f} GIDs", _by(Source.RDMA.value))


# --- cabling ----------------------------------------------------------------------------------------------


def miscabled(seen: Seen) -> Measured | None:
    """LLDP hears another switch port than the cabling plan has.

    For two frames at least, of which a switch sends one every 30 s. A neighbor whose TTL has passed tells nothing.
    """
    return _yes(
        None if seen.cabled_right is None else not seen.cabled_right,
        seen.cabling or "another port",
        seen.cabling or "as planned",
        _by(LLDP),
    )
