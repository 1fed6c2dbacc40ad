"""Measures around the link: its module, PCIe, flow control, RDMA, cabling. Pure."""

from __future__ import annotations

import math

from nodeagent.health.history import total
from nodeagent.health.nic_view import LLDP, NicView, by, count_in_window, per_second, percent, yes_or_no
from nodeagent.health.rule import Measured
from nodeagent.measurements.sample import Source

# --- the module -------------------------------------------------------------------------------------------


def _temperature(view: NicView, limit: str, fallback: float) -> Measured | None:
    celsius, own = view.history.level("module_celsius"), view.history.level(limit)
    if celsius is None or not -128 < celsius < 128:  # what a module can state
        return None
    at = own or fallback
    return Measured(celsius - at, f"{celsius:.1f} °C", by(Source.MODULE.value), f"{at:g} °C")


def optics_temperature(view: NicView) -> Measured | None:
    """Degrees above the module's own high alarm.

    The module's limit; 75 °C where it has none (our own choice).
    """
    return _temperature(view, "module_celsius_high_alarm", 75.0)


def optics_temperature_warning(view: NicView) -> Measured | None:
    """Degrees above the module's own high warning.

    The module's limit; 70 °C where it has none (our own choice).
    """
    return _temperature(view, "module_celsius_high_warning", 70.0)


_DARK_WATTS = 1e-7
"""0.1 µW, the least that an EEPROM can state but 0: -40 dBm."""


def _light(view: NicView, limit: str) -> Measured | None:
    lanes, own = view.history.levels("rx_power_watts"), view.history.level(limit)
    if not view.carrier:  # the other end may simply be dark
        return None
    if not lanes or own is None or own <= 0:
        return None
    lane = min(lanes, key=lambda lane: lanes[lane])
    watts = max(lanes[lane], _DARK_WATTS)
    margin = 10 * math.log10(watts / own)
    return Measured(
        margin, f"lane {lane} {decibels(watts)}", by(Source.MODULE.value), decibels(max(own, _DARK_WATTS))
    )


def decibels(watts: float) -> str:
    return f"{10 * math.log10(watts * 1000):.1f} dBm"


def optics_rx_power(view: NicView) -> Measured | None:
    """Decibels of light above the module's low alarm, on the darkest lane.

    The module's limit, for 5 min.
    """
    return _light(view, "rx_power_watts_low_alarm")


def optics_rx_power_warning(view: NicView) -> Measured | None:
    """Decibels of light above the module's low warning, on the darkest lane.

    The module's limit, for 5 min.
    """
    return _light(view, "rx_power_watts_low_warning")


# --- PCIe -------------------------------------------------------------------------------------------------


def _of_expected(view: NicView, now: str, expected: str, unit: str) -> Measured | None:
    is_, should = view.history.level(now), view.history.level(expected)
    if not is_ or not should:
        return None
    return Measured(is_ / should, f"{is_:g} {unit}", by(Source.PCIE.value), f"{should:g} {unit}")


def pcie_width(view: NicView) -> Measured | None:
    """PCIe lanes in use, as a share of what the function and the port above it can do.

    DGX firmware guides and ClusterMAX expect all of them.
    """
    return _of_expected(view, "pcie_width", "pcie_expected_width", "lanes")


def pcie_speed(view: NicView) -> Measured | None:
    """PCIe speed, as a share of what the function and the port above it can do.

    An idle link may rest at a lower speed, so only one that was never fast for 15 min is slow (our own choice).
    """
    return _of_expected(view, "pcie_gts", "pcie_expected_gts", "GT/s")


def _aer(view: NicView, name: str) -> Measured | None:
    told = view.history.each(name, view.window_s)
    if not told:
        return None
    errors = total(told.values())
    return Measured(errors, f"{errors:.0f} in {view.window_s:.0f} s", by(Source.PCIE.value))


def pcie_aer_fatal(view: NicView) -> Measured | None:
    """Fatal PCIe errors (AER).

    One is one too many (our own choice).
    """
    return _aer(view, "aer_fatal")


