"""The rules of a link: presence, carrier, speed, and the errors of its bits. Pure."""

from __future__ import annotations

import math

from nodeagent.base.duration import duration
from nodeagent.base.rfc3339 import rfc3339
from nodeagent.facts.model import State
from nodeagent.health.history import total
from nodeagent.health.nic_view import SYSFS, NicView, by, count_in_window, per_second, percent, yes_or_no
from nodeagent.health.rule import WARNING, Measured, Rule
from nodeagent.measurements.sample import Source

# --- presence and carrier ---------------------------------------------------------------------------------


def _device_missing(view: NicView) -> Measured | None:
    agree = {Source.LINK.value} if not view.present and Source.LINK in view.history.stale() else set()
    return yes_or_no(not view.present, "missing", "present", by(SYSFS, *agree))


def _not_answering(view: NicView) -> Measured | None:
    return yes_or_no(not view.answers, "does not answer", "answers", by(SYSFS))


def _driver_unbound(view: NicView) -> Measured | None:
    return yes_or_no(None if not view.present else not view.bound, "no driver", "bound", by(SYSFS))


def _admin_down(view: NicView) -> Measured | None:
    bad = None if view.admin_up is None or view.infiniband else not view.admin_up
    up = view.history.level("admin_up")
    agree = {Source.LINK.value} if bad is not None and up is not None and (up == 0) == bad else set()
    return yes_or_no(bad, "set down", "set up", by(SYSFS, *agree))


def _carrier_down(view: NicView) -> Measured | None:
    return yes_or_no(
        None if view.carrier is None else not view.carrier, "no carrier", "carrier", view.carrier_witnesses
    )


FATAL_PATTERNS = ("firmware_fatal", "health_compromised", "unrecoverable", "command_leak")
"""Of ``kernel_events``: those after which the NIC no longer works."""


def _firmware_fatal(view: NicView) -> Measured | None:
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


def _loss_source(view: NicView) -> str | None:
    """The source of the counter of losses; ``None``: losses in the meantime are unknown."""
    if view.losses is None:
        return None
    if view.history.reads("ib_link_downed"):
        return Source.RDMA.value  # also while the netdev is in a pod
    stale = view.history.stale()
    lost = Source.LINK in stale or (Source.RDMA in stale and view.infiniband)
    return None if lost else Source.LINK.value


def _flapping(view: NicView) -> Measured | None:
    source = _loss_source(view)
    return None if source is None else Measured(view.penalty, f"penalty {view.penalty:.0f}", by(source))


def _rail_blamed(view: NicView, size: str, words: str) -> Measured | None:
    lossy, partners = view.history.level(f"rail_lossy_{size}"), view.history.level("rail_partners")
    if lossy is None or partners is None:
        return None
    text = f"{words} to and from partners on {lossy:.0f} of {partners:.0f} nodes"
    return Measured(lossy if 2 * lossy >= partners else 0.0, text, by(Source.RAILS.value), sentence=text)


_WAYS = {0.0: "", 1.0: ", most on the way there", -1.0: ", most on the way back"}


def _rail_loss(view: NicView) -> Measured | None:
    loss = view.history.level("rail_loss") or 0.0
    counted = view.history.over("crc_errors", view.window_s)
    crc = "" if counted is None else f"; {counted[0]:.0f} CRC errors in {duration(counted[1])}"
    found = _rail_blamed(view, "small", f"{percent(loss)} of the packets lost")
    level = view.history.level
    evidence = ("packets", "partners", "since", "way")
    packets, partners, since, way = (level(f"rail_lossy_{of}") for of in evidence)
    if found is None or not packets or not partners or not since:
        return found
    text = (
        f"{percent(loss)} of {packets:,.0f} packets to and from {partners:.0f} partners on {found.value:.0f} nodes lost"
        f" since {rfc3339(since)[11:16]} UTC{_WAYS[way or 0.0]}{crc}"
    )
    return found._replace(text=text, sentence=text)


def _rail_mtu(view: NicView) -> Measured | None:
    return _rail_blamed(view, "large", "packets of the full MTU lost")


def _slot_power(view: NicView) -> Measured | None:
    low = view.history.level("slot_power_low")
    return yes_or_no(
        None if low is None else low == 1, "too little power", "enough power", by(Source.KERNEL.value)
    )


QUIET_S = 3600.0
"""A link without a loss for so long is used again, however many losses its day has."""


def _flapping_daily(view: NicView) -> Measured | None:
    source = _loss_source(view)
    if source is None or view.losses is None:
        return None
    losses = view.losses if view.since_loss_s < QUIET_S else 0
    return Measured(float(losses), f"{view.losses} losses", by(source))


def _speed_reduced(view: NicView) -> Measured | None:
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

