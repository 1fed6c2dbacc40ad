"""Measures of the adapter around the link: module, PCIe, flow control, RDMA, cabling. Pure."""

from __future__ import annotations

import math
from typing import Literal

from nodeagent.health.history import History, total
from nodeagent.health.nic_view import LLDP, NicView, by, count_in_window, per_second, percent, yes_or_no
from nodeagent.health.rule import Measured
from nodeagent.measurements.sample import Source

# --- the module -------------------------------------------------------------------------------------------


def _temperature(view: NicView, limit: str, fallback: float) -> Measured | None:
    celsius, own = view.history.level("module_celsius"), view.history.level(limit)
    if celsius is None or not -128 < celsius < 128:  # the range that a module can report
        return None
    at = own or fallback
    return Measured(celsius - at, f"{celsius:.1f} °C", by(Source.MODULE.value), f"{at:g} °C")


def optics_temperature(view: NicView) -> Measured | None:
    """Degrees above the module's own high alarm.

    The module's limit; 75 °C without one (our own choice).
    """
    return _temperature(view, "module_celsius_high_alarm", 75.0)


def optics_temperature_warning(view: NicView) -> Measured | None:
    """Degrees above the module's own high warning.

    The module's limit; 70 °C without one (our own choice).
    """
    return _temperature(view, "module_celsius_high_warning", 70.0)


_DARK_WATTS = 1e-7
"""0.1 µW (-40 dBm), the least value above 0 in an EEPROM."""


def _light(view: NicView, limit: str) -> Measured | None:
    lanes, own = view.history.levels("rx_power_watts"), view.history.level(limit)
    if not view.carrier:  # the other end may be switched off
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
    """The share of PCIe lanes in use, of those that the function and the port above it have.

    DGX firmware guides and ClusterMAX expect all of them.
    """
    lanes = view.history.level("pcie_width")
    if lanes is not None and lanes > _LANES_MAX:
        return None
    return _of_expected(view, "pcie_width", "pcie_expected_width", "lanes")


_LANES_MAX = 32
"""PCI Express Base Specification, Negotiated Link Width. A register of ones reads as 63 lanes."""


def pcie_speed(view: NicView) -> Measured | None:
    """The PCIe speed under load, as a share of the speed that the function and the port above it support.

    An idle link may use a lower speed, so a slow link counts while the NIC carries at least 5 % of its line. A fast
    link is good at any time (our own choice).
    """
    measured = _of_expected(view, "pcie_gts", "pcie_expected_gts", "GT/s")
    if measured is None or not is_slow(view.history):
        return measured
    load = _load(view)
    if load is None or load < _LOADED:
        return None
    return measured._replace(text=f"{measured.text} at {percent(load)} load")


def is_slow(history: History) -> bool:
    """Whether the PCIe link has a lower speed than it could. Then the load decides, and the rule is evaluated with each
    sample of the link."""
    now, expected = history.level("pcie_gts"), history.level("pcie_expected_gts")
    return now is not None and expected is not None and 0 < now < expected


_LOADED = 0.05


def _load(view: NicView) -> float | None:
    """The busier direction's share of the line, VFs and RDMA included where the PHY counts."""
    rates = [
        rate
        for name in ("phy_rx_bytes", "phy_tx_bytes", "rx_bytes", "tx_bytes")
        if (rate := view.history.rate(name, view.window_s)) is not None
    ]
    return 8 * max(rates) / (view.speed_mbps * 1e6) if rates and view.speed_mbps else None


def _aer(view: NicView, name: str) -> Measured | None:
    counted = view.history.each(name, view.window_s)
    if not counted:
        return None
    errors = total(counted.values())
    return Measured(errors, f"{errors:.0f} in {view.window_s:.0f} s", by(Source.PCIE.value))


def pcie_aer_fatal(view: NicView) -> Measured | None:
    """Fatal PCIe errors (AER).

    One error is a fault (our own choice).
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
    """The share of seconds in which the host's PCIe stalled the NIC for more than 30 % of the time.

    NVIDIA's definition of a stalled second; the limit of a tenth is our own choice.
    """
    rates = [
        rate
        for name in ("pcie_stalled_read_seconds", "pcie_stalled_write_seconds")
        if (rate := view.history.rate(name, view.window_s)) is not None
    ]
    return None if not rates else Measured(max(rates), percent(max(rates)), by(Source.DRIVER.value))


# --- flow control -----------------------------------------------------------------------------------------


def pause_storm(view: NicView) -> Measured | None:
    """The NIC has paused the network for so long that it switched its pauses off: packets may be lost.

    The counter of mlx5; one storm is a fault.
    """
    return count_in_window("pause_storm_errors", Source.DRIVER, view)


def _paused(view: NicView, direction: Literal["rx", "tx"]) -> Measured | None:
    """The longest pause: of one priority (PFC), or of all at once (IEEE 802.3x). A port uses one of the two."""
    per_priority = view.history.each(f"prio_{direction}_pause_seconds", view.window_s)
    shares = {
        f"on priority {priority}": paused_s / seconds
        for priority, (paused_s, seconds) in per_priority.items()
    }
    of_all = view.history.rate(f"global_{direction}_pause_seconds", view.window_s)
    if of_all is not None:
        shares["on all priorities"] = of_all
    if not shares:
        return None
    worst = max(shares, key=lambda where: shares[where])
    text = f"{percent(shares[worst])} of the time {worst}"
    return Measured(shares[worst], text, by(Source.DRIVER.value))


def host_stall(view: NicView) -> Measured | None:
    """The share of time for which this host paused the network: it does not process received frames fast enough.

    5 % for 10 min (our own choice).
    """
    return _paused(view, "tx")


def pause_source(view: NicView) -> Measured | None:
    """The share of time for which this NIC pauses its switch: it blocks other nodes too.

    One such NIC may stop a whole fabric (Guo et al., RDMA over Commodity Ethernet at Scale, SIGCOMM 2016, section 4.3);
    they switch the pauses of a NIC off after 100 ms. Half of a minute is our own choice. A NIC that is paused itself is
    not withdrawn.
    """
    return _paused(view, "tx")


def network_paused(view: NicView) -> Measured | None:
    """The share of time for which the network paused this host: congestion, not a fault of the device.

    25 % for 10 min (our own choice). Meta runs RoCE on PFC alone, so pauses are normal.
    """
    return _paused(view, "rx")


# --- RDMA -------------------------------------------------------------------------------------------------


def rdma_timeouts(view: NicView) -> Measured | None:
    """RDMA acknowledgments that did not arrive in time; the cause may be at the other end.

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
    """The RDMA port is active but has no RoCE v2 GID: no connection is possible.

    NCCL issue 2183: after a loss of carrier GIDs return late, at another index, or not at all.
    """
    active, gids = view.history.level("rdma_port_active"), view.history.level("roce_v2_gids")
    if view.infiniband or active is None or gids is None:
        return None
    return yes_or_no(active == 1 and gids == 0, "no RoCE v2 GID", f"{gids:.0f} GIDs", by(Source.RDMA.value))


# --- cabling ----------------------------------------------------------------------------------------------


def miscabled(view: NicView) -> Measured | None:
    """LLDP reports another switch port than the cabling plan.

    For at least two frames, one every 30 s. A neighbor with an expired TTL is no evidence.
    """
    return yes_or_no(
        None if view.cabled_right is None else not view.cabled_right,
        view.cabling or "another port",
        view.cabling or "as planned",
        by(LLDP),
    )