def pcie_aer_nonfatal(view: NicView) -> Measured | None:
    """Uncorrectable PCIe errors that were not fatal (AER).

    One in 10 min (our own choice).
    """
    return _aer(view, "aer_nonfatal")


def pcie_aer_correctable(view: NicView) -> Measured | None:
    """Corrected PCIe errors (AER).

    1000 in an hour (our own choice).
    """
    return _aer(view, "aer_correctable")


def pcie_stall(view: NicView) -> Measured | None:
    """Share of seconds in which the host's PCIe stalled the NIC for more than 30 % of the time.

    NVIDIA's definition of a stalled second; a tenth of all is our own choice.
    """
    rates = [
        rate
        for name in ("pcie_stalled_read_seconds", "pcie_stalled_write_seconds")
        if (rate := view.history.rate(name, view.window_s)) is not None
    ]
    return None if not rates else Measured(max(rates), percent(max(rates)), by(Source.DRIVER.value))


# --- flow control -----------------------------------------------------------------------------------------


def pause_storm(view: NicView) -> Measured | None:
    """The NIC has paused the network for so long that it switched pauses off: packets may be lost.

    mlx5's counter of them; one is one too many.
    """
    return count_in_window("pause_storm_errors", Source.DRIVER, view)


def _paused(view: NicView, name: str) -> Measured | None:
    shares = {
        priority: told[0] / told[1] for priority, told in view.history.each(name, view.window_s).items()
    }
    if not shares:
        return None
    worst = max(shares, key=lambda priority: shares[priority])
    said = f"{percent(shares[worst])} of the time on priority {worst}"
    return Measured(shares[worst], said, by(Source.DRIVER.value))


def host_stall(view: NicView) -> Measured | None:
    """Share of time for which this host paused the network: it does not take what arrives.

    5 % for 10 min (our own choice).
    """
    return _paused(view, "prio_tx_pause_seconds")


def network_paused(view: NicView) -> Measured | None:
    """Share of time for which the network paused this host: congestion, and no fault of the device.

    25 % for 10 min (our own choice). Meta runs RoCE on PFC alone, so pauses as such are normal.
    """
    return _paused(view, "prio_rx_pause_seconds")


# --- RDMA -------------------------------------------------------------------------------------------------


def rdma_timeouts(view: NicView) -> Measured | None:
    """Acknowledgments that did not come in time; the fault may be at the other end.

    NVSentinel's local_ack_timeout_err: 1/s.
    """
    return per_second("rdma_ack_timeouts", Source.RDMA, view)


def slow_restart(view: NicView) -> Measured | None:
    """RoCE slow restarts.

    NVSentinel's roce_slow_restart: 10/s.
    """
    return per_second("rdma_slow_restarts", Source.RDMA, view)


def out_of_sequence(view: NicView) -> Measured | None:
    """RDMA packets out of sequence.

    100/s for 10 min (our own choice).
    """
    return per_second("rdma_out_of_sequence", Source.RDMA, view)


def gid_missing(view: NicView) -> Measured | None:
    """The RDMA port is active but has no RoCE v2 GID: no connection can be made.

    NCCL issue 2183: after a flap GIDs come back late, elsewhere, or not at all.
    """
    active, gids = view.history.level("rdma_port_active"), view.history.level("roce_v2_gids")
    if view.infiniband or active is None or gids is None:
        return None
    return yes_or_no(active == 1 and gids == 0, "no RoCE v2 GID", f"{gids:.0f} GIDs", by(Source.RDMA.value))


# --- cabling ----------------------------------------------------------------------------------------------


def miscabled(view: NicView) -> Measured | None:
    """LLDP hears another switch port than the cabling plan has.

    For two frames at least, of which a switch sends one every 30 s. A neighbor whose TTL has passed tells nothing.
    """
    return yes_or_no(
        None if view.cabled_right is None else not view.cabled_right,
        view.cabling or "another port",
        view.cabling or "as planned",
        by(LLDP),
    )