_BITS = ("fec_corrected_bits", "phy_rx_bits")


def _line_bits(view: NicView) -> float | None:
    """The bits that the line carries per second, idle symbols included, because FEC corrects those too: the count of
    the PHY, and at least the speed of the line. A lower count is one of frames."""
    counted = view.history.rate("phy_rx_bits", view.window_s) or 0.0
    return max(counted, 1e6 * (view.speed_mbps or 0.0)) or None


def _pre_fec(view: NicView) -> Measured | None:
    rate, bits = view.history.rate("fec_corrected_bits", view.window_s), _line_bits(view)
    if rate is None or bits is None:
        return None
    return Measured(rate / bits, f"{rate / bits:.1e}", by(Source.FEC.value))


def _wrong_packets(view: NicView) -> Measured | None:
    """PortRcvErrors of an InfiniBand port counts packets with a wrong checksum, and those that are malformed or find no
    buffer (IBTA volume 1, 16.1.3.5). IPoIB counts no wrong checksum."""
    if view.infiniband:
        return per_second("ib_receive_errors", Source.RDMA)(view)
    return per_second("crc_errors", Source.LINK)(view)


POST_FEC_LEAST = 10


def _post_fec_errors(view: NicView) -> Measured | None:
    counted, bits = view.history.over("symbol_errors", view.window_s), _line_bits(view)
    if counted is None or bits is None:
        return None
    errors, seconds = counted
    ratio = errors / seconds / bits
    text = f"{ratio:.1e} ({errors:.0f} errors in {duration(seconds)})"
    return Measured(ratio, text, by(Source.DRIVER.value), enough=errors >= POST_FEC_LEAST)


LANE_LEAST = 100
LANE_DB = 2.0


def _lane_imbalance(view: NicView) -> Measured | None:
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


