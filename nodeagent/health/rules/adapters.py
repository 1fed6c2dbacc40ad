"""The rules of the adapter around the link: module, PCIe, flow control, RDMA, cabling. Pure."""

from __future__ import annotations

import math

from nodeagent.base.duration import duration
from nodeagent.facts.model import State
from nodeagent.health.history import total
from nodeagent.health.nic_view import (
    LLDP,
    SYSFS,
    NicView,
    by,
    count_in_window,
    per_second,
    percent,
    yes_or_no,
)
from nodeagent.health.rule import WARNING, Measure, Measured, Rule
from nodeagent.measurements.sample import Source

# --- the module -------------------------------------------------------------------------------------------


def _temperature(limit: str, fallback: float) -> Measure:
    """Measure the degrees above the module's own limit, or without one above ``fallback``."""

    def measure(view: NicView) -> Measured | None:
        celsius, own = view.history.level("module_celsius"), view.history.level(limit)
        if celsius is None or not -128 < celsius < 128:  # the range that a module can report
            return None
        at = own or fallback
        return Measured(celsius - at, f"{celsius:.1f} °C", by(Source.MODULE.value), f"{at:g} °C")

    return measure


_DARK_WATTS = 1e-7
"""0.1 µW (-40 dBm), the least value above 0 in an EEPROM."""


def _light(limit: str) -> Measure:
    """Measure the decibels of light above the module's own limit, on the darkest lane."""

    def measure(view: NicView) -> Measured | None:
        lanes, own = view.history.levels("rx_power_watts"), view.history.level(limit)
        if not view.carrier:  # the other end may be switched off
            return None
        if not lanes or own is None or own <= 0:
            return None
        lane = min(lanes, key=lambda lane: lanes[lane])
        watts = max(lanes[lane], _DARK_WATTS)
        margin = 10 * math.log10(watts / own)
        words = decibels(max(own, _DARK_WATTS))
        return Measured(margin, f"lane {lane} {decibels(watts)}", by(Source.MODULE.value), words)

    return measure


def decibels(watts: float) -> str:
    return f"{10 * math.log10(watts * 1000):.1f} dBm"


_NO_CURRENT = 1e-4
"""In amperes. A laser that works has some milliamperes; a step of an EEPROM is 2 µA (SFF-8636, CMIS)."""
_IB_DISABLED = 3


def _laser(view: NicView) -> Measured | None:
    """Count the lanes whose own laser has neither current nor light. With carrier, such lanes are not in use."""
    level, levels = view.history.level, view.history.levels
    sent, currents = levels("tx_power_watts"), levels("bias_amperes")
    off = view.admin_up is False or level("module_ready") == 0 or level("ib_physical_state") == _IB_DISABLED
    lanes = sorted(sent.keys() & currents.keys(), key=lambda lane: (len(lane), lane))
    if off or not lanes or not level("tx_power_watts_low_alarm"):
        return None  # switched off, or not measured by this module
    dead = [lane for lane in lanes if sent[lane] <= _DARK_WATTS and currents[lane] < _NO_CURRENT]
    if view.carrier or not dead:
        return Measured(0.0, "light is sent", by(Source.MODULE.value))
    text = (
        f"the laser of lane {', '.join(dead)} is dead ({1000 * currents[dead[0]]:.0f} mA,"
        f" {decibels(_DARK_WATTS)} sent): replace the module, not the fiber"
    )
    return Measured(float(len(dead)), text, by(Source.MODULE.value), sentence=text)


# --- PCIe -------------------------------------------------------------------------------------------------


def _of_expected(view: NicView, now: str, expected: str, unit: str) -> Measured | None:
    is_, should = view.history.level(now), view.history.level(expected)
    if not is_ or not should:
        return None
    return Measured(is_ / should, f"{is_:g} {unit}", by(Source.PCIE.value), f"{should:g} {unit}")


_LANES_MAX = 32
"""PCI Express Base Specification, Negotiated Link Width. A register of ones reads as 63 lanes."""


def _pcie_width(view: NicView) -> Measured | None:
    lanes = view.history.level("pcie_width")
    if lanes is not None and lanes > _LANES_MAX:
        return None
    return _of_expected(view, "pcie_width", "pcie_expected_width", "lanes")


_LOADED = 0.05
_TRAFFIC = ("phy_rx_bytes", "phy_tx_bytes", "rx_bytes", "tx_bytes")


def _pcie_speed(view: NicView) -> Measured | None:
    measured = _of_expected(view, "pcie_gts", "pcie_expected_gts", "GT/s")
    if measured is None or measured.value >= 1:
        return measured
    load = _load(view)
    if load is None or load < _LOADED:
        return None
    return measured._replace(text=f"{measured.text} at {percent(load)} load")


def _load(view: NicView) -> float | None:
    """The busier direction's share of the line, VFs and RDMA included where the PHY counts."""
    most = _fastest(view, _TRAFFIC)
    return 8 * most / (view.speed_mbps * 1e6) if most is not None and view.speed_mbps else None


def _fastest(view: NicView, counters: tuple[str, ...]) -> float | None:
    """Return the highest rate of these counters; ``None``: none of them is known."""
    rates = (view.history.rate(name, view.window_s) for name in counters)
    return max((rate for rate in rates if rate is not None), default=None)


def _aer(name: str) -> Measure:
    """Count the errors of one kind in Advanced Error Reporting, of all keys."""

    def measure(view: NicView) -> Measured | None:
        counted = view.history.each(name, view.window_s)
        if not counted:
            return None
        errors = total(counted.values())
        return Measured(errors, f"{errors:.0f} in {duration(view.window_s)}", by(Source.PCIE.value))

    return measure


_STALLS = ("pcie_stalled_read_seconds", "pcie_stalled_write_seconds")


def _pcie_stall(view: NicView) -> Measured | None:
    most = _fastest(view, _STALLS)
    return None if most is None else Measured(most, percent(most), by(Source.DRIVER.value))


# --- flow control -----------------------------------------------------------------------------------------

_PAUSES_SENT = ("prio_tx_pause_seconds", "global_tx_pause_seconds")
_PAUSES_RECEIVED = ("prio_rx_pause_seconds", "global_rx_pause_seconds")


def _paused(of_priorities: str, of_all: str) -> Measure:
    """Measure the longest pause: of one priority (PFC), or of all at once (IEEE 802.3x). A port uses one of the two."""

    def measure(view: NicView) -> Measured | None:
        per_priority = view.history.each(of_priorities, view.window_s)
        shares = {
            f"on priority {priority}": paused_s / seconds
            for priority, (paused_s, seconds) in per_priority.items()
        }
        share = view.history.rate(of_all, view.window_s)
        if share is not None:
            shares["on all priorities"] = share
        if not shares:
            return None
        worst = max(shares, key=lambda where: shares[where])
        text = f"{percent(shares[worst])} of the time {worst}"
        return Measured(shares[worst], text, by(Source.DRIVER.value))

    return measure


# --- the driver's messages --------------------------------------------------------------------------------

_STOPPED = 0.25
"""The share of time from which on a network that pauses the NIC explains why it does not send."""


def _kernel_lines(pattern: str) -> Measure:
    """Count the lines of the kernel log that match this pattern."""

    def measure(view: NicView) -> Measured | None:
        counted = view.history.each("kernel_events", view.window_s).get(pattern)
        if counted is None:
            return None
        return Measured(counted[0], f"{counted[0]:.0f} in {duration(view.window_s)}", by(Source.KERNEL.value))

    return measure


def _transmit_timeouts(view: NicView) -> Measured | None:
    paused = _paused(*_PAUSES_RECEIVED)(view)
    if paused is not None and paused.value >= _STOPPED:
        return None
    return _kernel_lines("transmit_timeout")(view)


# --- RDMA and cabling -------------------------------------------------------------------------------------


def _gid_missing(view: NicView) -> Measured | None:
    active, gids = view.history.level("rdma_port_active"), view.history.level("roce_v2_gids")
    if view.infiniband or active is None or gids is None:
        return None
    return yes_or_no(active == 1 and gids == 0, "no RoCE v2 GID", f"{gids:.0f} GIDs", by(Source.RDMA.value))


def _verbs_missing(view: NicView) -> Measured | None:
    if view.verbs_missing and view.history.level("rdma_port_active") != 1:
        return None
    return yes_or_no(view.verbs_missing, "no /dev/infiniband/uverbs", "usable", by(SYSFS, Source.RDMA.value))


def _miscabled(view: NicView) -> Measured | None:
    return yes_or_no(
        None if view.cabled_right is None else not view.cabled_right,
        view.cabling or "another port",
        view.cabling or "as planned",
        by(LLDP),
    )