LINK_RULES: tuple[Rule, ...] = (
    Rule("device_missing", State.DOWN, _device_missing, "The PF is not on the PCI bus.",
         "At once, because it only keeps new pods away. NVSentinel also reports a missing device as a fault.",
         clear_for_s=60, withdraws=True, on_facts=True, ungated=True),
    Rule("not_answering", State.DOWN, _not_answering,
         "Reading the files of the PF in sysfs hangs: its driver or its firmware does not answer.",
         "For 30 s, because a driver that creates VFs holds the lock of its device for seconds (our own choice).",
         enter_for_s=30, withdraws=True, on_facts=True, ungated=True),
    Rule("driver_unbound", State.DOWN, _driver_unbound, "The PF has no driver.",
         "It was unbound on purpose, or an update failed. Nothing works without a driver, so the fault starts and "
         "ends at once.",
         withdraws=True, on_facts=True, ungated=True),
    Rule("firmware_fatal", State.DOWN, _firmware_fatal,
         "The firmware of the NIC has failed, by devlink's fw_fatal reporter or by the driver's messages in the "
         "kernel log.",
         "The kernel patterns are those of mlx5 and NVSentinel. The fault ends when the reporter is healthy and the "
         "log has no such message for the window.",
         counters=("kernel_events",), window_s=600, clear_for_s=60, withdraws=True),
    Rule("admin_down", State.DOWN, _admin_down, "The link is set down.",
         "An administrator decides this, so the fault starts and ends at once. A PF without VFs is also set down to be "
         "moved into a pod as a whole, so its fault starts after 5 s (our own choice).",
         withdraws=True, on_facts=True),
    Rule("carrier_down", State.DOWN, _carrier_down,
         "The link has no carrier while it is set up; on InfiniBand: its port is not active.",
         "The fault starts at once, as in NVSentinel (gpud waits 4 min). It ends after 60 s with carrier, so that an "
         "unstable link returns only once (our own choice).",
         clear_for_s=60, withdraws=True, on_facts=True, by_losses=True),
    Rule("flapping", State.DEGRADED, _flapping,
         "The link loses its carrier repeatedly: each loss adds 1000 penalty points, which halve every window.",
         "The form is that of RFC 2439 and IP event dampening: suppressed from 2500 on, which is three losses in short "
         "succession (gpud and NVSentinel: three), reused at 1000, after an hour at the latest. The kernel's "
         "carrier_down_count counts the losses, not events; of an InfiniBand port without IPoIB its link_downed.",
         counters=("carrier_down",), window_s=600, unit="points", enter=2500, clear=1000, withdraws=True,
         by_losses=True, decays="penalty"),
    Rule("flapping_daily", State.DEGRADED, _flapping_daily,
         "The link has lost its carrier too often within a day; an hour without a loss ends the fault.",
         "Azure NHC's check_ib_link_flapping: 5 in 24 h. The hour is our own choice.",
         counters=("carrier_down",), window_s=86400, unit="losses", enter=5, clear=0,
         clears="an hour without a loss", withdraws=True, by_losses=True, decays="losses"),
    Rule("speed_reduced", State.DEGRADED, _speed_reduced,
         "The link is slower than configured, than most links of its role, or than its own best in this boot.",
         "gpud and Azure NHC expect 400G of each port of a DGX H100; here the majority of the node decides.",
         unit="of expected", below=True, enter=1, clear=1, enter_for_s=10, clear_for_s=60, withdraws=True,
         source=Source.MODES),
    Rule("post_fec_errors", State.DEGRADED, _post_fec_errors,
         "Symbols that FEC could not correct, as a share of all bits of the line; fewer than ten are not a fault.",
         "IBTA and Dell: 1e-12, which is 1530 an hour at 400G.",
         counters=("symbol_errors", "phy_rx_bits"), window_s=300, unit="of all bits", enter=1e-12, clear=1e-13,
         clear_for_s=900, withdraws=True, settles=True),
    Rule("fec_uncorrectable", State.DEGRADED, count_in_window("fec_uncorrectable_blocks", Source.FEC),
         "Blocks that FEC could not correct.",
         "Ten in 5 min (our own choice; ROCm's device-metrics-exporter issue 393 asks for them).",
         counters=("fec_uncorrectable_blocks",), window_s=300, unit="blocks", enter=10, clear=0, clear_for_s=900,
         settles=True),
    Rule("pre_fec_ber", State.DEGRADED, _pre_fec, "The share of the bits of the line that FEC corrected.",
         "IEEE 802.3 allows 2.4e-4 on PAM4 before FEC fails (Dell KB 286734); the margin is our own choice.",
         counters=_BITS, window_s=60, unit="of all bits", enter=1e-4, clear=5e-5, enter_for_s=600, clear_for_s=900,
         settles=True),
    Rule("crc_errors", State.DEGRADED, _wrong_packets,
         "Received frames with a wrong checksum; on InfiniBand packets with an error (port_rcv_errors).",
         "NVSentinel's port_rcv_errors: 10/s.",
         counters=("crc_errors", "ib_receive_errors"), window_s=60, unit="per second", enter=10, clear=0,
         clear_for_s=600, settles=True),
    Rule("pre_fec_ber_warning", WARNING, _pre_fec,
         "The share of the bits of the line that FEC corrected, at a warning level.",
         "A 24th of what IEEE 802.3 allows on PAM4 (our own choice).",
         counters=_BITS, window_s=60, unit="of all bits", enter=1e-5, clear=5e-6, enter_for_s=600, clear_for_s=900,
         settles=True),
    Rule("link_recoveries", WARNING, count_in_window("ib_recoveries", Source.RDMA),
         "An InfiniBand link trains again and again because of errors; it carries nothing meanwhile.",
         "NVSentinel's link_error_recovery: more than 5 in a minute.",
         counters=("ib_recoveries",), window_s=60, unit="recoveries", enter=6, clear=0, clear_for_s=600, settles=True),
    Rule("link_symbol_errors", WARNING, per_second("ib_symbol_errors", Source.RDMA),
         "Symbol errors on the lanes of an InfiniBand link.", "NVSentinel's symbol_error: 10/s.",
         counters=("ib_symbol_errors",), window_s=60, unit="per second", enter=10, clear=0, clear_for_s=600,
         settles=True),
    Rule("rail_loss", WARNING, _rail_loss,
         "Packets over this rail are lost, by the word of two partners on different nodes and of half of them.",
         "The probes of rails.probe. The NIC, the cable and the leaf port lie on the same way; a fault of the whole "
         "leaf looks the same from one node.",
         counters=("crc_errors",), window_s=3600, unit="nodes", enter=2, clear=0, source=Source.RAILS),
    Rule("rail_mtu", WARNING, _rail_mtu,
         "Packets of the full MTU over this rail are lost and small ones are not, by the word of two partners.",
         "The probes of rails.probe; one large packet for each partner in 10 s.",
         unit="nodes", enter=2, clear=0, source=Source.RAILS),
    Rule("slot_power", WARNING, _slot_power,
         "The PCIe slot offers less power than the NIC asks for: it may switch modules off or slow down under load.",
         "The message of mlx5 (events.c) when the driver starts and at each change.", source=Source.KERNEL),
    Rule("lane_imbalance", WARNING, _lane_imbalance,
         "One lane has many times the errors of the next lane, and more than 2 dB less light than the best lane.",
         "NVIDIA's Cable Validation Tool: ten times, which indicates dirty optics.",
         counters=("lane_errors",), window_s=300, unit="times the next", enter=10, clear=5, enter_for_s=60,
         clear_for_s=600, settles=True),
)  # fmt: skip
"""The gravest first."""