ADAPTER_RULES: tuple[Rule, ...] = (
    Rule("optics_temperature", State.DEGRADED, _temperature("module_celsius_high_alarm", 75.0),
         "Degrees above the module's own high alarm.", "The module's limit; 75 °C without one (our own choice).",
         unit="°C above the limit", may_be_negative=True, enter=0, clear=-3, clear_for_s=600),
    Rule("optics_rx_power", State.DEGRADED, _light("rx_power_watts_low_alarm"),
         "Decibels of light above the module's low alarm, on the darkest lane.", "The module's limit, for 5 min.",
         unit="dB above the limit", may_be_negative=True, below=True, enter=0, clear=0.5, enter_for_s=300,
         clear_for_s=600),
    Rule("optics_laser", State.DEGRADED, _laser,
         "Lasers of the own module without current and light, on a link that is set up and has no carrier.",
         "One for a minute (our own choice); a module that states no low alarm of its sent light is not judged.",
         unit="lanes", enter=1, clear=0, enter_for_s=60, clear_for_s=60),
    Rule("pcie_width", State.DEGRADED, _pcie_width,
         "The share of PCIe lanes in use, of those that the function and the port above it have.",
         "DGX firmware guides and ClusterMAX expect all of them.",
         unit="of expected", below=True, enter=1, clear=1, enter_for_s=10, clear_for_s=60, withdraws=True,
         source=Source.PCIE),
    Rule("pcie_speed", State.DEGRADED, _pcie_speed,
         "The PCIe speed under load, as a share of the speed that the function and the port above it support.",
         "An idle link may use a lower speed, so a slow link counts while the NIC carries at least 5 % of its line. A "
         "fast link is good at any time (our own choice).",
         counters=_TRAFFIC, window_s=60, unit="of expected", below=True, enter=1, clear=1, enter_for_s=60,
         clear_for_s=60, withdraws=True, patient=True, gap_s=300),
    Rule("pcie_aer_fatal", State.DEGRADED, _aer("aer_fatal"), "Fatal PCIe errors (AER).",
         "One error is a fault (our own choice).",
         counters=("aer_fatal",), window_s=600, unit="errors", enter=1, clear=0, clear_for_s=3600),
    Rule("pcie_aer_nonfatal", State.DEGRADED, _aer("aer_nonfatal"),
         "Uncorrectable PCIe errors that were not fatal (AER).", "One in 10 min (our own choice).",
         counters=("aer_nonfatal",), window_s=600, unit="errors", enter=1, clear=0, clear_for_s=3600),
    Rule("pause_storm", State.DEGRADED, count_in_window("pause_storm_errors", Source.DRIVER),
         "The NIC has paused the network for so long that it switched its pauses off: packets may be lost.",
         "The counter of mlx5; one storm is a fault.",
         counters=("pause_storm_errors",), window_s=60, unit="storms", enter=1, clear=0, clear_for_s=900,
         withdraws=True),
    Rule("pause_source", State.DEGRADED, _paused(*_PAUSES_SENT),
         "The share of time for which this NIC pauses its switch: it blocks other nodes too.",
         "One such NIC may stop a whole fabric (Guo et al., RDMA over Commodity Ethernet at Scale, SIGCOMM 2016, "
         "section 4.3); they switch the pauses of a NIC off after 100 ms. Half of a minute is our own choice. A NIC "
         "that is paused itself is not withdrawn.",
         counters=_PAUSES_SENT, window_s=60, unit="of the time", enter=0.5, clear=0.05, enter_for_s=60,
         clear_for_s=600, withdraws=True),
    Rule("transmit_timeouts", State.DEGRADED, _transmit_timeouts,
         "The NIC is up and does not send: its driver resets a transmit queue again and again. A network that pauses "
         "the NIC for a quarter of the time explains it, and counts as unknown.",
         "Messages of mlx5 (en_main.c). NVSentinel 1508: one recovers by itself; three in 5 min are our own choice.",
         counters=("kernel_events", *_PAUSES_RECEIVED), window_s=300, unit="time-outs", enter=3, clear=0,
         clear_for_s=600, withdraws=True),
    Rule("command_failures", State.DEGRADED, _kernel_lines("command_failed"),
         "The firmware of the NIC refuses commands of its driver with an internal error, or does not take them.",
         "Messages of mlx5 (cmd.c); three in 10 min are our own choice. A command without an answer is "
         "firmware_fatal.",
         counters=("kernel_events",), window_s=600, unit="failures", enter=3, clear=0, clear_for_s=900),
    Rule("high_temperature", State.DEGRADED, _kernel_lines("high_temperature"),
         "The firmware of the NIC reports that the chip or its module is too hot; it switches itself off when it gets "
         "hotter.",
         "Messages of mlx5 (events.c): one is a fault, and none for 15 min ends it (our own choice).",
         counters=("kernel_events",), window_s=600, unit="messages", enter=1, clear=0, clear_for_s=900),
    Rule("gid_missing", State.DEGRADED, _gid_missing,
         "The RDMA port is active but has no RoCE v2 GID: no connection is possible.",
         "NCCL issue 2183: after a loss of carrier GIDs return late, at another index, or not at all.",
         enter_for_s=30, clear_for_s=30, withdraws=True, source=Source.RDMA),
    Rule("verbs_missing", State.DEGRADED, _verbs_missing,
         "The RDMA port is active and has no device in /dev/infiniband, while others of the node have one: no program "
         "can use it.",
         "NVSentinel 1546: 4 of 12 InfiniBand devices were missing at healthy ports. A PF with VFs is not asked.",
         enter_for_s=60, clear_for_s=60, withdraws=True),
    Rule("miscabled", State.MISCABLED, _miscabled, "LLDP reports another switch port than the cabling plan.",
         "For at least two frames, one every 30 s. A neighbor with an expired TTL is no evidence.", enter_for_s=60),
    Rule("optics_temperature_warning", WARNING, _temperature("module_celsius_high_warning", 70.0),
         "Degrees above the module's own high warning.", "The module's limit; 70 °C without one (our own choice).",
         unit="°C above the limit", may_be_negative=True, enter=0, clear=-3, clear_for_s=600),
    Rule("optics_rx_power_warning", WARNING, _light("rx_power_watts_low_warning"),
         "Decibels of light above the module's low warning, on the darkest lane.", "The module's limit, for 5 min.",
         unit="dB above the limit", may_be_negative=True, below=True, enter=0, clear=0.5, enter_for_s=300,
         clear_for_s=600),
    Rule("pcie_aer_correctable", WARNING, _aer("aer_correctable"), "Corrected PCIe errors (AER).",
         "1000 in an hour (our own choice).",
         counters=("aer_correctable",), window_s=3600, unit="errors", enter=1000, clear=500, clear_for_s=3600),
    Rule("pcie_stall", WARNING, _pcie_stall,
         "The share of seconds in which the host's PCIe stalled the NIC for more than 30 % of the time.",
         "NVIDIA's definition of a stalled second; the limit of a tenth is our own choice.",
         counters=_STALLS, window_s=60, unit="of the time", enter=0.1, clear=0.05, enter_for_s=600, clear_for_s=600),
    Rule("host_stall", WARNING, _paused(*_PAUSES_SENT),
         "The share of time for which this host paused the network: it does not process received frames fast enough.",
         "5 % for 10 min (our own choice).",
         counters=_PAUSES_SENT, window_s=60, unit="of the time", enter=0.05, clear=0.025, enter_for_s=600,
         clear_for_s=600),
    Rule("network_paused", WARNING, _paused(*_PAUSES_RECEIVED),
         "The share of time for which the network paused this host: congestion, not a fault of the device.",
         "10 % for 10 min (our own choice): a tenth of the bandwidth is gone. Meta runs RoCE on PFC alone, so short "
         "pauses are normal.",
         counters=_PAUSES_RECEIVED, window_s=60, unit="of the time", enter=0.1, clear=0.05, enter_for_s=600,
         clear_for_s=600),
    Rule("rdma_timeouts", WARNING, per_second("rdma_ack_timeouts", Source.RDMA),
         "RDMA acknowledgments that did not arrive in time; the cause may be at the other end.",
         "NVSentinel's local_ack_timeout_err: 1/s.",
         counters=("rdma_ack_timeouts",), window_s=60, unit="per second", enter=1, clear=0, enter_for_s=300,
         clear_for_s=600),
    Rule("slow_restart", WARNING, per_second("rdma_slow_restarts", Source.RDMA), "RoCE slow restarts.",
         "NVSentinel's roce_slow_restart: 10/s.",
         counters=("rdma_slow_restarts",), window_s=60, unit="per second", enter=10, clear=5, enter_for_s=60,
         clear_for_s=600),
    Rule("out_of_sequence", WARNING, per_second("rdma_out_of_sequence", Source.RDMA),
         "RDMA packets out of sequence.", "100/s for 10 min (our own choice).",
         counters=("rdma_out_of_sequence",), window_s=60, unit="per second", enter=100, clear=50, enter_for_s=600,
         clear_for_s=600),
)  # fmt: skip
"""The gravest first."""
